// Records of head scoring, merged, and score files, averaged. The first byte chooses; parts of the input are
// separated by bytes of value 1 and stand for files. Whatever they hold, the end is a score file or a
// message.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/failure.h"
#include "tools/files.h"
#include "tools/score/merge.h"

namespace {

using namespace kvc::tool;

std::vector<std::string> Parts(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == 1) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Lines as people would write them, with the checksums that nobody can guess.
std::string WithChecksums(const std::string& text) {
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += CheckedLine(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

void ExpectScores(const Json& document, int64_t n_scores) {
  int32_t n_layers = 0, n_heads = 0;
  const Json again = ParseJsonText(document.dump(), "again");
  const std::vector<double> scores = FlatScores(again, "again", &n_layers, &n_heads);
  if (static_cast<int64_t>(scores.size()) != n_scores) __builtin_trap();
  for (const double score : scores) {
    if (!std::isfinite(score)) __builtin_trap();
  }
}

void MergeThem(const std::vector<std::string>& logs, Variant variant, bool standardise) {
  LogMerger merger;
  for (const std::string& log : logs) merger.Add("log", ParseWorkLog(log, "log"));
  if (merger.n_missing() < 0) __builtin_trap();
  const EstimateOptions options{variant, !standardise, standardise};
  const ScoreReport report = MakeReport(merger.plan(), merger.results(), options);
  const Json document = ScoreJson(merger.plan(), merger.what(), options, report, "name");
  ExpectScores(document, merger.plan().n_players());
}

void AverageThem(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, Json>> files;
  for (const std::string& text : texts) files.emplace_back("scores", ParseJsonText(text, "scores"));
  const Json document = AverageScores(files, "");
  int32_t n_layers = 0, n_heads = 0;
  ExpectScores(document, static_cast<int64_t>(FlatScores(files[0].second, "a", &n_layers, &n_heads).size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> parts = Parts(text);
  try {
    if (data[0] % 4 == 3) {
      AverageThem(parts);
      return 0;
    }
    if (data[0] % 4 != 0) {
      for (std::string& part : parts) part = WithChecksums(part);
    }
    MergeThem(parts, static_cast<Variant>(data[0] / 4 % 4), data[0] / 16 % 2 == 1);
  } catch (const Failure& failure) {
    if (std::string(failure.what()).empty()) __builtin_trap();
  } catch (const UsageError&) {
  }
  return 0;
}

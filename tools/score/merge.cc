#include "tools/score/merge.h"

#include <algorithm>
#include <numeric>

#include "tools/failure.h"
#include "tools/files.h"
#include "tools/kvc_handles.h"
#include "tools/score/players.h"

namespace kvc::tool {
namespace {

constexpr int64_t kMostCounted = int64_t{1} << 53;  // samples of one file

// [run][N] of a file; nothing when it does not tell.
std::vector<std::vector<double>> ScoresByRun(const Json& file, const std::string& path) {
  std::vector<std::vector<double>> runs;
  int32_t n_layers = 0, n_heads = 0;
  if (!file.contains("scores_by_run")) return runs;
  for (const Json& run : file["scores_by_run"])
    runs.push_back(FlatScores(Json{{"scores", run}}, path + ": scores_by_run", &n_layers, &n_heads));
  return runs;
}

// What is centred has no offset: of scores that count by their differences (methods.md 3.10). Retrieval
// scores count by their ratios.
void AddPart(const std::vector<double>& scores, bool centred, size_t n_files, std::vector<double>* total) {
  const double mean =
      centred ? std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(scores.size()) : 0;
  total->resize(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) (*total)[i] += (scores[i] - mean) / static_cast<double>(n_files);
}

// How far the first two runs of all tasks agree once averaged.
void AddAgreement(const std::vector<std::vector<double>>& runs, Json* out) {
  (*out)["runs"] = runs.size();
  (*out)["mae_between_runs"] = MeanAbsoluteDifference(runs[0], runs[1]);
  (*out)["correlation_between_runs"] = Spearman(runs[0], runs[1]);
}

}  // namespace

void LogMerger::Add(const std::string& path, const WorkLog& log) {
  if (header_.is_null()) {
    ReadLogHeader(log.header, path, &plan_, &what_);
    header_ = log.header;
  } else {
    CheckSameHeader(header_, log.header, path);
  }
  CheckResults(plan_, what_.n_examples, log.results, path);
  MergeResults(log.results, path, &results_);
}

int64_t LogMerger::n_missing() const {
  int64_t end = 0;
  for (const auto& [key, result] : results_) end = std::max(end, int64_t{key.sample} + 1);
  return CountWorkItems(plan_, end) - static_cast<int64_t>(results_.size());
}

Json AverageScores(const std::vector<std::pair<std::string, Json>>& files, const std::string& name) {
  std::vector<double> total;
  std::vector<std::vector<double>> runs(2);
  bool all_have_runs = true;
  ScorePlan all;  // shape and players of them all
  int64_t n_samples = 0;
  Json parts = Json::array();
  const auto& [first_path, first] = files.at(0);
  const bool centred = TextMember(first, "estimator", first_path) != "headkv-r2";
  const auto of_nll = [](const Json& file, const std::string& path) {
    return TextMember(file, "utility", path) == "nll";
  };
  for (const auto& [path, file] : files) {
    int32_t layers = 0, heads = 0;
    const std::vector<double> scores = FlatScores(file, path, &layers, &heads);
    const std::vector<int32_t> scored = ScoredLayers(file, path, layers);
    if (total.empty()) all.n_layers = layers, all.n_kv_heads = heads, all.layers = scored;
    if (layers != all.n_layers || heads != all.n_kv_heads || scored != all.layers ||
        TextMember(file, "fingerprint", path) != TextMember(first, "fingerprint", first_path) ||
        TextMember(file, "estimator", path) != TextMember(first, "estimator", first_path)) {
      throw Failure(path + ": scores of another model, shape or estimator than " + first_path);
    }
    if (of_nll(file, path) != of_nll(first, first_path))
      throw Failure(path + ": utilities of another kind than those of " + first_path +
                    ": likelihoods (nll) and shares of right answers are not compared (methods.md 3.1)");
    AddPart(OfPlayers(all, scores), centred, files.size(), &total);
    const std::vector<std::vector<double>> by_run = ScoresByRun(file, path);
    all_have_runs = all_have_runs && by_run.size() >= 2 && by_run[0].size() == scores.size() &&
                    by_run[1].size() == scores.size();
    for (size_t run = 0; run < 2 && all_have_runs; ++run)
      AddPart(OfPlayers(all, by_run[run]), centred, files.size(), &runs[run]);
    n_samples = std::min(kMostCounted, n_samples + WholeMember(file, "samples", path, 0, kMostCounted, 0));
    parts.push_back(TextMember(file, "dataset", path, Printable(path)));
  }
  Json out{{"name", name.empty() ? "ssv-average" : name},
           {"estimator", TextMember(first, "estimator", first_path, "ssv")},
           {"variant", centred ? "mean of centred tasks" : "mean of tasks"},
           {"model", TextMember(first, "model", first_path)},
           {"fingerprint", TextMember(first, "fingerprint", first_path)},
           {"dataset", "*"},
           {"parts", parts},
           {"note", "mean over " + parts.dump()},
           {"shape", {all.n_layers, all.n_kv_heads}},
           {"utility", TextMember(first, "utility", first_path)},
           {"seed", WholeMember(first, "seed", first_path, INT64_MIN, INT64_MAX, 0)},
           {"samples", n_samples},
           {"tool", "kvc " + LibraryVersion()},
           {"scores", NestedScores(TableOf(all, total), all.n_layers)}};
  if (!all.layers.empty()) out["layers"] = all.layers;
  if (all_have_runs) AddAgreement(runs, &out);
  return out;
}

}  // namespace kvc::tool

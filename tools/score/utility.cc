#include "tools/score/utility.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "tools/failure.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct NamedMetric {
  const char* name;
  Metric metric;
};

constexpr NamedMetric kMetrics[] = {{"exact", Metric::kExact},
                                    {"nll", Metric::kNll},
                                    {"f1", Metric::kF1},
                                    {"rouge-l", Metric::kRougeL},
                                    {"classification", Metric::kClassification},
                                    {"retrieval", Metric::kRetrieval},
                                    {"code", Metric::kCode},
                                    {"needle", Metric::kNeedle}};

std::string LowerCase(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

double HarmonicMean(size_t common, size_t a, size_t b) {
  return common == 0 ? 0 : 2.0 * static_cast<double>(common) / static_cast<double>(a + b);
}

double TokenF1(const std::string& text, const std::string& answer) {
  const std::vector<std::string> a = Words(NormalisedText(text)), b = Words(NormalisedText(answer));
  std::map<std::string, int> counts;
  for (const std::string& word : b) ++counts[word];
  size_t common = 0;
  for (const std::string& word : a) {
    if (const auto it = counts.find(word); it != counts.end() && it->second-- > 0) ++common;
  }
  return HarmonicMean(common, a.size(), b.size());
}

double RougeL(const std::string& text, const std::string& answer) {
  const std::vector<std::string> a = Words(LowerCase(text)), b = Words(LowerCase(answer));
  std::vector<size_t> row(b.size() + 1);
  for (const std::string& word : a) {
    size_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return HarmonicMean(row.back(), a.size(), b.size());
}

// Class names that are parts of another name found, and of the answer's, do not count against it.
double Classification(const std::string& text, const std::string& answer,
                      const std::vector<std::string>& classes) {
  std::vector<std::string> found;
  for (const std::string& name : classes) {
    const bool part_of_answer = name != answer && answer.find(name) != std::string::npos;
    if (text.find(name) != std::string::npos && !part_of_answer) found.push_back(name);
  }
  const bool right = std::find(found.begin(), found.end(), answer) != found.end();
  return right ? 1.0 / static_cast<double>(found.size()) : 0;
}

std::vector<std::string> Numbers(const std::string& text) {
  std::vector<std::string> numbers;
  bool inside = false;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (digit && !inside) numbers.emplace_back();
    if (digit) numbers.back() += c;
    inside = digit;
  }
  return numbers;
}

double Retrieval(const std::string& text, const std::string& answer) {
  const std::vector<std::string> wanted = Numbers(answer), found = Numbers(text);
  if (wanted.empty() || found.empty()) return 0;
  const auto right = std::count(found.begin(), found.end(), wanted[0]);
  return static_cast<double>(right) / static_cast<double>(found.size());
}

// The first line that looks like code: no back quote, no comment. As in LongBench newlines in front are no
// lines, and an empty line behind them is one.
std::string FirstCodeLine(const std::string& text) {
  std::istringstream in(text.substr(std::min(text.find_first_not_of('\n'), text.size())));
  for (std::string line; std::getline(in, line);) {
    if (line.find('`') != std::string::npos || line.find('#') != std::string::npos ||
        line.find("//") != std::string::npos)
      continue;
    return line;
  }
  return "";
}

double Needle(const std::string& text, const std::string& answer) {
  const std::string reference = LowerCase(answer), cut = LowerCase(text).substr(0, reference.size());
  const std::vector<std::string> words = Words(reference);
  const std::set<std::string> distinct(words.begin(), words.end());
  const auto found = std::count_if(distinct.begin(), distinct.end(), [&](const std::string& word) {
    return cut.find(word) != std::string::npos;
  });
  return distinct.empty() ? 0 : static_cast<double>(found) / static_cast<double>(distinct.size());
}

// Characters in common blocks of a[a0, a1) and b[b0, b1): the longest one, then the parts beside it.
size_t MatchingCharacters(const std::string& a, size_t a0, size_t a1, const std::string& b, size_t b0,
                          size_t b1) {
  size_t best = 0, best_a = a0, best_b = b0;
  std::vector<size_t> row(b1 - b0 + 1);
  for (size_t i = a0; i < a1; ++i) {
    size_t diagonal = 0;
    for (size_t j = b0; j < b1; ++j) {
      const size_t above = row[j - b0 + 1];
      const size_t run = a[i] == b[j] ? diagonal + 1 : 0;
      if (run > best) best = run, best_a = i + 1 - run, best_b = j + 1 - run;
      row[j - b0 + 1] = run;
      diagonal = above;
    }
  }
  if (best == 0) return 0;
  return best + MatchingCharacters(a, a0, best_a, b, b0, best_b) +
         MatchingCharacters(a, best_a + best, a1, b, best_b + best, b1);
}

double OneAnswer(Metric metric, const std::string& text, const std::string& answer,
                 const std::vector<std::string>& classes) {
  switch (metric) {
    case Metric::kF1:
      return TokenF1(text, answer);
    case Metric::kRougeL:
      return RougeL(text, answer);
    case Metric::kClassification:
      return Classification(text, answer, classes);
    case Metric::kRetrieval:
      return Retrieval(text, answer);
    case Metric::kCode:
      return EditSimilarity(FirstCodeLine(text), answer);
    case Metric::kNeedle:
      return Needle(text, answer);
    case Metric::kNll:
    case Metric::kExact:
      break;
  }
  throw Failure("this metric compares tokens, not texts");
}

}  // namespace

const std::vector<std::string>& MetricNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const NamedMetric& known : kMetrics) list.push_back(known.name);
    return list;
  }();
  return names;
}

Metric ParseMetric(const std::string& name) {
  for (const NamedMetric& known : kMetrics) {
    if (name == known.name) return known.metric;
  }
  throw UsageError("no utility is called " + name);
}

bool IsTextMetric(Metric metric) { return metric != Metric::kNll && metric != Metric::kExact; }

double TextUtility(Metric metric, const std::string& text, const std::vector<std::string>& answers,
                   const std::vector<std::string>& classes) {
  double best = 0;
  for (const std::string& answer : answers) best = std::max(best, OneAnswer(metric, text, answer, classes));
  return best;
}

std::string NormalisedText(const std::string& text) {
  std::string plain;
  for (const char c : LowerCase(text)) {
    if (!std::ispunct(static_cast<unsigned char>(c))) plain += c;
  }
  std::string joined;
  for (const std::string& word : Words(plain)) {
    if (word == "a" || word == "an" || word == "the") continue;
    joined += (joined.empty() ? "" : " ") + word;
  }
  return joined;
}

double EditSimilarity(const std::string& a, const std::string& b) {
  if (a.empty() && b.empty()) return 1;
  return HarmonicMean(MatchingCharacters(a, 0, a.size(), b, 0, b.size()), a.size(), b.size());
}

}  // namespace kvc::tool

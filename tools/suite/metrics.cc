#include "tools/suite/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tools/suite/utf8.h"
#include "tools/texts.h"

namespace kvc::tool {
namespace {

using Words = std::vector<std::string>;

bool IsPunctuation(char32_t c) {  // string.punctuation
  return c > 32 && c < 127 && (c == '_' || !IsWordPart(c));
}

double TokenF1(const std::string& answer, const std::string& truth) {
  const Words ours = SplitWords(NormalizeAnswer(answer)), theirs = SplitWords(NormalizeAnswer(truth));
  std::map<std::string, int> left;
  for (const std::string& word : theirs) ++left[word];
  int same = 0;
  for (const std::string& word : ours) same += left[word]-- > 0;
  if (same == 0) return 0;
  const double precision = static_cast<double>(same) / static_cast<double>(ours.size()),
               recall = static_cast<double>(same) / static_cast<double>(theirs.size());
  return 2 * precision * recall / (precision + recall);
}

// Sentences end at full stops; a sentence of white space alone is one of a single empty word.
std::vector<Words> Sentences(const std::string& text) {
  std::vector<Words> sentences;
  for (const std::string& part : SplitAt(text, '.')) {
    if (!part.empty()) sentences.push_back(SplitAt(Join(SplitWords(part)), ' '));
  }
  return sentences;
}

// Adds the words of the longest common subsequence that the package's way back through the table finds.
void AddCommonWords(const Words& truth, const Words& answer, std::set<std::string>* common) {
  const size_t n = truth.size(), m = answer.size();
  std::vector<int> table((n + 1) * (m + 1));
  const auto at = [&](size_t i, size_t j) -> int& { return table[i * (m + 1) + j]; };
  for (size_t i = 1; i <= n; ++i) {
    for (size_t j = 1; j <= m; ++j)
      at(i, j) = truth[i - 1] == answer[j - 1] ? at(i - 1, j - 1) + 1 : std::max(at(i - 1, j), at(i, j - 1));
  }
  for (size_t i = n, j = m; i > 0 && j > 0;) {
    if (truth[i - 1] == answer[j - 1]) {
      common->insert(truth[i - 1]);
      --i, --j;
    } else if (at(i - 1, j) > at(i, j - 1)) {
      --i;
    } else {
      --j;
    }
  }
}

double RougeL(const std::string& answer, const std::string& truth) {
  const std::vector<Words> ours = Sentences(answer), theirs = Sentences(truth);
  if (ours.empty() || theirs.empty()) return 0;
  std::set<std::string> our_words, their_words, common;
  for (const Words& sentence : ours) our_words.insert(sentence.begin(), sentence.end());
  for (const Words& sentence : theirs) their_words.insert(sentence.begin(), sentence.end());
  for (const Words& their_sentence : theirs) {
    for (const Words& our_sentence : ours) AddCommonWords(their_sentence, our_sentence, &common);
  }
  const double recall = static_cast<double>(common.size()) / static_cast<double>(their_words.size()),
               precision = static_cast<double>(common.size()) / static_cast<double>(our_words.size());
  return 2 * (precision * recall / (precision + recall + 1e-8));
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double Classification(const std::string& answer, const std::string& truth, const Words& classes) {
  Words named;
  for (const std::string& name : classes) {
    if (Contains(answer, name)) named.push_back(name);
  }
  // The published loop removes from the list it walks over, and so passes by what follows.
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string term = named[i];
    if (Contains(truth, term) && term != truth) named.erase(std::find(named.begin(), named.end(), term));
  }
  if (std::find(named.begin(), named.end(), truth) == named.end()) return 0;
  return 1.0 / static_cast<double>(named.size());
}

Words Numbers(const std::string& text) {
  Words numbers;
  std::string number;
  for (const char c : text + " ") {
    if (c >= '0' && c <= '9') {
      number += c;
    } else if (!number.empty()) {
      numbers.push_back(number);
      number.clear();
    }
  }
  return numbers;
}

double ShareOfNumbers(const std::string& answer, const std::string& truth) {
  const Words numbers = Numbers(answer);
  if (numbers.empty()) return 0;
  return static_cast<double>(std::count(numbers.begin(), numbers.end(), truth)) /
         static_cast<double>(numbers.size());
}

// The number behind a mark such as "Paragraph "; 0 when the expected answer has none.
double Retrieval(const std::string& answer, const std::string& truth, const std::string& mark) {
  for (size_t at = truth.find(mark); at != std::string::npos; at = truth.find(mark, at + 1)) {
    const std::string rest = truth.substr(at + mark.size());
    const size_t n = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (n > 0) return ShareOfNumbers(answer, rest.substr(0, n));
  }
  return 0;
}

double EditSimilarity(const std::string& answer, const std::string& truth) {
  std::string line;
  const size_t begin = std::min(answer.find_first_not_of('\n'), answer.size());
  for (const std::string& candidate : SplitAt(answer.substr(begin), '\n')) {
    if (Contains(candidate, "`") || Contains(candidate, "#") || Contains(candidate, "//")) continue;
    line = candidate;
    break;
  }
  if (line == truth) return 1;
  if (line.empty() || truth.empty()) return 0;
  return std::nearbyint(100 * SequenceRatio(line, truth)) / 100;  // to even, as Python rounds
}

// RULER reads control characters as ends of lines, and looks for the expected text in any case.
std::string Plain(const std::string& answer) {
  std::string text = answer;
  for (char& c : text) c = static_cast<unsigned char>(c) < 32 ? '\n' : c;
  return LowerCase(text);
}

double Matches(const std::string& answer, const Words& expected, bool all) {
  const std::string text = Plain(answer);
  double found = 0;
  for (const std::string& part : expected) found += Contains(text, LowerCase(part));
  return all ? found / static_cast<double>(expected.size()) : found > 0 ? 1 : 0;
}

double ScoreOne(Metric metric, const std::string& answer, const std::string& truth, const Words& classes) {
  switch (metric) {
    case Metric::kTokenF1:
      return TokenF1(answer, truth);
    case Metric::kRougeL:
      return RougeL(answer, truth);
    case Metric::kClassification:
      return Classification(answer, truth, classes);
    case Metric::kRetrieval:
      return Retrieval(answer, truth, "Paragraph ");
    case Metric::kRetrievalZh:
      return Retrieval(answer, truth, "\u6bb5\u843d");
    case Metric::kCount:
      return ShareOfNumbers(answer, truth);
    case Metric::kEditSimilarity:
      return EditSimilarity(answer, truth);
    case Metric::kMatchAll:
    case Metric::kMatchPart:
      break;  // of all expected texts together
  }
  return 0;
}

// Matching blocks of two texts as difflib finds them.
class Matcher {
 public:
  Matcher(const std::u32string& a, const std::u32string& b) : a_(a), b_(b) {
    constexpr size_t kLong = 200;
    for (size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    if (b.size() < kLong) return;
    const size_t most = b.size() / 100 + 1;
    for (auto it = places_.begin(); it != places_.end();)
      it = it->second.size() > most ? places_.erase(it) : std::next(it);
  }

  size_t CountMatches() {
    struct Range {
      size_t a_begin, a_end, b_begin, b_end;
    };
    std::vector<Range> open = {{0, a_.size(), 0, b_.size()}};
    size_t matches = 0;
    while (!open.empty()) {
      const Range r = open.back();
      open.pop_back();
      const Block block = Longest(r.a_begin, r.a_end, r.b_begin, r.b_end);
      if (block.n == 0) continue;
      matches += block.n;
      open.push_back({r.a_begin, block.a, r.b_begin, block.b});
      open.push_back({block.a + block.n, r.a_end, block.b + block.n, r.b_end});
    }
    return matches;
  }

 private:
  struct Block {
    size_t a, b, n;
  };

  // The longest block, the first of equal ones in a, then in b; grown over popular elements at its ends.
  Block Longest(size_t a_begin, size_t a_end, size_t b_begin, size_t b_end) {
    Block best = {a_begin, b_begin, 0};
    std::map<size_t, size_t> lengths;  // of the block that ends at this place of b
    for (size_t i = a_begin; i < a_end; ++i) {
      std::map<size_t, size_t> next;
      const auto found = places_.find(a_[i]);
      if (found != places_.end()) {
        for (const size_t j : found->second) {
          if (j < b_begin || j >= b_end) continue;
          const auto before = j == 0 ? lengths.end() : lengths.find(j - 1);
          const size_t n = (before == lengths.end() ? 0 : before->second) + 1;
          next[j] = n;
          if (n > best.n) best = {i + 1 - n, j + 1 - n, n};
        }
      }
      lengths = std::move(next);
    }
    while (best.a > a_begin && best.b > b_begin && a_[best.a - 1] == b_[best.b - 1])
      --best.a, --best.b, ++best.n;
    while (best.a + best.n < a_end && best.b + best.n < b_end && a_[best.a + best.n] == b_[best.b + best.n])
      ++best.n;
    return best;
  }

  const std::u32string &a_, &b_;
  std::map<char32_t, std::vector<size_t>> places_;
};

}  // namespace

const char* MetricName(Metric metric) {
  switch (metric) {
    case Metric::kTokenF1:
      return "f1";
    case Metric::kRougeL:
      return "rouge-l";
    case Metric::kClassification:
      return "classification";
    case Metric::kRetrieval:
    case Metric::kRetrievalZh:
      return "retrieval";
    case Metric::kCount:
      return "count";
    case Metric::kEditSimilarity:
      return "edit";
    case Metric::kMatchAll:
      return "match-all";
    case Metric::kMatchPart:
      return "match-part";
  }
  return "";
}

double ScoreAnswer(Metric metric, const std::string& answer, const std::vector<std::string>& expected,
                   const std::vector<std::string>& classes) {
  if (metric == Metric::kMatchAll || metric == Metric::kMatchPart)
    return Matches(answer, expected, metric == Metric::kMatchAll);
  double best = 0;
  for (const std::string& truth : expected) best = std::max(best, ScoreOne(metric, answer, truth, classes));
  return best;
}

std::string NormalizeAnswer(const std::string& text) {
  std::u32string kept;
  for (const char32_t c : CodePoints(text)) {
    if (!IsPunctuation(LowerCase(c))) kept += LowerCase(c);
  }
  // Articles are runs of word parts, which other signs than white space end too.
  std::u32string out, word;
  for (const char32_t c : kept + U" ") {
    if (IsWordPart(c)) {
      word += c;
      continue;
    }
    out += word == U"a" || word == U"an" || word == U"the" ? U" " : word;
    out += c;
    word.clear();
  }
  return Join(SplitWords(Utf8(out)));
}

double SequenceRatio(const std::string& a, const std::string& b) {
  const std::u32string x = CodePoints(a), y = CodePoints(b);
  if (x.empty() && y.empty()) return 1;
  const double matches = static_cast<double>(Matcher(x, y).CountMatches());
  return 2 * matches / static_cast<double>(x.size() + y.size());
}

}  // namespace kvc::tool

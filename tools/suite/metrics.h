// How published benchmarks score an answer, to the letter, their oddities included (docs/quality.md):
// LongBench's and RULER's metrics. All are in [0, 1], higher is better. Texts are UTF-8; broken bytes stand
// for themselves.
#pragma once
#include <string>
#include <vector>

namespace kvc::tool {

enum class Metric {
  kTokenF1,         // qa_f1_score: words after normalisation, as multisets
  kRougeL,          // rouge_score: ROUGE-L of the PyPI package rouge, over sets of words
  kClassification,  // classification_score: the class named in the answer, shared by all that are named
  kRetrieval,       // retrieval_score: share of the numbers in the answer that are the paragraph's
  kRetrievalZh,     // the same for texts in Chinese
  kCount,           // count_score: share of the numbers in the answer that are the count
  kEditSimilarity,  // code_sim_score: the first line of code, matched as Python's difflib does
  kMatchAll,        // RULER string_match_all: share of the expected texts found in the answer
  kMatchPart        // RULER string_match_part: whether any of them is
};
const char* MetricName(Metric metric);

// The best score over the expected answers, of which there is at least one; over all of them together for
// kMatchAll. classes: of a classification.
double ScoreAnswer(Metric metric, const std::string& answer, const std::vector<std::string>& expected,
                   const std::vector<std::string>& classes);

// Lower case, without punctuation of ASCII, the words a, an and the, and superfluous white space.
std::string NormalizeAnswer(const std::string& text);

// 2 * matches / (both lengths) in code points, matches as Python's difflib.SequenceMatcher finds them, the
// rule about popular elements of long texts included. 1 for two empty texts.
double SequenceRatio(const std::string& a, const std::string& b);

}  // namespace kvc::tool

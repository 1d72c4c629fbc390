// How good an answer is, in [0, 1]: the metrics of methods.md 3.1.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvc::tool {

enum class Metric {
  kNll,     // exp(mean log-likelihood of the answer's tokens) under teacher forcing; no text is generated
  kExact,   // the answer's tokens are what the model generates first
  kF1,      // of bags of normalised words
  kRougeL,  // F of the longest common subsequence of words
  kClassification,  // 1 / class names found, when the right one is among them
  kRetrieval,       // share of the numbers in the text that equal the answer's
  kCode,            // edit similarity of the first line of code
  kNeedle,          // share of the answer's distinct words found in the text
};

const std::vector<std::string>& MetricNames();  // as the command line writes them
Metric ParseMetric(const std::string& name);    // one of MetricNames()
bool IsTextMetric(Metric metric);               // compares texts: not kNll, kExact

// text: what the model wrote; the best over the reference answers. classes: kClassification only.
double TextUtility(Metric metric, const std::string& text, const std::vector<std::string>& answers,
                   const std::vector<std::string>& classes);

// Lower case, without punctuation and the articles a, an, the; words separated by one space.
std::string NormalisedText(const std::string& text);
// Ratio of matching characters 2 M / (a + b), M of the longest common blocks (as Python's difflib, without
// its junk rule).
double EditSimilarity(const std::string& a, const std::string& b);

}  // namespace kvc::tool

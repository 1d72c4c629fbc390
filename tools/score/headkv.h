// HeadKV-R2 retrieval-reasoning scores (methods.md 3.7): how much of a head's strongest attention lies on the
// sentence that answers, while the model answers from its whole cache.
#pragma once
#include <functional>
#include <vector>

#include "tools/score/examples.h"

namespace kvc::tool {

struct RetrievalScores {
  std::vector<double> scores;  // [L][H] of query heads, mean over the counted examples; 0 in other layers
  int32_t n_examples = 0;
  int32_t n_counted = 0;  // answered with an F1 above 0.5
};

// Of the heads of `layers`, which see all tokens (players.h). Examples must carry the question as `fed`
// (protocol ask). The needle is the example's own, or question and answer read as one sentence. Throws
// Failure with the line when a needle is not in its context, and when no example was answered.
RetrievalScores MeasureRetrieval(const Model& model, const std::vector<int32_t>& layers,
                                 const ExampleSet& examples,
                                 const std::function<void(int32_t done)>& on_example);

struct TokenSpan {
  size_t begin = 0, end = 0;
};
// The window of the needle's length whose set of tokens overlaps most with the needle's; the first of equal
// ones.
TokenSpan FindNeedle(const TokenList& prompt, const TokenList& needle, double* overlap);

// Adds 1/Ls of the probability of each of the Ls strongest entries that lies in the span (Ls its length) to
// *score.
void AddRetrieval(const std::vector<float>& p, TokenSpan span, double* score);

}  // namespace kvc::tool

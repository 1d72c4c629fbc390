// What scores are good for, measured on the same examples: the best alpha of a budget, and masking the best
// or the worst heads alone (methods.md 3.10).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/score/evaluator.h"

namespace kvc::tool {

struct AlphaChoice {
  int32_t budget = 0, alpha = 0;
  std::vector<int32_t> candidates;
  std::vector<double> utilities;  // of the candidates
};

// For a budget: the alpha whose CoKV policy gives the best mean utility; equal ones: the smallest.
AlphaChoice ChooseAlpha(const Model& model, const ExampleSet& examples, const EvaluatorOptions& options,
                        const std::vector<double>& scores, int32_t budget);
Json AlphaJson(const std::vector<AlphaChoice>& choices);

// Utilities with exactly the `count` highest (top) or lowest players masked, all others whole.
std::vector<double> MaskCurve(UtilityEvaluator* evaluator, const std::vector<double>& scores, bool top,
                              const std::vector<int32_t>& counts);
Coalition WithoutPlayers(const std::vector<double>& scores, bool top, int32_t count);

}  // namespace kvc::tool

// What scores are good for, measured on the same examples: the best alpha of a budget, and masking the best
// or the worst heads alone (methods.md 3.10).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/score/evaluator.h"
#include "tools/score/score_plan.h"

namespace kvc::tool {

struct AlphaChoice {
  int32_t budget = 0, alpha = 0;
  std::vector<int32_t> candidates;
  std::vector<double> utilities;  // of the candidates
};

// The published search set (methods.md 3.10), which ends at N/6, and quarters and eighths of N up to 7N/8: in
// a small model few heads matter, and the best alpha is far beyond the published ones.
std::vector<int32_t> WiderAlphaCandidates(int32_t n_players);

// scores: [L, G]. For a budget: the alpha of `candidates` whose CoKV policy gives the best mean utility;
// equal ones: the smallest.
AlphaChoice ChooseAlpha(const Model& model, const ExampleSet& examples, const EvaluatorOptions& options,
                        const std::vector<double>& scores, int32_t budget, std::vector<int32_t> candidates,
                        const std::function<void()>& on_candidate);
// Of several budgets with the same candidates: the one with the best mean over them; equal ones: the
// smallest.
int32_t BestAlpha(const std::vector<AlphaChoice>& choices);
Json AlphaJson(const std::vector<AlphaChoice>& choices);

// Utilities with exactly the `count` highest (top) or lowest players masked, all others whole. scores: [N].
std::vector<double> MaskCurve(UtilityEvaluator* evaluator, const ScorePlan& plan,
                              const std::vector<double>& scores, bool top,
                              const std::vector<int32_t>& counts);
Coalition WithoutPlayers(const std::vector<double>& scores, bool top, int32_t count);

}  // namespace kvc::tool

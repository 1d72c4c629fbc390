#include "tools/score/experiments.h"

#include <algorithm>

namespace kvc::tool {

AlphaChoice ChooseAlpha(const Model& model, const ExampleSet& examples, const EvaluatorOptions& options,
                        const std::vector<double>& scores, int32_t budget) {
  AlphaChoice choice;
  choice.budget = budget;
  choice.candidates = AlphaCandidates(static_cast<int32_t>(scores.size()));
  for (const int32_t alpha : choice.candidates) {
    Policy policy(Format("cokv:budget=%d,alpha=%d", budget, alpha));
    policy.SetHeadScores(std::vector<float>(scores.begin(), scores.end()));
    UtilityEvaluator evaluator(model, policy, examples, options);
    choice.utilities.push_back(evaluator.Evaluate({Trial()})[0]);
  }
  const auto best =
      std::max_element(choice.utilities.begin(), choice.utilities.end());  // the first of equal ones
  choice.alpha = choice.candidates[static_cast<size_t>(best - choice.utilities.begin())];
  return choice;
}

Json AlphaJson(const std::vector<AlphaChoice>& choices) {
  Json list = Json::array();
  for (const AlphaChoice& choice : choices) {
    list.push_back({{"budget", choice.budget},
                    {"alpha", choice.alpha},
                    {"candidates", choice.candidates},
                    {"utilities", choice.utilities}});
  }
  return list;
}

Coalition WithoutPlayers(const std::vector<double>& scores, bool top, int32_t count) {
  std::vector<int32_t> order = Ranking(scores);
  if (!top) std::reverse(order.begin(), order.end());
  Coalition keep(scores.size(), 1);
  for (int32_t i = 0; i < count; ++i) keep[static_cast<size_t>(order[static_cast<size_t>(i)])] = 0;
  return keep;
}

std::vector<double> MaskCurve(UtilityEvaluator* evaluator, const std::vector<double>& scores, bool top,
                              const std::vector<int32_t>& counts) {
  std::vector<Trial> trials;
  for (const int32_t count : counts) trials.push_back({WithoutPlayers(scores, top, count), {}});
  return evaluator->Evaluate(trials);
}

}  // namespace kvc::tool

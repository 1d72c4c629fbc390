#include "tools/score/experiments.h"

#include <algorithm>

#include "tools/score/players.h"

namespace kvc::tool {

std::vector<int32_t> WiderAlphaCandidates(int32_t n_players) {
  std::vector<int32_t> alphas = AlphaCandidates(n_players);
  for (const int32_t eighths : {2, 4, 6, 7}) {
    alphas.push_back(std::clamp(n_players * eighths / 8, 1, std::max(1, n_players - 1)));
  }
  std::sort(alphas.begin(), alphas.end());
  alphas.erase(std::unique(alphas.begin(), alphas.end()), alphas.end());
  return alphas;
}

AlphaChoice ChooseAlpha(const Model& model, const ExampleSet& examples, const EvaluatorOptions& options,
                        const std::vector<double>& scores, int32_t budget, std::vector<int32_t> candidates,
                        const std::function<void()>& on_candidate) {
  AlphaChoice choice;
  choice.budget = budget;
  choice.candidates = std::move(candidates);
  for (const int32_t alpha : choice.candidates) {
    Policy policy(Format("cokv:budget=%d,alpha=%d", budget, alpha));
    policy.SetHeadScores(std::vector<float>(scores.begin(), scores.end()));
    UtilityEvaluator evaluator(model, policy, examples, options);
    choice.utilities.push_back(evaluator.Evaluate({Trial()})[0]);
    on_candidate();
  }
  choice.alpha = BestAlpha({choice});
  return choice;
}

int32_t BestAlpha(const std::vector<AlphaChoice>& choices) {
  std::vector<double> sums(choices[0].candidates.size());
  for (const AlphaChoice& choice : choices) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += choice.utilities[i];
  }
  const auto best = std::max_element(sums.begin(), sums.end());  // the first of equal ones
  return choices[0].candidates[static_cast<size_t>(best - sums.begin())];
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

std::vector<double> MaskCurve(UtilityEvaluator* evaluator, const ScorePlan& plan,
                              const std::vector<double>& scores, bool top,
                              const std::vector<int32_t>& counts) {
  std::vector<Trial> trials;
  for (const int32_t count : counts)
    trials.push_back({KeptHeads(plan, WithoutPlayers(scores, top, count)), {}});
  return evaluator->Evaluate(trials);
}

}  // namespace kvc::tool

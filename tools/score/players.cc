#include "tools/score/players.h"

namespace kvc::tool {
namespace {

// place(i, at): player i is number `at` of all heads.
template <typename F>
void ForEachPlayer(const ScorePlan& plan, F&& place) {
  const int32_t g = plan.n_kv_heads;
  for (int32_t i = 0; i < plan.n_players(); ++i) {
    const int32_t layer = plan.layers.empty() ? i / g : plan.layers[static_cast<size_t>(i / g)];
    place(static_cast<size_t>(i), static_cast<size_t>(layer * g + i % g));
  }
}

size_t HeadCount(const ScorePlan& plan) {
  return static_cast<size_t>(plan.n_layers) * static_cast<size_t>(plan.n_kv_heads);
}

}  // namespace

std::vector<int32_t> PlayingLayers(const Model& model) {
  const Json about = model.Describe(), &config = about.at("config");
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < model.info().n_layers; ++i) {
    // The list is there where layers may differ.
    const int32_t window = config.contains("layers")
                               ? config["layers"].at(static_cast<size_t>(i)).at("window").get<int32_t>()
                               : config.at("sliding_window").get<int32_t>();
    if (window == 0 || window >= model.info().max_tokens) layers.push_back(i);
  }
  if (layers.empty())
    throw Failure(
        "every layer of this model attends to its newest tokens only: no head has a cache that a policy "
        "could drop, and none is worth measuring");
  return layers;
}

Coalition KeptHeads(const ScorePlan& plan, const Coalition& coalition) {
  Coalition keep(HeadCount(plan), 1);
  ForEachPlayer(plan, [&](size_t i, size_t at) { keep[at] = coalition[i]; });
  return keep;
}

std::vector<double> TableOf(const ScorePlan& plan, const std::vector<double>& of_players) {
  std::vector<double> table(HeadCount(plan));
  ForEachPlayer(plan, [&](size_t i, size_t at) { table[at] = of_players[i]; });
  return table;
}

std::vector<double> OfPlayers(const ScorePlan& plan, const std::vector<double>& table) {
  std::vector<double> numbers(static_cast<size_t>(plan.n_players()));
  ForEachPlayer(plan, [&](size_t i, size_t at) { numbers[i] = table[at]; });
  return numbers;
}

}  // namespace kvc::tool

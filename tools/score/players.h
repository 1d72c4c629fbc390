// Who plays in the game of head scores: the KV heads of layers that see all tokens. Layers with a window keep
// their newest whatever is masked, so nothing that is measured could say what their heads are worth: they
// score 0.
#pragma once
#include <cstdint>
#include <vector>

#include "tools/kvc_handles.h"
#include "tools/score/score_plan.h"

namespace kvc::tool {

// Ascending. A window that holds the whole trained context is none. Throws Failure when every layer has one.
std::vector<int32_t> PlayingLayers(const Model& model);

// What keeps its cache, [L, G]: the coalition [N], and every head that does not play.
Coalition KeptHeads(const ScorePlan& plan, const Coalition& coalition);
// Numbers of the players [N] as a table [L, G], with 0 where nobody plays; and those of a table.
std::vector<double> TableOf(const ScorePlan& plan, const std::vector<double>& of_players);
std::vector<double> OfPlayers(const ScorePlan& plan, const std::vector<double>& table);

}  // namespace kvc::tool

// Head scores from JSON files. Layouts known:
//   ours          {"name", "estimator": "ssv" | "headkv-r2" | ..., "shape": [L, C], "scores": nested or flat,
//   ...} bare          [[...], ...] or [...]: numbers alone, the shape is the model's published
//   "kvc-head-scores/1": CoKV's accumulators of several tasks (becomes one "ssv" table a task, estimator
//   `both` of
//                 methods.md 3.4) or HeadKV-R2's means over query heads
//   HeadKV        {"layer-head": [score of each sample, ...], ...}: becomes one "headkv-r2" table of means
#pragma once
#include <string>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/model/model_config.h"

namespace kvc {

// Every table is checked against the model: columns are KV heads for "ssv", query heads for "headkv-r2",
// either for others. kBadModel: damaged, not finite, a head without samples; kInvalid: made for a model of
// another shape; kUnsupported: names the layout or method that is not known.
Result<std::vector<HeadScoreTable>> ParseHeadScores(Span<const uint8_t> json, const std::string& where,
                                                    const ModelConfig& config);

}  // namespace kvc

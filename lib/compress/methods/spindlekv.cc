// SpindleKV: eviction where attention is sparse, shared directions where vectors are alike.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodSpindlekv = {
    "spindlekv",
    "Every query head keeps its own tokens, budgets fall with depth, and what is kept is coded with a "
    "codebook",
    "SpindleKV: A Novel KV Cache Reduction Method Balancing Both Shallow and Deep Layers; methods.md 2.16",
    &kAllocatorSpindleRatio,
    &kScorerWindowQhead,
    &kReducerCodebook,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kSpindleBeta, 0.05}, {OptionId::kThetaK, 0.98}, {OptionId::kThetaV, 0.95}}};

}  // namespace kvc

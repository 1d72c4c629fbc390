// Short keys stay: nothing but the keys is looked at.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodKnorm = {
    "knorm",
    "Keeps the tokens whose keys are shortest, which attention tends to go to; costs one pass over the keys",
    "Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (EMNLP 2024); "
    "methods.md 2.19",
    &kAllocatorUniform,
    &kScorerKeyNorm,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {}};

}  // namespace kvc

// PyramidInfer's schedule and score, as a budget for the cache: the prompt itself is processed in full.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodPyramidinfer = {
    "pyramidinfer",
    "Budgets that fall like PyramidInfer's contexts, one set of tokens per layer",
    "Yang et al., PyramidInfer: Pyramid KV Cache Compression for High-throughput LLM Inference; methods.md "
    "2.8",
    &kAllocatorPyramidInfer,
    &kScorerWindowRamp,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kWindow, 8}, {OptionId::kNSink, 4}, {OptionId::kDecay, 0.9}, {OptionId::kRamp, 1.2}}};

}  // namespace kvc

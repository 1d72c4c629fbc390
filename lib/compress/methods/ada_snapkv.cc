// Ada-SnapKV: the heads of a layer compete for its budget.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodAdaSnapkv = {
    "ada-snapkv",
    "SnapKV where heads with spread attention get more slots than concentrated ones",
    "Feng et al., Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM "
    "Inference; methods.md 2.11",
    &kAllocatorAda,
    &kScorerWindow,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kAdaFloor, 0.2}}};

}  // namespace kvc

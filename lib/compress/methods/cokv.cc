// CoKV: what a head adds to the answer, in every coalition, decides its budget.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodCokv = {
    "cokv",
    "SnapKV with budgets per head from Sliced Shapley values stored with the model",
    "CoKV: Optimizing KV Cache Allocation via Cooperative Game; methods.md 2.13",
    &kAllocatorCokv,
    &kScorerWindow,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kWindow, 8}}};

}  // namespace kvc

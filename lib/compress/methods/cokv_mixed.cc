// CoKV's scores as precision: the better half of the heads in 8 bits, the others in 4. With a budget, as cokv
// too.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodCokvMixed = {
    "cokv-mixed",
    "Keeps everything, important heads in 8 bits and the others in 4; with a budget also evicts as cokv does",
    "CoKV: Optimizing KV Cache Allocation via Cooperative Game; methods.md 4.4",
    &kAllocatorCokv,
    &kScorerWindow,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kWindow, 8}, {OptionId::kKv, 5}, {OptionId::kHighBits, 8}, {OptionId::kLowBits, 4}},
    /*budget_optional=*/true};

}  // namespace kvc

// Documents whose questions are not known when they are compressed: CoKV's budgets, and what the model looks
// at when it reads the document once more. One head gets nothing beyond the window, not the many that the
// table's alpha would empty: with this score every head's few slots are worth keeping (docs/head-scores.md).
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodCokvDocument = {
    "cokv-document",
    "CoKV budgets for documents read once and asked often: they are read twice, and what the second reading "
    "looks at is kept",
    "libkvc: CoKV's budgets with KVzip's score (arXiv 2505.23416), chosen on training tasks "
    "(docs/head-scores.md); methods.md 2.13",
    &kAllocatorCokv,
    &kScorerReconstruct,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kWindow, 8}, {OptionId::kKernel, 1}, {OptionId::kAlpha, 1}}};

}  // namespace kvc

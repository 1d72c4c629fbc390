// Documents whose questions are not known when they are compressed: CoKV's budgets, and a score that does not
// only look from the document's last words.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodCokvDocument = {
    "cokv-document",
    "CoKV budgets for documents read once and asked often: window and accumulated attention score together",
    "libkvc: CoKV with the scores of SnapKV and H2O together, chosen on training tasks "
    "(docs/head-scores.md); methods.md 2.13",
    &kAllocatorCokv,
    &kScorerWindowAccum,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kWindow, 8}, {OptionId::kAccumWeight, 8}}};

}  // namespace kvc

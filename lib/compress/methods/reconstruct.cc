// What cokv-document does without head scores: every head has the same slots.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodReconstruct = {
    "reconstruct",
    "a document is read twice, and what the second reading looks at is kept: equal slots for every head",
    "KVzip's score (Kim et al., NeurIPS 2025, arXiv 2505.23416) with uniform budgets; methods.md 2.13",
    &kAllocatorUniform,
    &kScorerReconstruct,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kWindow, 8}, {OptionId::kKernel, 1}}};

}  // namespace kvc

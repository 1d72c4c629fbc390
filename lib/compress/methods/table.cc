// The caller's own slots for every layer and KV head, filled by SnapKV's choice.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodTable = {"table",
                                 "SnapKV with the caller's own slots for every layer and KV head",
                                 "methods.md 4.1",
                                 &kAllocatorTable,
                                 &kScorerWindow,
                                 &kReducerEvict,
                                 DecodeMode::kGrow,
                                 PositionMode::kOriginal,
                                 {{OptionId::kWindow, 8}},
                                 /*budget_optional=*/true};

}  // namespace kvc

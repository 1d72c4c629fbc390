// HeadKV-R2: heads that retrieve and reason get more.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodHeadkvR2 = {"headkv-r2",
                                    "SnapKV with budgets per head from retrieval-reasoning scores",
                                    "Fu et al., Not All Heads Matter: A Head-Level KV Cache Compression "
                                    "Method with Integrated Retrieval and Reasoning; methods.md 2.10",
                                    &kAllocatorHeadkv,
                                    &kScorerWindow,
                                    &kReducerEvict,
                                    DecodeMode::kGrow,
                                    PositionMode::kOriginal,
                                    {{OptionId::kWindow, 8}, {OptionId::kHeadkvBeta, 1.01}}};

}  // namespace kvc

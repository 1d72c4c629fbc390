// SnapKV with the short window of the CoKV and HeadKV comparisons.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodSnapkvW8 = {"snapkv-w8",
                                    "SnapKV with a window of 8 tokens",
                                    "Li et al., SnapKV, as compared in CoKV and HeadKV; methods.md 2.6",
                                    &kAllocatorUniform,
                                    &kScorerWindow,
                                    &kReducerEvict,
                                    DecodeMode::kGrow,
                                    PositionMode::kOriginal,
                                    {{OptionId::kWindow, 8}}};

}  // namespace kvc

// PyramidKV: SnapKV's choice with more slots in the first layers than in the last.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodPyramidkv = {"pyramidkv",
                                     "SnapKV with budgets that fall from the first layer to the last",
                                     "Cai et al., PyramidKV: Dynamic KV Cache Compression based on Pyramidal "
                                     "Information Funneling; methods.md 2.7",
                                     &kAllocatorPyramid,
                                     &kScorerWindow,
                                     &kReducerEvict,
                                     DecodeMode::kGrow,
                                     PositionMode::kOriginal,
                                     {{OptionId::kWindow, 8}, {OptionId::kBeta, 20}}};

}  // namespace kvc

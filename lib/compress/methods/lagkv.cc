// Each part of the text is judged by the part behind it.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodLagkv = {
    "lagkv",
    "Ranks the tokens of each part of the text by how far their keys and values spread in the range of the "
    "next",
    "Liang et al., LagKV: Lag-Relative Information of the KV Cache (arXiv 2504.04704); methods.md 2.21",
    &kAllocatorUniform,
    &kScorerLag,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kNSink, 4}, {OptionId::kLag, 128}}};

}  // namespace kvc

// SnapKV: the end of the prompt votes on the rest of it.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodSnapkv = {
    "snapkv",
    "The attention of the newest 32 prompt tokens decides which older ones stay",
    "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation; methods.md 2.6",
    &kAllocatorUniform,
    &kScorerWindow,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {}};

}  // namespace kvc

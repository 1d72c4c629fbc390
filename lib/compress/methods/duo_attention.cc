// Heads that retrieve hold everything, the others what StreamingLLM would.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodDuoAttention = {
    "duo-attention",
    "Heads with the best scores keep everything and grow; the others keep the first and the newest tokens",
    "Xiao et al., DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads "
    "(arXiv 2410.10819), with libkvc's head scores; methods.md 2.23",
    &kAllocatorDuo,
    &kScorerPosition,
    &kReducerEvict,
    DecodeMode::kStep,
    PositionMode::kOriginal,
    {{OptionId::kNSink, 4}}};

}  // namespace kvc

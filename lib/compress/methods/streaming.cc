// StreamingLLM: the first tokens hold the attention that has nowhere to go, the newest hold the context.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodStreaming = {
    "streaming",
    "Keeps the first and the newest tokens and renumbers positions, so generation never ends",
    "Xiao et al., Efficient Streaming Language Models with Attention Sinks; methods.md 2.2",
    &kAllocatorUniform,
    &kScorerPosition,
    &kReducerEvict,
    DecodeMode::kStep,
    PositionMode::kInCache,
    {{OptionId::kNSink, 4}}};

}  // namespace kvc

// StreamingLLM as other papers compare with it: the same entries at their original positions.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodStreamingBaseline = {
    "streaming-baseline",
    "Keeps the first and the newest tokens at their original positions",
    "Xiao et al., Efficient Streaming Language Models with Attention Sinks, as a baseline of Ada-KV and "
    "others; methods.md 2.2",
    &kAllocatorUniform,
    &kScorerPosition,
    &kReducerEvict,
    DecodeMode::kStep,
    PositionMode::kOriginal,
    {{OptionId::kNSink, 4}}};

}  // namespace kvc

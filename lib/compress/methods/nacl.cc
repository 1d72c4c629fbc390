// NACL: most by score, some by a draw, so that a wrong score loses less.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodNacl = {
    "nacl",
    "Keeps the tokens the newest rows attend to, and a random sample of the others",
    "Chen et al., NACL: A General and Effective KV Cache Eviction Framework for LLMs at Inference Time; "
    "methods.md 2.17",
    &kAllocatorUniform,
    &kScorerProxyRandom,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kNSink, 4}, {OptionId::kRecent, 32}, {OptionId::kRandomFraction, 0.35}}};

}  // namespace kvc

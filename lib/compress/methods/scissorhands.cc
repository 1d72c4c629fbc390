// Scissorhands: tokens that were below average again and again go, many at once.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodScissorhands = {
    "scissorhands",
    "Drops, half of the budget at once, the tokens that were below average in most of the last rows",
    "Liu et al., Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache "
    "Compression at Test Time; methods.md 2.5",
    &kAllocatorUniform,
    &kScorerPersistence,
    &kReducerEvict,
    DecodeMode::kStep,
    PositionMode::kOriginal,
    {{OptionId::kRecent, 10}, {OptionId::kHistory, 400}}};

}  // namespace kvc

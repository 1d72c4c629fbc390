// CaM: StreamingLLM's choice, but the value of a dropped token may live on in those that follow it.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodCam = {
    "cam",
    "Keeps the first and the newest tokens and adds dropped values to the kept ones that follow, at random "
    "by their attention",
    "Zhang et al., CaM: Cache Merging for Memory-efficient LLMs Inference; methods.md 2.9",
    &kAllocatorUniform,
    &kScorerPosition,
    &kReducerCam,
    DecodeMode::kStep,
    PositionMode::kOriginal,
    {{OptionId::kNSink, 4}, {OptionId::kMergeBudget, 32}}};

}  // namespace kvc

// H2O: half for the newest tokens, half for those that collected the most attention so far.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodH2o = {"h2o",
                               "Keeps the newest tokens and those with the most accumulated attention",
                               "Zhang et al., H2O: Heavy-Hitter Oracle for Efficient Generative Inference of "
                               "Large Language Models; methods.md 2.3",
                               &kAllocatorUniform,
                               &kScorerH2o,
                               &kReducerEvict,
                               DecodeMode::kStep,
                               PositionMode::kOriginal,
                               {}};

}  // namespace kvc

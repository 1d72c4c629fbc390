// TOVA: the attention of the newest token alone decides, for all heads of a layer together.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodTova = {"tova",
                                "Keeps the tokens the newest token attends to most, one set per layer",
                                "Oren et al., Transformers are Multi-State RNNs; methods.md 2.4",
                                &kAllocatorUniform,
                                &kScorerLastRow,
                                &kReducerEvict,
                                DecodeMode::kStep,
                                PositionMode::kOriginal,
                                {{OptionId::kProtectLast, 1}}};

}  // namespace kvc

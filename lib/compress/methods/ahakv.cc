// AhaKV: recent rows with a sharpened softmax, weighted by the size of the values.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodAhakv = {"ahakv",
                                 "Scores tokens by sharpened attention of the newest rows times the norm of "
                                 "their values, and goes on scoring while it generates",
                                 "AhaKV: Adaptive Holistic Attention-Driven KV Cache Eviction for Efficient "
                                 "Inference of Large Language Models; methods.md 2.14",
                                 &kAllocatorUniform,
                                 &kScorerWindowSgValue,
                                 &kReducerEvict,
                                 DecodeMode::kStep,
                                 PositionMode::kOriginal,
                                 {{OptionId::kRecent, 32}, {OptionId::kValueKernel, 7}}};

}  // namespace kvc

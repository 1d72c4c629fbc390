// Queries to come are taken for draws from those seen.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodExpectedAttention = {
    "expected-attention",
    "Keeps what tokens to come are expected to look at, by the mean and spread of the queries seen, times "
    "value norms",
    "Devoto et al., Expected Attention: KV Cache Compression by Estimating Attention from Future Queries "
    "(arXiv 2510.00636); methods.md 2.22",
    &kAllocatorUniform,
    &kScorerExpected,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kNSink, 4}}};

}  // namespace kvc

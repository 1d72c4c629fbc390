// Keys unlike the others stay: nothing but the keys is looked at.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodKeydiff = {
    "keydiff",
    "Keeps the tokens whose keys differ most from the mean direction of all keys",
    "Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction (arXiv 2504.15364); methods.md 2.20",
    &kAllocatorUniform,
    &kScorerKeyDifference,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {}};

}  // namespace kvc

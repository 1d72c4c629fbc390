// WeightedKV: the value of an evicted entry is mixed into its right neighbour by average attention
// (methods.md 2.15).
#include "lib/compress/reducers.h"

namespace kvc {

constexpr Reducer kReducerWeighted = {
    "weighted", ReduceKind::kWeighted, kNeedsColumnSums, {OptionId::kWkvMerge, OptionId::kWkvPrefill}};

}  // namespace kvc

// WeightedKV: the value of an evicted entry is mixed into its right neighbour by average attention
// (methods.md 2.15).
#include "lib/compress/policy.h"
#include "lib/compress/reducers.h"

namespace kvc {
namespace {

void Merge(const Policy& policy, MergeRule* rule) {
  if (!policy.Flag(OptionId::kWkvMerge)) rule->kind = MergeKind::kNone;
}
bool BySteps(const Policy& policy) {
  return policy.Int(OptionId::kWkvPrefill) == 1 && policy.decode == DecodeMode::kStep;
}

}  // namespace

constexpr Reducer kReducerWeighted = {"weighted",
                                      {OptionId::kWkvMerge, OptionId::kWkvPrefill},
                                      Merge,
                                      MergeKind::kIntoNext,
                                      /*codebook=*/false,
                                      BySteps};

}  // namespace kvc

// CaM: the value of an evicted entry may be added to the kept entries that follow it (methods.md 2.9). Needs
// accumulated attention.
#include "lib/compress/policy.h"
#include "lib/compress/reducers.h"

namespace kvc {
namespace {

void Merge(const Policy& policy, MergeRule* rule) {
  rule->n_targets = policy.Int(OptionId::kMergeBudget);
  rule->by_maximum = policy.Int(OptionId::kCamDenominator) != 0;
  rule->expected = policy.Flag(OptionId::kCamExpected);
  rule->sequence = static_cast<uint32_t>(policy.Real(OptionId::kSequence));
  rule->seed = static_cast<uint64_t>(policy.Real(OptionId::kSeed));
}

}  // namespace

constexpr Reducer kReducerCam = {"cam",
                                 kNeedsColumnSums,
                                 {OptionId::kMergeBudget, OptionId::kCamExpected, OptionId::kCamDenominator,
                                  OptionId::kSeed, OptionId::kSequence},
                                 Merge,
                                 MergeKind::kSpread};

}  // namespace kvc

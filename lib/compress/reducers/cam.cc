// CaM: the value of an evicted entry may be added to the kept entries that follow it (methods.md 2.9). Needs
// accumulated attention. Published as a rule of steps; cam_prefill=oneshot applies it to all that a prompt
// drops at once.
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

bool BySteps(const Policy& policy) {
  return policy.Int(OptionId::kCamPrefill) == 0 && policy.decode == DecodeMode::kStep;
}

}  // namespace

constexpr Reducer kReducerCam = {"cam",
                                 {OptionId::kMergeBudget, OptionId::kCamExpected, OptionId::kCamDenominator,
                                  OptionId::kCamPrefill, OptionId::kSeed, OptionId::kSequence},
                                 Merge,
                                 MergeKind::kSpread,
                                 /*codebook=*/false,
                                 BySteps};

}  // namespace kvc

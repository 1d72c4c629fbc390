#include "lib/compress/merge.h"

#include <algorithm>

#include "lib/base/philox.h"

namespace kvc {
namespace {

constexpr uint32_t kCamTag = 0xCA;  // methods.md 3.8

}  // namespace

float CamFactor(const Policy& policy, float a, const float* target_sums, int32_t n_targets, uint32_t head,
                int32_t position) {
  if (n_targets <= 0) return 0.0f;
  double base = 0;
  const bool mean = policy.Int(OptionId::kCamDenominator) == 0;
  for (int32_t i = 0; i < n_targets; ++i) {
    base = mean ? base + static_cast<double>(target_sums[i])
                : std::max(base, static_cast<double>(target_sums[i]));
  }
  if (mean) base /= n_targets;
  const double probability =
      base > 0 ? std::min(std::max(static_cast<double>(a) / base, 0.0), 1.0) : (a > 0 ? 1.0 : 0.0);
  double share = probability;
  if (!policy.Flag(OptionId::kCamExpected)) {
    const uint64_t seed = static_cast<uint64_t>(policy.Real(OptionId::kSeed));
    share = Uniform(Philox(static_cast<uint32_t>(policy.Real(OptionId::kSequence)), head,
                           static_cast<uint32_t>(position), kCamTag, seed)[0]) < probability
                ? 1.0
                : 0.0;
  }
  return static_cast<float>(share / n_targets);
}

void WeightedMerge(float a_gone, const float* v_gone, float a_next, int32_t d, float* v_next) {
  const float sum = a_gone + a_next;
  if (!(sum > 0)) return;
  for (int32_t i = 0; i < d; ++i) v_next[i] = (a_gone * v_gone[i] + a_next * v_next[i]) / sum;
}

}  // namespace kvc

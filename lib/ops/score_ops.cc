#include "lib/ops/score_ops.h"

#include <cmath>

namespace kvc {

float LengthGain(int32_t i, int32_t length, bool scaled, bool floor, int32_t d) {
  if (i <= length) return 1.0f;
  const double x = 2.0 * std::log(static_cast<double>(i) / length), gain = std::sqrt(scaled ? x / d : x);
  return static_cast<float>(!scaled && floor ? std::max(1.0, gain) : gain);
}

void FillRowWeights(const RowRule& rule, int32_t n, float* weight) {
  const bool ramp = rule.weight == RowWeight::kRamp;
  for (int32_t i = 0; i < n; ++i) {
    weight[i] = !ramp ? 1.0f : 1.0f / static_cast<float>(n);
    if (ramp && i > 0)
      weight[i] *= 1.0f + (rule.ramp - 1.0f) * static_cast<float>(i) / static_cast<float>(n - 1);
  }
}

// Rounds half up; the share is taken as a rational, so that every machine rounds alike.
int32_t DrawnCount(const SelectRule& rule, int32_t count) {
  const int64_t millionths = std::llround(rule.random_share * 1e6);
  return static_cast<int32_t>((2 * millionths * count + 1000000) / 2000000);
}

}  // namespace kvc

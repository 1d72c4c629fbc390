#include "lib/ops/rope.h"

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Llama 3: long waves turn `factor` times slower, short ones as trained, a linear blend between.
double Llama3Frequency(const RopeConfig& c, double f) {
  const double rotations = c.original_max_tokens * f / (2 * kPi);  // over the trained context
  if (rotations < c.low_freq_factor) return f / c.factor;
  if (rotations > c.high_freq_factor) return f;
  const double share = (rotations - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - share) * f / c.factor + share * f;
}

// The dimension whose wave makes `rotations` turns over the trained context.
double YarnDimension(const RopeConfig& c, int32_t n, double rotations) {
  return n * std::log(c.original_max_tokens / (rotations * 2 * kPi)) / (2 * std::log(c.theta));
}

}  // namespace

Rope::Rope(const RopeConfig& c, int32_t head_dim)
    : head_dim_(head_dim), frequency_(static_cast<size_t>(head_dim / 2)) {
  const int32_t n = std::min(c.RotatedOf(head_dim), head_dim);
  n_turning_ = static_cast<size_t>(n / 2);
  if (c.scaling == RopeScaling::kDivisors && c.attention_factor > 0) attention_factor_ = c.attention_factor;
  double low = 0, high = 0;
  if (c.scaling == RopeScaling::kYarn) {
    low = YarnDimension(c, n, c.beta_fast), high = YarnDimension(c, n, c.beta_slow);
    if (c.whole_ramp) low = std::floor(low), high = std::ceil(high);
    low = std::fmax(low, 0), high = std::fmin(high, n - 1);
    if (low == high) high += 0.001;
    attention_factor_ = c.attention_factor > 0 ? c.attention_factor
                        : c.factor > 1         ? 0.1 * std::log(c.factor) + 1
                                               : 1;
  }
  for (int32_t j = 0; j < n / 2; ++j) {
    double f = std::pow(c.theta, -2.0 * j / n);
    switch (c.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        f /= c.factor;
        break;
      case RopeScaling::kLlama3:
        f = Llama3Frequency(c, f);
        break;
      case RopeScaling::kYarn: {
        const double slow =
            std::fmin(std::fmax((j - low) / (high - low), 0), 1);  // 0: as trained, 1: slowed by factor
        f = f / c.factor * slow + f * (1 - slow);
        break;
      }
      case RopeScaling::kDivisors:
        f /= c.divisors[static_cast<size_t>(j)];
        break;
    }
    frequency_[static_cast<size_t>(j)] = f;
  }
}

Rope Rope::None(int32_t head_dim) {
  Rope rope;
  rope.head_dim_ = head_dim;
  rope.frequency_.assign(static_cast<size_t>(head_dim / 2), 0.0);
  return rope;
}

void Rope::Angles(int64_t position, float* cos, float* sin, int power) const {
  const double factor = power == 0 ? 1 : power > 0 ? attention_factor_ : 1 / attention_factor_;
  for (size_t j = 0; j < n_turning_; ++j) {
    const double angle = static_cast<double>(position) * frequency_[j];
    cos[j] = static_cast<float>(std::cos(angle) * factor);
    sin[j] = static_cast<float>(std::sin(angle) * factor);
  }
  for (size_t j = n_turning_; j < frequency_.size(); ++j) cos[j] = 1, sin[j] = 0;
}

}  // namespace kvc

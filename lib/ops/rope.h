// RoPE angles: positions times frequencies in double, cos and sin to f32 (nine tenths of the f32 error go
// that way).
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/status.h"

namespace kvc {

enum class RopeScaling : uint8_t { kNone = 0, kLinear = 1, kLlama3 = 2, kYarn = 3, kDivisors = 4 };

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;                                 // linear, llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;  // yarn, divisors: scale of cos and sin; 0: 0.1 ln(factor) + 1; 1 of divisors
  int32_t original_max_tokens = 0;  // llama3, yarn
  bool whole_ramp = true;           // yarn: its ends are rounded outwards to whole dimensions
  int32_t rotated = 0;          // dimensions that turn, an even number; 0: all. The others stay as they are
  std::vector<float> divisors;  // divisors: of each frequency, [rotated / 2]
  int32_t RotatedOf(int32_t head_dim) const { return rotated > 0 ? rotated : head_dim; }
};

class Rope {
 public:
  Rope() = default;
  Rope(const RopeConfig& config, int32_t head_dim);
  // One that leaves vectors as they are.
  static Rope None(int32_t head_dim);
  // cos, sin [D/2] of one position (any sign), times the attention factor to this power: 1 as attention wants
  // them, 0 without it, -1 with the position's sign changed turns back. Pairs that do not turn have cos 1 and
  // sin 0, whatever the factor. Thread-safe, allocates nothing.
  void Angles(int64_t position, float* cos, float* sin, int power = 1) const;
  int32_t head_dim() const { return head_dim_; }
  // For devices that make angles themselves: [D/2] radians per position, and how many of the pairs turn.
  const std::vector<double>& frequencies() const { return frequency_; }
  int32_t n_turning() const { return static_cast<int32_t>(n_turning_); }
  // 1, or the scale of cos and sin of those that turn: cos^2 + sin^2 is its square.
  double attention_factor() const { return attention_factor_; }

 private:
  int32_t head_dim_ = 0;
  size_t n_turning_ = 0;  // pairs
  double attention_factor_ = 1;
  std::vector<double> frequency_;  // [D/2] radians per position
};

}  // namespace kvc

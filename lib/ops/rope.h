// RoPE angles: positions times frequencies in double, cos and sin to f32 (nine tenths of the f32 error go
// that way).
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/status.h"

namespace kvc {

enum class RopeScaling : uint8_t { kNone = 0, kLinear = 1, kLlama3 = 2, kYarn = 3 };

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;                                 // linear, llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn: scale of cos and sin; 0 = 0.1 ln(factor) + 1
  int32_t original_max_tokens = 0;                   // llama3, yarn
};

class Rope {
 public:
  Rope() = default;
  Rope(const RopeConfig& config, int32_t head_dim);
  // One that leaves vectors as they are.
  static Rope None(int32_t head_dim);
  // cos, sin [D/2] of one position (any sign), attention factor included. Thread-safe, allocates nothing.
  void Angles(int64_t position, float* cos, float* sin) const;
  int32_t head_dim() const { return head_dim_; }
  // [D/2] radians per position, for devices that make angles themselves.
  const std::vector<double>& frequencies() const { return frequency_; }
  // 1, or YaRN's factor: cos^2 + sin^2 is its square, so turning back divides by it.
  double attention_factor() const { return attention_factor_; }

 private:
  int32_t head_dim_ = 0;
  double attention_factor_ = 1;
  std::vector<double> frequency_;  // [D/2] radians per position
};

}  // namespace kvc

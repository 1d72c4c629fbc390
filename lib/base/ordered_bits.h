// Floating-point numbers as integers of the same order.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvc {

// A score as an unsigned number with the same order. NaN = -inf; -0 = +0.
inline uint32_t OrderedBits(float score) {
  if (std::isnan(score)) score = -INFINITY;
  score += 0.0f;  // -0 becomes +0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace kvc

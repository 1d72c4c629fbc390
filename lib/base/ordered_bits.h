// Floating-point numbers as integers of the same order.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvc {

// A score as an unsigned number with the same order. NaN = -inf; -0 = +0. Without branches and comparisons
// that could trap, so that compilers make vectors of it.
inline uint32_t OrderedBits(float score) {
  score += 0.0f;  // -0 becomes +0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  const uint32_t nan = 0u - static_cast<uint32_t>((bits & 0x7fffffffu) > 0x7f800000u);
  bits = (bits & ~nan) | (0xff800000u & nan);
  return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
}

}  // namespace kvc

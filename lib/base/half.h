// 16-bit floating formats, conversions round to nearest even. Portable; the fast kernels use instructions
// instead.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvc {

inline float BitsToFloat(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint32_t FloatToBits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

inline float Bf16ToFloat(uint16_t h) { return BitsToFloat(static_cast<uint32_t>(h) << 16); }
inline uint16_t FloatToBf16(float f) {
  uint32_t x = FloatToBits(f);
  if ((x & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((x >> 16) | 0x40);  // NaN stays NaN
  x += 0x7fffu + ((x >> 16) & 1);
  return static_cast<uint16_t>(x >> 16);
}

inline float F16ToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return BitsToFloat(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0)
    return BitsToFloat(sign | FloatToBits(static_cast<float>(mantissa) * 5.9604644775390625e-8f));
  return BitsToFloat(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline uint16_t FloatToF16(float f) {
  const uint32_t x = FloatToBits(f), sign = (x >> 16) & 0x8000u, a = x & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds beyond the largest half
  if (a < 0x38800000u) {  // subnormal half: let the float adder do the rounding
    const float r = BitsToFloat(a) + 0.5f;
    return static_cast<uint16_t>(sign | (FloatToBits(r) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a + 0xfffu + ((a >> 13) & 1) - 0x38000000u) >> 13));
}

}  // namespace kvc

// Numbers of f32 as f16 that is no further from zero than its largest; what is no number stays none.
#pragma once
#include "cuda/gpu.h"
#include "lib/ops/tensor.h"

namespace kvc::cuda {

#if defined(__CUDACC__)
KVC_DEVICE uint16_t ToFiniteHalfBits(float f) {
  uint16_t bits;
  asm("cvt.rn.satfinite.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  return bits;
}
KVC_DEVICE uint32_t ToFiniteHalfPair(float a, float b) {
  uint32_t bits;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a));
  return bits;
}
#else
KVC_DEVICE uint16_t ToFiniteHalfBits(float f) { return FloatToF16(WithinF16(f)); }
KVC_DEVICE uint32_t ToFiniteHalfPair(float a, float b) {
  return ToFiniteHalfBits(a) | static_cast<uint32_t>(ToFiniteHalfBits(b)) << 16;
}
#endif

}  // namespace kvc::cuda

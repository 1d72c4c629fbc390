// Rows of f32 as numbers of f16, for products on the tensor cores: one for each, to nearest, ties to even, or
// two (split_tiles.h). f16 ends at 65504 and is coarse below 2^-14: a row whose largest number lies beyond
// either end is taken times a power of two, which products take off again.
#pragma once
#include "cuda/gpu.h"
#include "cuda/split_tiles.h"
#include "cuda/weights.h"

namespace kvc::cuda {

// Dynamic shared memory of a kernel that keeps a row there: devices of every capability have it.
constexpr int32_t kMostRowBytes = 96 << 10;
constexpr bool FitsShared(int32_t cols) {
  return cols <= kMostRowBytes / static_cast<int32_t>(sizeof(float));
}

// Rows whose largest number is in [2^kLeast, 2^kMost) stay as they are: what a number loses then is 2^-12 of
// it or 2^-23 of the largest. kMostShift: what a product is added to may be taken times it too
// (gemm_blas.cu).
constexpr int kLeastExponent = -2, kMostExponent = 15, kMostRowShift = 80;

// The exponent of two that a row with such a largest number is taken times. Rows that are zero or not finite
// stay so.
KVC_DEVICE int RowShiftOf(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  if (largest == 0 || exponent > 127 || (exponent >= kLeastExponent && exponent < kMostExponent)) return 0;
  return min(kMostExponent - 1 - exponent, kMostRowShift);
}

KVC_DEVICE float LargestOf(float largest, const float4& a) {
  return fmaxf(fmaxf(largest, fmaxf(fabsf(a.x), fabsf(a.y))), fmaxf(fabsf(a.z), fabsf(a.w)));
}

// Row `index` of y, by all threads of a block, of a row x [cols] that they have written if it is in shared
// memory; largest: of the thread's numbers. whole: x has whole vectors of eight numbers at multiples of 16
// bytes. shared [a float for every warp].
template <bool kLow>
KVC_DEVICE void StoreHalves(const float* x, int32_t cols, bool whole, float largest, float* shared,
                            const RowHalves& y, int64_t index) {
  const int shift = RowShiftOf(BlockMax(largest, shared));
  const float times = ExponentOfTwo(shift);
  uint16_t *const high = y.high + index * cols, *const low = kLow ? y.low + index * cols : nullptr;
  if (ThreadOfBlock() == 0) y.factors[index] = ExponentOfTwo(-shift);
  const int32_t n_whole = whole ? cols / 8 * 8 : 0;
  for (int32_t i = 8 * ThreadOfBlock(); i < n_whole; i += 8 * BlockThreads()) {
    const float4 *from = reinterpret_cast<const float4*>(x + i), a = from[0], b = from[1];
    uint4 h, l;
    SplitPair<F16Halves>(a.x * times, a.y * times, &h.x, &l.x);
    SplitPair<F16Halves>(a.z * times, a.w * times, &h.y, &l.y);
    SplitPair<F16Halves>(b.x * times, b.y * times, &h.z, &l.z);
    SplitPair<F16Halves>(b.z * times, b.w * times, &h.w, &l.w);
    StoreEight(high + i, h);
    if constexpr (kLow) StoreEight(low + i, l);
  }
  for (int32_t i = n_whole + ThreadOfBlock(); i < cols; i += BlockThreads()) {
    const float v = x[i] * times;
    high[i] = ToHalfBits(v);
    if constexpr (kLow) low[i] = ToHalfBits(v - HalfBits(high[i]));
  }
}

}  // namespace kvc::cuda

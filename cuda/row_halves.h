// Rows of f32 as numbers of f16, for products on the tensor cores: one for each, to nearest, ties to even, or
// two (split_tiles.h). A row whose largest number f16 does not have is taken times a power of two
// (lib/ops/half_rows.h), which products take off again.
#pragma once
#include "cuda/gpu.h"
#include "cuda/split_tiles.h"
#include "cuda/weights.h"
#include "lib/ops/half_rows.h"

namespace kvc::cuda {

// Dynamic shared memory of a kernel that keeps a row there: devices of every capability have it.
constexpr int32_t kMostRowBytes = 96 << 10;
constexpr bool FitsShared(int32_t cols) {
  return cols <= kMostRowBytes / static_cast<int32_t>(sizeof(float));
}

KVC_DEVICE int RowShiftOf(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  return largest == 0 || exponent > 127 ? 0 : HalfRowShift(exponent);
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

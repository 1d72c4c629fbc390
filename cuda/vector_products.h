// What 16 bytes of weights give with rows of x, and the norm of a row: one order of sums for all kernels of a
// step, so that a row gives the same bits alone and beside others.
#pragma once
#include "cuda/weights.h"

namespace kvc::cuda {

// part[r][t] = the sum of the vector of row r, without its scale, with as many columns of row t of x; x(t,
// i): its columns 4 i .. 4 i + 3. all[t]: their sum, of codes of four bits.
template <WeightType T, int R, int N, typename X>
KVC_DEVICE void MultiplyVectors(const uint4 (&v)[R], const X& x, float (&part)[R][N], float (&all)[N]) {
  KVC_UNROLL
  for (int t = 0; t < N; ++t) all[t] = 0;
  KVC_UNROLL
  for (int r = 0; r < R; ++r) {
    KVC_UNROLL
    for (int t = 0; t < N; ++t) part[r][t] = 0;
  }
  KVC_UNROLL
  for (int i = 0; i < VectorOf<T>::kColumns / 4; ++i) {
    float4 y[N];
    KVC_UNROLL
    for (int t = 0; t < N; ++t) {
      y[t] = x(t, i);
      if (HasFourBits(T)) all[t] += (y[t].x + y[t].y) + (y[t].z + y[t].w);
    }
    KVC_UNROLL
    for (int r = 0; r < R; ++r) {
      float a[4];
      if (HasFourBits(T)) {
        UnpackFourAsFractions(v[r], i, a);
      } else {
        UnpackFour<T>(v[r], i, a);
      }
      // One after the other: four operations instead of five.
      KVC_UNROLL
      for (int t = 0; t < N; ++t)
        part[r][t] += a[0] * y[t].x, part[r][t] += a[1] * y[t].y, part[r][t] += a[2] * y[t].z,
            part[r][t] += a[3] * y[t].w;
    }
  }
  if constexpr (HasFourBits(T)) {
    KVC_UNROLL
    for (int r = 0; r < R; ++r) {
      KVC_UNROLL
      for (int t = 0; t < N; ++t) part[r][t] = kCodesOfFraction * part[r][t] - kFractionOfZero * all[t];
    }
  }
}

// What the norm of n numbers multiplies them by; squares: the sum of theirs, once the mean is off.
KVC_DEVICE float NormFactorOf(float squares, int32_t n, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, static_cast<float>(n)) + eps));
}

// What the norm of a row of n numbers x has to multiply them by once the mean is off, by the first
// kNormThreads threads of a block of any size; on all of them. shared: as BlockSum's.
constexpr int kNormThreads = 128;
KVC_DEVICE float NormFactor(const float* x, int32_t n, float mean, float eps, float* shared) {
  float sum = 0;
  const auto add = [&](float a) { sum += (a - mean) * (a - mean); };
  const bool whole = n % 4 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
  const int32_t fours = whole ? n / 4 : 0, first = ThreadOfBlock() < kNormThreads ? ThreadOfBlock() : n;
  for (int32_t i = first; i < fours; i += kNormThreads) {
    const float4 a = reinterpret_cast<const float4*>(x)[i];
    add(a.x), add(a.y), add(a.z), add(a.w);
  }
  for (int32_t i = 4 * fours + first; i < n; i += kNormThreads) add(x[i]);
  return NormFactorOf(BlockSum(sum, shared), n, eps);
}

}  // namespace kvc::cuda

// Rows of f32 as f16 with a factor each: which power of two takes a row to where f16 has its numbers.
#pragma once

namespace kvc {

// f16 ends at 65504 and is coarse below 2^-14. Rows whose largest number is in [2^kLeast, 2^kMost) stay as
// they are: what a number loses then is 2^-11 of it at most, or 2^-23 of the largest. kMostShift: what has a
// row added to it may be taken times it too (cuda/gemm_blas.cu).
constexpr int kHalfRowLeast = -2, kHalfRowMost = 15, kHalfRowMostShift = 80;

// The exponent of two that a row is taken times whose largest number is in [2^exponent, 2^(exponent + 1)).
// Not of rows that are zero or not finite, which stay so.
constexpr int HalfRowShift(int exponent) {
  if (exponent >= kHalfRowLeast && exponent < kHalfRowMost) return 0;
  const int shift = kHalfRowMost - 1 - exponent;
  return shift < kHalfRowMostShift ? shift : kHalfRowMostShift;
}

}  // namespace kvc

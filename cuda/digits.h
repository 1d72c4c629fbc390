// A row of activations as whole numbers, for products with codes of eight and four bits.
//
// Of as many columns as 16 bytes have codes for (16, 32), each number is a multiple of 2^(e - 21), where 2^e
// is the power of two at or below the largest of them: at most 2^-22 of that one is lost, and a sum of
// products loses nothing. A number is three signed digits of eight bits; four columns' digits are a word,
// which one operation (dp4a) multiplies by four codes. Codes of eight bits are words as they lie; of four
// bits every other column is: columns 0, 2, 4, 6 of eight, and 1, 3, 5, 7.
#pragma once
#include "cuda/gpu.h"

namespace kvc::cuda {

constexpr int kDigits = 3;
// What a vector's columns take in shared memory, in pieces of 16 bytes: the words of each digit, the last one
// first, and then the unit behind what sums begin with (codes of four bits count from -8: less eight times
// the sum of each digit).
constexpr int DigitPieces(int columns) { return kDigits * columns / 16 + 1; }

// The unit for numbers of which the largest has these bits, without its sign; and its inverse. Not a number
// where one of them is none or infinite.
KVC_DEVICE float UnitOf(uint32_t largest, float* inverse) {
  const int exponent = max(static_cast<int>(largest >> 23) - 127, -97);
  *inverse = ExponentOfTwo(21 - exponent);
  return largest >= 0x7f800000u ? __uint_as_float(0x7fffffffu) : ExponentOfTwo(exponent - 21);
}

// By a warp: lane l has columns 4 (l % kFours) .. of those of a vector, that it shares with its neighbours,
// and where `writes` its part of what becomes of them: piece j of it lies at out[j * step].
template <int kFours>
KVC_DEVICE void StoreDigits(const float4& a, bool writes, uint4* out, int32_t step) {
  constexpr bool kFourBits = kFours == 8;
  const float x[4] = {a.x, a.y, a.z, a.w};
  uint32_t largest = 0;
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
  KVC_UNROLL
  for (int i = 1; i < kFours; i *= 2) largest = max(largest, __shfl_xor_sync(kAllLanes, largest, i));
  float inverse;
  const float unit = UnitOf(largest, &inverse);
  int32_t rest[4];
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) rest[j] = largest >= 0x7f800000u ? 0 : RoundToWhole(x[j] * inverse);
  const int32_t place = Lane() % kFours;
  int32_t begin[kDigits] = {};
  KVC_UNROLL
  for (int k = 0; k < kDigits; ++k) {
    uint32_t byte[4];
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int32_t digit = k + 1 < kDigits ? static_cast<int8_t>(rest[j]) : rest[j];
      rest[j] = (rest[j] - digit) >> 8;
      byte[j] = static_cast<uint32_t>(digit) & 0xffu;
      begin[k] -= 8 * digit;
    }
    uint32_t word;
    if constexpr (kFourBits) {
      KVC_UNROLL
      for (int i = 1; i < kFours; i *= 2) begin[k] += __shfl_xor_sync(kAllLanes, begin[k], i);
      // The lower half of a word of every other column is the even lane's, the upper one the odd lane's.
      const uint32_t mine = byte[0] | byte[2] << 8 | byte[1] << 16 | byte[3] << 24,
                     other = __shfl_xor_sync(kAllLanes, mine, 1);
      word = place % 2 != 0 ? HighHalves(other, mine) : LowHalves(mine, other);
    } else {
      word = byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24;
    }
    if (writes) reinterpret_cast<uint32_t*>(out + (kFours / 4 * k + place / 4) * step)[place % 4] = word;
  }
  if (place != 0 || !writes) return;
  const auto bits = [&](int k) { return static_cast<uint32_t>(begin[k]); };
  out[(DigitPieces(4 * kFours) - 1) * step] = {bits(0), bits(1), bits(2), __float_as_uint(unit)};
}

// The two lower digits together are less than 2^24, of codes of four bits.
KVC_DEVICE float SumOfDigits(const int32_t (&sum)[kDigits], float unit) {
  return (static_cast<float>(sum[2]) * 65536.0f + static_cast<float>(sum[1] * 256 + sum[0])) * unit;
}

// part[r] = the sum of the 16 codes of row r with the columns at x, without the codes' scale.
template <int R>
KVC_DEVICE void MultiplyByteDigits(const uint4 (&codes)[R], const uint4* x, int32_t step, float (&part)[R]) {
  uint4 digits[kDigits];
  KVC_UNROLL
  for (int k = 0; k < kDigits; ++k) digits[k] = x[k * step];
  const float unit = __uint_as_float(x[kDigits * step].w);
  KVC_UNROLL
  for (int r = 0; r < R; ++r) {
    int32_t sum[kDigits];
    KVC_UNROLL
    for (int k = 0; k < kDigits; ++k) {
      sum[k] = DotBytes(codes[r].x, digits[k].x, 0);
      sum[k] = DotBytes(codes[r].y, digits[k].y, sum[k]);
      sum[k] = DotBytes(codes[r].z, digits[k].z, sum[k]);
      sum[k] = DotBytes(codes[r].w, digits[k].w, sum[k]);
    }
    part[r] = SumOfDigits(sum, unit);
  }
}

// The same of 32 codes of four bits; all: the sum of the columns.
template <int R>
KVC_DEVICE void MultiplyHalfByteDigits(const uint4 (&codes)[R], const uint4* x, int32_t step,
                                       float (&part)[R], float* all) {
  constexpr uint32_t kCodes = 0x0f0f0f0fu, kTurned = 0x08080808u;  // codes from -8 on as 0 ..
  const uint4 begin = x[2 * kDigits * step];
  const float unit = __uint_as_float(begin.w);
  const int32_t first[kDigits] = {static_cast<int32_t>(begin.x), static_cast<int32_t>(begin.y),
                                  static_cast<int32_t>(begin.z)};
  int32_t sum[R][kDigits];
  KVC_UNROLL
  for (int r = 0; r < R; ++r) {
    KVC_UNROLL
    for (int k = 0; k < kDigits; ++k) sum[r][k] = first[k];
  }
  KVC_UNROLL
  for (int half = 0; half < 2; ++half) {
    uint4 digits[kDigits];
    KVC_UNROLL
    for (int k = 0; k < kDigits; ++k) digits[k] = x[(2 * k + half) * step];
    KVC_UNROLL
    for (int r = 0; r < R; ++r) {
      const uint32_t a = half == 0 ? codes[r].x : codes[r].z, b = half == 0 ? codes[r].y : codes[r].w;
      const uint32_t four[4] = {AndXor(a, kCodes, kTurned), AndXor(a >> 4, kCodes, kTurned),
                                AndXor(b, kCodes, kTurned), AndXor(b >> 4, kCodes, kTurned)};
      KVC_UNROLL
      for (int k = 0; k < kDigits; ++k) {
        sum[r][k] = DotBytes(four[0], digits[k].x, sum[r][k]);
        sum[r][k] = DotBytes(four[1], digits[k].y, sum[r][k]);
        sum[r][k] = DotBytes(four[2], digits[k].z, sum[r][k]);
        sum[r][k] = DotBytes(four[3], digits[k].w, sum[r][k]);
      }
    }
  }
  KVC_UNROLL
  for (int r = 0; r < R; ++r) part[r] = SumOfDigits(sum[r], unit);
  *all = SumOfDigits(first, unit) * -0.125f;
}

}  // namespace kvc::cuda

// Numbers of f32 for the tensor cores: each is the sum of two of 16 bits, high + low. Of a product of two,
// low times low is left out. Two of bf16 have 16 bits of mantissa and f32's range: what is lost is about
// 2^-17 of a product. Two of f16 have 22 bits, nothing below 2^-25, and are infinite beyond 65504 or,
// where nobody has scaled them, no more than twice that (FiniteHalves). What is f16 already, or may be
// rounded to it, is a high half alone.
#pragma once
#include "cuda/finite_half.h"

namespace kvc::cuda {

struct Bf16Halves {
  // What products with values have of a probability: f16 has nothing below 2^-25, and long prompts need it.
  static constexpr float kShare = 1;
  KVC_DEVICE static uint32_t Pair(float a, float b) { return ToBfPair(a, b); }
  KVC_DEVICE static float First(uint32_t pair) { return __uint_as_float(pair << 16); }
  KVC_DEVICE static float Second(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
  KVC_DEVICE static void Mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    MmaBf16(c, a, b);
  }
  using Finite = Bf16Halves;  // they have f32's range
};
struct FiniteHalves;
struct F16Halves {
  static constexpr float kShare = 16384;
  KVC_DEVICE static uint32_t Pair(float a, float b) { return ToHalfPair(a, b); }
  KVC_DEVICE static float First(uint32_t pair) { return HalfBits(static_cast<uint16_t>(pair & 0xffffu)); }
  KVC_DEVICE static float Second(uint32_t pair) { return HalfBits(static_cast<uint16_t>(pair >> 16)); }
  KVC_DEVICE static void Mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    MmaHalf(c, a, b);
  }
  using Finite = FiniteHalves;
};
// Of what attention is about: queries, keys, values.
struct FiniteHalves : F16Halves {
  KVC_DEVICE static uint32_t Pair(float a, float b) { return ToFiniteHalfPair(a, b); }
};

template <typename Halves>
KVC_DEVICE void SplitPair(float a, float b, uint32_t* high, uint32_t* low) {
  *high = Halves::Pair(a, b);
  *low = Halves::Pair(a - Halves::First(*high), b - Halves::Second(*high));
}

// Fragments of a product by a warp (gpu.h), of numbers that are two of 16 bits or, without kLow, one.
template <bool kLow>
struct LeftFactor {
  uint32_t high[4], low[4];
};
template <>
struct LeftFactor<false> {
  uint32_t high[4];
};
template <bool kLow>
struct RightFactor {
  uint32_t high[2], low[2];
};
template <>
struct RightFactor<false> {
  uint32_t high[2];
};
template <typename Halves, bool kLeftLow, bool kRightLow>
KVC_DEVICE void MmaSplit(float (&c)[4], const LeftFactor<kLeftLow>& a, const RightFactor<kRightLow>& b) {
  if constexpr (kLeftLow) Halves::Mma(c, a.low, b.high);
  if constexpr (kRightLow) Halves::Mma(c, a.high, b.low);
  Halves::Mma(c, a.high, b.high);
}

// Columns of a left factor's i-th pair from column k on, and its row.
KVC_DEVICE int RowOfPair(int i) { return Lane() / 4 + i % 2 * 8; }
KVC_DEVICE int ColumnOfPair(int i) { return Lane() % 4 * 2 + i / 2 * 8; }
// Column of number i of the j-th product [16, 8] beside each other.
KVC_DEVICE int ColumnOfProduct(int j, int i) { return 8 * j + Lane() % 4 * 2 + i % 2; }

// Rows of f32 in global memory, `d` numbers each. Numbers from d on, and rows from n on, are zero.
struct FloatRows {
  const float* first;
  int64_t stride;
  int32_t n, d;

  KVC_DEVICE void Pair(int32_t r, int32_t c, float* a, float* b) const {
    const float* at = first + r * stride + c;
    *a = r < n && c < d ? at[0] : 0.0f;
    *b = r < n && c + 1 < d ? at[1] : 0.0f;
  }
  // Columns c .. c + 3, c a multiple of four.
  KVC_DEVICE float4 Four(int32_t r, int32_t c) const {
    float4 x = {0, 0, 0, 0};
    if (r >= n || c >= d) return x;
    if (d % 4 == 0) return *reinterpret_cast<const float4*>(first + r * stride + c);
    Pair(r, c, &x.x, &x.y);
    Pair(r, c + 2, &x.z, &x.w);
    return x;
  }
  // Of rows 0 .. 15, columns k .. k + 15: the left factor of a product.
  template <typename Halves>
  KVC_DEVICE LeftFactor<true> Left(int32_t k) const {
    LeftFactor<true> left;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      float a, b;
      Pair(RowOfPair(i), k + ColumnOfPair(i), &a, &b);
      SplitPair<Halves>(a, b, &left.high[i], &left.low[i]);
    }
    return left;
  }
};

// The same, rounded to f16.
struct RoundedRows {
  FloatRows rows;

  template <typename>
  KVC_DEVICE LeftFactor<false> Left(int32_t k) const {
    LeftFactor<false> left;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      float a, b;
      rows.Pair(RowOfPair(i), k + ColumnOfPair(i), &a, &b);
      left.high[i] = ToFiniteHalfPair(a, b);
    }
    return left;
  }
  KVC_DEVICE uint2 Four(int32_t r, int32_t c) const {
    const float4 x = rows.Four(r, c);
    return {ToFiniteHalfPair(x.x, x.y), ToFiniteHalfPair(x.z, x.w)};
  }
};

// Rows of f16 in global memory, as FloatRows otherwise; d is even.
struct HalfRows {
  const uint16_t* first;
  int64_t stride;
  int32_t n, d;

  KVC_DEVICE uint32_t Pair(int32_t r, int32_t c) const {
    return r < n && c < d ? *reinterpret_cast<const uint32_t*>(first + r * stride + c) : 0;
  }
  KVC_DEVICE uint2 Four(int32_t r, int32_t c) const {
    if (d % 4 != 0) return {Pair(r, c), Pair(r, c + 2)};
    return r < n && c < d ? *reinterpret_cast<const uint2*>(first + r * stride + c) : uint2{0, 0};
  }
  template <typename>
  KVC_DEVICE LeftFactor<false> Left(int32_t k) const {
    LeftFactor<false> left;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) left.high[i] = Pair(RowOfPair(i), k + ColumnOfPair(i));
    return left;
  }
};

// The left factor of many products: 16 rows, in registers up to 128 dimensions, read again for each beyond.
template <typename Halves, int kDims, typename Rows = FloatRows>
class LeftRows {
 public:
  KVC_DEVICE explicit LeftRows(const Rows& rows) : rows_(rows) {
    KVC_UNROLL
    for (int k = 0; kHeld && k < kDims / 16; ++k) held_[k] = rows.template Left<Halves>(16 * k);
  }
  // Columns k .. k + 15.
  KVC_DEVICE auto operator()(int k) const {
    return kHeld ? held_[kHeld ? k / 16 : 0] : rows_.template Left<Halves>(k);
  }

 private:
  static constexpr bool kHeld = kDims <= 128;
  Rows rows_;
  decltype(rows_.template Left<Halves>(0)) held_[kHeld ? kDims / 16 : 1];
};

// z [16, kRows] += left [16, kDims] * the transposed tile; left(k): its columns k .. k + 15.
template <typename Halves, int kDims, typename Tile, typename Left, int kTiles>
KVC_DEVICE void TimesRowsOf(const Tile& tile, const Left& left, float (&z)[kTiles][4]) {
  KVC_UNROLL
  for (int k = 0; k < kDims; k += 16) {
    const auto a = left(k);
    KVC_UNROLL
    for (int j = 0; j < kTiles; j += 2) {
      typename Tile::Right rows[2];
      tile.RowsRight(8 * j, k, rows);
      MmaSplit<Halves>(z[j], a, rows[0]);
      MmaSplit<Halves>(z[j + 1], a, rows[1]);
    }
  }
}

// Lower halves of a tile, where it has them.
template <bool kThere, int kRows, int kWidth>
struct LowerTile {};
template <int kRows, int kWidth>
struct LowerTile<true, kRows, kWidth> {
  alignas(16) uint16_t low[kRows][kWidth];
};

// Rows in shared memory. They start four banks apart, so that the rows of a matrix meet no bank twice.
// kLow false: every number is one of 16 bits, its high half.
template <typename Halves, int kRows, int kDims, bool kLow = true>
struct SplitTile : LowerTile<kLow, kRows, kDims + 8> {
  using Left = LeftFactor<kLow>;
  using Right = RightFactor<kLow>;
  static constexpr int kWidth = kDims + 8;
  alignas(16) uint16_t high[kRows][kWidth];

  // Columns c .. c + 3 of row r.
  KVC_DEVICE void Put(int r, int c, const float4& x) {
    uint2 h, l;
    SplitPair<Halves>(x.x, x.y, &h.x, &l.x);
    SplitPair<Halves>(x.z, x.w, &h.y, &l.y);
    Put(r, c, h);
    StoreFour(&this->low[r][c], l);
  }
  KVC_DEVICE void Put(int r, int c, const uint2& halves) { StoreFour(&high[r][c], halves); }
  // By all threads of a block of kThreads, some vectors of each on their way at a time.
  template <int kThreads, typename Rows>
  KVC_DEVICE void Load(const Rows& rows) {
    constexpr int kRounds = kRows * kDims / 4 / kThreads, kAhead = kRounds % 4 == 0   ? 4
                                                                   : kRounds % 3 == 0 ? 3
                                                                                      : 2;
    static_assert(kRounds * kThreads * 4 == kRows * kDims && kRounds % kAhead == 0,
                  "a thread has as much as another");
    const auto row = [](int round) { return (round * kThreads + ThreadOfBlock()) / (kDims / 4); };
    const auto column = [](int round) { return (round * kThreads + ThreadOfBlock()) % (kDims / 4) * 4; };
    KVC_UNROLL_BY(1)
    for (int round = 0; round < kRounds; round += kAhead) {
      decltype(rows.Four(0, 0)) x[kAhead];
      KVC_UNROLL
      for (int u = 0; u < kAhead; ++u) x[u] = rows.Four(row(round + u), column(round + u));
      KVC_UNROLL
      for (int u = 0; u < kAhead; ++u) Put(row(round + u), column(round + u), x[u]);
    }
  }
  // Left factor of rows r .. r + 15 and columns k .. k + 15, at PlaceOfLeft(r, k); i rows and j columns
  // further on the place is i * kWidth + j more.
  KVC_DEVICE static int PlaceOfLeft(int r, int k) { return (r + Lane() % 16) * kWidth + k + Lane() / 16 * 8; }
  KVC_DEVICE void LeftAt(int place, Left* left) const {
    LoadMatrices<false>(left->high, high[0] + place);
    if constexpr (kLow) LoadMatrices<false>(left->low, this->low[0] + place);
  }
  // TimesRowsOf.
  template <typename Factor>
  KVC_DEVICE void TimesRows(const Factor& left, float (&z)[kRows / 8][4]) const {
    TimesRowsOf<Halves, kDims>(*this, left, z);
  }
  // Right factors of a product with the transposed tile: rows r .. r + 7 and r + 8 .. r + 15, columns k .. k
  // + 15 of the tile.
  KVC_DEVICE void RowsRight(int r, int k, Right (&right)[2]) const { RightAt(PlaceOfRight(r, k), right); }
  KVC_DEVICE static int PlaceOfRight(int r, int k) {
    return (r + Lane() % 8 + Lane() / 16 * 8) * kWidth + k + Lane() / 8 % 2 * 8;
  }
  KVC_DEVICE void RightAt(int place, Right (&right)[2]) const { LoadRight<false>(place, right); }
  // Right factors of a product with the tile: columns c .. c + 7 and c + 8 .. c + 15, rows k .. k + 15.
  KVC_DEVICE void ColumnsRight(int k, int c, Right (&right)[2]) const {
    const int row = k + Lane() % 16, column = c + Lane() / 16 * 8;
    LoadRight<true>(row * kWidth + column, right);
  }

 private:
  template <bool kTransposed>
  KVC_DEVICE void LoadRight(int place, Right (&right)[2]) const {
    uint32_t half[4];
    LoadMatrices<kTransposed>(half, high[0] + place);
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) right[i / 2].high[i % 2] = half[i];
    if constexpr (kLow) {
      LoadMatrices<kTransposed>(half, this->low[0] + place);
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) right[i / 2].low[i % 2] = half[i];
    }
  }
};

}  // namespace kvc::cuda

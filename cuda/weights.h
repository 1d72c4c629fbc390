// Weights as kernels read them (prepare.cc): row major, one part or up to three behind each other. Those of
// bf16 are f16 times a power of two.
#pragma once
#include <type_traits>

#include "cuda/gpu.h"
#include "lib/ops/network_ops.h"

namespace kvc::cuda {

// Codes, of which a group of columns has a scale.
constexpr bool IsScaled(WeightType type) {
  return type == WeightType::kInt8 || type == WeightType::kInt4 || type == WeightType::kQ4K;
}
// kQ4K is codes of int4 and, for 32 of them, a scale and what is added to their products.
constexpr bool HasOffsets(WeightType type) { return type == WeightType::kQ4K; }
constexpr bool HasFourBits(WeightType type) { return type == WeightType::kInt4 || type == WeightType::kQ4K; }

// Codes of which so many columns have more beside them than one scale (NetworkShape::fine_codes).
constexpr int kScaledColumns = 32;
constexpr bool HasFineCodes(WeightType type, int32_t group) {
  return IsScaled(type) && (HasOffsets(type) || group % kScaledColumns != 0);
}

struct Part {
  const uint8_t* data;
  const uint16_t* scales;      // HasOffsets: pairs, a scale and an offset
  const float* bias;           // null: none
  float* y;                    // [n, rows]
  float factor;                // of every weight
  int32_t rows, first, group;  // first: row of the product where it begins
  WeightType type;
  int32_t first_block;  // of the kernel, whose blocks are each of one part
};

// Pairs [first, first + n) of a token and an expert that works on it, all of one expert; n 0: none.
struct ExpertTile {
  int32_t expert, first, n;
};
constexpr int32_t kExpertTile = 64;  // pairs of one at most, where there are many rows

// Rows of activations [n, cols] for the tensor cores: row i is factors[i] times its numbers of f16, or times
// the sums of two.
struct RowHalves {
  uint16_t *high, *low;  // multiples of 16 bytes; low null: one
  float* factors;        // [n], powers of two
};

// A product of a matrix with n rows of x.
struct Product {
  Part parts[Matrix::kMaxParts];
  int32_t n_parts, rows, cols, n;
  const float* x;    // [n, cols]
  RowHalves halves;  // of x; null: there are none, of products that do not ask for them (TakesHalves)
  bool adds;         // y += scale * result instead of y = scale * result
  float scale, cap;  // cap: of the scaled result (gpu.h)
  // Of experts: parts are stacks of matrices with `rows` rows each, rows of y are pairs. null: one matrix.
  const ExpertTile* tiles;  // [n_tiles]
  int32_t n_tiles;
  const int32_t* tokens;  // of pairs, the rows of x; null: x has a row for each pair
};

// Whether a product with many rows is the tensor cores': one part in f32 makes all of them f32 (Gemm).
inline bool TakesHalves(const Product& p) {
  for (int i = 0; i < p.n_parts; ++i) {
    if (p.parts[i].type == WeightType::kF32) return false;
  }
  return true;
}

// multiply(the product with one part alone) for all parts, one after the other.
template <typename F>
cudaError_t EachPart(const Product& p, F&& multiply) {
  cudaError_t e = cudaSuccess;
  Product one = p;
  one.n_parts = 1;
  for (int i = 0; i < p.n_parts && e == cudaSuccess; ++i) {
    one.parts[0] = p.parts[i];
    e = multiply(one);
  }
  return e;
}

// The rows of y that a block makes, which expert does, and where x has them.
struct TokenTile {
  int32_t first, n, expert;
  const int32_t* tokens;
  KVC_DEVICE int64_t RowOfX(int32_t t) const { return tokens != nullptr ? tokens[first + t] : first + t; }
  // Row of a part's stack with which the matrix of the expert begins.
  KVC_DEVICE int32_t FirstRow(const Part& w) const { return expert * w.rows; }
};
template <bool kExperts>
KVC_DEVICE TokenTile TileOf(const Product& p, int32_t block, int32_t size) {
  if (!kExperts) return {block * size, min(size, p.n - block * size), 0, nullptr};
  const int32_t blocks = kExpertTile / size, at = block % blocks * size;
  const ExpertTile tile = p.tiles[block / blocks];
  return {tile.first + at, min(size, tile.n - at), tile.expert, p.tokens};
}
// How many blocks the rows of y are for kernels that make so many in each.
inline int32_t TileBlocks(const Product& p, int32_t size) {
  return p.tiles != nullptr ? p.n_tiles * (kExpertTile / size) : (p.n + size - 1) / size;
}

// Numbers the blocks of a kernel that does so many rows of a part in each. Returns how many there are.
inline int32_t NumberBlocks(Product* p, int32_t rows_of_block) {
  int32_t n = 0;
  for (int i = 0; i < p->n_parts; ++i) {
    p->parts[i].first_block = n;
    n += (p->parts[i].rows + rows_of_block - 1) / rows_of_block;
  }
  return n;
}
KVC_DEVICE const Part& PartOfBlock(const Product& p, int32_t block) {
  int32_t i = 0;
  while (i + 1 < p.n_parts && block >= p.parts[i + 1].first_block) ++i;
  return p.parts[i];
}

KVC_DEVICE const Part& PartAt(const Product& p, int32_t row) {
  int32_t i = 0;
  while (i + 1 < p.n_parts && row >= p.parts[i + 1].first) ++i;
  return p.parts[i];
}

// The result of a sum. first: row of the part's stack with which the matrix begins; r: row of that.
KVC_DEVICE float OutputOf(const Product& p, const Part& part, int32_t first, int32_t r, float sum) {
  sum *= part.factor;
  if (part.bias != nullptr) sum += part.bias[first + r];
  return Capped(sum * p.scale, p.cap);
}
// row: of the product.
KVC_DEVICE void StoreOutput(const Product& p, const Part& part, int32_t first, int32_t row, int32_t token,
                            float sum) {
  const int32_t r = row - part.first;
  const float value = OutputOf(p, part, first, r, sum);
  float* y = part.y + static_cast<int64_t>(token) * part.rows + r;
  *y = p.adds ? *y + value : value;
}

// Element c of row r of a part, without its factor.
KVC_DEVICE float WeightElement(const Part& w, int32_t cols, int32_t r, int32_t c) {
  const int64_t at = static_cast<int64_t>(r) * cols + c;
  switch (w.type) {
    case WeightType::kF32:
      return reinterpret_cast<const float*>(w.data)[at];
    case WeightType::kF16:
      return HalfBits(reinterpret_cast<const uint16_t*>(w.data)[at]);
    case WeightType::kInt8:
    case WeightType::kInt4:
    case WeightType::kQ4K:
      break;  // codes
    case WeightType::kBf16:
    case WeightType::kQ6K:
      return 0;  // prepare.cc makes others of them
  }
  const int64_t group = static_cast<int64_t>(r) * (cols / w.group) + c / w.group;
  const float scale = HalfBits(w.scales[HasOffsets(w.type) ? 2 * group : group]);
  if (w.type == WeightType::kInt8) return static_cast<float>(static_cast<int8_t>(w.data[at])) * scale;
  const uint8_t two = w.data[static_cast<int64_t>(r) * ((cols + 1) / 2) + c / 2];
  const float value = static_cast<float>(static_cast<int8_t>(two << (c % 2 == 0 ? 4 : 0)) >> 4) * scale;
  return HasOffsets(w.type) ? value + HalfBits(w.scales[2 * group + 1]) : value;
}

// What a group has beside its codes: a scale, or that and an offset.
// A class for it, so that kernels that name it have no expression in their own names, which compilers write
// differently.
template <WeightType T>
struct GroupNumber {
  using Bits = std::conditional_t<HasOffsets(T), uint32_t, uint16_t>;
};
template <WeightType T>
using GroupBits = typename GroupNumber<T>::Bits;
template <WeightType T>
KVC_DEVICE GroupBits<T> BitsOfGroup(const Part& w, int64_t group) {
  return reinterpret_cast<const GroupBits<T>*>(w.scales)[group];
}
// What a group adds to a row's sum: of its codes with x, `codes`, and of x alone.
template <WeightType T>
KVC_DEVICE float SumOfGroup(GroupBits<T> bits, float codes, float all) {
  const float scaled = codes * HalfBits(static_cast<uint16_t>(bits & 0xffffu));
  if constexpr (HasOffsets(T)) return scaled + all * HalfBits(static_cast<uint16_t>(bits >> 16));
  return scaled;
}

// Columns that 16 bytes hold.
constexpr int VectorColumns(WeightType type) {
  return type == WeightType::kF32 ? 4 : type == WeightType::kInt8 ? 16 : HasFourBits(type) ? 32 : 8;
}
template <WeightType T>
struct VectorOf {
  static constexpr int kColumns = VectorColumns(T);
};

// ---- codes as numbers ----
// A multiprocessor converts 16 whole numbers in the time of 128 products of f32 or 64 operations on bits, and
// an H200's memory brings 16 codes of eight bits in that time. So codes become numbers by where their bits
// are put: all results are exact.

// Codes 4 i .. 4 i + 3 of four bits as 1.5 + code / 16: one operation on the bits behind a shift.
constexpr float kCodesOfFraction = 16, kFractionOfZero = 24;  // code = 16 * fraction - 24
KVC_DEVICE void UnpackFourAsFractions(const uint4& v, int i, float (&w)[4]) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) {
    const int at = i % 2 * 16 + 4 * j;  // the code's place in its word; in f32 its highest bit is bit 22
    const unsigned word = words[i / 2 % 4], moved = at < 19 ? word << (19 - at) : word >> (at - 19);
    w[j] = __uint_as_float(AndXor(moved, 0x00780000u, 0x3fc00000u));
  }
}

// Codes of eight bits, of which the highest bit counts down: with it turned 128 and more. As the last byte of
// 2^23, which has no fraction.
KVC_DEVICE void UnpackFourBytes(uint32_t codes, float (&w)[4]) {
  constexpr uint32_t kTurned = 0x80808080u, kLarge = 0x4b000000u;
  constexpr float kZero = 8388608.0f + 128.0f;
  const uint32_t bytes = codes ^ kTurned;
  w[0] = __uint_as_float(PickBytes<0x7440>(bytes, kLarge)) - kZero;
  w[1] = __uint_as_float(PickBytes<0x7441>(bytes, kLarge)) - kZero;
  w[2] = __uint_as_float(PickBytes<0x7442>(bytes, kLarge)) - kZero;
  w[3] = __uint_as_float(PickBytes<0x7443>(bytes, kLarge)) - kZero;
}

// Elements 4 i .. 4 i + 3 of the 16 bytes, without their scale.
template <WeightType T>
KVC_DEVICE void UnpackFour(const uint4& v, int i, float (&w)[4]) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
  if (T == WeightType::kF32) {
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) w[j] = __uint_as_float(words[j]);
  }
  if (T == WeightType::kBf16 || T == WeightType::kF16) {  // pages have bf16 (read_tile.h)
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {
      const unsigned word = words[2 * i % 4 + j / 2];
      const uint16_t half = static_cast<uint16_t>(j % 2 == 0 ? word & 0xffffu : word >> 16);
      w[j] = T == WeightType::kBf16 ? BfBits(half) : HalfBits(half);
    }
  }
  if constexpr (T == WeightType::kInt8) UnpackFourBytes(words[i % 4], w);
  if (HasFourBits(T)) {
    UnpackFourAsFractions(v, i, w);
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) w[j] = kCodesOfFraction * w[j] - kFractionOfZero;
  }
}

// The same of codes, as pairs of f16: the last bits of 1024, whose fraction begins below 1.
template <WeightType T>
KVC_DEVICE uint2 UnpackFourHalves(const uint4& v, int i) {
  static_assert(T == WeightType::kInt8 || HasFourBits(T));
  constexpr uint32_t kLarge = 0x64646464u, kOnes = 0x3c003c00u, kLess1152 = 0xe480e480u;
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (T == WeightType::kInt8) {
    const uint32_t bytes = words[i % 4] ^ 0x80808080u;
    return {MultiplyAddHalves(PickBytes<0x4140>(bytes, kLarge), kOnes, kLess1152),
            MultiplyAddHalves(PickBytes<0x4342>(bytes, kLarge), kOnes, kLess1152)};
  } else {
    // The second code of a byte stays four bits above the first: 16 times as much.
    constexpr uint32_t kCodes = 0x00f0000fu, kTurned = 0x64806408u, kFactors = 0x2c003c00u;  // 1, 1 / 16
    constexpr uint32_t kLess1032And72 = 0xd480e408u;
    const uint32_t word = words[i / 2 % 4];
    const uint32_t first = i % 2 == 0 ? PickBytes<0x4040>(word, 0) : PickBytes<0x4242>(word, 0),
                   second = i % 2 == 0 ? PickBytes<0x4141>(word, 0) : PickBytes<0x4343>(word, 0);
    return {MultiplyAddHalves(AndXor(first, kCodes, kTurned), kFactors, kLess1032And72),
            MultiplyAddHalves(AndXor(second, kCodes, kTurned), kFactors, kLess1032And72)};
  }
}

}  // namespace kvc::cuda

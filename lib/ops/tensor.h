// What kernels compute on: plain views, no ownership.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvc {

// Numbers are those of the model file (models/kvc_model.fbs); q4_k and q6_k are blocks of GGUF
// (lib/ops/weight_blocks.h).
enum class WeightType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kInt8 = 3, kInt4 = 4, kQ4K = 5, kQ6K = 6 };
// How the rows of a weight lie in memory: one after the other, or as lanes of panels
// (lib/ops/weight_panels.h).
enum class WeightLayout : uint8_t { kRowMajor = 0, kPanels16 = 1 };

// What sets one type apart from another, by number. A row is blocks of so many elements and bytes, scales of
// int8 and int4 apart. group: columns that share a scale, where the type says it.
struct WeightTypeInfo {
  const char* name;
  int32_t block, block_bytes, panel_bytes;  // panel_bytes: what a block of one row takes in panels
  bool codes, scales_apart;                 // codes multiply activations in groups, rounded to int8
  int32_t group;
};
constexpr WeightTypeInfo kWeightTypes[] = {
    {"f32", 1, 4, 4, false, false, 0},        {"f16", 1, 2, 2, false, false, 0},
    {"bf16", 1, 2, 2, false, false, 0},       {"int8", 1, 1, 1, true, true, 0},
    {"int4", 2, 1, 1, true, true, 0},         {"q4_k", 256, 144, 148, true, false, 32},
    {"q6_k", 256, 210, 212, true, false, 16},
};
constexpr size_t kWeightTypeCount = sizeof(kWeightTypes) / sizeof(kWeightTypes[0]);
constexpr const WeightTypeInfo& InfoOf(WeightType type) { return kWeightTypes[static_cast<size_t>(type)]; }
inline bool HasCodes(WeightType type) { return InfoOf(type).codes; }
// Blocks with scales of their own: q4_k, q6_k.
inline bool HasBlocks(WeightType type) { return HasCodes(type) && !InfoOf(type).scales_apart; }

// A matrix [rows, cols]; row r makes output r. int8/int4: value = code * scale[r, c / group], codes two's
// complement (int4: two a byte, low nibble first, -8..7), scales f16 [rows, cols / group]. q4_k and q6_k: the
// blocks of GGUF, with their scales in them, group as the type says. So in row major; weight_panels.h says
// how panels hold the same values. A stack is `stack` matrices of rows / stack rows each, one behind the
// other: the experts of a layer.
struct Weight {
  WeightType type = WeightType::kF32;
  WeightLayout layout = WeightLayout::kRowMajor;
  int32_t rows = 0, cols = 0, group = 0;
  const void* data = nullptr;
  const uint16_t* scales = nullptr;
  int32_t stack = 1;
};

// Of a row in row major, without scales that lie apart.
inline int64_t WeightRowBytes(WeightType type, int64_t cols) {
  const WeightTypeInfo& info = InfoOf(type);
  return (cols + info.block - 1) / info.block * info.block_bytes;
}

// Numbers that are stored as f16 are no further from zero than its largest; what is no number stays none.
constexpr float kMostF16 = 65504;
inline float WithinF16(float x) { return x > kMostF16 ? kMostF16 : x < -kMostF16 ? -kMostF16 : x; }

// How one K or V vector of the cache is stored. int8/int4/int2: methods.md 4.3, symmetric, groups of `group`
// elements with an f16 scale each (the first elements of a byte in its lowest bits). group 0 in float
// formats. Only values are stored as int2: codes 0 to 3 mean -3, -1, 1 and 3 scales.
enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kInt8 = 3, kInt4 = 4, kInt2 = 5 };
struct VectorFormat {
  KvType type = KvType::kF32;
  int32_t d = 0, group = 0;
};
inline int64_t CodeBytes(KvType type, int32_t d) {  // of one vector, without scales
  switch (type) {
    case KvType::kF32:
      return int64_t{4} * d;
    case KvType::kF16:
    case KvType::kBf16:
      return int64_t{2} * d;
    case KvType::kInt8:
      return d;
    case KvType::kInt4:
      return d / 2;
    case KvType::kInt2:
      return d / 4;
  }
  return 0;
}

constexpr int32_t kMaxHeadSize = 1024;  // of every model that is taken: vectors fit on the stack

// Which dimensions RoPE pairs: (j, j + d/2) or (2j, 2j + 1).
enum class RopePairing : uint8_t { kHalf = 0, kInterleaved = 1 };

}  // namespace kvc

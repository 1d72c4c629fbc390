// What kernels compute on: plain views, no ownership.
#pragma once
#include <cstdint>

namespace kvc {

// Numbers are those of the model file (models/kvc_model.fbs).
enum class WeightType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kInt8 = 3, kInt4 = 4 };
// How the rows of a weight lie in memory: one after the other, or as lanes of panels
// (lib/ops/weight_panels.h).
enum class WeightLayout : uint8_t { kRowMajor = 0, kPanels16 = 1 };

// A matrix [rows, cols]; row r makes output r. int8/int4: value = code * scale[r, c / group], codes two's
// complement (int4: two a byte, low nibble first, -8..7), scales f16 [rows, cols / group]. So in row major;
// weight_panels.h says how panels hold the same values. A stack is `stack` matrices of rows / stack rows
// each, one behind the other: the experts of a layer.
struct Weight {
  WeightType type = WeightType::kF32;
  WeightLayout layout = WeightLayout::kRowMajor;
  int32_t rows = 0, cols = 0, group = 0;
  const void* data = nullptr;
  const uint16_t* scales = nullptr;
  int32_t stack = 1;
};

inline int64_t WeightRowBytes(WeightType type, int64_t cols) {  // without scales
  switch (type) {
    case WeightType::kF32:
      return cols * 4;
    case WeightType::kF16:
    case WeightType::kBf16:
      return cols * 2;
    case WeightType::kInt8:
      return cols;
    case WeightType::kInt4:
      return (cols + 1) / 2;
  }
  return 0;
}

// How one K or V vector of the cache is stored. int8/int4: methods.md 4.3, symmetric, groups of `group`
// elements with an f16 scale each (int4 low nibble first). group 0 in float formats.
enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kInt8 = 3, kInt4 = 4 };
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
  }
  return 0;
}

// Which dimensions RoPE pairs: (j, j + d/2) or (2j, 2j + 1).
enum class RopePairing : uint8_t { kHalf = 0, kInterleaved = 1 };

}  // namespace kvc

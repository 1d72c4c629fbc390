// Elements of weights from the form of a source into the form of a model file (lib/ops/tensor.h).
#pragma once
#include <cstdint>

#include "lib/base/status.h"
#include "models/convert/checkpoint.h"

namespace kvc {

constexpr int32_t kMaxGroup = 128;  // elements that share a scale

// How a matrix is stored in the model file. Codes of a source whose blocks have the same kind of groups are
// kept as they are.
struct WeightTarget {
  WeightType type = WeightType::kF32;
  int32_t group = 0;
  bool operator==(const WeightTarget& o) const { return type == o.type && group == o.group; }
};

// What keeps a source's quality at the least size: its own numbers where the model file has a type for them,
// for blocks those whose codes fit; else the smallest of ours whose loss does not show beside the source's
// own.
WeightTarget KeptAs(SourceType type);
// Whether nothing is rounded on the way.
bool IsExact(SourceType type, const WeightTarget& target);

// Index of the first NaN or infinity among n elements, for blocks that of the first element of one whose
// scale is none; -1: all are finite. in must be aligned to 4.
int64_t FirstNotFiniteElement(SourceType type, const uint8_t* in, int64_t n);

// n elements, a multiple of SourceBlock(type), as f32. in need not be aligned.
void DecodeElements(SourceType type, const uint8_t* in, int64_t n, float* out);
// The same of a model file, row major.
void DecodeStored(const WeightTarget& from, const uint8_t* codes, const uint16_t* scales, int64_t n,
                  float* out);

// Groups of `group` elements, n a multiple of it, symmetric (methods.md 4.3): Q = 127 or 7, scale = max|x| /
// Q rounded to f16 (1 if all are zero; at least the smallest f16), code = clamp(round half even(x / scale),
// -Q, Q). codes: int8 one a byte; int4 two a byte, low nibble first. Returns the index of the first element
// of a group that has a NaN, or whose scale exceeds f16; -1: all is coded.
int64_t EncodeInt8(const float* x, int64_t n, int32_t group, uint8_t* codes, uint16_t* scales);
int64_t EncodeInt4(const float* x, int64_t n, int32_t group, uint8_t* codes, uint16_t* scales);

// Whether the model file has the source's bytes as they are.
bool KeepsBytes(SourceType type, const WeightTarget& target);
// Whether KeepCodes goes from blocks of this type to the target.
bool KeepsCodes(SourceType type, const WeightTarget& target);
// The codes of blocks as the target has them, and their scales rounded to f16, which most are. Returns the
// index of the first element whose scale exceeds f16; -1: all is coded.
int64_t KeepCodes(SourceType type, const WeightTarget& target, const uint8_t* in, int64_t n, uint8_t* codes,
                  uint16_t* scales);

}  // namespace kvc

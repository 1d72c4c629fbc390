// Elements of weights from the form of a source into the form of a model file (lib/ops/tensor.h).
#pragma once
#include <cstdint>

#include "lib/base/status.h"
#include "models/convert/checkpoint.h"

namespace kvc {

constexpr int32_t kMaxGroup = 128;  // elements that share a scale

// Index of the first NaN or infinity among n elements, for blocks that of the first element of one whose
// scale is none; -1: all are finite. in must be aligned to 4.
int64_t FirstNotFiniteElement(SourceType type, const uint8_t* in, int64_t n);

// n elements, a multiple of SourceBlock(type), as f32. in need not be aligned.
void DecodeElements(SourceType type, const uint8_t* in, int64_t n, float* out);

// Groups of `group` elements, n a multiple of it, symmetric (methods.md 4.3): Q = 127 or 7, scale = max|x| /
// Q rounded to f16 (1 if all are zero; at least the smallest f16), code = clamp(round half even(x / scale),
// -Q, Q). codes: int8 one a byte; int4 two a byte, low nibble first. Returns the index of the first element
// of a group that has a NaN, or whose scale exceeds f16; -1: all is coded.
int64_t EncodeInt8(const float* x, int64_t n, int32_t group, uint8_t* codes, uint16_t* scales);
int64_t EncodeInt4(const float* x, int64_t n, int32_t group, uint8_t* codes, uint16_t* scales);

// GGUF blocks of 32 into codes and scales of the model file, groups of 32; values stay exactly what they
// were.
void RepackQ8_0(const uint8_t* in, int64_t n, uint8_t* codes, uint16_t* scales);
void RepackQ4_0(const uint8_t* in, int64_t n, uint8_t* codes, uint16_t* scales);

}  // namespace kvc

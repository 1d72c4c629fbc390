// Cache vectors in their stored forms (methods.md 4.3: symmetric, the f16 scale is rounded before it is
// used). A group of int8 or int4 in which something is no number has a scale that is none, and codes of 0.
#include <cmath>
#include <cstring>

#include "lib/base/half.h"
#include "lib/ops/ref/ref_kernels.h"

namespace kvc::ref {
namespace {

constexpr uint16_t kHalfNan = 0x7e00;

// max|x| of n elements, `stride` apart. *spoilt: 0, or a NaN where one is no number.
float LargestSize(const float* x, int32_t n, int64_t stride, float* spoilt) {
  float top = 0, off = 0;
  for (int32_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i * stride]);
    top = size > top ? size : top;
    off += size - size;
  }
  *spoilt = off;
  return top;
}

// In f16; the largest half where it would be infinite.
uint16_t FiniteHalf(float scale) { return FloatToF16(scale < kMostF16 ? scale : kMostF16); }

// The stored scale of one group of n elements, `stride` apart: max|x| / q_max; 1 where that is 0.
uint16_t GroupScale(const float* x, int32_t n, int64_t stride, float q_max) {
  float spoilt;
  const uint16_t half = FiniteHalf(LargestSize(x, n, stride, &spoilt) / q_max);
  if (std::isnan(spoilt)) return kHalfNan;
  return half == 0 ? uint16_t{0x3c00} : half;
}

int Code(float x, float scale, float q_max) {
  if (std::isnan(scale)) return 0;
  const float code = std::nearbyint(x / scale);
  return static_cast<int>(code >= -q_max ? (code <= q_max ? code : q_max) : -q_max);
}

// Of codes of two bits: of five steps below max|x| / 3 the one with the least squared error, the largest of
// equals. There is no code for 0, so the scale of a group of zeros is 0.
uint16_t TwoBitScale(const float* x, int32_t n) {
  float spoilt;  // not looked at: what is no number is limited, as sizes beyond halves are
  const float top = LargestSize(x, n, 1, &spoilt);
  uint16_t best = 0;
  float least = 0;
  for (int eighths = 8; eighths >= 4; --eighths) {
    const uint16_t half = FiniteHalf(top * (static_cast<float>(eighths) / 24.0f));
    const float scale = F16ToFloat(half);
    float error = 0;
    for (int32_t i = 0; i < n; ++i) {
      const float size = std::fabs(x[i]), off = size - (size >= 2 * scale ? 3 * scale : scale);
      error += off * off;
    }
    if (eighths == 8 || error < least) best = half, least = error;
  }
  return best;
}

void EncodeTwoBits(const VectorFormat& f, const float* x, uint8_t* out, uint16_t* scales) {
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    scales[g] = TwoBitScale(x + g * f.group, f.group);
    const float scale = F16ToFloat(scales[g]);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; ++i) {
      const bool outer = std::fabs(x[i]) >= 2 * scale;
      const int code = x[i] < 0 ? (outer ? 0 : 1) : (outer ? 3 : 2);
      const int before = i % 4 == 0 ? 0 : out[i / 4];
      out[i / 4] = static_cast<uint8_t>(before | code << (i % 4 * 2));
    }
  }
}

void EncodeCodes(const VectorFormat& f, const float* x, uint8_t* out, uint16_t* scales) {
  if (f.type == KvType::kInt2) return EncodeTwoBits(f, x, out, scales);
  const bool wide = f.type == KvType::kInt8;
  const float q_max = wide ? 127.0f : 7.0f;
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    scales[g] = GroupScale(x + g * f.group, f.group, 1, q_max);
    const float scale = F16ToFloat(scales[g]);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; ++i) {
      const int code = Code(x[i], scale, q_max);
      if (wide) {
        out[i] = static_cast<uint8_t>(code);
      } else if (i % 2 == 0) {
        out[i / 2] = static_cast<uint8_t>(code & 0xf);
      } else {
        out[i / 2] = static_cast<uint8_t>(out[i / 2] | (code & 0xf) << 4);
      }
    }
  }
}

void DecodeCodes(const VectorFormat& f, const uint8_t* in, const uint16_t* scales, float* x) {
  if (f.type == KvType::kInt2) {
    for (int32_t i = 0; i < f.d; ++i)
      x[i] = static_cast<float>((in[i / 4] >> (i % 4 * 2) & 3) * 2 - 3) * F16ToFloat(scales[i / f.group]);
    return;
  }
  const bool wide = f.type == KvType::kInt8;
  for (int32_t i = 0; i < f.d; ++i) {
    const int nibble = (in[wide ? i : i / 2] >> (i % 2 * 4)) & 0xf;
    const int code = wide ? static_cast<int8_t>(in[i]) : (nibble >= 8 ? nibble - 16 : nibble);
    x[i] = static_cast<float>(code) * F16ToFloat(scales[i / f.group]);
  }
}

}  // namespace

void EncodeVectors(const VectorFormat& f, const float* x, int32_t n, void* out, uint16_t* scales) {
  const int64_t count = int64_t{n} * f.d;
  uint16_t* halves = static_cast<uint16_t*>(out);
  switch (f.type) {
    case KvType::kF32:
      std::memcpy(out, x, sizeof(float) * static_cast<size_t>(count));
      return;
    case KvType::kF16:
      for (int64_t i = 0; i < count; ++i) halves[i] = FloatToF16(WithinF16(x[i]));
      return;
    case KvType::kBf16:
      for (int64_t i = 0; i < count; ++i) halves[i] = FloatToBf16(x[i]);
      return;
    case KvType::kInt8:
    case KvType::kInt4:
    case KvType::kInt2:
      for (int32_t v = 0; v < n; ++v)
        EncodeCodes(f, x + int64_t{v} * f.d, static_cast<uint8_t*>(out) + v * CodeBytes(f.type, f.d),
                    scales + int64_t{v} * (f.d / f.group));
      return;
  }
}

void DecodeVectors(const VectorFormat& f, const void* in, const uint16_t* scales, int32_t n, float* x) {
  const int64_t count = int64_t{n} * f.d;
  const uint16_t* halves = static_cast<const uint16_t*>(in);
  switch (f.type) {
    case KvType::kF32:
      std::memcpy(x, in, sizeof(float) * static_cast<size_t>(count));
      return;
    case KvType::kF16:
      for (int64_t i = 0; i < count; ++i) x[i] = F16ToFloat(halves[i]);
      return;
    case KvType::kBf16:
      for (int64_t i = 0; i < count; ++i) x[i] = Bf16ToFloat(halves[i]);
      return;
    case KvType::kInt8:
    case KvType::kInt4:
    case KvType::kInt2:
      for (int32_t v = 0; v < n; ++v)
        DecodeCodes(f, static_cast<const uint8_t*>(in) + v * CodeBytes(f.type, f.d),
                    scales + int64_t{v} * (f.d / f.group), x + int64_t{v} * f.d);
      return;
  }
}

void EncodeKeyBlock(KvType type, const float* x, int32_t n, int32_t d, uint8_t* codes, uint16_t* scales) {
  const bool wide = type == KvType::kInt8;
  const float q_max = wide ? 127.0f : 7.0f;
  for (int32_t c = 0; c < d; ++c) {
    scales[c] = GroupScale(x + c, n, d, q_max);
    const float scale = F16ToFloat(scales[c]);
    for (int32_t i = 0; i < n; ++i) {
      const int code = Code(x[int64_t{i} * d + c], scale, q_max);
      uint8_t* row = codes + i * CodeBytes(type, d);
      if (wide) {
        row[c] = static_cast<uint8_t>(code);
      } else if (c % 2 == 0) {
        row[c / 2] = static_cast<uint8_t>(code & 0xf);
      } else {
        row[c / 2] = static_cast<uint8_t>(row[c / 2] | (code & 0xf) << 4);
      }
    }
  }
}

// Channels in tiles, so that the scales are converted once and every row is a product of two short vectors.
void DecodeKeyBlock(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                    float* x) {
  constexpr int32_t kTile = 64;
  float scale[kTile];
  const bool wide = type == KvType::kInt8;
  for (int32_t first = 0; first < d; first += kTile) {
    const int32_t width = d - first < kTile ? d - first : kTile;
    for (int32_t c = 0; c < width; ++c) scale[c] = F16ToFloat(scales[first + c]);
    for (int32_t i = 0; i < n; ++i) {
      const uint8_t* row = codes + i * CodeBytes(type, d) + CodeBytes(type, first);
      float* out = x + int64_t{i} * d + first;
      if (wide) {
        for (int32_t c = 0; c < width; ++c)
          out[c] = static_cast<float>(static_cast<int8_t>(row[c])) * scale[c];
        continue;
      }
      for (int32_t c = 0; c < width; c += 2) {
        out[c] = static_cast<float>(static_cast<int8_t>(row[c / 2] << 4) >> 4) * scale[c];
        out[c + 1] = static_cast<float>(static_cast<int8_t>(row[c / 2]) >> 4) * scale[c + 1];
      }
    }
  }
}

}  // namespace kvc::ref

#include "models/convert/gguf_blocks.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "lib/base/half.h"
#include "lib/ops/weight_blocks.h"

namespace kvc {
namespace {

float Half(const uint8_t* p) { return F16ToFloat(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Two codes of four bits a byte: of each run of 2 * half elements the first half low, the second high.
void Nibbles(const uint8_t* in, int32_t n, int32_t half, int8_t* out) {
  for (int32_t at = 0; at < n; at += 2 * half, in += half, out += 2 * half) {
    for (int32_t i = 0; i < half; ++i) {
      out[i] = static_cast<int8_t>(in[i] & 15);
      out[half + i] = static_cast<int8_t>(in[i] >> 4);
    }
  }
}

void Subtract(int32_t n, int less, int8_t* code) {
  for (int32_t i = 0; i < n; ++i) code[i] = static_cast<int8_t>(code[i] - less);
}

// ---- blocks of 32, one scale ----

void UnpackQ4_0(const uint8_t* in, BlockCodes* out) {
  out->scale[0] = Half(in);
  Nibbles(in + 2, 32, 16, out->code);
  Subtract(32, 8, out->code);
}

void UnpackQ4_1(const uint8_t* in, BlockCodes* out) {
  out->scale[0] = Half(in), out->offset[0] = Half(in + 2);
  Nibbles(in + 4, 32, 16, out->code);
}

// The fifth bits of 32 elements stand together.
void FifthBits(const uint8_t* in, int8_t* code) {
  for (int32_t i = 0; i < 32; ++i) code[i] = static_cast<int8_t>(code[i] | (in[i / 8] >> (i % 8) & 1) << 4);
}

void UnpackQ5_0(const uint8_t* in, BlockCodes* out) {
  out->scale[0] = Half(in);
  Nibbles(in + 6, 32, 16, out->code);
  FifthBits(in + 2, out->code);
  Subtract(32, 16, out->code);
}

void UnpackQ5_1(const uint8_t* in, BlockCodes* out) {
  out->scale[0] = Half(in), out->offset[0] = Half(in + 2);
  Nibbles(in + 8, 32, 16, out->code);
  FifthBits(in + 4, out->code);
}

void UnpackQ8_0(const uint8_t* in, BlockCodes* out) {
  out->scale[0] = Half(in);
  for (int32_t i = 0; i < 32; ++i) out->code[i] = static_cast<int8_t>(in[2 + i]);
}

// Four bits choose one of sixteen values.
void LookUp(const int8_t* values, int32_t n, int8_t* code) {
  for (int32_t i = 0; i < n; ++i) code[i] = values[code[i]];
}

constexpr int8_t kNonLinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // e2m1, doubled

void UnpackIq4Nl(const uint8_t* in, BlockCodes* out) {
  out->scale[0] = Half(in);
  Nibbles(in + 2, 32, 16, out->code);
  LookUp(kNonLinear4, 32, out->code);
}

// The scale is a power of two, halved because the values are doubled.
void UnpackMxfp4(const uint8_t* in, BlockCodes* out) {
  const uint32_t e = in[0];
  out->scale[0] = BitsToFloat(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  Nibbles(in + 1, 32, 16, out->code);
  LookUp(kFp4, 32, out->code);
}

// ---- blocks of 256: scales of groups, themselves multiples of one or two f16 ----

void UnpackQ2K(const uint8_t* in, BlockCodes* out) {
  const uint8_t *scales = in, *q = in + 16;
  const float d = Half(in + 80), least = Half(in + 82);
  for (int32_t g = 0; g < 16; ++g) {
    out->scale[g] = d * static_cast<float>(scales[g] & 15);
    out->offset[g] = -(least * static_cast<float>(scales[g] >> 4));
  }
  for (int32_t i = 0; i < 256; ++i)
    out->code[i] = static_cast<int8_t>(q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3);
}

void UnpackQ3K(const uint8_t* in, BlockCodes* out) {
  const uint8_t *high = in, *q = in + 32, *scales = in + 96;
  const float d = Half(in + 108);
  for (int32_t g = 0; g < 16; ++g) {
    const int low = scales[g % 8] >> (g / 8 * 4) & 15, top = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    out->scale[g] = d * static_cast<float>((low | top << 4) - 32);
  }
  for (int32_t i = 0; i < 256; ++i) {
    const int low = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, bit = high[i % 32] >> (i / 32) & 1;
    out->code[i] = static_cast<int8_t>(low - (bit == 0 ? 4 : 0));
  }
}

// Those that the model file has too (lib/ops/weight_blocks.h).
template <WeightType type>
void UnpackKept(const uint8_t* in, BlockCodes* out) {
  WeightBlock block;
  ReadBlockOf(type, in, &block);
  std::memcpy(out->code, block.code, sizeof(block.code));
  for (int32_t g = 0; g < kBlockColumns / InfoOf(type).group; ++g)
    out->scale[g] = block.scale[g], out->offset[g] = -block.least[g];
}

void UnpackQ5K(const uint8_t* in, BlockCodes* out) {
  const float d = Half(in), least = Half(in + 2);
  uint8_t scale[8], low[8];
  ReadSixBits(in + 4, scale, low);
  for (int32_t g = 0; g < 8; ++g) {
    out->scale[g] = d * static_cast<float>(scale[g]);
    out->offset[g] = -(least * static_cast<float>(low[g]));
  }
  Nibbles(in + 48, 256, 32, out->code);
  const uint8_t* fifth = in + 16;
  for (int32_t i = 0; i < 256; ++i)
    out->code[i] = static_cast<int8_t>(out->code[i] | (fifth[i % 32] >> (i / 32) & 1) << 4);
}

void UnpackIq4Xs(const uint8_t* in, BlockCodes* out) {
  const float d = Half(in);
  const int top = in[2] | in[3] << 8;
  for (int32_t g = 0; g < 8; ++g) {
    const int scale = (in[4 + g / 2] >> (g % 2 * 4) & 15) | (top >> (2 * g) & 3) << 4;
    out->scale[g] = d * static_cast<float>(scale - 32);
  }
  Nibbles(in + 8, 256, 16, out->code);
  LookUp(kNonLinear4, 256, out->code);
}

using S = SourceType;
constexpr BlockFormat kFormats[] = {
    {S::kQ4_0, 2, 32, 18, 32, false, -8, 7, 0, 1, UnpackQ4_0},
    {S::kQ4_1, 3, 32, 20, 32, true, 0, 15, 0, 2, UnpackQ4_1},
    {S::kQ5_0, 6, 32, 22, 32, false, -16, 15, 0, 1, UnpackQ5_0},
    {S::kQ5_1, 7, 32, 24, 32, true, 0, 31, 0, 2, UnpackQ5_1},
    {S::kQ8_0, 8, 32, 34, 32, false, -128, 127, 0, 1, UnpackQ8_0},
    {S::kQ2_K, 10, 256, 84, 16, true, 0, 3, 80, 2, UnpackQ2K},
    {S::kQ3_K, 11, 256, 110, 16, false, -4, 3, 108, 1, UnpackQ3K},
    {S::kQ4_K, 12, 256, 144, 32, true, 0, 15, 0, 2, UnpackKept<WeightType::kQ4K>},
    {S::kQ5_K, 13, 256, 176, 32, true, 0, 31, 0, 2, UnpackQ5K},
    {S::kQ6_K, 14, 256, 210, 16, false, -32, 31, 208, 1, UnpackKept<WeightType::kQ6K>},
    {S::kIq4Nl, 20, 32, 18, 32, false, -127, 113, 0, 1, UnpackIq4Nl},
    {S::kIq4Xs, 23, 256, 136, 32, false, -127, 113, 0, 1, UnpackIq4Xs},
    {S::kMxfp4, 39, 32, 17, 32, false, -12, 12, 0, 0, UnpackMxfp4},
};

// What is made of packed weights: a scale, then a byte a code.
void UnpackBytes(const uint8_t* in, BlockCodes* out, int32_t n) {
  out->scale[0] = Half(in);
  std::memcpy(out->code, in + 2, static_cast<size_t>(n));
}
template <int32_t n>
void UnpackBytes(const uint8_t* in, BlockCodes* out) {
  UnpackBytes(in, out, n);
}

constexpr BlockFormat kPackedFormats[] = {
    {S::kNear128, 0, 128, 130, 128, false, -8, 7, 0, 1, UnpackBytes<128>},
    {S::kNear64, 0, 64, 66, 64, false, -8, 7, 0, 1, UnpackBytes<64>},
    {S::kNear32, 0, 32, 34, 32, false, -8, 7, 0, 1, UnpackBytes<32>},
    {S::kFar128, 0, 128, 130, 128, false, -15, 15, 0, 1, UnpackBytes<128>},
    {S::kFar64, 0, 64, 66, 64, false, -15, 15, 0, 1, UnpackBytes<64>},
    {S::kFar32, 0, 32, 34, 32, false, -15, 15, 0, 1, UnpackBytes<32>},
};

}  // namespace

Span<const BlockFormat> BlockFormats() { return {kFormats, std::size(kFormats)}; }

const BlockFormat* BlockFormatOf(SourceType type) {
  for (const Span<const BlockFormat> formats :
       {BlockFormats(), Span<const BlockFormat>(kPackedFormats, std::size(kPackedFormats))}) {
    const auto* found =
        std::find_if(formats.begin(), formats.end(), [type](const BlockFormat& f) { return f.type == type; });
    if (found != formats.end()) return found;
  }
  return nullptr;
}

}  // namespace kvc

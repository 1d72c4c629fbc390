#include "models/convert/weight_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/base/half.h"
#include "lib/model/model_check.h"

namespace kvc {
namespace {

constexpr int kQ8Bytes = 34, kQ4Bytes = 18;  // of a block of 32: f16 scale, then codes

uint16_t Read16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// Q4_0 keeps codes 0 .. 15 that stand for -8 .. 7: elements 0 .. 15 in the low nibbles, 16 .. 31 in the high
// ones.
int Q4Code(const uint8_t* block, int i) { return (i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4) - 8; }

// Codes of one group into q; false: not finite, or the scale exceeds f16.
bool EncodeGroup(const float* x, int32_t group, float limit, int8_t* q, uint16_t* scale_bits) {
  float max = 0;
  for (int32_t i = 0; i < group; ++i) {
    if (!std::isfinite(x[i])) return false;
    max = std::max(max, std::fabs(x[i]));
  }
  uint16_t bits = max == 0 ? FloatToF16(1.0f) : FloatToF16(max / limit);
  if (bits == 0) bits = 1;  // the smallest f16: coarse, but not a division by zero
  const float scale = F16ToFloat(bits);
  if (!std::isfinite(scale)) return false;
  for (int32_t i = 0; i < group; ++i) {
    q[i] = static_cast<int8_t>(std::min(std::max(std::nearbyint(x[i] / scale), -limit), limit));
  }
  *scale_bits = bits;
  return true;
}

uint8_t PackNibbles(int low, int high) { return static_cast<uint8_t>((low & 15) | (high & 15) << 4); }

int64_t FirstBadScale(const uint8_t* in, int64_t n, int block_bytes) {
  for (int64_t b = 0; b < n / 32; ++b) {
    if (!std::isfinite(F16ToFloat(Read16(in + b * block_bytes)))) return b * 32;
  }
  return -1;
}

}  // namespace

int64_t FirstNotFiniteElement(SourceType type, const uint8_t* in, int64_t n) {
  switch (type) {
    case SourceType::kF32:
      return FirstNotFinite(WeightType::kF32, in, n);
    case SourceType::kF16:
      return FirstNotFinite(WeightType::kF16, in, n);
    case SourceType::kBf16:
      return FirstNotFinite(WeightType::kBf16, in, n);
    case SourceType::kQ8_0:
      return FirstBadScale(in, n, kQ8Bytes);
    case SourceType::kQ4_0:
      return FirstBadScale(in, n, kQ4Bytes);
  }
  return -1;
}

void DecodeElements(SourceType type, const uint8_t* in, int64_t n, float* out) {
  switch (type) {
    case SourceType::kF32:
      std::memcpy(out, in, static_cast<size_t>(n) * 4);
      return;
    case SourceType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = F16ToFloat(Read16(in + 2 * i));
      return;
    case SourceType::kBf16:
      for (int64_t i = 0; i < n; ++i) out[i] = Bf16ToFloat(Read16(in + 2 * i));
      return;
    case SourceType::kQ8_0:
      for (int64_t b = 0; b < n / 32; ++b, in += kQ8Bytes) {
        const float scale = F16ToFloat(Read16(in));
        for (int i = 0; i < 32; ++i) *out++ = static_cast<float>(static_cast<int8_t>(in[2 + i])) * scale;
      }
      return;
    case SourceType::kQ4_0:
      for (int64_t b = 0; b < n / 32; ++b, in += kQ4Bytes) {
        const float scale = F16ToFloat(Read16(in));
        for (int i = 0; i < 32; ++i) *out++ = static_cast<float>(Q4Code(in, i)) * scale;
      }
      return;
  }
}

int64_t EncodeInt8(const float* x, int64_t n, int32_t group, uint8_t* codes, uint16_t* scales) {
  for (int64_t at = 0; at < n; at += group) {
    if (!EncodeGroup(x + at, group, 127.0f, reinterpret_cast<int8_t*>(codes + at), scales++)) return at;
  }
  return -1;
}

int64_t EncodeInt4(const float* x, int64_t n, int32_t group, uint8_t* codes, uint16_t* scales) {
  int8_t q[kMaxGroup];
  for (int64_t at = 0; at < n; at += group) {
    if (!EncodeGroup(x + at, group, 7.0f, q, scales++)) return at;
    for (int32_t i = 0; i < group; i += 2) *codes++ = PackNibbles(q[i], q[i + 1]);
  }
  return -1;
}

void RepackQ8_0(const uint8_t* in, int64_t n, uint8_t* codes, uint16_t* scales) {
  for (int64_t b = 0; b < n / 32; ++b, in += kQ8Bytes, codes += 32) {
    *scales++ = Read16(in);
    std::memcpy(codes, in + 2, 32);
  }
}

void RepackQ4_0(const uint8_t* in, int64_t n, uint8_t* codes, uint16_t* scales) {
  for (int64_t b = 0; b < n / 32; ++b, in += kQ4Bytes) {
    *scales++ = Read16(in);
    for (int i = 0; i < 32; i += 2) *codes++ = PackNibbles(Q4Code(in, i), Q4Code(in, i + 1));
  }
}

}  // namespace kvc

#include "models/convert/weight_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/base/half.h"
#include "lib/model/model_check.h"
#include "models/convert/gguf_blocks.h"

namespace kvc {
namespace {

uint16_t Read16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// Codes of one group into q; false: not finite, or the scale exceeds f16.
bool EncodeGroup(const float* x, int32_t group, float limit, int8_t* q, uint16_t* scale_bits) {
  // Sizes are ordered as their bits are; so the loop vectorises.
  int32_t max_bits = 0;
  for (int32_t i = 0; i < group; ++i) {
    int32_t size;
    std::memcpy(&size, x + i, sizeof(size));
    size &= 0x7fffffff;
    max_bits = size > max_bits ? size : max_bits;
  }
  if (max_bits >= 0x7f800000) return false;
  const float max = BitsToFloat(static_cast<uint32_t>(max_bits));
  uint16_t bits = max == 0 ? FloatToF16(1.0f) : FloatToF16(max / limit);
  if (bits == 0) bits = 1;  // the smallest f16: coarse, but not a division by zero
  const float scale = F16ToFloat(bits);
  if (!std::isfinite(scale)) return false;
  constexpr float kRound = 12582912;  // 1.5 * 2^23: adding it leaves no room for a fraction, half to even
  // Rounded first, at most 2 * limit as f16 goes, then clamped as whole numbers: without jumps both loops
  // vectorise.
  const int32_t most = static_cast<int32_t>(limit);
  int32_t codes[kMaxGroup];
  for (int32_t i = 0; i < group; ++i) codes[i] = static_cast<int32_t>((x[i] / scale + kRound) - kRound);
  for (int32_t i = 0; i < group; ++i) {
    const int32_t low = codes[i] < most ? codes[i] : most;
    q[i] = static_cast<int8_t>(low > -most ? low : -most);
  }
  *scale_bits = bits;
  return true;
}

uint8_t PackNibbles(int low, int high) { return static_cast<uint8_t>((low & 15) | (high & 15) << 4); }

int SignedNibble(int bits) { return ((bits & 15) ^ 8) - 8; }

bool IsFinite(const BlockFormat& format, const BlockCodes& block) {
  const float largest = static_cast<float>(std::max(-format.least, int{format.most}));
  for (int32_t g = 0; g < format.elements / format.group; ++g) {
    if (!std::isfinite(block.scale[g] * largest)) return false;
    if (format.has_offset && !std::isfinite(block.offset[g])) return false;
  }
  return true;
}

int64_t FirstBadBlock(const BlockFormat& format, const uint8_t* in, int64_t n) {
  if (format.n_halves > 0) {  // all else are whole numbers of few bits
    for (int64_t at = 0; at < n; at += format.elements, in += format.bytes) {
      for (int i = 0; i < format.n_halves; ++i) {
        if ((Read16(in + format.halves + 2 * i) & 0x7c00) == 0x7c00) return at;
      }
    }
    return -1;
  }
  BlockCodes block;
  for (int64_t at = 0; at < n; at += format.elements, in += format.bytes) {
    format.unpack(in, &block);
    if (!IsFinite(format, block)) return at;
  }
  return -1;
}

void DecodeBlocks(const BlockFormat& format, const uint8_t* in, int64_t n, float* out) {
  BlockCodes block;
  for (int64_t at = 0; at < n; at += format.elements, in += format.bytes) {
    format.unpack(in, &block);
    const int8_t* code = block.code;
    for (int32_t g = 0; g < format.elements / format.group; ++g) {
      const float scale = block.scale[g], offset = block.offset[g];
      if (format.has_offset) {
        for (int32_t i = 0; i < format.group; ++i) *out++ = scale * static_cast<float>(*code++) + offset;
      } else {
        for (int32_t i = 0; i < format.group; ++i) *out++ = scale * static_cast<float>(*code++);
      }
    }
  }
}

}  // namespace

WeightTarget KeptAs(SourceType type) {
  const BlockFormat* format = BlockFormatOf(type);
  if (type == SourceType::kQ4_K) return {WeightType::kQ4K, InfoOf(WeightType::kQ4K).group};
  if (type == SourceType::kQ6_K) return {WeightType::kQ6K, InfoOf(WeightType::kQ6K).group};
  if (type == SourceType::kUnordered4) return {WeightType::kInt8, 32};
  if (format == nullptr) {
    return {type == SourceType::kF32   ? WeightType::kF32
            : type == SourceType::kF16 ? WeightType::kF16
                                       : WeightType::kBf16,
            0};
  }
  if (format->has_offset) return {WeightType::kInt8, 32};
  return {format->least >= -8 && format->most <= 7 ? WeightType::kInt4 : WeightType::kInt8, format->group};
}

bool KeepsBytes(SourceType type, const WeightTarget& target) {
  return target == KeptAs(type) && (BlockFormatOf(type) == nullptr || HasBlocks(target.type)) &&
         type != SourceType::kUnordered4;
}

bool KeepsCodes(SourceType type, const WeightTarget& target) {
  const BlockFormat* format = BlockFormatOf(type);
  return format != nullptr && !format->has_offset && target == KeptAs(type) && !HasBlocks(target.type);
}

bool IsExact(SourceType type, const WeightTarget& target) {
  const BlockFormat* format = BlockFormatOf(type);
  if (target.type == WeightType::kF32 || KeepsBytes(type, target)) return true;
  if (format == nullptr) return false;
  // A block with one scale has it as f16, but for MXFP4's powers of two.
  return KeepsCodes(type, target) && format->elements == format->group && type != SourceType::kMxfp4;
}

int64_t FirstNotFiniteElement(SourceType type, const uint8_t* in, int64_t n) {
  switch (type) {
    case SourceType::kF32:
    case SourceType::kUnordered4:
      return FirstNotFinite(WeightType::kF32, in, n);
    case SourceType::kF16:
      return FirstNotFinite(WeightType::kF16, in, n);
    case SourceType::kBf16:
      return FirstNotFinite(WeightType::kBf16, in, n);
    default:
      return FirstBadBlock(*BlockFormatOf(type), in, n);
  }
}

void DecodeElements(SourceType type, const uint8_t* in, int64_t n, float* out) {
  switch (type) {
    case SourceType::kF32:
    case SourceType::kUnordered4:
      std::memcpy(out, in, static_cast<size_t>(n) * 4);
      return;
    case SourceType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = F16ToFloat(Read16(in + 2 * i));
      return;
    case SourceType::kBf16:
      for (int64_t i = 0; i < n; ++i) out[i] = Bf16ToFloat(Read16(in + 2 * i));
      return;
    default:
      return DecodeBlocks(*BlockFormatOf(type), in, n, out);
  }
}

void DecodeStored(const WeightTarget& from, const uint8_t* codes, const uint16_t* scales, int64_t n,
                  float* out) {
  switch (from.type) {
    case WeightType::kF32:
      return DecodeElements(SourceType::kF32, codes, n, out);
    case WeightType::kF16:
      return DecodeElements(SourceType::kF16, codes, n, out);
    case WeightType::kBf16:
      return DecodeElements(SourceType::kBf16, codes, n, out);
    case WeightType::kQ4K:
      return DecodeElements(SourceType::kQ4_K, codes, n, out);
    case WeightType::kQ6K:
      return DecodeElements(SourceType::kQ6_K, codes, n, out);
    case WeightType::kInt8:
    case WeightType::kInt4:
      break;
  }
  for (int64_t at = 0; at < n; at += from.group, ++scales) {
    const float scale = F16ToFloat(*scales);
    for (int64_t i = at; i < at + from.group; ++i) {
      const int code = from.type == WeightType::kInt8 ? static_cast<int8_t>(codes[i])
                                                      : SignedNibble(codes[i / 2] >> (i % 2 * 4));
      out[i] = static_cast<float>(code) * scale;
    }
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

int64_t KeepCodes(SourceType type, const WeightTarget& target, const uint8_t* in, int64_t n, uint8_t* codes,
                  uint16_t* scales) {
  const BlockFormat& format = *BlockFormatOf(type);
  BlockCodes block;
  for (int64_t at = 0; at < n; at += format.elements, in += format.bytes) {
    format.unpack(in, &block);
    for (int32_t g = 0; g < format.elements / format.group; ++g) {
      *scales = FloatToF16(block.scale[g]);
      if (!std::isfinite(F16ToFloat(*scales++))) return at + int64_t{g} * format.group;
    }
    if (target.type == WeightType::kInt8) {
      std::memcpy(codes, block.code, static_cast<size_t>(format.elements));
      codes += format.elements;
    } else {
      for (int32_t i = 0; i < format.elements; i += 2)
        *codes++ = PackNibbles(block.code[i], block.code[i + 1]);
    }
  }
  return -1;
}

}  // namespace kvc

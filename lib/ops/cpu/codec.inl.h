// Cache vectors <-> stored form. Bound by memory: 4 bytes an element on the f32 side, 4, 2, 1 or 1/2 on the
// other.
#pragma once

// Whole vectors of groups: codes, then f16 scales. See lib/ops/ref/codec.cc for the rules of the scale.
inline void EncodeCodes(const VectorFormat& f, const float* x, uint8_t* out, uint16_t* scales) {
  const bool wide = f.type == KvType::kInt8;
  const float q_max = wide ? 127.0f : 7.0f;
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    const float* in = x + g * f.group;
    const float wanted = LargestAbs(in, f.group) / q_max;
    uint16_t half;
    StoreF16N(&half, 1, Set(wanted < 65504.0f ? wanted : 65504.0f));
    if (half == 0) half = 0x3c00;
    scales[g] = half;
    const F scale = SetF16(half);
    for (int32_t i = 0; i < f.group; i += kWidth) {
      const int n = Least(kWidth, f.group - i);
      const F codes = Codes(LoadN(in + i, n), scale, Set(q_max));
      int8_t bytes[kWidth];
      int8_t* to = wide ? reinterpret_cast<int8_t*>(out) + g * f.group + i : bytes;
      StoreI8N(to, n, codes);
      for (int j = 0; !wide && j < n; j += 2) {
        out[(g * f.group + i + j) / 2] = static_cast<uint8_t>((bytes[j] & 0xf) | (bytes[j + 1] & 0xf) << 4);
      }
    }
  }
}

// Groups of whole vectors, as heads of any usual size have: a step decodes every page it reads.
template <bool wide>
inline void DecodeWholeGroups(const VectorFormat& f, const uint8_t* in, const uint16_t* scales, float* x) {
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    const F scale = SetF16(scales[g]);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; i += kWidth)
      Store(x + i, Mul(wide ? LoadI8(in + i) : LoadI4(in + i / 2), scale));
  }
}

inline void DecodeCodes(const VectorFormat& f, const uint8_t* in, const uint16_t* scales, float* x) {
  const bool wide = f.type == KvType::kInt8;
  if (f.group % kWidth == 0)
    return wide ? DecodeWholeGroups<true>(f, in, scales, x) : DecodeWholeGroups<false>(f, in, scales, x);
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    const F scale = SetF16(scales[g]);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; i += kWidth) {
      const int n = Least(kWidth, (g + 1) * f.group - i);
      int8_t bytes[kWidth];
      for (int j = 0; !wide && j < n; j += 2) {
        const uint8_t pair = in[(i + j) / 2];
        bytes[j] = static_cast<int8_t>(static_cast<int8_t>(pair << 4) >> 4);
        bytes[j + 1] = static_cast<int8_t>(static_cast<int8_t>(pair) >> 4);
      }
      StoreN(x + i, n, Mul(LoadI8N(wide ? reinterpret_cast<const int8_t*>(in) + i : bytes, n), scale));
    }
  }
}

inline int64_t CodesOf(const VectorFormat& f) { return f.type == KvType::kInt8 ? f.d : f.d / 2; }

inline void EncodeVectors(const VectorFormat& f, const float* x, int32_t n, void* out, uint16_t* scales) {
  const int64_t count = static_cast<int64_t>(n) * f.d;
  uint16_t* halves = static_cast<uint16_t*>(out);
  if (f.type == KvType::kF32) {
    __builtin_memcpy(out, x, sizeof(float) * static_cast<uint64_t>(count));
  } else if (f.type == KvType::kInt8 || f.type == KvType::kInt4) {
    uint8_t* to = static_cast<uint8_t*>(out);
    for (int64_t v = 0; v < n; ++v)
      EncodeCodes(f, x + v * f.d, to + v * CodesOf(f), scales + v * (f.d / f.group));
  } else {
    for (int64_t i = 0; i < count; i += kWidth) {
      const int m = count - i < kWidth ? static_cast<int>(count - i) : kWidth;
      const F value = LoadN(x + i, m);
      f.type == KvType::kF16 ? StoreF16N(halves + i, m, value) : StoreBf16N(halves + i, m, value);
    }
  }
}

inline void DecodeVectors(const VectorFormat& f, const void* in, const uint16_t* scales, int32_t n,
                          float* x) {
  const int64_t count = static_cast<int64_t>(n) * f.d;
  const uint16_t* halves = static_cast<const uint16_t*>(in);
  if (f.type == KvType::kF32) {
    __builtin_memcpy(x, in, sizeof(float) * static_cast<uint64_t>(count));
  } else if (f.type == KvType::kInt8 || f.type == KvType::kInt4) {
    const uint8_t* from = static_cast<const uint8_t*>(in);
    for (int64_t v = 0; v < n; ++v)
      DecodeCodes(f, from + v * CodesOf(f), scales + v * (f.d / f.group), x + v * f.d);
  } else {
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth)
      Store(x + i, f.type == KvType::kF16 ? LoadF16(halves + i) : LoadBf16(halves + i));
    const int m = static_cast<int>(count - i);
    if (m > 0) StoreN(x + i, m, f.type == KvType::kF16 ? LoadF16N(halves + i, m) : LoadBf16N(halves + i, m));
  }
}

// Rows of keys whose channels have scales: a vector of channels down the rows.
template <bool wide>
inline void DecodeKeyChannels(const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d, float* x) {
  const int64_t row = wide ? d : d / 2;
  for (int32_t c = 0; c < d; c += kWidth) {
    const F scale = LoadF16(scales + c);
    const uint8_t* at = codes + (wide ? c : c / 2);
    for (int32_t i = 0; i < n; ++i)
      Store(x + int64_t{i} * d + c, Mul(wide ? LoadI8(at + i * row) : LoadI4(at + i * row), scale));
  }
}

inline void DecodeKeyBlock(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                           float* x) {
  if (d % kWidth != 0) return ref::DecodeKeyBlock(type, codes, scales, n, d, x);
  type == KvType::kInt8 ? DecodeKeyChannels<true>(codes, scales, n, d, x)
                        : DecodeKeyChannels<false>(codes, scales, n, d, x);
}

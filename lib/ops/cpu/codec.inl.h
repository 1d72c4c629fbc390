// Cache vectors <-> stored form. Bound by memory: 4 bytes an element on the f32 side, 4, 2, 1, 1/2 or 1/4 on
// the other.
#pragma once

constexpr int32_t CodesAByte(KvType type) {
  return type == KvType::kInt8 ? 1 : type == KvType::kInt4 ? 2 : 4;
}

// Codes j to j + kWidth of a row, as numbers.
template <KvType type>
inline F LoadCodes(const uint8_t* row, int32_t j) {
  const uint8_t* at = row + j / CodesAByte(type);
  return type == KvType::kInt8 ? LoadI8(at) : type == KvType::kInt4 ? LoadI4(at) : LoadI2(at);
}
inline int CodeAt(KvType type, const uint8_t* row, int32_t j) {
  if (type == KvType::kInt8) return static_cast<int8_t>(row[j]);
  if (type == KvType::kInt2) return (row[j / 4] >> (j % 4 * 2) & 3) * 2 - 3;
  return static_cast<int8_t>(static_cast<uint8_t>(row[j / 2] << (j % 2 == 0 ? 4 : 0))) >> 4;
}

// Whole vectors of groups: codes, then f16 scales. See lib/ops/ref/codec.cc for the rules of the scale.
inline void EncodeCodes(const VectorFormat& f, const float* x, uint8_t* out, uint16_t* scales) {
  const bool wide = f.type == KvType::kInt8;
  const float q_max = wide ? 127.0f : 7.0f;
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    const float* in = x + g * f.group;
    const float wanted = LargestAbs(in, f.group) / q_max;
    if (wanted != wanted) {  // something is no number
      const int32_t a_byte = CodesAByte(f.type);
      scales[g] = 0x7e00;
      __builtin_memset(out + g * f.group / a_byte, 0, static_cast<uint64_t>(f.group / a_byte));
      continue;
    }
    uint16_t half;
    StoreF16N(&half, 1, Set(wanted < kMostF16 ? wanted : kMostF16));
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
template <KvType type>
inline void DecodeWholeGroups(const VectorFormat& f, const uint8_t* in, const uint16_t* scales, float* x) {
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    const F scale = SetF16(scales[g]);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; i += kWidth)
      Store(x + i, Mul(LoadCodes<type>(in, i), scale));
  }
}

inline void DecodeCodes(const VectorFormat& f, const uint8_t* in, const uint16_t* scales, float* x) {
  if (f.group % kWidth == 0) {
    if (f.type == KvType::kInt8) return DecodeWholeGroups<KvType::kInt8>(f, in, scales, x);
    if (f.type == KvType::kInt4) return DecodeWholeGroups<KvType::kInt4>(f, in, scales, x);
    return DecodeWholeGroups<KvType::kInt2>(f, in, scales, x);
  }
  for (int32_t g = 0; g * f.group < f.d; ++g) {
    const F scale = SetF16(scales[g]);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; i += kWidth) {
      const int n = Least(kWidth, (g + 1) * f.group - i);
      int8_t codes[kWidth];
      for (int j = 0; j < n; ++j) codes[j] = static_cast<int8_t>(CodeAt(f.type, in, i + j));
      StoreN(x + i, n, Mul(LoadI8N(codes, n), scale));
    }
  }
}

inline int64_t CodesOf(const VectorFormat& f) { return f.d / CodesAByte(f.type); }
inline bool StoresCodes(KvType type) {
  return type == KvType::kInt8 || type == KvType::kInt4 || type == KvType::kInt2;
}

inline void EncodeVectors(const VectorFormat& f, const float* x, int32_t n, void* out, uint16_t* scales) {
  const int64_t count = static_cast<int64_t>(n) * f.d;
  uint16_t* halves = static_cast<uint16_t*>(out);
  // Five scales are tried, in the order of the definition.
  if (f.type == KvType::kInt2) return ref::EncodeVectors(f, x, n, out, scales);
  if (f.type == KvType::kF32) {
    __builtin_memcpy(out, x, sizeof(float) * static_cast<uint64_t>(count));
  } else if (StoresCodes(f.type)) {
    uint8_t* to = static_cast<uint8_t*>(out);
    for (int64_t v = 0; v < n; ++v)
      EncodeCodes(f, x + v * f.d, to + v * CodesOf(f), scales + v * (f.d / f.group));
  } else {
    for (int64_t i = 0; i < count; i += kWidth) {
      const int m = count - i < kWidth ? static_cast<int>(count - i) : kWidth;
      const F value = m == kWidth ? Load(x + i) : LoadN(x + i, m);
      // The second of Min and Max is what is no number.
      f.type == KvType::kF16 ? StoreF16N(halves + i, m, Max(Set(-kMostF16), Min(Set(kMostF16), value)))
                             : StoreBf16N(halves + i, m, value);
    }
  }
}

inline void DecodeVectors(const VectorFormat& f, const void* in, const uint16_t* scales, int32_t n,
                          float* x) {
  const int64_t count = static_cast<int64_t>(n) * f.d;
  const uint16_t* halves = static_cast<const uint16_t*>(in);
  if (f.type == KvType::kF32) {
    __builtin_memcpy(x, in, sizeof(float) * static_cast<uint64_t>(count));
  } else if (StoresCodes(f.type)) {
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
template <KvType type>
inline void DecodeKeyChannels(const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d, float* x) {
  const int64_t row = d / CodesAByte(type);
  for (int32_t c = 0; c < d; c += kWidth) {
    const F scale = LoadF16(scales + c);
    for (int32_t i = 0; i < n; ++i)
      Store(x + int64_t{i} * d + c, Mul(LoadCodes<type>(codes + i * row, c), scale));
  }
}

inline void DecodeKeyBlock(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                           float* x) {
  if (d % kWidth != 0) return ref::DecodeKeyBlock(type, codes, scales, n, d, x);
  type == KvType::kInt8 ? DecodeKeyChannels<KvType::kInt8>(codes, scales, n, d, x)
                        : DecodeKeyChannels<KvType::kInt4>(codes, scales, n, d, x);
}

// One step's attention of the query heads that share a KV head, over cached entries of f32, f16 or bf16, or
// codes, which are widened where they are used.
//
// Channels are lanes. Logits: 4 entries x up to kTileHeads heads a tile; weights; then values, entry by
// entry, for all heads of the tile at once. Entries are taken 64 at a time. Model, per entry: 2 D stored
// elements read once a kTileHeads heads, 4 D flops and one exp a head: bound by memory (2 flops a byte and
// head at 16 bits) until several heads share the entry.
#pragma once

constexpr int32_t kTileEntries = 64;
constexpr int kValueVectors = 4;

struct HeadTile {
  alignas(64) float z[kTileHeads][kTileEntries];
  float keep[kTileHeads];
};

constexpr int kTogether = 4;  // entries of a tile of logits, and between two looks ahead

// Lines to ask for, in equal shares, while n entries are worked on. Processors do not do so beyond the end of
// a page of theirs, and runs of entries lie anywhere.
struct LinesAhead {
  LinesAhead(const AttendTileArgs::Next& next, int32_t n)
      : at(next.at), lines((next.bytes + 63) / 64), share((kTogether * lines + n - 1) / n) {}
  void AskAt(int32_t entry) const {
    const int64_t first = entry / kTogether * share, end = first + share < lines ? first + share : lines;
    for (int64_t i = first; i < end; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
  }
  const uint8_t* at;
  int64_t lines, share;
};

// Vectors of a tile: row i, and of a row the numbers from j on.
template <typename Type>
struct FloatVectors {
  struct Row {
    const typename Type::T* at;
    F Wide(int32_t j) const { return Type::Wide(at + j); }
    F WideN(int32_t j, int n) const { return Type::WideN(at + j, n); }
  };
  Row operator[](int32_t i) const { return {at + static_cast<int64_t>(i) * d}; }
  const typename Type::T* at;
  int32_t d;
};

// Groups are whole vectors of the processor, and so are rows. The products of a code and its scale are those
// of DecodeVectors.
template <KvType type>
struct CodeVectors {
  struct Row {
    const uint8_t* codes;
    const uint16_t* scales;
    int shift;
    F Wide(int32_t j) const { return Mul(LoadCodes<type>(codes, j), SetF16(scales[j >> shift])); }
    F WideN(int32_t j, int) const { return Wide(j); }
  };
  CodeVectors(const void* at, const uint16_t* of, const AttendTileArgs& a)
      : codes(static_cast<const uint8_t*>(at)),
        scales(of),
        d(a.d),
        shift(__builtin_ctz(static_cast<unsigned>(a.group))) {}
  Row operator[](int32_t i) const {
    const int64_t at = static_cast<int64_t>(i) * d;
    return {codes + at / CodesAByte(type), scales + (at >> shift), shift};
  }
  const uint8_t* codes;
  const uint16_t* scales;
  int32_t d;
  int shift;
};

// z[h][t] = q[head + h] . k[t], unscaled, for G heads and n entries from `entry`.
template <typename Vectors, int G>
inline void TileLogits(const AttendTileArgs& a, const Vectors& k, int32_t head, int32_t entry, int32_t n,
                       HeadTile* tile) {
  const float* q = a.q + static_cast<int64_t>(head) * a.d;
  const LinesAhead ahead(a.next_keys, a.n);
  for (int32_t t = 0; t < n; t += kTogether) {
    F acc[G][kTogether];
    for (int h = 0; h < G; ++h) {
      for (int e = 0; e < kTogether; ++e) acc[h][e] = Zero();
    }
    if (head == 0) ahead.AskAt(entry + t);
    typename Vectors::Row key[kTogether];
    for (int e = 0; e < kTogether; ++e) key[e] = k[entry + Least(t + e, n - 1)];
    int32_t j = 0;
    for (; j + kWidth <= a.d; j += kWidth) {
      F query[G];
      for (int h = 0; h < G; ++h) query[h] = Load(q + h * a.d + j);
      for (int e = 0; e < kTogether; ++e) {
        const F wide = key[e].Wide(j);
        for (int h = 0; h < G; ++h) acc[h][e] = Fma(query[h], wide, acc[h][e]);
      }
    }
    if (j < a.d) {
      for (int e = 0; e < kTogether; ++e) {
        const F wide = key[e].WideN(j, a.d - j);
        for (int h = 0; h < G; ++h) acc[h][e] = Fma(LoadN(q + h * a.d + j, a.d - j), wide, acc[h][e]);
      }
    }
    for (int h = 0; h < G; ++h) {
      Sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3], &tile->z[h][t]);
    }
  }
}

// Unscaled logits of head h -> weights; hidden entries get none. Updates m and l, sets keep. False: no entry
// is visible.
inline bool WeighTile(const AttendTileArgs& a, int32_t head, int32_t entry, int32_t n, float* z,
                      float* keep) {
  const F scale = Set(a.scale);
  const int32_t end = (n + kWidth - 1) / kWidth * kWidth;  // pages are small where few entries are cached
  for (int32_t t = n; t < end; ++t) z[t] = 0;
  for (int32_t t = 0; t < n; t += kWidth) {
    const F logit = Mul(Load(z + t), scale);
    Store(z + t, a.cap > 0 ? Capped(logit, a.cap) : logit);
  }
  if (entry == 0) z[0] += a.first_logit;
  if (a.visible != nullptr) {
    const uint8_t* visible = a.visible + head * a.visible_stride + entry;
    for (int32_t t = 0; t < n; ++t) {
      if (visible[t] == 0) z[t] = -kInfinity;
    }
  }
  if (a.logits != nullptr) {
    float* out = a.logits + head * a.logits_stride + entry;
    for (int32_t t = 0; t < n; ++t) out[t] = z[t];
  }
  for (int32_t t = n; t < end; ++t) z[t] = -kInfinity;
  F top = Set(a.m[head]), sum = Zero();
  for (int32_t t = 0; t < end; t += kWidth) top = Max(Load(z + t), top);
  const float most = MaxOf(top);
  *keep = most == a.m[head] ? 1 : ExpOf(a.m[head] - most);
  if (most == -kInfinity) {
    for (int32_t t = 0; t < end; t += kWidth) Store(z + t, Zero());
    return false;
  }
  const F shift = Set(most);
  for (int32_t t = 0; t < end; t += kWidth) {
    const F weight = Exp(Sub(Load(z + t), shift));
    Store(z + t, weight);
    sum = Add(sum, weight);
  }
  a.m[head] = most;
  a.l[head] = a.l[head] * *keep + Sum(sum);
  return true;
}

// acc[h][j .. ) = acc * keep + sum of z[h][t] * v[t], V vectors of channels.
template <typename Vectors, int G, int V>
inline void TileValues(const AttendTileArgs& a, const Vectors& v, int32_t head, int32_t entry, int32_t n,
                       int32_t j, const HeadTile& tile) {
  const int m = V == 1 ? Least(kWidth, a.d - j) : kWidth;
  F acc[G][V];
  for (int h = 0; h < G; ++h) {
    for (int c = 0; c < V; ++c) {
      const float* from = a.acc + static_cast<int64_t>(head + h) * a.d + j + c * kWidth;
      acc[h][c] = Mul(LoadN(from, m), Set(tile.keep[h]));
    }
  }
  const LinesAhead ahead(a.next_values, a.n);
  for (int32_t t = 0; t < n; ++t) {
    if (head == 0 && j == 0 && t % kTogether == 0) ahead.AskAt(entry + t);
    F value[V];
    const typename Vectors::Row from = v[entry + t];
    for (int c = 0; c < V; ++c) value[c] = V == 1 ? from.WideN(j, m) : from.Wide(j + c * kWidth);
    for (int h = 0; h < G; ++h) {
      const F weight = Set(tile.z[h][t]);
      for (int c = 0; c < V; ++c) acc[h][c] = Fma(weight, value[c], acc[h][c]);
    }
  }
  for (int h = 0; h < G; ++h) {
    for (int c = 0; c < V; ++c)
      StoreN(a.acc + static_cast<int64_t>(head + h) * a.d + j + c * kWidth, m, acc[h][c]);
  }
}

template <typename Keys, typename Values, int G>
inline void AttendHeads(const AttendTileArgs& a, const Keys& k, const Values& v, int32_t head) {
  HeadTile tile;
  for (int32_t entry = 0; entry < a.n; entry += kTileEntries) {
    const int32_t n = Least(kTileEntries, a.n - entry);
    TileLogits<Keys, G>(a, k, head, entry, n, &tile);
    bool any = false;
    for (int h = 0; h < G; ++h) any |= WeighTile(a, head + h, entry, n, tile.z[h], &tile.keep[h]);
    if (!any || a.acc == nullptr) continue;
    int32_t j = 0;
    for (; j + kValueVectors * kWidth <= a.d; j += kValueVectors * kWidth) {
      TileValues<Values, G, kValueVectors>(a, v, head, entry, n, j, tile);
    }
    for (; j < a.d; j += kWidth) TileValues<Values, G, 1>(a, v, head, entry, n, j, tile);
  }
}

template <typename Keys, typename Values, int G>
inline void AttendRest(const AttendTileArgs& a, const Keys& k, const Values& v, int32_t head) {
  if constexpr (G > 0) {
    if (a.g - head == G) return AttendHeads<Keys, Values, G>(a, k, v, head);
    AttendRest<Keys, Values, G - 1>(a, k, v, head);
  }
}

template <typename Keys, typename Values>
inline void AttendVectors(const AttendTileArgs& a, const Keys& k, const Values& v) {
  int32_t head = 0;
  for (; head + kTileHeads <= a.g; head += kTileHeads) AttendHeads<Keys, Values, kTileHeads>(a, k, v, head);
  AttendRest<Keys, Values, kTileHeads - 1>(a, k, v, head);
}

template <typename Type>
inline void AttendFloats(const AttendTileArgs& a) {
  using Vectors = FloatVectors<Type>;
  using T = typename Type::T;
  AttendVectors(a, Vectors{static_cast<const T*>(a.k), a.d}, Vectors{static_cast<const T*>(a.v), a.d});
}

template <KvType type>
inline void AttendCodes(const AttendTileArgs& a) {
  const CodeVectors<type> keys(a.k, a.k_scales, a);
  switch (a.value_type) {
    case KvType::kInt4:
      return AttendVectors(a, keys, CodeVectors<KvType::kInt4>(a.v, a.v_scales, a));
    case KvType::kInt2:
      return AttendVectors(a, keys, CodeVectors<KvType::kInt2>(a.v, a.v_scales, a));
    default:
      return AttendVectors(a, keys, CodeVectors<KvType::kInt8>(a.v, a.v_scales, a));
  }
}

inline void AttendTile(const AttendTileArgs& a) {
  switch (a.type) {
    case KvType::kF32:
      return AttendFloats<TypeF32>(a);
    case KvType::kF16:
      return AttendFloats<TypeF16>(a);
    case KvType::kBf16:
      return AttendFloats<TypeBf16>(a);
    case KvType::kInt8:
      return AttendCodes<KvType::kInt8>(a);
    case KvType::kInt4:
      return AttendCodes<KvType::kInt4>(a);
    case KvType::kInt2:
      return;  // of values only
  }
}

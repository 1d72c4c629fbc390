// One step's attention of the query heads that share a KV head, over cached entries of f32, f16 or bf16, or
// codes, which are widened where they are used.
//
// Channels are lanes. Logits: blocks of 4 entries x up to kTileHeads heads, which then are lanes: weights;
// then values, entry by entry, channels in lanes again, for all heads of the tile at once. Entries are taken
// 64 at a time. Model, per entry: 2 D stored elements read once a kTileHeads heads, 4 D flops and one exp a
// head: bound by memory (2 flops a byte and head at 16 bits) until several heads share the entry.
#pragma once

constexpr int32_t kTileEntries = 64;
constexpr int kValueVectors = 4;
constexpr int kTogether = 4;  // entries of a block of logits, and between two looks ahead
constexpr int kHeadsAVector = kWidth / kTogether;
template <int G>
constexpr int kVectorsOf = (G + kHeadsAVector - 1) / kHeadsAVector;  // of a block of G heads

// Head h of entry t is z[t / kTogether][kTogether * h + t % kTogether]: what is done to logits is done to
// those of several heads at once.
struct HeadTile {
  alignas(64) float z[kTileEntries / kTogether][kTogether * kTileHeads];
  float keep[kTileHeads];
  float& At(int h, int32_t t) { return z[t / kTogether][kTogether * h + t % kTogether]; }
  float At(int h, int32_t t) const { return z[t / kTogether][kTogether * h + t % kTogether]; }
};

// Lines to ask for, in equal shares, while n entries are worked on. Processors do not do so beyond the end of
// a page of theirs, and runs of entries lie anywhere.
struct LinesAhead {
  LinesAhead(const AttendTileArgs::Next& next, int32_t n)
      : at(next.at),
        lines(static_cast<uint32_t>(next.bytes + 63) / 64),
        share((kTogether * lines + static_cast<uint32_t>(n) - 1) / static_cast<uint32_t>(n)) {}
  void AskAt(int32_t entry) const {
    const uint32_t first = static_cast<uint32_t>(entry) / kTogether * share,
                   end = first + share < lines ? first + share : lines;
    for (uint32_t i = first; i < end; ++i) __builtin_prefetch(at + 64 * i, 0, 3);
  }
  const uint8_t* at;
  uint32_t lines, share;
};

// Vectors of a tile: row i, and of a row the numbers from j on.
template <typename Type>
struct FloatVectors {
  struct Row {
    const typename Type::T* at;
    F Wide(int32_t j) const { return Type::Wide(at + j); }
    F WideN(int32_t j, int n) const { return Type::WideN(at + j, n); }
  };
  int32_t MostRows() const { return kTileEntries; }
  void Take(int32_t, int32_t) {}
  Row operator[](int32_t i) const { return {at + static_cast<int64_t>(i) * d}; }
  const typename Type::T* at;
  int32_t d;
};

// Groups are whole vectors of the processor, and so are rows. The products of a code and its scale are those
// of DecodeVectors. Scales are widened for all rows of a tile at once: one by one that took as long as codes.
template <KvType type>
struct CodeVectors {
  struct Row {
    const uint8_t* codes;
    const float* scales;
    int shift;
    F Wide(int32_t j) const { return Mul(LoadCodes<type>(codes, j), Set(scales[j >> shift])); }
    F WideN(int32_t j, int) const { return Wide(j); }
  };
  CodeVectors(const void* at, const uint16_t* of, const AttendTileArgs& a)
      : codes(static_cast<const uint8_t*>(at)),
        scales(of),
        d(a.d),
        shift(__builtin_ctz(static_cast<unsigned>(a.group))) {}
  int32_t MostRows() const { return Least(kTileEntries, kMostWide / (d >> shift) / kTogether * kTogether); }
  // Rows [first, first + n) are read next, at most MostRows.
  void Take(int32_t first, int32_t n) {
    const int32_t groups = d >> shift, end = n * groups;
    taken = first;
    const uint16_t* from = scales + static_cast<int64_t>(first) * groups;
    int32_t i = 0;
    for (; i + kWidth <= end; i += kWidth) Store(wide + i, LoadF16(from + i));
    if (i < end) Store(wide + i, LoadF16N(from + i, end - i));
  }
  Row operator[](int32_t i) const {
    const int64_t at = static_cast<int64_t>(i) * d;
    return {codes + at / CodesAByte(type), wide + ((i - taken) * d >> shift), shift};
  }
  const uint8_t* codes;
  const uint16_t* scales;
  int32_t d;
  int shift;
  int32_t taken = 0;
  // Heads of up to 256 channels have room for a whole tile, larger ones for a quarter at least.
  static constexpr int32_t kMostWide = kTileEntries * 256 / kLeastTileGroup;
  static_assert(kMostWide / (kMaxHeadSize / kLeastTileGroup) >= kTogether);
  alignas(64) float wide[kMostWide];
};

// q[head + h] . k[t], unscaled, for G heads and n entries from `entry`; the last one repeats to a whole
// block.
template <typename Vectors, int G>
inline void TileLogits(const AttendTileArgs& a, const Vectors& k, int32_t head, int32_t entry, int32_t n,
                       HeadTile* tile) {
  const float* q = a.q + static_cast<int64_t>(head) * a.d;
  const LinesAhead ahead(a.next_keys, a.n);
  for (int32_t t = 0; t < n; t += kTogether) {
    F acc[kVectorsOf<G> * kHeadsAVector][kTogether];
    for (int h = 0; h < kVectorsOf<G> * kHeadsAVector; ++h) {
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
    for (int v = 0; v < kVectorsOf<G>; ++v)
      Store(tile->z[t / kTogether] + v * kWidth, SumsOfHeads(acc + v * kHeadsAVector));
  }
}

// Scaled and capped; hidden entries get -inf, and so do those behind the last one.
template <int G>
inline void FinishLogits(const AttendTileArgs& a, int32_t head, int32_t entry, int32_t n, HeadTile* tile) {
  const F scale = Set(a.scale);
  for (int32_t t = 0; t < n; t += kTogether) {
    for (int v = 0; v < kVectorsOf<G>; ++v) {
      float* z = tile->z[t / kTogether] + v * kWidth;
      const F logit = Mul(Load(z), scale);
      Store(z, a.cap > 0 ? Capped(logit, a.cap) : logit);
    }
  }
  const bool first = entry == 0 && a.first_logit != 0;
  if (!first && a.visible == nullptr && a.logits == nullptr && n % kTogether == 0) return;
  for (int h = 0; h < G; ++h) {
    if (first) tile->At(h, 0) += a.first_logit;
    if (a.visible != nullptr) {
      const uint8_t* visible = a.visible + (head + h) * a.visible_stride + entry;
      for (int32_t t = 0; t < n; ++t) {
        if (visible[t] == 0) tile->At(h, t) = -kInfinity;
      }
    }
    if (a.logits != nullptr) {
      float* out = a.logits + (head + h) * a.logits_stride + entry;
      for (int32_t t = 0; t < n; ++t) out[t] = tile->At(h, t);
    }
    for (int32_t t = n; t % kTogether != 0; ++t) tile->At(h, t) = -kInfinity;
  }
}

// Logits -> weights. Updates m and l, sets keep. False: no head sees an entry.
template <int G>
inline bool WeighTile(const AttendTileArgs& a, int32_t head, int32_t n, HeadTile* tile) {
  for (int v = 0; v < kVectorsOf<G>; ++v) {
    const int first = v * kHeadsAVector, heads = Least(kHeadsAVector, G - first);
    float *m = a.m + head + first, *l = a.l + head + first;
    const F before = SpreadHeads(m, heads);
    F top = before, sum = Zero();
    for (int32_t t = 0; t < n; t += kTogether) top = Max(Load(tile->z[t / kTogether] + v * kWidth), top);
    top = MaxOfFours(top);
    const F shift = Max(Set(-3e38f), top);  // where nothing was seen so far: no weight, not exp(-inf + inf)
    for (int32_t t = 0; t < n; t += kTogether) {
      float* z = tile->z[t / kTogether] + v * kWidth;
      const F weight = Exp(Sub(Load(z), shift));
      Store(z, weight);
      sum = Add(sum, weight);
    }
    const F keep = Exp(Sub(before, shift));
    StoreHeads(Add(Mul(SpreadHeads(l, heads), keep), SumOfFours(sum)), heads, l);
    StoreHeads(top, heads, m);
    StoreHeads(keep, heads, tile->keep + first);
  }
  bool any = false;
  for (int h = 0; h < G; ++h) any = any || a.m[head + h] != -kInfinity;
  return any;
}

// acc[h][j .. ) = acc * keep + sum of z * v[t], V vectors of channels.
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
      const F weight = Set(tile.At(h, t));
      for (int c = 0; c < V; ++c) acc[h][c] = Fma(weight, value[c], acc[h][c]);
    }
  }
  for (int h = 0; h < G; ++h) {
    for (int c = 0; c < V; ++c)
      StoreN(a.acc + static_cast<int64_t>(head + h) * a.d + j + c * kWidth, m, acc[h][c]);
  }
}

template <typename Keys, typename Values, int G>
inline void AttendHeads(const AttendTileArgs& a, Keys& k, Values& v, int32_t head) {
  HeadTile tile;
  const int32_t most = Least(k.MostRows(), v.MostRows());
  for (int32_t entry = 0; entry < a.n; entry += most) {
    const int32_t n = Least(most, a.n - entry);
    k.Take(entry, n);
    TileLogits<Keys, G>(a, k, head, entry, n, &tile);
    FinishLogits<G>(a, head, entry, n, &tile);
    if (!WeighTile<G>(a, head, n, &tile) || a.acc == nullptr) continue;
    v.Take(entry, n);
    int32_t j = 0;
    for (; j + kValueVectors * kWidth <= a.d; j += kValueVectors * kWidth) {
      TileValues<Values, G, kValueVectors>(a, v, head, entry, n, j, tile);
    }
    for (; j < a.d; j += kWidth) TileValues<Values, G, 1>(a, v, head, entry, n, j, tile);
  }
}

template <typename Keys, typename Values, int G>
inline void AttendRest(const AttendTileArgs& a, Keys& k, Values& v, int32_t head) {
  if constexpr (G > 0) {
    if (a.g - head == G) return AttendHeads<Keys, Values, G>(a, k, v, head);
    AttendRest<Keys, Values, G - 1>(a, k, v, head);
  }
}

template <typename Keys, typename Values>
inline void AttendVectors(const AttendTileArgs& a, Keys k, Values v) {
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
  using Keys = CodeVectors<type>;
  const auto keys = [&a] { return Keys(a.k, a.k_scales, a); };
  switch (a.value_type) {
    case KvType::kInt4:
      return AttendVectors(a, keys(), CodeVectors<KvType::kInt4>(a.v, a.v_scales, a));
    case KvType::kInt2:
      return AttendVectors(a, keys(), CodeVectors<KvType::kInt2>(a.v, a.v_scales, a));
    case KvType::kInt8:
      return AttendVectors(a, keys(), CodeVectors<KvType::kInt8>(a.v, a.v_scales, a));
    case KvType::kF32:
    case KvType::kF16:
    case KvType::kBf16:
      return;  // values of codes have codes for keys
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

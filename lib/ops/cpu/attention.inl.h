// Attention over contiguous f32 keys: whole prompts, probabilities of some rows, column sums.
//
// Logits are made in tiles of 64 keys with the keys in lanes: 64 channels of the 64 keys are turned into kt
// [channel][key] on the stack, then every query row adds q[j] * kt[j] channel by channel. Values are taken as
// they lie, channels in lanes. A row's arithmetic is the same whatever rows are with it, and tiles start at
// multiples of 64 keys, so results of finite keys and values do not depend on how the rows of a prompt are
// cut into calls (what is no number reaches the rows beside its own, times 0). Model, per pair of row and
// key: 4 D flops and one exp (14 operations). Query heads that share a KV head take a tile of keys one after
// the other: per 64 rows of all of them, keys and values come once from where they lie (8 D bytes a key; the
// other heads find them in the second-level cache) and are turned once, which costs 1 / 16 of one head's
// products. Bound by the multipliers.
#pragma once

constexpr int32_t kTileKeys = 64, kTileChannels = 64, kRowBlock = 64;
constexpr int32_t kTurnedBlocks = 2;   // of channels, kept for the next head: 128; stacks may be small
constexpr int32_t kHeadsTogether = 8;  // whose sums stand on the stack

// The query rows of one call, and the keys they meet.
struct Rows {
  const float* q;
  int64_t stride;
  const float* k;
  int32_t d;
};

struct LogitTile {
  alignas(64) float kt[kTurnedBlocks][kTileChannels][kTileKeys];
  alignas(64) float z[kRowBlock][kTileKeys];
};

// kt[j][t] = k[key + t][channel + j]; zeros for keys at or beyond n_keys and channels beyond d.
inline void TurnKeys(const Rows& r, int32_t key, int32_t n_keys, int32_t channel, float (*kt)[kTileKeys]) {
  for (int32_t t = 0; t < kTileKeys; t += kWidth) {
    for (int32_t j = 0; j < Least(kTileChannels, r.d - channel); j += kWidth) {
      const int n = Least(kWidth, r.d - channel - j);
      F block[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const float* from = r.k + static_cast<int64_t>(key + t + i) * r.d + channel + j;
        block[i] = key + t + i >= n_keys ? Zero() : n == kWidth ? Load(from) : LoadN(from, n);
      }
      Transpose(block);
      for (int i = 0; i < kWidth; ++i) Store(&kt[j + i][t], block[i]);
    }
  }
}

// z[i + row] += q[row] . kt over one block of channels, for R rows; the first block starts from zero.
template <int R>
inline void AddLogits(const float* q, int64_t stride, int32_t channels, bool first,
                      const float (*kt)[kTileKeys], float (*z)[kTileKeys]) {
  for (int t = 0; t < kTileKeys; t += kTileVectors * kWidth) {
    F acc[R][kTileVectors];
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < kTileVectors; ++v) acc[i][v] = first ? Zero() : Load(&z[i][t + v * kWidth]);
    }
    for (int32_t j = 0; j < channels; ++j) {
      F keys[kTileVectors];
      for (int v = 0; v < kTileVectors; ++v) keys[v] = Load(&kt[j][t + v * kWidth]);
      for (int i = 0; i < R; ++i) {
        const F row = Set(q[i * stride + j]);
        for (int v = 0; v < kTileVectors; ++v) acc[i][v] = Fma(row, keys[v], acc[i][v]);
      }
    }
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < kTileVectors; ++v) Store(&z[i][t + v * kWidth], acc[i][v]);
    }
  }
}

template <int R>
inline void AddLogitsRest(const float* q, int64_t stride, int32_t rows, int32_t channels, bool first,
                          const float (*kt)[kTileKeys], float (*z)[kTileKeys]) {
  if constexpr (R > 0) {
    if (rows == R) return AddLogits<R>(q, stride, channels, first, kt, z);
    AddLogitsRest<R - 1>(q, stride, rows, channels, first, kt, z);
  }
}

// z[i][t] = q[row0 + i] . k[key + t] for rows [begin, end) of the block at row0; unscaled. turned: the last
// call was for the same keys, which still lie in the tile as far as it holds all of their channels.
inline void Logits(const Rows& r, int32_t row0, int32_t begin, int32_t end, int32_t key, int32_t n_keys,
                   LogitTile* tile, bool turned = false) {
  for (int32_t channel = 0; channel < r.d; channel += kTileChannels) {
    auto* kt = tile->kt[channel / kTileChannels % kTurnedBlocks];
    if (!turned || r.d > kTurnedBlocks * kTileChannels) TurnKeys(r, key, n_keys, channel, kt);
    const int32_t channels = Least(kTileChannels, r.d - channel);
    const float* q = r.q + row0 * r.stride + channel;
    int32_t i = begin;
    for (; i + kTileRows <= end; i += kTileRows) {
      AddLogits<kTileRows>(q + i * r.stride, r.stride, channels, channel == 0, kt, tile->z + i);
    }
    AddLogitsRest<kTileRows - 1>(q + i * r.stride, r.stride, end - i, channels, channel == 0, kt,
                                 tile->z + i);
  }
}

// out[i] = out[i] * keep[i] + sum over n_keys keys of p[i][t] * v[t], R rows, all channels.
template <int R, int V>
inline void AddValuesAt(const float (*p)[kTileKeys], const float* keep, const float* v, int32_t n_keys,
                        int32_t d, int32_t j, float* out, int64_t stride) {
  const int n = V == 1 ? Least(kWidth, d - j) : kWidth;
  F acc[R][V];
  for (int i = 0; i < R; ++i) {
    for (int c = 0; c < V; ++c) {
      const float* from = out + i * stride + j + c * kWidth;
      acc[i][c] = Mul(V == 1 ? LoadN(from, n) : Load(from), Set(keep[i]));
    }
  }
  for (int32_t t = 0; t < n_keys; ++t) {
    F value[V];
    const float* from = v + static_cast<int64_t>(t) * d + j;
    for (int c = 0; c < V; ++c) value[c] = V == 1 ? LoadN(from, n) : Load(from + c * kWidth);
    for (int i = 0; i < R; ++i) {
      const F weight = Set(p[i][t]);
      for (int c = 0; c < V; ++c) acc[i][c] = Fma(weight, value[c], acc[i][c]);
    }
  }
  for (int i = 0; i < R; ++i) {
    for (int c = 0; c < V; ++c) StoreN(out + i * stride + j + c * kWidth, n, acc[i][c]);
  }
}

template <int R>
inline void AddValues(int32_t rows, const float (*p)[kTileKeys], const float* keep, const float* v,
                      int32_t n_keys, int32_t d, float* out, int64_t stride) {
  if constexpr (R > 0) {
    if (rows < R) return AddValues<R - 1>(rows, p, keep, v, n_keys, d, out, stride);
    int32_t j = 0;
    for (; j + kTileVectors * kWidth <= d; j += kTileVectors * kWidth) {
      AddValuesAt<R, kTileVectors>(p, keep, v, n_keys, d, j, out, stride);
    }
    for (; j < d; j += kWidth) AddValuesAt<R, 1>(p, keep, v, n_keys, d, j, out, stride);
  }
}

// The running softmax of a block of rows.
struct Running {
  float m[kRowBlock], l[kRowBlock], keep[kRowBlock];
};

// Turns one row of unscaled logits into weights relative to the new maximum. Keys outside [begin, end) get
// none. first: more for the first of them. kept: the scaled logits, wanted or null.
inline void Weigh(float* z, float scale, float cap, float first, int32_t begin, int32_t end, float* m,
                  float* l, float* keep, float* kept) {
  for (int32_t t = 0; t < begin; ++t) z[t] = -kInfinity;
  for (int32_t t = end; t < kTileKeys; ++t) z[t] = -kInfinity;
  const F factor = Set(scale);
  F top = Set(*m), sum = Zero();
  for (int t = 0; t < kTileKeys; t += kWidth) {
    F logit = Mul(Load(z + t), factor);
    if (cap > 0) logit = Capped(logit, cap);
    if (t == 0 && first != 0) logit = Add(logit, LoadN(&first, 1));
    Store(z + t, logit);
    if (kept != nullptr) Store(kept + t, logit);
    top = Max(logit, top);
  }
  const float most = MaxOf(top);
  *keep = most == *m ? 1 : ExpOf(*m - most);
  if (most == -kInfinity) {  // nothing was seen so far: no weight, not exp(-inf + inf)
    for (int t = 0; t < kTileKeys; t += kWidth) Store(z + t, Zero());
    return;
  }
  const F shift = Set(most);
  for (int t = 0; t < kTileKeys; t += kWidth) {
    const F weight = Exp(Sub(Load(z + t), shift));
    Store(z + t, weight);
    sum = Add(sum, weight);
  }
  *m = most;
  *l = *l * *keep + Sum(sum);
}

// Keys of row i: [FirstKey, EndKey).
inline int32_t EndKey(const PrefillAttentionArgs& a, int32_t i) { return a.first_visible + i + 1; }
inline int32_t FirstKey(const PrefillAttentionArgs& a, int32_t i) {
  return a.window > 0 ? Most(0, EndKey(a, i) - a.window) : 0;
}

// The logits of keys [key, key + n) that the query head does not see are as low as they can be.
inline void Hide(const uint32_t* seen, uint32_t bit, int32_t key, int32_t n, float* z) {
  if (seen == nullptr) return;
  for (int32_t t = 0; t < n; ++t) {
    if ((seen[key + t] & bit) == 0) z[t] = -kInfinity;
  }
}

// Not inlined: what GCC 12 makes of it inside of the loop over heads takes a fifth longer.
__attribute__((noinline)) void PrefillTile(const PrefillAttentionArgs& a, int32_t row0, int32_t rows,
                                           int32_t key, bool turned, LogitTile* tile, Running* run) {
  int32_t begin = Most(0, key - a.first_visible - row0), end = rows;  // rows that see a key of the tile
  while (end > begin && FirstKey(a, row0 + end - 1) >= key + kTileKeys) --end;
  const int32_t n_keys = EndKey(a, row0 + rows - 1);
  Logits({a.q, a.q_stride, a.k, a.d}, row0, begin, end, key, n_keys, tile, turned);
  for (int32_t i = begin; i < end; ++i) {
    const int32_t from = Most(0, FirstKey(a, row0 + i) - key),
                  to = Least(kTileKeys, EndKey(a, row0 + i) - key);
    Hide(a.seen, a.seen_bit, key, to, tile->z[i]);
    Weigh(tile->z[i], a.scale, a.cap, key == 0 ? a.first_logit : 0, from, to, &run->m[i], &run->l[i],
          &run->keep[i], key < a.n_kept ? a.kept + (row0 + i) * a.kept_stride + key : nullptr);
  }
  for (int32_t i = begin; i < end && a.out != nullptr; i += kTileRows) {
    const int32_t n = Least(kTileRows, end - i);
    AddValues<kTileRows>(n, tile->z + i, run->keep + i, a.v + static_cast<int64_t>(key) * a.d,
                         Least(kTileKeys, EndKey(a, row0 + i + n - 1) - key), a.d,
                         a.out + (row0 + i) * a.out_stride, a.out_stride);
  }
}

inline void StartRows(const PrefillAttentionArgs& a, int32_t row0, int32_t rows, Running* run) {
  for (int32_t i = 0; i < rows; ++i) {
    // A sink has been seen before the first key.
    run->m[i] = a.sink != nullptr ? *a.sink : -kInfinity, run->l[i] = a.sink != nullptr ? 1 : 0;
    for (int32_t j = 0; j < a.d && a.out != nullptr; j += kWidth) {
      StoreN(a.out + (row0 + i) * a.out_stride + j, Least(kWidth, a.d - j), Zero());
    }
  }
}

inline void FinishRows(const PrefillAttentionArgs& a, int32_t row0, int32_t rows, const Running& run) {
  for (int32_t i = 0; i < rows; ++i) {
    for (int32_t j = 0; j < a.d && a.out != nullptr; j += kWidth) {
      float* out = a.out + (row0 + i) * a.out_stride + j;
      const int n = Least(kWidth, a.d - j);
      StoreN(out, n, Div(LoadN(out, n), Set(run.l[i])));
    }
    if (a.lse != nullptr) a.lse[row0 + i] = run.m[i] + __builtin_logf(run.l[i]);
  }
}

// Heads [first, first + n), at most kHeadsTogether.
inline void PrefillHeads(const PrefillAttentionArgs& a, int32_t first, int32_t n) {
  LogitTile tile;
  Running run[kHeadsTogether];
  // Copies: the constructor would be an inline function of lib/.
  PrefillAttentionArgs head[kHeadsTogether] = {a, a, a, a, a, a, a, a};
  for (int32_t h = 0; h < n; ++h) head[h] = HeadOf(a, first + h);
  for (int32_t row0 = 0; row0 < a.n_q; row0 += kRowBlock) {
    const int32_t rows = Least(kRowBlock, a.n_q - row0), end = EndKey(a, row0 + rows - 1);
    for (int32_t h = 0; h < n; ++h) StartRows(head[h], row0, rows, &run[h]);
    for (int32_t key = FirstKey(a, row0) / kTileKeys * kTileKeys; key < end; key += kTileKeys) {
      for (int32_t h = 0; h < n; ++h) PrefillTile(head[h], row0, rows, key, h > 0, &tile, &run[h]);
    }
    for (int32_t h = 0; h < n; ++h) FinishRows(head[h], row0, rows, run[h]);
  }
}

inline void PrefillAttention(const PrefillAttentionArgs& a) {
  for (int32_t h = 0; h < a.n_heads; h += kHeadsTogether)
    PrefillHeads(a, h, Least(kHeadsTogether, a.n_heads - h));
}

inline void ScoreRows(const ScoreRowsArgs& a) {
  LogitTile tile;
  for (int32_t row0 = 0; row0 < a.n_q; row0 += kRowBlock) {
    const int32_t rows = Least(kRowBlock, a.n_q - row0);
    for (int32_t key = 0; key < a.n_keys; key += kTileKeys) {
      Logits({a.q, a.q_stride, a.k, a.d}, row0, 0, rows, key, a.n_keys, &tile);
      for (int32_t i = 0; i < rows; ++i) {
        const F scale = Set(a.scale), gain = Set(a.gain != nullptr ? a.gain[row0 + i] : 1);
        float* p = a.p + (row0 + i) * a.p_stride + key;
        const int32_t n = Least(kTileKeys, a.n_keys - key);
        for (int32_t t = 0; t < n; t += kWidth) {
          F logit = Mul(Load(&tile.z[i][t]), scale);
          if (a.cap > 0) logit = Capped(logit, a.cap);
          StoreN(p + t, Least(kWidth, n - t), Mul(logit, gain));
        }
        if (key == 0) p[0] += a.first_logit;
        Hide(a.seen, a.seen_bit, key, n, p);
      }
    }
    for (int32_t i = row0; i < row0 + rows; ++i) {
      float* p = a.p + i * a.p_stride;
      const float sink = a.sink == nullptr ? 0 : a.gain != nullptr ? a.gain[i] * *a.sink : *a.sink;
      SoftmaxBeside(a.sink != nullptr ? &sink : nullptr, p, a.visible[i]);
      for (int32_t t = a.visible[i]; t < a.n_keys; ++t) p[t] = 0;
    }
  }
}

enum class Fold { kSum, kMaximum };

// Folds exp(scale * z[i][t] - lse) of rows [begin, end) of the block, each up to its last visible key, into
// column[t].
template <Fold kFold>
inline void FoldColumns(const ColumnSumsArgs& a, int32_t row0, int32_t begin, int32_t end, int32_t key,
                        LogitTile* tile, float* column) {
  const F scale = Set(a.scale);
  for (int32_t i = begin; i < end; ++i) {
    const F lse = Set(a.lse_factor * a.lse[row0 + i]);
    float* z = tile->z[i];
    const int32_t visible = Least(kTileKeys, a.first_visible + row0 + i + 1 - key);
    for (int32_t t = visible; t < kTileKeys; ++t) z[t] = -kInfinity;
    Hide(a.seen, a.seen_bit, key, Least(visible, a.key_end - key), z);
    for (int t = 0; t < kTileKeys; t += kWidth) {
      F logit = Mul(Load(z + t), scale);
      if (a.cap > 0) logit = Capped(logit, a.cap);
      if (key + t == 0 && a.first_logit != 0) logit = Add(logit, LoadN(&a.first_logit, 1));
      const F p = Exp(Sub(logit, lse)), old = Load(column + t);
      Store(column + t, kFold == Fold::kSum ? Add(old, p) : Max(old, p));
    }
  }
}

template <Fold kFold>
inline void Columns(const ColumnSumsArgs& a) {
  LogitTile tile;
  for (int32_t key = a.key_begin; key < a.key_end; key += kTileKeys) {
    alignas(64) float column[kTileKeys] = {};
    const int32_t n = Least(kTileKeys, a.key_end - key);
    const int32_t first = Most(0, key - a.first_visible);  // the first row that sees a key of the tile
    const int32_t top = first / kRowBlock * kRowBlock;
    for (int32_t row0 = top; row0 < a.n_q; row0 += kRowBlock) {
      const int32_t begin = Most(0, first - row0), end = Least(kRowBlock, a.n_q - row0);
      Logits({a.q, a.q_stride, a.k, a.d}, row0, begin, end, key, key + n, &tile, row0 > top);
      FoldColumns<kFold>(a, row0, begin, end, key, &tile, column);
    }
    for (int32_t t = 0; t < n; ++t) {
      float& into = a.sums[key + t];
      const float found = a.weight * column[t];
      into = kFold == Fold::kSum ? into + found : into > found ? into : found;
    }
  }
}

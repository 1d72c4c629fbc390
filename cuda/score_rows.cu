// What recorded rows see of every entry, in two readings of the keys on the tensor cores: for the normaliser
// of every row, and for the weighted sum of what the rows see; no probabilities are stored. In both a warp
// has 16 entries, whose keys are the left factor, and the rows of the group's query heads go by in shared
// memory, halves of f16 (split_tiles.h). Flops: 4 * rows * entries * D a query head, three products each.
// Bytes: every key once a query head, from the caches of the device.
#include "cuda/score_rows.h"

#include <cmath>

#include "cuda/head_dims.h"
#include "cuda/launch.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kEntries = 64;
constexpr int32_t kSegment = 4 * kEntries;  // entries of a block that normalises

template <int kDims>
struct RowTile {
  static constexpr int kRows = kDims <= 64 ? 64 : 32;
  SplitTile<FiniteHalves, kRows, kDims> queries;
  // Normalisers of the warps; of sum_seen the first of each: a row's greatest logit, and its weight over its
  // sum.
  float m[kWarps][kRows], l[kWarps][kRows];
};

// A greatest logit and the sum of exponentials below it. Where there is no logit yet the greatest is the
// least number there is: its differences from others, and from itself, are no surprise.
struct Normaliser {
  float m = -3.402823466e38f, l = 0;
  KVC_DEVICE void Add(float m2, float l2) {
    const float top = fmaxf(m, m2);
    l = l * QuickExp(m - top) + l2 * QuickExp(m2 - top);
    m = top;
  }
  // Of two logits.
  KVC_DEVICE void AddBoth(float a, float b) {
    const float top = fmaxf(m, fmaxf(a, b));
    l = l * QuickExp(m - top) + (QuickExp(a - top) + QuickExp(b - top));
    m = top;
  }
};

// beside(): what else is put into shared memory meanwhile.
template <int kDims, typename Beside>
KVC_DEVICE void LoadRows(const RowScores& r, int32_t h, int32_t row0, RowTile<kDims>* s, Beside beside) {
  const int32_t d = r.layer.d;
  __syncthreads();
  s->queries.template Load<kThreads>(FloatRows{r.queries + (static_cast<int64_t>(row0) * r.n_heads + h) * d,
                                               static_cast<int64_t>(r.n_heads) * d,
                                               min(RowTile<kDims>::kRows, r.n - row0), d});
  beside();
  __syncthreads();
}

// The logit of a product, -infinity where the row does not see the entry.
struct RowView {
  const RowScores& r;
  int32_t g, key0, row0;  // of the warp's entries, of the tile's rows
  uint32_t bit;           // of the query head in masks
  // Whether all rows of the tile see all of the warp's entries, and logits are the products times the scale.
  // Rows that are not there may give what they like.
  KVC_DEVICE bool IsPlain() const {
    return key0 > 0 && key0 + 16 <= min(r.Visible(g, row0), r.layer.len[g]) && !r.layer.has_seen &&
           !(r.cap > 0) && r.gain == nullptr;
  }
  KVC_DEVICE int32_t Key(int i) const { return key0 + Lane() / 4 + i / 2 * 8; }
  KVC_DEVICE int32_t Row(int j, int i) const { return row0 + ColumnOfProduct(j, i); }
  KVC_DEVICE float Logit(int32_t key, int32_t row, float product) const {
    if (row >= r.n || key >= r.Visible(g, row)) return -Infinity();
    if (!r.layer.Sees(g * r.layer.capacity + key, bit)) return -Infinity();
    return r.GainOf(g, row) * Capped(r.scale * product, r.cap) +
           (key == 0 ? LogitOfRest(r.layer.positions[g * r.layer.capacity]) : 0.0f);
  }
  // Of product (j, i): where all is plain, and anywhere.
  KVC_DEVICE auto Plain() const {
    return [scale = r.scale](int, int, float product) { return scale * product; };
  }
  KVC_DEVICE auto Any() const {
    return [this](int j, int i, float product) { return Logit(Key(i), Row(j, i), product); };
  }
};

template <bool kHalf>
KVC_DEVICE auto KeysFrom(const RowScores& r, int32_t g, int32_t key0) {
  return LayerRows<kHalf>::Of(r.layer.Key(g * r.layer.capacity + key0), r.layer.len[g] - key0, r.layer.d);
}

// Block (segment, g): of every row of the group's query heads, over the segment's entries, into partial
// [segment, H, n].
template <int kDims, bool kHalf>
__global__ void __launch_bounds__(kThreads, 2) normalise_segments(const RowScores r) {
  constexpr int kRows = RowTile<kDims>::kRows, kTiles = kRows / 8;
  KVC_SHARED(RowTile<kDims>, s);
  const int32_t g = static_cast<int32_t>(blockIdx.y), group = r.n_heads / r.layer.n_heads,
                segment = static_cast<int32_t>(blockIdx.x),
                end = min((segment + 1) * kSegment, r.layer.len[g]);
  for (int32_t h = g * group; h < (g + 1) * group; ++h) {
    for (int32_t row0 = 0; row0 < r.n; row0 += kRows) {
      LoadRows(r, h, row0, s, [] {});
      Normaliser mine[kTiles][2];
      for (int32_t key0 = segment * kSegment + WarpOfBlock() * 16; key0 < end; key0 += kEntries) {
        float z[kTiles][4] = {};
        const auto keys = KeysFrom<kHalf>(r, g, key0);
        s->queries.TimesRows([&](int k) { return keys.template Left<FiniteHalves>(k); }, z);
        const RowView view{r, g, key0, row0, SeenBit(h, group)};
        const auto add = [&](auto logit) {
          KVC_UNROLL
          for (int j = 0; j < kTiles; ++j) {
            KVC_UNROLL
            for (int i = 0; i < 2; ++i)
              mine[j][i].AddBoth(logit(j, i, z[j][i]), logit(j, i + 2, z[j][i + 2]));
          }
        };
        view.IsPlain() ? add(view.Plain()) : add(view.Any());
      }
      KVC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          Normaliser& all = mine[j][i];
          for (int other = 4; other < kWarp; other *= 2) {
            const float m = __shfl_xor_sync(kAllLanes, all.m, other),
                        l = __shfl_xor_sync(kAllLanes, all.l, other);
            all.Add(m, l);
          }
          const int row = ColumnOfProduct(j, i);
          if (Lane() / 4 == 0) s->m[WarpOfBlock()][row] = all.m, s->l[WarpOfBlock()][row] = all.l;
        }
      }
      __syncthreads();
      for (int32_t i = ThreadOfBlock(); i < min(kRows, r.n - row0); i += kThreads) {
        Normaliser all;
        for (int w = 0; w < kWarps; ++w) all.Add(s->m[w][i], s->l[w][i]);
        float* at = r.partial + 2 * ((static_cast<int64_t>(segment) * r.n_heads + h) * r.n + row0 + i);
        at[0] = all.m, at[1] = all.l;
      }
    }
  }
}

// Block h: segments in their order, and the sink.
__global__ void join_normalisers(const RowScores r) {
  const int32_t h = static_cast<int32_t>(blockIdx.x), g = h / (r.n_heads / r.layer.n_heads),
                segments = (r.layer.len[g] + kSegment - 1) / kSegment;
  for (int32_t i = ThreadOfBlock(); i < r.n; i += kThreads) {
    Normaliser all;
    KVC_UNROLL_BY(8)
    for (int32_t segment = 0; segment < segments; ++segment) {
      const float* at = r.partial + 2 * ((static_cast<int64_t>(segment) * r.n_heads + h) * r.n + i);
      all.Add(at[0], at[1]);
    }
    if (r.sinks != nullptr) all.Add(r.GainOf(g, i) * r.sinks[h], 1);
    r.row_max[static_cast<int64_t>(h) * r.n + i] = all.m;
    r.row_sum[static_cast<int64_t>(h) * r.n + i] = all.l;
  }
}

// Block (64 entries, g). The four lanes of an entry meet at the end of a query head: the same order every
// time.
template <int kDims, bool kHalf>
__global__ void __launch_bounds__(kThreads, 2) sum_seen(const RowScores r) {
  constexpr int kRows = RowTile<kDims>::kRows, kTiles = kRows / 8;
  KVC_SHARED(RowTile<kDims>, s);
  const int32_t g = static_cast<int32_t>(blockIdx.y), group = r.n_heads / r.layer.n_heads,
                len = r.layer.len[g], key0 = static_cast<int32_t>(blockIdx.x) * kEntries + WarpOfBlock() * 16;
  if (static_cast<int32_t>(blockIdx.x) * kEntries >= len) return;
  const auto keys = KeysFrom<kHalf>(r, g, key0);
  for (int32_t h = g * group; h < (g + 1) * group; ++h) {
    float sum[2] = {};
    for (int32_t row0 = 0; row0 < r.n; row0 += kRows) {
      LoadRows(r, h, row0, s, [&] {
        for (int i = ThreadOfBlock(); i < kRows; i += kThreads) {
          const int64_t at = static_cast<int64_t>(h) * r.n + row0 + i;
          const float all = row0 + i < r.n ? r.row_sum[at] : 0.0f;
          s->m[0][i] = all > 0 ? r.row_max[at] : 0.0f;
          s->l[0][i] = all > 0 ? __fdiv_rn(r.weight[row0 + i], all) : 0.0f;
        }
      });
      float z[kTiles][4] = {};
      s->queries.TimesRows([&](int k) { return keys.template Left<FiniteHalves>(k); }, z);
      const RowView view{r, g, key0, row0, SeenBit(h, group)};
      const auto add = [&](auto logit) {
        KVC_UNROLL
        for (int j = 0; j < kTiles; ++j) {
          const int row = ColumnOfProduct(j, 0);
          const float2 most = *reinterpret_cast<const float2*>(&s->m[0][row]),
                       share = *reinterpret_cast<const float2*>(&s->l[0][row]);
          KVC_UNROLL
          for (int i = 0; i < 4; ++i)
            sum[i / 2] += (i % 2 == 0 ? share.x : share.y) *
                          QuickExp(logit(j, i, z[j][i]) - (i % 2 == 0 ? most.x : most.y));
        }
      };
      view.IsPlain() ? add(view.Plain()) : add(view.Any());
    }
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float all = QuadSum(sum[half]);
      const int32_t key = key0 + Lane() / 4 + 8 * half;
      if (Lane() % 4 == 0 && key < len) r.per_head[h * r.stride + key] = all;
    }
  }
}

dim3 Grid(const RowScores& r, int32_t entries) {
  return dim3(static_cast<unsigned>((r.longest + entries - 1) / entries),
              static_cast<unsigned>(r.layer.n_heads));
}

}  // namespace

void AddScoreRowsKernels(KernelLoader* loader) {
  KVC_ADD(loader, join_normalisers, 0);
  ForEachHeadDims([&](auto dims) {
    KVC_ADD(loader, (normalise_segments<dims, false>), sizeof(RowTile<dims>));
    KVC_ADD(loader, (normalise_segments<dims, true>), sizeof(RowTile<dims>));
    KVC_ADD(loader, (sum_seen<dims, false>), sizeof(RowTile<dims>));
    KVC_ADD(loader, (sum_seen<dims, true>), sizeof(RowTile<dims>));
  });
}

int64_t RowPartialFloats(int32_t n_heads, int32_t n, int64_t stride) {
  return 2 * ((stride + kSegment - 1) / kSegment) * n_heads * n;
}

cudaError_t NormaliseRows(const RowScores& r, CudaStream& stream) {
  if (r.n == 0 || r.longest == 0) return cudaSuccess;
  const cudaError_t e = ForHeadDims(r.layer.d, [&](auto dims) {
    const dim3 grid = Grid(r, kSegment), block(kThreads);
    return r.layer.half
               ? KVC_LAUNCH((normalise_segments<dims, true>), grid, block, sizeof(RowTile<dims>), stream, r)
               : KVC_LAUNCH((normalise_segments<dims, false>), grid, block, sizeof(RowTile<dims>), stream, r);
  });
  if (e != cudaSuccess) return e;
  return KVC_LAUNCH(join_normalisers, dim3(static_cast<unsigned>(r.n_heads)), dim3(kThreads), 0, stream, r);
}

cudaError_t SumRows(const RowScores& r, CudaStream& stream) {
  if (r.longest == 0) return cudaSuccess;
  return ForHeadDims(r.layer.d, [&](auto dims) {
    const dim3 grid = Grid(r, kEntries), block(kThreads);
    return r.layer.half ? KVC_LAUNCH((sum_seen<dims, true>), grid, block, sizeof(RowTile<dims>), stream, r)
                        : KVC_LAUNCH((sum_seen<dims, false>), grid, block, sizeof(RowTile<dims>), stream, r);
  });
}

}  // namespace kvc::cuda

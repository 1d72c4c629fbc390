// What the rows of a prompt give each entry: column sums (or maxima) of their attention, on the tensor cores.
// A block has 64 entries of a KV head, 16 of them a warp, whose keys are the left factor and stay in
// registers (keys of more than 128 dimensions are read again for every tile); the rows of all query heads of
// the group go by in shared memory. A lane adds what it has of an entry, and the four of an entry meet at the
// end: the same order every time. Flops: 2 * rows * entries * D a query head, three products each
// (split_tiles.h); of layers of f16 one, as in the attention that gave the sums of rows.
#include <algorithm>
#include <cmath>

#include "cuda/head_dims.h"
#include "cuda/launch.h"
#include "cuda/layer_params.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kEntries = 64;
constexpr int32_t kNever = 0x7fffffff;

struct FoldParams {
  LayerParams layer;
  const int32_t* base;
  int32_t offset, n, n_heads, limit;
  float scale, cap;
  const float *q, *lse;
  int64_t lse_stride;
  float* into;
  float lse_factor;
};

template <int kDims, bool kHalf>
using QueryTile = SplitTile<FiniteHalves, kDims <= 64 ? 64 : 32, kDims, !kHalf>;

// Of the lane's rows of a tile, a.lse_factor times their normalisers; of rows that are not there, infinity:
// what has it gives nothing.
template <int kTiles>
KVC_DEVICE void LoadNormalisers(const FoldParams& a, int32_t h, int32_t row0, float (&lse)[kTiles][2]) {
  KVC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int32_t row = row0 + ColumnOfProduct(j, i);
      lse[j][i] = row < a.n ? a.lse_factor * a.lse[h * a.lse_stride + row] : Infinity();
    }
  }
}

// What a tile of rows gives the lane's entries u and u + 8. row0: the first of them; sees_from: the first row
// that sees the entry, kNever where the query head does not see it. kAll: all rows see both.
template <bool kMaxima, bool kAll, int kTiles>
KVC_DEVICE void FoldTile(float scale, int32_t row0, const int32_t (&sees_from)[2],
                         const float (&lse)[kTiles][2], const float (&z)[kTiles][4], float (&sum)[2]) {
  KVC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      float e = QuickExp(scale * z[j][i] - lse[j][i % 2]);
      if (!kAll && row0 + ColumnOfProduct(j, i) < sees_from[i / 2]) e = 0;
      sum[i / 2] = kMaxima ? fmaxf(sum[i / 2], e) : sum[i / 2] + e;
    }
  }
}

template <int kDims, bool kMaxima, bool kHalf>
__global__ void __launch_bounds__(kThreads, 2) fold_columns(const FoldParams a) {
  using Tile = QueryTile<kDims, kHalf>;
  using Rows = LayerRows<kHalf>;
  using Queries = typename Rows::Beside;
  constexpr int kRows = kDims <= 64 ? 64 : 32;
  KVC_SHARED(Tile, tile);
  const int32_t d = a.layer.d, g = static_cast<int32_t>(blockIdx.y), group = a.n_heads / a.layer.n_heads;
  const int32_t key0 = static_cast<int32_t>(blockIdx.x) * kEntries, first_visible = a.base[g] + a.offset;
  const int32_t keys_end = a.base[g] + a.limit;
  if (key0 >= keys_end) return;
  const int32_t my_key0 = key0 + WarpOfBlock() * 16;
  const int64_t head = g * a.layer.capacity;
  const auto my_keys = Rows::Of(a.layer.Key(head + my_key0), keys_end - my_key0, d);
  const LeftRows<FiniteHalves, kDims, std::remove_const_t<decltype(my_keys)>> keys(my_keys);
  const int32_t sees_from[2] = {my_key0 + Lane() / 4 - first_visible,
                                my_key0 + Lane() / 4 + 8 - first_visible};
  const bool has_first = my_key0 + Lane() / 4 == 0;
  // Times what it stands for: its logit is so much higher.
  const float times[2] = {has_first ? expf(a.lse_factor * LogitOfRest(a.layer.positions[head])) : 1.0f, 1.0f};
  const int32_t first_row = max(0, key0 - first_visible) / kRows * kRows;
  const float weight = 1.0f / static_cast<float>(group);
  float total[2] = {};
  for (int32_t h = g * group; h < (g + 1) * group; ++h) {
    float sum[2] = {};
    int32_t seen_from[2];
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t key = my_key0 + Lane() / 4 + 8 * half;
      seen_from[half] =
          key < keys_end && !a.layer.Sees(head + key, SeenBit(h, group)) ? kNever : sees_from[half];
    }
    for (int32_t row0 = first_row; row0 < a.n; row0 += kRows) {
      __syncthreads();
      tile->template Load<kThreads>(Queries{a.q + (static_cast<int64_t>(row0) * a.n_heads + h) * d,
                                            static_cast<int64_t>(a.n_heads) * d, min(kRows, a.n - row0), d});
      __syncthreads();
      float z[kRows / 8][4] = {};
      float lse[kRows / 8][2];
      LoadNormalisers(a, h, row0, lse);
      tile->TimesRows(keys, z);
      float scale = a.scale;
      if (a.cap > 0) {
        scale = 1;
        KVC_UNROLL
        for (int j = 0; j < kRows / 8; ++j) {
          KVC_UNROLL
          for (int i = 0; i < 4; ++i) z[j][i] = Capped(a.scale * z[j][i], a.cap);
        }
      }
      if (OnAnyLane(row0 < max(seen_from[0], seen_from[1]))) {
        FoldTile<kMaxima, false>(scale, row0, seen_from, lse, z, sum);
      } else {
        FoldTile<kMaxima, true>(scale, row0, seen_from, lse, z, sum);
      }
    }
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float of_head = times[half] * sum[half];
      total[half] = kMaxima ? fmaxf(total[half], of_head) : total[half] + weight * of_head;
    }
  }
  KVC_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float all = kMaxima ? QuadMax(total[half]) : QuadSum(total[half]);
    const int32_t key = my_key0 + Lane() / 4 + 8 * half;
    if (Lane() % 4 > 0 || key >= keys_end) continue;
    float* into = a.into + head + key;
    *into = kMaxima ? fmaxf(*into, all) : *into + all;
  }
}

template <int kDims, bool kMaxima, bool kHalf>
cudaError_t Fold(const FoldParams& p, int32_t longest, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>((longest + kEntries - 1) / kEntries),
                  static_cast<unsigned>(p.layer.n_heads));
  return KVC_LAUNCH((fold_columns<kDims, kMaxima, kHalf>), grid, dim3(kThreads),
                    sizeof(QueryTile<kDims, kHalf>), stream, p);
}

}  // namespace

void AddFoldColumnsKernels(KernelLoader* loader) {
  ForEachHeadDims([&](auto dims) {
    KVC_ADD(loader, (fold_columns<dims, true, false>), sizeof(QueryTile<dims, false>));
    KVC_ADD(loader, (fold_columns<dims, false, false>), sizeof(QueryTile<dims, false>));
    KVC_ADD(loader, (fold_columns<dims, true, true>), sizeof(QueryTile<dims, true>));
    KVC_ADD(loader, (fold_columns<dims, false, true>), sizeof(QueryTile<dims, true>));
  });
}

Status CudaDevice::FoldColumns(Stream* s, const ColumnArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.layer.n_kv_heads;
  const int32_t longest = *std::max_element(a.rows.base, a.rows.base + heads) + a.limit;
  if (longest <= 0) return {};
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + Packet::Size<int32_t>(heads)));
  const LayerParams layer = LayerOf(a.layer, &packet);
  const FoldParams p{layer,
                     packet.Copy(a.rows.base, heads),
                     a.rows.offset,
                     a.rows.n,
                     a.n_heads,
                     a.limit,
                     a.power() * a.scale,
                     a.power() * a.cap,
                     At(a.q),
                     At(a.lse),
                     a.lse_stride,
                     At(a.into),
                     a.power()};
  KVC_RETURN_IF_ERROR(packet.Send());
  const bool maxima = a.fold == ColumnFold::kMaxima;
  const auto fold = [&](auto dims) {
    CudaStream& stream = StreamOf(s);
    if (layer.half)
      return maxima ? Fold<dims, true, true>(p, longest, stream)
                    : Fold<dims, false, true>(p, longest, stream);
    return maxima ? Fold<dims, true, false>(p, longest, stream)
                  : Fold<dims, false, false>(p, longest, stream);
  };
  return Check(ForHeadDims(layer.d, fold), "attention by columns");
}

}  // namespace kvc::cuda

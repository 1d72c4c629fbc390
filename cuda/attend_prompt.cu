// Causal attention of a prompt's rows, one query head and a tile of rows a block, in f32: logits, running
// softmax and the sum of values stay in shared memory. Flops: 4 * rows * entries * D a query head; keys and
// values are read once a tile of rows.
#include <cmath>

#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;
constexpr size_t kMostShared = 96 << 10;

struct AttendParams {
  LayerParams layer;
  const int32_t* base;  // [G]
  int32_t offset, n, n_heads, window, tile;
  float scale, cap;
  const float* q;
  float *out, *lse;
  int64_t lse_stride;
  const float* sinks;  // [H], null: none
};

// Shared memory: q, acc [tile, D], k, v [tile, D + 1], p [tile, tile].
int64_t SharedFloats(int32_t tile, int32_t d) {
  return 2 * int64_t{tile} * d + 2 * int64_t{tile} * (d + 1) + tile * tile;
}

__global__ void __launch_bounds__(kThreads) attend_prompt(const AttendParams a) {
  KVC_SHARED(float, shared);
  const int32_t d = a.layer.d, tile = a.tile, h = static_cast<int32_t>(blockIdx.y),
                group = a.n_heads / a.layer.n_heads, g = h / group;
  // Later rows see more: they go first.
  const int32_t row0 = (static_cast<int32_t>(gridDim.x) - 1 - static_cast<int32_t>(blockIdx.x)) * tile;
  const int32_t rows = min(tile, a.n - row0), first_visible = a.base[g] + a.offset + row0;
  float *q = shared, *acc = q + tile * d, *k = acc + tile * d, *v = k + tile * (d + 1),
        *p = v + tile * (d + 1);
  for (int32_t i = ThreadOfBlock(); i < tile * d; i += kThreads) {
    const int32_t r = i / d;
    q[i] = r < rows ? a.q[(static_cast<int64_t>(row0 + r) * a.n_heads + h) * d + i % d] : 0.0f;
    acc[i] = 0;
  }
  // Lanes of a row stand beside each other.
  const int32_t lanes = kThreads / tile, r = ThreadOfBlock() / lanes, lane = ThreadOfBlock() % lanes;
  const int32_t end = first_visible + r + 1, begin = a.window > 0 && end > a.window ? end - a.window : 0;
  const int32_t block_end = first_visible + rows,
                block_begin = a.window > 0 && first_visible + 1 > a.window ? first_visible + 1 - a.window : 0;
  const uint32_t bit = h % group < 32 ? 1u << (h % group) : 0;
  const int64_t head = g * a.layer.capacity;
  // A sink has been seen before the first key.
  float m = a.sinks != nullptr ? a.sinks[h] : -Infinity(), l = m == -Infinity() ? 0.0f : 1.0f;
  for (int32_t key0 = block_begin; key0 < block_end; key0 += tile) {
    const int32_t n = min(tile, block_end - key0);
    __syncthreads();
    for (int32_t i = ThreadOfBlock(); i < tile * d; i += kThreads) {
      const int32_t t = i / d, j = i % d;
      const int64_t at = (head + key0 + t) * d + j;
      k[t * (d + 1) + j] = t < n ? a.layer.keys[at] : 0.0f;
      v[t * (d + 1) + j] = t < n ? a.layer.values[at] : 0.0f;
    }
    __syncthreads();
    float top = -Infinity();
    for (int32_t t = lane; t < tile; t += lanes) {
      const int32_t key = key0 + t;
      bool seen = t < n && r < rows && key >= begin && key < end;
      if (seen && a.layer.has_seen) seen = (a.layer.seen[head + key] & bit) != 0;
      float z = -Infinity();
      if (seen) {
        z = 0;
        for (int32_t j = 0; j < d; ++j) z += q[r * d + j] * k[t * (d + 1) + j];
        z = Capped(z * a.scale, a.cap);
      }
      p[r * tile + t] = z;
      top = fmaxf(top, z);
    }
    for (int i = lanes / 2; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, i, lanes));
    const float next = fmaxf(m, top), keep = m == -Infinity() ? 0.0f : expf(m - next);
    float sum = 0;
    for (int32_t t = lane; t < tile; t += lanes) {
      const float z = p[r * tile + t], e = z == -Infinity() ? 0.0f : expf(z - next);
      p[r * tile + t] = e;
      sum += e;
    }
    for (int i = lanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(kAllLanes, sum, i, lanes);
    l = l * keep + sum, m = next;
    __syncwarp();
    for (int32_t j = lane; j < d; j += lanes) {
      float s = acc[r * d + j] * keep;
      for (int32_t t = 0; t < n; ++t) s += p[r * tile + t] * v[t * (d + 1) + j];
      acc[r * d + j] = s;
    }
  }
  if (r >= rows) return;
  for (int32_t j = lane; j < d; j += lanes)
    a.out[(static_cast<int64_t>(row0 + r) * a.n_heads + h) * d + j] = __fdiv_rn(acc[r * d + j], l);
  if (lane == 0 && a.lse != nullptr) a.lse[h * a.lse_stride + row0 + r] = m + logf(l);
}

struct FoldParams {
  LayerParams layer;
  const int32_t* base;
  int32_t offset, n, n_heads, limit, tile;
  float scale, cap;
  const float *q, *lse;
  int64_t lse_stride;
  float* into;
  bool maxima;
};

// A tile of entries of one KV head a block: its column sums (or maxima) over all rows of all query heads of
// the group. Shared memory: k, q [tile, D + 1], p [tile, tile].
__global__ void __launch_bounds__(kThreads) fold_columns(const FoldParams a) {
  KVC_SHARED(float, shared);
  const int32_t d = a.layer.d, tile = a.tile, g = static_cast<int32_t>(blockIdx.y),
                group = a.n_heads / a.layer.n_heads;
  const int32_t key0 = static_cast<int32_t>(blockIdx.x) * tile, first_visible = a.base[g] + a.offset;
  const int32_t keys_end = a.base[g] + a.limit;
  if (key0 >= keys_end) return;
  const int32_t n = min(tile, keys_end - key0);
  float *k = shared, *q = k + tile * (d + 1), *p = q + tile * (d + 1);
  const int64_t head = g * a.layer.capacity;
  for (int32_t i = ThreadOfBlock(); i < tile * d; i += kThreads)
    k[i / d * (d + 1) + i % d] = i / d < n ? a.layer.keys[(head + key0 + i / d) * d + i % d] : 0.0f;
  const int32_t t = ThreadOfBlock();  // of a column, for those below tile
  float total = t < n ? a.into[head + key0 + t] : 0.0f;
  const float weight = a.maxima ? 1.0f : 1.0f / static_cast<float>(group);
  for (int32_t h = g * group; h < (g + 1) * group; ++h) {
    float sum = 0;
    const int32_t first_row = max(0, key0 - first_visible) / tile * tile;
    for (int32_t row0 = first_row; row0 < a.n; row0 += tile) {
      __syncthreads();
      for (int32_t i = ThreadOfBlock(); i < tile * d; i += kThreads)
        q[i / d * (d + 1) + i % d] =
            row0 + i / d < a.n ? a.q[(static_cast<int64_t>(row0 + i / d) * a.n_heads + h) * d + i % d] : 0.0f;
      __syncthreads();
      for (int32_t i = ThreadOfBlock(); i < tile * tile; i += kThreads) {
        const int32_t row = row0 + i / tile, c = i % tile;
        float e = 0;
        if (row < a.n && c < n && key0 + c <= first_visible + row) {
          float z = 0;
          for (int32_t j = 0; j < d; ++j) z += q[i / tile * (d + 1) + j] * k[c * (d + 1) + j];
          e = expf(Capped(a.scale * z, a.cap) - a.lse[h * a.lse_stride + row]);
        }
        p[i] = e;
      }
      __syncthreads();
      for (int32_t i = 0; t < n && i < tile; ++i) {
        if (a.maxima) {
          total = fmaxf(total, p[i * tile + t]);
        } else {
          sum += p[i * tile + t];
        }
      }
    }
    total = a.maxima ? total : total + weight * sum;
  }
  if (t < n) a.into[head + key0 + t] = total;
}

int32_t TileOf(int32_t d, int64_t (*floats)(int32_t, int32_t)) {
  int32_t tile = 32;
  while (tile > 4 && floats(tile, d) * sizeof(float) > kMostShared) tile /= 2;
  return tile;
}

}  // namespace

Status CudaDevice::AttendPrompt(Stream* s, const PromptAttentionArgs& a) {
  KVC_RETURN_IF_ERROR(Enter());
  KVC_RETURN_IF_ERROR(CheckHeadSize(a.layer.head_dim));
  const int32_t heads = a.layer.n_kv_heads, d = a.layer.head_dim, tile = TileOf(d, SharedFloats);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + Packet::Size<int32_t>(heads)));
  const LayerParams layer = LayerOf(a.layer, &packet);
  const AttendParams p{layer,         packet.Copy(a.rows.base, heads),
                       a.rows.offset, a.rows.n,
                       a.n_heads,     a.window,
                       tile,          a.scale,
                       a.cap,         At(a.q),
                       At(a.out),     At(a.lse),
                       a.lse_stride,  At(a.sinks)};
  KVC_RETURN_IF_ERROR(packet.Send());
  const dim3 grid(static_cast<unsigned>((a.rows.n + tile - 1) / tile), static_cast<unsigned>(a.n_heads));
  return Check(KVC_LAUNCH(attend_prompt, grid, dim3(kThreads),
                          static_cast<size_t>(SharedFloats(tile, d)) * sizeof(float), StreamOf(s), p),
               "attention of a prompt");
}

Status CudaDevice::FoldColumns(Stream* s, const ColumnArgs& a) {
  KVC_RETURN_IF_ERROR(Enter());
  const int32_t heads = a.layer.n_kv_heads, d = a.layer.head_dim, tile = TileOf(d, SharedFloats);
  const int32_t longest = *std::max_element(a.rows.base, a.rows.base + heads) + a.limit;
  if (longest <= 0) return {};
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + Packet::Size<int32_t>(heads)));
  const LayerParams layer = LayerOf(a.layer, &packet);
  const FoldParams p{layer,         packet.Copy(a.rows.base, heads),
                     a.rows.offset, a.rows.n,
                     a.n_heads,     a.limit,
                     tile,          a.scale,
                     a.cap,         At(a.q),
                     At(a.lse),     a.lse_stride,
                     At(a.into),    a.maxima};
  KVC_RETURN_IF_ERROR(packet.Send());
  const dim3 grid(static_cast<unsigned>((longest + tile - 1) / tile), static_cast<unsigned>(heads));
  const size_t shared = (2 * static_cast<size_t>(tile) * static_cast<size_t>(d + 1) +
                         static_cast<size_t>(tile) * static_cast<size_t>(tile)) *
                        sizeof(float);
  return Check(KVC_LAUNCH(fold_columns, grid, dim3(kThreads), shared, StreamOf(s), p),
               "attention by columns");
}

}  // namespace kvc::cuda

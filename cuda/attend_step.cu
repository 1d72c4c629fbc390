// The attention of a step over one segment of one head, for all query heads of the group. Byte model: every
// key and value of the segment once; flops 4 * D * group an entry.
//
// Tiles of 32 entries are decoded into shared memory as f32, a warp an entry at a time: its lanes read 16
// bytes each of the key and the value, which lie behind each other in a page. For the logits a lane has an
// entry and takes every number of its key for up to two query heads; for the sum of values a thread has a
// dimension and takes every value for all of them. Blocks are small, so that several on a multiprocessor keep
// reads on their way while others compute.
#include "cuda/launch.h"
#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// Shared memory: q [heads, D], k, v [tile, D + 1], p [heads, tile], m, l, keep [heads].
int64_t SharedFloats(int32_t heads, int32_t d) {
  return int64_t{heads} * d + 2 * int64_t{kTile} * (d + 1) + int64_t{heads} * kTile + 3 * heads;
}

// One vector of an entry by the lanes of a warp, 16 bytes at a time where its form has them.
KVC_DEVICE void LoadVector(const Pages& pages, const Slot& s, int which, float* x) {
  const PageFormat& f = *s.f;
  const bool halves =
      f.coding != EntryCoding::kCodebook && (f.type == KvType::kF16 || f.type == KvType::kBf16);
  if (!halves || f.d % 8 != 0) {
    for (int32_t j = Lane(); j < f.d; j += kWarp) x[j] = pages.Element(s, which, j);
    return;
  }
  const uint4* from = reinterpret_cast<const uint4*>(which == 0 ? s.key() : s.value());
  for (int32_t c = Lane(); c < f.d / 8; c += kWarp) {
    const uint4 v = from[c];
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) {
      const uint16_t low = static_cast<uint16_t>(words[i] & 0xffffu),
                     high = static_cast<uint16_t>(words[i] >> 16);
      x[8 * c + 2 * i] = f.type == KvType::kF16 ? HalfBits(low) : BfBits(low);
      x[8 * c + 2 * i + 1] = f.type == KvType::kF16 ? HalfBits(high) : BfBits(high);
    }
  }
}

// Block (item, chunk): query heads [first, first + n) of the group, n <= H. C: dimensions of a thread.
template <int H, int C>
__global__ void __launch_bounds__(kThreads) attend_step(const StepParams p) {
  KVC_SHARED(float, shared);
  const Segment item = p.items[blockIdx.x];
  const int32_t d = p.d, group = p.n_heads / p.n_kv_heads, g = item.head,
                first = static_cast<int32_t>(blockIdx.y) * H, n_heads = min(H, group - first);
  const RowParams& row = p.rows[item.row];
  const Pages pages(row.cache, g);
  float *q = shared, *k = q + H * d, *v = k + kTile * (d + 1), *z = v + kTile * (d + 1), *m = z + H * kTile,
        *l = m + H, *keep = l + H;
  const int64_t head0 = static_cast<int64_t>(item.row) * p.n_heads + g * group + first;
  for (int32_t i = ThreadOfBlock(); i < H * d; i += kThreads)
    q[i] = i / d < n_heads ? p.turned[head0 * d + i] : 0.0f;
  for (int32_t i = ThreadOfBlock(); i < H; i += kThreads) m[i] = -Infinity(), l[i] = 0;
  const bool turns = pages.head().rotated == 0;
  float acc[H][C] = {};
  for (int32_t at = item.begin; at < item.end; at += kTile) {
    const int32_t n = min(kTile, item.end - at);
    __syncthreads();
    for (int32_t t = WarpOfBlock(); t < kTile; t += kWarps) {
      if (t < n) {
        const Slot s = pages.At(at + t);
        LoadVector(pages, s, 0, k + t * (d + 1));
        LoadVector(pages, s, 1, v + t * (d + 1));
        __syncwarp();
        for (int32_t j = Lane(); turns && j < d / 2; j += kWarp)
          TurnPairAt(p.turn, row.in_cache ? s.rank() : s.position(), d, j, k + t * (d + 1));
      } else {
        for (int32_t j = Lane(); j < d; j += kWarp) k[t * (d + 1) + j] = v[t * (d + 1) + j] = 0;
      }
    }
    __syncthreads();
    {
      // A lane an entry, a warp every fourth query head.
      const int32_t t = Lane();
      uint32_t seen = 0;
      if (t < n) {
        const Slot s = pages.At(at + t);
        seen = s.f->seen_masks ? s.seen() >> first : ~0u;
        if (p.window > 0 && s.position() <= row.position - p.window) seen = 0;
      }
      float sum[(H + kWarps - 1) / kWarps] = {};
      for (int32_t j = 0; j < d; ++j) {
        const float key = k[t * (d + 1) + j];
        for (int x = 0; x < (H + kWarps - 1) / kWarps; ++x) {
          const int h = WarpOfBlock() + x * kWarps;
          if (h < H) sum[x] += q[h * d + j] * key;
        }
      }
      for (int x = 0; x < (H + kWarps - 1) / kWarps; ++x) {
        const int h = WarpOfBlock() + x * kWarps;
        if (h >= n_heads) continue;
        const float logit = (seen >> h & 1) != 0 ? Capped(sum[x] * p.scale, p.cap) : -Infinity();
        if (p.logits != nullptr && t < n) p.logits[(head0 + h) * p.stride + at + t] = logit;
        const float next = fmaxf(m[h], WarpMax(logit)), e = logit == -Infinity() ? 0.0f : expf(logit - next);
        const float all = WarpSum(e);
        z[h * kTile + t] = e;
        __syncwarp();
        if (t == 0) {
          keep[h] = m[h] == -Infinity() ? 0.0f : expf(m[h] - next);
          l[h] = l[h] * keep[h] + all;
          m[h] = next;
        }
      }
    }
    __syncthreads();
    for (int c = 0; c < C; ++c) {
      const int32_t j = ThreadOfBlock() + c * kThreads;
      if (j >= d) continue;
      for (int h = 0; h < H; ++h) acc[h][c] *= h < n_heads ? keep[h] : 0.0f;
      for (int32_t t = 0; t < n; ++t) {
        const float value = v[t * (d + 1) + j];
        for (int h = 0; h < H; ++h) acc[h][c] += (h < n_heads ? z[h * kTile + t] : 0.0f) * value;
      }
    }
  }
  __syncthreads();
  float* part = p.partial + static_cast<int64_t>(blockIdx.x) * group * (d + 2);
  for (int32_t h = ThreadOfBlock(); h < n_heads; h += kThreads)
    part[first + h] = m[h], part[group + first + h] = l[h];
  for (int c = 0; c < C; ++c) {
    const int32_t j = ThreadOfBlock() + c * kThreads;
    for (int h = 0; h < H && j < d; ++h) {
      if (h < n_heads) part[2 * group + static_cast<int64_t>(first + h) * d + j] = acc[h][c];
    }
  }
}

template <int H>
cudaError_t AttendHeads(const StepParams& p, int32_t n_items, CudaStream& stream) {
  const int32_t group = p.n_heads / p.n_kv_heads;
  const dim3 grid(static_cast<unsigned>(n_items), static_cast<unsigned>((group + H - 1) / H)),
      block(kThreads);
  const size_t shared = static_cast<size_t>(SharedFloats(H, p.d)) * sizeof(float);
  if (p.d <= kThreads) return KVC_LAUNCH((attend_step<H, 1>), grid, block, shared, stream, p);
  return KVC_LAUNCH((attend_step<H, 2>), grid, block, shared, stream, p);
}

}  // namespace

cudaError_t AttendSegments(const StepParams& p, int32_t n_items, CudaStream& stream) {
  const int32_t group = p.n_heads / p.n_kv_heads;
  if (group == 1) return AttendHeads<1>(p, n_items, stream);
  if (group == 2) return AttendHeads<2>(p, n_items, stream);
  if (group <= 4) return AttendHeads<4>(p, n_items, stream);
  return AttendHeads<8>(p, n_items, stream);
}

}  // namespace kvc::cuda

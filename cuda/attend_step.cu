// The attention of a step over one segment of one head, for all query heads of the group. Byte model: every
// key and value of the segment once; flops 4 * D * group an entry.
//
// Tiles of 32 entries are decoded into shared memory as f32 (read_tile.h); the next one is on its way while a
// tile is worked on. For the logits a lane has an entry and takes its key, four numbers at a time, for up to
// two query heads; for the sum of values a thread has a dimension and takes every value for all of them.
// Blocks are small, so that several on a multiprocessor compute while others wait.
#include "cuda/join_segments.h"
#include "cuda/launch.h"
#include "cuda/read_tile.h"
#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = kTileThreads, kWarps = kTileWarps;

// Of a block: StepShared.
int64_t SharedFloats(int32_t heads, int32_t d) {
  return (heads + 2 * int64_t{kTile}) * TileStride(d) + int64_t{heads} * kTile + 3 * heads;
}

// Products of a row with one or more others, all in shared memory.
template <int N>
KVC_DEVICE void DotRows(const float* row, const float* others, int32_t step, int32_t d, float (&sum)[N]) {
  int32_t j = 0;
  for (; j + 4 <= d; j += 4) {
    const float4 a = *reinterpret_cast<const float4*>(row + j);
    KVC_UNROLL
    for (int i = 0; i < N; ++i) {
      const float4 b = *reinterpret_cast<const float4*>(others + i * step + j);
      sum[i] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
  }
  for (; j < d; ++j) {
    KVC_UNROLL
    for (int i = 0; i < N; ++i) sum[i] += row[j] * others[i * step + j];
  }
}

// acc += value * weights, which are as many neighbours in shared memory.
template <int H>
KVC_DEVICE void AddHeads(const float* weights, float value, float (&acc)[H]) {
  if constexpr (H % 4 == 0) {
    KVC_UNROLL
    for (int h = 0; h < H; h += 4) {
      const float4 w = *reinterpret_cast<const float4*>(weights + h);
      acc[h] += w.x * value, acc[h + 1] += w.y * value, acc[h + 2] += w.z * value, acc[h + 3] += w.w * value;
    }
  } else {
    KVC_UNROLL
    for (int h = 0; h < H; ++h) acc[h] += weights[h] * value;
  }
}

// A block's shared memory.
struct StepShared {
  float *q, *k, *v;     // [heads, stride], [tile, stride]
  float* e;             // [tile, heads]: exponentials; 0 for heads that are none
  float *m, *l, *keep;  // [heads]: greatest logit, sum of exponentials, what earlier tiles are multiplied by
  KVC_DEVICE StepShared(float* shared, int heads, int32_t stride)
      : q(shared),
        k(q + heads * stride),
        v(k + kTile * stride),
        e(v + kTile * stride),
        m(e + heads * kTile),
        l(m + heads),
        keep(l + heads) {}
};

// Of the tile's n entries from `at` on, for query heads [first, first + n_heads) of the group: logits, where
// they are wanted, and their exponentials. A lane an entry, a warp every fourth query head.
template <int H>
KVC_DEVICE void ExponentialsOfTile(const StepParams& p, const Segment& item, const Pages& pages, int32_t at,
                                   int32_t n, int32_t first, int32_t n_heads, int64_t head0,
                                   const StepShared& s) {
  const RowParams& row = p.rows[item.row];
  constexpr int kHeadsOfWarp = (H + kWarps - 1) / kWarps;
  const int32_t t = Lane(), stride = TileStride(p.d);
  uint32_t seen = 0;
  float more = 0;
  if (t < n) {
    const Slot slot = pages.At(at + t);
    seen = slot.f->seen_masks ? slot.seen() >> first : ~0u;
    if (p.window > 0 && slot.position() <= row.position - p.window) seen = 0;
    if (at + t == 0) more = LogitOfRest(slot.position());
  }
  float sum[kHeadsOfWarp] = {};
  if (WarpOfBlock() < H) DotRows(s.k + t * stride, s.q + WarpOfBlock() * stride, kWarps * stride, p.d, sum);
  KVC_UNROLL
  for (int x = 0; x < kHeadsOfWarp; ++x) {
    const int h = WarpOfBlock() + x * kWarps;
    if (h >= n_heads) continue;
    const float logit = (seen >> h & 1) != 0 ? Capped(sum[x] * p.scale, p.cap) + more : -Infinity();
    if (p.logits != nullptr && t < n)
      p.logits[(head0 + h) * p.stride + p.Physical(item.row, item.head, pages, at + t)] = logit;
    const float m = s.m[h], top = fmaxf(m, WarpMax(logit)),
                e = logit == -Infinity() ? 0.0f : expf(logit - top);
    const float all = WarpSum(e);
    s.e[t * H + h] = e;
    __syncwarp();
    if (t == 0) {
      const float keep = m == -Infinity() ? 0.0f : expf(m - top);
      s.keep[h] = keep, s.l[h] = s.l[h] * keep + all, s.m[h] = top;
    }
  }
}

// Block (item, chunk): query heads [first, first + n) of the group, n <= H. C: dimensions of a thread.
template <int H, int C>
__global__ void __launch_bounds__(kThreads, C == 1 ? 3 : 2) attend_step(const StepParams p) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(float, shared);
  const Segment item = p.items[blockIdx.x];
  const int32_t d = p.d, stride = TileStride(d), group = p.n_heads / p.n_kv_heads, g = item.head,
                first = static_cast<int32_t>(blockIdx.y) * H, n_heads = min(H, group - first);
  const RowParams& row = p.rows[item.row];
  const Pages pages(row.read, g);
  const StepShared s(shared, H, stride);
  const TileReader reader(pages, s.k, s.v);
  FetchedBatch fetched;
  int32_t n = min(kTile, item.end - item.begin);
  if (reader.HasVectors(item.begin, n)) reader.Fetch(item.begin, n, 0, &fetched);
  const int64_t head0 = static_cast<int64_t>(item.row) * p.n_heads + g * group + first;
  for (int32_t i = ThreadOfBlock(); i < H * d; i += kThreads)
    s.q[i / d * stride + i % d] = i / d < n_heads ? p.turned[head0 * d + i] : 0.0f;
  for (int32_t i = ThreadOfBlock(); i < H * kTile; i += kThreads)
    s.e[i] = 0;  // and stays for heads that are none
  for (int32_t i = ThreadOfBlock(); i < H; i += kThreads) s.m[i] = -Infinity(), s.l[i] = 0, s.keep[i] = 0;
  const bool turns = pages.head().rotated == 0;
  float acc[C][H] = {};
  for (int32_t at = item.begin, batch = 0; at < item.end;) {
    // One batch of a tile, mostly all of it; the next is on its way while the tile is worked on.
    n = min(kTile, item.end - at);
    if (batch == 0) __syncthreads();
    const bool vectors = reader.HasVectors(at, n), complete = !vectors || batch + 1 == reader.Batches();
    if (vectors) {
      reader.Put(at, n, batch, fetched);
    } else {
      reader.PutElements(at, n);
    }
    if (complete && turns) reader.TurnKeys(at, n, p.angles, p.turn.pairing, row.in_cache);
    const int32_t tile = at, following = complete ? at + kTile : at,
                  n_following = min(kTile, item.end - following);
    batch = complete ? 0 : batch + 1, at = following;
    if (n_following > 0 && reader.HasVectors(following, n_following))
      reader.Fetch(following, n_following, batch, &fetched);
    if (!complete) continue;
    __syncthreads();
    ExponentialsOfTile<H>(p, item, pages, tile, n, first, n_heads, head0, s);
    __syncthreads();
    KVC_UNROLL
    for (int c = 0; c < C; ++c) {
      const int32_t j = ThreadOfBlock() + c * kThreads;
      if (j >= d) continue;
      KVC_UNROLL
      for (int h = 0; h < H; ++h) acc[c][h] *= s.keep[h];
      for (int32_t t = 0; t < n; ++t) {
        const float value = s.v[t * stride + j];
        AddHeads(s.e + t * H, value, acc[c]);
      }
    }
  }
  __syncthreads();
  float* part = p.partial + static_cast<int64_t>(blockIdx.x) * group * (d + 2);
  for (int32_t h = ThreadOfBlock(); h < n_heads; h += kThreads)
    part[first + h] = s.m[h], part[group + first + h] = s.l[h];
  KVC_UNROLL
  for (int c = 0; c < C; ++c) {
    const int32_t j = ThreadOfBlock() + c * kThreads;
    KVC_UNROLL
    for (int h = 0; h < H; ++h) {
      if (h < n_heads && j < d) part[2 * group + static_cast<int64_t>(first + h) * d + j] = acc[c][h];
    }
  }
  JoinIfLast<H, kThreads>(p);
}

size_t SharedBytes(int32_t heads, int32_t d) {
  return static_cast<size_t>(SharedFloats(heads, d)) * sizeof(float);
}

template <int H>
void AddHeads(KernelLoader* loader) {
  KVC_ADD_STEP(loader, (attend_step<H, 1>), SharedBytes(H, kThreads));
  KVC_ADD_STEP(loader, (attend_step<H, 2>), SharedBytes(H, kMostHeadSize));
}

template <int H>
cudaError_t AttendHeads(const StepParams& p, int32_t n_items, CudaStream& stream) {
  const int32_t group = p.n_heads / p.n_kv_heads;
  const dim3 grid(static_cast<unsigned>(n_items), static_cast<unsigned>((group + H - 1) / H)),
      block(kThreads);
  const size_t shared = SharedBytes(H, p.d);
  if (p.d <= kThreads) return KVC_LAUNCH_EARLY((attend_step<H, 1>), grid, block, shared, stream, p);
  return KVC_LAUNCH_EARLY((attend_step<H, 2>), grid, block, shared, stream, p);
}

}  // namespace

void AddAttendStepKernels(KernelLoader* loader) {
  AddHeads<1>(loader);
  AddHeads<2>(loader);
  AddHeads<4>(loader);
  AddHeads<8>(loader);
}

cudaError_t AttendSegments(const StepParams& p, int32_t n_items, CudaStream& stream) {
  const int32_t group = p.n_heads / p.n_kv_heads;
  if (group == 1) return AttendHeads<1>(p, n_items, stream);
  if (group == 2) return AttendHeads<2>(p, n_items, stream);
  if (group <= 4) return AttendHeads<4>(p, n_items, stream);
  return AttendHeads<8>(p, n_items, stream);
}

}  // namespace kvc::cuda

// What the kernels that attend to a segment with the fragments of tensor cores share: attend_step_mma.cu, of
// numbers of 16 bits, and attend_step_codes.cu, of codes. Each of a block's four warps has entries and a
// softmax of its own, and waits for no other until all are joined.
#pragma once
#include "cuda/step_params.h"

namespace kvc::cuda {

constexpr int kAttendWarps = 4, kAttendThreads = kAttendWarps * kWarp;

// Lane (u, v) = (lane / 4, lane % 4) of a warp; its i-th entry of 16 or 32, of the logits that it has.
KVC_DEVICE int RowOfLane() { return Lane() / 4; }
KVC_DEVICE int QuadOfLane() { return Lane() % 4; }
KVC_DEVICE int32_t FirstHeadOfBlock() { return static_cast<int32_t>(blockIdx.y) * kHeads; }
KVC_DEVICE int EntryOfLogit(int i) { return i / 2 * 8 + 2 * QuadOfLane() + i % 2; }

// The page of an entry in pages of `slots`, of_slots = ~0u / slots. With e and s for both: of_slots is no
// more than 2^32 / s and no less than 2^32 / s - 1, so, as e < 2^32, what is shifted down is no more than e /
// s and less than 1 below it, whatever they are: its whole part is the page or one less, and the rest says
// which.
KVC_DEVICE uint32_t PageOf(uint32_t entry, uint32_t slots, uint32_t of_slots) {
  const auto page = static_cast<uint32_t>(uint64_t{entry} * of_slots >> 32);
  return entry - page * slots >= slots ? page + 1 : page;
}

// Which entries query heads see, and what the lane has read of its own to know that.
class Sight {
 public:
  KVC_DEVICE Sight(bool masks, int32_t window, int32_t newest)
      : masks_(masks), oldest_(newest - window + 1) {}

  // Of entries from `at` on, which `reader` has looked up.
  template <typename Reader>
  KVC_DEVICE void Fetch(const StepParams& p, const Reader& reader, int32_t at) {
    if (masks_) mask_ = reader.Seen();
    if (p.window > 0 || at == 0) position_ = reader.Position();
  }
  // z: products of the lane's query head with the keys of its entries, of n from `at` on. They become logits,
  // `scale` times as large.
  template <int N>
  KVC_DEVICE void Logits(const StepParams& p, float scale, int32_t at, int32_t n, float (&z)[N]) const {
    KVC_UNROLL
    for (int i = 0; i < N; ++i) z[i] *= scale;
    if (p.cap > 0) {
      KVC_UNROLL
      for (int i = 0; i < N; ++i) z[i] = Capped(z[i], p.cap);
    }
    uint32_t hidden = 0;
    if (masks_ || p.window > 0) {
      const int32_t first = FirstHeadOfBlock();
      uint32_t mine = masks_ ? first < 32 ? mask_ >> first : 0u : ~0u;
      if (p.window > 0 && position_ < oldest_) mine = 0;
      KVC_UNROLL
      for (int i = 0; i < N; ++i)
        hidden |= (~__shfl_sync(kAllLanes, mine, EntryOfLogit(i)) >> RowOfLane() & 1) << i;
    }
    if (n < 4 * N) {
      KVC_UNROLL
      for (int i = 0; i < N; ++i) hidden |= (EntryOfLogit(i) < n ? 0u : 1u) << i;
    }
    if (hidden != 0) {
      KVC_UNROLL
      for (int i = 0; i < N; ++i) z[i] = (hidden >> i & 1) != 0 ? -Infinity() : z[i];
    }
    if (at > 0) return;
    const float more = LogitOfRest(__shfl_sync(kAllLanes, position_, 0));
    if (QuadOfLane() == 0) z[0] += more;
  }

 private:
  bool masks_;
  int32_t oldest_;
  uint32_t mask_ = 0;
  int32_t position_ = 0;
};

// What a block works on: query heads [first, first + n_heads) of the group of an item's head.
struct Work {
  Segment item;
  int32_t group, first, n_heads;
  int64_t head;  // the first of them, of all rows

  KVC_DEVICE explicit Work(const StepParams& p)
      : item(p.items[blockIdx.x]),
        group(p.n_heads / p.n_kv_heads),
        first(FirstHeadOfBlock()),
        n_heads(min(kHeads, group - first)),
        head(static_cast<int64_t>(item.row) * p.n_heads + item.head * group + first) {}
};

// The queries of a block's work: as step_append has left them, or turned here (StepParams::turned).
template <int kDims>
class Queries {
 public:
  KVC_DEVICE Queries(const StepParams& p, const Work& work)
      : n_(work.n_heads),
        q_((p.turned != nullptr ? p.turned : p.q) + work.head * kDims),
        angles_(p.turned != nullptr ? nullptr : p.rows[work.item.row].angles),
        pairing_(p.turn.pairing) {}

  // Dimensions c .. c + 3 of query head u of the work, a multiple of four; zeros of one that is none.
  KVC_DEVICE float4 Four(int u, int c) const {
    if (u >= n_) return {0, 0, 0, 0};
    const float* q = q_ + u * kDims;
    const float4 x = At(q + c);
    if (angles_ == nullptr) return x;
    constexpr int kHalf = kDims / 2;
    if (pairing_ == RopePairing::kHalf) {
      const bool first = c < kHalf;
      const int j = first ? c : c - kHalf;
      const float4 y = At(q + (first ? c + kHalf : j)), cos = At(angles_ + j), sin = At(angles_ + kHalf + j);
      const float sign = first ? -1.0f : 1.0f;
      return {Turned(x.x, sign * y.x, cos.x, sin.x), Turned(x.y, sign * y.y, cos.y, sin.y),
              Turned(x.z, sign * y.z, cos.z, sin.z), Turned(x.w, sign * y.w, cos.w, sin.w)};
    }
    const float2 cos = *reinterpret_cast<const float2*>(angles_ + c / 2),
                 sin = *reinterpret_cast<const float2*>(angles_ + kHalf + c / 2);
    return {Turned(x.x, -x.y, cos.x, sin.x), Turned(x.y, x.x, cos.x, sin.x), Turned(x.z, -x.w, cos.y, sin.y),
            Turned(x.w, x.z, cos.y, sin.y)};
  }

 private:
  KVC_DEVICE static float4 At(const float* x) { return *reinterpret_cast<const float4*>(x); }

  int32_t n_;
  const float *q_, *angles_;
  RopePairing pairing_;
};

// Logits z of the lane's entries, from `at` on, where somebody wants them. What it needs for that is read
// again: there are no registers to keep it.
template <int N>
KVC_DEVICE void WriteLogits(const StepParams& p, int32_t at, const float (&z)[N]) {
  const Work work(p);
  const Segment& item = work.item;
  const Pages pages(p.rows[item.row].read, item.head);
  const int32_t mine = p.Physical(item.row, item.head, pages, min(at + Lane() % (4 * N), item.end - 1));
  float* line = p.logits + (work.head + RowOfLane()) * p.stride;
  KVC_UNROLL
  for (int i = 0; i < N; ++i) {
    const int entry = EntryOfLogit(i);
    const int32_t to = __shfl_sync(kAllLanes, mine, entry);
    if (RowOfLane() < work.n_heads && at + entry < item.end) line[to] = z[i];
  }
}

// A warp's softmax: of query head u the greatest logit, and the lane's share of the sum of exponentials.
struct WarpSoftmax {
  float m = -Infinity(), l = 0;

  // Logits become exponentials, of those that are -infinity 0. What earlier sums are multiplied by.
  template <int N>
  KVC_DEVICE float Add(float (&z)[N]) {
    float most = z[0];
    KVC_UNROLL
    for (int i = 1; i < N; ++i) most = fmaxf(most, z[i]);
    const float top = fmaxf(m, QuadMax(most)), one = top == -Infinity() ? 0.0f : top,
                keep = QuickExp(m - one);
    float sum = 0;
    KVC_UNROLL
    for (int i = 0; i < N; ++i) {
      z[i] = QuickExp(z[i] - one);
      sum += z[i];
    }
    m = top, l = l * keep + sum;
    return keep;
  }
};

// What the warps of a block leave for each other in the end.
template <int kDims>
struct WarpParts {
  float m[kAttendWarps][kHeads], l[kAttendWarps][kHeads];
  alignas(16) float sums[kAttendWarps][kHeads][kDims + 4];
};

// What the warps have into that of the segment, in order. sums[r]: of query head u, in `unit`s, the four
// dimensions from first(r) on.
template <int kDims, typename First>
KVC_DEVICE void JoinWarps(const StepParams& p, const WarpSoftmax& mine, const float (&sums)[kDims / 16][4],
                          float unit, First&& first, WarpParts<kDims>* s) {
  const int thread = ThreadAgain(), warp = thread / kWarp, u = RowOfLane();
  const auto greatest = [s](int h) {
    float m = s->m[0][h];
    for (int w = 1; w < kAttendWarps; ++w) m = fmaxf(m, s->m[w][h]);
    return m;
  };
  if (QuadOfLane() == 0) s->m[warp][u] = mine.m;
  __syncthreads();
  const float keep = mine.m == -Infinity() ? 0.0f : expf(mine.m - greatest(u)), l = QuadSum(mine.l),
              share = keep * unit;
  if (QuadOfLane() == 0) s->l[warp][u] = l * keep;
  KVC_UNROLL
  for (int r = 0; r < kDims / 16; ++r)
    *reinterpret_cast<float4*>(&s->sums[warp][u][first(r)]) = {share * sums[r][0], share * sums[r][1],
                                                               share * sums[r][2], share * sums[r][3]};
  __syncthreads();
  const Work work(p);
  float* part = p.partial + static_cast<int64_t>(blockIdx.x) * work.group * (kDims + 2);
  for (int h = thread; h < work.n_heads; h += kAttendThreads) {
    float all = 0;
    for (int w = 0; w < kAttendWarps; ++w) all += s->l[w][h];
    part[work.first + h] = greatest(h), part[work.group + work.first + h] = all;
  }
  float* out = part + 2 * work.group + static_cast<int64_t>(work.first) * kDims;
  for (int i = thread; i < work.n_heads * kDims; i += kAttendThreads) {
    float all = 0;
    for (int w = 0; w < kAttendWarps; ++w) all += s->sums[w][i / kDims][i % kDims];
    out[i] = all;
  }
}

}  // namespace kvc::cuda

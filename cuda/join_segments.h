// A query head's segments (step_params.h) become what its attention gives, in their order.
#pragma once
#include "cuda/step_params.h"

namespace kvc::cuda {

// By a warp, whose lanes look at segments of their own. What a block waits for are turns of the second cache:
// one for what there is of the first segments, values and all, and one for kValues more of them.
class JoinedHead {
 public:
  float m, inverse;  // the greatest logit, a sink's counted; 1 over the sum of exponentials (Find)

  // Of query head h of row r.
  KVC_DEVICE JoinedHead(const StepParams& p, int32_t r, int32_t h, int32_t lane)
      : group_(p.n_heads / p.n_kv_heads),
        i_(h % group_),
        lane_(lane),
        own_(p.heads[static_cast<int64_t>(r) * p.n_kv_heads + h / group_]),
        stride_(static_cast<int64_t>(group_) * (p.d + 2)),
        first_(p.partial + own_.first * stride_),
        sink_(p.sinks != nullptr ? p.sinks[h] : -Infinity()),
        mine_(Of(lane)) {}

  KVC_DEVICE void Find() {
    float most = sink_, l = 0;
    EachOfLane([&](const Norms& of) { most = fmaxf(most, of.greatest); });
    m = WarpMax(most);
    EachOfLane([&](const Norms& of) {
      const float share = ShareOf(of);
      if (!(share < 0)) l += share * of.sum;
    });
    l = WarpSum(l);
    if (sink_ != -Infinity()) l += expf(sink_ - m);
    inverse = l > 0 ? __fdiv_rn(1.0f, l) : 0.0f;
  }

  // Finds them, and writes the output of d numbers, kAtOnce of a lane at once.
  template <int kAtOnce>
  KVC_DEVICE void Write(int32_t d, float* out) {
    float values[kValues][kAtOnce];
    Fetch(0, 0, d, values);  // before anybody knows its share
    Find();
    for (int32_t begin = 0; begin < d; begin += kAtOnce * kWarp) {
      float sums[kAtOnce] = {}, share = 0;
      for (int32_t x0 = 0; x0 < own_.n; x0 += kValues) {
        if (begin > 0 || x0 > 0) Fetch(x0, begin, d, values);
        const int32_t x = x0 + lane_;
        if (x0 % kWarp == 0) share = ShareOf(x0 == 0 ? mine_ : Of(x));
        KVC_UNROLL
        for (int s = 0; s < kValues; ++s) {
          const float of_segment = __shfl_sync(kAllLanes, share, x0 % kWarp + s);
          if (of_segment < 0) continue;
          KVC_UNROLL
          for (int c = 0; c < kAtOnce; ++c) sums[c] += of_segment * values[s][c];
        }
      }
      KVC_UNROLL
      for (int c = 0; c < kAtOnce; ++c) {
        const int32_t j = begin + c * kWarp + lane_;
        if (j < d) out[j] = sums[c] * inverse;
      }
    }
  }

 private:
  static constexpr int kValues = 16;  // segments whose values are on their way
  static_assert(kWarp % kValues == 0);

  // Of a segment: the greatest logit and the sum of exponentials. Nobody sees an entry of one that is none.
  struct Norms {
    float greatest, sum;
  };
  KVC_DEVICE Norms Of(int32_t x) const {
    if (x >= own_.n) return {-Infinity(), 0};
    const float* at = first_ + x * stride_ + i_;
    return {at[0], at[group_]};
  }
  // What exponentials of a segment are multiplied by; -1: nobody sees one of its entries. What is no number
  // stays none.
  KVC_DEVICE float ShareOf(const Norms& of) const { return of.sum == 0.0f ? -1.0f : expf(of.greatest - m); }
  // The lane's segments in order, some of them asked for at once; what comes behind the last is none.
  template <typename F>
  KVC_DEVICE void EachOfLane(F&& f) const {
    constexpr int kOnTheirWay = 4;
    f(mine_);
    for (int32_t x = lane_ + kWarp; x < own_.n; x += kOnTheirWay * kWarp) {
      Norms of[kOnTheirWay];
      KVC_UNROLL
      for (int i = 0; i < kOnTheirWay; ++i) of[i] = Of(x + i * kWarp);
      KVC_UNROLL
      for (int i = 0; i < kOnTheirWay; ++i) f(of[i]);
    }
  }
  // Numbers begin + 32 c + lane of the values of segments from x0 on.
  template <int kAtOnce>
  KVC_DEVICE void Fetch(int32_t x0, int32_t begin, int32_t d, float (&values)[kValues][kAtOnce]) const {
    KVC_UNROLL
    for (int s = 0; s < kValues; ++s) {
      const float* from = first_ + (x0 + s) * stride_ + 2 * group_ + i_ * d;
      KVC_UNROLL
      for (int c = 0; c < kAtOnce; ++c) {
        const int32_t j = begin + c * kWarp + lane_;
        values[s][c] = x0 + s < own_.n && j < d ? from[j] : 0.0f;
      }
    }
  }

  int32_t group_, i_, lane_;  // i_: the query head of the group
  HeadSegments own_;
  int64_t stride_;      // to the next segment
  const float* first_;  // partial, of the first segment and query head 0
  float sink_;
  Norms mine_;  // of the lane's first segment
};

// By all threads of a block that has written its item's part, of up to kMost query heads: in the last block
// of a head that comes here a warp joins a query head, in one turn where heads have kDims numbers. What is
// known already is found out again: there are no registers to keep it.
template <int kMost, int kDims>
KVC_DEVICE void JoinIfLast(const StepParams& p) {
  if (p.arrived == nullptr) return;
  __shared__ int32_t shared;
  const uint2 block = BlockAgain();
  const Segment item = p.items[block.x];
  const int64_t head = static_cast<int64_t>(item.row) * p.n_kv_heads + item.head;
  if (!IsLastOf(p.heads[head].n, p.arrived + head * gridDim.y + block.y, &shared)) return;
  const int32_t group = p.n_heads / p.n_kv_heads, thread = ThreadAgain(),
                first = static_cast<int32_t>(block.y) * kMost, end = min(first + kMost, group);
  for (int32_t i = first + thread / kWarp; i < end; i += BlockThreads() / kWarp) {
    const int32_t h = item.head * group + i;
    JoinedHead joined(p, item.row, h, thread % kWarp);
    joined.Write<kDims / kWarp>(p.d, p.out + (static_cast<int64_t>(item.row) * p.n_heads + h) * p.d);
  }
}

}  // namespace kvc::cuda

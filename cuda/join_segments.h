// A query head's segments (step_params.h) become what its attention gives, in their order.
#pragma once
#include "cuda/step_params.h"

namespace kvc::cuda {

// By a warp, whose lanes look at segments of their own: what a block waits for are two turns of the second
// cache.
struct JoinedHead {
  HeadSegments own;
  const float* first;      // partial, of the first segment and query head 0
  int64_t stride;          // to the next segment
  int32_t group, i, lane;  // i: the query head of the group
  float m, inverse;        // the greatest logit, a sink's counted; 1 over the sum of exponentials

  // Of query head h of row r.
  KVC_DEVICE JoinedHead(const StepParams& p, int32_t r, int32_t h, int32_t lane_of_warp)
      : group(p.n_heads / p.n_kv_heads), i(h % group), lane(lane_of_warp) {
    own = p.heads[static_cast<int64_t>(r) * p.n_kv_heads + h / group];
    stride = static_cast<int64_t>(group) * (p.d + 2);
    first = p.partial + own.first * stride;
    const float sink = p.sinks != nullptr ? p.sinks[h] : -Infinity();
    m = sink;
    for (int32_t x = lane; x < own.n; x += kWarp) m = fmaxf(m, Greatest(x));
    m = WarpMax(m);
    float l = 0;
    for (int32_t x = lane; x < own.n; x += kWarp) {
      const float share = ShareOf(x);
      if (!(share < 0)) l += share * Sum(x);
    }
    l = WarpSum(l);
    if (sink != -Infinity()) l += expf(sink - m);
    inverse = l > 0 ? __fdiv_rn(1.0f, l) : 0.0f;
  }

  // The output, of D numbers.
  KVC_DEVICE void Write(int32_t d, float* out) const {
    constexpr int kAtOnce = 4;  // numbers of a lane
    for (int32_t begin = 0; begin < d; begin += kAtOnce * kWarp) {
      float sums[kAtOnce] = {};
      for (int32_t x0 = 0; x0 < own.n; x0 += kWarp) {
        const float mine = x0 + lane < own.n ? ShareOf(x0 + lane) : -1.0f;
        KVC_UNROLL_BY(4)
        for (int32_t x = x0; x < min(x0 + kWarp, own.n); ++x) {
          const float share = __shfl_sync(kAllLanes, mine, x - x0),
                      *values = first + x * stride + 2 * group + i * d;
          KVC_UNROLL
          for (int c = 0; c < kAtOnce; ++c) {
            const int32_t j = begin + c * kWarp + lane;
            const float value = j < d ? values[j] : 0.0f;  // asked for before anybody knows its share
            if (!(share < 0)) sums[c] += share * value;
          }
        }
      }
      KVC_UNROLL
      for (int c = 0; c < kAtOnce; ++c) {
        const int32_t j = begin + c * kWarp + lane;
        if (j < d) out[j] = sums[c] * inverse;
      }
    }
  }

 private:
  KVC_DEVICE float Greatest(int32_t x) const { return first[x * stride + i]; }
  KVC_DEVICE float Sum(int32_t x) const { return first[x * stride + group + i]; }
  // What exponentials of a segment are multiplied by; -1: nobody sees one of its entries. What is no number
  // stays none.
  KVC_DEVICE float ShareOf(int32_t x) const { return Sum(x) == 0.0f ? -1.0f : expf(Greatest(x) - m); }
};

// By all threads of a block that has written its item's part, of up to kMost query heads: in the last block
// of a head that comes here a warp joins a query head. What is known already is found out again: there are no
// registers to keep it.
template <int kMost>
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
    JoinedHead(p, item.row, h, thread % kWarp)
        .Write(p.d, p.out + (static_cast<int64_t>(item.row) * p.n_heads + h) * p.d);
  }
}

}  // namespace kvc::cuda

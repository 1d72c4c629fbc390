// A query head's segments (step_params.h) become what its attention gives, in their order.
#pragma once
#include "cuda/step_params.h"

namespace kvc::cuda {

struct JoinedHead {
  HeadSegments own;
  const float* first;  // partial, of the first segment and query head 0
  int64_t stride;      // to the next segment
  int32_t group, i;    // the query head of the group
  float m, inverse;    // the greatest logit, a sink's counted; 1 over the sum of exponentials

  // Of query head h of row r.
  KVC_DEVICE JoinedHead(const StepParams& p, int32_t r, int32_t h)
      : group(p.n_heads / p.n_kv_heads), i(h % group) {
    own = p.heads[static_cast<int64_t>(r) * p.n_kv_heads + h / group];
    stride = static_cast<int64_t>(group) * (p.d + 2);
    first = p.partial + own.first * stride;
    const float sink = p.sinks != nullptr ? p.sinks[h] : -Infinity();
    m = sink;
    for (int32_t x = 0; x < own.n; ++x) m = fmaxf(m, Greatest(x));
    float l = sink == -Infinity() ? 0.0f : expf(sink - m);
    for (int32_t x = 0; x < own.n; ++x) {
      if (Sum(x) != 0.0f) l += expf(Greatest(x) - m) * Sum(x);
    }
    inverse = l > 0 ? __fdiv_rn(1.0f, l) : 0.0f;
  }
  KVC_DEVICE float Greatest(int32_t x) const { return first[x * stride + i]; }
  KVC_DEVICE float Sum(int32_t x) const { return first[x * stride + group + i]; }

  // Dimensions j, j + step, ... of the output, four at a time.
  KVC_DEVICE void Write(int32_t j, int32_t step, int32_t d, float* out) const {
    for (; j < d; j += 4 * step) {
      float sums[4] = {};
      for (int32_t x = 0; x < own.n; ++x) {
        if (Sum(x) == 0.0f) continue;
        const float share = expf(Greatest(x) - m), *values = first + x * stride + 2 * group + i * d;
        KVC_UNROLL
        for (int c = 0; c < 4; ++c) {
          if (j + c * step < d) sums[c] += share * values[j + c * step];
        }
      }
      KVC_UNROLL
      for (int c = 0; c < 4; ++c) {
        if (j + c * step < d) out[j + c * step] = sums[c] * inverse;
      }
    }
  }
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
    JoinedHead(p, item.row, h)
        .Write(thread % kWarp, kWarp, p.d, p.out + (static_cast<int64_t>(item.row) * p.n_heads + h) * p.d);
  }
}

}  // namespace kvc::cuda

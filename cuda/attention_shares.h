// What a step's attention gave each entry, of the logits and the segments that it left: shares of
// softmax(gain * z), as powers of those of softmax(z), normalised together with that of what a sink has.
#pragma once
#include "cuda/block.h"
#include "cuda/join_segments.h"

namespace kvc::cuda {

// Of a query head.
struct AttentionShares {
  float m, inverse;    // the greatest logit, 1 over the sum of exponentials
  float gain, factor;  // 1 over the sum of powers, with a gain of 1: 1

  KVC_DEVICE float Of(float logit) const {
    const float share = expf(logit - m) * inverse;
    return gain == 1.0f ? share : powf(share, gain) * factor;
  }
};

KVC_DEVICE const float* LogitsOf(const StepParams& p, int32_t r, int32_t h) {
  return p.logits + (static_cast<int64_t>(r) * p.n_heads + h) * p.stride;
}

// By a block, of query heads [first, end) of row r, which attend to the entries of `pages`. shares: [end -
// first], in shared memory.
KVC_DEVICE void BlockFindShares(const StepParams& p, int32_t r, const Pages& pages, int32_t first,
                                int32_t end, float gain, BlockSpace* space, AttentionShares* shares) {
  for (int32_t h = first + WarpOfBlock(); h < end; h += BlockThreads() / kWarp) {
    JoinedHead joined(p, r, h, Lane());
    joined.Find();
    if (Lane() == 0) shares[h - first] = {joined.m, joined.inverse, gain, 1.0f};
  }
  __syncthreads();
  for (int32_t h = first; gain != 1.0f && h < end; ++h) {
    const float* logits = LogitsOf(p, r, h);
    const AttentionShares powers = shares[h - first];  // times a factor of 1
    double all = 0;
    EachOfLine(
        pages.len(), [&](int32_t i) { return logits[pages.Physical(i)]; },
        [&](int32_t, float logit) { all += static_cast<double>(powers.Of(logit)); });
    all = BlockSum(all, space->doubles);
    if (p.sinks != nullptr) all += static_cast<double>(powers.Of(p.sinks[h]));
    if (ThreadOfBlock() == 0) shares[h - first].factor = all > 0 ? static_cast<float>(1 / all) : 0.0f;
    __syncthreads();
  }
}

}  // namespace kvc::cuda

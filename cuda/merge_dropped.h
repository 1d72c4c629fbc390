// Gives the values of the dropped entries of one head to kept ones (methods.md 2.9, 2.15), by one block:
// entries one after the other, as the definition has them, the dimensions of a value side by side. As
// lib/ops/cpu/merge_entries.h.
#pragma once
#include "cuda/block.h"
#include "cuda/select_line.h"

namespace kvc::cuda {

// All by ascending position.
struct DroppedLine {
  MergeRule rule;
  const uint8_t* mark;
  const float *sums, *counts;  // counts: BlockMergeInOrder only
  const int32_t* positions;
  int32_t n, d;
  uint32_t head;
  int32_t* links;  // scratch [n], of BlockMergeInOrder [2 n + 1]
  // Scratch of BlockMergeInOrder.
  float* line;     // [n]
  uint64_t* keys;  // [next power of two of n]
};

KVC_DEVICE float SpreadShare(const MergeRule& rule, float a, const float* sums, const int32_t* targets,
                             int32_t n, uint32_t head, int32_t position) {
  if (n <= 0) return 0.0f;
  double base = 0;
  for (int32_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(sums[targets[i]]);
    base = rule.by_maximum ? (base < x ? x : base) : base + x;
  }
  if (!rule.by_maximum) base /= n;
  const double ratio = static_cast<double>(a) / base;
  const double probability = base > 0 ? (ratio < 0 ? 0.0 : ratio < 1 ? ratio : 1.0) : (a > 0 ? 1.0 : 0.0);
  double share = probability;
  if (!rule.expected) {
    const uint32_t word =
        Philox(rule.sequence, head, static_cast<uint32_t>(position), kSpreadDraw, rule.seed)[0];
    share = Uniform(word) < probability ? 1.0 : 0.0;
  }
  return static_cast<float>(share / n);
}

// CaM. values: Add(target, factor, source), by the whole block.
template <typename Values>
KVC_DEVICE void BlockSpread(const DroppedLine& in, const Values& values, BlockSpace* s) {
  for (int32_t e = 0; e < in.n; ++e) {
    if (in.mark[e] != 0) continue;
    if (ThreadOfBlock() == 0) {
      int32_t n_targets = 0;
      for (int32_t t = e + 1; t < in.n && n_targets < in.rule.n_targets; ++t) {
        if (in.mark[t] != 0) in.links[n_targets++] = t;
      }
      s->told = n_targets;
      s->floats[0] = SpreadShare(in.rule, in.sums[e], in.sums, in.links, n_targets, in.head, in.positions[e]);
    }
    __syncthreads();
    const int32_t n_targets = s->told;
    const float factor = s->floats[0];
    for (int32_t i = 0; factor != 0.0f && i < n_targets; ++i) values.Add(in.links[i], factor, e);
    __syncthreads();
  }
}

// WeightedKV: the lowest average goes first, among equals the newest, each into its right neighbour that is
// still there. values: Mix(source, a_source, next, a_next), by the whole block.
template <typename Values>
KVC_DEVICE void BlockMergeInOrder(const DroppedLine& in, const Values& values, BlockSpace* s) {
  int32_t *next = in.links, *previous = in.links + in.n;
  for (int32_t e = ThreadOfBlock(); e < in.n; e += BlockThreads()) {
    in.line[e] = __fdiv_rn(in.sums[e], in.counts[e]);
    next[e] = e + 1, previous[e] = e - 1;
  }
  __syncthreads();
  const int32_t n_victims = BlockCompact(
      in.n, s, [&](int32_t e) { return in.mark[e] == 0; },
      [&](int32_t e, int32_t place) {
        in.keys[place] = SelectionKeyOf(in.line[e], static_cast<uint32_t>(e));
      });
  BlockSort(in.keys, n_victims);
  for (int32_t i = 0; i < n_victims; ++i) {
    const int32_t e = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(in.keys[i])), f = next[e],
                  before = previous[e];
    if (f < in.n) values.Mix(e, in.line[e], f, in.line[f]);
    __syncthreads();
    if (ThreadOfBlock() == 0) {
      if (f < in.n) previous[f] = before;
      if (before >= 0) next[before] = f;
    }
    __syncthreads();
  }
}

KVC_DEVICE float MixOf(float a_gone, float gone, float a_next, float next) {
  const float sum = a_gone + a_next;
  return sum > 0 ? __fdiv_rn(a_gone * gone + a_next * next, sum) : next;
}

}  // namespace kvc::cuda

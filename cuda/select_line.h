// Choosing among the entries of one head by one block (methods.md 1.7, 2.5, 2.17); as SelectEntries of
// lib/ops/cpu/select.cc.
#pragma once
#include "cuda/block.h"
#include "lib/base/philox.h"
#include "lib/ops/score_ops.h"

namespace kvc::cuda {

struct LineToSelect {
  SelectRule rule;
  int32_t n_random;  // DrawnCount of `count`, kDraw only
  const float* scores;
  const int32_t* positions;  // kDraw only
  int32_t n, count;
  uint32_t head;
  float* line;    // scratch [n], kDraw only
  uint8_t* mark;  // [n]
};

KVC_DEVICE void BlockSelectEntries(const LineToSelect& in, BlockSpace* s) {
  const int32_t sink = in.rule.protect.n_sink, fixed = sink + in.rule.protect.n_recent;
  for (int32_t i = ThreadOfBlock(); i < in.n; i += BlockThreads()) in.mark[i] = 1;
  __syncthreads();
  if (in.n <= fixed + in.count) return;
  if (in.rule.kind == SelectKind::kLowest) {
    const int32_t n_free = in.n - in.rule.protect.n_recent, drop = in.n - KeptCount(in.rule, in.n, in.count);
    BlockMarkTop([&](int32_t i) { return ScoreBits(in.scores[i]); }, n_free, n_free - drop, s,
                 [&](int32_t i, bool yes) { in.mark[i] = yes ? 1 : 0; });
    return;
  }
  const int32_t n_free = in.n - fixed;
  const float* scores = in.scores + sink;
  uint8_t* mark = in.mark + sink;
  const int32_t n_random = in.rule.kind == SelectKind::kDraw ? in.n_random : 0, n_top = in.count - n_random;
  BlockMarkTop([&](int32_t i) { return ScoreBits(scores[i]); }, n_free, n_top, s,
               [&](int32_t i, bool yes) { mark[i] = yes ? 1 : 0; });
  if (in.rule.kind != SelectKind::kDraw) return;
  for (int32_t t = ThreadOfBlock(); t < n_free; t += BlockThreads()) {
    const double u = Uniform(
        Philox(in.head, static_cast<uint32_t>(in.positions[sink + t]), 0, kSelectDraw, in.rule.seed)[0]);
    const double gumbel = u > 0 ? -log(-log(u)) : -static_cast<double>(Infinity());
    // What the first part took goes below everything that is left, whatever that is: a score that is no
    // number counts as the least one there is.
    const float drawn = static_cast<float>(static_cast<double>(scores[t]) + gumbel), least = -3.402823466e38f;
    in.line[t] = mark[t] != 0 ? -Infinity() : drawn > least ? drawn : least;
  }
  __syncthreads();
  BlockMarkTop([&](int32_t i) { return ScoreBits(in.line[i]); }, n_free, min(n_random, n_free - n_top), s,
               [&](int32_t i, bool yes) {
                 if (yes) mark[i] = 1;
               });
}

}  // namespace kvc::cuda

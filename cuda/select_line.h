// Choosing among the entries of one head by one block (methods.md 1.7, 2.5, 2.17); as SelectEntries of
// lib/ops/cpu/select.cc.
#pragma once
#include "cuda/block.h"
#include "lib/ops/score_ops.h"

namespace kvc::cuda {

constexpr uint32_t kDrawTag = 0x4E, kSpreadTag = 0xCA;  // methods.md 3.8

// As KeptCount of score_ops.h.
KVC_DEVICE int32_t KeptOf(const SelectRule& rule, int32_t n, int32_t count) {
  const int32_t fixed = rule.protect.n_sink + rule.protect.n_recent;
  if (n <= fixed + count) return n;
  if (rule.kind != SelectKind::kLowest) return fixed + max(count, 0);
  const int32_t budget = max(count, 0) + rule.protect.n_recent, n_free = n - rule.protect.n_recent,
                at_once = rule.drop > 0 ? rule.drop : max(budget / 2, 1);
  return n - min(at_once * ((n - budget + at_once - 1) / at_once), n_free);
}

struct LineToSelect {
  SelectRule rule;
  int32_t n_random;  // of `count`, kDraw (host: SelectRandom)
  const float* scores;
  const int32_t* positions;  // kDraw only
  int32_t n, count;
  uint32_t head;
  float* line;    // scratch [n], kDraw only
  uint8_t* mark;  // [n]
};

// The random share rounds half up, as a rational.
inline int32_t SelectRandom(const SelectRule& rule, int32_t count) {
  const double exact = rule.random_share * 1e6;
  const int64_t millionths = static_cast<int64_t>(exact + (exact < 0 ? -0.5 : 0.5));
  return static_cast<int32_t>((2 * millionths * count + 1000000) / 2000000);
}

KVC_DEVICE void BlockSelectEntries(const LineToSelect& in, BlockSpace* s) {
  const int32_t sink = in.rule.protect.n_sink, fixed = sink + in.rule.protect.n_recent;
  for (int32_t i = ThreadOfBlock(); i < in.n; i += BlockThreads()) in.mark[i] = 1;
  __syncthreads();
  if (in.n <= fixed + in.count) return;
  if (in.rule.kind == SelectKind::kLowest) {
    const int32_t n_free = in.n - in.rule.protect.n_recent, drop = in.n - KeptOf(in.rule, in.n, in.count);
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
    const double u = UniformOf(
        PhiloxWord(in.head, static_cast<uint32_t>(in.positions[sink + t]), 0, kDrawTag, in.rule.seed));
    const double gumbel = u > 0 ? -log(-log(u)) : -static_cast<double>(Infinity());
    // What the first part took goes below everything that is left.
    in.line[t] =
        mark[t] != 0 ? -3.402823466e38f : static_cast<float>(static_cast<double>(scores[t]) + gumbel);
  }
  __syncthreads();
  BlockMarkTop([&](int32_t i) { return ScoreBits(in.line[i]); }, n_free, min(n_random, n_free - n_top), s,
               [&](int32_t i, bool yes) {
                 if (yes) mark[i] = 1;
               });
}

}  // namespace kvc::cuda

// Gives the values of the dropped entries of one head to kept ones. The same for a prompt and for a decode
// step; `Values` knows where they lie: Get(i) -> const float* [D] (valid until the next Get), Add(i, factor,
// v), Mix(i, a_gone, v_gone, a_next).
#pragma once
#include <algorithm>

#include "lib/compress/merge.h"
#include "lib/compress/select.h"

namespace kvc {

struct DroppedEntries {
  const Policy& policy;
  const uint8_t* mark;       // [n], 1 = kept
  const float* sums;         // accumulated attention [n]
  const float* counts;       // rows it was accumulated over [n]; CaM: null
  const int32_t* positions;  // [n]
  int32_t n;
  uint32_t head;   // layer * G + KV head
  int32_t* links;  // scratch [3 * n]
  float* line;     // scratch [n]
};

template <typename Values>
void MergeCam(const DroppedEntries& in, Values& values) {
  const int32_t limit = in.policy.Int(OptionId::kMergeBudget);
  for (int32_t e = 0; e < in.n; ++e) {
    if (in.mark[e] != 0) continue;
    int32_t n_targets = 0;
    for (int32_t t = e + 1; t < in.n && n_targets < limit; ++t) {
      if (in.mark[t] == 0) continue;
      in.line[n_targets] = in.sums[t];
      in.links[n_targets++] = t;
    }
    const float factor = CamFactor(in.policy, in.sums[e], in.line, n_targets, in.head, in.positions[e]);
    if (factor == 0.0f) continue;
    const float* v = values.Get(e);
    for (int32_t i = 0; i < n_targets; ++i) values.Add(in.links[i], factor, v);
  }
}

// The lowest average goes first, among equals the newest, each into its right neighbour that is still there.
template <typename Values>
void MergeWeighted(const DroppedEntries& in, Values& values) {
  int32_t *victims = in.links, *next = victims + in.n, *previous = next + in.n;
  int32_t n_victims = 0;
  for (int32_t e = 0; e < in.n; ++e) {
    in.line[e] = in.sums[e] / in.counts[e];
    next[e] = e + 1, previous[e] = e - 1;
    if (in.mark[e] == 0) victims[n_victims++] = e;
  }
  std::sort(victims, victims + n_victims, [&](int32_t a, int32_t b) {
    return SelectionKey(in.line[a], static_cast<uint32_t>(a)) <
           SelectionKey(in.line[b], static_cast<uint32_t>(b));
  });
  for (int32_t i = 0; i < n_victims; ++i) {
    const int32_t e = victims[i], f = next[e];
    if (f < in.n) {
      values.Mix(f, in.line[e], values.Get(e), in.line[f]);
      previous[f] = previous[e];
    }
    if (previous[e] >= 0) next[previous[e]] = f;
  }
}

template <typename Values>
void MergeDropped(ReduceKind kind, const DroppedEntries& in, Values& values) {
  if (kind == ReduceKind::kCam) MergeCam(in, values);
  if (kind == ReduceKind::kWeighted && in.policy.Flag(OptionId::kWkvMerge)) MergeWeighted(in, values);
}

}  // namespace kvc

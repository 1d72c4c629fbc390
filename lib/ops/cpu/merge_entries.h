// Gives the values of the dropped entries of one head to kept ones (methods.md 2.9, 2.15). The same for a
// prompt and for a step; what becomes one entry (2.25) is a prompt's alone: select.cc. `Values` knows where
// they lie: Get(i) -> const float* [D] (valid until the next Get), Add(i, factor, v), Mix(i, a_gone, v_gone,
// a_next).
#pragma once
#include <algorithm>

#include "lib/ops/cpu/line_ops.h"
#include "lib/ops/cpu/select.h"

namespace kvc::cpu {

// All by ascending position.
struct DroppedEntries {
  const MergeRule& rule;
  const uint8_t* mark;       // [n], 1 = kept
  const float* sums;         // accumulated attention [n]
  const float* counts;       // rows it was accumulated over [n]; kSpread: null
  const int32_t* positions;  // [n]
  int32_t n;
  uint32_t head;   // layer * G + KV head
  int32_t* links;  // scratch [3 * n]
  float* line;     // scratch [n]
};

template <typename Values>
void SpreadDropped(const DroppedEntries& in, Values& values) {
  int32_t* kept = in.links;
  int32_t n_kept = 0;
  for (int32_t e = 0; e < in.n; ++e)
    if (in.mark[e] != 0) kept[n_kept++] = e;
  for (int32_t e = 0, next = 0; e < in.n; ++e) {  // next: into kept, the first behind e
    if (in.mark[e] != 0) {
      ++next;
      continue;
    }
    const int32_t n_targets = std::min(in.rule.n_targets, n_kept - next);
    for (int32_t i = 0; i < n_targets; ++i) in.line[i] = in.sums[kept[next + i]];
    const float factor = SpreadFactor(in.rule, in.sums[e], in.line, n_targets, in.head, in.positions[e]);
    if (factor == 0.0f) continue;
    const float* v = values.Get(e);
    for (int32_t i = 0; i < n_targets; ++i) values.Add(kept[next + i], factor, v);
  }
}

// The lowest average first, among equals the newest. Not a part of the template: every kind would bring a
// sort of its own.
inline void SortVictims(const DroppedEntries& in, int32_t* victims, int32_t n) {
  std::sort(victims, victims + n, [&in](int32_t a, int32_t b) {
    return SelectionKey(in.line[a], static_cast<uint32_t>(a)) <
           SelectionKey(in.line[b], static_cast<uint32_t>(b));
  });
}

// The victims go in that order, each into its right neighbour that is still there.
template <typename Values>
void MixDropped(const DroppedEntries& in, Values& values) {
  int32_t *victims = in.links, *next = victims + in.n, *previous = next + in.n;
  int32_t n_victims = 0;
  for (int32_t e = 0; e < in.n; ++e) {
    in.line[e] = in.sums[e] / in.counts[e];
    next[e] = e + 1, previous[e] = e - 1;
    if (in.mark[e] == 0) victims[n_victims++] = e;
  }
  SortVictims(in, victims, n_victims);
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
void MergeDropped(const DroppedEntries& in, Values& values) {
  switch (in.rule.kind) {
    case MergeKind::kSpread:
      return SpreadDropped(in, values);
    case MergeKind::kIntoNext:
      return MixDropped(in, values);
    case MergeKind::kNone:
    case MergeKind::kIntoRest:  // of whole prompts
      return;
  }
}

}  // namespace kvc::cpu

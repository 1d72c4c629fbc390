// What an allocator is given.
#pragma once
#include <cstdint>

#include "lib/base/span.h"
#include "lib/compress/policy.h"

namespace kvc {

struct AllocateInput {
  const Policy& policy;
  int32_t n_layers, n_heads, n_kv_heads;
  int32_t n;                             // entries of every head, the protected ones included, or kUnbounded
  int32_t budget;                        // C: average slots per KV head
  int32_t n_protected;                   // of them always kept
  Span<const double> head_scores;        // [L, G] or [L, H] when the allocator needs them
  int32_t table_alpha;                   // CoKV: alpha stored with the table, 0 = none
  Span<const int64_t> entry_bytes = {};  // [L, G] of one more entry, where bytes are shared; else empty
  int64_t candidate_bytes = 0;           // to share
  // The layers that share the budget, by their numbers in the model; empty: those are all of it. [n_layers]
  Span<const int32_t> layers = {};
  // [n_layers, G] candidates that heads can have, where they hold fewer than n says; else empty.
  Span<const int32_t> room = {};
  static constexpr int32_t kUnbounded = 1 << 28;  // a length no prompt has: of caps for whatever comes
  int32_t LayerAt(int32_t i) const { return layers.empty() ? i : layers[static_cast<size_t>(i)]; }
};

}  // namespace kvc

// What the parts of a method are given. Views only; everything belongs to the compressor.
#pragma once
#include <cstdint>

#include "lib/base/span.h"
#include "lib/cache/layer_kv.h"
#include "lib/compress/policy.h"
#include "lib/ops/ops.h"

namespace kvc {

struct AllocateInput {
  const Policy& policy;
  int32_t n_layers, n_heads, n_kv_heads;
  int32_t n;                             // entries of every head, the protected ones included
  int32_t budget;                        // C: average slots per KV head
  int32_t n_protected;                   // of them always kept
  Span<const double> head_scores;        // [L, G] or [L, H] when the allocator needs them
  int32_t table_alpha;                   // CoKV: alpha stored with the table, 0 = none
  Span<const int64_t> entry_bytes = {};  // [L, G] of one more entry, where bytes are shared; else empty
  int64_t candidate_bytes = 0;           // to share
};

// Scratch of scoring: rows of probabilities per thread, and one line per query head. Stride is at least the
// longest head.
struct ScoreScratch {
  int64_t stride = 0;
  float* per_head = nullptr;  // [H, stride]
  float* rows = nullptr;      // [threads, kRowTile, stride]
  float* lines = nullptr;     // [threads, 2, stride]
  static constexpr int32_t kRowTile = 8;
};

struct ScoreInput {
  const Policy& policy;
  const OpContext& ops;
  const LayerKv& kv;
  const Observation& observed;
  const ScoreScratch& scratch;
  int32_t layer, n_heads;
  int32_t budget;  // C
  Protected protect;
  float scale;  // of the attention logits
  int32_t group() const { return n_heads / kv.n_kv_heads; }
};

struct ScoreOutput {
  float* scores;  // [G, stride]
  int64_t stride;
  LayerKv* kv;  // the same as the input's; scorers with side values add the new rows to its aux
};

// Choosing one head's entries, in the prompt and at decode. Result: mark[i] = 1 for every kept entry.
struct SelectInput {
  const Policy& policy;
  const float* scores;  // [n]
  int32_t layer, kv_head, n_kv_heads, n;
  int32_t count;  // candidates to keep beyond the protected part
  Protected protect;
  const int32_t* positions;  // [n]
  uint64_t* keys;            // scratch [n]
  float* line;               // scratch [n]
  uint8_t* mark;             // [n]
};

// One head of the cache at decode. All arrays are in rank order (ascending position).
struct DecodeInput {
  const Policy& policy;
  const float* p;     // the step's probabilities [n]: group mean, or mean of the layer for one_set_per_layer
  float* const* aux;  // n_aux pointers to [n]
  const int32_t* positions;  // [n]; the last is the token just fed
  const float* new_value;    // [D] of the token just fed
  int32_t n, head_dim;
  int32_t budget;  // C
};

// out[h * stride + t] = sum over the last n_rows recorded rows i of weight[i] * P[h, i, t] (weights null: 1),
// t in [0, len of the head). gain: factor on the logits per row, or null. pool_kernel > 1 pools every row
// over [0, n_columns) before it is added.
struct RowSums {
  int32_t n_rows = 0;
  const float* weight = nullptr;
  const float* gain = nullptr;
  int32_t pool_kernel = 1;
  bool pool_avg = false, shrink_edges = false;
  int32_t n_pool_tail = 0;  // columns at the end that pooling leaves out
};
void SumRows(const ScoreInput& in, const RowSums& what, float* out);
// The probabilities of one recorded row, oldest = 0, of query head h: p [len of its KV head].
void OneRow(const ScoreInput& in, int32_t row, int32_t query_head, float* p);
// Keys the row sees in KV head g.
inline int32_t VisibleKeys(const ScoreInput& in, int32_t row, int32_t g) {
  return in.kv.len[static_cast<size_t>(g)] - in.observed.n_rows + 1 + row;
}
// Reduces the query heads of group g at columns [0, n): mean, max or sum.
void ReduceGroup(const ScoreInput& in, const float* per_head, int32_t g, int32_t n, float* out);

}  // namespace kvc

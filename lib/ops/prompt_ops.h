// The attention of a prompt, a chunk of rows at a time over one layer at full length, and what is recorded of
// it.
#pragma once
#include <cstdint>

#include "lib/ops/cache_ops.h"

namespace kvc {

// Rows of a prompt: `offset` tokens behind base[g], the entries each head had before it.
struct PromptRows {
  const int32_t* base;  // [G]
  int32_t offset, n;
};

// q is turned in place; k and v become entries base + offset .. of the layer, with their positions, side
// values 0 and seen by all; the lengths follow.
struct PlaceArgs {
  LayerView layer;
  PromptRows rows;
  int32_t n_heads;
  int32_t first_position;       // of the row with offset 0
  KeyTurning turning;           // in_cache: by the place in the head instead of the position
  DevicePtr<float> q;           // [n, H, D]
  DevicePtr<const float> k, v;  // [n, G, D]
  DeviceBytes scratch;
};

// Causal: row i of head g sees the entries [0, base[g] + offset + i], of these only the newest `window` when
// > 0, and where the layer has seen masks only its own.
struct PromptAttentionArgs {
  LayerView layer;
  PromptRows rows;
  int32_t n_heads, window;
  float scale;
  DevicePtr<const float> q;
  DevicePtr<float> out;  // [n, H, D]; null: only lse is wanted
  DevicePtr<float> lse;  // [H, lse_stride] log sum exp of every row, null: not wanted
  int64_t lse_stride;
  float cap = 0;  // scaled logits z become cap * tanh(z / cap); 0: they stay
  // [H] logits that join the softmax of every row of a query head, and its lse; null: none.
  DevicePtr<const float> sinks = {};
};

// What columns take of probabilities: the group mean of their sums, or of the sums of their squares, is
// added; or the largest of any row and query head of the group counts.
enum class ColumnFold : uint8_t { kSums, kSquares, kMaxima };

// What the rows of a chunk look at, over the entries [0, base[g] + limit): into [G, capacity]. An entry gets
// nothing of query heads that do not see it.
struct ColumnArgs {
  LayerView layer;
  PromptRows rows;
  int32_t n_heads, limit;
  float scale;
  DevicePtr<const float> q, lse;
  int64_t lse_stride;
  DevicePtr<float> into;
  ColumnFold fold;
  float cap = 0;  // as of PromptAttentionArgs

  // exp(z - lse)^2 is exp(2 z - 2 lse), and 2 cap tanh(2 z / (2 cap)) = 2 cap tanh(z / cap).
  float power() const { return fold == ColumnFold::kSquares ? 2.0f : 1.0f; }
};

// Both for the same rows, layer and logits, which a device may then make once. Where attend has no window and
// all rows see what is folded: limit <= offset of the rows.
struct AttendAndFoldArgs {
  PromptAttentionArgs attend;  // with lse
  ColumnArgs fold;
  // Device::AttendAndFoldScratchBytes of scratch_entries: as many as the longest head of any layer may have.
  DeviceBytes scratch;
  int64_t scratch_entries;
};

}  // namespace kvc

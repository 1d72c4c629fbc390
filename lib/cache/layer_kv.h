// One layer while its prompt is worked on: full-length keys and values in f32, before compression. Only one
// layer has this at a time.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/memory_meter.h"

namespace kvc {

// Per KV head h: entries [0, len[h]) in ascending position; first the ones that were cached, then the new
// tokens.
struct LayerKv {
  int32_t n_kv_heads = 0, head_dim = 0;
  int64_t capacity = 0;  // entries per head
  Buffer<float> keys,
      values;  // [G, capacity, D]; keys carry their rotation (in-cache sessions: at their slot)
  Buffer<int32_t> positions;  // [G, capacity], original positions
  Buffer<float> aux;          // [n_aux, G, capacity], side values of the scorer
  int32_t n_aux = 0;
  std::vector<int32_t> len;  // [G]
  bool has_seen = false;     // query heads of a group see entries of their own (SpindleKV)
  Buffer<uint32_t> seen;     // [G, capacity], bit j: query head j of the group sees the entry

  float* Keys(int h) { return keys.data() + h * capacity * head_dim; }
  const float* Keys(int h) const { return keys.data() + h * capacity * head_dim; }
  float* Values(int h) { return values.data() + h * capacity * head_dim; }
  const float* Values(int h) const { return values.data() + h * capacity * head_dim; }
  int32_t* Positions(int h) { return positions.data() + h * capacity; }
  const int32_t* Positions(int h) const { return positions.data() + h * capacity; }
  uint32_t* Seen(int h) { return has_seen ? seen.data() + h * capacity : nullptr; }  // null: all see all
  const uint32_t* Seen(int h) const { return has_seen ? seen.data() + h * capacity : nullptr; }
  float* Aux(int a, int h) { return aux.data() + (int64_t{a} * n_kv_heads + h) * capacity; }
  const float* Aux(int a, int h) const { return aux.data() + (int64_t{a} * n_kv_heads + h) * capacity; }
};

// What the forward pass records of one layer for the scorer, and only that.
struct Observation {
  // The newest rows: queries after RoPE, oldest first. Row i sees the entries [0, len[h] - n_rows + 1 + i) of
  // every head.
  int32_t n_rows = 0;
  int32_t n_new = 0;         // new tokens of the prompt: the rows that column sums are over
  Buffer<float> queries;     // [n_rows, H, D]
  bool column_sums = false;  // whether sums below were wanted
  Buffer<float> sums;  // [G, capacity of the LayerKv]: group mean of the summed probabilities of the new rows
  bool reread = false;   // whether maxima below were wanted
  Buffer<float> maxima;  // [G, capacity]: largest probability that a reread row of a query head of g gave
};

}  // namespace kvc

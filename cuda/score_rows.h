// What recorded rows see of every entry, on the tensor cores.
#pragma once
#include "cuda/layer_params.h"

namespace kvc::cuda {

// The rows that a score uses: the last `n` of those recorded.
struct RowScores {
  LayerParams layer;
  int32_t n_heads, n, longest;  // longest: entries of a KV head
  float scale, cap;
  const float* queries;        // [n, H, D]
  const float *weight, *gain;  // [n]; [G, n], null: 1
  const float* sinks;          // [H], null: none
  float *row_max, *row_sum;    // [H, n]: greatest logit, a sink's included, and sum of exponentials
  float* partial;              // RowPartialFloats
  float* per_head;             // [H, stride]
  int64_t stride;

  KVC_DEVICE float GainOf(int32_t g, int32_t i) const { return gain != nullptr ? gain[g * n + i] : 1.0f; }
  // Entries that row i sees of KV head g.
  KVC_DEVICE int32_t Visible(int32_t g, int32_t i) const { return layer.len[g] - n + 1 + i; }
};
int64_t RowPartialFloats(int32_t n_heads, int32_t n, int64_t stride);

// row_max and row_sum of all rows.
cudaError_t NormaliseRows(const RowScores& r, CudaStream& stream);
// per_head: the weighted sum of the rows' probabilities. After NormaliseRows.
cudaError_t SumRows(const RowScores& r, CudaStream& stream);

}  // namespace kvc::cuda

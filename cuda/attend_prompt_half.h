// Attention of a prompt's rows over keys and values of f16, of heads of 64 and of 128 numbers.
#pragma once
#include "cuda/kernels.h"
#include "cuda/stream.h"

namespace kvc::cuda {

// As PromptAttentionArgs, of a layer at full length with numbers of f16, which begin at multiples of 16
// bytes.
struct PromptHalfParams {
  const uint16_t *keys, *values;  // [G, capacity, D]
  const int32_t* positions;       // [G, capacity]
  const uint32_t* seen;           // [G, capacity], null: all see all
  int64_t capacity;
  int32_t d, n_kv_heads, n_heads;
  const int32_t* base;  // [G]
  int32_t offset, n, window;
  float scale, cap;
  const float* q;
  float *out, *lse;  // either null: not wanted
  int64_t lse_stride;
  const float* sinks;  // [H], null: none
};

inline bool IsForPromptHalf(int32_t head_dim) { return head_dim == 64 || head_dim == 128; }
cudaError_t AttendPromptHalf(const PromptHalfParams& p, CudaStream& stream);

}  // namespace kvc::cuda

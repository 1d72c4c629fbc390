// Products and rows, for network.cu: each issues one kernel.
#pragma once
#include "cuda/weights.h"

namespace kvc::cuda {

// A few rows: every weight is read once, a warp a row of the matrix. Byte model: rows * cols weights, x from cache.
constexpr int32_t kMostGemvRows = 8;
cudaError_t Gemv(const Product& p, cudaStream_t stream);
// Many rows: tiles in shared memory. Flops: 2 * n * rows * cols.
cudaError_t Gemm(const Product& p, cudaStream_t stream);

}  // namespace kvc::cuda

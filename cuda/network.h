// Products and rows, for network.cu.
#pragma once
#include "cuda/weights.h"

namespace kvc::cuda {

// A few rows: every weight is read once for up to four of them. Byte model: rows * cols weights, x from the
// caches.
constexpr int32_t kMostGemvRows = 8;
cudaError_t Gemv(Product p, cudaStream_t stream);
// Many rows: tiles in shared memory, on the tensor cores where weights have 16 bits or fewer. Flops: 2 * n *
// rows * cols.
cudaError_t Gemm(const Product& p, cudaStream_t stream);
cudaError_t GemmF32(const Product& p, cudaStream_t stream);
cudaError_t GemmMma(Product p, cudaStream_t stream);

}  // namespace kvc::cuda

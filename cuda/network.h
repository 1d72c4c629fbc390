// Products and rows, for the parts of a layer (layer_math.h).
#pragma once
#include "cuda/stream.h"
#include "cuda/weights.h"

namespace kvc::cuda {

// y = norm(x) * weight + bias, or y += scale * that, of rows of n values.
struct NormParams {
  const float *x, *weight, *bias;  // weight [n_weights, n]: of row i that at i % n_weights; bias [n], null: 0
  int32_t n, n_weights;
  float eps;
  bool centres;  // the mean is taken off first
  float* y;
  bool adds;
  float scale;
};
cudaError_t NormRows(const NormParams& p, int64_t rows, CudaStream& stream);

// gate [n] becomes the activation of gate and up.
struct ActivateParams {
  float* gate;
  const float* up;
  int64_t n;
  Activation activation;
  float gain, limit;
};
cudaError_t Activate(const ActivateParams& p, CudaStream& stream);

// A few rows: every weight is read once for up to four of them. Byte model: rows * cols weights, x from the
// caches.
constexpr int32_t kMostGemvRows = 8;
cudaError_t Gemv(Product p, CudaStream& stream);
// The same with tiles of 1, 2 or 4 pairs: of the experts those that the tiles name are read, no others.
cudaError_t GemvExperts(Product p, int32_t tile, CudaStream& stream);
// Many rows, or tiles of kExpertTile pairs: tiles in shared memory, on the tensor cores where weights have 16
// bits or fewer. Flops: 2 * n * rows * cols.
cudaError_t Gemm(const Product& p, CudaStream& stream);
cudaError_t GemmF32(const Product& p, CudaStream& stream);
cudaError_t GemmMma(Product p, CudaStream& stream);

}  // namespace kvc::cuda

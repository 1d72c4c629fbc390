// RMS and layer norms. Bytes: a row is read from the caches behind its first pass.
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/vector_products.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = kNormThreads;

// Block: a row.
__global__ void __launch_bounds__(kThreads) norm_rows(const NormParams p) {
  LetNextBegin();
  WaitForEarlier();
  __shared__ float shared[kThreads / kWarp];
  const float* x = p.x + static_cast<int64_t>(blockIdx.x) * p.n;
  float* y = p.y + static_cast<int64_t>(blockIdx.x) * p.n;
  const float* weight = p.weight + static_cast<int64_t>(static_cast<int32_t>(blockIdx.x) % p.n_weights) * p.n;
  float mean = 0;
  if (p.centres) {
    for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads()) mean += x[j];
    mean = __fdiv_rn(BlockSum(mean, shared), static_cast<float>(p.n));
  }
  const float scale = NormFactor(x, p.n, mean, p.eps, shared);
  for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads()) {
    float v = (x[j] - mean) * scale * weight[j];
    if (p.bias != nullptr) v += p.bias[j];
    y[j] = p.adds ? y[j] + p.scale * v : v;
  }
}

}  // namespace

void AddNormRowsKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, norm_rows, 0); }

cudaError_t NormRows(const NormParams& p, int64_t rows, CudaStream& stream) {
  return KVC_LAUNCH_EARLY(norm_rows, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, p);
}

}  // namespace kvc::cuda

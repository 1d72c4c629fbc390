// What the experts of each row give together, added in the order of their numbers. Bytes: pairs * width,
// once.
#include "cuda/experts.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

// Block (part, i): 128 values of row i.
__global__ void __launch_bounds__(kThreads) combine(const CombineParams p) {
  LetNextBegin();
  WaitForEarlier();
  const int32_t j = static_cast<int32_t>(blockIdx.x) * kThreads + ThreadOfBlock();
  if (j >= p.width) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * p.n_chosen;
  float sum = 0;
  for (int64_t i = first; i < first + p.n_chosen; ++i)
    sum += p.weights[i] * p.given[static_cast<int64_t>(p.places[i]) * p.width + j];
  float* y = p.y + static_cast<int64_t>(blockIdx.y) * p.width + j;
  *y = p.adds ? *y + p.scale * sum : sum;
}

}  // namespace

void AddCombineKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, combine, 0); }

cudaError_t Combine(const CombineParams& p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>((p.width + kThreads - 1) / kThreads), static_cast<unsigned>(p.n));
  return KVC_LAUNCH_EARLY(combine, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace kvc::cuda

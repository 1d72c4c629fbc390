// The activation between the products of a feed-forward part, where it does not ride in one (gemv_row.cu).
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) activate(const ActivateParams p) {
  LetNextBegin();
  WaitForEarlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * BlockThreads() + ThreadOfBlock();
  if (i < p.n) p.gate[i] = Activated(p.rule, p.gate[i], p.up[i]);
}

}  // namespace

void AddActivateKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, activate, 0); }

cudaError_t Activate(const ActivateParams& p, CudaStream& stream) {
  return KVC_LAUNCH_EARLY(activate, dim3(static_cast<unsigned>((p.n + kThreads - 1) / kThreads)),
                          dim3(kThreads), 0, stream, p);
}

}  // namespace kvc::cuda

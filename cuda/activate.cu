// The activation between the two products of a feed-forward part.
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

KVC_DEVICE float Activated(const ActivateParams& p, float gate, float up) {
  switch (p.activation) {
    case Activation::kSilu:
      return __fdiv_rn(gate, 1.0f + expf(-gate)) * up;
    case Activation::kGeluTanh:
      return 0.5f * gate * (1.0f + tanhf(0.79788456f * (gate + 0.044715f * gate * gate * gate))) * up;
    case Activation::kClampedSwiglu: {
      const float g = gate > p.limit ? p.limit : gate, low = up > p.limit ? p.limit : up,
                  u = low < -p.limit ? -p.limit : low;
      return (u + 1.0f) * __fdiv_rn(g, 1.0f + expf(-p.gain * g));
    }
  }
  return 0;
}

__global__ void __launch_bounds__(kThreads) activate(const ActivateParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * BlockThreads() + ThreadOfBlock();
  if (i < p.n) p.gate[i] = Activated(p, p.gate[i], p.up[i]);
}

}  // namespace

void AddActivateKernels(KernelLoader* loader) { KVC_ADD(loader, activate, 0); }

cudaError_t Activate(const ActivateParams& p, CudaStream& stream) {
  return KVC_LAUNCH(activate, dim3(static_cast<unsigned>((p.n + kThreads - 1) / kThreads)), dim3(kThreads), 0,
                    stream, p);
}

}  // namespace kvc::cuda

// New entries of a step and their queries, where the attention does not see to both itself (step_params.h).
// Bytes: q, k and v once, queries written once.
#include "cuda/append_newest.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

// Block (g, r): the new entry of a head, and its queries turned to where it stands.
__global__ void __launch_bounds__(kThreads) step_append(const StepParams p) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(float, cos);
  const int32_t g = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y), d = p.d,
                half = d / 2, group = p.n_heads / p.n_kv_heads;
  AppendNewest<true>(p, r, g, cos);
  const int64_t first = (static_cast<int64_t>(r) * p.n_heads + g * group) * d;
  const float *q = p.q + first, *sin = cos + half;
  float* turned = p.turned + first;
  for (int32_t x = ThreadOfBlock(); x < group * half; x += BlockThreads()) {
    const int32_t j = x % half;
    TurnPair(q + x / half * d, d, j, p.turn.pairing, cos[j], sin[j], turned + x / half * d);
  }
}

}  // namespace

void AddStepAppendKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, step_append, 0); }

cudaError_t AppendToHeads(const StepParams& p, CudaStream& stream) {
  const size_t shared = 2 * static_cast<size_t>(p.d) * sizeof(float);
  return KVC_LAUNCH_EARLY(step_append, GridOfHeads(p), dim3(kThreads), shared, stream, p);
}

}  // namespace kvc::cuda

// The activation between the products of a feed-forward part, where it does not ride in one (gemv_row.cu).
// Bytes of a number: 8 read; 4 written, or 2 or 4 as halves.
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/row_halves.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRowThreads = 512;

__global__ void __launch_bounds__(kThreads) activate(const ActivateParams p) {
  LetNextBegin();
  WaitForEarlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * BlockThreads() + ThreadOfBlock();
  if (i < p.n) p.gate[i] = Activated(p.rule, p.gate[i], p.up[i]);
}

// Block: a row, which stays in shared memory until its largest number is known.
template <bool kLow>
__global__ void __launch_bounds__(kRowThreads)
    activate_halves(const ActivateParams p, int32_t cols, const RowHalves y) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(float, row);
  __shared__ float shared[kRowThreads / kWarp];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * cols;
  const float *gate = p.gate + first, *up = p.up + first;
  float largest = 0;
  const int32_t fours = cols % 4 == 0 ? cols / 4 : 0;
  for (int32_t i = ThreadOfBlock(); i < fours; i += kRowThreads) {
    const float4 g = reinterpret_cast<const float4*>(gate)[i], u = reinterpret_cast<const float4*>(up)[i],
                 v = {Activated(p.rule, g.x, u.x), Activated(p.rule, g.y, u.y), Activated(p.rule, g.z, u.z),
                      Activated(p.rule, g.w, u.w)};
    reinterpret_cast<float4*>(row)[i] = v;
    largest = LargestOf(largest, v);
  }
  for (int32_t i = 4 * fours + ThreadOfBlock(); i < cols; i += kRowThreads)
    row[i] = Activated(p.rule, gate[i], up[i]), largest = fmaxf(largest, fabsf(row[i]));
  StoreHalves<kLow>(row, cols, cols % 8 == 0, largest, shared, y, blockIdx.x);
}

}  // namespace

void AddActivateKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, activate, 0);
  KVC_ADD_STEP(loader, activate_halves<false>, kMostRowBytes);
  KVC_ADD_STEP(loader, activate_halves<true>, kMostRowBytes);
}

cudaError_t Activate(const ActivateParams& p, CudaStream& stream) {
  return KVC_LAUNCH_EARLY(activate, dim3(static_cast<unsigned>((p.n + kThreads - 1) / kThreads)),
                          dim3(kThreads), 0, stream, p);
}

cudaError_t ActivateHalves(const ActivateParams& p, int32_t cols, const RowHalves& y, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(p.n / cols)), block(kRowThreads);
  const size_t shared = static_cast<size_t>(cols) * sizeof(float);
  if (y.low == nullptr)
    return KVC_LAUNCH_EARLY(activate_halves<false>, grid, block, shared, stream, p, cols, y);
  return KVC_LAUNCH_EARLY(activate_halves<true>, grid, block, shared, stream, p, cols, y);
}

}  // namespace kvc::cuda

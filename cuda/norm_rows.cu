// RMS and layer norms. Bytes: a row is read from the caches behind its first pass.
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/row_halves.h"
#include "cuda/vector_products.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = kNormThreads;

// What a block's row becomes.
class NormOfRow {
 public:
  KVC_DEVICE NormOfRow(const NormParams& p, float* shared)
      : p_(p), x_(p.x + static_cast<int64_t>(blockIdx.x) * p.n), weight_(p.weight), mean_(0) {
    if (p.centres) {
      for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads()) mean_ += x_[j];
      mean_ = __fdiv_rn(BlockSum(mean_, shared), static_cast<float>(p.n));
    }
    scale_ = NormFactor(x_, p.n, mean_, p.eps, shared);
  }
  KVC_DEVICE float operator()(int32_t j) const {
    const float v = (x_[j] - mean_) * scale_ * weight_[j];
    return p_.bias != nullptr ? v + p_.bias[j] : v;
  }

 private:
  const NormParams& p_;
  const float *x_, *weight_;
  float mean_, scale_;
};

// Block: a row.
__global__ void __launch_bounds__(kThreads) norm_rows(const NormParams p) {
  LetNextBegin();
  WaitForEarlier();
  __shared__ float shared[kThreads / kWarp];
  const NormOfRow norm(p, shared);
  float* y = p.y + static_cast<int64_t>(blockIdx.x) * p.n;
  for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads()) {
    const float v = norm(j);
    y[j] = p.adds ? y[j] + p.scale * v : v;
  }
}

// The same as halves.
template <bool kLow>
__global__ void __launch_bounds__(kThreads) norm_halves(const NormParams p, const RowHalves y) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(float, row);
  __shared__ float shared[kThreads / kWarp];
  const NormOfRow norm(p, shared);
  float largest = 0;
  for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads())
    row[j] = norm(j), largest = fmaxf(largest, fabsf(row[j]));
  StoreHalves<kLow>(row, p.n, p.n % 8 == 0, largest, shared, y, blockIdx.x);
}

}  // namespace

void AddNormRowsKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, norm_rows, 0);
  KVC_ADD_STEP(loader, norm_halves<false>, kMostRowBytes);
  KVC_ADD_STEP(loader, norm_halves<true>, kMostRowBytes);
}

cudaError_t NormRows(const NormParams& p, int64_t rows, CudaStream& stream) {
  return KVC_LAUNCH_EARLY(norm_rows, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, p);
}

cudaError_t NormHalves(const NormParams& p, int64_t rows, const RowHalves& y, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(rows)), block(kThreads);
  const size_t shared = static_cast<size_t>(p.n) * sizeof(float);
  if (y.low == nullptr) return KVC_LAUNCH_EARLY(norm_halves<false>, grid, block, shared, stream, p, y);
  return KVC_LAUNCH_EARLY(norm_halves<true>, grid, block, shared, stream, p, y);
}

}  // namespace kvc::cuda

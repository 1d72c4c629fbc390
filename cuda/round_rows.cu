// Rows of activations as halves (row_halves.h) where the kernel that makes them does not do it, or between
// the layers of a long prompt; and back. Bytes of a number: 4 read, from memory once, and 2 or 4 written; 2
// read and 4 written.
#include "cuda/cuda_device.h"
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/row_halves.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256;

// Block: a row.
template <bool kLow>
__global__ void __launch_bounds__(kThreads) round_rows(const float* rows, int32_t cols, const RowHalves y) {
  LetNextBegin();
  WaitForEarlier();
  __shared__ float shared[kThreads / kWarp];
  const float* x = rows + static_cast<int64_t>(blockIdx.x) * cols;
  const bool whole = cols % 8 == 0 && reinterpret_cast<uintptr_t>(rows) % 16 == 0;
  const int32_t fours = whole ? cols / 4 : 0;
  float largest = 0;
  for (int32_t i = ThreadOfBlock(); i < fours; i += kThreads)
    largest = LargestOf(largest, reinterpret_cast<const float4*>(x)[i]);
  for (int32_t i = 4 * fours + ThreadOfBlock(); i < cols; i += kThreads)
    largest = fmaxf(largest, fabsf(x[i]));
  StoreHalves<kLow>(x, cols, whole, largest, shared, y, blockIdx.x);
}

// Block: a row.
__global__ void __launch_bounds__(kThreads) widen_rows(float* rows, int32_t cols, const RowHalves from) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * cols;
  float* x = rows + first;
  const uint16_t* halves = from.high + first;
  const float factor = from.factors[blockIdx.x];
  const bool whole = cols % 4 == 0 && reinterpret_cast<uintptr_t>(rows) % 16 == 0;
  const int32_t fours = whole ? cols / 4 : 0;
  for (int32_t i = ThreadOfBlock(); i < fours; i += kThreads) {
    const uint2 v = reinterpret_cast<const uint2*>(halves)[i];
    reinterpret_cast<float4*>(x)[i] = {F16Halves::First(v.x) * factor, F16Halves::Second(v.x) * factor,
                                       F16Halves::First(v.y) * factor, F16Halves::Second(v.y) * factor};
  }
  for (int32_t i = 4 * fours + ThreadOfBlock(); i < cols; i += kThreads) x[i] = HalfBits(halves[i]) * factor;
}

}  // namespace

void AddRoundRowsKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, round_rows<false>, 0);
  KVC_ADD_STEP(loader, round_rows<true>, 0);
  KVC_ADD(loader, widen_rows, 0);
}

cudaError_t RoundRows(const float* x, int64_t n, int32_t cols, const RowHalves& y, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(n)), block(kThreads);
  if (y.low == nullptr) return KVC_LAUNCH_EARLY(round_rows<false>, grid, block, 0, stream, x, cols, y);
  return KVC_LAUNCH_EARLY(round_rows<true>, grid, block, 0, stream, x, cols, y);
}

Status CudaDevice::StoreHalves(Stream* s, const HalfRowsArgs& a) {
  KVC_ENTER();
  return Check(RoundRows(At(a.x), a.n, a.width, {At(a.halves), nullptr, At(a.factors)}, StreamOf(s)),
               "rows between layers");
}

Status CudaDevice::LoadHalves(Stream* s, const HalfRowsArgs& a) {
  KVC_ENTER();
  return Check(KVC_LAUNCH(widen_rows, dim3(static_cast<unsigned>(a.n)), dim3(kThreads), 0, StreamOf(s),
                          At(a.x), a.width, RowHalves{At(a.halves), nullptr, At(a.factors)}),
               "rows between layers");
}

}  // namespace kvc::cuda

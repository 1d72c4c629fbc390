// Weights of bf16 as f16, once, where they lie (prepare.cc): the tensor cores multiply f16 by f16, and
// activations in f16 are eight times nearer than in bf16. Bytes: 2 read and 2 written for each number.
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread: 16 bytes

KVC_DEVICE uint16_t HalfOf(uint32_t bf16, float times) {
  return ToHalfBits(BfBits(static_cast<uint16_t>(bf16)) * times);
}
KVC_DEVICE uint32_t PairOf(uint32_t pair, float times) {
  return HalfOf(pair & 0xffffu, times) | static_cast<uint32_t>(HalfOf(pair >> 16, times)) << 16;
}

__global__ void __launch_bounds__(kThreads) to_halves(uint16_t* numbers, int64_t n, float times) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + ThreadOfBlock()) * kColumns;
  if (at + kColumns <= n) {
    const uint4 v = *reinterpret_cast<const uint4*>(numbers + at);
    StoreEight(numbers + at,
               {PairOf(v.x, times), PairOf(v.y, times), PairOf(v.z, times), PairOf(v.w, times)});
    return;
  }
  for (int64_t i = at; i < n; ++i) numbers[i] = HalfOf(numbers[i], times);
}

}  // namespace

void AddToHalvesKernels(KernelLoader* loader) { KVC_ADD(loader, to_halves, 0); }

cudaError_t ToHalves(uint16_t* numbers, int64_t n, int shift, cudaStream_t stream) {
  constexpr int64_t kOfBlock = kThreads * kColumns;
  float times = std::ldexp(1.0f, shift);
  void* params[] = {&numbers, &n, &times};
  return cudaLaunchKernel(reinterpret_cast<const void*>(to_halves),
                          dim3(static_cast<unsigned>((n + kOfBlock - 1) / kOfBlock)), dim3(kThreads), params,
                          0, stream);
}

}  // namespace kvc::cuda

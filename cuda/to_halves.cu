// Weights of bf16 as f16, or scales of f16 as such, times a power of two, once, where they lie (prepare.cc):
// the tensor cores multiply f16 by f16, and activations in f16 are eight times nearer than in bf16. Bytes: 2
// read and 2 written for each number.
#include <cmath>

#include "cuda/kernels.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread: 16 bytes

template <bool kBf16>
KVC_DEVICE uint16_t HalfOf(uint32_t bits, float times) {
  const uint16_t x = static_cast<uint16_t>(bits);
  return ToHalfBits((kBf16 ? BfBits(x) : HalfBits(x)) * times);
}
template <bool kBf16>
KVC_DEVICE uint32_t PairOf(uint32_t pair, float times) {
  return HalfOf<kBf16>(pair & 0xffffu, times) | static_cast<uint32_t>(HalfOf<kBf16>(pair >> 16, times)) << 16;
}

template <bool kBf16>
__global__ void __launch_bounds__(kThreads) to_halves(uint16_t* numbers, int64_t n, float times) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + ThreadOfBlock()) * kColumns;
  if (at + kColumns <= n) {
    const uint4 v = *reinterpret_cast<const uint4*>(numbers + at);
    StoreEight(numbers + at, {PairOf<kBf16>(v.x, times), PairOf<kBf16>(v.y, times), PairOf<kBf16>(v.z, times),
                              PairOf<kBf16>(v.w, times)});
    return;
  }
  for (int64_t i = at; i < n; ++i) numbers[i] = HalfOf<kBf16>(numbers[i], times);
}

}  // namespace

void AddToHalvesKernels(KernelLoader* loader) {
  KVC_ADD(loader, to_halves<false>, 0);
  KVC_ADD(loader, to_halves<true>, 0);
}

cudaError_t ToHalves(uint16_t* numbers, int64_t n, bool from_bf16, int shift, cudaStream_t stream) {
  constexpr int64_t kOfBlock = kThreads * kColumns;
  float times = std::ldexp(1.0f, shift);
  void* params[] = {&numbers, &n, &times};
  const auto kernel = from_bf16 ? to_halves<true> : to_halves<false>;
  if (n == 0) return cudaSuccess;
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>((n + kOfBlock - 1) / kOfBlock)), dim3(kThreads), params,
                          0, stream);
}

}  // namespace kvc::cuda

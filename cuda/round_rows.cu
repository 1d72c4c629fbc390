// Rows of f32 as bf16, to nearest, ties to even, once for all products with them. Bytes: 4 read and 2 written
// for each number.
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread: 16 bytes of what it writes

__global__ void __launch_bounds__(kThreads) round_rows(const float* x, uint16_t* y, int64_t n) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + ThreadOfBlock()) * kColumns;
  if (at + kColumns <= n && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    const float4 *from = reinterpret_cast<const float4*>(x + at), a = from[0], b = from[1];
    StoreEight(y + at, {ToBfPair(a.x, a.y), ToBfPair(a.z, a.w), ToBfPair(b.x, b.y), ToBfPair(b.z, b.w)});
    return;
  }
  for (int64_t i = at; i < n && i < at + kColumns; ++i) y[i] = ToBfBits(x[i]);
}

}  // namespace

void AddRoundRowsKernels(KernelLoader* loader) { KVC_ADD(loader, round_rows, 0); }

cudaError_t RoundRows(const float* x, uint16_t* y, int64_t n, CudaStream& stream) {
  constexpr int64_t kOfBlock = kThreads * kColumns;
  return KVC_LAUNCH(round_rows, dim3(static_cast<unsigned>((n + kOfBlock - 1) / kOfBlock)), dim3(kThreads), 0,
                    stream, x, y, n);
}

}  // namespace kvc::cuda

// Weights of codes as f16, for products of many rows by cuBLASLt (gemm_blas.cu). Their scales were uploaded
// so that f16 holds what codes and scales give (prepare.cc); 11 bits of it stay. Bytes of a weight: 1 or 0.5
// and its part of a scale read, 2 written.
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread: 16 bytes of what it writes

template <WeightType T>
__global__ void __launch_bounds__(kThreads)
    decode_weights(const uint8_t* codes, const uint16_t* scales, uint32_t group, uint32_t n, uint16_t* out) {
  const uint32_t i = blockIdx.x * kThreads + static_cast<uint32_t>(ThreadOfBlock());
  if (i >= n) return;
  uint4 v = {0, 0, 0, 0};
  if constexpr (T == WeightType::kInt8) {
    const uint2 eight = __ldcs(reinterpret_cast<const uint2*>(codes) + i);
    v.x = eight.x, v.y = eight.y;
  } else {
    v.x = __ldcs(reinterpret_cast<const unsigned*>(codes) + i);
  }
  const float scale = HalfBits(scales[i / group]);
  float a[4], b[4];
  UnpackFour<T>(v, 0, a);
  UnpackFour<T>(v, 1, b);
  StoreEight(out + static_cast<int64_t>(i) * kColumns,
             {ToHalfPair(a[0] * scale, a[1] * scale), ToHalfPair(a[2] * scale, a[3] * scale),
              ToHalfPair(b[0] * scale, b[1] * scale), ToHalfPair(b[2] * scale, b[3] * scale)});
}

template <WeightType T>
cudaError_t LaunchType(const Part& w, uint32_t n, uint16_t* out, CudaStream& stream) {
  return KVC_LAUNCH(decode_weights<T>, dim3((n + kThreads - 1) / kThreads), dim3(kThreads), 0, stream, w.data,
                    w.scales, static_cast<uint32_t>(w.group / kColumns), n, out);
}

}  // namespace

void AddDecodeWeightsKernels(KernelLoader* loader) {
  KVC_ADD(loader, decode_weights<WeightType::kInt8>, 0);
  KVC_ADD(loader, decode_weights<WeightType::kInt4>, 0);
}

bool Decodes(const Part& w, int32_t cols) {
  return IsScaled(w.type) && w.group % kColumns == 0 && cols % w.group == 0;
}

cudaError_t DecodeWeights(const Part& w, int32_t cols, uint16_t* out, CudaStream& stream) {
  const uint32_t n = static_cast<uint32_t>(int64_t{w.rows} * cols / kColumns);
  if (w.type == WeightType::kInt8) return LaunchType<WeightType::kInt8>(w, n, out, stream);
  return LaunchType<WeightType::kInt4>(w, n, out, stream);
}

}  // namespace kvc::cuda

// Weights of codes as f16, for products of many rows: by cuBLASLt (gemm_blas.cu), and of codes with offsets
// in any case. Their scales were uploaded so that f16 holds what codes and scales give (prepare.cc); 11 bits
// of it stay. Bytes of a weight: 1 or 0.5 and its part of a scale read, 2 written.
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread: 16 bytes of what it writes

template <WeightType T>
__global__ void __launch_bounds__(kThreads) decode_weights(const uint8_t* codes, const GroupBits<T>* groups,
                                                           uint32_t group, uint32_t n, uint16_t* out) {
  const uint32_t i = blockIdx.x * kThreads + static_cast<uint32_t>(ThreadOfBlock());
  if (i >= n) return;
  uint4 v = {0, 0, 0, 0};
  if constexpr (T == WeightType::kInt8) {
    const uint2 eight = __ldcs(reinterpret_cast<const uint2*>(codes) + i);
    v.x = eight.x, v.y = eight.y;
  } else {
    v.x = __ldcs(reinterpret_cast<const unsigned*>(codes) + i);
  }
  const GroupBits<T> bits = groups[i / group];
  float a[4], b[4];
  UnpackFour<T>(v, 0, a);
  UnpackFour<T>(v, 1, b);
  KVC_UNROLL
  for (int j = 0; j < 4; ++j) a[j] = SumOfGroup<T>(bits, a[j], 1), b[j] = SumOfGroup<T>(bits, b[j], 1);
  StoreEight(out + static_cast<int64_t>(i) * kColumns, {ToHalfPair(a[0], a[1]), ToHalfPair(a[2], a[3]),
                                                        ToHalfPair(b[0], b[1]), ToHalfPair(b[2], b[3])});
}

template <WeightType T>
cudaError_t LaunchType(const Part& w, uint32_t n, uint16_t* out, CudaStream& stream) {
  return KVC_LAUNCH(decode_weights<T>, dim3((n + kThreads - 1) / kThreads), dim3(kThreads), 0, stream, w.data,
                    reinterpret_cast<const GroupBits<T>*>(w.scales),
                    static_cast<uint32_t>(w.group / kColumns), n, out);
}

}  // namespace

void AddDecodeWeightsKernels(KernelLoader* loader) {
  KVC_ADD(loader, decode_weights<WeightType::kInt8>, 0);
  KVC_ADD(loader, decode_weights<WeightType::kInt4>, 0);
  KVC_ADD(loader, decode_weights<WeightType::kQ4K>, 0);
}

bool Decodes(const Part& w, int32_t cols, const ProductRoom& room) {
  return IsScaled(w.type) && w.group % kColumns == 0 && cols % w.group == 0 &&
         int64_t{w.rows} * cols <= room.most_decoded;
}

cudaError_t DecodeWeights(int32_t cols, const ProductRoom& room, CudaStream& stream, Part* w) {
  const uint32_t n = static_cast<uint32_t>(int64_t{w->rows} * cols / kColumns);
  cudaError_t e = cudaErrorInvalidValue;
  switch (w->type) {
    case WeightType::kInt8:
      e = LaunchType<WeightType::kInt8>(*w, n, room.decoded, stream);
      break;
    case WeightType::kInt4:
      e = LaunchType<WeightType::kInt4>(*w, n, room.decoded, stream);
      break;
    case WeightType::kQ4K:
      e = LaunchType<WeightType::kQ4K>(*w, n, room.decoded, stream);
      break;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
    case WeightType::kQ6K:
      break;  // Decodes() takes none of them
  }
  w->type = WeightType::kF16, w->data = reinterpret_cast<const uint8_t*>(room.decoded);
  return e;
}

cudaError_t GemmDecoded(const Product& p, const ProductRoom& room, CudaStream& stream) {
  const auto decodes = [&](const Part& w) {
    return HasFineCodes(w.type, w.group) && Decodes(w, p.cols, room);
  };
  if (HasGemmFew(p, p.halves.low == nullptr) || std::none_of(p.parts, p.parts + p.n_parts, decodes))
    return Gemm(p, room, stream);
  // Parts take turns in the room.
  return EachPart(p, [&](Product one) {
    const cudaError_t e =
        decodes(one.parts[0]) ? DecodeWeights(p.cols, room, stream, one.parts) : cudaSuccess;
    return e == cudaSuccess ? Gemm(one, room, stream) : e;
  });
}

}  // namespace kvc::cuda

// Products of bf16 weights with many rows by cuBLASLt (blas.h), with the numbers of gemm_mma.cu: one call
// with x in bf16 where the product rounds it, sums in f32. Else x is split into two of bf16 (split_tiles.h),
// and y = x high * W + x low * W, two calls. Bytes of the split: 4 read and 4 written for each of the n *
// cols numbers of x, once for all parts of a product.
#include <cassert>

#include "cuda/blas.h"
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread: 16 bytes of either half

__global__ void __launch_bounds__(kThreads) split_rows(const float4* x, uint4* high, uint4* low, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + ThreadOfBlock();
  if (i >= n) return;
  const float4 a = x[2 * i], b = x[2 * i + 1];
  uint4 h, l;
  SplitPair<Bf16Halves>(a.x, a.y, &h.x, &l.x);
  SplitPair<Bf16Halves>(a.z, a.w, &h.y, &l.y);
  SplitPair<Bf16Halves>(b.x, b.y, &h.z, &l.z);
  SplitPair<Bf16Halves>(b.z, b.w, &h.w, &l.w);
  high[i] = h, low[i] = l;
}

bool IsAligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

// Whether the calls give what StoreOutput would, on whole vectors of 16 bytes.
bool Fits(const Product& p) {
  const bool aligned = p.rounded != nullptr ? IsAligned(p.rounded) : IsAligned(p.x);
  if (p.n < kFewestBlasRows || p.tiles != nullptr || p.cap > 0 || p.cols % kColumns != 0 || !aligned ||
      (p.adds && p.n_parts > 1))
    return false;
  for (int i = 0; i < p.n_parts; ++i) {
    const Part& part = p.parts[i];
    if (part.type != WeightType::kBf16 || part.rows % 4 != 0 || !IsAligned(part.data) || !IsAligned(part.y) ||
        (part.bias != nullptr && (p.scale != 1 || !IsAligned(part.bias))))
      return false;
  }
  return true;
}

bool HasAll(const Product& p, Blas* blas) {
  for (int i = 0; i < p.n_parts; ++i) {
    const Part& part = p.parts[i];
    if (!blas->Has(part.rows, p.cols, p.n, false)) return false;
    if (part.bias != nullptr && !blas->Has(part.rows, p.cols, p.n, true)) return false;
  }
  return true;
}

bool MultiplyRounded(const Product& p, const Part& part, const BlasRoom& room, Blas* blas,
                     cudaStream_t stream) {
  return blas->Multiply({reinterpret_cast<const uint16_t*>(part.data), p.rounded, part.rows, p.cols, p.n,
                         p.scale, p.adds ? part.y : nullptr, part.bias, part.y},
                        room.workspace, stream);
}

// y is written last where the product adds to it: a call that fails leaves it as it was, for another try.
bool MultiplyHalves(const Product& p, const Part& part, const uint16_t* high, const uint16_t* low,
                    const BlasRoom& room, Blas* blas, cudaStream_t stream) {
  assert(!p.adds || p.x != room.sums);
  const uint16_t* w = reinterpret_cast<const uint16_t*>(part.data);
  float* const sums = p.adds ? room.sums : part.y;
  const BlasProduct of_low{w, low, part.rows, p.cols, p.n, p.scale, p.adds ? part.y : nullptr, nullptr, sums};
  const BlasProduct of_high{w, high, part.rows, p.cols, p.n, p.scale, sums, part.bias, part.y};
  return blas->Multiply(of_low, room.workspace, stream) && blas->Multiply(of_high, room.workspace, stream);
}

}  // namespace

void AddGemmBlasKernels(KernelLoader* loader) { KVC_ADD(loader, split_rows, 0); }

cudaError_t GemmBlas(const Product& p, const BlasRoom& room, Blas* blas, CudaStream& stream) {
  if (!Fits(p) || !HasAll(p, blas)) return Gemm(p, stream);
  const int64_t numbers = int64_t{p.n} * p.cols, vectors = numbers / kColumns;
  uint16_t *const high = room.halves, *const low = room.halves + numbers;
  cudaError_t e = cudaSuccess;
  if (p.rounded == nullptr) {
    e = KVC_LAUNCH(split_rows, dim3(static_cast<unsigned>((vectors + kThreads - 1) / kThreads)),
                   dim3(kThreads), 0, stream, reinterpret_cast<const float4*>(p.x),
                   reinterpret_cast<uint4*>(high), reinterpret_cast<uint4*>(low), vectors);
  }
  cudaStream_t raw = nullptr;
  if (e == cudaSuccess) e = stream.Reach(&raw);
  if (e != cudaSuccess) return e;
  for (int i = 0; i < p.n_parts; ++i) {
    const Part& part = p.parts[i];
    if (!(p.rounded != nullptr ? MultiplyRounded(p, part, room, blas, raw)
                               : MultiplyHalves(p, part, high, low, room, blas, raw)))
      return Gemm(p, stream);
  }
  return cudaSuccess;
}

}  // namespace kvc::cuda

// Products of f16 weights with many rows by cuBLASLt (blas.h), with the numbers of gemm_mma.cu: activations
// in f16, sums in f32. Codes become f16 in front of it (decode_weights.cu). What rows were taken times
// (row_halves.h) the library does not know: what a product is added to is taken times it in front, and
// results lose it behind. Few rows have it, so that both are launches that mostly read a number a row; biases
// join there too.
#include "cuda/blas.h"
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kWarps = 8, kColumns = 8;  // of f16 in 16 bytes

struct OutputRows {
  const float* factors;  // [n]
  int32_t n, n_parts;
  float scale;  // of biases
  struct {
    float* y;  // [n, rows]
    const float* bias;
    int32_t rows;
  } parts[Matrix::kMaxParts];
};

// A warp: a row, which is taken times what takes part in the product, or loses it again and gets its bias.
__global__ void __launch_bounds__(kWarps* kWarp) shift_rows(const OutputRows p, bool back) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfBlock();
  if (row >= p.n) return;
  const float times = back ? p.factors[row] : __fdiv_rn(1.0f, p.factors[row]);
  KVC_UNROLL
  for (int i = 0; i < Matrix::kMaxParts; ++i) {
    const float* bias = back ? p.parts[i].bias : nullptr;
    if (i >= p.n_parts || (times == 1 && bias == nullptr)) continue;
    float* y = p.parts[i].y + row * p.parts[i].rows;
    for (int32_t r = Lane(); r < p.parts[i].rows; r += kWarp)
      y[r] = y[r] * times + (bias != nullptr ? bias[r] * p.scale : 0.0f);
  }
}

bool IsAligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

// Whether the calls give what StoreOutput would, on whole vectors of 16 bytes.
bool Fits(const Product& p, const ProductRoom& room, const Blas& blas) {
  if (p.halves.high == nullptr || p.halves.low != nullptr || !blas.Takes(p.n) || p.tiles != nullptr ||
      p.cap > 0 || p.cols % kColumns != 0 || (p.adds && p.n_parts > 1))
    return false;
  for (int i = 0; i < p.n_parts; ++i) {
    const Part& part = p.parts[i];
    const bool decodes = Decodes(part, p.cols, room) && blas.TakesDecoded(p.n);
    if ((part.type != WeightType::kF16 && !decodes) || part.rows % 4 != 0 || !IsAligned(part.data) ||
        !IsAligned(part.y))
      return false;
  }
  return true;
}

bool HasAll(const Product& p, Blas* blas) {
  for (int i = 0; i < p.n_parts; ++i) {
    if (!blas->Has(p.parts[i].rows, p.cols, p.n)) return false;
  }
  return true;
}

OutputRows OutputsOf(const Product& p) {
  OutputRows out{p.halves.factors, p.n, p.n_parts, p.scale, {}};
  for (int i = 0; i < p.n_parts; ++i) out.parts[i] = {p.parts[i].y, p.parts[i].bias, p.parts[i].rows};
  return out;
}

// *done: whether the library did it; if not, nothing has changed.
cudaError_t Multiply(const Product& p, Part part, const ProductRoom& room, Blas* blas, CudaStream& stream,
                     bool* done) {
  cudaError_t e = cudaSuccess;
  if (part.type != WeightType::kF16) e = DecodeWeights(p.cols, room, stream, &part);
  cudaStream_t raw = nullptr;
  if (e == cudaSuccess) e = stream.Reach(&raw);
  *done = e == cudaSuccess && blas->Multiply({reinterpret_cast<const uint16_t*>(part.data), p.halves.high,
                                              part.rows, p.cols, p.n, p.scale * part.factor, p.adds, part.y},
                                             room.workspace, raw);
  return e;
}

}  // namespace

void AddGemmBlasKernels(KernelLoader* loader) { KVC_ADD(loader, shift_rows, 0); }

cudaError_t GemmBlas(const Product& p, const ProductRoom& room, Blas* blas, CudaStream& stream) {
  if (!Fits(p, room, *blas) || !HasAll(p, blas)) return GemmDecoded(p, room, stream);
  OutputRows rows = OutputsOf(p);
  const dim3 grid(static_cast<unsigned>((p.n + kWarps - 1) / kWarps)), block(kWarps * kWarp);
  const auto shift = [&](bool back) { return KVC_LAUNCH(shift_rows, grid, block, 0, stream, rows, back); };
  cudaError_t e = p.adds ? shift(false) : cudaSuccess;
  bool all = true;
  for (int i = 0; i < p.n_parts && e == cudaSuccess && all; ++i)
    e = Multiply(p, p.parts[i], room, blas, stream, &all);
  if (e != cudaSuccess) return e;
  if (all) return shift(true);
  // What the product would have been added to is as it was before shift_rows.
  rows.parts[0].bias = nullptr;
  if (p.adds) e = shift(true);
  return e == cudaSuccess ? GemmDecoded(p, room, stream) : e;
}

}  // namespace kvc::cuda

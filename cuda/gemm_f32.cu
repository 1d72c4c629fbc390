// Products with many rows of activations and weights in f32, in f32. A block makes 64 outputs of 32 tokens;
// weights are decoded where they enter shared memory, once a tile.
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRows = 64, kTokens = 32, kDepth = 32, kPad = 4;

struct Tiles {
  float w[kDepth][kRows + kPad];
  float x[kDepth][kTokens + kPad];
};

template <bool kExperts>
__global__ void __launch_bounds__(kThreads) gemm_f32(const Product p) {
  KVC_SHARED(Tiles, s);
  const TokenTile mine = TileOf<kExperts>(p, static_cast<int32_t>(blockIdx.y), kTokens);
  if (kExperts && mine.n <= 0) return;
  const int32_t row0 = static_cast<int32_t>(blockIdx.x) * kRows;
  const int me = ThreadOfBlock(), my_row = me % 16 * 4, my_token = me / 16 * 4;
  float sum[4][4] = {};
  for (int32_t k0 = 0; k0 < p.cols; k0 += kDepth) {
    for (int i = me; i < kRows * kDepth; i += kThreads) {
      const int32_t r = i / kDepth, k = i % kDepth, row = row0 + r;
      float v = 0;
      if (row < p.rows && k0 + k < p.cols) {
        const Part& part = PartAt(p, row);
        v = WeightElement(part, p.cols, (kExperts ? mine.FirstRow(part) : 0) + row - part.first, k0 + k);
      }
      s->w[k][r] = v;
    }
    for (int i = me; i < kTokens * kDepth; i += kThreads) {
      const int32_t t = i / kDepth, k = i % kDepth;
      s->x[k][t] = t < mine.n && k0 + k < p.cols ? p.x[mine.RowOfX(t) * p.cols + k0 + k] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
      const float4 w = *reinterpret_cast<const float4*>(&s->w[k][my_row]);
      const float4 x = *reinterpret_cast<const float4*>(&s->x[k][my_token]);
      const float wv[4] = {w.x, w.y, w.z, w.w}, xv[4] = {x.x, x.y, x.z, x.w};
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) sum[i][j] += wv[i] * xv[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int32_t row = row0 + my_row + i;
    if (row >= p.rows) continue;
    const Part& part = PartAt(p, row);
    for (int j = 0; j < 4; ++j) {
      if (my_token + j < mine.n)
        StoreOutput(p, part, kExperts ? mine.FirstRow(part) : 0, row, mine.first + my_token + j, sum[i][j]);
    }
  }
}

}  // namespace

void AddGemmF32Kernels(KernelLoader* loader) {
  KVC_ADD(loader, gemm_f32<true>, sizeof(Tiles));
  KVC_ADD(loader, gemm_f32<false>, sizeof(Tiles));
}

cudaError_t GemmF32(const Product& p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>((p.rows + kRows - 1) / kRows),
                  static_cast<unsigned>(TileBlocks(p, kTokens)));
  if (p.tiles != nullptr) return KVC_LAUNCH(gemm_f32<true>, grid, dim3(kThreads), sizeof(Tiles), stream, p);
  return KVC_LAUNCH(gemm_f32<false>, grid, dim3(kThreads), sizeof(Tiles), stream, p);
}

}  // namespace kvc::cuda

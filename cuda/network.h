// Products and rows, for the parts of a layer (layer_math.h).
#pragma once
#include "cuda/activation.h"
#include "cuda/stream.h"
#include "cuda/weights.h"

namespace kvc::cuda {

// y = norm(x) * weight + bias, or y += scale * that, of rows of n values.
struct NormParams {
  const float *x, *weight, *bias;  // weight, bias [n]; bias null: 0
  int32_t n;
  float eps;
  bool centres;  // the mean is taken off first
  float* y;
  bool adds;
  float scale;
};
cudaError_t NormRows(const NormParams& p, int64_t rows, CudaStream& stream);
// Into halves (weights.h) instead of y; FitsShared(n).
cudaError_t NormHalves(const NormParams& p, int64_t rows, const RowHalves& y, CudaStream& stream);

// x [rows, heads, D] becomes the norm of every head's vector, times the weight.
struct HeadsToNorm {
  float* x;
  const float* weight;  // [D], or [heads, D] where every head has its own
  int32_t heads;        // 0: no norm
};
struct HeadNormParams {
  HeadsToNorm q, k;
  int64_t rows;
  int32_t d;  // up to kMostHeadSize
  float eps;
  bool centres, own;
};
cudaError_t NormHeads(const HeadNormParams& p, CudaStream& stream);

// gate [n] becomes the activation of gate and up.
struct ActivateParams {
  float* gate;
  const float* up;
  int64_t n;
  ActivationRule rule;
};
cudaError_t Activate(const ActivateParams& p, CudaStream& stream);
// Into halves, of rows with so many numbers; FitsShared(cols).
cudaError_t ActivateHalves(const ActivateParams& p, int32_t cols, const RowHalves& y, CudaStream& stream);

// A product with one row of x (p.n 1), and what rides along: the root-mean-square norm of x in front of it,
// and the activation of its two parts behind it. Byte model: every weight once.
struct OneRow {
  Product product;
  const float* norm;  // [cols]: of the norm; null: x as it is
  float eps;
  bool gated;  // parts are gate and up, equally long: y of gate becomes the activation of both
  ActivationRule activation;
  // Set by GemvRow: rows of a warp; that of a part's scale is that of a vector of 16 bytes, shifted; whether
  // there is room for x and the norm's weights, as they are, beside what becomes of them.
  int32_t n_units = 0, scale_shift[Matrix::kMaxParts] = {};
  bool stages = false;
  int32_t ahead = 0;  // vectors that a warp asks for before it waits, beside those that it fetches
};
bool FitsOneRow(const Product& p);
// Warps of each block of it, of `most` that its kernel can have: those whose last round leaves memory waiting
// least, of n_units groups of rows dealt out to all warps of the blocks in turns.
int32_t WarpsOfRows(int32_t n_units, int32_t blocks, int32_t most);
cudaError_t GemvRow(const OneRow& o, CudaStream& stream);

// A few rows: every weight is read once for up to four of them. Byte model: rows * cols weights, x from the
// caches. Of products that gemm_few.cu has, up to Tuning::few_rows; of all others, and of experts, up to so
// many.
constexpr int32_t kMostGemvRows = 8;
// Of codes with offsets whose activations are two numbers (KVC_CUDA_ROUND=0): more rows have them decoded
// number by number.
constexpr int32_t kMostGemvRowsOfOffsets = 32;
cudaError_t Gemv(Product p, CudaStream& stream);
// The same with tiles of 1, 2 or 4 pairs: of the experts those that the tiles name are read, no others.
cudaError_t GemvExperts(Product p, int32_t tile, CudaStream& stream);
// Many rows, or tiles of kExpertTile pairs: tiles in shared memory, on the tensor cores where weights have 16
// bits or fewer. Flops: 2 * n * rows * cols.
struct ProductRoom;
cudaError_t Gemm(const Product& p, const ProductRoom& room, CudaStream& stream);
cudaError_t GemmF32(const Product& p, CudaStream& stream);
cudaError_t GemmMma(Product p, const ProductRoom& room, CudaStream& stream);

// Of those up to so many rows, but for weights that are decoded one by one: more parts of the columns than
// blocks are needed for the outputs, and weights straight to shared memory (gemm_few.cu).
constexpr int32_t kMostFewRows = 255;
constexpr int32_t kFewBlocks = 2, kFewOutputs = 128;  // of a multiprocessor; of a block
constexpr int32_t FewTokens(int32_t n) { return n <= 16 ? 16 : n <= 32 ? 32 : 64; }  // of a block
// Sums of parts at most, of products with up to n rows.
constexpr int64_t MostFewSums(int32_t n, int32_t multiprocessors) {
  return int64_t{kFewBlocks} * multiprocessors * kFewOutputs * FewTokens(n);
}
// rounds: activations are one number of f16.
bool HasGemmFew(const Product& p, bool rounds);
cudaError_t GemmFew(const Product& p, const ProductRoom& room, CudaStream& stream);

// y = x [n, cols].
cudaError_t RoundRows(const float* x, int64_t n, int32_t cols, const RowHalves& y, CudaStream& stream);

// Scratch of products with many rows.
struct ProductRoom {
  uint8_t* workspace;  // of cuBLASLt (blas.h); null: there are no products by it
  uint16_t* decoded;   // [most_decoded]: a matrix of codes as f16
  int64_t most_decoded;
  float* sums;  // [n_sums] of products with few rows
  int64_t n_sums;
};
class Blas;
// By cuBLASLt, or as Gemm where it has nothing for the product.
cudaError_t GemmBlas(const Product& p, const ProductRoom& room, Blas* blas, CudaStream& stream);
// Whether a part is codes that DecodeWeights knows and the room holds. It makes w their f16 in the room,
// which its factor is not in.
bool Decodes(const Part& w, int32_t cols, const ProductRoom& room);
cudaError_t DecodeWeights(int32_t cols, const ProductRoom& room, CudaStream& stream, Part* w);
// As Gemm, of codes without wide scales in f16 where the room holds them and many rows meet them.
cudaError_t GemmDecoded(const Product& p, const ProductRoom& room, CudaStream& stream);

// numbers [n], of bf16 or f16, aligned to 16 bytes, become f16 times 2^shift.
cudaError_t ToHalves(uint16_t* numbers, int64_t n, bool from_bf16, int shift, cudaStream_t stream);

}  // namespace kvc::cuda

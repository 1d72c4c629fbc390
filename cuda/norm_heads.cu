// Norms of the queries and keys of every head, in one launch: a warp a vector, which is in its registers
// between the two looks at it. Bytes: what it reads and writes, once each.
#include "cuda/cuda_device.h"
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/vector_products.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kOfLane = kMostHeadSize / kWarp;  // numbers

KVC_DEVICE void NormHead(const HeadNormParams& p, float* x, const float* weight) {
  float v[kOfLane];
  float sum = 0, mean = 0;
  KVC_UNROLL
  for (int i = 0; i < kOfLane; ++i) {
    const int32_t j = Lane() + i * kWarp;
    v[i] = j < p.d ? x[j] : 0.0f;
    sum += v[i];
  }
  if (p.centres) mean = __fdiv_rn(WarpSum(sum), static_cast<float>(p.d));
  float squares = 0;
  KVC_UNROLL
  for (int i = 0; i < kOfLane; ++i) {
    if (Lane() + i * kWarp < p.d) v[i] -= mean, squares += v[i] * v[i];
  }
  const float scale = NormFactorOf(WarpSum(squares), p.d, p.eps);
  KVC_UNROLL
  for (int i = 0; i < kOfLane; ++i) {
    const int32_t j = Lane() + i * kWarp;
    if (j < p.d) x[j] = v[i] * scale * weight[j];
  }
}

__global__ void __launch_bounds__(kThreads) norm_heads(const HeadNormParams p) {
  LetNextBegin();
  WaitForEarlier();
  const int32_t of_row = p.q.heads + p.k.heads;
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + WarpOfBlock();
  if (vector >= p.rows * of_row) return;
  const int64_t row = vector / of_row;
  const int32_t at = static_cast<int32_t>(vector % of_row);
  const bool is_key = at >= p.q.heads;
  const HeadsToNorm& heads = is_key ? p.k : p.q;
  const int32_t head = is_key ? at - p.q.heads : at;
  NormHead(p, heads.x + (row * heads.heads + head) * p.d, heads.weight + (p.own ? head * p.d : 0));
}

}  // namespace

void AddNormHeadsKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, norm_heads, 0); }

cudaError_t NormHeads(const HeadNormParams& p, CudaStream& stream) {
  const int64_t vectors = p.rows * (p.q.heads + p.k.heads), of_block = kThreads / kWarp;
  return KVC_LAUNCH_EARLY(norm_heads, dim3(static_cast<unsigned>((vectors + of_block - 1) / of_block)),
                          dim3(kThreads), 0, stream, p);
}

}  // namespace kvc::cuda

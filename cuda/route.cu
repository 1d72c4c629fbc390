// The router's choice, and pairs in the order of their experts. A step asks nobody: the products behind are
// launched for as many tiles as there can be, and find in device memory whose each is.
#include "cuda/block.h"
#include "cuda/experts.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

// Row i: every expert counts those that come before it; the first n_chosen are chosen. n_experts^2 / 128
// comparisons a thread.
KVC_DEVICE void RouteRow(const RouteParams& p, int32_t i, uint32_t* bits, BlockSpace* s) {
  const float* z = p.logits + static_cast<int64_t>(i) * p.n_experts;
  int32_t* chosen = p.chosen + static_cast<int64_t>(i) * p.n_chosen;
  float* weights = p.weights + static_cast<int64_t>(i) * p.n_chosen;
  float top = -Infinity(), all = 0;
  for (int32_t e = ThreadOfBlock(); e < p.n_experts; e += BlockThreads())
    bits[e] = ScoreBits(z[e]), top = fmaxf(top, z[e]);
  top = BlockMax(top, s->floats);
  for (int32_t e = ThreadOfBlock(); e < p.n_experts; e += BlockThreads()) all += expf(z[e] - top);
  all = BlockSum(all, s->floats);
  const auto is_chosen = [&](int32_t e) {
    int32_t before = 0;
    for (int32_t f = 0; f < p.n_experts; ++f)
      before += bits[f] > bits[e] || (bits[f] == bits[e] && f < e) ? 1 : 0;
    return before < p.n_chosen;
  };
  BlockCompact(p.n_experts, s, is_chosen, [&](int32_t e, int32_t place) {
    chosen[place] = e;
    weights[place] = __fdiv_rn(expf(z[e] - top), all);
  });
  if (!p.normalise) return;
  float sum = 0;
  for (int32_t j = 0; j < p.n_chosen; ++j) sum += weights[j];
  __syncthreads();
  for (int32_t j = ThreadOfBlock(); j < p.n_chosen; j += BlockThreads())
    weights[j] = __fdiv_rn(weights[j], sum);
}

// starts [n_experts]: scratch. Which of its expert's places a pair gets is chance where warps race; what an
// expert gives for a row does not depend on it.
KVC_DEVICE void GroupPairs(const RouteParams& p, int32_t* starts, BlockSpace* s) {
  const int32_t n_pairs = p.n * p.n_chosen;
  for (int32_t e = ThreadOfBlock(); e < p.n_experts; e += BlockThreads()) starts[e] = 0;
  __syncthreads();
  for (int32_t i = ThreadOfBlock(); i < n_pairs; i += BlockThreads()) atomicAdd(&starts[p.chosen[i]], 1);
  __syncthreads();
  int32_t pairs = 0, tiles = 0;
  for (int32_t base = 0; base < p.n_experts; base += BlockThreads()) {
    const int32_t e = base + ThreadOfBlock(), n = e < p.n_experts ? starts[e] : 0;
    int32_t more_pairs = 0, more_tiles = 0;
    const int32_t first = pairs + BlockPrefix(n, s->ints, &more_pairs),
                  tile = tiles + BlockPrefix((n + p.tile - 1) / p.tile, s->ints, &more_tiles);
    for (int32_t at = 0, j = tile; at < n; at += p.tile, ++j)
      p.tiles[j] = {e, first + at, min(p.tile, n - at)};
    if (e < p.n_experts) starts[e] = first;
    pairs += more_pairs, tiles += more_tiles;
  }
  for (int32_t j = tiles + ThreadOfBlock(); j < p.n_tiles; j += BlockThreads()) p.tiles[j] = {0, 0, 0};
  __syncthreads();
  for (int32_t i = ThreadOfBlock(); i < n_pairs; i += BlockThreads()) {
    const int32_t place = atomicAdd(&starts[p.chosen[i]], 1);
    p.places[i] = place;
    p.tokens[place] = i / p.n_chosen;
  }
}

// Block: a row. A single one goes on.
__global__ void __launch_bounds__(kBlock) route(const RouteParams p) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(uint32_t, bits);
  __shared__ BlockSpace space;
  RouteRow(p, static_cast<int32_t>(blockIdx.x), bits, &space);
  if (p.n > 1) return;
  __syncthreads();
  GroupPairs(p, reinterpret_cast<int32_t*>(bits), &space);
}

__global__ void __launch_bounds__(kBlock) group_pairs(const RouteParams p) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(int32_t, starts);
  __shared__ BlockSpace space;
  GroupPairs(p, starts, &space);
}

}  // namespace

void AddRouteKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, route, 0);
  KVC_ADD_STEP(loader, group_pairs, 0);
}

cudaError_t Route(const RouteParams& p, CudaStream& stream) {
  const size_t shared = static_cast<size_t>(p.n_experts) * sizeof(int32_t);
  const cudaError_t e =
      KVC_LAUNCH_EARLY(route, dim3(static_cast<unsigned>(p.n)), dim3(kBlock), shared, stream, p);
  if (e != cudaSuccess || p.n == 1) return e;
  return KVC_LAUNCH_EARLY(group_pairs, dim3(1), dim3(kBlock), shared, stream, p);
}

}  // namespace kvc::cuda

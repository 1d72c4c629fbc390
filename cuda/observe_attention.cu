// A step's attention as a session is asked for it. Bytes: logits once, what is written once.
#include "cuda/attention_shares.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

// Block (g, r): what the query heads of a KV head gave its entries, by ascending position; as the model has
// it, whatever a method makes of it.
__global__ void __launch_bounds__(kThreads) observe_attention(const StepParams p) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(AttentionShares, shares);
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y),
                group = p.n_heads / p.n_kv_heads, first = g * group;
  const RowParams& row = p.rows[r];
  if (row.attention == nullptr) return;
  const Pages pages(row.cache, g);
  BlockFindShares(p, r, pages, first, first + group, 1.0f, &space, shares);
  const int32_t len = pages.len();
  int32_t falls = 0;
  for (int32_t i = 1 + ThreadOfBlock(); i < len; i += BlockThreads())
    falls += pages.At(pages.Physical(i)).position() <= pages.At(pages.Physical(i - 1)).position() ? 1 : 0;
  const bool ascending = BlockSum(falls, space.ints) == 0;
  for (int32_t i = ThreadOfBlock(); i < len; i += BlockThreads()) {
    const int32_t x = pages.Physical(i), position = pages.At(x).position();
    int32_t rank = ascending ? i : 0;
    for (int32_t j = 0; !ascending && j < len; ++j)
      rank += pages.At(pages.Physical(j)).position() < position ? 1 : 0;
    for (int32_t h = first; h < first + group; ++h)
      row.attention[h * row.attention_stride + rank] = shares[h - first].Of(LogitsOf(p, r, h)[x]);
  }
}

}  // namespace

void AddObserveAttentionKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, observe_attention, 0); }

cudaError_t ObserveAttention(const StepParams& p, CudaStream& stream) {
  const size_t shares = static_cast<size_t>(p.n_heads / p.n_kv_heads) * sizeof(AttentionShares);
  return KVC_LAUNCH_EARLY(observe_attention, GridOfHeads(p), dim3(kThreads), shares, stream, p);
}

}  // namespace kvc::cuda

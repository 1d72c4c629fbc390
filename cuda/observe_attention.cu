// A step's attention as a session is asked for it. Bytes: logits once, what is written once; positions twice,
// and where they do not ascend twice more for every 65,536 that the sequence has come to.
#include "cuda/attention_shares.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

// f(i, how many of the n positions are below that of i) for all i in [0, n), a bit for every position at a
// time; they differ from each other. What stands for what is gone has one below 0: it comes first.
template <typename Position, typename F>
KVC_DEVICE void BlockRankPositions(int32_t n, int32_t last, Position position, BlockSpace* s, F f) {
  constexpr int32_t kBits = 32 * kMostBuckets, kWords = kMostBuckets / kThreads;  // words of a thread
  __shared__ int32_t first[kThreads];
  const auto place = [&](int32_t i) { return static_cast<int64_t>(max(position(i), -1)) + 1; };
  int64_t lowest = static_cast<int64_t>(last) + 1;
  for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) lowest = min(lowest, place(i));
  const uint64_t span = BlockMax(static_cast<uint64_t>(last + int64_t{1} - lowest), s->longs);
  lowest = last + int64_t{1} - static_cast<int64_t>(span);
  int32_t before = 0, found = 0;
  for (int64_t base = lowest; base <= static_cast<int64_t>(last) + 1; base += kBits, before += found) {
    for (int32_t w = ThreadOfBlock(); w < kMostBuckets; w += BlockThreads()) s->histogram[w] = 0;
    __syncthreads();
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) {
      const int64_t at = place(i) - base;
      if (at >= 0 && at < kBits) atomicAdd(&s->histogram[at / 32], static_cast<int32_t>(1u << (at % 32)));
    }
    __syncthreads();
    const auto bits = [&](int32_t w) { return static_cast<uint32_t>(s->histogram[w]); };
    int32_t mine = 0;
    for (int32_t w = 0; w < kWords; ++w) mine += CountBits(bits(ThreadOfBlock() * kWords + w));
    first[ThreadOfBlock()] = before + BlockPrefix(mine, s->ints, &found);
    __syncthreads();
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) {
      const int64_t at = place(i) - base;
      if (at < 0 || at >= kBits) continue;
      const int32_t word = static_cast<int32_t>(at / 32);
      int32_t rank = first[word / kWords] + CountBits(bits(word) & ((1u << (at % 32)) - 1));
      for (int32_t w = word / kWords * kWords; w < word; ++w) rank += CountBits(bits(w));
      f(i, rank);
    }
    __syncthreads();
  }
}

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
  const auto write = [&](int32_t i, int32_t rank) {
    const int32_t x = pages.Physical(i);
    for (int32_t h = first; h < first + group; ++h)
      row.attention[h * row.attention_stride + rank] = shares[h - first].Of(LogitsOf(p, r, h)[x]);
  };
  if (!ascending) {
    BlockRankPositions(
        len, row.position, [&](int32_t i) { return pages.At(pages.Physical(i)).position(); }, &space, write);
    return;
  }
  for (int32_t i = ThreadOfBlock(); i < len; i += BlockThreads()) write(i, i);
}

}  // namespace

void AddObserveAttentionKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, observe_attention, 0); }

cudaError_t ObserveAttention(const StepParams& p, CudaStream& stream) {
  const size_t shares = static_cast<size_t>(p.n_heads / p.n_kv_heads) * sizeof(AttentionShares);
  return KVC_LAUNCH_EARLY(observe_attention, GridOfHeads(p), dim3(kThreads), shares, stream, p);
}

}  // namespace kvc::cuda

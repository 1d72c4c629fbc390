// What a budget of bytes leaves when heads share it by score (methods.md 2.18).
#include <algorithm>

#include "lib/cache/kv_cache.h"
#include "lib/compress/storage_plan.h"

namespace kvc {

bool StoragePlan::fills_bytes() const {
  return !policy_.keeps_all() && policy_.budget_kind == BudgetKind::kBytes &&
         policy_.allocator->across_layers && policy_.decode == DecodeMode::kGrow && !codebook() &&
         !query_heads_see_their_own();
}

// The slots of a budget of bytes are those that fit however they are given out: every head may lose all of
// its last page but one. Once the heads have theirs, what their pages leave is known.
void StoragePlan::FillBytes(int32_t n_tokens, Candidate* next, int64_t n_next,
                            std::vector<int32_t>* held) const {
  const CacheLayout layout = LayoutFor(PageSlots(n_tokens));
  int64_t left = static_cast<int64_t>(policy_.budget) - WindowBytes(layout, n_tokens);
  for (int32_t head = 0; head < layout.n_heads_total(); ++head) {
    if (!slides(head / shape_.n_kv_heads))
      left -= HeadBytes(layout, head, (*held)[static_cast<size_t>(head)]);
  }
  const auto worse = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.head > b.head;
  };
  std::make_heap(next, next + n_next, worse);
  for (; n_next > 0; --n_next) {
    std::pop_heap(next, next + n_next, worse);
    const int32_t head = next[n_next - 1].head;
    int32_t& n = (*held)[static_cast<size_t>(head)];
    const int64_t cost = HeadBytes(layout, head, n + 1) - HeadBytes(layout, head, n);
    // Places that are paid for in the last pages of other heads stay empty: what is worse than an entry that
    // does not fit would be there alone, and get the attention that was the others' (`kvzip` in int4 on
    // models/relate at 63 KiB: 80 % of answers right, 87 without).
    if (cost > left) return;
    left -= cost, ++n;
  }
}

}  // namespace kvc

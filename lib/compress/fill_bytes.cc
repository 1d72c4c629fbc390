// What a budget of bytes leaves when heads share it by score (methods.md 2.18).
#include <algorithm>
#include <functional>
#include <queue>

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
void StoragePlan::FillBytes(int32_t n_tokens, std::vector<std::vector<uint32_t>>* next,
                            std::vector<int32_t>* held) const {
  const CacheLayout layout = LayoutFor(PageSlots(n_tokens));
  const auto page_bytes = [&](size_t head) { return PageBytes(layout, static_cast<int32_t>(head)); };
  int64_t left = static_cast<int64_t>(policy_.budget) - WindowBytes(layout, n_tokens);
  int64_t least = INT64_MAX;
  const auto shares = [&](size_t head) { return !slides(static_cast<int32_t>(head) / shape_.n_kv_heads); };
  for (size_t i = 0; i < held->size(); ++i) {
    if (!shares(i)) continue;
    left -= HeadBytes(layout, static_cast<int32_t>(i), (*held)[i]);
    least = std::min(least, page_bytes(i));
  }
  if (left < 0 || least == INT64_MAX) return;  // what is always kept may take more
  const size_t most = static_cast<size_t>((left / least + 1) * layout.page_slots);  // that one head can take
  struct Head {
    uint32_t score;
    size_t head, taken;
    bool operator<(const Head& o) const { return score != o.score ? score < o.score : head > o.head; }
  };
  std::priority_queue<Head> best;  // the next of every head
  for (size_t i = 0; i < held->size(); ++i) {
    std::vector<uint32_t>& scores = (*next)[i];
    if (!shares(i) || scores.empty()) continue;
    const auto end = scores.begin() + static_cast<std::ptrdiff_t>(std::min(most, scores.size()));
    std::partial_sort(scores.begin(), end, scores.end(), std::greater<uint32_t>());
    scores.erase(end, scores.end());
    best.push({scores[0], i, 0});
  }
  while (!best.empty()) {
    Head one = best.top();
    best.pop();
    int32_t& n = (*held)[one.head];
    const int32_t head = static_cast<int32_t>(one.head);
    const int64_t cost = HeadBytes(layout, head, n + 1) - HeadBytes(layout, head, n);
    // Places that are paid for in the last pages of other heads stay empty: what is worse than an entry that
    // does not fit would be there alone, and get the attention that was the others' (`kvzip` in int4 on
    // models/relate at 63 KiB: 80 % of answers right, 87 without).
    if (cost > left) break;
    left -= cost, ++n;
    const std::vector<uint32_t>& scores = (*next)[one.head];
    if (++one.taken < scores.size()) best.push({scores[one.taken], one.head, one.taken});
  }
}

}  // namespace kvc

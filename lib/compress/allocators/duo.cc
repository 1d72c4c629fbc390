// DuoAttention: heads that retrieve keep everything, the others first and newest tokens (methods.md 2.23). As
// many heads retrieve, by descending score, as the budget holds beside the least of the others; what is left
// makes the others' newest part longer.
#include <numeric>

#include "lib/base/heap_sort.h"
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"
#include "lib/compress/budget.h"

namespace kvc {
namespace {

// [L, G]; a table per query head is averaged over the groups.
std::vector<double> ScoresOf(const AllocateInput& in) {
  const size_t n = static_cast<size_t>(in.n_layers) * static_cast<size_t>(in.n_kv_heads),
               group = in.head_scores.size() / n;
  std::vector<double> scores(n, 0.0);
  for (size_t i = 0; i < n * group; ++i) scores[i / group] += in.head_scores[i] / static_cast<double>(group);
  return scores;
}

Status Plan(const AllocateInput& in, int32_t* counts) {
  const int64_t n = int64_t{in.n_layers} * in.n_kv_heads;
  const size_t given = in.head_scores.size();
  if (given != static_cast<size_t>(n) &&
      given != static_cast<size_t>(in.n_layers) * static_cast<size_t>(in.n_heads))
    return Error(Code::kInvalid, "duo needs %d x %d scores (layers x KV heads), the table has %zu",
                 in.n_layers, in.n_kv_heads, given);
  KVC_RETURN_IF_ERROR(CheckHeadScores(in, static_cast<int32_t>(given) / in.n_layers, -HUGE_VAL));
  const int64_t b = AverageOf(in), m = CandidatesOf(in);
  const int32_t recent = in.policy.Int(OptionId::kRecent);
  // Of a head that does not retrieve, beyond the protected part.
  const int64_t least = std::clamp<int64_t>(
      (recent < 0 ? in.budget / 4 : in.policy.Int(OptionId::kNSink) + recent) - in.n_protected, 0, b);
  int64_t n_whole = b >= m ? n : std::clamp<int64_t>(n * (b - least) / std::max<int64_t>(m - least, 1), 0, n);
  if (in.n == AllocateInput::kUnbounded) n_whole = 0;  // heads become whole by a prompt (whole_heads_grow)
  const std::vector<double> scores = ScoresOf(in);
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  HeapSort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    const double left = scores[static_cast<size_t>(x)], right = scores[static_cast<size_t>(y)];
    return left != right ? left > right : x < y;
  });
  std::vector<uint64_t> weights(static_cast<size_t>(n), 1);
  std::vector<int32_t> caps(static_cast<size_t>(n), static_cast<int32_t>(m)), result(caps.size());
  std::vector<int32_t> low(caps.size(), 0);
  for (int64_t i = 0; i < n_whole; ++i)
    low[static_cast<size_t>(order[static_cast<size_t>(i)])] = static_cast<int32_t>(m);
  Alloc(n * b, weights, caps, low, true, Span<int32_t>(result.data(), result.size()));
  return FillHeads(in, result, counts);
}

}  // namespace

constexpr Allocator kAllocatorDuo = {"duo",
                                     kNeedsHeadScores,
                                     false,
                                     {OptionId::kRecent},
                                     Plan,
                                     /*shares_bytes=*/false,
                                     /*per_query_head=*/true,
                                     /*across_layers=*/false,
                                     /*whole_heads_grow=*/true};

}  // namespace kvc

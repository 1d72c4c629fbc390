// CoKV: Sliced Shapley values of all KV heads divide one budget of the whole model (methods.md 2.13).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"
#include "lib/compress/budget.h"

namespace kvc {
namespace {

// Heads that get nothing beyond the window: the policy's number, else the one stored with the table, else 1
// of 64 heads and at least 1.
Status AlphaOf(const AllocateInput& in, int32_t n_players, int32_t* alpha) {
  const int32_t wanted = in.policy.Int(OptionId::kAlpha);
  if (wanted >= 0) {
    if (wanted < 1 ||
        (n_players > 1 && wanted >= n_players)) {  // a single head gets the average, whatever alpha
      return Error(Code::kInvalid, "alpha = %d, but this model has %d KV heads: 1 .. %d is allowed", wanted,
                   n_players, n_players - 1);
    }
    *alpha = wanted;
    return {};
  }
  *alpha =
      std::clamp(in.table_alpha > 0 ? in.table_alpha : (n_players + 32) / 64, 1, std::max(n_players - 1, 1));
  return {};
}

Status Plan(const AllocateInput& in, int32_t* counts) {
  const int32_t n_players = in.n_layers * in.n_kv_heads;
  if (in.head_scores.size() != static_cast<size_t>(n_players)) {
    return Error(Code::kInvalid, "cokv needs %d x %d scores (layers x KV heads), the table has %zu",
                 in.n_layers, in.n_kv_heads, in.head_scores.size());
  }
  KVC_RETURN_IF_ERROR(CheckHeadScores(in, in.n_kv_heads, -HUGE_VAL));
  int32_t alpha = 1;
  KVC_RETURN_IF_ERROR(AlphaOf(in, n_players, &alpha));
  const bool redistribute = in.policy.Flag(OptionId::kRedistribute);
  if (!in.entry_bytes.empty())
    return ShareBytes(in, CokvWeights(in.head_scores, alpha), redistribute, counts);
  return FillHeads(in,
                   CokvCounts(in.head_scores, AverageOf(in), RoomOf(in), alpha, redistribute,
                              in.policy.Int(OptionId::kCokvRounding) == 1),
                   counts);
}

}  // namespace

constexpr Allocator kAllocatorCokv = {"cokv",
                                      kNeedsHeadScores,
                                      false,
                                      {OptionId::kAlpha, OptionId::kCokvRounding, OptionId::kRedistribute},
                                      Plan,
                                      /*shares_bytes=*/true};

}  // namespace kvc

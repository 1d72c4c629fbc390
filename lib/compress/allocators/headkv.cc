// HeadKV: a floor for every head and a pool shared by retrieval-reasoning scores (methods.md 2.10).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"
#include "lib/compress/budget.h"

namespace kvc {
namespace {

Status Plan(const AllocateInput& in, int32_t* counts) {
  const size_t layers = static_cast<size_t>(in.n_layers), n = in.head_scores.size();
  const bool per_query = n == layers * static_cast<size_t>(in.n_heads);
  if (!per_query && n != layers * static_cast<size_t>(in.n_kv_heads)) {
    return Error(Code::kInvalid,
                 "headkv needs %d x %d scores (layers x query heads) or %d x %d (layers x KV heads), the "
                 "table has %zu",
                 in.n_layers, in.n_heads, in.n_layers, in.n_kv_heads, n);
  }
  const int32_t per_layer = per_query ? in.n_heads : in.n_kv_heads;
  KVC_RETURN_IF_ERROR(CheckHeadScores(in, per_layer, 0));
  const Policy& policy = in.policy;
  if (!in.entry_bytes.empty()) {
    return ShareBytes(in,
                      HeadkvWeights(in.head_scores, in.n_layers, per_layer, in.n_kv_heads,
                                    policy.Real(OptionId::kHeadkvBeta), policy.Real(OptionId::kTemperature)),
                      policy.Flag(OptionId::kRedistribute), counts);
  }
  return FillHeads(
      in,
      HeadkvCounts(in.head_scores, in.n_layers, per_layer, in.n_kv_heads, AverageOf(in), RoomOf(in),
                   policy.Real(OptionId::kHeadkvBeta), policy.Real(OptionId::kTemperature),
                   policy.Flag(OptionId::kRedistribute), policy.Int(OptionId::kHeadkvRounding) == 1),
      counts);
}

}  // namespace

constexpr Allocator kAllocatorHeadkv = {
    "headkv",
    kNeedsHeadScores,
    false,
    {OptionId::kHeadkvBeta, OptionId::kTemperature, OptionId::kHeadkvRounding, OptionId::kRedistribute},
    Plan,
    /*shares_bytes=*/true,
    /*per_query_head=*/true};

}  // namespace kvc

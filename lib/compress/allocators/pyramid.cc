// PyramidKV: much for the first layers, little for the last, in equal steps (methods.md 2.7).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"
#include "lib/compress/budget.h"

namespace kvc {
namespace {

Status Plan(const AllocateInput& in, int32_t* counts) {
  const bool reference = in.policy.Int(OptionId::kPyramidRounding) == 1;
  return FillLayers(
      in,
      PyramidCounts(AverageOf(in), CandidatesOf(in), in.n_layers, in.policy.Real(OptionId::kBeta), reference),
      counts);
}

// A part of the least average is every head's own.
Status PlanByScores(const AllocateInput& in, int32_t* counts) {
  KVC_RETURN_IF_ERROR(Plan(in, counts));
  const int32_t least = *std::min_element(counts, counts + int64_t{in.n_layers} * in.n_kv_heads);
  return CheckSure(in, SureOf(in, least));
}

}  // namespace

constexpr Allocator kAllocatorPyramid = {
    "pyramid", kNeedsNothing, false, {OptionId::kBeta, OptionId::kPyramidRounding}, Plan};
// Ada-Pyramid: the same layer averages, which the scores of the prompt then split between the heads
// (methods.md 2.12).
constexpr Allocator kAllocatorAdaPyramid = {
    "ada+pyramid",
    kNeedsNothing,
    true,
    {OptionId::kBeta, OptionId::kPyramidRounding, OptionId::kAdaFloor, OptionId::kAdaMode,
     OptionId::kAdaLocked, OptionId::kAdaNormalize, OptionId::kAdaSkip},
    PlanByScores};

}  // namespace kvc

// PyramidInfer's schedule as a budget: what its ratios would leave of the prompt at each depth
// (methods.md 2.8).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"
#include "lib/compress/budget.h"

namespace kvc {
namespace {

Status Plan(const AllocateInput& in, int32_t* counts) {
  return FillLayers(
      in, PyramidInferCounts(AverageOf(in), CandidatesOf(in), in.n_layers, in.policy.Real(OptionId::kDecay)),
      counts);
}

}  // namespace

constexpr Allocator kAllocatorPyramidInfer = {
    "pyramid_infer", kNeedsNothing, false, {OptionId::kDecay}, Plan};

}  // namespace kvc

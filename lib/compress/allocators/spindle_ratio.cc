// SpindleKV: layer ratios that fall with depth to a floor (methods.md 2.16 a). The budget counts slots per
// query head.
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"
#include "lib/compress/budget.h"

namespace kvc {
namespace {

Status Plan(const AllocateInput& in, int32_t* counts) {
  return FillLayers(
      in,
      SpindleCounts(in.budget, in.n, in.n_protected, in.n_layers, in.policy.Real(OptionId::kSpindleBeta),
                    in.policy.Int(OptionId::kSpindleRounding) == 1),
      counts);
}

}  // namespace

constexpr Allocator kAllocatorSpindleRatio = {
    "spindle_ratio", kNeedsNothing, false, {OptionId::kSpindleBeta, OptionId::kSpindleRounding}, Plan};

}  // namespace kvc

// Ada-KV: every layer has the average; the scores of the prompt split it between the layer's heads
// (methods.md 2.11).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"

namespace kvc {
namespace {

// A part of the average is every head's own.
Status Plan(const AllocateInput& in, int32_t* counts) {
  return FillByScores(in, SureOf(in, AverageOf(in)), counts);
}

}  // namespace

constexpr Allocator kAllocatorAda = {"ada",
                                     kNeedsNothing,
                                     true,
                                     {OptionId::kAdaFloor, OptionId::kAdaMode, OptionId::kAdaLocked,
                                      OptionId::kAdaNormalize, OptionId::kAdaSkip},
                                     Plan};

}  // namespace kvc

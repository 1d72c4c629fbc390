// Ada-KV: every layer has the average; the scores of the prompt split it between the layer's heads
// (methods.md 2.11).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"

namespace kvc {

constexpr Allocator kAllocatorAda = {"ada",
                                     kNeedsNothing,
                                     true,
                                     {OptionId::kAdaFloor, OptionId::kAdaMode, OptionId::kAdaLocked,
                                      OptionId::kAdaNormalize, OptionId::kAdaSkip},
                                     FillAverage};

}  // namespace kvc

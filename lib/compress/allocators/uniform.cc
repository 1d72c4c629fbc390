// The same count for every head.
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"

namespace kvc {

constexpr Allocator kAllocatorUniform = {"uniform", kNeedsNothing, false, {}, FillAverage};

}  // namespace kvc

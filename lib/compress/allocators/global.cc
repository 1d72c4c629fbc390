// KVzip: the best scores of all heads of all layers share one budget (methods.md 2.18).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"

namespace kvc {

constexpr Allocator kAllocatorGlobal = {"global",
                                        kNeedsNothing,
                                        true,
                                        {},
                                        FillAverage,
                                        /*shares_bytes=*/false,
                                        /*per_query_head=*/false,
                                        /*across_layers=*/true};

}  // namespace kvc

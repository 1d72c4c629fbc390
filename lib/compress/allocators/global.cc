// KVzip: the best scores of all heads of all layers share one budget (methods.md 2.18).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"

namespace kvc {
namespace {

Status Plan(const AllocateInput& in, int32_t* counts) { return FillByScores(in, /*sure=*/0, counts); }

}  // namespace

constexpr Allocator kAllocatorGlobal = {"global",
                                        kNeedsNothing,
                                        true,
                                        {},
                                        Plan,
                                        /*shares_bytes=*/false,
                                        /*per_query_head=*/false,
                                        /*across_layers=*/true};

}  // namespace kvc

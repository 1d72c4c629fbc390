// The caller's own slots for every layer and KV head, the protected part included (methods.md 4.1).
#include "lib/compress/allocators.h"
#include "lib/compress/allocators/plan.h"

namespace kvc {
namespace {

Status Plan(const AllocateInput& in, int32_t* counts) {
  const std::vector<int32_t>& table = in.policy.table;
  const size_t n = static_cast<size_t>(in.n_layers) * static_cast<size_t>(in.n_kv_heads);
  if (table.size() < n || (in.layers.empty() && table.size() > n)) {
    return Error(Code::kInvalid, "table needs %d x %d slots (layers x KV heads), it has %zu", in.n_layers,
                 in.n_kv_heads, table.size());
  }
  for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
    const int32_t least = std::max(in.n_protected, 1), layer = in.LayerAt(i / in.n_kv_heads),
                  head = i % in.n_kv_heads;
    const int32_t slots = table[static_cast<size_t>(layer * in.n_kv_heads + head)];
    if (slots < least) {
      return Error(Code::kInvalid,
                   "table gives layer %d, KV head %d only %d slots; the part that is always kept needs %d",
                   layer, head, slots, least);
    }
    counts[i] = std::min(slots - in.n_protected, CandidatesOf(in));
  }
  return {};
}

}  // namespace

constexpr Allocator kAllocatorTable = {"table", kNeedsTable, false, {}, Plan};

}  // namespace kvc

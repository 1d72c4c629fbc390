// Budgets in bytes where an entry costs more in one head than in another (methods.md 4.4 b). Exact
// arithmetic, as Alloc has it.
#include <cassert>

#include "lib/compress/budget.h"
#include "lib/compress/give_out.h"

namespace kvc {

// Bounds: bytes < 2^45, a weight <= 2^40, cost <= 2^20, room < 2^31, 2^20 heads. So the sum of weight * cost
// is <= 2^80, bytes * weight <= 2^85 and room * sum < 2^111: nothing leaves 128 bits.
std::vector<int32_t> ByteBudgetCounts(int64_t total_bytes, Span<const double> weights,
                                      Span<const int64_t> cost, Span<const int32_t> caps, int64_t* left) {
  const size_t n = weights.size();
  assert(cost.size() == n && (caps.empty() || caps.size() == n) && n <= size_t{1} << 20);
  assert(total_bytes >= 0 && total_bytes < int64_t{1} << 45);
  const std::vector<uint64_t> integer = IntegerWeights(weights);
  std::vector<int64_t> counts(n, 0);
  std::vector<Share> shares;
  shares.reserve(n);
  int64_t rest = total_bytes;
  for (const bool equal : {false, true}) {  // second pass: whoever has room takes the rest in equal shares
    shares.clear();
    for (size_t i = 0; i < n; ++i) {
      const Wide weight = equal ? 1 : integer[i];
      const int64_t room = int64_t{caps.empty() ? INT32_MAX : caps[i]} - counts[i];
      if (weight > 0 && room > 0) shares.push_back({i, weight, cost[i], room});
    }
    rest = GiveOut(rest, shares, counts);
    if (!shares.empty()) break;  // those that are not full had their shares of all there was
  }
  if (left) *left = rest;
  return std::vector<int32_t>(counts.begin(), counts.end());
}

}  // namespace kvc

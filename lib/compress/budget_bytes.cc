// Budgets in bytes where an entry costs more in one head than in another (methods.md 4.4 b). Exact
// arithmetic, as Alloc has it.
#include <algorithm>
#include <cassert>
#include <numeric>

#include "lib/compress/budget.h"

namespace kvc {
namespace {

using Wide = unsigned __int128;

// Bounds: bytes < 2^45, a weight <= 2^40, cost <= 2^20, room < 2^31, 2^20 heads. So the sum of weight * cost
// is <= 2^80, bytes * weight <= 2^85 and room * sum < 2^111: nothing leaves 128 bits.
struct Share {
  size_t index;
  Wide weight;
  int64_t cost, room;
  Wide remainder;  // of its quota, over the common sum
};

// One pass: gives `rest` bytes out over the shares, each at most its room. Returns what is left. A share is
// full when rest * W / sum >= room; as in Alloc the full ones are a prefix of the order by W / room. Full
// ones leave `shares`.
int64_t GiveOut(int64_t rest, std::vector<Share>& shares, std::vector<int32_t>& counts) {
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    const Wide left = a.weight * static_cast<Wide>(b.room), right = b.weight * static_cast<Wide>(a.room);
    return left != right ? left > right : a.index < b.index;
  });
  Wide sum = 0;
  for (const Share& share : shares) sum += share.weight * static_cast<Wide>(share.cost);
  size_t first = 0;
  for (; first < shares.size(); ++first) {
    const Share& share = shares[first];
    if (static_cast<Wide>(rest) * share.weight < static_cast<Wide>(share.room) * sum) break;
    counts[share.index] += static_cast<int32_t>(share.room);
    rest -= share.room * share.cost;
    sum -= share.weight * static_cast<Wide>(share.cost);
  }
  shares.erase(shares.begin(), shares.begin() + static_cast<int64_t>(first));
  const Wide open = static_cast<Wide>(rest);
  for (Share& share : shares) {
    const int64_t whole = static_cast<int64_t>(open * share.weight / sum);
    share.remainder = open * share.weight % sum;
    share.room -= whole;
    counts[share.index] += static_cast<int32_t>(whole);
    rest -= whole * share.cost;
  }
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return a.remainder != b.remainder ? a.remainder > b.remainder : a.index < b.index;
  });
  for (const Share& share : shares) {
    if (share.cost > rest || share.room == 0) continue;
    ++counts[share.index];
    rest -= share.cost;
  }
  return rest;
}

}  // namespace

std::vector<int32_t> ByteBudgetCounts(int64_t total_bytes, Span<const double> weights,
                                      Span<const int64_t> cost, Span<const int32_t> caps, int64_t* left) {
  const size_t n = weights.size();
  assert(cost.size() == n && (caps.empty() || caps.size() == n) && n <= size_t{1} << 20);
  assert(total_bytes >= 0 && total_bytes < int64_t{1} << 45);
  const std::vector<uint64_t> integer = IntegerWeights(weights);
  std::vector<int32_t> counts(n, 0);
  std::vector<Share> shares;
  shares.reserve(n);
  int64_t rest = total_bytes;
  for (const bool equal : {false, true}) {  // second pass: whoever has room takes the rest in equal shares
    shares.clear();
    for (size_t i = 0; i < n; ++i) {
      const Wide weight = equal ? 1 : integer[i];
      const int64_t room = (caps.empty() ? INT32_MAX : caps[i]) - counts[i];
      if (weight > 0 && room > 0) shares.push_back({i, weight, cost[i], room, 0});
    }
    rest = GiveOut(rest, shares, counts);
    if (!shares.empty()) break;  // those that are not full had their shares of all there was
  }
  if (left) *left = rest;
  return counts;
}

}  // namespace kvc

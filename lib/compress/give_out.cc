#include "lib/compress/give_out.h"

#include "lib/base/heap_sort.h"

namespace kvc {

// A share is full when rest * W / sum >= room. Filling one never makes another less full (rest / sum cannot
// fall), so the full ones are a prefix of the order by W / room, and one walk replaces the repeated search.
int64_t GiveOut(int64_t rest, std::vector<Share>& shares, std::vector<int64_t>& counts) {
  HeapSort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    const Wide left = a.weight * static_cast<Wide>(b.room), right = b.weight * static_cast<Wide>(a.room);
    return left != right ? left > right : a.index < b.index;
  });
  Wide sum = 0;
  for (const Share& share : shares) sum += share.weight * static_cast<Wide>(share.cost);
  size_t first = 0;
  for (; first < shares.size(); ++first) {
    const Share& share = shares[first];
    if (static_cast<Wide>(rest) * share.weight < static_cast<Wide>(share.room) * sum) break;
    counts[share.index] += share.room;
    rest -= share.room * share.cost;
    sum -= share.weight * static_cast<Wide>(share.cost);
  }
  shares.erase(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(first));
  const Wide open = static_cast<Wide>(rest);
  for (Share& share : shares) {
    const int64_t whole = static_cast<int64_t>(open * share.weight / sum);
    share.remainder = open * share.weight % sum;
    share.room -= whole;
    counts[share.index] += whole;
    rest -= whole * share.cost;
  }
  HeapSort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return a.remainder != b.remainder ? a.remainder > b.remainder : a.index < b.index;
  });
  for (const Share& share : shares) {
    if (share.cost > rest || share.room == 0) continue;
    ++counts[share.index];
    rest -= share.cost;
  }
  return rest;
}

}  // namespace kvc

// The one rule by which slots and bytes are given out in proportion (methods.md 1.8, 4.4 b). Exact: 128-bit
// integers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc {

using Wide = unsigned __int128;

struct Share {
  size_t index;
  Wide weight;
  int64_t cost;        // of one unit: 1 where slots are given out, bytes of an entry where bytes are
  int64_t room;        // units it can still take
  Wide remainder = 0;  // of its quota, over the common sum
};

// One pass: gives `rest` out over the shares by weight, each at most its room; what proportion leaves over
// goes by largest remainder, equal ones by index. Units are added to counts[share.index]. Returns what is
// left; shares that became full leave `shares`. The caller bounds rest * weight, and room * (the sum of
// weight * cost), below 2^127.
int64_t GiveOut(int64_t rest, std::vector<Share>& shares, std::vector<int64_t>& counts);

}  // namespace kvc

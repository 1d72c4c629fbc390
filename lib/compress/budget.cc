#include "lib/compress/budget.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "lib/base/heap_sort.h"
#include "lib/compress/give_out.h"

namespace kvc {
namespace {

// Bounds of Alloc: a weight W <= 2^62, the sum S of all weights < 2^74, what is given out R and room < 2^52.
// So R * W < 2^114, room * W < 2^114 and room * S < 2^126: nothing leaves 128 bits, and no quotient is ever
// rounded.
[[maybe_unused]] constexpr uint64_t kMaxWeight = uint64_t{1} << 62;
[[maybe_unused]] constexpr int64_t kMaxTotal = int64_t{1} << 52;
[[maybe_unused]] constexpr size_t kMaxWeights = size_t{1} << 20;

}  // namespace

int64_t Alloc(int64_t total, Span<const uint64_t> weights, Span<const int32_t> caps, Span<const int32_t> low,
              bool redistribute, Span<int32_t> counts) {
  const size_t n = weights.size();
  assert(caps.size() == n && counts.size() == n && (low.empty() || low.size() == n));
  assert(n <= kMaxWeights && total >= 0 && total < kMaxTotal);
  std::vector<int64_t> taken(n, 0);
  if (!low.empty()) std::copy(low.begin(), low.end(), taken.begin());
  int64_t rest = total - std::accumulate(taken.begin(), taken.end(), int64_t{0});
  std::vector<Share> shares;
  shares.reserve(n);
  for (const bool equal : {false, true}) {  // second pass: whoever has room takes the rest in equal shares
    if (rest <= 0) break;
    shares.clear();
    for (size_t i = 0; i < n; ++i) {
      assert(weights[i] <= kMaxWeight);
      const Wide weight = equal ? 1 : weights[i];
      const int64_t room = (redistribute ? int64_t{caps[i]} : total) - taken[i];
      if (weight > 0 && room > 0) shares.push_back({i, weight, 1, room});
    }
    rest = GiveOut(rest, shares, taken);
  }
  rest = std::max<int64_t>(rest, 0);
  for (size_t i = 0; i < n; ++i) {
    const int64_t held = std::min<int64_t>(taken[i], caps[i]);
    rest += taken[i] - held;
    counts[i] = static_cast<int32_t>(held);
  }
  return rest;
}

std::vector<uint64_t> IntegerWeights(Span<const double> weights) {
  double most = 0;
  for (const double w : weights) {
    if (std::isfinite(w)) most = std::max(most, w);
  }
  std::vector<uint64_t> result(weights.size(), 0);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0)) continue;
    const double share =
        most > 0 ? std::min(weights[i] / most, 1.0) : 1.0;  // an infinite weight counts as the largest
    result[i] = static_cast<uint64_t>(std::nearbyint(share * 1099511627776.0));  // 2^40
  }
  return result;
}

namespace {

double OrderedScore(double score) { return std::isnan(score) ? -INFINITY : score; }

// Indices by descending score, ties lower index first, NaN last.
std::vector<size_t> ByDescendingScore(Span<const double> scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  HeapSort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const double x = OrderedScore(scores[a]), y = OrderedScore(scores[b]);
    return x != y ? x > y : a < b;
  });
  return order;
}

}  // namespace

std::vector<int32_t> BitsByLevels(Span<const double> scores, Span<const BitsLevel> levels) {
  const size_t n = scores.size();
  std::vector<uint64_t> weights;
  // Decimal shares as whole numbers: 0.1 : 0.4 is 1 : 4 and ties are ties.
  for (const BitsLevel& level : levels)
    weights.push_back(static_cast<uint64_t>(std::llround(level.share * 1e12)));
  const std::vector<int32_t> caps(levels.size(), static_cast<int32_t>(n));
  std::vector<int32_t> counts(levels.size());
  Alloc(static_cast<int64_t>(n), weights, caps, {}, true, counts);
  std::vector<int32_t> bits(n);
  size_t rank = 0;
  const std::vector<size_t> order = ByDescendingScore(scores);
  for (size_t l = 0; l < levels.size(); ++l) {
    for (int32_t i = 0; i < counts[l]; ++i) bits[order[rank++]] = levels[l].bits;
  }
  return bits;
}

std::vector<bool> HighPrecisionHeads(Span<const double> scores, bool lower_median) {
  const size_t n = scores.size(), half = (n + 1) / 2;
  const std::vector<size_t> order = ByDescendingScore(scores);
  const auto value = [&](size_t i) { return OrderedScore(scores[i]); };
  std::vector<bool> high(n, false);
  if (n == 0) return high;
  // In descending order the lower middle value of an even count stands at n / 2, the middle one of an odd
  // count too.
  const double median = value(order[n / 2]);
  for (size_t rank = 0; rank < n; ++rank) {
    const size_t i = order[rank];
    high[i] = lower_median ? value(i) >= median : rank < half;
  }
  return high;
}

}  // namespace kvc

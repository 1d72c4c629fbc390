// Budgets that differ between KV heads: HeadKV and CoKV from stored scores, Ada-KV from the scores of the
// prompt.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/compress/budget.h"

namespace kvc {
namespace {

std::vector<int32_t> AllocHeads(const std::vector<double>& weights, int32_t b, Span<const int32_t> room,
                                bool redistribute) {
  std::vector<int32_t> counts(weights.size());
  Alloc(int64_t{b} * static_cast<int64_t>(weights.size()), IntegerWeights(weights), room, {}, redistribute,
        counts);
  return counts;
}

std::vector<int32_t> Equal(int32_t b, Span<const int32_t> room, bool redistribute) {
  return AllocHeads(std::vector<double>(room.size(), 1.0), b, room, redistribute);
}

// Where nothing is to be chosen: nothing, or everything.
bool FillsPlainly(int32_t b, Span<const int32_t> room, std::vector<int32_t>* counts) {
  const int64_t there = std::accumulate(room.begin(), room.end(), int64_t{0});
  counts->assign(room.begin(), room.end());
  if (b <= 0) counts->assign(room.size(), 0);
  return b <= 0 || int64_t{b} * static_cast<int64_t>(room.size()) >= there;
}

// Scores of the KV heads: the mean of each group to the power of the temperature.
std::vector<double> TemperedScores(Span<const double> s_query, size_t n, int32_t per_kv_head,
                                   double temperature) {
  const size_t group = static_cast<size_t>(per_kv_head);
  assert(s_query.size() == n * group);
  std::vector<double> s(n);
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t j = 0; j < group; ++j) sum += s_query[i * group + j];
    s[i] = std::pow(sum / static_cast<double>(group), temperature);
  }
  return s;
}

// As Python divides by //: 11 // 1.1 is 9, for the number that is written 1.1 is a little more, though the
// nearest double to their quotient is 10.
double FloorDivide(double x, double y) { return std::floor((x - std::fmod(x, y)) / y + 0.5); }

}  // namespace

std::vector<int32_t> HeadkvCounts(Span<const double> s_query, int32_t n_layers, int32_t n_heads,
                                  int32_t n_kv_heads, int32_t b, Span<const int32_t> room, double beta,
                                  double temperature, bool redistribute, bool reference_rounding) {
  const size_t n = static_cast<size_t>(n_layers) * static_cast<size_t>(n_kv_heads);
  assert(room.size() == n);
  std::vector<int32_t> counts;
  if (FillsPlainly(b, room, &counts)) return counts;
  const std::vector<double> s = TemperedScores(s_query, n, n_heads / n_kv_heads, temperature);
  const double total = std::accumulate(s.begin(), s.end(), 0.0);
  if (!(total > 0) || !std::isfinite(total)) return Equal(b, room, redistribute);
  const double pool = reference_rounding ? FloorDivide(b, beta) : b / beta;  // per head
  std::vector<double> quota(n);
  for (size_t i = 0; i < n; ++i) quota[i] = (b - pool) + s[i] / total * static_cast<double>(n) * pool;
  if (!reference_rounding) return AllocHeads(quota, b, room, redistribute);
  for (size_t i = 0; i < n; ++i)
    counts[i] = static_cast<int32_t>(std::min<double>(std::nearbyint(quota[i]), room[i]));
  return counts;
}

std::vector<double> HeadkvWeights(Span<const double> s_query, int32_t n_layers, int32_t n_heads,
                                  int32_t n_kv_heads, double beta, double temperature) {
  const size_t n = static_cast<size_t>(n_layers) * static_cast<size_t>(n_kv_heads);
  std::vector<double> s = TemperedScores(s_query, n, n_heads / n_kv_heads, temperature);
  const double total = std::accumulate(s.begin(), s.end(), 0.0);
  if (!(total > 0) || !std::isfinite(total)) return std::vector<double>(n, 1.0);
  for (double& x : s) x = (1 - 1 / beta) + x / total * static_cast<double>(n) / beta;
  return s;
}

std::vector<double> CokvWeights(Span<const double> scores, int32_t alpha) {
  const size_t n = scores.size();
  std::vector<double> v(scores.begin(), scores.end());
  if (n > 1) {
    assert(alpha >= 1 && static_cast<size_t>(alpha) < n);
    std::nth_element(v.begin(), v.begin() + (alpha - 1), v.end());
    const double theta = v[static_cast<size_t>(alpha - 1)];
    for (size_t i = 0; i < n; ++i) v[i] = std::max(scores[i] - theta, 0.0);
  }
  if (!(std::accumulate(v.begin(), v.end(), 0.0) > 0)) v.assign(n, 1.0);
  return v;
}

std::vector<int32_t> CokvCounts(Span<const double> scores, int32_t b, Span<const int32_t> room, int32_t alpha,
                                bool redistribute, bool reference_rounding) {
  const size_t n = scores.size();
  assert(room.size() == n);
  std::vector<int32_t> counts;
  if (FillsPlainly(b, room, &counts)) return counts;
  if (n <= 1) return Equal(b, room, redistribute);
  const std::vector<double> v = CokvWeights(scores, alpha);
  if (std::equal(v.begin() + 1, v.end(), v.begin())) return Equal(b, room, redistribute);
  const double total = std::accumulate(v.begin(), v.end(), 0.0);
  if (!reference_rounding) return AllocHeads(v, b, room, redistribute);
  for (size_t i = 0; i < n; ++i) {
    const double quota = static_cast<double>(b) * static_cast<double>(n) * (v[i] / total);
    counts[i] = static_cast<int32_t>(
        std::min<double>(std::floor(quota + 1e-9), room[i]));  // 1e-9: an integer quota stays one
  }
  return counts;
}

constexpr int64_t kMillion = 1000000;

int64_t FloorInMillionths(const AdaOptions& options) {
  return std::llrint(std::clamp(options.floor, 0.0, 1.0) * static_cast<double>(kMillion));
}

bool AdaAsks(const AdaOptions& options, int32_t b, Span<const int32_t> candidates, AdaQuestion* question,
             Span<int32_t> counts) {
  const int64_t there = std::accumulate(candidates.begin(), candidates.end(), int64_t{0}),
                total = std::max<int64_t>(b, 0) * static_cast<int64_t>(candidates.size());
  if (total >= there || b <= 0) {
    for (size_t h = 0; h < counts.size(); ++h) counts[h] = b <= 0 ? 0 : candidates[h];
    return false;
  }
  question->total = total;
  question->locked = 0;
  if (options.safeguard)
    question->locked =
        options.locked > 0 ? std::min(options.locked, b) : FloorInMillionths(options) * b / kMillion;
  return true;
}

void AdaCounts(const AdaOptions& options, int32_t b, Span<const int32_t> candidates, Span<const int64_t> best,
               Span<int32_t> counts) {
  if (options.safeguard) {
    for (size_t h = 0; h < counts.size(); ++h) counts[h] = static_cast<int32_t>(best[h]);
    return;
  }
  const int64_t floor = FloorInMillionths(options);
  std::vector<uint64_t> weights(best.size());  // < 2^31 * 2^20
  for (size_t h = 0; h < best.size(); ++h)
    weights[h] = static_cast<uint64_t>(best[h] * (kMillion - floor) + floor * b);
  Alloc(int64_t{b} * static_cast<int64_t>(best.size()), weights, candidates, {}, true, counts);
}

}  // namespace kvc

// Budgets that differ between KV heads: HeadKV and CoKV from stored scores, Ada-KV from the scores of the
// prompt.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/compress/budget.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

std::vector<int32_t> Equal(size_t n, int32_t b, int32_t m) {
  return std::vector<int32_t>(n, std::clamp(b, 0, std::max(m, 0)));
}

std::vector<int32_t> AllocHeads(const std::vector<double>& weights, int32_t b, int32_t m, bool redistribute) {
  const std::vector<int32_t> caps(weights.size(), m);
  std::vector<int32_t> counts(weights.size());
  Alloc(int64_t{b} * static_cast<int64_t>(weights.size()), IntegerWeights(weights), caps, {}, redistribute,
        counts);
  return counts;
}

// Scores of a layer for the global selection: as they are, or scaled per head.
struct ScaledScores {
  const float* scores;
  int64_t stride;
  int32_t n_heads, m;
  std::vector<double> factor;  // empty: 1

  uint32_t Bits(int32_t head, int32_t t) const {
    const float x = scores[head * stride + t];
    return OrderedBits(factor.empty() ? x : static_cast<float>(x * factor[static_cast<size_t>(head)]));
  }
};

// Share of the b best scores of a head in its total (methods.md 2.11, normalize). 0 < b < m.
std::vector<double> Concentration(const float* scores, int64_t stride, int32_t n_heads, int32_t m,
                                  int32_t b) {
  std::vector<double> factor(static_cast<size_t>(n_heads));
  std::vector<float> row(static_cast<size_t>(m));
  for (int32_t h = 0; h < n_heads; ++h) {
    const float* x = scores + h * stride;
    for (int32_t t = 0; t < m; ++t) row[static_cast<size_t>(t)] = std::isnan(x[t]) ? -INFINITY : x[t];
    std::nth_element(row.begin(), row.begin() + b, row.end(), std::greater<float>());
    const double best = std::accumulate(row.begin(), row.begin() + b, 0.0),
                 all = std::accumulate(row.begin(), row.end(), 0.0);
    factor[static_cast<size_t>(h)] = all > 0 && std::isfinite(best / all) ? best / all : 1;
  }
  return factor;
}

// How many of the `total` best scores of the layer each head has, when every head first takes its own
// `locked` best. Order: score descending, head ascending, position ascending. n_heads * locked <= total <
// n_heads * m. The threshold score is found byte by byte: per head and byte value one counter, no copy of the
// scores.
std::vector<int64_t> GlobalTop(const ScaledScores& in, int64_t total, int64_t locked) {
  const size_t n_heads = static_cast<size_t>(in.n_heads);
  std::vector<int64_t> above(n_heads, 0);         // scores above the range that is still open
  std::vector<int64_t> histogram(n_heads * 256);  // of the next byte, within that range
  uint32_t prefix = 0;
  const auto held = [&](size_t h) { return std::max(locked, above[h]); };
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::fill(histogram.begin(), histogram.end(), 0);
    const uint32_t fixed = shift == 24 ? 0 : 0xFFFFFFFFu << (shift + 8);
    for (size_t h = 0; h < n_heads; ++h) {
      int64_t* row = histogram.data() + h * 256;
      for (int32_t t = 0; t < in.m; ++t) {
        const uint32_t bits = in.Bits(static_cast<int32_t>(h), t);
        if ((bits & fixed) == prefix) ++row[bits >> shift & 255];
      }
    }
    // The highest byte value with which the heads would hold more than `total` contains the threshold.
    for (uint32_t byte = 255;; --byte) {
      int64_t with = 0;
      for (size_t h = 0; h < n_heads; ++h) with += std::max(locked, above[h] + histogram[h * 256 + byte]);
      if (with > total || byte == 0) {
        prefix |= byte << shift;
        break;
      }
      for (size_t h = 0; h < n_heads; ++h) above[h] += histogram[h * 256 + byte];
    }
  }
  // histogram column of the last byte: entries equal to the threshold. They go to the lower heads first.
  std::vector<int64_t> counts(n_heads);
  for (size_t h = 0; h < n_heads; ++h) total -= counts[h] = held(h);
  for (size_t h = 0; h < n_heads && total > 0; ++h) {
    const int64_t ties = above[h] + histogram[h * 256 + (prefix & 255)] - counts[h];
    const int64_t more = std::clamp<int64_t>(ties, 0, total);
    counts[h] += more;
    total -= more;
  }
  return counts;
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

}  // namespace

std::vector<int32_t> HeadkvCounts(Span<const double> s_query, int32_t n_layers, int32_t n_heads,
                                  int32_t n_kv_heads, int32_t b, int32_t m, double beta, double temperature,
                                  bool redistribute, bool reference_rounding) {
  const size_t n = static_cast<size_t>(n_layers) * static_cast<size_t>(n_kv_heads);
  if (b >= m || b <= 0) return Equal(n, b, m);
  const std::vector<double> s = TemperedScores(s_query, n, n_heads / n_kv_heads, temperature);
  const double total = std::accumulate(s.begin(), s.end(), 0.0);
  if (!(total > 0) || !std::isfinite(total)) return Equal(n, b, m);
  const double pool = reference_rounding ? std::floor(b / beta) : b / beta;  // per head
  std::vector<double> quota(n);
  for (size_t i = 0; i < n; ++i) quota[i] = (b - pool) + s[i] / total * static_cast<double>(n) * pool;
  if (!reference_rounding) return AllocHeads(quota, b, m, redistribute);
  std::vector<int32_t> counts(n);
  for (size_t i = 0; i < n; ++i)
    counts[i] = static_cast<int32_t>(std::min<double>(std::nearbyint(quota[i]), m));
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

std::vector<int32_t> CokvCounts(Span<const double> scores, int32_t b, int32_t m, int32_t alpha,
                                bool redistribute, bool reference_rounding) {
  const size_t n = scores.size();
  if (b >= m || b <= 0 || n <= 1) return Equal(n, b, m);
  const std::vector<double> v = CokvWeights(scores, alpha);
  if (std::equal(v.begin() + 1, v.end(), v.begin())) return Equal(n, b, m);
  const double total = std::accumulate(v.begin(), v.end(), 0.0);
  if (!reference_rounding) return AllocHeads(v, b, m, redistribute);
  std::vector<int32_t> counts(n);
  for (size_t i = 0; i < n; ++i) {
    const double quota = static_cast<double>(b) * static_cast<double>(n) * (v[i] / total);
    counts[i] = static_cast<int32_t>(
        std::min<double>(std::floor(quota + 1e-9), m));  // 1e-9: an integer quota stays one
  }
  return counts;
}

void AdaCounts(const float* scores, int64_t stride, int32_t n_kv_heads, int32_t m, int32_t b,
               const AdaOptions& options, int32_t* counts) {
  if (b >= m || b <= 0) {
    std::fill(counts, counts + n_kv_heads, std::clamp(b, 0, std::max(m, 0)));
    return;
  }
  const int64_t total = int64_t{b} * n_kv_heads;
  const int64_t million = 1000000,
                floor6 = std::llrint(std::clamp(options.floor, 0.0, 1.0) * static_cast<double>(million));
  int64_t locked = 0;
  if (options.safeguard) locked = options.locked > 0 ? std::min(options.locked, b) : floor6 * b / million;
  ScaledScores in{scores, stride, n_kv_heads, m, {}};
  if (options.normalize) in.factor = Concentration(scores, stride, n_kv_heads, m, b);
  const std::vector<int64_t> chosen = GlobalTop(in, total, locked);
  if (options.safeguard) {
    for (int32_t h = 0; h < n_kv_heads; ++h) counts[h] = static_cast<int32_t>(chosen[static_cast<size_t>(h)]);
    return;
  }
  std::vector<uint64_t> weights(chosen.size());  // < 2^31 * 2^20
  for (size_t h = 0; h < chosen.size(); ++h)
    weights[h] = static_cast<uint64_t>(chosen[h] * (million - floor6) + floor6 * b);
  const std::vector<int32_t> caps(chosen.size(), m);
  Alloc(total, weights, caps, {}, true, Span<int32_t>(counts, chosen.size()));
}

}  // namespace kvc

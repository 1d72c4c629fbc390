#include "tools/explain/loss.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kvc::tool {

LayerValues::LayerValues(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                         const std::vector<float>& projection)
    : n_heads_(n_heads),
      n_kv_heads_(n_kv_heads),
      head_dim_(static_cast<size_t>(head_dim)),
      values_(static_cast<size_t>(n_kv_heads)),
      known_norms_(static_cast<size_t>(n_heads)),
      largest_(static_cast<size_t>(n_heads)) {
  const size_t width = static_cast<size_t>(n_heads) * head_dim_;
  hidden_ = projection.size() / width;
  transposed_.resize(projection.size());
  for (size_t row = 0; row < hidden_; ++row) {
    for (size_t i = 0; i < width; ++i) transposed_[i * hidden_ + row] = projection[row * width + i];
  }
}

double LayerValues::NormOf(int32_t head, size_t entry) const {
  const float* v = &values_[static_cast<size_t>(head / group())][entry * head_dim_];
  std::vector<float> sum(hidden_);
  for (size_t d = 0; d < head_dim_; ++d) {
    const float* row = &transposed_[(static_cast<size_t>(head) * head_dim_ + d) * hidden_];
    for (size_t i = 0; i < hidden_; ++i) sum[i] += v[d] * row[i];
  }
  return std::accumulate(sum.begin(), sum.end(), 0.0, [](double a, float b) { return a + std::fabs(b); });
}

void LayerValues::Set(int32_t g, std::vector<float> values, size_t n_known) {
  const size_t n = values.size() / head_dim_;
  values_[static_cast<size_t>(g)] = std::move(values);
  for (int32_t head = g * group(); head < (g + 1) * group(); ++head) {
    std::vector<double>& norms = known_norms_[static_cast<size_t>(head)];
    norms.resize(std::min(norms.size(), n_known));
    while (norms.size() < n) norms.push_back(NormOf(head, norms.size()));
    largest_[static_cast<size_t>(head)] = norms.empty() ? 0 : *std::max_element(norms.begin(), norms.end());
  }
}

double LayerValues::LargestNorm(int32_t head) const { return largest_[static_cast<size_t>(head)]; }

double LayerValues::ProjectedNorm(const std::vector<double>& heads) const {
  std::vector<double> sum(hidden_);
  for (size_t i = 0; i < heads.size(); ++i) {
    const float* row = &transposed_[i * hidden_];
    for (size_t k = 0; k < hidden_; ++k) sum[k] += heads[i] * static_cast<double>(row[k]);
  }
  return std::accumulate(sum.begin(), sum.end(), 0.0, [](double a, double b) { return a + std::fabs(b); });
}

LayerLoss LossOf(const LayerValues& layer, const std::vector<std::vector<float>>& p,
                 const std::vector<std::vector<uint8_t>>& kept) {
  LayerLoss out;
  const size_t d = layer.head_dim();
  std::vector<double> lost(static_cast<size_t>(layer.n_heads()) * d), full(lost.size());
  double largest = 0, unretained = 0;
  for (int32_t head = 0; head < layer.n_heads(); ++head) {
    const size_t h = static_cast<size_t>(head), g = static_cast<size_t>(head / layer.group());
    const std::vector<float>& values = layer.values(static_cast<int32_t>(g));
    double all = 0, stays = 0;
    for (size_t t = 0; t < p[h].size(); ++t) {
      all += static_cast<double>(p[h][t]);
      if (kept[g][t] != 0) stays += static_cast<double>(p[h][t]);
    }
    // What is missing to 1, beyond rounding, is an attention sink's, and stays with it.
    constexpr double kRounding = 1e-4;
    const double total = all < 1 - kRounding ? 1 : all, retained = (stays + (total - all)) / total;
    for (size_t t = 0; t < p[h].size(); ++t) {
      const double was = static_cast<double>(p[h][t]) / total;
      // Where nothing is kept of what a head looks at, its output is gone.
      const double is = kept[g][t] != 0 && retained > 0 ? was / retained : 0;
      for (size_t i = 0; i < d; ++i) {
        const double v = static_cast<double>(values[t * d + i]);
        lost[h * d + i] += (was - is) * v;
        full[h * d + i] += was * v;
      }
    }
    out.retained += retained / layer.n_heads();
    out.bound_by_head += 2 * (1 - retained) * layer.LargestNorm(head);
    unretained += 1 - retained;
    largest = std::max(largest, layer.LargestNorm(head));
  }
  out.bound = 2 * unretained * largest;
  out.loss = layer.ProjectedNorm(lost), out.output = layer.ProjectedNorm(full);
  return out;
}

double AttentionSimilarity(const std::vector<float>& full, const std::vector<float>& p,
                           const std::vector<uint8_t>& there) {
  double dot = 0, squares = 0, squares_full = 0;
  size_t rank = 0;
  for (size_t t = 0; t < full.size(); ++t) {
    const double a = static_cast<double>(full[t]), b = there[t] != 0 ? static_cast<double>(p[rank++]) : 0.0;
    dot += a * b, squares += b * b, squares_full += a * a;
  }
  const double both = std::sqrt(squares * squares_full);
  return both > 0 ? std::min(dot / both, 1.0) : 0;
}

double TopShare(std::vector<float> p, double share) {
  if (p.empty()) return 0;
  const size_t count = std::clamp<size_t>(
      static_cast<size_t>(std::llround(share * static_cast<double>(p.size()))), 1, p.size());
  std::nth_element(p.begin(), p.begin() + static_cast<ptrdiff_t>(count) - 1, p.end(), std::greater<float>());
  const double top = std::accumulate(p.begin(), p.begin() + static_cast<ptrdiff_t>(count), 0.0),
               all = std::accumulate(p.begin(), p.end(), 0.0);
  return all > 0 ? top / all : 0;
}

}  // namespace kvc::tool

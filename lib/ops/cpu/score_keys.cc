#include "lib/ops/cpu/score_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/ops/cpu/pages.h"

namespace kvc::cpu {

void CosineToMean(const KernelTable& kernels, const float* keys, int32_t n, int32_t d, float* out) {
  float mean[kMaxHeadSize] = {};
  for (int32_t t = 0; t < n; ++t) {
    const float* k = keys + int64_t{t} * d;
    out[t] = std::sqrt(kernels.dot(k, k, d));
    if (out[t] > 0) kernels.axpy(1.0f / out[t], k, d, mean);
  }
  const float length = std::sqrt(kernels.dot(mean, mean, d));
  for (int32_t t = 0; t < n; ++t) {
    const float both = out[t] * length;
    out[t] = both > 0 ? kernels.dot(keys + int64_t{t} * d, mean, d) / both : 0.0f;
  }
}

namespace {

// Adds half the softmax over a part of the standard deviation (of a sample) of every vector, each dimension
// scaled by its range in the next part. A dimension without range counts as 0.
void AddSpread(const float* x, int32_t size, int32_t d, float* line, float* out) {
  const float* next = x + int64_t{size} * d;
  float low[kMaxHeadSize], inverse[kMaxHeadSize];
  std::copy_n(next, d, low);
  std::copy_n(next, d, inverse);
  for (int32_t i = 1; i < size; ++i) {
    for (int32_t j = 0; j < d; ++j) {
      low[j] = std::min(low[j], next[int64_t{i} * d + j]);
      inverse[j] = std::max(inverse[j], next[int64_t{i} * d + j]);
    }
  }
  for (int32_t j = 0; j < d; ++j) inverse[j] = inverse[j] > low[j] ? 1.0f / (inverse[j] - low[j]) : 0.0f;
  for (int32_t i = 0; i < size; ++i) {
    double sum = 0, squares = 0;
    for (int32_t j = 0; j < d; ++j) sum += double{(x[int64_t{i} * d + j] - low[j]) * inverse[j]};
    const double mean = sum / d;
    for (int32_t j = 0; j < d; ++j) {
      const double off = double{(x[int64_t{i} * d + j] - low[j]) * inverse[j]} - mean;
      squares += off * off;
    }
    line[i] = static_cast<float>(std::sqrt(squares / std::max(d - 1, 1)));
  }
  const float most = *std::max_element(line, line + size);
  double total = 0;
  for (int32_t i = 0; i < size; ++i) total += std::exp(double{line[i] - most});
  for (int32_t i = 0; i < size; ++i)
    out[i] += static_cast<float>(0.5 * std::exp(double{line[i] - most}) / total);
}

}  // namespace

void LagRanks(const float* keys, const float* values, int32_t n, int32_t d, int32_t n_sink, int32_t size,
              float* scratch, float* out) {
  for (int32_t t = 0; t < n; ++t) out[t] = 2.0f + static_cast<float>(t);
  const int32_t parts = (n - n_sink) / size;
  float *line = scratch, *sum = scratch + size;
  for (int32_t part = 0; part + 1 < parts; ++part) {
    const int32_t first = n_sink + part * size;
    std::fill_n(sum, size, 0.0f);
    AddSpread(keys + int64_t{first} * d, size, d, line, sum);
    AddSpread(values + int64_t{first} * d, size, d, line, sum);
    for (int32_t i = 0; i < size; ++i) {
      int32_t below = 0;
      for (int32_t j = 0; j < size; ++j) below += sum[j] < sum[i] || (sum[j] == sum[i] && j < i);
      out[first + i] = static_cast<float>(below) / static_cast<float>(size);
    }
  }
}

// The logits of queries to come are taken for normal: mean and variance of their products with a key are
// those of the queries seen, turned by the mean of the rotations to come, so the expected exponential is that
// of mean + variance / 2.
void ExpectedAttention(const KernelTable& kernels, const ExpectedArgs& a) {
  const int32_t d = a.d, half = d / 2, total = a.positions[a.n_keys - 1] + 1;
  float mean[kMaxHeadSize] = {}, turned[kMaxHeadSize] = {}, query[kMaxHeadSize], angles[kMaxHeadSize];
  for (int32_t f = 0; f < a.n_future; ++f) {
    a.turning.rope->Angles(int64_t{total} + f, angles, angles + half);
    kernels.add(angles, d, turned);
  }
  for (int32_t j = 0; j < d; ++j) turned[j] /= static_cast<float>(a.n_future);
  int32_t n_rows = 0;
  const auto for_rows = [&](auto&& f) {
    for (int32_t i = 0; i < a.n_rows; ++i) {
      const int32_t t = a.n_keys - a.n_rows + i;
      if (a.positions[t] < a.n_sink) continue;
      std::copy_n(a.queries + i * a.query_stride, d, query);
      Unrotate(kernels, *a.turning.rope, a.turning.pairing, a.turning.in_cache ? t : a.positions[t], d, query,
               1);
      kernels.rope(query, turned, turned + half, d, a.turning.pairing);
      f();
    }
  };
  for_rows([&] { kernels.add(query, d, mean), ++n_rows; });
  for (int32_t j = 0; j < d && n_rows > 0; ++j) mean[j] /= static_cast<float>(n_rows);
  float *logits = a.spread, *squares = a.spread + a.n_keys;
  for (int32_t t = 0; t < a.n_keys; ++t)
    logits[t] = kernels.dot(mean, a.keys + int64_t{t} * d, d), squares[t] = 0;
  for_rows([&] {
    for (int32_t j = 0; j < d; ++j) query[j] -= mean[j];
    for (int32_t t = a.n_sink; t < a.n_keys; ++t) {
      const float x = kernels.dot(query, a.keys + int64_t{t} * d, d);
      squares[t] += x * x;
    }
  });
  float most = -std::numeric_limits<float>::infinity();
  for (int32_t t = a.n_sink; t < a.n_keys; ++t) {
    const float variance = n_rows > 0 ? squares[t] / static_cast<float>(n_rows) : 0.0f;
    logits[t] = a.scale * logits[t] + 0.5f * a.scale * a.scale * variance;
    most = std::max(most, logits[t]);
  }
  if (a.sink != nullptr) most = std::max(most, *a.sink);
  double sum = a.sink != nullptr ? double{std::exp(*a.sink - most)} : 0;
  for (int32_t t = 0; t < a.n_keys; ++t) {
    a.out[t] = t < a.n_sink ? 0.0f : std::exp(logits[t] - most);
    sum += double{a.out[t]};
  }
  for (int32_t t = 0; t < a.n_keys; ++t) a.out[t] = sum > 0 ? static_cast<float>(a.out[t] / sum) : 0.0f;
}

}  // namespace kvc::cpu

// Budgets that follow the depth of a layer: PyramidKV, PyramidInfer, SpindleKV. Weights are exact integers
// over a common denominator.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "lib/compress/budget.h"

namespace kvc {
namespace {

struct Fraction {
  int64_t numerator, denominator;
};

// The fraction nearest to x whose denominator is at most 10^6, by continued fractions: 0.05 means 1/20, not
// the double next to it. 2^-10 <= x <= 2^10, so that x is an integer over 2^k with both below 2^63.
Fraction NearestFraction(double x) {
  constexpr int64_t kMaxDenominator = 1000000;
  int64_t denominator = 1;
  while (x * static_cast<double>(denominator) != std::floor(x * static_cast<double>(denominator)))
    denominator *= 2;
  const int64_t numerator = static_cast<int64_t>(x * static_cast<double>(denominator));
  if (denominator <= kMaxDenominator) return {numerator, denominator};
  int64_t p0 = 0, q0 = 1, p1 = 1, q1 = 0, n = numerator, d = denominator;
  for (;;) {
    const int64_t a = n / d;
    if (q1 > 0 && a > (kMaxDenominator - q0) / q1) break;  // the next convergent's denominator is too large
    const int64_t q2 = q0 + a * q1, p2 = p0 + a * p1;
    p0 = p1, q0 = q1, p1 = p2, q1 = q2;
    const int64_t rest = n - a * d;
    n = d, d = rest;
  }
  // Between the last convergent and the last semiconvergent: the first lies d / (q1 * denominator) away from
  // x.
  const int64_t k = (kMaxDenominator - q0) / q1;
  if (static_cast<__int128>(2) * d * (q0 + k * q1) <= denominator) return {p1, q1};
  return {p0 + k * p1, q0 + k * q1};
}

// Weights that go in equal steps from `first` (layer 0) to `last`, times the number of steps.
std::vector<uint64_t> Ramp(int64_t first, int64_t last, int32_t n_layers) {
  assert(first >= 0 && last >= 0 && n_layers > 1 && n_layers <= 2048);
  std::vector<uint64_t> weights(static_cast<size_t>(n_layers));
  for (int32_t i = 0; i < n_layers; ++i) {
    weights[static_cast<size_t>(i)] = static_cast<uint64_t>(first * (n_layers - 1 - i) + last * i);
  }
  return weights;
}

std::vector<int32_t> AllocLayers(int64_t total, const std::vector<uint64_t>& weights, int32_t cap) {
  const std::vector<int32_t> caps(weights.size(), cap);
  std::vector<int32_t> counts(weights.size());
  Alloc(total, weights, caps, {}, true, counts);
  return counts;
}

// The published code: floors everywhere; the floored step makes the total overshoot.
std::vector<int32_t> PyramidReference(int64_t b, int64_t m, int32_t n_layers, Fraction beta) {
  int64_t k_min = static_cast<int64_t>(static_cast<__int128>(b) * beta.denominator / beta.numerator),
          k_max = 2 * b - k_min;
  if (k_max >= m) k_max = m, k_min = 2 * b - m;
  const int64_t step = (k_max - k_min) / (n_layers - 1);
  std::vector<int32_t> counts(static_cast<size_t>(n_layers));
  for (int32_t i = 0; i < n_layers; ++i)
    counts[static_cast<size_t>(i)] = static_cast<int32_t>(k_max - i * step);
  return counts;
}

}  // namespace

std::vector<int32_t> PyramidCounts(int32_t b, int32_t m, int32_t n_layers, double beta,
                                   bool reference_rounding) {
  if (b >= m || b <= 0 || n_layers == 1)
    return std::vector<int32_t>(static_cast<size_t>(n_layers), std::clamp(b, 0, std::max(m, 0)));
  const Fraction f = NearestFraction(std::clamp(beta, 1.0, 1000.0));
  if (reference_rounding) return PyramidReference(b, m, n_layers, f);
  // k_min = b / beta and k_max = 2 b - k_min, in units of b / numerator of beta (< 2^30); clamped to m, in
  // tokens.
  const int64_t last = f.denominator, first = 2 * f.numerator - f.denominator;
  const bool clamped = static_cast<__int128>(first) * b >= static_cast<__int128>(m) * f.numerator;
  const std::vector<uint64_t> weights =
      clamped ? Ramp(m, 2 * int64_t{b} - m, n_layers) : Ramp(first, last, n_layers);
  return AllocLayers(int64_t{b} * n_layers, weights, m);
}

std::vector<int32_t> PyramidInferCounts(int32_t b, int32_t m, int32_t n_layers, double decay) {
  if (b >= m || b <= 0)
    return std::vector<int32_t>(static_cast<size_t>(n_layers), std::clamp(b, 0, std::max(m, 0)));
  std::vector<double> shape(static_cast<size_t>(n_layers));
  double kept = 1;  // product of the ratios of the layers before
  for (int32_t i = 0; i < n_layers; ++i) {
    shape[static_cast<size_t>(i)] = kept;
    kept *= (1 - decay) * (std::cos(3.14159265358979323846 * i / n_layers) + 1) / 2 + decay;
  }
  return AllocLayers(int64_t{b} * n_layers, IntegerWeights(shape), m);
}

std::vector<int32_t> SpindleCounts(int32_t budget, int32_t l, int32_t l_w, int32_t n_layers, double beta,
                                   bool round_down) {
  const int64_t c = int64_t{l} - l_w, a = int64_t{budget} - l_w;  // r_c = a / c
  if (a >= c || a <= 0 || n_layers == 1) {
    return std::vector<int32_t>(static_cast<size_t>(n_layers),
                                static_cast<int32_t>(std::clamp<int64_t>(a, 0, std::max<int64_t>(c, 0))));
  }
  const Fraction f = NearestFraction(std::clamp(beta, 0.001, 0.999));
  // First and last ratio times c, in units of 1 / denominator of beta: below 2^31 * 2^20, and times 2^11
  // layers below 2^62.
  const int64_t p = f.numerator, q = f.denominator;
  int64_t first = a * q, last = a * q;  // r_c <= beta: flat
  if (2 * a * q > (q + p) * c) {        // alpha < r_c < 1
    first = c * q, last = (2 * a - c) * q;
  } else if (a * q > p * c) {  // beta < r_c <= alpha
    first = 2 * a * q - p * c, last = p * c;
  }
  if (!round_down) return AllocLayers(a * n_layers, Ramp(first, last, n_layers), static_cast<int32_t>(c));
  std::vector<int32_t> counts(static_cast<size_t>(n_layers));
  for (int32_t i = 0; i < n_layers; ++i) {
    const int64_t steps = n_layers - 1;  // of the ramp
    counts[static_cast<size_t>(i)] = static_cast<int32_t>((first * (steps - i) + last * i) / (steps * q));
  }
  return counts;
}

}  // namespace kvc

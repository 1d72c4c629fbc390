#include "tools/tune/bounds.h"

#include <algorithm>
#include <cmath>

namespace kvc::tool {
namespace {

// The continued fraction of the incomplete beta function, by the method of Lentz; converges fast for
// x < (a + 1) / (a + b + 2).
double BetaFraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kExact = 1e-16;
  constexpr int kMost = 100000;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
  double value = d;
  for (int m = 1; m <= kMost; ++m) {
    double change = 1;
    for (const double term : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 + term * d;
      d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
      c = 1 + term / c;
      if (std::fabs(c) < kTiny) c = kTiny;
      change = d * c;
      value *= change;
    }
    if (std::fabs(change - 1) <= kExact) break;
  }
  return value;
}

// lgamma without the sign that it leaves in a global.
double LogGamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

// I_x(a, b), the share of a beta distribution below x.
double IncompleteBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double log_front = LogGamma(a + b) - LogGamma(a) - LogGamma(b) + a * std::log(x) + b * std::log1p(-x);
  if (x < (a + 1) / (a + b + 2)) return std::exp(log_front) * BetaFraction(a, b, x) / a;
  return 1 - std::exp(log_front) * BetaFraction(b, a, 1 - x) / b;
}

// Where a function that rises from below 0 to above 0 in [0, 1] passes 0.
template <typename F>
double Crossing(F rising) {
  double low = 0, high = 1;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = (low + high) / 2;
    if (middle == low || middle == high) break;
    (rising(middle) < 0 ? low : high) = middle;
  }
  return (low + high) / 2;
}

// Relative entropy of a coin of `mean` to one of `risk`, in nats; mean <= risk.
double RelativeEntropy(double mean, double risk) {
  const double hit = mean > 0 ? mean * std::log(mean / risk) : 0;
  return hit + (mean < 1 ? (1 - mean) * std::log((1 - mean) / (1 - risk)) : 0);
}

}  // namespace

double BinomialCdf(int64_t k, int64_t n, double p) {
  if (k < 0) return 0;
  if (k >= n) return 1;
  return IncompleteBeta(static_cast<double>(n - k), static_cast<double>(k + 1), 1 - p);
}

Interval ClopperPearson(int64_t k, int64_t n, double confidence) {
  if (n <= 0) return {};
  const double tail = (1 - confidence) / 2;
  Interval out;
  // P(X >= k) itself, not 1 - P(X < k), which has no digits where it is small.
  const auto at_least = [&](double p) {
    return IncompleteBeta(static_cast<double>(k), static_cast<double>(n - k + 1), p);
  };
  if (k > 0) out.low = Crossing([&](double p) { return at_least(p) - tail; });
  if (k < n) out.high = Crossing([&](double p) { return tail - BinomialCdf(k, n, p); });
  return out;
}

double RiskPValue(double total, int64_t n, double risk, bool is_binary) {
  constexpr double kRounding =
      1e-9;  // of a sum of fractions, which may stand above a whole number that it is
  if (n <= 0) return 1;
  const double count = static_cast<double>(n), hits = std::ceil(total - kRounding);
  const double tail = BinomialCdf(static_cast<int64_t>(hits), n, risk);
  if (is_binary) return tail;
  const double mean = std::clamp(total / count, 0.0, 1.0);
  const double hoeffding = mean >= risk ? 1 : std::exp(-count * RelativeEntropy(mean, risk));
  return std::min({1.0, hoeffding, std::exp(1.0) * tail});
}

int64_t DrawsNeeded(double mean, double risk, double level, bool is_binary) {
  constexpr int64_t kMost = 1000000000;
  const auto enough = [&](int64_t n) {
    return RiskPValue(mean * static_cast<double>(n), n, risk, is_binary) <= level;
  };
  if (mean >= risk) return -1;
  int64_t high = 1;
  while (high < kMost && !enough(high)) high *= 2;
  if (!enough(high)) return -1;
  int64_t low = high / 2;  // not enough, or 0
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace kvc::tool

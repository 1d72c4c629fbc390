// Sampling against the definition by a full sort, at the borders of what can be asked, and over logits that
// are not numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/test_device.h"

namespace kvc {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

int32_t Draw(const std::vector<float>& logits, SampleRow row) {
  static test::TestDevice memory(3);  // threads
  const DeviceBuffer<float> x = memory.Upload(logits), weights = memory.Upload(logits);
  int32_t token = -2;
  row.logits = x.at();
  EXPECT_TRUE(
      memory.device()
          ->Sample(memory.stream(), {{&row, 1}, static_cast<int32_t>(logits.size()), weights.at(), &token})
          .ok());
  return token;
}

// The tokens that may be drawn, by definition: sorted, cut at top_k, then at top_p.
std::vector<bool> Allowed(const std::vector<float>& logits, const SampleRow& a) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    return logits[static_cast<size_t>(x)] > logits[static_cast<size_t>(y)];
  });
  if (a.top_k > 0 && order.size() > static_cast<size_t>(a.top_k)) order.resize(static_cast<size_t>(a.top_k));
  std::vector<double> w;
  for (int32_t i : order)
    w.push_back(
        std::exp(static_cast<double>(logits[static_cast<size_t>(i)] - logits[static_cast<size_t>(order[0])]) /
                 static_cast<double>(a.temperature)));
  const double total = std::accumulate(w.begin(), w.end(), 0.0);
  std::vector<bool> allowed(logits.size(), false);
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    // A little beyond the share: single precision may end a token later.
    if (a.top_p > 0 && a.top_p < 1 && sum >= (static_cast<double>(a.top_p) + 1e-5) * total) break;
    allowed[static_cast<size_t>(order[i])] = true;
    sum += w[i];
  }
  return allowed;
}

std::vector<float> Logits(size_t n, uint32_t seed, bool ties) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(n);
  for (float& v : x) v = ties ? std::round(normal(rng)) : normal(rng);
  return x;
}

TEST(Sample, GreedyIsTheLowestOfTheLargest) {
  EXPECT_EQ(Draw({1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(Draw({-1, -0.0f, 0.0f, 0.0f}, {}), 1);
  for (size_t n : {1u, 15u, 16u, 17u, 1000u, 8192u, 8193u, 16384u, 128256u, 131073u}) {
    const std::vector<float> x = Logits(n, static_cast<uint32_t>(n), true);
    EXPECT_EQ(Draw(x, {}), std::max_element(x.begin(), x.end()) - x.begin()) << n;
  }
  // Wherever it lies among the parts that threads look through.
  std::vector<float> x(131073, -1.0f);
  for (const size_t at : {131072u, 131071u, 65536u, 8193u, 8192u, 8191u, 0u}) {
    x[at] = 5;
    EXPECT_EQ(Draw(x, {}), static_cast<int32_t>(at));
  }
}

TEST(Sample, WhatIsNoNumberIsNeverPicked) {
  for (float temperature : {0.0f, 1.0f}) {
    for (float top_p : {0.0f, 0.5f, 1.0f}) {
      for (int32_t top_k : {0, 1, 2}) {
        SampleRow row;
        row.temperature = temperature, row.top_p = top_p, row.top_k = top_k;
        EXPECT_EQ(Draw({kNan, kInf, -kInf, 5, kNan}, row), 3);
        EXPECT_EQ(Draw({kNan, kNan}, row), -1);
        EXPECT_EQ(Draw({kInf, -kInf, kNan}, row), -1);
        EXPECT_EQ(Draw({}, row), -1);
      }
    }
  }
}

TEST(Sample, DrawsFromTheDefinedSetAndFromAllOfIt) {
  int wide = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> x = Logits(40 + seed * 3, seed, seed % 2 == 0);
    SampleRow row;
    row.temperature = seed % 3 == 0 ? 0.5f : 2.0f;
    row.top_k = static_cast<int32_t>(seed % 4 == 0 ? 0 : seed % 25);
    row.top_p = seed % 5 == 0 ? 0.0f : 0.1f * static_cast<float>(seed % 10);
    const std::vector<bool> allowed = Allowed(x, row);
    std::vector<bool> seen(x.size(), false);
    for (row.draw = 0; row.draw < 3000; ++row.draw) {
      const int32_t token = Draw(x, row);
      ASSERT_TRUE(token >= 0 && allowed[static_cast<size_t>(token)]) << seed << ": " << token;
      seen[static_cast<size_t>(token)] = true;
    }
    const auto n_allowed = std::count(allowed.begin(), allowed.end(), true),
               n_seen = std::count(seen.begin(), seen.end(), true);
    if (n_allowed <= 12 && row.temperature > 1) {
      EXPECT_GE(n_seen + 1, n_allowed) << seed;
    }
    wide += n_allowed > 1;
  }
  EXPECT_GT(wide, 30);
}

// Equal logits that the cut goes through: the lower ids stay.
TEST(Sample, TiesAtTheCutGoById) {
  std::vector<float> x(1000, 1.0f);
  SampleRow row;
  row.temperature = 1, row.top_k = 7;
  for (row.draw = 0; row.draw < 500; ++row.draw) ASSERT_LT(Draw(x, row), 7);
  row.top_k = 0, row.top_p = 0.25f;
  int32_t largest = 0;
  for (row.draw = 0; row.draw < 5000; ++row.draw) largest = std::max(largest, Draw(x, row));
  EXPECT_GE(largest, 247);
  EXPECT_LE(largest, 250);
}

TEST(Sample, TinyTemperaturesAndHugeLogitsAreGreedy) {
  SampleRow row;
  row.temperature = 1e-38f, row.top_p = 0.9f;
  for (row.draw = 0; row.draw < 50; ++row.draw) {
    EXPECT_EQ(Draw({-3e38f, 3e38f, 2.9e38f, 0}, row), 1);
    EXPECT_EQ(Draw({1e-30f, 2e-30f, 1.9e-30f}, row), 1);
  }
}

}  // namespace
}  // namespace kvc

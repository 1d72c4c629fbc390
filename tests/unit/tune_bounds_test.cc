// Bounds of kvc tune against SciPy's values, and what they must be.
#include "tools/tune/bounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

namespace kvc::tool {
namespace {

// [tails, intervals, hoeffding_bentkus]: tests/vectors/make_bound_vectors.py.
const nlohmann::json& Vectors() {
  static const nlohmann::json vectors = [] {
    std::ifstream in(KVC_TEST_DATA "/reference/bounds.json");
    return nlohmann::json::parse(in);
  }();
  return vectors;
}

void ExpectClose(double found, double known, const nlohmann::json& row) {
  EXPECT_NEAR(found, known, 1e-9 * std::max(std::fabs(known), 1e-290)) << row;
}

TEST(TuneBounds, BinomialTailsAreThoseOfSciPy) {
  ASSERT_GT(Vectors()["tails"].size(), 200u);
  for (const auto& row : Vectors()["tails"]) ExpectClose(BinomialCdf(row[0], row[1], row[2]), row[3], row);
  EXPECT_EQ(BinomialCdf(-1, 5, 0.5), 0);
  EXPECT_EQ(BinomialCdf(0, 0, 0.5), 1);
  EXPECT_EQ(BinomialCdf(2, 5, 0), 1);
  EXPECT_EQ(BinomialCdf(2, 5, 1), 0);
}

TEST(TuneBounds, IntervalsAreThoseOfSciPy) {
  ASSERT_GT(Vectors()["intervals"].size(), 100u);
  for (const auto& row : Vectors()["intervals"]) {
    const Interval found = ClopperPearson(row[0], row[1], row[2]);
    ExpectClose(found.low, row[3], row);
    ExpectClose(found.high, row[4], row);
  }
  EXPECT_EQ(ClopperPearson(0, 0, 0.95).high, 1);
}

TEST(TuneBounds, PValuesAreThoseOfSciPy) {
  ASSERT_GT(Vectors()["hoeffding_bentkus"].size(), 100u);
  for (const auto& row : Vectors()["hoeffding_bentkus"])
    ExpectClose(RiskPValue(row[0], row[1], row[2], false), row[3], row);
}

TEST(TuneBounds, WithoutAnyLossBothAreThePowerOfTheRisk) {
  for (const int n : {1, 10, 299, 5000}) {
    for (const double risk : {0.003, 0.01, 0.2}) {
      const double power = std::pow(1 - risk, n);
      for (const bool is_binary : {false, true})
        EXPECT_NEAR(RiskPValue(0, n, risk, is_binary), power, 1e-11 * power) << n << " " << risk;
    }
  }
  EXPECT_EQ(RiskPValue(0, 0, 0.1, true), 1);
}

// The known sizes: 59 for 95 % confidence in 5 %, 299 in 1 %.
TEST(TuneBounds, HowManyDrawsAreNeeded) {
  EXPECT_EQ(DrawsNeeded(0, 0.05, 0.05, true), 59);
  EXPECT_EQ(DrawsNeeded(0, 0.01, 0.05, true), 299);
  EXPECT_EQ(DrawsNeeded(0, 0.01, 0.05, false), 299);
  EXPECT_EQ(DrawsNeeded(0.01, 0.01, 0.05, true), -1);
  EXPECT_EQ(DrawsNeeded(0.3, 0.01, 0.05, true), -1);
  const int64_t some = DrawsNeeded(0.005, 0.01, 0.05, false);
  EXPECT_GT(some, 299);
  EXPECT_LE(RiskPValue(0.005 * static_cast<double>(some), some, 0.01, false), 0.05);
}

TEST(TuneBounds, PValuesRiseWithLossAndFallWithDraws) {
  for (const bool is_binary : {false, true}) {
    for (int lost = 0; lost < 20; ++lost)
      EXPECT_LE(RiskPValue(lost, 400, 0.05, is_binary), RiskPValue(lost + 1, 400, 0.05, is_binary));
    for (int n = 20; n < 400; ++n)
      EXPECT_GE(RiskPValue(3, n, 0.05, is_binary), RiskPValue(3, n + 1, 0.05, is_binary));
  }
}

}  // namespace
}  // namespace kvc::tool

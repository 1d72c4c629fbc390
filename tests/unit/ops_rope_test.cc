#include "lib/ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvc {
namespace {

// Radians a position of pair j, from the angles of position 1.
double Frequency(const Rope& rope, int32_t j) {
  std::vector<float> cos(static_cast<size_t>(rope.head_dim() / 2)), sin(cos);
  rope.Angles(1, cos.data(), sin.data());
  return std::atan2(sin[static_cast<size_t>(j)], cos[static_cast<size_t>(j)]);
}

TEST(Rope, PlainFrequenciesArePowersOfTheta) {
  const Rope rope({}, 8);
  EXPECT_EQ(8, rope.head_dim());
  EXPECT_EQ(1, rope.attention_factor());
  const double want[] = {1, 0.1, 0.01, 0.001};
  for (int32_t j = 0; j < 4; ++j) EXPECT_NEAR(want[j], Frequency(rope, j), 1e-7);
}

TEST(Rope, FarAndNegativePositionsKeepTheirPrecision) {
  const Rope rope({}, 64);
  std::vector<float> cos(32), sin(32), back_cos(32), back_sin(32);
  for (int64_t position : {0LL, 5LL, 131071LL, 10000000LL}) {
    rope.Angles(position, cos.data(), sin.data());
    rope.Angles(-position, back_cos.data(), back_sin.data());
    for (int j = 0; j < 32; ++j) {
      const long double angle = static_cast<long double>(position) * powl(10000.0L, -2.0L * j / 64);
      const size_t i = static_cast<size_t>(j);
      EXPECT_NEAR(static_cast<double>(cosl(angle)), cos[i], 6.1e-8);
      EXPECT_NEAR(static_cast<double>(sinl(angle)), sin[i], 6.1e-8);
      EXPECT_EQ(cos[i], back_cos[i]);
      EXPECT_EQ(-sin[i], back_sin[i]);
    }
  }
}

// YaRN's ramp runs from the dimension that turns beta_fast times to the one that turns beta_slow times: 8.7
// and 17.2 here. Rounded outwards it begins at 8 and ends at 18.
TEST(Rope, TheEndsOfYarnsRampAreRoundedOrNot) {
  RopeConfig c;
  c.theta = 150000, c.scaling = RopeScaling::kYarn, c.factor = 32, c.original_max_tokens = 4096;
  const auto end = [&](double turns) {
    return 64 * std::log(4096 / (turns * 2 * 3.14159265358979)) / (2 * std::log(150000.0));
  };
  for (const bool whole : {true, false}) {
    c.whole_ramp = whole;
    const double low = whole ? std::floor(end(32)) : end(32), high = whole ? std::ceil(end(1)) : end(1);
    const Rope rope(c, 64);
    for (int32_t j = 0; j < 32; ++j) {
      const double plain = std::pow(150000.0, -2.0 * j / 64),
                   share = std::min(std::max((j - low) / (high - low), 0.0), 1.0);
      EXPECT_NEAR(rope.frequencies()[static_cast<size_t>(j)], plain / 32 * share + plain * (1 - share), 1e-12)
          << j;
    }
  }
}

// Of a part of each head the frequencies are those of a head of that size; the rest stands still, whatever
// the factor, and turning back undoes it all.
TEST(Rope, APartOfAHead) {
  RopeConfig c;
  c.rotated = 8, c.scaling = RopeScaling::kDivisors, c.divisors = {1, 2, 4, 8}, c.attention_factor = 1.5;
  const Rope rope(c, 16), small({}, 8);
  for (int32_t j = 0; j < 4; ++j)
    EXPECT_NEAR(Frequency(small, j) / c.divisors[static_cast<size_t>(j)], Frequency(rope, j), 1e-7);
  float cos[8], sin[8], back_cos[8], back_sin[8], unit_cos[8], unit_sin[8];
  rope.Angles(77, cos, sin), rope.Angles(-77, back_cos, back_sin, -1), rope.Angles(77, unit_cos, unit_sin, 0);
  for (int j = 0; j < 8; ++j) {
    EXPECT_NEAR(cos[j] * back_cos[j] - sin[j] * back_sin[j], 1, 1e-6) << j;
    EXPECT_NEAR(cos[j] * back_sin[j] + sin[j] * back_cos[j], 0, 1e-6) << j;
    EXPECT_NEAR(unit_cos[j] * unit_cos[j] + unit_sin[j] * unit_sin[j], 1, 1e-6) << j;
    if (j < 4) continue;
    EXPECT_EQ(cos[j], 1);
    EXPECT_EQ(sin[j], 0);
  }
}

TEST(Rope, LinearScalingSlowsEveryPair) {
  RopeConfig c;
  c.scaling = RopeScaling::kLinear, c.factor = 4;
  const Rope rope(c, 8);
  EXPECT_NEAR(0.25, Frequency(rope, 0), 1e-7);
  EXPECT_NEAR(0.025, Frequency(rope, 1), 1e-8);
}

// transformers: ROPE_INIT_FUNCTIONS["llama3"] with rope_theta 500000, head size 64, factor 32, original 8192.
TEST(Rope, Llama3KnownValues) {
  RopeConfig c;
  c.theta = 500000, c.scaling = RopeScaling::kLlama3, c.factor = 32, c.low_freq_factor = 1,
  c.high_freq_factor = 4;
  c.original_max_tokens = 8192;
  const Rope rope(c, 64);
  EXPECT_NEAR(1, Frequency(rope, 0), 2e-07);
  EXPECT_NEAR(0.663601237696, Frequency(rope, 1), 1e-07);
  EXPECT_NEAR(0.00321144599475, Frequency(rope, 14), 6e-10);
  EXPECT_NEAR(0.00129054792821, Frequency(rope, 15), 3e-10);
  EXPECT_NEAR(0.000429556796559, Frequency(rope, 16), 9e-11);
  EXPECT_NEAR(9.70828780263e-05, Frequency(rope, 17), 2e-11);
  EXPECT_NEAR(1.94616381848e-05, Frequency(rope, 18), 4e-12);
  EXPECT_NEAR(8.57025548988e-06, Frequency(rope, 20), 2e-12);
  EXPECT_NEAR(9.41830672543e-08, Frequency(rope, 31), 2e-14);
}

// transformers: ROPE_INIT_FUNCTIONS["yarn"] with rope_theta 10000, head size 64, factor 4, original 2048.
TEST(Rope, YarnKnownValues) {
  RopeConfig c;
  c.scaling = RopeScaling::kYarn, c.factor = 4, c.original_max_tokens = 2048;
  const Rope rope(c, 64);
  EXPECT_NEAR(1.1386294361, rope.attention_factor(), 1e-9);  // 0.1 ln 4 + 1
  EXPECT_NEAR(1, Frequency(rope, 0), 2e-07);
  EXPECT_NEAR(0.237137370566, Frequency(rope, 5), 5e-08);
  EXPECT_NEAR(0.1, Frequency(rope, 8), 2e-08);
  EXPECT_NEAR(0.0706631081871, Frequency(rope, 9), 1e-08);
  EXPECT_NEAR(0.0243252127705, Frequency(rope, 12), 5e-09);
  EXPECT_NEAR(0.00538461538462, Frequency(rope, 16), 1e-09);
  EXPECT_NEAR(0.000973008510821, Frequency(rope, 20), 2e-10);
  EXPECT_NEAR(0.000333380358041, Frequency(rope, 23), 7e-11);
  EXPECT_NEAR(0.00025, Frequency(rope, 24), 5e-11);
  EXPECT_NEAR(3.33380358041e-05, Frequency(rope, 31), 7e-12);
  std::vector<float> cos(32), sin(32);
  rope.Angles(77, cos.data(), sin.data());
  for (size_t j = 0; j < 32; ++j) EXPECT_NEAR(1.1386294361, std::hypot(cos[j], sin[j]), 1e-6);
  c.attention_factor = 1.5;
  EXPECT_EQ(1.5, Rope(c, 64).attention_factor());
}

}  // namespace
}  // namespace kvc

// Estimators on games whose values are known: by enumeration, by symmetry, from the golden file.
#include "tools/score/estimators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "tests/golden/golden_files.h"
#include "tools/failure.h"
#include "tools/score/random.h"

namespace kvc::tool {
namespace {

using Values = std::vector<double>;

void ExpectNear(const Values& a, const Values& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << i;
}

// Utilities in [0, 1] of all coalitions of n players, by bit mask.
Values RandomGame(int n, uint64_t seed) {
  Values utility;
  for (uint32_t set = 0; set < uint32_t{1} << n; ++set) {
    utility.push_back(static_cast<double>(PhiloxWords(set, 0, 0, 0, seed)[0]) / 4294967296.0);
  }
  return utility;
}

size_t Bits(const Coalition& coalition) {
  size_t bits = 0;
  for (size_t i = 0; i < coalition.size(); ++i) bits |= size_t{coalition[i]} << i;
  return bits;
}

Coalition Players(size_t bits, int n) {
  Coalition coalition(static_cast<size_t>(n));
  for (size_t i = 0; i < coalition.size(); ++i) coalition[i] = static_cast<uint8_t>(bits >> i & 1);
  return coalition;
}

double Complementary(const Values& utility, const Coalition& coalition) {
  return utility[Bits(coalition)] - utility[utility.size() - 1 - Bits(coalition)];
}

SizeSums Sampled(const Values& utility, int n, int size, int samples, uint32_t run, uint64_t seed) {
  SizeSums sums(n, size);
  for (int k = 0; k < samples; ++k) {
    const std::vector<int32_t> order =
        Permutation(seed, run, static_cast<uint32_t>(size), static_cast<uint32_t>(k), n);
    Coalition coalition(static_cast<size_t>(n));
    for (int i = 0; i < size; ++i) coalition[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
    sums.Add(coalition, Complementary(utility, coalition));
  }
  return sums;
}

SizeSums Enumerated(const Values& utility, int n, int size) {
  SizeSums sums(n, size);
  for (size_t set = 0; set < utility.size(); ++set) {
    const Coalition coalition = Players(set, n);
    if (std::accumulate(coalition.begin(), coalition.end(), 0) == size)
      sums.Add(coalition, Complementary(utility, coalition));
  }
  return sums;
}

Values MeanOfSlices(const std::vector<Values>& slices, const std::vector<int>& sizes) {
  Values mean;
  for (const Values& of_player : slices) {
    double sum = 0;
    for (const int size : sizes) sum += of_player[static_cast<size_t>(size) - 1];
    mean.push_back(sum / static_cast<double>(sizes.size()));
  }
  return mean;
}

EstimateOptions With(Variant variant, bool centre = false) { return {variant, centre, false}; }

TEST(ScoreEstimators, GoldenAccumulatorsAndScores) {
  const Json golden = ReadGolden("micro/ssv.json");
  const Values utility = golden["utility_by_bitmask"].get<Values>();
  const int n = golden["N"], samples = golden["samples_per_size"];
  const uint64_t key = std::stoull(golden["key"].get<std::string>());
  std::vector<SizeSums> sums;
  for (const Json& expected : golden["accumulators"]) {
    sums.push_back(Sampled(utility, n, expected["j"], samples, golden["run"], key));
    ExpectNear(sums.back().sum_in, expected["sum_left"].get<Values>(), 1e-8);
    ExpectNear(sums.back().sum_out, expected["sum_right"].get<Values>(), 1e-8);
    EXPECT_EQ(sums.back().n_in, expected["cnt_left"].get<std::vector<int64_t>>());
    EXPECT_EQ(sums.back().n_out, expected["cnt_right"].get<std::vector<int64_t>>());
    EXPECT_NEAR(sums.back().sum_u, expected["sum_u"].get<double>(), 1e-8);
  }
  ExpectNear(EstimateScores(sums, With(Variant::kLeft)), golden["estimate"]["left"].get<Values>(), 1e-8);
  ExpectNear(EstimateScores(sums, With(Variant::kBoth)), golden["estimate"]["both"].get<Values>(), 1e-8);
  ExpectNear(EstimateScores({sums[2]}, With(Variant::kPooled)), golden["pooled_half"].get<Values>(), 1e-8);
  ExpectNear(ShapleyByEnumeration(utility, n), golden["shapley"].get<Values>(), 1e-8);
  const std::vector<Values> slices = SlicesByEnumeration(utility, n);
  for (size_t i = 0; i < slices.size(); ++i) ExpectNear(slices[i], golden["slices"][i].get<Values>(), 1e-8);
  ExpectNear(MeanOfSlices(slices, {1, 2, 3}), golden["ssv_exact"].get<Values>(), 1e-8);
}

// Three players, worked by hand (methods.md 3.2).
TEST(ScoreEstimators, ThreePlayers) {
  const Values utility = {0, .2, .1, .5, 0, .3, .2, .6};
  ExpectNear(ShapleyByEnumeration(utility, 3), {19.0 / 60, 13.0 / 60, 1.0 / 15}, 1e-12);
  ExpectNear(MeanOfSlices(SlicesByEnumeration(utility, 3), {1, 2}), {7.0 / 40, 1.0 / 40, -1.0 / 5}, 1e-12);
  EXPECT_NEAR(MeanAbsoluteDifference({.10, .40, .25, -.05}, {.12, .35, .27, -.06}), 0.025, 1e-12);
}

// (a), (b): the value is the mean of the slices; efficiency; the last slice; the complement identity.
TEST(ScoreEstimators, IdentitiesHoldForEveryGame) {
  for (const int n : {2, 5, 8, 10}) {
    const Values utility = RandomGame(n, 3);
    const Values shapley = ShapleyByEnumeration(utility, n);
    Values means;
    const std::vector<Values> slices = SlicesByEnumeration(utility, n, &means);
    std::vector<int> sizes(static_cast<size_t>(n));
    std::iota(sizes.begin(), sizes.end(), 1);
    ExpectNear(MeanOfSlices(slices, sizes), shapley, 1e-12);
    const double whole = utility.back() - utility[0];
    EXPECT_NEAR(std::accumulate(shapley.begin(), shapley.end(), 0.0), whole, 1e-12);
    for (const Values& slice : slices) {
      EXPECT_NEAR(slice.back(), whole, 1e-12);
      for (int j = 1; j < n; ++j) {
        const double mirrored =
            (j * slice[static_cast<size_t>(j) - 1] - n * means[static_cast<size_t>(j) - 1]) / (n - j);
        EXPECT_NEAR(slice[static_cast<size_t>(n - j) - 1], mirrored, 1e-12);
      }
    }
  }
}

// (c): every coalition of a size once gives the slice, whichever half is read.
TEST(ScoreEstimators, EnumeratedSizesGiveTheSlices) {
  const int n = 8;
  const Values utility = RandomGame(n, 5);
  const std::vector<Values> slices = SlicesByEnumeration(utility, n);
  std::vector<SizeSums> sums;
  for (const int size : {1, 2, 3, 4}) sums.push_back(Enumerated(utility, n, size));
  const Values exact = MeanOfSlices(slices, {1, 2, 3, 4});
  ExpectNear(EstimateScores(sums, With(Variant::kLeft)), exact, 1e-12);
  ExpectNear(EstimateScores(sums, With(Variant::kBoth)), exact, 1e-12);
  ExpectNear(EstimateScores(sums, With(Variant::kRegression)), exact, 1e-12);
  ExpectNear(EstimateScores({sums[3]}, With(Variant::kPooled)), MeanOfSlices(slices, {4}), 1e-12);
}

double MeanSquareError(const Values& utility, int n, int size, int samples, Variant variant,
                       const Values& centred) {
  double squares = 0;
  constexpr int kRuns = 60;
  for (uint32_t run = 0; run < kRuns; ++run) {
    const Values got = EstimateScores({Sampled(utility, n, size, samples, run, 11)}, With(variant, true));
    for (size_t i = 0; i < got.size(); ++i) squares += (got[i] - centred[i]) * (got[i] - centred[i]);
  }
  return squares / kRuns / n;
}

Values Centred(const std::vector<Values>& slices, const Values& means, int size) {
  Values centred;
  for (const Values& slice : slices)
    centred.push_back(slice[static_cast<size_t>(size) - 1] - means[static_cast<size_t>(size) - 1]);
  return centred;
}

// (d), (f): the error falls with the square root of the samples; both halves have less of it than one.
TEST(ScoreEstimators, ErrorFallsWithSamples) {
  const int n = 8, size = 4;
  const Values utility = RandomGame(n, 9);
  Values means;
  const std::vector<Values> slices = SlicesByEnumeration(utility, n, &means);
  const Values centred = Centred(slices, means, size);
  const double few = MeanSquareError(utility, n, size, 100, Variant::kBoth, centred);
  const double many = MeanSquareError(utility, n, size, 1600, Variant::kBoth, centred);
  EXPECT_NEAR(std::sqrt(few / many), 4, 0.8);
  SizeSums all = Enumerated(utility, n, size);
  ExpectNear(EstimateScores({all}, With(Variant::kBoth, true)),
             EstimateScores({all}, With(Variant::kLeft, true)), 1e-12);
  double left = 0, both = 0;  // with their offsets: the variance of `both` is about half of it at N/2
  for (uint32_t run = 0; run < 200; ++run) {
    const SizeSums sums = Sampled(utility, n, size, 60, run, 13);
    for (int i = 0; i < n; ++i) {
      const size_t p = static_cast<size_t>(i);
      left += std::pow(EstimateScores({sums}, With(Variant::kLeft))[p] - slices[p][size - 1], 2);
      both += std::pow(EstimateScores({sums}, With(Variant::kBoth, true))[p] - centred[p], 2);
    }
  }
  EXPECT_NEAR(both / left, 0.5, 0.08);
}

// A game in which two players decide most: the regression does not blur the others with them.
TEST(ScoreEstimators, RegressionSeesPastStrongPlayers) {
  const int n = 8, size = 3;
  const Values noise = RandomGame(n, 21);
  Values utility;
  for (size_t set = 0; set < noise.size(); ++set) {
    const double first = static_cast<double>(set & 1), second = static_cast<double>(set >> 1 & 1);
    utility.push_back(0.5 * first + 0.3 * second + 0.1 * first * second + 0.05 * noise[set]);
  }
  Values means;
  const Values centred = Centred(SlicesByEnumeration(utility, n, &means), means, size);
  const double both = MeanSquareError(utility, n, size, 100, Variant::kBoth, centred);
  const double regression = MeanSquareError(utility, n, size, 100, Variant::kRegression, centred);
  EXPECT_LT(regression, both / 5);
  SizeSums few(n, size);
  few.Add({1, 1, 1, 0, 0, 0, 0, 0}, 0.5);
  EXPECT_THROW(EstimateScores({few}, With(Variant::kRegression)), Failure);
}

// (e): a player that changes nothing is worth nothing; players that do the same are worth the same.
TEST(ScoreEstimators, DummyAndSymmetricPlayers) {
  const int n = 6;
  const Values small = RandomGame(3, 17);
  Values utility;
  for (size_t set = 0; set < 64; ++set) {
    const size_t either =
        (set >> 3 & 1) | (set >> 4 & 1);  // players 3 and 4 stand in for each other; 5 is a dummy
    utility.push_back(small[(set & 3) | either << 2]);
  }
  const Values shapley = ShapleyByEnumeration(utility, n);
  EXPECT_NEAR(shapley[2], 0, 1e-12);
  EXPECT_NEAR(shapley[5], 0, 1e-12);
  EXPECT_NEAR(shapley[3], shapley[4], 1e-12);
}

// Complementary contributions of single heads are both of these at once, and say neither.
TEST(ScoreEstimators, SingleHeadsAloneAndLeftOut) {
  constexpr int kPlayers = 5;
  const Values utility = RandomGame(kPlayers, 31);
  const size_t all = utility.size() - 1;
  for (const Variant variant : {Variant::kAlone, Variant::kLeftOut, Variant::kLeft}) {
    SizeSums sums(kPlayers, 1);
    Values expected;
    for (size_t i = 0; i < kPlayers; ++i) {
      const size_t bit = size_t{1} << i;
      sums.Add(Players(bit, kPlayers), Contribution(variant, utility[bit], utility[all ^ bit]));
      expected.push_back((variant != Variant::kLeftOut ? utility[bit] : 0) -
                         (variant != Variant::kAlone ? utility[all ^ bit] : 0));
    }
    ExpectNear(EstimateScores({sums}, With(variant)), expected, 1e-12);
    const double mean = std::accumulate(expected.begin(), expected.end(), 0.0) / kPlayers;
    for (double& value : expected) value -= mean;
    ExpectNear(EstimateScores({sums}, With(variant, true)), expected, 1e-12);
  }
}

TEST(ScoreEstimators, RefusesWhatItCannotTell) {
  const Values utility = RandomGame(6, 1);
  EXPECT_THROW(EstimateScores({Enumerated(utility, 6, 2)}, With(Variant::kPooled)), UsageError);
  EXPECT_THROW(EstimateScores({Enumerated(utility, 6, 2)}, With(Variant::kAlone)), UsageError);
  SizeSums one(6, 2);
  one.Add({1, 1, 0, 0, 0, 0}, 0.5);
  try {
    EstimateScores({one}, With(Variant::kLeft));
    FAIL();
  } catch (const Failure& failure) {
    const std::string text = failure.what();
    EXPECT_NE(text.find("not enough samples"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(SamplesNeeded(6, 2, Variant::kLeft))), std::string::npos) << text;
  }
  EXPECT_THROW(EstimateScores({}, {}), Failure);
}

TEST(ScoreEstimators, StandardisedSlicesCountTheSame) {
  const Values utility = RandomGame(6, 2);
  EstimateOptions options;
  options.standardise = true;
  const Values scores = EstimateScores({Enumerated(utility, 6, 2)}, options);
  double squares = 0;
  for (const double s : scores) squares += s * s;
  EXPECT_NEAR(squares / 6, 1, 1e-9);
}

// methods.md 3.5: the numbers it prints, and what they promise, in games whose values are known.
TEST(ScoreEstimators, EnoughSamplesKeepEveryScoreWithinItsBound) {
  EXPECT_EQ(SamplesForError(0.05, 0.05, 4, 1), 4061);
  EXPECT_EQ(SamplesForError(0.05, 0.05, 4, 256), 8497);
  const int n = 6;
  const double epsilon = 0.5, delta = 0.2;
  const int64_t needed = SamplesForError(epsilon, delta, 2, n);
  int n_broken = 0, n_far = 0;
  for (uint32_t trial = 0; trial < 100; ++trial) {
    // Utilities of 0 and 1 only: as far apart as they can be.
    Values utility = RandomGame(n, 100 + trial);
    for (double& u : utility) u = u < 0.5 ? 0 : 1;
    const std::vector<SizeSums> exact = {Enumerated(utility, n, 2), Enumerated(utility, n, 3)};
    std::vector<SizeSums> drawn;
    for (const int size : {2, 3}) {
      int samples = static_cast<int>(needed);
      for (;; ++samples) {
        drawn.push_back(Sampled(utility, n, size, samples, trial, 7));
        const std::vector<int64_t>& counts = drawn.back().n_in;
        if (*std::min_element(counts.begin(), counts.end()) >= needed) break;
        drawn.pop_back();
      }
    }
    const EstimateOptions options{Variant::kLeft, false, false};
    const Values found = EstimateScores(drawn, options), truth = EstimateScores(exact, options);
    double worst = 0;
    for (size_t i = 0; i < truth.size(); ++i) worst = std::max(worst, std::fabs(found[i] - truth[i]));
    n_broken += worst > epsilon;
    n_far += worst > epsilon / 10;
  }
  EXPECT_LE(n_broken, 20);  // of 100, delta = 0.2
  EXPECT_GT(n_far, 10) << "errors that are always near 0 would prove nothing";
}

// tests/vectors/make_rank_vectors.py: lists with and without ties.
TEST(ScoreEstimators, RankCorrelationsAreThoseOfSciPy) {
  std::ifstream in(KVC_TEST_DATA "/reference/ranks.json");
  const nlohmann::json rows = nlohmann::json::parse(in)["spearman"];
  ASSERT_GT(rows.size(), 40u);
  for (const auto& row : rows)
    EXPECT_NEAR(Spearman(row[0].get<Values>(), row[1].get<Values>()), row[2].get<double>(), 1e-12) << row;
}

TEST(ScoreEstimators, RanksAndOverlap) {
  EXPECT_NEAR(Spearman({1, 2, 3, 4}, {10, 20, 30, 40}), 1, 1e-12);
  EXPECT_NEAR(Spearman({1, 2, 3, 4}, {4, 3, 2, 1}), -1, 1e-12);
  EXPECT_NEAR(Spearman({1, 2, 2, 3}, {1, 2, 3, 4}), 0.9486832980505138, 1e-12);  // ties share their mean rank
  EXPECT_EQ(Spearman({1, 1, 1}, {1, 2, 3}), 0);
  EXPECT_EQ(Ranking({.1, .5, .5, .2}), (std::vector<int32_t>{1, 2, 3, 0}));
  EXPECT_NEAR(LowestOverlap({0, 1, 2, 3}, {1, 0, 3, 2}, 1), 0, 1e-12);
  EXPECT_NEAR(LowestOverlap({0, 1, 2, 3}, {1, 0, 3, 2}, 2), 1, 1e-12);
}

TEST(ScoreEstimators, SizesAndAlphasScaleWithTheModel) {
  EXPECT_EQ(DefaultSizes(256), (std::vector<int32_t>{32, 64, 96, 128}));
  EXPECT_EQ(DefaultSizes(24), (std::vector<int32_t>{3, 6, 9, 12}));
  EXPECT_EQ(DefaultSizes(2), (std::vector<int32_t>{1}));
  EXPECT_EQ(AlphaCandidates(256), (std::vector<int32_t>{1, 5, 10, 15, 20, 30, 40}));
  EXPECT_EQ(AlphaCandidates(64), (std::vector<int32_t>{1, 3, 4, 5, 8, 10}));
}

}  // namespace
}  // namespace kvc::tool

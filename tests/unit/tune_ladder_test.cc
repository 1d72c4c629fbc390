// The promise of kvc tune where the truth is known: how often the chosen budget loses more than promised,
// over many draws of the data.
#include "tools/tune/ladder.h"

#include <gtest/gtest.h>

#include <random>

namespace kvc::tool {
namespace {

constexpr double kMaxLoss = 0.1, kConfidence = 0.8;
constexpr int64_t kDraws = 120;

// Ladders whose rungs lose with known probabilities: around the bound, where a wrong choice is easiest.
const std::vector<std::vector<double>> kTruth = {{0.00, 0.02, 0.05, 0.08, 0.101, 0.13, 0.2, 0.5},
                                                 {0.05, 0.09, 0.102, 0.103, 0.104, 0.105, 0.3},
                                                 {0.12, 0.01, 0.02}};

// A draw of one context: every rung meets the same difficulty, as budgets do on the same text. parts 1: lost
// or not; more: so many questions, each lost or not, of which the loss is the share.
std::vector<std::vector<double>> DrawLosses(int parts, std::mt19937_64* random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::vector<double>> losses;
  std::vector<double> difficulty;
  for (int i = 0; i < parts; ++i) difficulty.push_back(uniform(*random));
  for (const std::vector<double>& ladder : kTruth) {
    losses.emplace_back();
    for (const double truth : ladder) {
      int lost = 0;
      for (const double d : difficulty) lost += d < truth;
      losses.back().push_back(static_cast<double>(lost) / parts);
    }
  }
  return losses;
}

std::vector<int32_t> Rungs() {
  std::vector<int32_t> rungs;
  for (const auto& ladder : kTruth) rungs.push_back(static_cast<int32_t>(ladder.size()));
  return rungs;
}

struct Counts {
  int broken = 0;        // any passing rung of any ladder loses more than promised
  int broken_naive = 0;  // the same of a rule that believes the mean it measured
  int passed = 0;        // draws in which something passed
  int64_t rungs = 0;     // rungs that passed
};

Counts Simulate(int parts, int n_simulations) {
  Counts counts;
  std::mt19937_64 random(20241);
  for (int s = 0; s < n_simulations; ++s) {
    LadderTest test(Rungs(), kDraws, parts == 1, kMaxLoss, kConfidence);
    std::vector<std::vector<double>> totals;
    for (const auto& ladder : kTruth) totals.emplace_back(ladder.size());
    for (int64_t i = 0; i < kDraws; ++i) {
      const auto losses = DrawLosses(parts, &random);
      for (size_t l = 0; l < kTruth.size(); ++l) {
        for (size_t r = 0; r < kTruth[l].size(); ++r) {
          totals[l][r] += losses[l][r];
          if (test.IsOpen(l, r)) test.Add(l, r, losses[l][r]);
        }
      }
      test.EndDraw();
    }
    bool broken = false, naive = false, any = false;
    for (size_t l = 0; l < kTruth.size(); ++l) {
      for (size_t r = 0; r < kTruth[l].size(); ++r) {
        const bool is_bad = kTruth[l][r] > kMaxLoss, passes = r < test.CountPassed(l);
        broken |= passes && is_bad;
        naive |= totals[l][r] / static_cast<double>(kDraws) <= kMaxLoss && is_bad;
        any |= passes;
        counts.rungs += passes;
      }
    }
    counts.broken += broken, counts.broken_naive += naive, counts.passed += any;
  }
  return counts;
}

// At most one in five draws of the data may lead to a broken promise. Believing the mean that was measured
// breaks it more than twice as often.
TEST(TuneLadder, PromisesHoldAsOftenAsStated) {
  constexpr int kSimulations = 2000;
  for (const int parts : {1, 4}) {
    const Counts counts = Simulate(parts, kSimulations);
    EXPECT_LE(counts.broken, (1 - kConfidence) * kSimulations) << parts;
    EXPECT_GE(counts.broken_naive, 2 * (1 - kConfidence) * kSimulations) << parts;
    EXPECT_GE(counts.passed, 0.99 * kSimulations) << parts;
    EXPECT_GE(counts.rungs, 2 * kSimulations) << parts;  // and is not kept by choosing nothing
  }
}

// Closing a rung early changes no decision.
TEST(TuneLadder, ClosesOnlyWhatCannotPass) {
  std::mt19937_64 random(3);
  for (int s = 0; s < 200; ++s) {
    LadderTest test(Rungs(), kDraws, true, kMaxLoss, kConfidence);
    LadderTest whole(Rungs(), kDraws, true, kMaxLoss, kConfidence);
    for (int64_t i = 0; i < kDraws; ++i) {
      const auto losses = DrawLosses(1, &random);
      for (size_t l = 0; l < kTruth.size(); ++l) {
        for (size_t r = 0; r < kTruth[l].size(); ++r) {
          if (test.IsOpen(l, r)) test.Add(l, r, losses[l][r]);
          whole.Add(l, r, losses[l][r]);
        }
      }
      test.EndDraw();
    }
    for (size_t l = 0; l < kTruth.size(); ++l) EXPECT_EQ(test.CountPassed(l), whole.CountPassed(l));
  }
}

TEST(TuneLadder, ASequenceEndsWithItsFirstFailure) {
  LadderTest test({3, 1}, 100, true, 0.2, 0.9);
  EXPECT_DOUBLE_EQ(test.level(), 0.05);
  for (int i = 0; i < 100; ++i) {
    test.Add(0, 0, 0);
    if (test.IsOpen(0, 1)) test.Add(0, 1, i % 2);
    if (test.IsOpen(0, 2)) test.Add(0, 2, 0);
    test.Add(1, 0, 0);
    test.EndDraw();
  }
  EXPECT_EQ(test.CountPassed(0), 1u);  // the last rung lost nothing, but comes behind one that failed
  EXPECT_EQ(test.CountPassed(1), 1u);
  EXPECT_FALSE(test.IsOpen(0, 2));
  EXPECT_LT(test.At(0, 2).n, 100);
}

TEST(TuneLadder, TooFewDrawsPassNothing) {
  LadderTest test({2}, 10, true, 0.01, 0.95);
  for (int i = 0; i < 10; ++i) {
    if (test.IsOpen(0, 0)) test.Add(0, 0, 0);
    test.EndDraw();
  }
  EXPECT_EQ(test.CountPassed(0), 0u);
}

}  // namespace
}  // namespace kvc::tool

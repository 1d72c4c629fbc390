// Intervals of what was measured: what was drawn together counts as one draw.
#include <gtest/gtest.h>

#include "tools/generate.h"
#include "tools/quality.h"
#include "tools/suite/run.h"

namespace kvc::tool {
namespace {

void ExpectSame(const Interval& a, const Interval& b) {
  EXPECT_NEAR(a.low, b.low, 1e-12);
  EXPECT_NEAR(a.high, b.high, 1e-12);
}

// By hand, z = 1.96: 3 of 4, and all of 10.
TEST(Intervals, WilsonsKnownAnswers) {
  EXPECT_NEAR(WilsonInterval(0.75, 4).low, 0.3006, 1e-4);
  EXPECT_NEAR(WilsonInterval(0.75, 4).high, 0.9544, 1e-4);
  EXPECT_NEAR(WilsonInterval(1, 10).low, 0.7225, 1e-4);
  EXPECT_DOUBLE_EQ(WilsonInterval(1, 10).high, 1);
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
}

TEST(Intervals, QuestionsOfATaskThatFallTogetherAreOneDraw) {
  TaskCounts together, apart, alone;
  for (int task = 0; task < 8; ++task) {
    const int64_t right = task < 6;
    together.push_back({4 * right, 4});
    apart.push_back({3, 4});  // not one of them differs from the others
    alone.push_back({right, 1});
  }
  ExpectSame(AccuracyInterval(together), WilsonInterval(0.75, 8));
  ExpectSame(AccuracyInterval(alone), WilsonInterval(0.75, 8));
  ExpectSame(AccuracyInterval(apart), WilsonInterval(0.75, 32));
  const TaskCounts half = {{2, 4}, {4, 4}, {3, 4}, {3, 4}};
  const Interval between = AccuracyInterval(half);
  EXPECT_GT(between.low, WilsonInterval(0.75, 4).low);
  EXPECT_LE(between.low, WilsonInterval(0.75, 16).low);
}

TEST(Intervals, AllAlikeAreAsManyDrawsAsTasks) {
  ExpectSame(AccuracyInterval({{4, 4}, {4, 4}, {4, 4}}), WilsonInterval(1, 3));
  ExpectSame(AccuracyInterval({{0, 4}, {0, 0}, {0, 2}}), WilsonInterval(0, 2));
  ExpectSame(AccuracyInterval({}), Interval{});
  ExpectSame(BootstrapInterval(std::vector<double>(10, 1.0), 1), WilsonInterval(1, 10));
  const Interval drawn = BootstrapInterval({0, 1, 1, 1, 0, 1, 1, 1, 1, 1}, 1);
  EXPECT_GT(drawn.low, 0.4);
  EXPECT_LT(drawn.low, 0.7);
}

// One needle at several depths.
TEST(Intervals, ItemsThatDifferInTheirPlaceAreOneDraw) {
  SuiteRow row;
  row.scores = {1, 0, 1, 1, 0, 1};
  EXPECT_EQ(DrawnScores(row), row.scores);
  row.draws = {0, 1, 0, 1, 0, 1};
  const std::vector<double> drawn = DrawnScores(row);
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_NEAR(drawn[0], 2.0 / 3, 1e-12);
  EXPECT_NEAR(drawn[1], 2.0 / 3, 1e-12);
}

TEST(FirstLine, IsTheFirstThatSaysAnything) {
  for (const auto& [answer, line] : std::vector<std::pair<std::string, std::string>>{
           {"Paris\nLondon", "Paris"}, {"\n\nParis\n", "Paris"}, {"Paris", "Paris"}, {"\n\n", ""}, {"", ""}})
    EXPECT_EQ(FirstLine(answer), line);
}

}  // namespace
}  // namespace kvc::tool

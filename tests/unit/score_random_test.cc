// Draws of head scoring against the golden values, and what a permutation and a split must be.
#include "tools/score/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/golden/golden_files.h"

namespace kvc::tool {
namespace {

TEST(ScoreRandom, WordsAreThoseOfTheGoldenFile) {
  const Json golden = ReadGolden("micro/philox.json");
  const uint64_t key = std::stoull(golden["key"].get<std::string>());
  for (const Json& block : golden["blocks"]) {
    const auto c = block["counter"].get<std::vector<uint32_t>>();
    const auto words = PhiloxWords(c[0], c[1], c[2], c[3], key);
    EXPECT_EQ(std::vector<uint32_t>(words.begin(), words.end()), block["words"].get<std::vector<uint32_t>>());
  }
}

TEST(ScoreRandom, PermutationsAreThoseOfTheGoldenFile) {
  const Json golden = ReadGolden("micro/philox.json");
  const uint64_t key = std::stoull(golden["key"].get<std::string>());
  ASSERT_GE(golden["permutations"].size(), 3u);
  for (const Json& p : golden["permutations"]) {
    EXPECT_EQ(Permutation(key, p["run"], p["j"], p["k"], p["N"]), p["order"].get<std::vector<int32_t>>());
  }
}

TEST(ScoreRandom, EveryPlaceIsEquallyLikely) {
  constexpr int kDraws = 6000, kPlayers = 6;
  std::vector<int> first(kPlayers);
  for (uint32_t k = 0; k < kDraws; ++k) ++first[static_cast<size_t>(Permutation(7, 0, 3, k, kPlayers)[0])];
  for (const int count : first) EXPECT_NEAR(count, kDraws / kPlayers, 150);  // five deviations
}

TEST(ScoreRandom, SplitRoundsHalfUpAndKeepsOne) {
  const int known[][2] = {{200, 30}, {150, 23}, {500, 75}, {1, 1}, {10, 2}};
  for (const auto& [n, count] : known) {
    const std::vector<int32_t> chosen = ValidationExamples(1, n, 0.15);
    EXPECT_EQ(chosen.size(), static_cast<size_t>(count));
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    EXPECT_LT(chosen.back(), n);
  }
  // By tests/vectors/oracle/philox.py: the smallest first words of counters (index, 0, 0, 0x53).
  EXPECT_EQ(ValidationExamples(1, 20, 0.15), (std::vector<int32_t>{3, 8, 9}));
  EXPECT_EQ(ValidationExamples(1, 5, 1), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_NE(ValidationExamples(1, 200, 0.15), ValidationExamples(2, 200, 0.15));
}

}  // namespace
}  // namespace kvc::tool

// Budgets by layer, by head and by bytes: worked examples of methods.md section 6 and golden values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "lib/compress/allocate.h"
#include "lib/compress/budget.h"
#include "tests/support/test_device.h"

namespace kvc {
namespace {

using Ints = std::vector<int32_t>;
using Doubles = std::vector<double>;

nlohmann::json Golden(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(KVC_TEST_DATA "/goldens/" + name + ".json"));
}

// The numbers of nested lists in order.
Doubles Flat(const nlohmann::json& list) {
  if (list.is_number()) return {list.get<double>()};
  Doubles all;
  for (const auto& item : list) {
    const Doubles part = Flat(item);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Ints Minus(const Doubles& caps, int32_t window) {
  Ints counts;
  for (const double cap : caps) counts.push_back(static_cast<int32_t>(cap) - window);
  return counts;
}

int64_t Sum(const Ints& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Scores of the candidates alone: what is always kept beside them, at both ends, is far above.
Ints Ada(const std::vector<std::vector<float>>& scores, int32_t b, const AdaOptions& options) {
  static test::TestDevice memory(2);
  constexpr Protected kKept = {2, 1};
  const int32_t n_heads = static_cast<int32_t>(scores.size()), m = static_cast<int32_t>(scores[0].size());
  const int64_t stride = m + 5;
  std::vector<float> padded(scores.size() * static_cast<size_t>(stride), 1e9f);
  for (size_t h = 0; h < scores.size(); ++h)
    std::copy(scores[h].begin(), scores[h].end(),
              padded.begin() + static_cast<int64_t>(h) * stride + kKept.n_sink);
  Ints counts(scores.size(), -1), len(scores.size(), m + kKept.n_sink + kKept.n_recent);
  const Ints candidates(scores.size(), m);
  AdaQuestion question;
  if (!AdaAsks(options, b, candidates, &question, counts)) return counts;
  LayerView layer;
  layer.n_kv_heads = n_heads, layer.capacity = stride, layer.len = len.data();
  const DeviceBuffer<float> line = memory.Upload(padded);
  DeviceBuffer<uint8_t> scratch;
  EXPECT_TRUE(
      scratch.Allocate(memory.own(), memory.device()->SelectScratchBytes(n_heads, stride), "test").ok());
  std::vector<int64_t> best(scores.size(), -1);
  EXPECT_TRUE(
      memory.device()
          ->CountBest(memory.stream(), {layer, kKept, line.at(), stride, question.total, question.locked, b,
                                        options.normalize, best.data(), scratch.raw()})
          .ok());
  AdaCounts(options, b, candidates, best, counts);
  return counts;
}

AdaOptions Floor(double floor) {
  AdaOptions options;
  options.floor = floor;
  return options;
}

TEST(Pyramid, WorkedExamples) {  // methods.md 2.7
  const int32_t many = 1000000;
  EXPECT_EQ(PyramidCounts(10, many, 4, 5, false), (Ints{18, 13, 7, 2}));
  EXPECT_EQ(PyramidCounts(10, many, 4, 5, true), (Ints{18, 13, 8, 3}));
  EXPECT_EQ(PyramidCounts(10, many, 4, 20, false),
            (Ints{20, 13, 7, 0}));  // 19.5 and 0.5 tie: the lower layer
  EXPECT_EQ(PyramidCounts(10, many, 4, 20, true), (Ints{20, 14, 8, 2}));
  EXPECT_EQ(PyramidCounts(10, 15, 4, 20, false), (Ints{15, 12, 8, 5}));
  EXPECT_EQ(PyramidCounts(10, 15, 4, 20, true), (Ints{15, 12, 9, 6}));
  const Ints w8 = PyramidCounts(120, 7992, 32, 20, false), w32 = PyramidCounts(96, 7968, 32, 20, false);
  EXPECT_EQ(Ints(w8.begin(), w8.begin() + 4), (Ints{234, 227, 219, 212}));
  EXPECT_EQ(Ints(w8.end() - 3, w8.end()), (Ints{21, 13, 6}));
  EXPECT_EQ(Sum(w8), 3840);
  EXPECT_EQ(Ints(w32.begin(), w32.begin() + 4), (Ints{187, 181, 175, 170}));
  EXPECT_EQ(Ints(w32.end() - 3, w32.end()), (Ints{17, 11, 5}));
  EXPECT_EQ(Sum(w32), 3072);
  const Ints r8 = PyramidCounts(120, 7992, 32, 20, true), r32 = PyramidCounts(96, 7968, 32, 20, true);
  EXPECT_EQ((Ints{r8.front(), r8.back()}), (Ints{234, 17}));
  EXPECT_EQ(Sum(r8), 4016);
  EXPECT_EQ((Ints{r32.front(), r32.back()}), (Ints{188, 33}));
  EXPECT_EQ(Sum(r32), 3536);
}

TEST(Pyramid, GoldenValues) {
  const auto golden = Golden("micro/alloc");
  ASSERT_GE(golden["pyramid"].size(), 20u);
  for (const auto& c : golden["pyramid"]) {
    const auto run = [&](bool reference) {
      return PyramidCounts(c["b"], c["m"], c["L"], c["beta"], reference);
    };
    EXPECT_EQ(run(false), c["counts"].get<Ints>()) << c.dump();
    EXPECT_EQ(run(true), c["reference"].get<Ints>()) << c.dump();
  }
  for (const auto& c : golden["spindle"]) {
    EXPECT_EQ(SpindleCounts(c["C"], c["n"], c["w"], c["M"], c["beta"]), c["counts"].get<Ints>()) << c.dump();
  }
}

TEST(Pyramid, EdgesAndProperties) {
  EXPECT_EQ(PyramidCounts(10, 10, 3, 20, false), (Ints{10, 10, 10}));
  EXPECT_EQ(PyramidCounts(0, 10, 3, 20, false), (Ints{0, 0, 0}));
  EXPECT_EQ(PyramidCounts(-5, 10, 3, 20, true), (Ints{0, 0, 0}));
  EXPECT_EQ(PyramidCounts(4, 10, 1, 20, true), Ints{4});
  EXPECT_EQ(PyramidInferCounts(4, 10, 1, 0.9), Ints{4});
  std::mt19937 rng(3);
  for (int i = 0; i < 3000; ++i) {
    const int32_t m = 2 + static_cast<int32_t>(rng() % 5000),
                  b = 1 + static_cast<int32_t>(rng() % static_cast<uint32_t>(m - 1));
    const int32_t n_layers = 2 + static_cast<int32_t>(rng() % 60);
    const double beta = 1 + static_cast<double>(rng() % 100000) / 1000,
                 decay = static_cast<double>(rng() % 1001) / 1000;
    for (const Ints& counts :
         {PyramidCounts(b, m, n_layers, beta, false), PyramidInferCounts(b, m, n_layers, decay)}) {
      ASSERT_EQ(Sum(counts), int64_t{b} * n_layers);
      ASSERT_TRUE(std::is_sorted(counts.rbegin(), counts.rend())) << "not falling with depth";
      ASSERT_LE(counts.front(), m);
      ASSERT_GE(counts.back(), 0);
    }
    const Ints spindle = SpindleCounts(b, m, std::min(b, 8), n_layers, std::clamp(beta / 101, 0.001, 0.999));
    ASSERT_EQ(Sum(spindle), int64_t{b - std::min(b, 8)} * n_layers);
    ASSERT_TRUE(std::is_sorted(spindle.rbegin(), spindle.rend()));
  }
  EXPECT_EQ(PyramidCounts(7, 100, 5, 1, false), Ints(5, 7));  // beta = 1 is uniform
}

TEST(Spindle, WorkedExamples) {  // methods.md 2.16: l = 100, window 10
  EXPECT_EQ(SpindleCounts(50, 100, 10, 4, 0.05), (Ints{76, 52, 28, 4}));
  EXPECT_EQ(SpindleCounts(70, 100, 10, 4, 0.05), (Ints{90, 70, 50, 30}));
  EXPECT_EQ(SpindleCounts(14, 100, 10, 4, 0.05), (Ints{4, 4, 4, 4}));
  EXPECT_EQ(SpindleCounts(99, 100, 10, 4, 0.05), (Ints{90, 89, 89, 88}));
  EXPECT_EQ(SpindleCounts(100, 100, 10, 4, 0.05), (Ints{90, 90, 90, 90}));
  EXPECT_EQ(SpindleCounts(10, 100, 10, 4, 0.05), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(SpindleCounts(50, 8, 10, 2, 0.05), (Ints{0, 0}));  // shorter than the window
}

// The same, every layer rounded down as the paper prints it.
TEST(Spindle, RoundsDownAsPrinted) {
  using Counts = std::vector<int32_t>;
  EXPECT_EQ(SpindleCounts(50, 100, 10, 4, 0.05, true), (Counts{75, 51, 28, 4}));
  EXPECT_EQ(SpindleCounts(70, 100, 10, 4, 0.05, true), (Counts{90, 70, 50, 30}));
  EXPECT_EQ(SpindleCounts(14, 100, 10, 4, 0.05, true), (Counts{4, 4, 4, 4}));
  EXPECT_EQ(SpindleCounts(99, 100, 10, 4, 0.05, true), (Counts{90, 89, 88, 88}));
}

TEST(Ada, TotalsOfThePaper) {  // methods.md 2.11
  const std::vector<std::vector<float>> weights = {
      {.28f, .22f, .20f, .17f, .13f}, {.90f, .07f, .02f, .01f, 0}, {.63f, .23f, .08f, .04f, .02f}};
  const Ints counts = Ada(weights, 2, Floor(0));
  EXPECT_EQ(counts, (Ints{3, 1, 2}));
  double uniform = 0, adaptive = 0;
  for (size_t h = 0; h < 3; ++h) {
    for (int32_t t = 0; t < counts[h]; ++t) adaptive += weights[h][static_cast<size_t>(t)];
    uniform += weights[h][0] + weights[h][1];
  }
  EXPECT_NEAR(uniform, 2.33, 1e-6);
  EXPECT_NEAR(adaptive, 2.46, 1e-6);
  EXPECT_EQ(Ada(weights, 2, Floor(0.2)), (Ints{3, 1, 2}));
  EXPECT_EQ(Ada(weights, 2, Floor(0.5)), (Ints{3, 1, 2}));
}

TEST(Ada, FloorAndSafeguard) {  // methods.md 2.11
  const std::vector<std::vector<float>> scores = {{.20f, .18f, .16f, .14f, .12f, .10f},
                                                  {.60f, .05f, .04f, .03f, .02f, .01f},
                                                  {.30f, .11f, .02f, .02f, .01f, .01f}};
  EXPECT_EQ(Ada(scores, 3, Floor(0)), (Ints{6, 1, 2}));
  EXPECT_EQ(Ada(scores, 3, Floor(0.2)), (Ints{6, 1, 2}));  // an exact tie of remainders
  EXPECT_EQ(Ada(scores, 3, Floor(0.5)), (Ints{5, 2, 2}));
  EXPECT_EQ(Ada(scores, 3, Floor(1)), (Ints{3, 3, 3}));
  AdaOptions safeguard;
  safeguard.safeguard = true;
  safeguard.locked = 2;
  EXPECT_EQ(Ada(scores, 3, safeguard), (Ints{5, 2, 2}));
  safeguard.locked = 99;  // at most the average
  EXPECT_EQ(Ada(scores, 3, safeguard), (Ints{3, 3, 3}));
  safeguard.locked = 0;
  safeguard.floor = 0.7;  // 2.1 of 3
  EXPECT_EQ(Ada(scores, 3, safeguard), (Ints{5, 2, 2}));
}

TEST(Ada, Normalize) {  // methods.md 2.11
  const std::vector<std::vector<float>> scores = {{.30f, .28f, .22f, .20f}, {.70f, .20f, .06f, .04f}};
  EXPECT_EQ(Ada(scores, 2, Floor(0)), (Ints{3, 1}));
  AdaOptions normalize = Floor(0);
  normalize.normalize = true;
  EXPECT_EQ(Ada(scores, 2, normalize), (Ints{2, 2}));
}

// One sort of all scores of the layer, after the locked ones were lifted above everything.
Ints AdaBySort(std::vector<std::vector<float>> scores, int32_t b, int32_t locked) {
  struct Entry {
    double score;
    size_t head, t;
  };
  std::vector<Entry> all;
  for (size_t h = 0; h < scores.size(); ++h) {
    std::vector<size_t> order(scores[h].size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t x, size_t y) { return scores[h][x] > scores[h][y]; });
    for (int32_t i = 0; i < locked; ++i) scores[h][order[static_cast<size_t>(i)]] = INFINITY;
    for (size_t t = 0; t < scores[h].size(); ++t) all.push_back({scores[h][t], h, t});
  }
  std::stable_sort(all.begin(), all.end(), [](const Entry& x, const Entry& y) { return x.score > y.score; });
  Ints counts(scores.size(), 0);
  for (size_t i = 0; i < static_cast<size_t>(b) * scores.size(); ++i) ++counts[all[i].head];
  return counts;
}

TEST(Ada, GlobalSelectionAgreesWithOneSort) {
  std::mt19937 rng(5);
  for (int i = 0; i < 3000; ++i) {
    const size_t heads = 1 + rng() % 9, m = 2 + rng() % 60;
    const int32_t b = 1 + static_cast<int32_t>(rng() % (m - 1));
    std::vector<std::vector<float>> scores(heads, std::vector<float>(m));
    for (auto& row : scores) {
      for (float& x : row)
        x = i % 2 ? static_cast<float>(rng() % 7)
                  : std::ldexp(static_cast<float>(rng()), -static_cast<int>(rng() % 60));
    }
    AdaOptions options = Floor(0);
    options.safeguard = true;
    options.locked = static_cast<int32_t>(rng() % (static_cast<uint32_t>(b) + 1));
    if (options.locked == 0) options.safeguard = false;
    ASSERT_EQ(Ada(scores, b, options), AdaBySort(scores, b, options.locked)) << "case " << i;
  }
}

TEST(Ada, SpecialScoresAndEdges) {
  EXPECT_EQ(Ada({{NAN, NAN, NAN}, {1, 2, 3}}, 1, Floor(0)), (Ints{0, 2}));
  EXPECT_EQ(Ada({{-0.0f, 0, 0}, {0, 0, 0}}, 2, Floor(0)), (Ints{3, 1}));  // all equal: the lower head
  EXPECT_EQ(Ada({{1, 2}, {3, 4}}, 2, Floor(0.2)), (Ints{2, 2}));
  EXPECT_EQ(Ada({{1, 2}, {3, 4}}, 0, Floor(0.2)), (Ints{0, 0}));
}

TEST(Cokv, WorkedExample) {  // methods.md 2.13
  const Doubles ssv = {0.10, 0.40, 0.25, -0.05};
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 1000), 1, true, false), (Ints{5, 16, 11, 0}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 1000), 2, true, false), (Ints{0, 21, 11, 0}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 1000), 3, true, false), (Ints{0, 32, 0, 0}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 1000), 1, true, true), (Ints{5, 16, 10, 0}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 1000), 2, true, true), (Ints{0, 21, 10, 0}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 12), 1, true, false), (Ints{8, 12, 12, 0}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 12), 1, false, true), (Ints{5, 12, 10, 0}));
  // Head 1 holds 5: 27 over .15 : .30, head 2 holds 12 of its 18 and head 0 12 of 15, the rest is head 3's.
  EXPECT_EQ(CokvCounts(ssv, 8, Ints{12, 5, 12, 12}, 1, true, false), (Ints{12, 5, 12, 3}));
  EXPECT_EQ(CokvCounts(ssv, 8, Ints(4, 8), 1, true, false), (Ints{8, 8, 8, 8}));
  EXPECT_EQ(CokvCounts(Doubles{3, 3, 3}, 5, Ints(3, 100), 2, true, false),
            (Ints{5, 5, 5}));  // nothing above theta: uniform
  EXPECT_EQ(CokvCounts(Doubles{1}, 5, Ints(1, 100), 1, true, false), Ints{5});
}

TEST(Headkv, WorkedExample) {  // methods.md 2.10
  const Doubles s = {.4, .3, .2, .1};
  EXPECT_EQ(HeadkvCounts(s, 1, 4, 4, 8, Ints(4, 1000), 2, 1, true, false), (Ints{10, 9, 7, 6}));
  EXPECT_EQ(HeadkvCounts(s, 2, 2, 2, 8, Ints(4, 1000), 2, 1, true, false), (Ints{10, 9, 7, 6}));
  EXPECT_EQ(
      HeadkvCounts(Doubles{.5, .3, .3, .3, .2, .2, .1, .1}, 2, 4, 2, 8, Ints(4, 1000), 2, 1, true, false),
      (Ints{10, 9, 7, 6}));  // group means
  // base 120, beta 1.01: the floored pool is 118 of 120.
  EXPECT_EQ(HeadkvCounts(Doubles{1, 0}, 1, 2, 2, 120, Ints(2, 1000), 1.01, 1, true, true), (Ints{238, 2}));
  // Python's 110 // 1.1 is 99 and 11 // 1.1 is 9: 1.1 is a little more than it says.
  EXPECT_EQ(HeadkvCounts(Doubles{1, 0}, 1, 2, 2, 110, Ints(2, 1000), 1.1, 1, true, true), (Ints{209, 11}));
  EXPECT_EQ(HeadkvCounts(Doubles{1, 0}, 1, 2, 2, 11, Ints(2, 1000), 1.1, 1, true, true), (Ints{20, 2}));
  EXPECT_EQ(HeadkvCounts(Doubles{0, 0}, 1, 2, 2, 12, Ints(2, 1000), 1.01, 1, true, false), (Ints{12, 12}));
  EXPECT_EQ(HeadkvCounts(Doubles{4, 1}, 1, 2, 2, 30, Ints(2, 1000), 1, 0.5, true, false),
            (Ints{40, 20}));  // temperature: 2 to 1
}

TEST(Precision, HalfOfTheHeads) {
  const auto golden = Golden("micro/quant")["head_bits"];
  std::vector<bool> want;
  for (const int bits : golden["bits"].get<std::vector<int>>()) want.push_back(bits == 8);
  EXPECT_EQ(HighPrecisionHeads(golden["score"].get<Doubles>(), false), want);
  EXPECT_EQ(HighPrecisionHeads(Doubles{.10, .40, .25, -.05}, false),
            (std::vector<bool>{false, true, true, false}));  // 6.8
  EXPECT_EQ(HighPrecisionHeads(Doubles{.10, .40, .25, -.05}, true),
            (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(HighPrecisionHeads(Doubles{1, 1, 1, 1}, false), (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(HighPrecisionHeads(Doubles{1, 1, 1, 1}, true), std::vector<bool>(4, true));
  EXPECT_EQ(HighPrecisionHeads(Doubles{NAN, 2, 1}, false), (std::vector<bool>{false, true, true}));
  EXPECT_TRUE(HighPrecisionHeads(Doubles{}, false).empty());
}

TEST(Precision, LevelsByDescendingScore) {
  const std::vector<BitsLevel> three = {{16, 0.1}, {8, 0.4}, {4, 0.5}};
  EXPECT_EQ(BitsByLevels(Doubles{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, three),
            (Ints{16, 8, 8, 8, 8, 4, 4, 4, 4, 4}));
  EXPECT_EQ(BitsByLevels(Doubles{0, NAN, 2, 2, -1}, std::vector<BitsLevel>{{16, 0.4}, {4, 0.6}}),
            (Ints{4, 4, 16, 16, 4}));
  // Quotas .5, 2, 2.5: the tie of the remainders goes to the better level.
  EXPECT_EQ(BitsByLevels(Doubles{1, 1, 1, 1, 1}, three), (Ints{16, 8, 8, 4, 4}));
  EXPECT_EQ(BitsByLevels(Doubles{3}, three), (Ints{4}));
  EXPECT_EQ(BitsByLevels(Doubles{1, 2}, std::vector<BitsLevel>{{8, 1}}), (Ints{8, 8}));
}

// Exact total, every count within one of its quota, and nobody with a lower score has more bits.
TEST(Precision, LevelsOfRandomTables) {
  std::mt19937 rng(11);
  for (int i = 0; i < 2000; ++i) {
    const double first = 0.001 * static_cast<double>(1 + rng() % 998),
                 second = (1 - first) * 0.01 * static_cast<double>(1 + rng() % 99);
    const std::vector<BitsLevel> levels = {{16, first}, {8, second}, {4, 1 - first - second}};
    Doubles scores(1 + rng() % 70);
    for (double& s : scores) s = static_cast<double>(rng() % 20);
    const Ints bits = BitsByLevels(scores, levels);
    ASSERT_EQ(bits.size(), scores.size());
    for (const BitsLevel& level : levels) {
      const auto count = static_cast<double>(std::count(bits.begin(), bits.end(), level.bits));
      ASSERT_LT(std::fabs(count - level.share * static_cast<double>(scores.size())), 1 + 1e-6);
    }
    for (size_t a = 0; a < bits.size(); ++a) {
      for (size_t b = 0; b < bits.size(); ++b) {
        if (scores[a] > scores[b] || (scores[a] == scores[b] && a < b)) {
          ASSERT_GE(bits[a], bits[b]);
        }
      }
    }
  }
}

TEST(Bytes, WorkedExample) {  // methods.md 4.4
  const std::vector<int64_t> cost = {132, 68, 68};
  int64_t left = -1;
  EXPECT_EQ(ByteBudgetCounts(4000, Doubles{4, 2, 1}, cost, {}, &left), (Ints{22, 11, 5}));
  EXPECT_EQ(left, 8);
  EXPECT_EQ(ByteBudgetCounts(300, Doubles{0, 0}, std::vector<int64_t>{100, 50}, {}, nullptr), (Ints{2, 2}));
}

TEST(Bytes, NeverAboveTheLimit) {
  std::mt19937 rng(9);
  for (int i = 0; i < 3000; ++i) {
    const size_t n = 1 + rng() % 20;
    Doubles weights(n);
    std::vector<int64_t> cost(n);
    for (size_t j = 0; j < n; ++j)
      weights[j] = static_cast<double>(rng() % 100) / 7, cost[j] = 1 + static_cast<int64_t>(rng() % 600);
    const int64_t total = static_cast<int64_t>(rng() % 1000000);
    int64_t left = -1, used = 0;
    const Ints counts = ByteBudgetCounts(total, weights, cost, {}, &left);
    for (size_t j = 0; j < n; ++j) used += counts[j] * cost[j];
    ASSERT_EQ(used + left, total);
    ASSERT_GE(left, 0);
    ASSERT_LT(left, *std::max_element(cost.begin(), cost.end()) + 1);
  }
}

// methods.md 4.4 (b) read again, with the caps of 1.8: quotas, whole parts, then a walk by fraction.
Ints NaiveByteCounts(int64_t total, const std::vector<int64_t>& weights, const std::vector<int64_t>& cost,
                     const Ints& caps) {
  using Wide = __int128;
  Ints counts(weights.size(), 0);
  std::vector<bool> open(weights.size(), true);
  std::vector<int64_t> w = weights;
  for (;;) {
    Wide sum = 0;
    for (size_t i = 0; i < w.size(); ++i) sum += open[i] ? Wide{w[i]} * cost[i] : 0;
    if (sum == 0) {  // nobody with a weight has room: equal weights for whoever has
      if (w != weights) return counts;
      w.assign(w.size(), 1);
      if (std::none_of(open.begin(), open.end(), [](bool o) { return o; })) return counts;
      if (weights == w) return counts;
      continue;
    }
    bool filled = false;
    int64_t rest = total;
    for (size_t i = 0; i < w.size(); ++i) {
      if (!open[i] || w[i] == 0 || Wide{total} * w[i] < Wide{caps[i]} * sum) continue;
      counts[i] = caps[i], open[i] = false, filled = true;
      rest -= caps[i] * cost[i];
    }
    total = rest;
    if (filled) continue;
    std::vector<size_t> order;
    std::vector<Wide> fraction(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      if (!open[i] || w[i] == 0) continue;
      counts[i] = static_cast<int32_t>(Wide{total} * w[i] / sum);
      fraction[i] = Wide{total} * w[i] % sum;
      rest -= counts[i] * cost[i];
      order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t x, size_t y) { return fraction[x] > fraction[y]; });
    for (const size_t i : order) {
      if (cost[i] > rest || counts[i] == caps[i]) continue;
      ++counts[i], rest -= cost[i];
    }
    return counts;
  }
}

TEST(Bytes, AgreesWithTheRuleReadAgain) {
  std::mt19937 rng(10);
  int with_full_heads = 0;
  for (int i = 0; i < 4000; ++i) {
    const size_t n = 1 + rng() % 12;
    std::vector<int64_t> weights(n), cost(n);
    Ints caps(n);
    for (size_t j = 0; j < n; ++j) {
      weights[j] = rng() % 4 == 0 ? 0 : rng() % 65;  // of 64: exact in the integer weights
      cost[j] = 1 + static_cast<int64_t>(rng() % 300);
      caps[j] = static_cast<int32_t>(rng() % 3 == 0 ? rng() % 20 : 1 + rng() % 5000);
    }
    weights[rng() % n] = 64;
    const int64_t total = static_cast<int64_t>(rng() % (rng() % 2 ? 3000 : 300000));
    int64_t left = -1;
    const Ints counts = ByteBudgetCounts(total, Doubles(weights.begin(), weights.end()), cost, caps, &left);
    ASSERT_EQ(counts, NaiveByteCounts(total, weights, cost, caps)) << i;
    int64_t used = 0, room = 0;
    for (size_t j = 0; j < n; ++j) {
      ASSERT_LE(counts[j], caps[j]);
      used += counts[j] * cost[j], room += caps[j] * cost[j];
      with_full_heads += counts[j] == caps[j];
    }
    ASSERT_EQ(used + left, total);
    if (room <= total) {
      ASSERT_EQ(used, room) << "what all heads can hold is given";
    }
  }
  EXPECT_GT(with_full_heads, 1000);
}

// A head's count never falls when there are more bytes by a whole round of entries, and follows its weight.
TEST(Bytes, SharesFollowTheWeights) {
  const std::vector<int64_t> cost = {136, 72, 72, 136};
  const Doubles weights = {3, 3, 1, 1};
  const Ints counts = ByteBudgetCounts(1000000, weights, cost, {}, nullptr);
  EXPECT_NEAR(counts[0], counts[1], 1) << "equal scores hold equally many entries, whatever one costs";
  EXPECT_NEAR(counts[0], 3 * counts[3], 3);
  EXPECT_NEAR(counts[0], 1000000.0 * 3 / (3 * 136 + 3 * 72 + 72 + 136), 1);
}

// ---- Plans of the allocators against the caps of the golden cases: 2 layers, 4 query heads, 2 KV heads, 40
// tokens, window 8.

Result<Ints> Plan(const std::string& spec, const Doubles& head_scores = {}, const Ints& table = {},
                  int32_t n = 40, int32_t n_protected = 8, int32_t table_alpha = 0) {
  Result<Policy> policy = ParsePolicy(spec.c_str());
  if (!policy.ok()) return policy.status();
  policy.value().table = table;
  Ints counts(4, -1);
  AllocateInput in{policy.value(), 2,           4,          2, n, static_cast<int32_t>(policy.value().budget),
                   n_protected,    head_scores, table_alpha};
  const Status status = policy.value().allocator->plan(in, counts.data());
  if (!status.ok()) return status;
  return counts;
}

std::string PlanError(const std::string& spec, const Doubles& head_scores = {}, const Ints& table = {},
                      int32_t n_protected = 8) {
  const Result<Ints> plan = Plan(spec, head_scores, table, 40, n_protected);
  EXPECT_FALSE(plan.ok()) << spec;
  return plan.ok() ? "" : plan.status().message();
}

std::string OptionText(const nlohmann::json& options, const char* key) {
  if (!options.contains(key)) return "";
  return std::string(",") + key + "=" +
         (options[key].is_string() ? options[key].get<std::string>() : options[key].dump());
}

TEST(Plan, GoldenCaps) {
  for (const std::string method : {"snapkv", "pyramidkv", "pyramidinfer", "headkv-r2", "cokv"}) {
    const auto golden = Golden("micro/" + method);
    ASSERT_FALSE(golden["cases"].empty());
    for (const auto& c : golden["cases"]) {
      const auto& options = c["options"];
      const Doubles scores = options.contains("scores") ? Flat(options["scores"]) : Doubles{};
      std::string spec = method + ":budget=" + c["C"].dump() + ",window=8";
      for (const char* key : {"beta", "decay", "headkv_beta", "temperature", "alpha", "redistribute"})
        spec += OptionText(options, key);
      const Result<Ints> plan = Plan(spec, scores);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_EQ(plan.value(), Minus(Flat(c["cap"]), 8)) << spec;
    }
  }
}

TEST(Plan, GoldenAdaCaps) {
  for (const std::string method : {"ada-snapkv", "ada-pyramid"}) {
    const auto golden = Golden("micro/" + method);
    for (const auto& c : golden["cases"]) {
      const auto& options = c["options"];
      std::string spec = method + ":budget=" + c["C"].dump() + ",window=8";
      for (const char* key : {"beta", "ada_floor", "ada_mode", "ada_locked", "ada_normalize"})
        spec += OptionText(options, key);
      const Result<Ints> averages = Plan(spec);
      ASSERT_TRUE(averages.ok()) << averages.status().message();
      const Policy policy = ParsePolicy(spec.c_str()).value();
      const AdaOptions ada = {policy.Real(OptionId::kAdaFloor), policy.Int(OptionId::kAdaMode) == 1,
                              policy.Flag(OptionId::kAdaNormalize), policy.Int(OptionId::kAdaLocked)};
      for (size_t layer = 0; layer < 2; ++layer) {
        Ints caps =
            Ada(c["score"][layer].get<std::vector<std::vector<float>>>(), averages.value()[layer * 2], ada);
        for (int32_t& cap : caps) cap += 8;
        EXPECT_EQ(caps, c["cap"][layer].get<Ints>()) << spec << ", layer " << layer;
      }
    }
  }
}

TEST(Plan, GoldenSpindleCounts) {
  const auto golden = Golden("micro/spindlekv");
  for (const auto& c : golden["cases"]) {
    const Result<Ints> plan = Plan("spindlekv:window=8,budget=" + c["C"].dump());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Ints per_layer = c["per_query_head"];
    EXPECT_EQ(plan.value(), (Ints{per_layer[0], per_layer[0], per_layer[1], per_layer[1]}));
  }
}

TEST(Plan, GoldenCapsOfTheModel) {
  for (const std::string method : {"pyramidkv", "pyramidinfer", "cokv", "headkv-r2"}) {
    for (const int budget : {16, 32, 64, 128}) {
      const auto golden = Golden("model/" + method + "_b" + std::to_string(budget));
      const int32_t layers = golden["model"]["layers"], heads = golden["model"]["n_q"],
                    kv_heads = golden["model"]["n_kv"];
      const Doubles scores =
          golden["options"].contains("scores") ? Flat(golden["options"]["scores"]) : Doubles{};
      const std::string alpha = method == "cokv" ? OptionText(golden["options"], "alpha") : "";
      const Policy policy =
          ParsePolicy((method + ":window=8,budget=" + std::to_string(budget) + alpha).c_str()).value();
      for (const auto& prompt : golden["prompts"]) {
        Ints counts(static_cast<size_t>(layers * kv_heads));
        const AllocateInput in{policy, layers, heads,  kv_heads, static_cast<int32_t>(prompt["ids"].size()),
                               budget, 8,      scores, 0};
        ASSERT_TRUE(policy.allocator->plan(in, counts.data()).ok());
        EXPECT_EQ(counts, Minus(Flat(prompt["cap"]), 8)) << method << " " << budget;
      }
    }
  }
}

TEST(Plan, ShortPromptsKeepAll) {
  const Doubles scores = {.1, .4, .25, -.05};
  for (const std::string method :
       {"snapkv-w8", "pyramidkv", "pyramidinfer", "ada-snapkv", "ada-pyramid", "cokv"}) {
    EXPECT_EQ(Plan(method + ":budget=40,window=8", scores).value(), Ints(4, 32)) << method;
    EXPECT_EQ(Plan(method + ":budget=40,window=8", scores, {}, 7).value(), Ints(4, 0)) << method;
    EXPECT_EQ(Plan(method + ":budget=8,window=8", scores).value(), Ints(4, 0)) << method;
  }
}

TEST(Plan, AlphaOfCokv) {
  const Doubles ssv = {.10, .40, .25, -.05};
  const auto plan = [&](const std::string& options, int32_t table_alpha) {
    return Plan("cokv:budget=12" + options, {.15, .45, .30, 0}, {}, 4000, 8, table_alpha).value();
  };
  EXPECT_EQ(plan("", 0), plan(",alpha=1", 3));  // 1 of 64 heads, at least 1
  EXPECT_EQ(plan("", 2), plan(",alpha=2", 0));  // the table's own choice
  EXPECT_EQ(plan("", 77), plan(",alpha=3", 0));
  EXPECT_NE(plan(",alpha=1", 0), plan(",alpha=2", 0));
  EXPECT_EQ(PlanError("cokv:budget=20,alpha=4", ssv),
            "alpha = 4, but this model has 4 KV heads: 1 .. 3 is allowed");
}

TEST(Plan, BadScoresAndTables) {
  EXPECT_EQ(PlanError("cokv:budget=20", {1, 2}),
            "cokv needs 2 x 2 scores (layers x KV heads), the table has 2");
  EXPECT_EQ(PlanError("cokv:budget=20", {1, 2, NAN, 4}),
            "head score of layer 1, head 0 is not a number: the head has no sample");
  EXPECT_EQ(PlanError("headkv-r2:budget=20", {1, 2, 3}),
            "headkv needs 2 x 4 scores (layers x query heads) or 2 x 2 (layers x KV heads), the table has 3");
  EXPECT_EQ(PlanError("headkv-r2:budget=20", {1, 2, 3, -1}),
            "head score of layer 1, head 1 is negative: this allocator needs scores of 0 or more");
  EXPECT_EQ(PlanError("table", {}, {9, 9, 9}), "table needs 2 x 2 slots (layers x KV heads), it has 3");
  EXPECT_EQ(PlanError("table", {}, {9, 9, 9, 7}),
            "table gives layer 1, KV head 1 only 7 slots; the part that is always kept needs 8");
  EXPECT_EQ(Plan("table", {}, {8, 9, 40, 4000}).value(), (Ints{0, 1, 32, 32}));
  EXPECT_EQ(PlanError("cokv:budget=3,alpha=3,scorer=last_row,tova_scope=kvhead,protect_last=0", {1, 2, 3, 4},
                      {}, 0),
            "layer 0, KV head 0 would keep nothing: this policy protects no recent entries, so every head "
            "needs at least 1 slot");
}

}  // namespace
}  // namespace kvc

// TOP and pooling (methods.md 1.7, 1.10) and the random numbers (3.8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <tuple>

#include "lib/base/philox.h"
#include "lib/ops/cpu/merge_entries.h"
#include "tests/support/test_device.h"

namespace kvc {
namespace {

const ScoreProgram kNoProgram{};  // what scratch there is depends on rows alone

// One head of a layer, and room for lines over it.
struct OneHead {
  explicit OneHead(size_t n) : len(static_cast<int32_t>(n)), stride((len + 15) / 16 * 16 + 16) {
    layer.n_kv_heads = 1, layer.head_dim = 1, layer.capacity = stride, layer.len = &len;
    Device* device = memory().device();
    const int64_t bytes = std::max(device->SelectScratchBytes(1, stride),
                                   device->ScoreScratchBytes({&kNoProgram, 1, 1, 1, 0, stride}));
    EXPECT_TRUE(scratch.Allocate(memory().own(), bytes, "test").ok());
    std::vector<int32_t> ascending(static_cast<size_t>(stride));
    std::iota(ascending.begin(), ascending.end(), 0);
    positions = memory().Upload(ascending);
    layer.positions = positions.at();
  }
  static test::TestDevice& memory() {
    static test::TestDevice one(1);
    return one;
  }
  // Behind the line stands what must not be looked at.
  DeviceBuffer<float> Line(const std::vector<float>& x) const {
    std::vector<float> padded(x);
    padded.resize(static_cast<size_t>(stride), 1e30f);
    return memory().Upload(padded);
  }

  int32_t len;
  const int64_t stride;
  LayerView layer;
  DeviceBuffer<uint8_t> scratch;
  DeviceBuffer<int32_t> positions;
};

std::vector<int32_t> Top(const std::vector<float>& scores, int32_t count) {
  OneHead head(scores.size());
  const DeviceBuffer<float> line = head.Line(scores);
  const DeviceBuffer<uint8_t> marks =
      head.memory().Upload(std::vector<uint8_t>(static_cast<size_t>(head.stride), 7));
  const Status status = head.memory().device()->Select(
      head.memory().stream(),
      {SelectRule(), head.layer, 0, &count, line.at(), marks.at(), head.stride, head.scratch.raw()});
  EXPECT_TRUE(status.ok());
  const std::vector<uint8_t> mark = head.memory().Read(marks.at(), head.stride);
  std::vector<int32_t> out;
  for (size_t i = 0; i < mark.size(); ++i) {
    if (i < scores.size()) {
      EXPECT_LE(mark[i], 1);
      if (mark[i] == 1) out.push_back(static_cast<int32_t>(i));
    } else {
      EXPECT_EQ(mark[i], 7);
    }
  }
  return out;
}

// What goes first: the one that a selection of all but one leaves.
int32_t Victim(const std::vector<float>& scores) {
  const std::vector<int32_t> kept = Top(scores, static_cast<int32_t>(scores.size()) - 1);
  int32_t left = 0;
  while (left < static_cast<int32_t>(kept.size()) && kept[static_cast<size_t>(left)] == left) ++left;
  return left;
}

// The order itself, by a stable sort.
std::vector<int32_t> ByOrder(const std::vector<float>& scores) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t i) {
    return std::isnan(scores[static_cast<size_t>(i)]) ? -INFINITY : scores[static_cast<size_t>(i)];
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  return order;
}

std::vector<float> Pooled(const std::vector<float>& x, int32_t kernel, PoolKind kind, bool shrink = false) {
  OneHead head(x.size());
  const DeviceBuffer<float> line = head.Line(x), scores = head.Line(std::vector<float>(x.size(), -7)),
                            per_head = head.Line({});
  head.layer.n_aux = 1, head.layer.aux = line.at();
  ScoreProgram program;
  program.Add(ScoreOp::kLoad, 1, 0);
  program.Add(ScoreOp::kPool, 0, 1).pool = {kind, kernel, shrink};
  const Status status = head.memory().device()->Score(
      head.memory().stream(),
      {&program, head.layer, {}, 1, 1, scores.at(), per_head.at(), head.stride, head.scratch.raw()});
  EXPECT_TRUE(status.ok());
  return head.memory().Read(scores.at(), static_cast<int64_t>(x.size()));
}

// Summed probabilities of rows over the entries of every head [G, stride]: keys [G, stride, D], queries
// [rows, G, D].
std::vector<float> SharpenedRows(const std::vector<float>& keys, const std::vector<float>& queries,
                                 std::vector<int32_t> len, int32_t dim, int64_t stride) {
  test::TestDevice& memory = OneHead::memory();
  const int32_t heads = static_cast<int32_t>(len.size()),
                rows = static_cast<int32_t>(queries.size()) / heads / dim;
  ScoreProgram program;
  program.rows.n_rows = rows, program.rows.gain = RowGain::kLogLength, program.rows.gain_length = 8;
  program.Add(ScoreOp::kRows);
  const DeviceBuffer<float> k = memory.Upload(keys), q = memory.Upload(queries),
                            scores = memory.Upload(std::vector<float>(static_cast<size_t>(heads * stride))),
                            sums = memory.Upload(std::vector<float>(static_cast<size_t>(heads * stride)));
  const DeviceBuffer<int32_t> positions =
      memory.Upload(std::vector<int32_t>(static_cast<size_t>(heads * stride)));
  DeviceBuffer<uint8_t> scratch;
  const int64_t bytes = memory.device()->ScoreScratchBytes({&program, heads, heads, dim, rows, stride});
  EXPECT_TRUE(scratch.Allocate(memory.own(), bytes, "test").ok());
  ScoreArgs a{};
  a.program = &program, a.n_heads = heads, a.scale = 0.5f, a.stride = stride;
  a.layer.n_kv_heads = heads, a.layer.head_dim = dim, a.layer.capacity = stride, a.layer.len = len.data();
  a.layer.keys = k.raw(), a.layer.values = k.raw(), a.layer.positions = positions.at();
  a.observed.n_rows = a.observed.n_new = rows, a.observed.queries = q.at();
  a.scores = scores.at(), a.per_head = sums.at(), a.scratch = scratch.raw();
  EXPECT_TRUE(memory.device()->Score(memory.stream(), a).ok());
  return memory.Read(sums.at(), heads * stride);
}

// methods.md 2.14: what sharpens a row is how much of its own head it sees, however long other heads are.
TEST(RowGains, AreByTheLengthOfTheHead) {
  constexpr int32_t kDim = 8, kRows = 5, kLong = 60, kShort = 21, kStride = 64;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> keys(2 * kStride * kDim), queries(kRows * 2 * kDim), alone;
  for (float& x : keys) x = normal(rng);
  for (float& x : queries) x = normal(rng);
  for (int32_t i = 0; i < kRows; ++i)
    alone.insert(alone.end(), queries.begin() + (2 * i + 1) * kDim, queries.begin() + (2 * i + 2) * kDim);
  const std::vector<float> both = SharpenedRows(keys, queries, {kLong, kShort}, kDim, kStride),
                           own = SharpenedRows({keys.begin() + kStride * kDim, keys.end()}, alone, {kShort},
                                               kDim, kStride);
  for (int32_t t = 0; t < kShort; ++t)
    EXPECT_EQ(both[static_cast<size_t>(kStride + t)], own[static_cast<size_t>(t)]) << "entry " << t;
}

TEST(Select, GoldenValues) {
  const auto golden = nlohmann::json::parse(std::ifstream(KVC_TEST_DATA "/goldens/micro/top.json"));
  ASSERT_GE(golden["top"].size(), 20u);
  for (const auto& c : golden["top"]) {
    std::vector<float> scores;
    for (const auto& s : c["score"]) scores.push_back(s.is_null() ? NAN : s.get<float>());
    EXPECT_EQ(Top(scores, c["c"]), c["kept"].get<std::vector<int32_t>>());
    EXPECT_EQ(Victim(scores), c["victim"].get<int32_t>());
  }
}

TEST(Select, OrderOfSpecialValues) {
  const std::vector<float> scores = {NAN, -INFINITY, -0.0f, 0.0f, INFINITY, -1e-40f, 1e-40f, -1, 1};
  EXPECT_EQ(Top(scores, 1), (std::vector<int32_t>{4}));
  EXPECT_EQ(Top(scores, 3), (std::vector<int32_t>{4, 6, 8}));
  EXPECT_EQ(Top(scores, 4), (std::vector<int32_t>{2, 4, 6, 8}));              // -0 = 0: the lower position
  EXPECT_EQ(Top(scores, 8), (std::vector<int32_t>{0, 2, 3, 4, 5, 6, 7, 8}));  // NaN = -inf
  EXPECT_EQ(Victim(scores), 1);
  EXPECT_EQ(Top({}, 3), std::vector<int32_t>{});
  EXPECT_EQ(Top({1, 2}, -1), std::vector<int32_t>{});
  EXPECT_EQ(Top({1, 2}, 9), (std::vector<int32_t>{0, 1}));
}

TEST(Select, AgreesWithAStableSort) {
  std::mt19937 rng(11);
  for (int i = 0; i < 4000; ++i) {
    std::vector<float> scores(1 + rng() % 90);
    for (float& s : scores)
      s = rng() % 17 == 0 ? NAN : static_cast<float>(static_cast<int>(rng() % 9) - 4) / 4;  // many ties
    std::vector<int32_t> order = ByOrder(scores);
    EXPECT_EQ(Victim(scores), order.back());
    const int32_t count = static_cast<int32_t>(rng() % (scores.size() + 1));
    std::vector<int32_t> want(order.begin(), order.begin() + count);
    std::sort(want.begin(), want.end());
    ASSERT_EQ(Top(scores, count), want);
  }
}

TEST(Pool, WorkedExample) {  // methods.md 1.10
  const std::vector<float> head0 = {.40f, .02f, .02f, .30f, .02f, .04f},
                           head1 = {.02f, .02f, .36f, .02f, .02f, .16f};
  std::vector<float> mean(6), pooled_first(6);
  for (size_t i = 0; i < 6; ++i) mean[i] = (head0[i] + head1[i]) / 2;
  const auto near = [](const std::vector<float>& got, const std::vector<double>& want) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 6e-5) << i;
  };
  near(Pooled(mean, 3, PoolKind::kMax), {.21, .21, .19, .19, .16, .10});
  EXPECT_EQ(Top(Pooled(mean, 3, PoolKind::kMax), 3), (std::vector<int32_t>{0, 1, 2}));
  near(Pooled(mean, 3, PoolKind::kAvg), {.0767, .14, .1233, .1233, .0933, .04});
  EXPECT_EQ(Top(Pooled(mean, 3, PoolKind::kAvg), 3), (std::vector<int32_t>{1, 2, 3}));
  const std::vector<float> a = Pooled(head0, 3, PoolKind::kMax), b = Pooled(head1, 3, PoolKind::kMax);
  for (size_t i = 0; i < 6; ++i) pooled_first[i] = (a[i] + b[i]) / 2;
  near(pooled_first, {.21, .38, .33, .33, .23, .10});
  EXPECT_EQ(Top(pooled_first, 3), (std::vector<int32_t>{1, 2, 3}));
}

TEST(Pool, ShrunkEdges) {  // methods.md 1.10
  const std::vector<float> gamma = Pooled({4, 1, 1, 9, 1}, 3, PoolKind::kAvg, true);
  const std::vector<double> want = {2.5, 2, 11.0 / 3, 11.0 / 3, 5};
  for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(gamma[i], static_cast<float>(want[i]));
}

TEST(Pool, AgreesWithTheDefinition) {
  std::mt19937 rng(12);
  for (int i = 0; i < 3000; ++i) {
    const int32_t n = static_cast<int32_t>(rng() % 300),
                  kernel = 1 + 2 * static_cast<int32_t>(rng() % (i % 5 ? 8 : 128)), half = (kernel - 1) / 2;
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = std::ldexp(static_cast<float>(rng() % 1000), -static_cast<int>(rng() % 30));
    const std::vector<float> most = Pooled(x, kernel, PoolKind::kMax),
                             mean = Pooled(x, kernel, PoolKind::kAvg),
                             shrunk = Pooled(x, kernel, PoolKind::kAvg, true);
    for (int32_t t = 0; t < n; ++t) {
      float best = -INFINITY;
      double sum = 0;
      int32_t terms = 0;
      for (int32_t u = std::max(0, t - half); u <= std::min(n - 1, t + half); ++u, ++terms) {
        best = std::max(best, x[static_cast<size_t>(u)]);
        sum += x[static_cast<size_t>(u)];
      }
      ASSERT_EQ(most[static_cast<size_t>(t)], best);
      ASSERT_FLOAT_EQ(mean[static_cast<size_t>(t)], static_cast<float>(sum / kernel));
      ASSERT_FLOAT_EQ(shrunk[static_cast<size_t>(t)], static_cast<float>(sum / terms));
    }
  }
}

// A value far above its neighbours leaves nothing behind in the windows without it, and a NaN stays where it
// is.
TEST(Pool, NothingLeaksOutOfAWindow) {
  const std::vector<float> spike = Pooled({1e30f, 1e-3f, 1e-3f, 1e-3f, 1e-3f}, 3, PoolKind::kAvg);
  for (size_t i = 2; i < 4; ++i) EXPECT_FLOAT_EQ(spike[i], 1e-3f);
  const std::vector<float> with_nan = {1, 2, NAN, 4, 5, 6, INFINITY, 8, 9};
  const std::vector<float> mean = Pooled(with_nan, 3, PoolKind::kAvg),
                           most = Pooled(with_nan, 3, PoolKind::kMax);
  for (const size_t i : {1u, 2u, 3u}) EXPECT_TRUE(std::isnan(mean[i]));
  EXPECT_FLOAT_EQ(mean[4], 5);
  EXPECT_EQ(mean[6], INFINITY);
  EXPECT_EQ(most, (std::vector<float>{2, 2, 4, 5, 6, INFINITY, INFINITY, INFINITY, 9}));
  EXPECT_EQ(Pooled({NAN, NAN, 1}, 1, PoolKind::kMax), (std::vector<float>{-INFINITY, -INFINITY, 1}));
}

TEST(Philox, GoldenValues) {
  const auto golden = nlohmann::json::parse(std::ifstream(KVC_TEST_DATA "/goldens/micro/philox.json"));
  const uint64_t key = std::stoull(golden["key"].get<std::string>());
  for (const auto& block : golden["blocks"]) {
    const auto c = block["counter"].get<std::vector<uint32_t>>(),
               want = block["words"].get<std::vector<uint32_t>>();
    const auto words = Philox(c[0], c[1], c[2], c[3], key);
    EXPECT_EQ(std::vector<uint32_t>(words.begin(), words.end()), want);
  }
  for (const auto& draw : golden["cam_uniform"]) {
    const double u = Uniform(Philox(draw["sequence"], draw["head"], draw["position"], 0xCA, key)[0]);
    EXPECT_NEAR(u, draw["u"].get<double>(), 1e-9);
  }
}

// Known answers of the generator's authors (Random123, philox4x32-10).
TEST(Philox, PublishedVectors) {
  const auto zeros = Philox(0, 0, 0, 0, 0);
  EXPECT_EQ(zeros[0], 0x6627e8d5u);
  EXPECT_EQ(zeros[1], 0xe169c58du);
  EXPECT_EQ(zeros[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros[3], 0x9b00dbd8u);
  const auto ones = Philox(~0u, ~0u, ~0u, ~0u, ~uint64_t{0});
  EXPECT_EQ(ones[0], 0x408f276du);
  EXPECT_EQ(ones[1], 0x41c83b0eu);
  EXPECT_EQ(ones[2], 0xa20bc7c6u);
  EXPECT_EQ(ones[3], 0x6d5451fdu);
}

// Lines may be of any length: the keys that a second thread sorts begin where numbers of 64 bits may.
TEST(Select, ScratchOfEveryThreadIsAligned) {
  if (test::OnAnotherDevice()) GTEST_SKIP() << "of the processor's threads";
  test::TestDevice two(2);
  for (int64_t stride = 1; stride < 70; ++stride)
    EXPECT_EQ(two.device()->SelectScratchBytes(1, stride) / 2 % int64_t{alignof(uint64_t)}, 0) << stride;
}

// Scores that are no numbers are the least there are: as many are drawn as among any others.
TEST(Select, DrawsAsManyWhateverTheScoresAre) {
  constexpr int32_t kEntries = 64, kCount = 20;
  SelectRule rule;
  rule.kind = SelectKind::kDraw, rule.random_share = 0.35, rule.seed = 3;
  for (const int32_t n_nan : {0, 1, kEntries / 2, kEntries - 1, kEntries}) {
    OneHead head(kEntries);
    std::vector<float> scores(kEntries);
    for (int32_t i = 0; i < kEntries; ++i)
      scores[static_cast<size_t>(i)] = i < n_nan ? NAN : static_cast<float>(i % 7);
    const DeviceBuffer<float> line = head.Line(scores);
    const DeviceBuffer<uint8_t> marks =
        head.memory().Upload(std::vector<uint8_t>(static_cast<size_t>(head.stride), 7));
    ASSERT_TRUE(head.memory()
                    .device()
                    ->Select(head.memory().stream(), {rule, head.layer, 0, &kCount, line.at(), marks.at(),
                                                      head.stride, head.scratch.raw()})
                    .ok());
    const std::vector<uint8_t> mark = head.memory().Read(marks.at(), kEntries);
    EXPECT_EQ(std::count(mark.begin(), mark.end(), 1), KeptCount(rule, kEntries, kCount)) << n_nan;
  }
}

// The values of a head, of one number each: what is given to whom.
struct Gifts {
  using Gift = std::tuple<int32_t, float, float>;  // to an entry, times a factor, of a value
  std::vector<float> values;
  std::vector<Gift> given;
  const float* Get(int32_t e) const { return &values[static_cast<size_t>(e)]; }
  void Add(int32_t to, float factor, const float* v) { given.emplace_back(to, factor, *v); }
  void Mix(int32_t, float, const float*, float) {}
};

TEST(Spread, EachDroppedValueGoesToTheKeptEntriesBehindIt) {
  std::mt19937 random(3);
  for (const int32_t n : {0, 1, 2, 9, 100}) {
    for (const int32_t n_targets : {1, 3, 200}) {
      for (const uint32_t kept_of_8 : {0u, 1u, 4u, 7u, 8u}) {
        MergeRule rule;
        rule.kind = MergeKind::kSpread, rule.n_targets = n_targets, rule.expected = true;
        const size_t size = static_cast<size_t>(n);
        std::vector<uint8_t> mark(size);
        std::vector<float> sums(size), line(size);
        std::vector<int32_t> positions(size), links(3 * size);
        Gifts values, expected;
        for (size_t e = 0; e < size; ++e) {
          mark[e] = random() % 8 < kept_of_8, positions[e] = static_cast<int32_t>(3 * e);
          sums[e] = static_cast<float>(random() % 100) / 64;
          values.values.push_back(static_cast<float>(e));
        }
        for (int32_t e = 0; e < n; ++e) {
          if (mark[static_cast<size_t>(e)] != 0) continue;
          std::vector<int32_t> targets;
          std::vector<float> of_targets;
          for (int32_t t = e + 1; t < n && static_cast<int32_t>(targets.size()) < n_targets; ++t) {
            if (mark[static_cast<size_t>(t)] == 0) continue;
            targets.push_back(t), of_targets.push_back(sums[static_cast<size_t>(t)]);
          }
          const float factor =
              cpu::SpreadFactor(rule, sums[static_cast<size_t>(e)], of_targets.data(),
                                static_cast<int32_t>(targets.size()), 5, positions[static_cast<size_t>(e)]);
          for (const int32_t t : targets) {
            if (factor != 0) expected.given.emplace_back(t, factor, static_cast<float>(e));
          }
        }
        cpu::MergeDropped(
            {rule, mark.data(), sums.data(), nullptr, positions.data(), n, 5, links.data(), line.data()},
            values);
        EXPECT_EQ(values.given, expected.given) << n << ", " << n_targets << ", " << kept_of_8;
      }
    }
  }
}

}  // namespace
}  // namespace kvc

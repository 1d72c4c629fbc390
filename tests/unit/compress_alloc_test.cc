// ALLOC (methods.md 1.8) against worked examples, golden values and an independent big-integer reading of the
// rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "lib/compress/allocate.h"
#include "lib/compress/budget.h"
#include "lib/compress/storage_plan.h"

namespace kvc {
namespace {

constexpr int32_t kNoCap = 1 << 30;

struct Outcome {
  std::vector<int32_t> counts;
  int64_t unused;
};

Outcome Give(int64_t total, const std::vector<uint64_t>& weights, std::vector<int32_t> caps = {},
             const std::vector<int32_t>& low = {}, bool redistribute = true) {
  if (caps.empty()) caps.assign(weights.size(), kNoCap);
  Outcome result{std::vector<int32_t>(weights.size(), -1), 0};
  result.unused = Alloc(total, weights, caps, low, redistribute, result.counts);
  return result;
}

// Unsigned numbers of any size, base 2^32, least digit first: just what the literal rule needs.
using Big = std::vector<uint32_t>;

Big MakeBig(uint64_t x) { return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)}; }

Big Times(const Big& a, const Big& b) {
  Big r(a.size() + b.size(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    uint64_t carry = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      carry += uint64_t{a[i]} * b[j] + r[i + j];
      r[i + j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    r[i + b.size()] = static_cast<uint32_t>(carry);
  }
  return r;
}

Big Plus(const Big& a, const Big& b) {
  Big r(std::max(a.size(), b.size()) + 1, 0);
  uint64_t carry = 0;
  for (size_t i = 0; i < r.size(); ++i) {
    carry += (i < a.size() ? a[i] : 0) + uint64_t{i < b.size() ? b[i] : 0};
    r[i] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  return r;
}

int Compare(const Big& a, const Big& b) {
  for (size_t i = std::max(a.size(), b.size()); i-- > 0;) {
    const uint32_t x = i < a.size() ? a[i] : 0, y = i < b.size() ? b[i] : 0;
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

Big Minus(const Big& a, const Big& b) {  // a >= b
  Big r(a.size(), 0);
  int64_t borrow = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    borrow += int64_t{a[i]} - (i < b.size() ? b[i] : 0);
    r[i] = static_cast<uint32_t>(borrow);
    borrow >>= 32;
  }
  return r;
}

// The rule word by word: repeat the search for full shares, then floors, then the largest remainders one by
// one.
int64_t LiteralPass(int64_t rest, const std::vector<uint64_t>& weights, const std::vector<int64_t>& caps,
                    std::vector<int64_t>* counts) {
  std::vector<size_t> open;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0 && (*counts)[i] < caps[i]) open.push_back(i);
  }
  while (rest > 0 && !open.empty()) {
    Big sum = MakeBig(0);
    for (const size_t i : open) sum = Plus(sum, MakeBig(weights[i]));
    std::vector<size_t> still;
    const int64_t before = rest;
    for (const size_t i : open) {
      const int64_t room = caps[i] - (*counts)[i];
      if (Compare(Times(MakeBig(static_cast<uint64_t>(before)), MakeBig(weights[i])),
                  Times(MakeBig(static_cast<uint64_t>(room)), sum)) >= 0) {
        rest -= room;
        (*counts)[i] = caps[i];
      } else {
        still.push_back(i);
      }
    }
    if (still.size() < open.size()) {
      open = still;
      continue;
    }
    std::vector<Big> remainder;
    int64_t given = 0;
    for (const size_t i : open) {
      const Big quota = Times(MakeBig(static_cast<uint64_t>(rest)), MakeBig(weights[i]));
      uint64_t floor = 0;  // by bisection of its bits
      for (int bit = 50; bit >= 0; --bit) {
        if (Compare(Times(MakeBig(floor | uint64_t{1} << bit), sum), quota) <= 0) floor |= uint64_t{1} << bit;
      }
      remainder.push_back(Minus(quota, Times(MakeBig(floor), sum)));
      (*counts)[i] += static_cast<int64_t>(floor);
      given += static_cast<int64_t>(floor);
    }
    std::vector<bool> raised(open.size(), false);
    for (rest -= given; rest > 0; --rest) {
      size_t best = open.size();
      for (size_t j = 0; j < open.size(); ++j) {
        if (!raised[j] && (best == open.size() || Compare(remainder[j], remainder[best]) > 0)) best = j;
      }
      raised[best] = true;
      ++(*counts)[open[best]];
    }
  }
  return rest;
}

Outcome Literal(int64_t total, const std::vector<uint64_t>& weights, const std::vector<int32_t>& caps,
                const std::vector<int32_t>& low, bool redistribute) {
  std::vector<int64_t> counts(low.begin(), low.end()), limits(caps.begin(), caps.end());
  counts.resize(weights.size(), 0);
  if (!redistribute) limits.assign(weights.size(), total);
  int64_t rest = total - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  rest = LiteralPass(rest, weights, limits, &counts);
  rest = LiteralPass(rest, std::vector<uint64_t>(weights.size(), 1), limits, &counts);
  Outcome result{{}, std::max<int64_t>(rest, 0)};
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t held = std::min<int64_t>(counts[i], caps[i]);
    result.unused += counts[i] - held;
    result.counts.push_back(static_cast<int32_t>(held));
  }
  return result;
}

TEST(Alloc, WorkedExamples) {  // methods.md 1.8
  EXPECT_EQ(Give(10, {1, 1, 1}).counts, (std::vector<int32_t>{4, 3, 3}));
  EXPECT_EQ(Give(7, {5, 3, 2}).counts, (std::vector<int32_t>{4, 2, 1}));
  EXPECT_EQ(Give(7, IntegerWeights(std::vector<double>{0.5, 0.3, 0.2})).counts,
            (std::vector<int32_t>{4, 2, 1}));
  EXPECT_EQ(Give(20, {6, 3, 1}, {8, 100, 100}).counts, (std::vector<int32_t>{8, 9, 3}));
  EXPECT_EQ(Give(20, {1, 1, 0}, {6, 6, 10}).counts, (std::vector<int32_t>{6, 6, 8}));
  const Outcome full = Give(30, {1, 1}, {10, 10});
  EXPECT_EQ(full.counts, (std::vector<int32_t>{10, 10}));
  EXPECT_EQ(full.unused, 10);
}

TEST(Alloc, NothingToGive) {
  EXPECT_EQ(Give(0, {3, 1}).counts, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(Give(5, {}).unused, 5);
  EXPECT_EQ(Give(5, {0, 0}, {9, 9}).counts, (std::vector<int32_t>{3, 2}));  // no weight at all: equal shares
  EXPECT_EQ(Give(3, {1, 1}, {9, 9}, {4, 4}).counts, (std::vector<int32_t>{4, 4}));
}

TEST(Alloc, CutIsLostWithoutRedistribution) {
  const Outcome cut = Give(20, {6, 3, 1}, {8, 100, 100}, {}, false);
  EXPECT_EQ(cut.counts, (std::vector<int32_t>{8, 6, 2}));
  EXPECT_EQ(cut.unused, 4);
}

// Two quotas of 1.4 and 5.4 have the same fraction exactly, and different ones in double precision
// (methods.md 2.11).
TEST(Alloc, TiesAreExact) {
  EXPECT_EQ(Give(9, {5400000, 1400000, 2200000}, {6, 6, 6}).counts, (std::vector<int32_t>{6, 1, 2}));
  const uint64_t big = uint64_t{1} << 61;  // remainders that differ by one unit of 2^62
  EXPECT_EQ(Give(1, {big, big + 1}).counts, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Give(1, {big, big}).counts, (std::vector<int32_t>{1, 0}));
}

TEST(Alloc, GoldenValues) {
  const auto golden = nlohmann::json::parse(std::ifstream(KVC_TEST_DATA "/goldens/micro/alloc.json"));
  ASSERT_GE(golden["alloc"].size(), 60u);
  for (const auto& c : golden["alloc"]) {
    const std::vector<double> numbers = c["weights"];
    std::vector<uint64_t> weights(numbers.begin(), numbers.end());
    if (c["float_weights"] == 1) weights = IntegerWeights(numbers);
    const int64_t total = c["B"];
    std::vector<int32_t> caps(weights.size(), static_cast<int32_t>(total));
    if (!c["caps"].is_null()) caps = c["caps"].get<std::vector<int32_t>>();
    const Outcome got = Give(total, weights, caps, {}, c["redistribute"] == 1);
    EXPECT_EQ(got.counts, c["counts"].get<std::vector<int32_t>>()) << c.dump();
    EXPECT_EQ(got.unused, c["unused"].get<int64_t>()) << c.dump();
  }
}

struct RandomCase {
  int64_t total;
  std::vector<uint64_t> weights;
  std::vector<int32_t> caps, low;
};

RandomCase MakeCase(std::mt19937_64& rng, int kind) {
  RandomCase c;
  const size_t n = 1 + rng() % (kind % 7 == 0 ? 60 : 12);
  const uint64_t scale = kind % 3 == 0 ? 5 : kind % 3 == 1 ? 1000000 : (uint64_t{1} << 62) + 1;
  int64_t lows = 0, held = 0;
  for (size_t i = 0; i < n; ++i) {
    c.weights.push_back(rng() % scale);
    c.caps.push_back(static_cast<int32_t>(rng() % (kind % 5 == 0 ? 2000000000 : 40)));
    c.low.push_back(kind % 2 ? static_cast<int32_t>(rng() % (static_cast<uint64_t>(c.caps[i]) + 1) / 2) : 0);
    lows += c.low[i], held += c.caps[i];
  }
  c.total = lows + static_cast<int64_t>(rng() % static_cast<uint64_t>(held - lows + 20));
  return c;
}

TEST(Alloc, AgreesWithTheRuleInBigIntegers) {
  std::mt19937_64 rng(20240607);
  for (int i = 0; i < 6000; ++i) {
    const RandomCase c = MakeCase(rng, i);
    const bool redistribute = i % 4 != 3;
    const Outcome got = Give(c.total, c.weights, c.caps, c.low, redistribute),
                  want = Literal(c.total, c.weights, c.caps, c.low, redistribute);
    ASSERT_EQ(got.counts, want.counts) << "case " << i;
    ASSERT_EQ(got.unused, want.unused) << "case " << i;
  }
}

TEST(Alloc, SumCapsAndLowsHold) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 5000; ++i) {
    const RandomCase c = MakeCase(rng, i);
    const Outcome got = Give(c.total, c.weights, c.caps, c.low);
    int64_t sum = 0, room = 0;
    for (size_t j = 0; j < c.caps.size(); ++j) {
      ASSERT_GE(got.counts[j], c.low[j]);
      ASSERT_LE(got.counts[j], c.caps[j]);
      sum += got.counts[j], room += c.caps[j];
    }
    ASSERT_EQ(sum, std::min(c.total, room));
    ASSERT_EQ(got.unused, c.total - sum);
  }
}

// With equal caps and no lows more weight never gets less, and equal weights differ by at most one, the lower
// index first.
TEST(Alloc, FollowsTheWeights) {
  std::mt19937_64 rng(8);
  for (int i = 0; i < 3000; ++i) {
    const RandomCase c = MakeCase(rng, i);
    const Outcome got = Give(c.total, c.weights,
                             std::vector<int32_t>(c.weights.size(), 1 + static_cast<int32_t>(rng() % 50)));
    for (size_t a = 0; a < c.weights.size(); ++a) {
      for (size_t b = 0; b < c.weights.size(); ++b) {
        if (c.weights[a] > c.weights[b]) {
          ASSERT_GE(got.counts[a], got.counts[b]);
        }
        if (c.weights[a] == c.weights[b] && a < b) {
          ASSERT_TRUE(got.counts[a] == got.counts[b] || got.counts[a] == got.counts[b] + 1);
        }
      }
    }
  }
}

TEST(Alloc, LargestInputsDoNotOverflow) {
  const size_t n = 4095;
  const std::vector<uint64_t> weights(n, uint64_t{1} << 62);
  const std::vector<int32_t> caps(n, INT32_MAX);
  const int64_t total = int64_t{INT32_MAX} * static_cast<int64_t>(n) - 1;
  const Outcome got = Give(total, weights, caps);
  EXPECT_EQ(got.unused, 0);
  EXPECT_EQ(std::accumulate(got.counts.begin(), got.counts.end(), int64_t{0}), total);
  EXPECT_EQ(got.counts.front(), INT32_MAX);
  EXPECT_EQ(got.counts.back(), INT32_MAX - 1);
  EXPECT_EQ(Give((int64_t{1} << 52) - 1, weights, caps, {}, false).counts,
            std::vector<int32_t>(n, INT32_MAX));
}

TEST(IntegerWeights, RoundsAndIgnoresWhatIsNoWeight) {
  const uint64_t one = uint64_t{1} << 40;
  EXPECT_EQ(IntegerWeights(std::vector<double>{2, 1, 0.5}), (std::vector<uint64_t>{one, one / 2, one / 4}));
  EXPECT_EQ(IntegerWeights(std::vector<double>{-1, NAN, 3}), (std::vector<uint64_t>{0, 0, one}));
  EXPECT_EQ(IntegerWeights(std::vector<double>{0, 0}), (std::vector<uint64_t>{0, 0}));
  EXPECT_EQ(IntegerWeights(std::vector<double>{INFINITY, 1}), (std::vector<uint64_t>{one, one}));
  // Half a unit rounds to even.
  const double unit = 1.0 / static_cast<double>(one);
  EXPECT_EQ(IntegerWeights(std::vector<double>{1, 0.5 * unit, 1.5 * unit, 2.5 * unit}),
            (std::vector<uint64_t>{one, 0, 2, 2}));
}

// Options of rounding and of shapes, as a policy's text has them, against the reference of
// tests/vectors/oracle/make_ablations.py.
TEST(Alloc, OptionsOfAllocatorsAreThoseOfTheGoldenFile) {
  const auto golden = nlohmann::json::parse(std::ifstream(KVC_TEST_DATA "/goldens/micro/rounding.json"));
  ASSERT_EQ(golden["cases"].size(), 8u);
  const int32_t layers = golden["shape"][0], heads = golden["shape"][1], kv_heads = golden["shape"][2];
  for (const auto& c : golden["cases"]) {
    const Result<Policy> policy = ParsePolicy(c["policy"].get<std::string>().c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const std::vector<double> scores = c["scores"];
    std::vector<int32_t> counts(static_cast<size_t>(layers * kv_heads), -1);
    const AllocateInput in{policy.value(),   layers,      heads,
                           kv_heads,         golden["n"], static_cast<int32_t>(policy.value().budget),
                           golden["window"], scores,      0};
    ASSERT_TRUE(policy.value().allocator->plan(in, counts.data()).ok());
    EXPECT_EQ(counts, c["candidates"].get<std::vector<int32_t>>()) << c["policy"];
  }
}

// Of an even number of heads half have the high bits, or (the framework's lower median) one more (methods.md
// 4.4).
// Of caps there is no length that a head could be whole by, however large the budget.
TEST(StoragePlan, CapsOfDuoAreTheBudget) {
  ModelShape shape;
  shape.n_layers = 80, shape.n_heads = 64, shape.n_kv_heads = 8, shape.head_dim = 128;
  HeadScores scores;
  for (int i = 0; i < 640; ++i) scores.values.push_back(i / 640.0);
  for (const int32_t budget : {1000, 400000, 600000, 1000000}) {
    const auto policy = ParsePolicy(("duo-attention:budget=" + std::to_string(budget)).c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const auto plan = StoragePlan::Create(policy.value(), shape, scores, false);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<int32_t> slots;
    ASSERT_TRUE(plan.value().PlanCaps(budget, &slots).ok());
    EXPECT_EQ(slots, std::vector<int32_t>(640, budget));
  }
}

// Every head is sure of what is locked for it, whatever its floor.
TEST(StoragePlan, LockedCandidatesAreSure) {
  ModelShape shape;
  shape.n_layers = 2, shape.n_heads = 4, shape.n_kv_heads = 2, shape.head_dim = 16;
  for (const char* allocator : {"ada", "ada+pyramid,beta=2"}) {
    for (const int32_t locked : {0, 4}) {
      SCOPED_TRACE(allocator + std::string(", locked ") + std::to_string(locked));
      const std::string spec =
          "tova:budget=16,tova_scope=kvhead,protect_last=0,ada_mode=safeguard,ada_floor=0,ada_locked=" +
          std::to_string(locked) + ",allocator=" + allocator;
      const auto policy = ParsePolicy(spec.c_str());
      ASSERT_TRUE(policy.ok()) << policy.status().message();
      const auto plan = StoragePlan::Create(policy.value(), shape, {}, false);
      std::vector<int32_t> slots;
      const Status status = plan.ok() ? plan.value().PlanSlots(100, &slots) : plan.status();
      EXPECT_EQ(status.ok(), locked > 0) << status.message();
    }
  }
}

TEST(StoragePlan, TheMedianOfAPolicyDecidesTheBitsOfHeads) {
  HeadScores scores;
  for (int i = 0; i < 24; ++i) scores.values.push_back(0.01 * (i * 7 % 24));
  for (const bool lower : {false, true}) {
    const Result<Policy> policy =
        ParsePolicy(lower ? "cokv-mixed:median_mode=lower_median" : "cokv-mixed:median_mode=exact_half");
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    auto plan = StoragePlan::Create(policy.value(), {6, 8, 4, 32, {}, 0}, scores, false);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const CacheLayout layout = plan.value().LayoutFor(16);
    for (int i = 0; i < 24; ++i) {
      const bool high = i * 7 % 24 >= (lower ? 11 : 12);
      EXPECT_EQ(layout.main(i).type, high ? KvType::kInt8 : KvType::kInt4) << i << (lower ? ", lower" : "");
    }
  }
}

}  // namespace
}  // namespace kvc

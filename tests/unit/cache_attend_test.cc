// Decode attention over ragged pages against a dense softmax in double.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "tests/support/test_device.h"

namespace kvc {
namespace {

constexpr int kHeads = 3;
constexpr float kScale = 0.25f;

// How keys in the cache carry positions: turned by their own, or turned when they are read, to their place in
// the head or to their position.
enum class KeyRotation { kStored, kByRank, kByPosition };

struct Case {
  std::string name;
  KvType type;
  int32_t group, dim, page_slots, tail_slots;
  bool ordered, seen;
  int32_t window;
  KeyRotation rotation;
  RopePairing pairing;
  bool key_channels = false;
  int32_t longest = 900, steps = 40;  // of the heads in the beginning; that follow
  int32_t value_bits = 0;

  int32_t quant_group() const { return type < KvType::kInt8 ? 0 : dim % 32 == 0 && dim > 32 ? 32 : 8; }
};

class AttendCases : public testing::TestWithParam<Case> {
 protected:
  using Vector = std::vector<float>;

  void SetUp() override {
    const Case& c = GetParam();
    test::UniformLayout layout;
    layout.n_kv_heads = kHeads, layout.group = c.group, layout.head_dim = c.dim,
    layout.page_slots = c.page_slots, layout.n_aux = 1;
    layout.seen_masks = c.seen, layout.ranks = c.rotation == KeyRotation::kByRank;
    layout.type = c.type, layout.quant_group = c.quant_group(), layout.ring_slots = c.tail_slots;
    layout.value_bits = c.value_bits;
    if (c.key_channels) layout.coding = EntryCoding::kKeyChannels, layout.settle = c.page_slots;
    auto cache = KvCache::Create(layout.Make(), memory_.arenas());
    ASSERT_TRUE(cache.ok());
    cache_ = std::move(cache.value());
    RopeConfig rope;
    rope_ = Rope(rope, c.dim);
  }

  Vector Random(int n, float scale = 1) {
    Vector x(static_cast<size_t>(n));
    for (float& f : x) f = scale * std::normal_distribution<float>()(random_);
    return x;
  }

  test::TokenInput Token(float scale = 1) {
    const Case& c = GetParam();
    return {0,
            position_++,
            Random(kHeads * c.group * c.dim, scale),
            Random(kHeads * c.dim),
            Random(kHeads * c.dim),
            &rope_,
            c.pairing,
            kScale,
            c.window,
            {}};
  }

  // Nothing is dropped; what leaves the ring stays until the step ends, so that one can look at what was
  // attended.
  StepPlan Plan() const {
    StepPlan plan;
    plan.in_cache = GetParam().rotation == KeyRotation::kByRank;
    plan.ends_later = true;
    return plan;
  }

  // Heads of very different lengths: 1, some, many.
  test::HostLayer RandomLayer() {
    const Case& c = GetParam();
    test::HostLayer kv(kHeads, c.dim, c.longest, 1);
    kv.len = {1, 77, c.longest};
    for (int g = 0; g < kHeads; ++g) {
      const int32_t n = kv.len[static_cast<size_t>(g)];
      for (int32_t i = 0; i < n; ++i) {
        const Vector k = Random(c.dim), v = Random(c.dim);
        std::copy(k.begin(), k.end(), kv.Key(g, i)), std::copy(v.begin(), v.end(), kv.Value(g, i));
        kv.Position(g, i) = 1000 - 1 - (n - 1 - i);
        kv.seen[kv.Entry(g, i)] = random_() | 1u << (random_() % static_cast<uint32_t>(c.group));
      }
    }
    return kv;
  }

  void Fill() {
    const Case& c = GetParam();
    const test::HostLayer kv = RandomLayer();
    ASSERT_TRUE(memory_.Store(cache_.get(), 0, kv, nullptr, c.seen ? &kv.seen : nullptr).ok());
    for (int g = 0; g < kHeads; ++g) cache_->set_rotated(g, c.rotation == KeyRotation::kStored);
    for (int step = 0; step < c.steps; ++step) {  // rings wrap, holes are filled
      ASSERT_TRUE(step_.Ensure(cache_.get(), false).ok());
      step_.Run(*cache_, Plan(), Token());
      step_.Done(cache_.get());
      if (c.ordered) RemoveSome();
    }
  }

  // An older entry of every head but the first.
  void RemoveSome() {
    const int64_t stride = cache_->MaxSlots() + 1;
    std::vector<uint8_t> marks(static_cast<size_t>(kHeads * stride), 1);
    for (int g = 1; g < kHeads; ++g)
      marks[static_cast<size_t>(g * stride) + random_() % static_cast<uint32_t>(cache_->Len(g) - 1)] = 0;
    memory_.Evict(cache_.get(), 0, marks, stride, {0, 1, 1}, {&rope_, GetParam().pairing, false});
  }

  std::vector<double> Turned(const float* x, int32_t at) {
    const int32_t d = GetParam().dim;
    std::vector<float> cos(static_cast<size_t>(d / 2)), sin(static_cast<size_t>(d / 2));
    rope_.Angles(at, cos.data(), sin.data());
    std::vector<double> y(static_cast<size_t>(d));
    for (int32_t j = 0; j < d / 2; ++j) {
      const bool half = GetParam().pairing == RopePairing::kHalf;
      const size_t a = static_cast<size_t>(half ? j : 2 * j),
                   b = static_cast<size_t>(half ? j + d / 2 : 2 * j + 1), i = static_cast<size_t>(j);
      y[a] = double{x[a]} * cos[i] - double{x[b]} * sin[i];
      y[b] = double{x[b]} * cos[i] + double{x[a]} * sin[i];
    }
    return y;
  }

  // Probabilities of query head h by rank, what its sink has of 1, and its output.
  double Dense(test::HostLayer& cached, const test::TokenInput& in, int h, std::vector<double>* p,
               std::vector<double>* out) {
    const Vector& q = in.q;
    const Case& c = GetParam();
    const int g = h / c.group;
    const int32_t n = cached.len[static_cast<size_t>(g)], newest = cached.Position(g, n - 1);
    const std::vector<double> turned_q =
        Turned(q.data() + h * c.dim, c.rotation == KeyRotation::kByRank ? n - 1 : newest);
    p->assign(static_cast<size_t>(n), 0.0);
    out->assign(static_cast<size_t>(c.dim), 0.0);
    const double sink = in.sinks.empty() ? 0 : std::exp(double{in.sinks[static_cast<size_t>(h)]});
    double sum = sink;
    for (int32_t r = 0; r < n; ++r) {
      const int32_t position = cached.Position(g, r);
      if (c.window > 0 && position <= newest - c.window) continue;
      if (c.seen && (cached.seen[cached.Entry(g, r)] >> (h % c.group) & 1) == 0) continue;
      const float* k = cached.Key(g, r);
      const std::vector<double> key = c.rotation == KeyRotation::kStored
                                          ? std::vector<double>(k, k + c.dim)
                                          : Turned(k, c.rotation == KeyRotation::kByRank ? r : position);
      double logit = 0;
      for (int32_t x = 0; x < c.dim; ++x)
        logit += key[static_cast<size_t>(x)] * turned_q[static_cast<size_t>(x)];
      sum += (*p)[static_cast<size_t>(r)] = std::exp(logit * double{kScale});
    }
    for (int32_t r = 0; r < n; ++r) {
      (*p)[static_cast<size_t>(r)] /= sum;
      for (int32_t x = 0; x < c.dim; ++x)
        (*out)[static_cast<size_t>(x)] += (*p)[static_cast<size_t>(r)] * cached.Value(g, r)[x];
    }
    return sink / sum;
  }

  // softmax(gain z) from softmax(z) and what a sink has of it.
  static void Sharpen(double gain, double of_sink, std::vector<double>* p) {
    double sum = of_sink > 0 ? std::pow(of_sink, gain) : 0;
    for (double& x : *p) sum += x = x > 0 ? std::pow(x, gain) : 0;
    for (double& x : *p) x /= sum;
  }

  std::mt19937 random_{23};
  int32_t position_ = 1000;
  test::TestDevice memory_;
  std::unique_ptr<KvCache> cache_;
  Rope rope_;
  test::TokenStep step_{&memory_};
};

TEST_P(AttendCases, IsTheDenseSoftmax) {
  const Case& c = GetParam();
  Fill();
  // Round 2 is nearly one-hot. From 3 on there are sinks, in 5 none. From 4 on a method adds up sharpened
  // rows, whose mean over the group is checked; what a session observes is the model's all the same.
  constexpr int32_t kGainLength = 200;
  std::map<int32_t, double> added[kHeads];  // by position
  for (int round = 0; round < 6 && !HasFatalFailure(); ++round) {
    test::TokenInput in =
        Token((round == 2 ? 20.0f : 1.0f) * std::min(1.0f, 8 / std::sqrt(static_cast<float>(c.dim))));
    if (round == 3 || round == 4) in.sinks = Random(kHeads * c.group, 3);
    const int64_t stride = cache_->MaxLen() + 1;
    DeviceBuffer<float> attention;
    ASSERT_TRUE(attention.Allocate(memory_.own(), kHeads * c.group * stride, "test").ok());
    StepPlan plan = Plan();
    plan.attention = attention.at(), plan.attention_stride = stride;
    if (round >= 4) {
      plan.gain_length = kGainLength, plan.gain_floor = true;
      plan.needs_attention = true, plan.n_instrs = 1, plan.instrs[0] = {StepOp::kAddAttention, 0};
    }
    test::HostLayer cached;
    ASSERT_TRUE(step_.Ensure(cache_.get(), false).ok());
    const Vector out = step_.Run(*cache_, plan, in, [&] { cached = memory_.Load(*cache_, 0); });
    step_.Done(cache_.get());
    for (int h = 0; h < kHeads * c.group; ++h) {
      std::vector<double> p, expected;
      const double of_sink = Dense(cached, in, h, &p, &expected);
      for (int32_t x = 0; x < c.dim; ++x)
        ASSERT_NEAR(out[static_cast<size_t>(h * c.dim + x)], expected[static_cast<size_t>(x)], 2e-4)
            << "head " << h;
      const Vector ranked = memory_.Read(attention.at() + h * stride, stride);
      for (size_t r = 0; r < p.size(); ++r)
        ASSERT_NEAR(ranked[r], p[r], 2e-5) << "head " << h << " rank " << r;
      if (round < 4) continue;
      Sharpen(double{LengthGain(in.position + 1, kGainLength, false, true, c.dim)}, of_sink, &p);
      for (size_t r = 0; r < p.size(); ++r)
        added[h / c.group][cached.Position(h / c.group, static_cast<int32_t>(r))] += p[r] / c.group;
    }
    for (int g = 0; g < kHeads; ++g) {
      for (int32_t r = 0; r < cached.len[static_cast<size_t>(g)]; ++r)
        ASSERT_NEAR(cached.Aux(0, g, r), added[g][cached.Position(g, r)], 1e-4)
            << "head " << g << " rank " << r;
    }
  }
}

TEST_P(AttendCases, DoesNotDependOnThreadsOrOnWhatElseIsWanted) {
  Fill();
  const test::TokenInput in = Token();
  test::TestDevice one(1);
  test::TokenStep alone(&one);
  const auto run = [&](test::TokenStep& step, bool want_attention) {
    auto fork = cache_->Fork();
    EXPECT_TRUE(fork.ok() && step_.Ensure(fork.value().get(), false).ok());
    memory_.Load(*fork.value(), 0);  // waits: what another stream reads is there
    const int64_t stride = cache_->MaxLen() + 1;
    DeviceBuffer<float> attention;
    EXPECT_TRUE(attention.Allocate(memory_.own(), kHeads * GetParam().group * stride, "test").ok());
    StepPlan plan = Plan();
    if (want_attention)
      plan.attention = attention.at(), plan.attention_stride = stride, plan.needs_attention = true;
    return step.Run(*fork.value(), plan, in);
  };
  const Vector expected = run(alone, false);
  EXPECT_EQ(run(step_, false), expected);
  EXPECT_EQ(run(step_, true), expected);
}

// What is stored is what the reference makes of it, number by number. Keys that a page codes together:
// KvCacheRandom.
TEST_P(AttendCases, HoldsWhatTheReferenceCodes) {
  const Case& c = GetParam();
  test::HostLayer kv = RandomLayer();
  ASSERT_TRUE(memory_.Store(cache_.get(), 0, kv, nullptr, c.seen ? &kv.seen : nullptr).ok());
  test::HostLayer got = memory_.Load(*cache_, 0);
  ASSERT_EQ(got.len, kv.len);
  const VectorFormat stored{c.type, c.dim, c.quant_group()}, ring{KvType::kF16, c.dim, 0},
      value = test::ValuesBeside(stored, c.value_bits);
  for (int g = 0; g < kHeads; ++g) {
    const int32_t n = kv.len[static_cast<size_t>(g)],
                  whole = (n - std::min(n, c.tail_slots - c.page_slots)) / c.page_slots * c.page_slots,
                  coded = c.key_channels ? whole : n - std::max(c.tail_slots - 1, 0);
    for (int32_t i = 0; i < n; ++i) {
      const VectorFormat& format = i < coded ? stored : ring;
      ASSERT_EQ(got.Position(g, i), kv.Position(g, i));
      ASSERT_EQ(got.ValueOf(g, i), test::RoundTrip(i < coded ? value : ring, kv.ValueOf(g, i)))
          << "head " << g << " entry " << i;
      if (c.key_channels && i < coded) continue;
      ASSERT_EQ(got.KeyOf(g, i), test::RoundTrip(format, kv.KeyOf(g, i))) << "head " << g << " entry " << i;
    }
  }
}

constexpr KeyRotation kStored = KeyRotation::kStored, kRank = KeyRotation::kByRank,
                      kPosition = KeyRotation::kByPosition;
constexpr RopePairing kHalf = RopePairing::kHalf, kPairs = RopePairing::kInterleaved;
INSTANTIATE_TEST_SUITE_P(
    Kinds, AttendCases,
    testing::Values(
        Case{"f32", KvType::kF32, 2, 16, 64, 0, false, false, 0, kStored, kHalf},
        Case{"f16_mqa", KvType::kF16, 8, 64, 16, 0, false, false, 0, kStored, kHalf},
        Case{"bf16_mha", KvType::kBf16, 1, 24, 16, 0, false, false, 0, kStored, kHalf},
        Case{"int8_tail", KvType::kInt8, 2, 32, 16, 9, false, false, 0, kStored, kHalf},
        Case{"int4_tail_ordered", KvType::kInt4, 2, 32, 64, 33, true, false, 0, kStored, kHalf},
        Case{"int8_key_channels", KvType::kInt8, 2, 32, 16, 23, false, false, 0, kStored, kHalf, true},
        Case{"int4_key_channels_seen", KvType::kInt4, 4, 24, 64, 64, false, true, 0, kStored, kHalf, true},
        Case{"int8_int4_tail", KvType::kInt8, 2, 32, 16, 9, true, true, 0, kStored, kHalf, false, 900, 40, 4},
        Case{"int8_channels_int4", KvType::kInt8, 2, 32, 16, 23, false, false, 0, kStored, kHalf, true, 900,
             40, 4},
        Case{"int4_int8_ordered", KvType::kInt4, 2, 32, 64, 33, true, false, 0, kStored, kHalf, false, 900,
             40, 8},
        Case{"int4_int2_tail", KvType::kInt4, 2, 32, 16, 9, true, true, 0, kStored, kHalf, false, 900, 40, 2},
        Case{"int8_int2_at_once", KvType::kInt8, 4, 24, 4, 0, true, false, 0, kStored, kHalf, false, 900, 40,
             2},
        Case{"int4_at_once", KvType::kInt4, 2, 32, 64, 0, false, true, 0, kPosition, kHalf},
        Case{"f32_ordered", KvType::kF32, 2, 16, 16, 0, true, false, 0, kStored, kHalf},
        Case{"window", KvType::kF32, 2, 16, 16, 0, false, false, 100, kStored, kHalf},
        Case{"window_of_one", KvType::kF16, 2, 16, 16, 0, true, false, 1, kStored, kHalf},
        Case{"seen", KvType::kF16, 4, 16, 16, 0, false, true, 0, kStored, kHalf},
        Case{"by_rank", KvType::kF16, 2, 16, 16, 0, true, false, 0, kRank, kHalf},
        Case{"by_rank_int8_tail", KvType::kInt8, 2, 16, 16, 5, true, false, 0, kRank, kPairs},
        Case{"by_position_seen", KvType::kF32, 2, 16, 16, 0, false, true, 0, kPosition, kPairs}),
    [](const auto& kind) { return kind.param.name; });

// Every size of a head that models have, and one that they have not, with every group and coding: instances
// of kernels differ by them.
std::vector<Case> Shapes() {
  const std::pair<const char*, KvType> types[] = {{"f32", KvType::kF32},
                                                  {"f16", KvType::kF16},
                                                  {"bf16", KvType::kBf16},
                                                  {"int8", KvType::kInt8},
                                                  {"int4", KvType::kInt4}};
  std::vector<Case> all;
  for (const int32_t d : {64, 80, 128, 256}) {
    for (int32_t group = 1; group <= 8; ++group) {
      for (const auto& [name, type] : types) {
        Case c{Format("%s_%d_of_%d", name, group, d), type, group, d, 64, type < KvType::kInt8 ? 0 : 9, false,
               false, 0,
               // Some turn keys when they read them.
               group % 3 == 1 ? kPosition : kStored, kHalf};
        c.longest = 130, c.steps = 1;
        all.push_back(c);
        if (type < KvType::kInt8) continue;
        const std::string name_of_codes = c.name;
        c.name += "_and_the_other", c.value_bits = type == KvType::kInt8 ? 4 : 8;
        all.push_back(c);
        c.name = name_of_codes + "_and_int2", c.value_bits = 2;
        all.push_back(c);
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttendCases, testing::ValuesIn(Shapes()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvc

// Decode attention over ragged pages against a dense softmax in double.
#include "lib/cache/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvc {
namespace {

constexpr int kHeads = 3;

struct Case {
  const char* name;
  KvType type;
  int32_t group, dim, page_slots, tail_slots;
  bool ordered, seen;
  int32_t window;
  KeyRotation rotation;
  RopePairing pairing;
  bool key_channels = false;
};

class AttendCases : public testing::TestWithParam<Case> {
 protected:
  using Vector = std::vector<float>;

  void SetUp() override {
    const Case& c = GetParam();
    config_.n_layers = 1, config_.n_kv_heads = kHeads, config_.group = c.group, config_.head_dim = c.dim;
    config_.page_slots = c.page_slots, config_.ordered = c.ordered, config_.seen_masks = c.seen;
    config_.raw = {c.tail_slots > 0 ? KvType::kF16 : KvType::kF32, c.dim, 0};
    HeadFormat format;
    format.stored = {c.type, c.dim, c.type >= KvType::kInt8 ? 8 : 0};
    format.tail_slots = c.tail_slots;
    format.key_channels = c.key_channels;
    if (c.key_channels) format.settle = c.page_slots;
    config_.formats.assign(kHeads, format);
    auto pool = ThreadPool::Create(2);
    ASSERT_TRUE(pool.ok());
    pool_ = std::move(pool.value());
    auto cache = KvCache::Create(config_, &BestKernels(), meter_);
    ASSERT_TRUE(cache.ok());
    cache_ = std::move(cache.value());
    RopeConfig rope;
    rope_ = Rope(rope, c.dim);
    ASSERT_TRUE(angles_.Grow(rope_, 2000, meter_.get()).ok());
    ASSERT_TRUE(workspace_.Reserve(config_, 1200, 0, 2, meter_.get()).ok());
  }

  Vector Random(int n, float scale = 1) {
    Vector x(static_cast<size_t>(n));
    for (float& f : x) f = scale * std::normal_distribution<float>()(random_);
    return x;
  }

  // Heads of very different lengths: 1, some, many.
  void Fill() {
    const int32_t lengths[kHeads] = {1, 77, 900};
    LayerKv kv;
    kv.n_kv_heads = kHeads, kv.head_dim = GetParam().dim, kv.capacity = 900;
    const int64_t n = int64_t{kHeads} * 900;
    ASSERT_TRUE(kv.keys.Allocate(nullptr, n * GetParam().dim, "test").ok());
    ASSERT_TRUE(kv.values.Allocate(nullptr, n * GetParam().dim, "test").ok());
    ASSERT_TRUE(kv.positions.Allocate(nullptr, n, "test").ok());
    std::vector<uint32_t> seen(static_cast<size_t>(n));
    for (int g = 0; g < kHeads; ++g) {
      kv.len.push_back(lengths[g]);
      for (int32_t i = 0; i < lengths[g]; ++i) {
        const Vector k = Random(GetParam().dim), v = Random(GetParam().dim);
        std::copy(k.begin(), k.end(), kv.Keys(g) + int64_t{i} * GetParam().dim);
        std::copy(v.begin(), v.end(), kv.Values(g) + int64_t{i} * GetParam().dim);
        kv.Positions(g)[i] = 1000 - 1 - (lengths[g] - 1 - i);
        seen[static_cast<size_t>(g * 900 + i)] =
            random_() | 1u << (random_() % static_cast<uint32_t>(GetParam().group));
      }
    }
    ASSERT_TRUE(cache_->Store(0, kv, nullptr, 900, GetParam().seen ? seen.data() : nullptr).ok());
    for (int step = 0; step < 40; ++step) {  // tails wrap, holes are filled
      ASSERT_TRUE(cache_->ReserveStep().ok());
      for (int g = 0; g < kHeads; ++g) {
        cache_->Append(0, g, Random(GetParam().dim).data(), Random(GetParam().dim).data(), 1000 + step);
        if (GetParam().ordered && g > 0)
          cache_->Remove(0, g,
                         static_cast<int32_t>(random_() % static_cast<uint32_t>(cache_->Len(0, g) - 1)));
        cache_->Settle(0, g);
      }
    }
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

  // Probabilities of query head h by rank, and its output.
  void Dense(const Vector& q, int h, std::vector<double>* p, std::vector<double>* out) {
    const Case& c = GetParam();
    const int g = h / c.group;
    const int32_t n = cache_->Len(0, g), newest = cache_->PositionAt(0, g, n - 1);
    const float* qh = q.data() + h * c.dim;
    const std::vector<double> turned_q =
        c.rotation == KeyRotation::kStored ? std::vector<double>(qh, qh + c.dim)
                                           : Turned(qh, c.rotation == KeyRotation::kByRank ? n - 1 : newest);
    p->assign(static_cast<size_t>(n), 0.0);
    out->assign(static_cast<size_t>(c.dim), 0.0);
    Vector k(static_cast<size_t>(c.dim)), v(static_cast<size_t>(c.dim));
    double sum = 0;
    for (int32_t r = 0; r < n; ++r) {
      const int32_t position = cache_->PositionAt(0, g, r);
      if (c.window > 0 && position <= newest - c.window) continue;
      if (c.seen && (cache_->SeenAt(0, g, r) >> (h % c.group) & 1) == 0) continue;
      cache_->ReadKey(0, g, r, k.data());
      const std::vector<double> key =
          c.rotation == KeyRotation::kStored
              ? std::vector<double>(k.begin(), k.end())
              : Turned(k.data(), c.rotation == KeyRotation::kByRank ? r : position);
      double logit = 0;
      for (int32_t x = 0; x < c.dim; ++x)
        logit += key[static_cast<size_t>(x)] * turned_q[static_cast<size_t>(x)];
      sum += (*p)[static_cast<size_t>(r)] = std::exp(logit * 0.25);
    }
    for (int32_t r = 0; r < n; ++r) {
      (*p)[static_cast<size_t>(r)] /= sum;
      cache_->ReadValue(0, g, r, v.data());
      for (int32_t x = 0; x < c.dim; ++x)
        (*out)[static_cast<size_t>(x)] += (*p)[static_cast<size_t>(r)] * v[static_cast<size_t>(x)];
    }
  }

  Vector Run(const Vector& q, ThreadPool* pool, bool want_probabilities) {
    const Case& c = GetParam();
    const OpContext ops{&BestKernels(), pool};
    Vector out(q.size(), -7.0f), rotated(q.size());
    const AttendArgs args{ops,        *cache_,  0,         q.data(),
                          out.data(), 0.25f,    c.window,  want_probabilities,
                          c.rotation, &angles_, c.pairing, rotated.data()};
    Attend(args, &workspace_);
    return out;
  }

  std::mt19937 random_{23};
  std::shared_ptr<MemoryMeter> meter_ = std::make_shared<MemoryMeter>(0);
  std::unique_ptr<ThreadPool> pool_;
  CacheConfig config_;
  std::unique_ptr<KvCache> cache_;
  Rope rope_;
  AngleTable angles_;
  AttendWorkspace workspace_;
};

TEST_P(AttendCases, IsTheDenseSoftmax) {
  const Case& c = GetParam();
  Fill();
  for (int round = 0; round < 3 && !HasFatalFailure(); ++round) {
    const Vector q = Random(kHeads * c.group * c.dim, round == 2 ? 20.0f : 1.0f);  // the last: nearly one-hot
    const Vector out = Run(q, pool_.get(), true);
    for (int h = 0; h < kHeads * c.group; ++h) {
      std::vector<double> p, expected;
      Dense(q, h, &p, &expected);
      for (int32_t x = 0; x < c.dim; ++x)
        ASSERT_NEAR(out[static_cast<size_t>(h * c.dim + x)], expected[static_cast<size_t>(x)], 2e-4)
            << "head " << h;
      Vector ranked(p.size());
      cache_->ToRankOrder(0, h / c.group, workspace_.Probabilities(h), ranked.data());
      for (size_t r = 0; r < p.size(); ++r)
        ASSERT_NEAR(ranked[r], p[r], 2e-5) << "head " << h << " rank " << r;
    }
  }
}

TEST_P(AttendCases, DoesNotDependOnThreadsOrOnWhatElseIsWanted) {
  Fill();
  const Vector q = Random(kHeads * GetParam().group * GetParam().dim);
  auto one = ThreadPool::Create(1);
  ASSERT_TRUE(one.ok());
  const Vector expected = Run(q, one.value().get(), false);
  EXPECT_EQ(Run(q, pool_.get(), false), expected);
  EXPECT_EQ(Run(q, pool_.get(), true), expected);
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
        Case{"f32_ordered", KvType::kF32, 2, 16, 16, 0, true, false, 0, kStored, kHalf},
        Case{"window", KvType::kF32, 2, 16, 16, 0, false, false, 100, kStored, kHalf},
        Case{"window_of_one", KvType::kF16, 2, 16, 16, 0, true, false, 1, kStored, kHalf},
        Case{"seen", KvType::kF16, 4, 16, 16, 0, false, true, 0, kStored, kHalf},
        Case{"by_rank", KvType::kF16, 2, 16, 16, 0, true, false, 0, kRank, kHalf},
        Case{"by_rank_int8_tail", KvType::kInt8, 2, 16, 16, 5, true, false, 0, kRank, kPairs},
        Case{"by_position_seen", KvType::kF32, 2, 16, 16, 0, false, true, 0, kPosition, kPairs}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace kvc

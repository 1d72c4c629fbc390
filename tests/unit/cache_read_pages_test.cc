// Steps that read a part of what a head holds (docs/methods.md 2.24): which pages, and what attention gives,
// against the definition in double; and the bounds that pages know of their keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "tests/support/test_device.h"

namespace kvc {
namespace {

constexpr int kHeads = 3;
constexpr float kScale = 0.25f;

struct Case {
  std::string name;
  KvType type;
  int32_t group, dim, page_slots, ring_slots;
  GroupKind by;
  bool key_channels = false;

  int32_t quant_group() const { return type < KvType::kInt8 ? 0 : 8; }
};

class ReadPages : public testing::TestWithParam<Case> {
 protected:
  using Vector = std::vector<float>;

  void SetUp() override {
    const Case& c = GetParam();
    test::UniformLayout layout;
    layout.n_kv_heads = kHeads, layout.group = c.group, layout.head_dim = c.dim,
    layout.page_slots = c.page_slots, layout.key_bounds = true;
    layout.type = c.type, layout.quant_group = c.quant_group(), layout.ring_slots = c.ring_slots;
    if (c.key_channels) layout.coding = EntryCoding::kKeyChannels, layout.settle = c.page_slots;
    auto cache = KvCache::Create(layout.Make(), memory_.arenas());
    ASSERT_TRUE(cache.ok());
    cache_ = std::move(cache.value());
    rope_ = Rope(RopeConfig{}, c.dim);
    test::HostLayer kv(kHeads, c.dim, 700);
    kv.len = {1, 77, 700};
    for (int g = 0; g < kHeads; ++g) {
      const int32_t n = kv.len[static_cast<size_t>(g)];
      for (int32_t i = 0; i < n; ++i) {
        const Vector k = Random(c.dim), v = Random(c.dim);
        std::copy(k.begin(), k.end(), kv.Key(g, i)), std::copy(v.begin(), v.end(), kv.Value(g, i));
        kv.Position(g, i) = position_ - n + i;
      }
    }
    ASSERT_TRUE(memory_.Store(cache_.get(), 0, kv).ok());
    for (int step = 0; step < 40; ++step) Step({});  // pages fill up, rings go around
  }

  Vector Random(int n) {
    Vector x(static_cast<size_t>(n));
    for (float& f : x) f = std::normal_distribution<float>()(random_);
    return x;
  }

  // One more token; `between` before entries leave the ring.
  Vector Step(StepPlan plan, const std::function<void()>& between = {}) {
    const Case& c = GetParam();
    plan.ends_later = true;
    token_ = {0,
              position_++,
              Random(kHeads * c.group * c.dim),
              Random(kHeads * c.dim),
              Random(kHeads * c.dim),
              &rope_,
              RopePairing::kHalf,
              kScale,
              0,
              {}};
    EXPECT_TRUE(step_.Ensure(cache_.get(), false).ok());
    const Vector out = step_.Run(*cache_, plan, token_, between);
    step_.Done(cache_.get());
    return out;
  }

  std::vector<double> Query(int32_t h) const {
    const int32_t d = GetParam().dim;
    std::vector<float> cos(static_cast<size_t>(d / 2)), sin(cos);
    rope_.Angles(token_.position, cos.data(), sin.data());
    std::vector<double> q(static_cast<size_t>(d));
    for (int32_t j = 0; j < d / 2; ++j) {
      const size_t i = static_cast<size_t>(j), a = static_cast<size_t>(h * d + j),
                   b = a + static_cast<size_t>(d / 2);
      q[i] = double{token_.q[a]} * cos[i] - double{token_.q[b]} * sin[i];
      q[i + static_cast<size_t>(d / 2)] = double{token_.q[b]} * cos[i] + double{token_.q[a]} * sin[i];
    }
    return q;
  }

  // Whether each of the n entries of a head is read, as it is defined: entries of main in pages by their
  // order, the last page, and of the others those with the largest bounds.
  std::vector<bool> Read(test::HostLayer& cached, int32_t g, int32_t main, int32_t reads) const {
    const Case& c = GetParam();
    const int32_t n = cached.len[static_cast<size_t>(g)], slots = c.page_slots,
                  n_pages = (main + slots - 1) / slots, most = std::max(reads / slots, 1);
    std::vector<bool> read(static_cast<size_t>(n), true);
    if (reads == 0 || n_pages <= most) return read;
    std::vector<std::pair<double, int32_t>> order;
    for (int32_t page = 0; page + 1 < n_pages; ++page) {
      double bound = 0;
      for (int32_t h = 0; h < c.group; ++h) {
        const std::vector<double> q = Query(g * c.group + h);
        double own = 0;
        for (int32_t j = 0; j < c.dim; ++j) {
          double most_of_channel = -INFINITY;
          for (int32_t i = page * slots; i < (page + 1) * slots; ++i)
            most_of_channel = std::max(most_of_channel, q[static_cast<size_t>(j)] * cached.Key(g, i)[j]);
          own += most_of_channel;
        }
        bound = h == 0 ? own : c.by == GroupKind::kMax ? std::max(bound, own) : bound + own;
      }
      order.push_back({-bound, page});
    }
    std::sort(order.begin(), order.end());
    for (size_t i = static_cast<size_t>(most - 1); i < order.size(); ++i) {
      for (int32_t x = order[i].second * slots; x < (order[i].second + 1) * slots; ++x)
        read[static_cast<size_t>(x)] = false;
    }
    return read;
  }

  // What the newest token's attention was, and what it gave.
  void ExpectAttention(test::HostLayer& cached, const std::vector<bool>& read, int32_t g, int32_t h,
                       const Vector& attention, const Vector& out) const {
    const int32_t d = GetParam().dim, n = cached.len[static_cast<size_t>(g)];
    const std::vector<double> q = Query(h);
    std::vector<double> p(static_cast<size_t>(n), 0.0), sum_of_values(static_cast<size_t>(d), 0.0);
    double sum = 0;
    for (int32_t i = 0; i < n; ++i) {
      if (!read[static_cast<size_t>(i)]) continue;
      double z = 0;
      for (int32_t j = 0; j < d; ++j) z += q[static_cast<size_t>(j)] * cached.Key(g, i)[j];
      sum += p[static_cast<size_t>(i)] = std::exp(z * double{kScale});
    }
    for (int32_t i = 0; i < n; ++i) {
      p[static_cast<size_t>(i)] /= sum;
      for (int32_t j = 0; j < d; ++j)
        sum_of_values[static_cast<size_t>(j)] += p[static_cast<size_t>(i)] * cached.Value(g, i)[j];
      ASSERT_NEAR(attention[static_cast<size_t>(i)], p[static_cast<size_t>(i)], 2e-5) << "entry " << i;
      ASSERT_EQ(attention[static_cast<size_t>(i)] > 0, read[static_cast<size_t>(i)]) << "entry " << i;
    }
    for (int32_t j = 0; j < d; ++j)
      ASSERT_NEAR(out[static_cast<size_t>(h * d + j)], sum_of_values[static_cast<size_t>(j)], 2e-4);
  }

  // Every page that is full: its bounds are those of the keys that it holds.
  void ExpectBounds(const char* when) {
    SCOPED_TRACE(when);
    const CacheView& view = cache_->view();
    const KernelTable& kernels = ReferenceKernels();
    int32_t n_full = 0;
    for (int32_t g = 0; g < kHeads; ++g) {
      const int32_t format = cache_->layout().heads[static_cast<size_t>(g)].main;
      const PageFormat& f = cache_->layout().formats[static_cast<size_t>(format)];
      for (int32_t page = 0; (page + 1) * f.slots <= view.len[g]; ++page, ++n_full) {
        const std::vector<uint8_t> bytes =
            memory_.Read(view.bases[format] + view.pages[g * view.page_stride + page] * f.bytes, f.bytes);
        std::vector<float> keys(static_cast<size_t>(f.slots * f.d)), bounds(static_cast<size_t>(2 * f.d));
        const auto halves = [&](int64_t at) { return reinterpret_cast<const uint16_t*>(bytes.data() + at); };
        if (f.coding == EntryCoding::kKeyChannels) {
          kernels.decode_key_block(f.type, bytes.data() + f.keys, halves(f.channel_scales), f.slots, f.d,
                                   keys.data());
        } else {
          kernels.decode_vectors(f.key_vectors(), bytes.data() + f.keys, halves(f.key_scales), f.slots,
                                 keys.data());
        }
        kernels.decode_vectors(f.bound_format(), bytes.data() + f.bounds, nullptr, 2, bounds.data());
        for (int32_t j = 0; j < f.d; ++j) {
          float greatest = -INFINITY, least = INFINITY;
          for (int32_t i = 0; i < f.slots; ++i) {
            greatest = std::max(greatest, keys[static_cast<size_t>(i * f.d + j)]);
            least = std::min(least, keys[static_cast<size_t>(i * f.d + j)]);
          }
          ASSERT_EQ(bounds[static_cast<size_t>(j)], greatest)
              << "head " << g << " page " << page << " channel " << j;
          ASSERT_EQ(bounds[static_cast<size_t>(f.d + j)], least)
              << "head " << g << " page " << page << " channel " << j;
        }
      }
    }
    EXPECT_GT(n_full, 700 / 64);
  }

  std::mt19937 random_{29};
  int32_t position_ = 1000;
  test::TestDevice memory_;
  std::unique_ptr<KvCache> cache_;
  Rope rope_;
  test::TokenStep step_{&memory_};
  test::TokenInput token_;
};

TEST_P(ReadPages, AreThoseThatCouldMatterMost) {
  const Case& c = GetParam();
  int n_unread = 0;
  for (const int32_t reads :
       {1, c.page_slots, 5 * c.page_slots - 1, 12 * c.page_slots, 40 * c.page_slots, 1 << 24}) {
    for (int round = 0; round < 3 && !HasFatalFailure(); ++round) {
      SCOPED_TRACE(Format("%d entries, round %d", reads, round));
      const int64_t stride = cache_->MaxLen() + 1;
      DeviceBuffer<float> attention;
      ASSERT_TRUE(attention.Allocate(memory_.own(), kHeads * c.group * stride, "test").ok());
      StepPlan plan;
      plan.reads = reads, plan.reads_group = c.by;
      plan.attention = attention.at(), plan.attention_stride = stride;
      test::HostLayer cached;
      int32_t main[kHeads];
      const Vector out = Step(plan, [&] {
        cached = memory_.Load(*cache_, 0);
        std::copy_n(cache_->view().len, kHeads, main);
      });
      for (int32_t g = 0; g < kHeads; ++g) {
        const std::vector<bool> read = Read(cached, g, main[g], reads);
        n_unread += static_cast<int>(std::count(read.begin(), read.end(), false));
        for (int32_t h = g * c.group; h < (g + 1) * c.group && !HasFatalFailure(); ++h)
          ExpectAttention(cached, read, g, h, memory_.Read(attention.at() + h * stride, stride), out);
      }
    }
  }
  EXPECT_GT(n_unread, 1000);
}

// Layers before the first that reads a part, and heads whose keys are turned when they are read.
TEST_P(ReadPages, WhereAllIsReadNothingIsChosen) {
  const auto out_of = [&](const StepPlan& plan, bool rotated) {
    auto fork = cache_->Fork();
    EXPECT_TRUE(fork.ok() && step_.Ensure(fork.value().get(), false).ok());
    memory_.Load(*fork.value(), 0);
    for (int32_t g = 0; g < kHeads; ++g) fork.value()->set_rotated(g, rotated);
    return step_.Run(*fork.value(), plan, token_);
  };
  StepPlan all, part, later;
  part.reads = later.reads = GetParam().page_slots;
  later.reads_from = 1;
  EXPECT_NE(out_of(part, true), out_of(all, true));
  EXPECT_EQ(out_of(later, true), out_of(all, true));
  if (!GetParam().key_channels) {
    EXPECT_EQ(out_of(part, false), out_of(all, false));
  }
}

TEST_P(ReadPages, KnowTheBoundsOfTheirKeys) {
  const Case& c = GetParam();
  ExpectBounds("a prompt and steps");
  const std::vector<int32_t> first = memory_.Load(*cache_, 0).len;
  test::HostLayer more(kHeads, c.dim, 900);
  for (int32_t g = 0; g < kHeads; ++g) {
    more.len[static_cast<size_t>(g)] = first[static_cast<size_t>(g)] + 70;
    for (int32_t i = first[static_cast<size_t>(g)]; i < more.len[static_cast<size_t>(g)]; ++i) {
      const Vector k = Random(c.dim), v = Random(c.dim);
      std::copy(k.begin(), k.end(), more.Key(g, i)), std::copy(v.begin(), v.end(), more.Value(g, i));
      more.Position(g, i) = position_ + i - first[static_cast<size_t>(g)];
    }
  }
  ASSERT_TRUE(memory_.AppendFrom(cache_.get(), 0, more, first).ok());
  ExpectBounds("entries behind others");
  ASSERT_TRUE(cache_->KeepNewest(memory_.stream(), 1, 90).ok() || c.ring_slots > 0);
  ExpectBounds("a head that keeps its newest entries");
  if (c.key_channels) return;  // no key of those leaves alone
  const int64_t stride = cache_->MaxSlots() + 1;
  for (int n = 0; n < 3; ++n) {
    std::vector<uint8_t> marks(static_cast<size_t>(kHeads * stride), 1);
    for (int g = 1; g < kHeads; ++g) {
      for (int i = 0; i < 9; ++i)
        marks[static_cast<size_t>(g * stride) + random_() % static_cast<uint32_t>(cache_->Len(g) - 1)] = 0;
    }
    memory_.Evict(cache_.get(), 0, marks, stride, {0, 1, 1}, {&rope_, RopePairing::kHalf, false});
    ExpectBounds("entries that left");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReadPages,
                         testing::Values(Case{"f32", KvType::kF32, 2, 16, 16, 0, GroupKind::kMax},
                                         Case{"f16_128", KvType::kF16, 5, 128, 16, 0, GroupKind::kMax},
                                         Case{"f16_256", KvType::kF16, 2, 256, 16, 0, GroupKind::kMean},
                                         Case{"f32_odd_dim", KvType::kF32, 2, 18, 16, 0, GroupKind::kMax},
                                         Case{"bf16_group_12", KvType::kBf16, 12, 80, 16, 0, GroupKind::kMax},
                                         Case{"f32_group_9", KvType::kF32, 9, 32, 16, 0, GroupKind::kMean},
                                         Case{"f16", KvType::kF16, 4, 64, 16, 0, GroupKind::kMean},
                                         Case{"f16_mqa", KvType::kF16, 8, 24, 16, 0, GroupKind::kMax},
                                         Case{"bf16_mha", KvType::kBf16, 1, 32, 16, 0, GroupKind::kSum},
                                         Case{"f32_wide_pages", KvType::kF32, 3, 16, 64, 0, GroupKind::kMax},
                                         Case{"int8_ring", KvType::kInt8, 2, 32, 16, 9, GroupKind::kMax},
                                         Case{"int4_ring", KvType::kInt4, 2, 16, 16, 33, GroupKind::kSum},
                                         Case{"int8_key_channels", KvType::kInt8, 2, 32, 32, 40,
                                              GroupKind::kMax, true}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvc

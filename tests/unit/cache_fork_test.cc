// Caches that share pages, step by step: forks, and the place that layers have together for a token's entry.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_device.h"
#include "tests/support/uniform_layout.h"

namespace kvc {
namespace {

using test::HostLayer;
using Vector = std::vector<float>;
constexpr int kDim = 8;

struct LateKind {
  const char* name;
  EntryCoding coding;
  KvType type;
  int32_t page_slots, ring_slots, settle;
};

class KvCacheFork : public testing::TestWithParam<LateKind> {
 protected:
  void Steps(KvCache* cache, int32_t first, int32_t end) {
    const auto vector = [this] {
      Vector x(kDim);
      for (float& f : x) f = std::normal_distribution<float>()(random_);
      return x;
    };
    for (int32_t t = first; t < end; ++t) {
      ASSERT_TRUE(step_.Ensure(cache, false).ok());
      step_.Run(*cache, {}, {0, t, vector(), vector(), vector(), &none_});
      step_.Done(cache);
      ExpectPagesOfEntries(*cache);
    }
  }
  // The pages that a step finds are those that its entries need: also where a block that was taken apart is
  // filled up. How many directions will come is not known before.
  static void ExpectPagesOfEntries(const KvCache& cache) {
    const CacheLayout& layout = cache.layout();
    if (layout.directions >= 0) return;
    const int64_t pages = (cache.view().len[0] + layout.page_slots - 1) / layout.page_slots;
    ASSERT_EQ(cache.bytes(), pages * PageBytes(layout, 0) + RingBytes(layout, 0));
  }
  void ExpectSame(const HostLayer& a, const HostLayer& b) {
    ASSERT_EQ(a.positions, b.positions);
    ASSERT_EQ(a.keys, b.keys);
    ASSERT_EQ(a.values, b.values);
  }

  std::mt19937 random_{3};
  test::TestDevice memory_{2, ReferenceKernels()};
  test::TokenStep step_{&memory_};
  const Rope none_ = Rope::None(kDim);
};

// Steps write only pages of their own, also when they are the first to store what was in the ring for a
// while: after a rewind, or where many entries are stored together.
TEST_P(KvCacheFork, StepsLeaveTheOthersAlone) {
  constexpr int32_t kTokens = 45;
  const LateKind& kind = GetParam();
  test::UniformLayout layout;
  layout.head_dim = kDim, layout.page_slots = kind.page_slots, layout.coding = kind.coding,
  layout.type = kind.type;
  layout.quant_group = 8, layout.ring_slots = kind.ring_slots, layout.settle = kind.settle;
  layout.theta_key = layout.theta_value = 0.5f;
  auto made = KvCache::Create(layout.Make(), memory_.arenas());
  ASSERT_TRUE(made.ok());
  KvCache& cache = *made.value();
  Steps(&cache, 0, kTokens);
  const HostLayer before = memory_.Load(cache, 0);
  for (int32_t rewound = 0; rewound < 20 && !HasFatalFailure(); ++rewound) {
    SCOPED_TRACE(rewound);
    auto left = cache.Fork(), right = cache.Fork();
    ASSERT_TRUE(left.ok() && right.ok());
    ASSERT_TRUE(left.value()->RewindTo(memory_.stream(), kTokens - rewound).ok());
    Steps(left.value().get(), kTokens - rewound, kTokens + 30);
    ExpectSame(memory_.Load(*right.value(), 0), before);
    const HostLayer left_before = memory_.Load(*left.value(), 0);
    Steps(right.value().get(), kTokens, kTokens + 30);
    ExpectSame(memory_.Load(*left.value(), 0), left_before);
    ExpectSame(memory_.Load(cache, 0), before);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, KvCacheFork,
    testing::Values(LateKind{"int8", EntryCoding::kVectors, KvType::kInt8, 64, 9, 1},
                    LateKind{"int4", EntryCoding::kVectors, KvType::kInt4, 16, 1, 1},
                    LateKind{"int4_at_once", EntryCoding::kVectors, KvType::kInt4, 16, 0, 1},
                    LateKind{"channels", EntryCoding::kKeyChannels, KvType::kInt8, 16, 23, 16},
                    LateKind{"codebook", EntryCoding::kCodebook, KvType::kF32, 64, 12, 6}),
    [](const auto& kind) { return std::string(kind.param.name); });

// A token's entry stays as it is until its layer's step is done, and layers take their steps one after the
// other: a place a KV head is enough for all of them, in the cache and in each of its forks.
TEST(KvCache, LayersShareThePlaceOfAnEntryThatIsNotCodedYet) {
  constexpr int32_t kThree = 3, kTwo = 2, kTokens = 21;
  for (const int32_t ring_slots : {1, 5}) {
    SCOPED_TRACE(ring_slots);
    test::TestDevice memory(2, ReferenceKernels());
    test::UniformLayout uniform;
    uniform.n_layers = kThree, uniform.n_kv_heads = kTwo, uniform.head_dim = kDim, uniform.page_slots = 4;
    uniform.type = KvType::kInt4, uniform.quant_group = 8, uniform.ring_slots = ring_slots;
    const std::shared_ptr<const CacheLayout> layout = uniform.Make();
    auto made = KvCache::Create(layout, memory.arenas());
    ASSERT_TRUE(made.ok());
    test::TokenStep step(&memory);
    const Rope none = Rope::None(kDim);
    const auto steps = [&](KvCache* cache, int32_t first, int32_t end) {
      for (int32_t t = first; t < end; ++t) {
        ASSERT_TRUE(step.Ensure(cache, false).ok());
        for (int32_t layer = 0; layer < kThree; ++layer) {
          const Vector x(kTwo * kDim, static_cast<float>(100 * layer + t));
          step.Run(*cache, {}, {layer, t, x, x, x, &none});
        }
        step.Done(cache);
      }
    };
    const auto expect_whole = [&](const KvCache& cache, int32_t n) {
      const int32_t coded = ring_slots == 1 ? n : n - (ring_slots - 1);
      const int64_t pages = int64_t{kThree * kTwo} * ((coded + 3) / 4) * PageBytes(*layout, 0),
                    rings = (ring_slots == 1 ? kTwo : kThree * kTwo) * RingBytes(*layout, 0);
      EXPECT_EQ(cache.bytes(), pages + rings);
      for (int32_t layer = 0; layer < kThree; ++layer) {
        HostLayer held = memory.Load(cache, layer);
        for (int g = 0; g < kTwo; ++g) {
          ASSERT_EQ(held.len[static_cast<size_t>(g)], n);
          for (int32_t i = 0; i < n; ++i)
            ASSERT_NEAR(held.KeyOf(g, i)[0], 100 * layer + i,
                        0.01f * static_cast<float>(100 * layer + i) + 1e-3f);
        }
      }
    };
    KvCache& cache = *made.value();
    steps(&cache, 0, kTokens);
    expect_whole(cache, kTokens);
    auto fork = cache.Fork();
    ASSERT_TRUE(fork.ok());
    steps(fork.value().get(), kTokens, kTokens + 5);
    steps(&cache, kTokens, kTokens + 9);
    expect_whole(cache, kTokens + 9);
    expect_whole(*fork.value(), kTokens + 5);
    fork.value().reset();
    steps(&cache, kTokens + 9, kTokens + 10);
    expect_whole(cache, kTokens + 10);
    cache.Clear();
    EXPECT_EQ(cache.bytes(), 0);
    steps(&cache, 0, 6);
    expect_whole(cache, 6);
  }
}

}  // namespace
}  // namespace kvc

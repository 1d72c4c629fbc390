// Caches that share pages, step by step: forks, the place that layers have together for a token's entry, what
// is left where an operation fails in its middle, and files of entries that no cache holds.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "tests/support/heap_faults.h"
#include "tests/support/test_device.h"
#include "tests/support/uniform_layout.h"
#include "tests/support/watched_device.h"

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
      ExpectPagesOfEntries(*cache, false);
      step_.Run(*cache, {}, {0, t, vector(), vector(), vector(), &none_});
      step_.Done(cache);
      ExpectPagesOfEntries(*cache, true);
    }
  }
  // Behind a step there are the pages that its entries need: also where a block that was taken apart was
  // filled up. In front of one that codes nothing there are no pages for directions that did not come.
  static void ExpectPagesOfEntries(const KvCache& cache, bool behind) {
    const CacheLayout& layout = cache.layout();
    const CacheView& view = cache.view();
    const auto pages = [&](int32_t n) { return int64_t{(n + layout.page_slots - 1) / layout.page_slots}; };
    int64_t bytes = pages(view.len[0]) * PageBytes(layout, 0) + RingBytes(layout, 0);
    if (layout.directions >= 0) {
      if (behind || RingLen(view, 0) + 1 >= cache.ring_slots()) return;
      bytes += (pages(view.book_len[0]) + pages(view.book_len[1])) * DirectionBytes(layout);
    } else if (!behind) {
      return;
    }
    ASSERT_EQ(cache.bytes(), bytes);
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
                    LateKind{"codebook", EntryCoding::kCodebook, KvType::kF32, 64, 12, 6},
                    LateKind{"codebook_in_small_pages", EntryCoding::kCodebook, KvType::kF32, 4, 12, 6}),
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

// The processor, of which an operation fails once, so many calls from now: below 0 none.
class Failing final : public test::WatchedDevice {
 public:
  using WatchedDevice::WatchedDevice;
  Status StorePlain(Stream* s, const StorePlainArgs& args) override {
    KVC_RETURN_IF_ERROR(Fail(&plain_fails));
    return WatchedDevice::StorePlain(s, args);
  }
  Status StoreLayer(Stream* s, const StoreArgs& args) override {
    KVC_RETURN_IF_ERROR(Fail(&store_fails));
    return WatchedDevice::StoreLayer(s, args);
  }
  Status KeepNewest(Stream* s, const KeepNewestArgs& args) override {
    KVC_RETURN_IF_ERROR(Fail(&newest_fails));
    return WatchedDevice::KeepNewest(s, args);
  }
  int plain_fails = -1, store_fails = -1, newest_fails = -1;

 private:
  static Status Fail(int* calls) {
    if (*calls < 0 || --*calls >= 0) return {};
    return Error(Code::kDevice, "the device failed");
  }
};

// A cache of two heads that share directions, with some vectors that wait, and layers whose vectors do not.
class KvCacheFaults : public testing::TestWithParam<bool> {
 protected:
  static constexpr int32_t kHeads = 2, kFirst = 40;
  KvCacheFaults() {
    test::UniformLayout uniform;
    uniform.n_kv_heads = kHeads, uniform.head_dim = kDim, uniform.page_slots = 16;
    uniform.coding = EntryCoding::kCodebook, uniform.theta_key = uniform.theta_value = 0.999f;
    uniform.ring_slots = 12, uniform.settle = 6, uniform.ring_type = KvType::kF32;
    uniform.may_be_plain = true, uniform.layer_books = GetParam();
    layout_ = uniform.Make();
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int g = 0; g < kHeads; ++g) {
      for (int32_t i = 0; i < kFirst; ++i) {
        alike_.Position(g, i) = apart_.Position(g, i) = i;
        alike_.Key(g, i)[i % 2] = alike_.Value(g, i)[i % 3] = static_cast<float>(1 + i);
        for (int x = 0; x < kDim; ++x)
          apart_.Key(g, i)[x] = normal(random), apart_.Value(g, i)[x] = normal(random);
      }
    }
  }
  std::unique_ptr<KvCache> Stored(const HostLayer& layer) {
    auto cache = std::move(KvCache::Create(layout_, memory_.arenas()).value());
    EXPECT_TRUE(memory_.Store(cache.get(), 0, layer).ok());
    return cache;
  }
  void Step(KvCache* cache, int32_t t) {
    std::mt19937 random(static_cast<uint32_t>(t));
    std::normal_distribution<float> normal;
    Vector k(kHeads * kDim), v(kHeads * kDim);
    for (Vector* x : {&k, &v}) {
      for (float& f : *x) f = normal(random);
    }
    ASSERT_TRUE(steps_.Ensure(cache, false).ok());
    steps_.Run(*cache, {}, {0, t, Vector(kHeads * kDim), k, v, &none_});
    steps_.Done(cache);
  }

  Failing* const failing_ = new Failing(std::move(OpenDevice("cpu", 2).value()));
  test::TestDevice memory_{std::unique_ptr<Device>(failing_)};
  test::TokenStep steps_{&memory_};
  const Rope none_ = Rope::None(kDim);
  std::shared_ptr<const CacheLayout> layout_;
  HostLayer alike_{kHeads, kDim, kFirst}, apart_{kHeads, kDim, kFirst};
};

// What the new content took is given back, what was there is there again: lengths, pages, rings and
// directions, in codes or as vectors.
TEST_P(KvCacheFaults, AStoreThatFailsInItsMiddleChangesNothing) {
  for (const bool codes : {true, false}) {
    auto cache = Stored(codes ? alike_ : apart_);
    for (int32_t t = kFirst; t < kFirst + 3; ++t) Step(cache.get(), t);
    ASSERT_EQ(cache->stored(0) == kStoredMain, codes);
    if (!codes) cache->set_rotated(1, true);  // the new ones are not
    const std::vector<uint8_t> before = test::Saved(cache.get(), memory_.stream());
    const int64_t bytes = cache->bytes();
    failing_->store_fails = 0;
    EXPECT_EQ(memory_.Store(cache.get(), 0, codes ? apart_ : alike_).code(), Code::kDevice);
    ASSERT_EQ(failing_->store_fails, -1);
    EXPECT_TRUE(test::Saved(cache.get(), memory_.stream()) == before) << codes;
    EXPECT_EQ(cache->bytes(), bytes);
    EXPECT_EQ(cache->LayerBytes(0), bytes);
    for (int32_t t = kFirst + 3; t < kFirst + 30; ++t) Step(cache.get(), t);
    EXPECT_EQ(cache->Len(1), kFirst + 30);
    cache.reset();
    EXPECT_EQ(memory_.meter()->used(), 0);
  }
}

// A head that could not become vectors is as it was, and nothing stays of the pages that it would have had.
// Heads that share directions become vectors together: where the second could not, it does at the next try,
// whether or not it is about to code something itself.
TEST_P(KvCacheFaults, AHeadThatDoesNotTurnDoesSoLater) {
  for (int32_t i = 0; i < 10; ++i) {
    const int turned = i % 2;  // before a head cannot
    auto cache = Stored(alike_);
    for (int32_t t = kFirst; t < kFirst + 5; ++t) Step(cache.get(), t);
    // As where its entries left one by one: the first head settles later.
    cache->view().ring[kRingLen] = i / 2;
    for (int32_t t = kFirst + 5; cache->stored(0) == kStoredMain; ++t) {
      ASSERT_LT(t, kFirst + 200);
      const std::vector<uint8_t> before = test::Saved(cache.get(), memory_.stream());
      const int64_t bytes = cache->bytes();
      failing_->plain_fails = turned;
      if (!steps_.Ensure(cache.get(), false).ok()) {
        EXPECT_EQ(test::Saved(cache.get(), memory_.stream()) == before, turned == 0) << t;
        if (turned == 0) {
          EXPECT_EQ(cache->bytes(), bytes);
        }
        EXPECT_EQ(cache->LayerBytes(0), cache->bytes());
      }
      failing_->plain_fails = -1;
      Step(cache.get(), t);
      if (GetParam()) {
        EXPECT_EQ(cache->stored(0), cache->stored(1)) << t;
      }
    }
    cache.reset();
    EXPECT_EQ(memory_.meter()->used(), 0);
  }
}

// Pages that were taken before there was no memory for others go back, for steps and for a layer that is
// stored; and what the cache held it holds, whatever lists had grown.
TEST_P(KvCacheFaults, WithoutMemoryNothingChanges) {
  const auto layout = std::make_shared<CacheLayout>(*layout_);
  for (HeadFormat& head : layout->heads) head.plain = head.plain_all = -1;
  layout_ = layout;
  LayerBuffers layer;
  memory_.Upload(apart_, &layer);
  const std::vector<uint8_t> rotated(kHeads, 0);
  KvCache::StoreSpec spec{};
  spec.from = layer.view(), spec.turning.rope = &none_, spec.rotated = rotated.data();
  spec.stride = apart_.capacity, spec.kept = apart_.len.data();
  for (const bool steps : {true, false}) {
    bool failed = true;
    for (int64_t fault = 0; failed; ++fault) {
      ASSERT_LT(fault, 200);
      auto cache = Stored(alike_);
      const std::vector<uint8_t> before = test::Saved(cache.get(), memory_.stream());
      {
        DeviceBuffer<uint8_t> scratch;
        test::HeapFault heap(fault, test::HeapFault::kOne);
        try {
          static_cast<void>(steps ? cache->EnsureSteps(memory_.stream(), 100, false)
                                  : cache->Store(memory_.stream(), spec, &scratch));
        } catch (const std::bad_alloc&) {
        }
        failed = heap.fired();
      }
      EXPECT_EQ(test::Saved(cache.get(), memory_.stream()) == before, steps || failed) << fault;
      EXPECT_EQ(cache->bytes(), cache->LayerBytes(0)) << fault;
      for (int32_t t = kFirst; t < kFirst + 60; ++t) Step(cache.get(), t);
      cache.reset();
      ASSERT_EQ(memory_.meter()->used(), 0) << fault;
    }
  }
}

// The first head holds the directions of its layer, and goes last to vectors: one that will be coded without
// them is no head of a cache. Heads with directions of their own may hold what they like.
TEST_P(KvCacheFaults, CodesWithoutDirectionsToComeAreRefused) {
  constexpr int32_t kTokens = 5;  // all in the ring
  apart_.len = {kTokens, kTokens};
  const auto vectors = Stored(apart_), codes = std::move(KvCache::Create(layout_, memory_.arenas()).value());
  for (int32_t t = 0; t < kTokens; ++t) Step(codes.get(), t);
  ASSERT_EQ(vectors->stored(0), kStoredPlain);
  ASSERT_EQ(RingLen(codes->view(), 1), kTokens);
  const std::vector<uint8_t> of_codes = test::Saved(codes.get(), memory_.stream()),
                             of_vectors = test::Saved(vectors.get(), memory_.stream());
  // A byte for the cache, then the first head of the one and the second of the other.
  const auto first = of_vectors.begin() + static_cast<std::ptrdiff_t>(1 + (of_vectors.size() - 1) / 2),
             second = of_codes.begin() + static_cast<std::ptrdiff_t>(1 + (of_codes.size() - 1) / 2);
  std::vector<uint8_t> mixed(of_vectors.begin(), first);
  mixed.insert(mixed.end(), second, of_codes.end());
  MemorySource source({mixed.data(), mixed.size()});
  ArchiveReader in(&source, source.size());
  const auto restored = std::move(KvCache::Create(layout_, memory_.arenas()).value());
  const Status status = restored->RestoreFrom(in, memory_.stream(), kTokens, kTokens, true, false);
  EXPECT_EQ(status.code(), GetParam() ? Code::kBadModel : Code::kOk) << status.message();
}

INSTANTIATE_TEST_SUITE_P(Books, KvCacheFaults, testing::Bool(),
                         [](const auto& layer) { return layer.param ? "of_layers" : "of_heads"; });

// A cache of one head, whose entries have these positions, to a file and back.
class KvCacheFile : public testing::Test {
 protected:
  using Positions = std::vector<int32_t>;

  std::unique_ptr<KvCache> Holding(const Positions& positions) {
    auto cache = std::move(KvCache::Create(layout_, memory_.arenas()).value());
    HostLayer kv(1, kDim, static_cast<int64_t>(positions.size()));
    for (size_t i = 0; i < positions.size(); ++i) {
      kv.Position(0, static_cast<int64_t>(i)) = positions[i];
      std::fill_n(kv.Key(0, static_cast<int64_t>(i)), kDim, 1.0f);
      std::fill_n(kv.Value(0, static_cast<int64_t>(i)), kDim, 1.0f);
    }
    EXPECT_TRUE(memory_.Store(cache.get(), 0, kv).ok());
    return cache;
  }
  // Of a sequence of n_tokens, of which all from changed_at on are there.
  Code Restored(KvCache* cache, int32_t n_tokens, int32_t changed_at) {
    const std::vector<uint8_t> bytes = test::Saved(cache, memory_.stream());
    MemorySource source({bytes.data(), bytes.size()});
    ArchiveReader in(&source, source.size());
    return std::move(KvCache::Create(layout_, memory_.arenas()).value())
        ->RestoreFrom(in, memory_.stream(), n_tokens, changed_at, true, false)
        .code();
  }
  Code Restored(const Positions& positions, int32_t n_tokens, int32_t changed_at) {
    return Restored(Holding(positions).get(), n_tokens, changed_at);
  }
  // The number at an offset of the first page of main.
  void Patch(KvCache* cache, int64_t offset, int32_t value) {
    const CacheView& view = cache->view();
    const int32_t format = layout_->heads[0].main;
    const int64_t page = view.pages[0] * layout_->main(0).bytes;
    memory_.Write((view.bases[format] + page + offset).As<int32_t>(), std::vector<int32_t>{value});
  }
  void Use(const test::UniformLayout& uniform, int32_t window = 0) {
    layout_ = std::make_shared<CacheLayout>(*uniform.Make());
    if (window > 0) layout_->windows = {window};
  }

  test::TestDevice memory_{1, ReferenceKernels()};
  std::shared_ptr<CacheLayout> layout_;
};

TEST_F(KvCacheFile, EntriesThatNoSequenceHasAreRefused) {
  test::UniformLayout uniform;
  uniform.head_dim = kDim, uniform.page_slots = 16, uniform.ranks = true;
  Use(uniform);
  EXPECT_EQ(Restored({0, 1, 2, 4}, 5, 3), Code::kBadModel) << "3 came since the last change";
  EXPECT_EQ(Restored({0, 1, 2, 4}, 5, 4), Code::kOk);
  EXPECT_EQ(Restored({4, 0, 2, 1}, 5, 4), Code::kOk) << "in any order";
  EXPECT_EQ(Restored({0, 1, 1, 4}, 5, 4), Code::kBadModel) << "twice";
  EXPECT_EQ(Restored({0, 1, 2, 5}, 5, 5), Code::kBadModel) << "that did not come yet";
  EXPECT_EQ(Restored({-3, 3, 4}, 5, 3), Code::kBadModel) << "for others, which this cache does not have";
  layout_->has_rest = true;
  EXPECT_EQ(Restored({-3, 3, 4}, 5, 3), Code::kOk);
  EXPECT_EQ(Restored({-6, 3, 4}, 5, 3), Code::kBadModel) << "for more than there were";
  const auto cache = Holding({0, 1, 2, 3});
  EXPECT_EQ(Restored(cache.get(), 4, 4), Code::kOk);
  for (const int32_t rank : {-1, 1, 4}) {
    Patch(cache.get(), layout_->main(0).rank + 4 * 2, rank);
    EXPECT_EQ(Restored(cache.get(), 4, 4), Code::kBadModel) << "rank " << rank;
  }
}

// A layer with a window holds its newest, as many as the next token sees beside itself, by their order.
TEST_F(KvCacheFile, EntriesThatNoWindowHoldsAreRefused) {
  test::UniformLayout uniform;
  uniform.head_dim = kDim, uniform.page_slots = 16;
  Use(uniform, /*window=*/5);
  EXPECT_EQ(Restored({6, 7, 8, 9}, 10, 10), Code::kOk);
  EXPECT_EQ(Restored({7, 8, 9}, 10, 10), Code::kBadModel);
  EXPECT_EQ(Restored({0, 1, 2}, 3, 3), Code::kOk) << "all there are";
  EXPECT_EQ(Restored({4, 6, 7, 8, 9}, 10, 10), Code::kBadModel) << "a gap";
  EXPECT_EQ(Restored({6, 8, 7, 9}, 10, 10), Code::kBadModel) << "out of order";
  const auto cache = Holding({6, 7, 8, 9});
  cache->set_rotated(0, false);
  EXPECT_EQ(Restored(cache.get(), 10, 10), Code::kBadModel);
}

TEST_F(KvCacheFile, CodesOfDirectionsThatAreNotThereAreRefused) {
  test::UniformLayout uniform;
  uniform.head_dim = kDim, uniform.page_slots = 16, uniform.coding = EntryCoding::kCodebook;
  uniform.theta_key = uniform.theta_value = 0.9f;
  uniform.ring_slots = 12, uniform.settle = 6, uniform.ring_type = KvType::kF32;
  Use(uniform);
  const auto cache = Holding({0, 1, 2, 3});
  ASSERT_EQ(cache->view().book_len[0], 1);
  EXPECT_EQ(Restored(cache.get(), 4, 4), Code::kOk);
  const PageFormat& f = layout_->main(0);
  for (const int64_t part : {f.keys, f.values}) {
    const int64_t at = part + 2 * static_cast<int64_t>(sizeof(CodedVector));
    for (const int32_t ref : {-1, 1}) {
      Patch(cache.get(), at, ref);
      EXPECT_EQ(Restored(cache.get(), 4, 4), Code::kBadModel) << ref;
    }
    Patch(cache.get(), at, 0);
  }
  EXPECT_EQ(Restored(cache.get(), 4, 4), Code::kOk);
}

// The newest entries of a head alone: steps then find room behind them, whatever there was before.
TEST(KvCacheNewest, IsAHeadOfItsOwnPages) {
  Failing* const failing = new Failing(std::move(OpenDevice("cpu", 2).value()));
  test::TestDevice memory{std::unique_ptr<Device>(failing)};
  test::TokenStep step(&memory);
  const Rope none = Rope::None(kDim);
  test::UniformLayout uniform;
  uniform.head_dim = kDim, uniform.page_slots = 16, uniform.ranks = true;
  const auto layout = uniform.Make();
  auto cache = std::move(KvCache::Create(layout, memory.arenas()).value());
  const auto feed = [&](int32_t t) {
    const Vector x(kDim, static_cast<float>(t));
    ASSERT_TRUE(step.Ensure(cache.get(), false).ok());
    step.Run(*cache, {}, {0, t, x, x, x, &none});
    step.Done(cache.get());
  };
  for (int32_t t = 0; t < 36; ++t) feed(t);
  cache->set_rotated(0, false);
  failing->newest_fails = 0;
  EXPECT_EQ(cache->KeepNewest(memory.stream(), 0, 16).code(), Code::kDevice);
  EXPECT_EQ(cache->Len(0), 36);
  EXPECT_EQ(cache->bytes(), 3 * PageBytes(*layout, 0));
  ASSERT_TRUE(cache->KeepNewest(memory.stream(), 0, 16).ok());
  EXPECT_EQ(cache->bytes(), PageBytes(*layout, 0));
  EXPECT_FALSE(cache->rotated(0));
  for (int32_t t = 36; t < 40; ++t) feed(t);
  EXPECT_EQ(cache->bytes(), 2 * PageBytes(*layout, 0));
  HostLayer got = memory.Load(*cache, 0);
  ASSERT_EQ(got.len[0], 20);
  for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(got.Key(0, i)[0], static_cast<float>(20 + i));
  const int64_t stride = cache->MaxSlots() + 1;
  std::vector<uint8_t> marks(static_cast<size_t>(stride), 1);
  marks[3] = 0;
  memory.Evict(cache.get(), 0, marks, stride, {1}, {&none, RopePairing::kHalf, false});
  EXPECT_EQ(cache->KeepNewest(memory.stream(), 0, 4).code(), Code::kUnsupported) << "out of order";
  cache.reset();
  EXPECT_EQ(memory.meter()->used(), 0);
}

// How far a draft may reach: until so many tokens came no page leaves a window, and then one does.
TEST(KvCacheWindows, SayWhenTheNextPageLeaves) {
  for (const int32_t page_slots : {4, 16, 32}) {
    test::TestDevice memory(1, ReferenceKernels());
    test::TokenStep step(&memory);
    const Rope none = Rope::None(kDim);
    test::UniformLayout uniform;
    uniform.head_dim = kDim, uniform.page_slots = page_slots;
    const auto layout = std::make_shared<CacheLayout>(*uniform.Make());
    layout->windows = {20}, layout->window_slack = 4;
    auto cache = std::move(KvCache::Create(layout, memory.arenas()).value());
    const Vector x(kDim, 1.0f);
    for (int32_t t = 0; t < 150;) {
      const int32_t said = cache->TokensBeforePageLeaves(), begin = t;
      for (bool left = false; !left; ++t) {
        ASSERT_TRUE(step.Ensure(cache.get(), false).ok());
        step.Run(*cache, {}, {0, t, x, x, x, &none});
        step.Done(cache.get());
        const int32_t more = said - (t - begin) - 1;  // behind what leaves now
        ASSERT_EQ(cache->TokensBeforePageLeaves(), more > 0 ? more : std::max(page_slots, 16));
        const int32_t before = cache->Len(0);
        cache->LeaveWindows();
        left = cache->Len(0) < before;
        EXPECT_GE(cache->Len(0), std::min(t + 1, 20 + 4));
        EXPECT_EQ(cache->bytes(), cache->LayerBytes(0));
      }
      ASSERT_EQ(t - begin, said);
    }
  }
}

}  // namespace
}  // namespace kvc

// Codebooks in the cache: shared directions of heads and of layers (methods.md 2.16).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <new>
#include <random>

#include "lib/base/archive.h"
#include "lib/base/byte_sink.h"
#include "tests/support/heap_faults.h"
#include "tests/support/test_device.h"

namespace kvc {
namespace {

using test::HostLayer;
using test::Saved;
using Vector = std::vector<float>;

constexpr int kLayers = 2, kDim = 8;

struct Entry {
  Vector k, v;
  int32_t position;
};

test::UniformLayout CodebookLayout(int32_t n_layers, int32_t n_kv_heads) {
  constexpr int32_t kTail = 6;
  test::UniformLayout layout;
  layout.n_layers = n_layers, layout.n_kv_heads = n_kv_heads, layout.head_dim = kDim, layout.page_slots = 4;
  layout.coding = EntryCoding::kCodebook, layout.theta_key = 0.9f, layout.theta_value = 0.8f;
  layout.ring_slots = 2 * kTail, layout.settle = kTail, layout.ring_type = KvType::kF32;
  return layout;
}

// Codebooks: what is coded keeps its length and its direction up to theta, and forks do not see each other's
// directions.
TEST(KvCacheCodebook, DirectionsStayWithinTheta) {
  test::TestDevice memory(2, ReferenceKernels());
  test::TokenStep steps(&memory);
  const Rope none = Rope::None(kDim);
  auto made = KvCache::Create(CodebookLayout(1, 1).Make(), memory.arenas());
  ASSERT_TRUE(made.ok());
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<Vector> centres(5, Vector(kDim));
  for (Vector& c : centres) {
    for (float& f : c) f = normal(random);
  }
  std::vector<std::pair<std::unique_ptr<KvCache>, std::vector<Entry>>> caches;
  caches.emplace_back(std::move(made.value()), std::vector<Entry>());
  for (int step = 0; step < 300; ++step) {
    if (step == 100 || step == 150) {
      auto fork = caches[0].first->Fork();
      ASSERT_TRUE(fork.ok());
      caches.emplace_back(std::move(fork.value()), caches[0].second);
    }
    for (auto& [cache, entries] : caches) {
      Entry e;
      e.k = centres[random() % 5], e.v = centres[random() % 5], e.position = step;
      const float length = 0.5f + std::abs(normal(random));
      for (float& f : e.k) f = length * (f + 0.1f * normal(random));
      for (float& f : e.v) f = length * (f + 0.1f * normal(random));
      if (random() % 40 == 0) e.k.assign(kDim, 0.0f);
      ASSERT_TRUE(steps.Ensure(cache.get(), false).ok());
      steps.Run(*cache, {}, {0, e.position, Vector(kDim), e.k, e.v, &none});
      steps.Done(cache.get());
      entries.push_back(e);
    }
  }
  for (auto& [cache, entries] : caches) {
    ASSERT_EQ(cache->Len(0), static_cast<int32_t>(entries.size()));
    EXPECT_LT(cache->view().book_len[0], 60) << "vectors share directions";
    HostLayer got = memory.Load(*cache, 0);
    for (size_t r = 0; r < entries.size(); ++r) {
      for (int which = 0; which < 2; ++which) {
        const Vector& x = which == 0 ? entries[r].k : entries[r].v;
        const Vector y =
            which == 0 ? got.KeyOf(0, static_cast<int64_t>(r)) : got.ValueOf(0, static_cast<int64_t>(r));
        double xx = 0, yy = 0, xy = 0;
        for (int i = 0; i < kDim; ++i)
          xx += double{x[i]} * x[i], yy += double{y[i]} * y[i], xy += double{x[i]} * y[i];
        ASSERT_NEAR(std::sqrt(yy), std::sqrt(xx), 1e-4 * std::sqrt(xx) + 1e-6);
        if (xx > 0) {
          ASSERT_GT(xy / std::sqrt(xx * yy), (which == 0 ? 0.9 : 0.8) - 1e-5) << "rank " << r;
        }
      }
    }
  }
  caches.clear();
  EXPECT_EQ(memory.meter()->used(), 0);
}

// Whatever had the pages before: a file has what the cache holds.
TEST(KvCacheCodebook, WhatIsSavedHasNothingOfOthers) {
  const Rope none = Rope::None(kDim);
  for (const bool layer_books : {false, true}) {
    std::vector<std::vector<uint8_t>> saved;
    for (const uint32_t others : {1000u, 2000u}) {
      test::TestDevice memory(2, ReferenceKernels());
      test::TokenStep steps(&memory);
      test::UniformLayout layout = CodebookLayout(1, 2);
      layout.layer_books = layer_books, layout.seen_masks = true;
      const auto fresh = [&] { return std::move(KvCache::Create(layout.Make(), memory.arenas()).value()); };
      const auto feed = [&](KvCache& cache, int32_t t, uint32_t seed) {
        std::mt19937 random(seed + static_cast<uint32_t>(t));
        std::normal_distribution<float> normal;
        Vector k(2 * kDim), v(2 * kDim);
        for (float& f : k) f = normal(random);
        for (float& f : v) f = normal(random);
        ASSERT_TRUE(steps.Ensure(&cache, false).ok());
        steps.Run(cache, {}, {0, t, Vector(2 * kDim), k, v, &none});
        steps.Done(&cache);
      };
      const auto neighbour = fresh();  // so that memory with pages of others is not given back
      {
        const auto other = fresh();
        for (int32_t t = 0; t < 85; ++t) feed(*neighbour, t, 3000), feed(*other, t, others);
      }
      const auto cache = fresh();
      for (int32_t t = 0; t < 45; ++t) feed(*cache, t, 0);
      saved.push_back(Saved(cache.get(), memory.stream()));
    }
    EXPECT_TRUE(saved[0] == saved[1]) << layer_books;
  }
}

// Room for a step of a fork, in which memory ends at every place once: what is left can be saved and read
// back, and the next try makes of all heads what one without a fault makes of them.
void ExpectTurnsTogether(test::TestDevice* memory, test::TokenStep* steps, KvCache* cache, int32_t n_tokens,
                         StoredAs turned, const std::shared_ptr<const CacheLayout>& layout) {
  for (int64_t fault = 0; fault < 200; ++fault) {
    const auto fork = std::move(cache->Fork().value());
    bool failed = false;
    {
      test::HeapFault heap(fault, test::HeapFault::kOne);
      try {
        (void)steps->Ensure(fork.get(), false);
      } catch (const std::bad_alloc&) {
      }
      failed = heap.fired();
    }
    const std::vector<uint8_t> bytes = Saved(fork.get(), memory->stream());
    const auto restored = std::move(KvCache::Create(layout, memory->arenas()).value());
    MemorySource source({bytes.data(), bytes.size()});
    ArchiveReader in(&source, source.size());
    const Status status = restored->RestoreFrom(in, memory->stream(), n_tokens, n_tokens, true, false);
    ASSERT_TRUE(status.ok()) << status.message() << ", allocation " << fault;
    for (KvCache* again : {fork.get(), restored.get()}) {
      ASSERT_TRUE(steps->Ensure(again, false).ok());
      for (int32_t head = 0; head < layout->n_heads_total(); ++head) EXPECT_EQ(again->stored(head), turned);
    }
    if (!failed) return;
  }
  FAIL() << "more allocations than expected";
}

// Vectors that share directions are coded, others are not; and a head whose codes cease to pay while it grows
// holds vectors from then on, with everything that it held.
TEST(KvCacheCodebook, CodesAreThereOnlyWhereTheyAreSmaller) {
  for (const bool layer_books : {false, true}) {
    test::TestDevice memory;
    test::TokenStep steps(&memory);
    const Rope none = Rope::None(kDim);
    constexpr int32_t kHeads = 2, kFirst = 40;
    test::UniformLayout layout = CodebookLayout(1, kHeads);
    layout.page_slots = 16, layout.may_be_plain = true, layout.layer_books = layer_books;
    layout.theta_key = layout.theta_value = 0.999f;
    const auto shared = layout.Make();
    auto cache = std::move(KvCache::Create(shared, memory.arenas()).value());
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const auto any = [&] {
      Vector x(kDim);
      for (float& f : x) f = normal(random);
      return x;
    };
    const Vector centres[] = {any(), any()};
    HostLayer alike(kHeads, kDim, kFirst), apart(kHeads, kDim, kFirst);
    for (int32_t i = 0; i < kFirst; ++i) {
      for (int g = 0; g < kHeads; ++g) {
        for (int x = 0; x < kDim; ++x) {
          const float length = 1.0f + 0.01f * static_cast<float>(i);
          alike.Key(g, i)[x] = length * centres[i % 2][static_cast<size_t>(x)];
          alike.Value(g, i)[x] = length * centres[(i + 1) % 2][static_cast<size_t>(x)];
          apart.Key(g, i)[x] = normal(random), apart.Value(g, i)[x] = normal(random);
        }
        alike.Position(g, i) = apart.Position(g, i) = i;
      }
    }
    const PageFormat& plain = shared->formats[static_cast<size_t>(shared->heads[0].plain)];
    const auto vectors = [&](int32_t n) { return kHeads * ((n + 15) / 16) * plain.bytes; };
    ASSERT_TRUE(memory.Store(cache.get(), 0, apart).ok());
    EXPECT_EQ(cache->stored(0), kStoredPlain);
    EXPECT_EQ(cache->bytes(), vectors(kFirst));
    HostLayer got = memory.Load(*cache, 0);
    EXPECT_EQ(got.keys, apart.keys);
    EXPECT_EQ(got.values, apart.values);
    ASSERT_TRUE(memory.Store(cache.get(), 0, alike).ok());
    ASSERT_EQ(cache->stored(0), kStoredMain);
    EXPECT_LT(cache->bytes(), vectors(kFirst));
    auto fork = std::move(cache->Fork().value());
    const int64_t fork_bytes = fork->bytes();
    bool was_plain = false;
    for (int32_t t = kFirst; t < kFirst + 200; ++t) {
      const bool coded = cache->stored(0) == kStoredMain;
      got = memory.Load(*cache, 0);
      const auto before = std::move(cache->Fork().value());
      ASSERT_TRUE(steps.Ensure(cache.get(), false).ok());
      if (layer_books && coded && cache->stored(0) == kStoredPlain) {
        ExpectTurnsTogether(&memory, &steps, before.get(), t, kStoredPlain, shared);
        if (HasFatalFailure()) return;
      }
      EXPECT_LE(cache->bytes(), vectors(t + 16)) << t << ": pages for as many steps as one of them holds";
      EXPECT_EQ(cache->bytes(), cache->LayerBytes(0)) << t << ": as the lists of pages have it";
      if (coded && cache->stored(0) == kStoredPlain) {
        was_plain = true;
        const HostLayer now = memory.Load(*cache, 0);
        EXPECT_EQ(now.positions, got.positions);
        EXPECT_EQ(now.keys, got.keys) << "what was read before";
        EXPECT_EQ(now.values, got.values);
      }
      EXPECT_FALSE(was_plain && cache->stored(0) == kStoredMain);
      Vector k = any(), v = any();
      const Vector more_k = any(), more_v = any();
      k.insert(k.end(), more_k.begin(), more_k.end()), v.insert(v.end(), more_v.begin(), more_v.end());
      steps.Run(*cache, {}, {0, t, Vector(kDim * kHeads), k, v, &none});
      steps.Done(cache.get());
    }
    EXPECT_TRUE(was_plain);
    EXPECT_EQ(cache->Len(0), kFirst + 200);
    EXPECT_EQ(fork->stored(0), kStoredMain);
    EXPECT_EQ(fork->bytes(), fork_bytes);
    EXPECT_EQ(fork->Len(0), kFirst);
    cache.reset(), fork.reset();
    EXPECT_EQ(memory.meter()->used(), 0);
  }
}

// Numbers of a saved cache as they lie in it: a byte for all of it, then of the first head its entries in
// pages, a byte that says how they are stored, where its ring begins and how much is in it, and directions.
struct SavedRecords {
  static constexpr size_t kLen = 1, kFlags = 5, kRingStart = 6, kRingLen = 10, kKeyBook = 14, kValueBook = 18;
  std::vector<uint8_t> bytes;
  SavedRecords With(size_t at, int32_t value) const {
    SavedRecords changed = *this;
    std::memcpy(changed.bytes.data() + at, &value, sizeof value);
    return changed;
  }
  SavedRecords WithFlags(uint8_t flags) const {
    SavedRecords changed = *this;
    changed.bytes[kFlags] = flags;
    return changed;
  }
};

// One number that does not fit is enough: what is read is used without another look.
TEST(KvCacheCodebook, RestoredRecordsAreThoseOfACache) {
  constexpr int32_t kSlots = 12;
  using R = SavedRecords;
  test::TestDevice memory;
  test::TokenStep steps(&memory);
  const Rope none = Rope::None(kDim);
  test::UniformLayout uniform = CodebookLayout(1, 1);
  uniform.may_be_plain = true;
  const auto layout = uniform.Make();
  const auto fresh = [&] { return std::move(KvCache::Create(layout, memory.arenas()).value()); };
  const auto code = [&](const R& records, int32_t n_tokens) {
    MemorySource source({records.bytes.data(), records.bytes.size()});
    ArchiveReader in(&source, source.size());
    return fresh()->RestoreFrom(in, memory.stream(), n_tokens, n_tokens, true, false).code();
  };
  const auto feed = [&](KvCache* cache, int32_t t) {
    Vector x(kDim, 1.0f);
    ASSERT_TRUE(steps.Ensure(cache, false).ok());
    steps.Run(*cache, {}, {0, t, x, x, x, &none});
    steps.Done(cache);
  };
  const auto coded = fresh(), plain = fresh();
  EXPECT_EQ(code({Saved(coded.get(), memory.stream())}, 0), Code::kOk);
  EXPECT_EQ(code({Saved(coded.get(), memory.stream())}, 5), Code::kBadModel)
      << "of a sequence that has begun";
  for (int32_t t = 0; t < kSlots - 1; ++t) feed(coded.get(), t);
  HostLayer apart(1, kDim, 20);
  for (int32_t i = 0; i < 20; ++i) {
    std::fill_n(apart.Key(0, i) + i % kDim, 1 + i / kDim, 1.0f), apart.Position(0, i) = i;
    std::fill_n(apart.Value(0, i) + i % kDim, 1 + i / kDim, 1.0f);
  }
  ASSERT_TRUE(memory.Store(plain.get(), 0, apart).ok());
  ASSERT_EQ(plain->stored(0), kStoredPlain);
  const R of_codes{Saved(coded.get(), memory.stream())}, of_plain{Saved(plain.get(), memory.stream())};
  EXPECT_EQ(code(of_codes, kSlots - 1), Code::kOk);
  EXPECT_EQ(code(of_plain, 20), Code::kOk);
  // A ring that is full would have settled; a place behind its end is the first one again.
  const PageFormat& ring = layout->formats[static_cast<size_t>(layout->heads[0].ring)];
  const size_t page = of_codes.bytes.size() - static_cast<size_t>(ring.bytes);
  const size_t last = page + static_cast<size_t>(ring.positions + 4 * (kSlots - 1));
  EXPECT_EQ(code(of_codes.With(R::kRingLen, kSlots).With(last, kSlots - 1), kSlots), Code::kBadModel);
  for (const int32_t start : {-1, kSlots})
    EXPECT_EQ(code(of_codes.With(R::kRingStart, start), kSlots - 1), Code::kBadModel) << start;
  EXPECT_EQ(code(of_codes.With(R::kRingLen, -1), 0), Code::kBadModel);
  EXPECT_EQ(code(of_codes.With(R::kLen, -1), kSlots - 2), Code::kBadModel);
  EXPECT_EQ(code(of_codes.With(R::kKeyBook, -1), kSlots - 1), Code::kBadModel);
  EXPECT_EQ(code(of_codes.WithFlags(1), kSlots - 1), Code::kBadModel) << "codes have no rotation";
  EXPECT_EQ(code(of_codes.WithFlags((kStoredPlainAll + 1) << 1), kSlots - 1), Code::kBadModel);
  uniform.may_be_plain = false;
  const auto always = uniform.Make();
  const auto without = std::move(KvCache::Create(always, memory.arenas()).value());
  const R empty = R{Saved(without.get(), memory.stream())}.WithFlags(kStoredPlain << 1);
  MemorySource source({empty.bytes.data(), empty.bytes.size()});
  ArchiveReader in(&source, source.size());
  EXPECT_EQ(without->RestoreFrom(in, memory.stream(), 0, 0, true, false).code(), Code::kBadModel);
  // Vectors have neither a ring nor directions.
  for (const size_t at : {R::kRingLen, R::kKeyBook, R::kValueBook})
    EXPECT_EQ(code(of_plain.With(at, 1), at == R::kRingLen ? 21 : 20), Code::kBadModel) << at;
}

// methods.md 2.16 (g), by hand: of three layers one is coded, whose newest vectors still wait, one could be
// but holds vectors, which are as many as all tokens have, and one has no codes and no part in the mean.
TEST(KvCacheCodebook, RatiosCountWhatIsNotCodedAsItself) {
  constexpr int32_t kHeads = 2, kFirst = 40, kWaiting = 3, kTokens = kFirst + kWaiting;
  test::TestDevice memory;
  test::TokenStep steps(&memory);
  const Rope none = Rope::None(kDim);
  test::UniformLayout uniform = CodebookLayout(3, kHeads);
  uniform.page_slots = 16, uniform.may_be_plain = true;
  const auto layout = std::make_shared<CacheLayout>(*uniform.Make());
  for (size_t head = kHeads; head < 2 * kHeads; ++head) {
    HeadFormat& h = layout->heads[head];
    h.main = h.plain, h.ring = h.plain = h.plain_all = -1, h.settle = 1;
  }
  const auto cache = std::move(KvCache::Create(layout, memory.arenas()).value());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  HostLayer alike(kHeads, kDim, kFirst), apart(kHeads, kDim, kFirst);
  for (int g = 0; g < kHeads; ++g) {
    for (int32_t i = 0; i < kFirst; ++i) {
      alike.Position(g, i) = apart.Position(g, i) = i;
      alike.Key(g, i)[i % 2] = alike.Value(g, i)[i % 3] = static_cast<float>(1 + i);  // 2 and 3 directions
      for (int x = 0; x < kDim; ++x)
        apart.Key(g, i)[x] = normal(random), apart.Value(g, i)[x] = normal(random);
    }
  }
  for (int32_t layer = 0; layer < 3; ++layer)
    ASSERT_TRUE(memory.Store(cache.get(), layer, layer == 0 ? alike : apart).ok());
  const Vector ones(kHeads * kDim, 1.0f);
  for (int32_t t = kFirst; t < kTokens; ++t) {
    ASSERT_TRUE(steps.Ensure(cache.get(), false).ok());
    for (int32_t layer = 0; layer < 3; ++layer) steps.Run(*cache, {}, {layer, t, ones, ones, ones, &none});
    steps.Done(cache.get());
  }
  ASSERT_EQ(cache->stored(0), kStoredMain);
  ASSERT_EQ(cache->stored(2 * kHeads), kStoredPlain);
  // Keys and values of all tokens; what waits; a reference and a magnitude are two elements of kDim.
  const double all = 2 * kHeads * kTokens, waiting = 2 * kHeads * kWaiting, coded = 2 * kHeads * kFirst,
               directions = kHeads * (2 + 3), extra = 2.0 / kDim;
  EXPECT_NEAR(cache->Ratios(kTokens).paper, ((directions * (1 + extra) + waiting) / all + 1) / 2, 1e-12);
  EXPECT_NEAR(cache->Ratios(kTokens).exact, ((directions + coded * extra + waiting) / all + 1) / 2, 1e-12);
}

class KvCacheLayerBooks : public testing::Test {
 protected:
  static constexpr int kKvHeads = 3;

  std::unique_ptr<KvCache> Make(bool layer_books) {
    test::UniformLayout layout = CodebookLayout(kLayers, kKvHeads);
    layout.layer_books = layer_books;
    auto made = KvCache::Create(layout.Make(), memory_.arenas());
    EXPECT_TRUE(made.ok());
    return std::move(made.value());
  }

  // The same n vectors in every head of every layer.
  void Store(KvCache& cache, int32_t n) {
    HostLayer kv(kKvHeads, kDim, n);
    for (int32_t i = 0; i < n; ++i) {
      const Vector k = Random(i), v = Random(-i);
      for (int g = 0; g < kKvHeads; ++g) {
        std::copy(k.begin(), k.end(), kv.Key(g, i)), std::copy(v.begin(), v.end(), kv.Value(g, i));
        kv.Position(g, i) = i;
      }
    }
    for (int layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(memory_.Store(&cache, layer, kv).ok());
  }

  void Step(KvCache& cache, int32_t position, int32_t seed) {
    Vector k, v;
    for (int g = 0; g < kKvHeads; ++g) {
      const Vector one = Random(seed), other = Random(-seed);
      k.insert(k.end(), one.begin(), one.end()), v.insert(v.end(), other.begin(), other.end());
    }
    ASSERT_TRUE(step_.Ensure(&cache, false).ok());
    for (int layer = 0; layer < kLayers; ++layer) step_.Run(cache, {}, {layer, position, k, k, v, &none_});
    step_.Done(&cache);
  }

  static Vector Random(int32_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::normal_distribution<float> normal;
    Vector x(kDim);
    for (float& f : x) f = normal(random);
    return x;
  }

  // Directions in the codebooks of a head: which 0 keys, 1 values.
  static int32_t BookLen(const KvCache& cache, int layer, int g, int which) {
    return cache.view().book_len[2 * cache.layout().book_owner(layer * kKvHeads + g) + which];
  }

  void ExpectAlike(const KvCache& shared, const KvCache& own) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int which = 0; which < 2; ++which)
        ASSERT_EQ(BookLen(shared, layer, kKvHeads - 1, which), BookLen(own, layer, 0, which));
      HostLayer from_shared = memory_.Load(shared, layer), from_own = memory_.Load(own, layer);
      ASSERT_EQ(from_shared.len, from_own.len);
      for (int g = 0; g < kKvHeads; ++g) {
        for (int32_t r = 0; r < from_own.len[static_cast<size_t>(g)]; ++r) {
          const float *a = from_shared.Key(g, r), *b = from_own.Key(g, r);
          double dot = 0, aa = 0, bb = 0;
          for (size_t x = 0; x < kDim; ++x)
            dot += double{a[x]} * b[x], aa += double{a[x]} * a[x], bb += double{b[x]} * b[x];
          ASSERT_NEAR(aa, bb, 1e-4 * bb) << "the magnitude of an entry is its own";
          ASSERT_GT(dot, 0.6 * std::sqrt(aa * bb)) << "two directions within theta of the same vector";
        }
      }
    }
  }

  test::TestDevice memory_{2, ReferenceKernels()};
  test::TokenStep step_{&memory_};
  const Rope none_ = Rope::None(kDim);
};

// spindle_scope=layer (methods.md D-37): heads share directions. Heads with the same vectors need no more of
// them than one head does, at the prompt and at every later coding; forks do not see each other's.
TEST_F(KvCacheLayerBooks, HeadsShareDirections) {
  constexpr int32_t kPrompt = 40;
  std::unique_ptr<KvCache> own = Make(false), shared = Make(true);
  Store(*own, kPrompt), Store(*shared, kPrompt);
  ExpectAlike(*shared, *own);
  EXPECT_LT(shared->LayerBytes(0), own->LayerBytes(0));
  auto forked = shared->Fork();
  ASSERT_TRUE(forked.ok());
  const Vector before = memory_.Load(*forked.value(), 1).KeyOf(2, 7);
  for (int32_t t = kPrompt; t < kPrompt + 60; ++t) {
    Step(*own, t, t), Step(*shared, t, t);
    if (t % 2 == 0) Step(*forked.value(), t, 1000 + t);
    for (int layer = 0; layer < kLayers; ++layer)
      ASSERT_EQ(BookLen(*shared, layer, 1, 0), BookLen(*own, layer, 1, 0)) << t;
  }
  EXPECT_EQ(before, memory_.Load(*forked.value(), 1).KeyOf(2, 7));
  ExpectAlike(*shared, *own);
  own.reset(), shared.reset(), forked.value().reset();
  EXPECT_EQ(memory_.meter()->used(), 0);
}

// Heads add to the books of their layer in their order, whoever ends first: many threads give what one gives.
TEST(KvCacheSharedBooks, DoNotDependOnThreads) {
  constexpr int kKvHeads = 8, kSteps = 240;
  const Rope none = Rope::None(kDim);
  std::vector<HostLayer> got;
  for (const int n_threads : {1, 4}) {
    test::TestDevice memory(n_threads, ReferenceKernels());
    test::TokenStep step(&memory);
    test::UniformLayout layout = CodebookLayout(1, kKvHeads);
    layout.layer_books = true;
    auto cache = KvCache::Create(layout.Make(), memory.arenas());
    ASSERT_TRUE(cache.ok());
    std::mt19937 random(9);
    const auto vectors = [&random] {
      Vector x(kKvHeads * kDim);
      for (float& f : x) f = std::normal_distribution<float>()(random);
      return x;
    };
    for (int32_t t = 0; t < kSteps; ++t) {
      ASSERT_TRUE(step.Ensure(cache.value().get(), false).ok());
      const Vector q = vectors(), k = vectors(), v = vectors();
      step.Run(*cache.value(), {}, {0, t, q, k, v, &none});
      step.Done(cache.value().get());
    }
    got.push_back(memory.Load(*cache.value(), 0));
  }
  EXPECT_EQ(got[0].keys, got[1].keys);
  EXPECT_EQ(got[0].values, got[1].values);
}

// A head that holds less settles later: the books, which are the first head's, have room for what the others
// bring meanwhile.
TEST_F(KvCacheLayerBooks, HeadsMaySettleAtOtherTimes) {
  std::unique_ptr<KvCache> cache = Make(true);
  constexpr int32_t kSteps = 2 * 6 - 1;  // one less than rings have slots
  for (int32_t t = 0; t < kSteps; ++t) Step(*cache, t, t);
  // As where its entries left one by one, of which it had no others.
  for (int layer = 0; layer < kLayers; ++layer)
    cache->view().ring[layer * kKvHeads * kRingFields + kRingLen] = 2;
  for (int32_t t = kSteps; t < kSteps + 8; ++t) Step(*cache, t, t);
  EXPECT_GT(BookLen(*cache, 0, 1, 0), 4) << "more than a page of directions";
  for (int layer = 0; layer < kLayers; ++layer) {
    HostLayer got = memory_.Load(*cache, layer);
    for (int g = 1; g < kKvHeads; ++g) {
      ASSERT_EQ(got.len[static_cast<size_t>(g)], kSteps + 8);
      for (int32_t t = 0; t < kSteps + 8; ++t) {
        const Vector x = Random(t), y = got.KeyOf(g, t);
        double xx = 0, yy = 0, xy = 0;
        for (size_t i = 0; i < kDim; ++i)
          xx += double{x[i]} * x[i], yy += double{y[i]} * y[i], xy += double{x[i]} * y[i];
        ASSERT_GT(xy / std::sqrt(xx * yy), 0.9 - 1e-5) << layer << " " << g << " " << t;
      }
    }
  }
}

// What a layer shares is asked of its first head, so heads of another kind are no cache.
TEST_F(KvCacheLayerBooks, RestoredHeadsOfALayerAreAlike) {
  test::UniformLayout layout;
  layout.n_layers = 1, layout.n_kv_heads = 2, layout.head_dim = kDim, layout.page_slots = 4;
  const auto shared = layout.Make();
  const auto make = [&] { return std::move(KvCache::Create(shared, memory_.arenas()).value()); };
  std::unique_ptr<KvCache> cache = make();
  HostLayer kv(2, kDim, 9);
  for (int32_t i = 0; i < 9; ++i) kv.Position(0, i) = kv.Position(1, i) = i;
  kv.len = {9, 7};
  ASSERT_TRUE(memory_.Store(cache.get(), 0, kv).ok());
  MemorySink size(nullptr, 0);
  ArchiveWriter counts(&size);
  ASSERT_TRUE(cache->SaveTo(counts, memory_.stream()).ok());
  std::vector<uint8_t> bytes(static_cast<size_t>(size.size()));
  MemorySink sink(bytes.data(), size.size());
  ArchiveWriter out(&sink);
  ASSERT_TRUE(cache->SaveTo(out, memory_.stream()).ok());
  for (const bool one_set : {false, true}) {
    MemorySource source({bytes.data(), bytes.size()});
    ArchiveReader in(&source, source.size());
    const Status restored = make()->RestoreFrom(in, memory_.stream(), 9, 9, false, one_set);
    EXPECT_EQ(restored.ok(), !one_set) << restored.message();
  }
}

}  // namespace
}  // namespace kvc

// The cache against lists of entries that know nothing of pages: thousands of random operations on forks that
// share them.
#include "lib/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvc {
namespace {

constexpr int kLayers = 2, kHeads = 2, kDim = 8;

using Vector = std::vector<float>;

struct Entry {
  Vector k, v, aux;
  int32_t position;
};

Vector RoundTrip(const VectorFormat& format, const Vector& x) {
  std::vector<uint8_t> stored(static_cast<size_t>(VectorBytes(format)));
  Vector out(x.size());
  ReferenceKernels().encode_vectors(format, x.data(), 1, stored.data());
  ReferenceKernels().decode_vectors(format, stored.data(), 1, out.data());
  return out;
}

// What a cache must hold. The newest `tail` entries of a head are raw.
struct Naive {
  std::vector<std::vector<Entry>> heads = std::vector<std::vector<Entry>>(kLayers * kHeads);
  std::vector<size_t> tail = std::vector<size_t>(kLayers * kHeads, 0);
  int32_t next_position = 0;
};

struct Pair {
  std::unique_ptr<KvCache> cache;
  Naive naive;
};

struct Kind {
  const char* name;
  KvType type;
  int32_t group, tail_slots, page_slots, n_aux;
  bool ordered;
  bool key_channels = false;
};

class KvCacheRandom : public testing::TestWithParam<Kind> {
 protected:
  CacheConfig Config() const {
    CacheConfig config;
    config.n_layers = kLayers, config.n_kv_heads = kHeads, config.group = 2, config.head_dim = kDim;
    config.page_slots = GetParam().page_slots, config.n_aux = GetParam().n_aux,
    config.ordered = GetParam().ordered;
    config.raw = {GetParam().tail_slots > 0 ? KvType::kF16 : KvType::kF32, kDim, 0};
    HeadFormat format;
    format.stored = {GetParam().type, kDim, GetParam().group};
    format.tail_slots = GetParam().tail_slots;
    format.key_channels = GetParam().key_channels;
    if (format.key_channels) format.settle = config.page_slots;
    config.formats.assign(kLayers * kHeads, format);
    return config;
  }
  const VectorFormat Stored() const { return Config().formats[0].stored; }
  bool Writable() const { return GetParam().ordered || GetParam().n_aux > 0; }

  Vector Random() {
    Vector x(kDim);
    for (float& f : x) f = std::normal_distribution<float>()(random_);
    return x;
  }

  // Codes the keys of a page together, as one more block would be.
  void RoundTripKeys(std::vector<Entry>& entries, size_t first) {
    const int32_t n = GetParam().page_slots;
    Vector x;
    for (size_t i = first; i < first + static_cast<size_t>(n); ++i)
      x.insert(x.end(), entries[i].k.begin(), entries[i].k.end());
    std::vector<uint8_t> codes(static_cast<size_t>(n * KeyCodeBytes(Stored().type, kDim)));
    std::vector<uint16_t> scales(kDim);
    const KernelTable& ref = ReferenceKernels();
    ref.encode_key_block(Stored().type, x.data(), n, kDim, codes.data(), scales.data());
    ref.decode_key_block(Stored().type, codes.data(), scales.data(), n, kDim, x.data());
    for (int32_t i = 0; i < n; ++i)
      entries[first + static_cast<size_t>(i)].k.assign(x.begin() + i * kDim, x.begin() + (i + 1) * kDim);
  }

  // A page is coded when the tail is full; what a Rewind left of a coded page is coded again with it.
  void SettleBlockNaive(Naive& n, size_t h) {
    const size_t page = static_cast<size_t>(GetParam().page_slots);
    if (n.tail[h] < static_cast<size_t>(GetParam().tail_slots)) return;
    std::vector<Entry>& entries = n.heads[h];
    const size_t main = entries.size() - n.tail[h], end = (main / page + 1) * page;
    for (size_t i = main; i < end; ++i) entries[i].v = RoundTrip(Stored(), entries[i].v);
    RoundTripKeys(entries, end - page);
    n.tail[h] -= end - main;
  }

  void SettleNaive(Naive& n, size_t h) {
    if (GetParam().key_channels) return SettleBlockNaive(n, h);
    while (GetParam().tail_slots > 0 && n.tail[h] >= static_cast<size_t>(GetParam().tail_slots)) {
      Entry& e = n.heads[h][n.heads[h].size() - n.tail[h]];
      e.k = RoundTrip(Stored(), e.k), e.v = RoundTrip(Stored(), e.v);
      --n.tail[h];
    }
  }

  void AppendNaive(Naive& n, size_t h, const Vector& k, const Vector& v, int32_t position) {
    const VectorFormat format = GetParam().tail_slots > 0 ? Config().raw : Stored();
    n.heads[h].push_back({RoundTrip(format, k), RoundTrip(format, v),
                          Vector(static_cast<size_t>(GetParam().n_aux), 0.0f), position});
    n.tail[h] += GetParam().tail_slots > 0;
  }

  void Append(Pair& p) {
    ASSERT_TRUE(p.cache->ReserveStep().ok());
    for (int l = 0; l < kLayers; ++l) {
      for (int g = 0; g < kHeads; ++g) {
        const Vector k = Random(), v = Random();
        const size_t h = static_cast<size_t>(l * kHeads + g);
        p.cache->Append(l, g, k.data(), v.data(), p.naive.next_position);
        p.cache->Settle(l, g);
        AppendNaive(p.naive, h, k, v, p.naive.next_position);
        SettleNaive(p.naive, h);
      }
    }
    ++p.naive.next_position;
  }

  void RemoveOne(Pair& p, int l, int g) {
    const size_t h = static_cast<size_t>(l * kHeads + g);
    if (!GetParam().ordered || p.naive.heads[h].empty()) return;
    ASSERT_TRUE(p.cache->ReserveStep().ok());
    const size_t rank = random_() % p.naive.heads[h].size();
    if (rank >= p.naive.heads[h].size() - p.naive.tail[h]) --p.naive.tail[h];
    p.naive.heads[h].erase(p.naive.heads[h].begin() + static_cast<std::ptrdiff_t>(rank));
    p.cache->Remove(l, g, static_cast<int32_t>(rank));
  }

  void WriteOne(Pair& p, int l, int g) {
    const size_t h = static_cast<size_t>(l * kHeads + g);
    if (!Writable() || p.naive.heads[h].empty()) return;
    ASSERT_TRUE(p.cache->ReserveStep().ok());
    std::vector<Entry>& entries = p.naive.heads[h];
    const size_t rank = random_() % entries.size();
    const Vector x = Random();
    const bool coded = rank < entries.size() - p.naive.tail[h];
    const bool key = random_() % 2 == 0 && !(GetParam().key_channels && coded);
    const VectorFormat format = rank >= entries.size() - p.naive.tail[h] ? Config().raw : Stored();
    (key ? entries[rank].k : entries[rank].v) = RoundTrip(format, x);
    key ? p.cache->WriteKey(l, g, static_cast<int32_t>(rank), x.data())
        : p.cache->WriteValue(l, g, static_cast<int32_t>(rank), x.data());
    for (int a = 0; a < GetParam().n_aux; ++a) {
      Vector line(entries.size());
      for (size_t r = 0; r < line.size(); ++r) line[r] = entries[r].aux[static_cast<size_t>(a)] = Random()[0];
      p.cache->SetAux(l, g, a, line.data());
    }
  }

  // Also after entries were removed one by one, and beside a fork that shares the pages.
  void Rewind(Pair& p) {
    int32_t newest = 0;
    for (const auto& head : p.naive.heads) newest = std::max(newest, head.empty() ? 0 : head.back().position);
    const int32_t first_gone = newest - static_cast<int32_t>(random_() % 20);
    ASSERT_TRUE(p.cache->RewindTo(first_gone).ok());
    for (size_t h = 0; h < p.naive.heads.size(); ++h) {
      size_t n = 0;
      std::vector<Entry>& head = p.naive.heads[h];
      for (; !head.empty() && head.back().position >= first_gone; ++n) head.pop_back();
      p.naive.tail[h] -= std::min(p.naive.tail[h], n);
    }
  }

  // A layer out, some entries chosen, and back; or new ones behind it.
  void Compact(Pair& p, int l) {
    const int32_t room = p.cache->MaxLen() + 8;
    LayerKv kv;
    kv.n_kv_heads = kHeads, kv.head_dim = kDim, kv.capacity = room, kv.n_aux = GetParam().n_aux;
    kv.len.assign(kHeads, 0);
    ASSERT_TRUE(kv.keys.Allocate(nullptr, int64_t{kHeads} * room * kDim, "test").ok());
    ASSERT_TRUE(kv.values.Allocate(nullptr, int64_t{kHeads} * room * kDim, "test").ok());
    ASSERT_TRUE(kv.positions.Allocate(nullptr, int64_t{kHeads} * room, "test").ok());
    ASSERT_TRUE(kv.aux.Allocate(nullptr, int64_t{kHeads} * room * std::max(kv.n_aux, 1), "test").ok());
    p.cache->Load(l, &kv);
    std::vector<uint8_t> mark(static_cast<size_t>(kHeads * room), 1);
    for (int g = 0; g < kHeads; ++g) {
      const size_t h = static_cast<size_t>(l * kHeads + g);
      std::vector<Entry> kept;
      ASSERT_EQ(kv.len[static_cast<size_t>(g)], static_cast<int32_t>(p.naive.heads[h].size()));
      for (int32_t i = 0; i < kv.len[static_cast<size_t>(g)]; ++i) {
        Entry& e = p.naive.heads[h][static_cast<size_t>(i)];
        ASSERT_EQ(Vector(kv.Keys(g) + i * kDim, kv.Keys(g) + (i + 1) * kDim), e.k);
        ASSERT_EQ(Vector(kv.Values(g) + i * kDim, kv.Values(g) + (i + 1) * kDim), e.v);
        ASSERT_EQ(kv.Positions(g)[i], e.position);
        if (random_() % 3 == 0) mark[static_cast<size_t>(g * room + i)] = 0;
        if (mark[static_cast<size_t>(g * room + i)] != 0) kept.push_back(e);
      }
      size_t tail = std::min(kept.size(), static_cast<size_t>(std::max(GetParam().tail_slots - 1, 0)));
      if (GetParam().key_channels) {
        const size_t page = static_cast<size_t>(GetParam().page_slots),
                     residual = static_cast<size_t>(GetParam().tail_slots) - page;
        tail = kept.size() - (kept.size() - std::min(kept.size(), residual)) / page * page;
        for (size_t i = 0; i < kept.size() - tail; i += page) RoundTripKeys(kept, i);
      }
      for (size_t i = 0; i < kept.size(); ++i) {
        const bool coded = i < kept.size() - tail;
        const VectorFormat format = coded ? Stored() : Config().raw;
        kept[i].v = RoundTrip(format, kept[i].v);
        if (!coded || !GetParam().key_channels) kept[i].k = RoundTrip(format, kept[i].k);
      }
      p.naive.heads[h] = kept;
      p.naive.tail[h] = tail;
    }
    ASSERT_TRUE(p.cache->Store(l, kv, mark.data(), room, nullptr).ok());
  }

  void Check(const Pair& p) {
    Vector k(kDim), v(kDim);
    int64_t total = 0;
    for (int l = 0; l < kLayers; ++l) {
      for (int g = 0; g < kHeads; ++g) {
        const std::vector<Entry>& entries = p.naive.heads[static_cast<size_t>(l * kHeads + g)];
        total += static_cast<int64_t>(entries.size());
        ASSERT_EQ(p.cache->Len(l, g), static_cast<int32_t>(entries.size()));
        for (size_t r = 0; r < entries.size(); ++r) {
          const int32_t rank = static_cast<int32_t>(r);
          p.cache->ReadKey(l, g, rank, k.data());
          p.cache->ReadValue(l, g, rank, v.data());
          ASSERT_EQ(k, entries[r].k) << "layer " << l << " head " << g << " rank " << r;
          ASSERT_EQ(v, entries[r].v);
          ASSERT_EQ(p.cache->PositionAt(l, g, rank), entries[r].position);
        }
        Vector line(entries.size() + 1);
        for (int a = 0; a < GetParam().n_aux; ++a) {
          p.cache->GetAux(l, g, a, line.data());
          for (size_t r = 0; r < entries.size(); ++r)
            ASSERT_EQ(line[r], entries[r].aux[static_cast<size_t>(a)]);
        }
        CheckRuns(*p.cache, l, g, entries);
      }
    }
    ASSERT_EQ(p.cache->TotalEntries(), total);
  }

  // What attention sees: every entry once.
  void CheckRuns(const KvCache& cache, int l, int g, const std::vector<Entry>& entries) {
    Vector scratch(static_cast<size_t>(2 * std::max(GetParam().page_slots, GetParam().tail_slots) * kDim));
    std::vector<float> physical(entries.size() + 256, -1.0f), ranked(entries.size() + 1);
    size_t n_seen = 0;
    cache.ForOccupied(l, g, [&](int32_t first, int32_t n) {
      for (int32_t at = first; at < first + n;) {
        const KvCache::Run run = cache.GetRun(l, g, at, scratch.data());
        ASSERT_GT(run.n, 0);
        for (int32_t i = 0; i < run.n && at + i < first + n; ++i, ++n_seen) {
          ASSERT_LT(static_cast<size_t>(at + i), physical.size());
          physical[static_cast<size_t>(at + i)] = static_cast<float>(run.positions[i]);
        }
        at += run.n;
      }
    });
    ASSERT_EQ(n_seen, entries.size());
    cache.ToRankOrder(l, g, physical.data(), ranked.data());
    for (size_t r = 0; r < entries.size(); ++r) ASSERT_EQ(ranked[r], static_cast<float>(entries[r].position));
  }

  std::mt19937 random_{17};
};

TEST_P(KvCacheRandom, HoldsWhatTheListsHold) {
  auto meter = std::make_shared<MemoryMeter>(0);
  std::vector<Pair> pairs(1);
  auto made = KvCache::Create(Config(), &ReferenceKernels(), meter);
  ASSERT_TRUE(made.ok());
  pairs[0].cache = std::move(made.value());
  for (int op = 0; op < 4000 && !HasFatalFailure(); ++op) {
    Pair& p = pairs[random_() % pairs.size()];
    const int l = static_cast<int>(random_() % kLayers), g = static_cast<int>(random_() % kHeads);
    const uint32_t what = random_() % 100;
    if (what < 55) {
      Append(p);
    } else if (what < 75) {
      for (int i = 0; i < 3; ++i) RemoveOne(p, l, g);
    } else if (what < 88) {
      WriteOne(p, l, g);
    } else if (what < 91) {
      Rewind(p);
    } else if (what < 93) {
      Compact(p, l);
    } else if (what < 97 && pairs.size() < 4) {
      auto fork = p.cache->Fork();
      ASSERT_TRUE(fork.ok());
      const Naive copy = p.naive;
      pairs.push_back({std::move(fork.value()), copy});
      continue;
    } else if (what < 99 && pairs.size() > 1) {
      pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(random_() % pairs.size()));
      continue;
    } else if (what == 99 && op % 7 == 0) {
      p.cache->Clear();
      const int32_t next = p.naive.next_position;
      p.naive = Naive();
      p.naive.next_position = next;
    }
    if (op % 50 == 49) {
      ASSERT_TRUE(p.cache->Pack().ok());
      if (pairs.size() == 1) {
        ASSERT_EQ(p.cache->bytes(), p.cache->LayerBytes(0) + p.cache->LayerBytes(1)) << "pages in use only";
      }
    }
    Check(p);
    if (op % 40 == 0) {
      for (const Pair& each : pairs) Check(each);
    }
  }
  EXPECT_NEAR(static_cast<double>(pairs[0].cache->bytes()), static_cast<double>(meter->used()), 2 * kDim * 4)
      << "pools, and scratch";
  pairs.clear();
  EXPECT_EQ(meter->used(), 0) << "nothing stays";
}

INSTANTIATE_TEST_SUITE_P(Kinds, KvCacheRandom,
                         testing::Values(Kind{"f32", KvType::kF32, 0, 0, 4, 0, false},
                                         Kind{"f16_ordered", KvType::kF16, 0, 0, 4, 0, true},
                                         Kind{"f32_aux", KvType::kF32, 0, 0, 16, 2, true},
                                         Kind{"bf16", KvType::kBf16, 0, 0, 64, 1, false},
                                         Kind{"int8_tail", KvType::kInt8, 8, 5, 4, 0, false},
                                         Kind{"int8_tail_ordered", KvType::kInt8, 8, 7, 4, 1, true},
                                         Kind{"int8_channels", KvType::kInt8, 8, 7, 4, 0, false, true},
                                         Kind{"int4_channels_aux", KvType::kInt4, 4, 8, 8, 1, false, true},
                                         Kind{"int4_no_residual", KvType::kInt4, 4, 1, 16, 0, true}),
                         [](const auto& kind) { return std::string(kind.param.name); });

// Codebooks: what is coded keeps its length and its direction up to theta, and forks do not see each other's
// directions.
TEST(KvCacheCodebook, DirectionsStayWithinTheta) {
  constexpr int32_t kTail = 6;
  CacheConfig config;
  config.n_layers = 1, config.n_kv_heads = 1, config.group = 1, config.head_dim = kDim, config.page_slots = 4;
  config.raw = {KvType::kF32, kDim, 0};
  HeadFormat format;
  format.codebook = true, format.theta_key = 0.9f, format.theta_value = 0.8f, format.tail_slots = 2 * kTail,
  format.settle = kTail;
  config.formats.assign(1, format);
  auto meter = std::make_shared<MemoryMeter>(0);
  auto made = KvCache::Create(config, &ReferenceKernels(), meter);
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
      ASSERT_TRUE(cache->ReserveStep().ok());
      cache->Append(0, 0, e.k.data(), e.v.data(), e.position);
      cache->Settle(0, 0);
      entries.push_back(e);
    }
  }
  for (auto& [cache, entries] : caches) {
    ASSERT_EQ(cache->Len(0, 0), static_cast<int32_t>(entries.size()));
    EXPECT_LT(cache->BookLen(0, 0, 0), 60) << "vectors share directions";
    for (size_t r = 0; r < entries.size(); ++r) {
      for (int which = 0; which < 2; ++which) {
        const Vector& x = which == 0 ? entries[r].k : entries[r].v;
        Vector y(kDim);
        which == 0 ? cache->ReadKey(0, 0, static_cast<int32_t>(r), y.data())
                   : cache->ReadValue(0, 0, static_cast<int32_t>(r), y.data());
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
  EXPECT_EQ(meter->used(), 0);
}

class KvCacheLayerBooks : public testing::Test {
 protected:
  static constexpr int kGroup = 3;

  std::unique_ptr<KvCache> Make(bool layer_books) {
    constexpr int32_t kTail = 6;
    CacheConfig config;
    config.n_layers = kLayers, config.n_kv_heads = kGroup, config.head_dim = kDim, config.page_slots = 4;
    config.raw = {KvType::kF32, kDim, 0}, config.layer_books = layer_books;
    HeadFormat format;
    format.codebook = true, format.theta_key = 0.9f, format.theta_value = 0.8f;
    format.tail_slots = 2 * kTail, format.settle = kTail;
    config.formats.assign(kLayers * kGroup, format);
    auto made = KvCache::Create(config, &ReferenceKernels(), meter_);
    EXPECT_TRUE(made.ok());
    return std::move(made.value());
  }

  // The same n vectors in every head of every layer.
  void Store(KvCache& cache, int32_t n) {
    LayerKv kv;
    kv.n_kv_heads = kGroup, kv.head_dim = kDim, kv.capacity = n, kv.len.assign(kGroup, n);
    ASSERT_TRUE(kv.keys.Allocate(nullptr, int64_t{kGroup} * n * kDim, "test").ok());
    ASSERT_TRUE(kv.values.Allocate(nullptr, int64_t{kGroup} * n * kDim, "test").ok());
    ASSERT_TRUE(kv.positions.Allocate(nullptr, int64_t{kGroup} * n, "test").ok());
    for (int32_t i = 0; i < n; ++i) {
      const Vector k = Random(i), v = Random(-i);
      for (int g = 0; g < kGroup; ++g) {
        std::copy(k.begin(), k.end(), kv.Keys(g) + i * kDim);
        std::copy(v.begin(), v.end(), kv.Values(g) + i * kDim);
        kv.Positions(g)[i] = i;
      }
    }
    for (int layer = 0; layer < kLayers; ++layer)
      ASSERT_TRUE(cache.Store(layer, kv, nullptr, 0, nullptr).ok());
  }

  void Step(KvCache& cache, int32_t position, int32_t seed) {
    const Vector k = Random(seed), v = Random(-seed);
    ASSERT_TRUE(cache.ReserveStep().ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int g = 0; g < kGroup; ++g) {
        cache.Append(layer, g, k.data(), v.data(), position);
        cache.Settle(layer, g);
      }
    }
  }

  static Vector Random(int32_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::normal_distribution<float> normal;
    Vector x(kDim);
    for (float& f : x) f = normal(random);
    return x;
  }

  void ExpectAlike(const KvCache& shared, const KvCache& own) {
    Vector a(kDim), b(kDim);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int which = 0; which < 2; ++which)
        ASSERT_EQ(shared.BookLen(layer, kGroup - 1, which), own.BookLen(layer, 0, which));
      for (int g = 0; g < kGroup; ++g) {
        ASSERT_EQ(shared.Len(layer, g), own.Len(layer, g));
        for (int32_t r = 0; r < own.Len(layer, g); ++r) {
          shared.ReadKey(layer, g, r, a.data()), own.ReadKey(layer, g, r, b.data());
          double dot = 0, aa = 0, bb = 0;
          for (size_t x = 0; x < kDim; ++x)
            dot += double{a[x]} * b[x], aa += double{a[x]} * a[x], bb += double{b[x]} * b[x];
          ASSERT_NEAR(aa, bb, 1e-4 * bb) << "the magnitude of an entry is its own";
          ASSERT_GT(dot, 0.6 * std::sqrt(aa * bb)) << "two directions within theta of the same vector";
        }
      }
    }
  }

  std::shared_ptr<MemoryMeter> meter_ = std::make_shared<MemoryMeter>(0);
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
  Vector before(kDim), after(kDim);
  forked.value()->ReadKey(1, 2, 7, before.data());
  for (int32_t t = kPrompt; t < kPrompt + 60; ++t) {
    Step(*own, t, t), Step(*shared, t, t);
    if (t % 2 == 0) Step(*forked.value(), t, 1000 + t);
    for (int layer = 0; layer < kLayers; ++layer)
      ASSERT_EQ(shared->BookLen(layer, 1, 0), own->BookLen(layer, 1, 0)) << t;
  }
  forked.value()->ReadKey(1, 2, 7, after.data());
  EXPECT_EQ(before, after);
  ExpectAlike(*shared, *own);
  own.reset(), shared.reset(), forked.value().reset();
  EXPECT_EQ(meter_->used(), 0);
}

TEST(KvCache, AStoreThatFindsNoMemoryChangesNothing) {
  auto meter = std::make_shared<MemoryMeter>(64 << 10);
  CacheConfig config;
  config.n_layers = 1, config.n_kv_heads = 2, config.group = 1, config.head_dim = kDim,
  config.page_slots = 16;
  config.raw = {KvType::kF32, kDim, 0};
  HeadFormat format;
  format.stored = config.raw;
  config.formats.assign(2, format);
  auto cache = KvCache::Create(config, &ReferenceKernels(), meter);
  ASSERT_TRUE(cache.ok());
  constexpr int32_t kEntries = 600;
  LayerKv kv;
  kv.n_kv_heads = 2, kv.head_dim = kDim, kv.capacity = kEntries, kv.len = {300, 300};
  ASSERT_TRUE(kv.keys.Allocate(nullptr, 2 * kEntries * kDim, "test").ok());
  ASSERT_TRUE(kv.values.Allocate(nullptr, 2 * kEntries * kDim, "test").ok());
  ASSERT_TRUE(kv.positions.Allocate(nullptr, 2 * kEntries, "test").ok());
  for (int g = 0; g < 2; ++g) {
    for (int32_t i = 0; i < kEntries; ++i) {
      kv.Positions(g)[i] = i;
      for (int x = 0; x < kDim; ++x)
        kv.Keys(g)[i * kDim + x] = static_cast<float>(i), kv.Values(g)[i * kDim + x] = static_cast<float>(-i);
    }
  }
  ASSERT_TRUE(cache.value()->Store(0, kv, nullptr, 0, nullptr).ok());
  const int64_t held = meter->used();
  kv.len = {600, 600};
  EXPECT_EQ(cache.value()->Store(0, kv, nullptr, 0, nullptr).code(), Code::kMemory);
  const std::vector<int32_t> first = {300, 300};
  EXPECT_EQ(cache.value()->AppendFrom(0, kv, first.data()).code(), Code::kMemory);
  EXPECT_EQ(meter->used(), held);
  EXPECT_EQ(cache.value()->Len(0, 1), 300);
  EXPECT_EQ(cache.value()->PositionAt(0, 1, 299), 299);
}

}  // namespace
}  // namespace kvc

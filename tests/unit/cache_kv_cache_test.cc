// The cache against lists of entries that know nothing of pages: thousands of random operations on forks that
// share them.
#include "lib/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/test_device.h"
#include "tests/support/emulated.h"

namespace kvc {
namespace {

using test::HostLayer;

constexpr int kLayers = 2, kHeads = 2, kGroup = 2, kDim = 8;
constexpr float kScale = 0.25f;

using test::RoundTrip;
using Vector = std::vector<float>;

struct Entry {
  Vector k, v, aux;
  int32_t position;
  bool mixed = false;  // the value took in another one: not known to the last bit
};

// What a cache must hold. The newest `tail` entries of a head are raw.
struct Naive {
  std::vector<std::vector<Entry>> heads = std::vector<std::vector<Entry>>(kLayers * kHeads);
  std::vector<size_t> tail = std::vector<size_t>(kLayers * kHeads, 0);
  int32_t next_position = (1 << 24) + 5;  // f32 has no number of its own for each of these
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
  int32_t value_bits = 0;
};

class KvCacheRandom : public testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<const CacheLayout> Layout() const {
    const Kind& kind = GetParam();
    test::UniformLayout layout;
    layout.n_layers = kLayers, layout.n_kv_heads = kHeads, layout.group = kGroup, layout.head_dim = kDim;
    layout.page_slots = kind.page_slots, layout.n_aux = kind.n_aux, layout.ranks = kind.ordered;
    layout.type = kind.type, layout.quant_group = kind.group, layout.ring_slots = kind.tail_slots;
    layout.value_bits = kind.value_bits;
    if (kind.key_channels) layout.coding = EntryCoding::kKeyChannels, layout.settle = kind.page_slots;
    return layout.Make();
  }
  VectorFormat Stored() const { return {GetParam().type, kDim, GetParam().group}; }
  VectorFormat StoredValue() const { return test::ValuesBeside(Stored(), GetParam().value_bits); }
  static VectorFormat Raw() { return {KvType::kF16, kDim, 0}; }
  static size_t At(int l, int g) { return static_cast<size_t>(l * kHeads + g); }

  Vector Random(int n = kDim) {
    Vector x(static_cast<size_t>(n));
    for (float& f : x) f = std::normal_distribution<float>()(random_);
    return x;
  }

  // Codes the keys of a page together, as one more block would be.
  void RoundTripKeys(std::vector<Entry>& entries, size_t first) {
    const int32_t n = GetParam().page_slots;
    Vector x;
    for (size_t i = first; i < first + static_cast<size_t>(n); ++i)
      x.insert(x.end(), entries[i].k.begin(), entries[i].k.end());
    std::vector<uint8_t> codes(static_cast<size_t>(n * CodeBytes(Stored().type, kDim)));
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
    for (size_t i = main; i < end; ++i) entries[i].v = RoundTrip(StoredValue(), entries[i].v);
    RoundTripKeys(entries, end - page);
    n.tail[h] -= end - main;
  }

  void SettleNaive(Naive& n, size_t h) {
    if (GetParam().key_channels) return SettleBlockNaive(n, h);
    while (GetParam().tail_slots > 0 && n.tail[h] >= static_cast<size_t>(GetParam().tail_slots)) {
      Entry& e = n.heads[h][n.heads[h].size() - n.tail[h]];
      e.k = RoundTrip(Stored(), e.k), e.v = RoundTrip(StoredValue(), e.v);
      --n.tail[h];
    }
  }

  void AppendNaive(Naive& n, size_t h, const Vector& k, const Vector& v, int32_t position) {
    const bool raw = GetParam().tail_slots > 0;
    n.heads[h].push_back({RoundTrip(raw ? Raw() : Stored(), k), RoundTrip(raw ? Raw() : StoredValue(), v),
                          Vector(static_cast<size_t>(GetParam().n_aux), 0.0f), position});
    n.tail[h] += GetParam().tail_slots > 0;
  }

  void RemoveNaive(Naive& n, size_t h, size_t rank) {
    if (rank >= n.heads[h].size() - n.tail[h]) --n.tail[h];
    n.heads[h].erase(n.heads[h].begin() + static_cast<std::ptrdiff_t>(rank));
  }

  // Of what a step may do to the entries there are: side values, and where entries may go one by one, one
  // head above its budget, with the values of those that go.
  struct Plan {
    StepPlan step;
    std::vector<int32_t> caps = std::vector<int32_t>(kLayers * kHeads, 1 << 28);
  };
  void MakePlan(const Pair& p, Plan* plan) {
    StepPlan& step = plan->step;
    const int n_aux = GetParam().n_aux;
    const size_t h = random_() % p.naive.heads.size(), len = p.naive.heads[h].size();
    step.evicts = GetParam().ordered && random_() % 3 == 0 && len >= 8;
    if (n_aux > 0 && (step.evicts || random_() % 2 == 0)) {
      for (int a = 0; a < n_aux; ++a)
        step.instrs[step.n_instrs++] = {StepOp::kAddOne, static_cast<int8_t>(a)};
    }
    if (!step.evicts) return;
    plan->caps[h] = static_cast<int32_t>(len - random_() % 3);
    step.caps = plan->caps.data(), step.rank = n_aux > 0 ? RankBy::kAux : RankBy::kPosition;
    step.select.protect.n_recent = 2;
    if (n_aux == 2) step.merge.kind = MergeKind::kIntoNext, step.merge.sums = 0, step.merge.counts = 1;
  }

  // The lowest go, among equals the newest; each into its next neighbour that is still there, the lowest
  // average first.
  void ReduceNaive(const StepPlan& plan, Naive& n, size_t h) {
    std::vector<Entry>& entries = n.heads[h];
    const auto average = [](const Entry& e) { return e.aux[0] / e.aux[1]; };
    const auto lower = [&](double a, double b, size_t i, size_t j) { return a < b || (a == b && i > j); };
    std::vector<int32_t> victims;  // positions
    for (size_t left = entries.size(); left > static_cast<size_t>(plan.caps[h]); --left) {
      size_t worst = entries.size();
      for (size_t i = 0; i + 2 < entries.size(); ++i) {
        if (std::count(victims.begin(), victims.end(), entries[i].position) > 0) continue;
        const auto rank = [&](size_t at) {
          return plan.rank == RankBy::kAux ? entries[at].aux[0] : double{1} * entries[at].position;
        };
        if (worst == entries.size() || lower(rank(i), rank(worst), i, worst)) worst = i;
      }
      victims.push_back(entries[worst].position);
    }
    for (; !victims.empty();) {
      size_t first = entries.size();
      for (size_t i = 0; i < entries.size(); ++i) {
        if (std::count(victims.begin(), victims.end(), entries[i].position) == 0) continue;
        const bool next =
            first == entries.size() || (plan.merge.kind == MergeKind::kIntoNext &&
                                        lower(average(entries[i]), average(entries[first]), i, first));
        if (next) first = i;
      }
      const Entry gone = entries[first];
      victims.erase(std::find(victims.begin(), victims.end(), gone.position));
      if (plan.merge.kind == MergeKind::kIntoNext) {
        Entry& to = entries[first + 1];
        const float a = average(gone), b = average(to);
        for (size_t x = 0; x < kDim; ++x) to.v[x] = (a * gone.v[x] + b * to.v[x]) / (a + b);
        to.mixed = true;
      }
      RemoveNaive(n, h, first);
    }
  }

  // What attention must see: every entry once.
  void ExpectAttention(const std::vector<Entry>& entries, const float* q, const float* p, const float* out) {
    std::vector<double> weights, sum(kDim, 0.0);
    double total = 0;
    for (const Entry& e : entries) {
      double logit = 0;
      for (size_t x = 0; x < kDim; ++x) logit += double{q[x]} * e.k[x];
      weights.push_back(std::exp(kScale * logit));
      total += weights.back();
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSERT_NEAR(p[i], weights[i] / total, 2e-5) << "rank " << i;
      for (size_t x = 0; x < kDim; ++x) sum[x] += weights[i] / total * entries[i].v[x];
    }
    for (size_t x = 0; x < kDim; ++x) ASSERT_NEAR(out[x], sum[x], 2e-4);
  }

  void Append(Pair& p) {
    Plan plan;
    MakePlan(p, &plan);
    const int64_t stride = p.cache->MaxLen() + 1;
    DeviceBuffer<float> attention;
    ASSERT_TRUE(attention.Allocate(memory_.own(), kLayers * kHeads * kGroup * stride, "test").ok());
    plan.step.attention = attention.at(), plan.step.attention_stride = stride;
    ASSERT_TRUE(
        step_.Ensure(p.cache.get(), plan.step.evicts || plan.step.n_instrs > 0 || random_() % 2 == 0).ok());
    for (int l = 0; l < kLayers; ++l) {
      const test::TokenInput in{l,
                                p.naive.next_position,
                                Random(kHeads * kGroup * kDim),
                                Random(kHeads * kDim),
                                Random(kHeads * kDim),
                                &none_,
                                RopePairing::kHalf,
                                kScale};
      const Vector out = step_.Run(*p.cache, plan.step, in);
      for (int g = 0; g < kHeads; ++g) {
        const size_t h = At(l, g);
        const auto part = [g](const Vector& x) {
          return Vector(x.begin() + g * kDim, x.begin() + (g + 1) * kDim);
        };
        AppendNaive(p.naive, h, part(in.k), part(in.v), p.naive.next_position);
        std::vector<Entry>& entries = p.naive.heads[h];
        for (int q = g * kGroup; q < (g + 1) * kGroup; ++q) {
          const Vector seen = memory_.Read(attention.at() + (l * kHeads * kGroup + q) * stride, stride);
          ASSERT_NO_FATAL_FAILURE(
              ExpectAttention(entries, in.q.data() + q * kDim, seen.data(), out.data() + q * kDim));
        }
        for (int i = 0; i < plan.step.n_instrs; ++i) {
          for (Entry& e : entries) e.aux[static_cast<size_t>(i)] += 1;
        }
        if (plan.step.evicts && static_cast<int32_t>(entries.size()) > plan.caps[h])
          ReduceNaive(plan.step, p.naive, h);
        SettleNaive(p.naive, h);
      }
    }
    step_.Done(p.cache.get());
    p.naive.next_position += random_() % 8 == 0 ? 40000 : 1;
  }

  void RemoveOne(Pair& p, int l, int g) {
    const size_t h = At(l, g), len = p.naive.heads[h].size();
    if (!GetParam().ordered || len == 0) return;
    const size_t rank = random_() % len;
    const int64_t stride = p.cache->MaxSlots() + 1;
    std::vector<uint8_t> marks(static_cast<size_t>(kHeads * stride), 1), heads(kHeads, 0);
    marks[static_cast<size_t>(g * stride) + rank] = 0, heads[static_cast<size_t>(g)] = 1;
    memory_.Evict(p.cache.get(), l, marks, stride, heads, {&none_, RopePairing::kHalf, false});
    RemoveNaive(p.naive, h, rank);
  }

  // Every key of a layer written again, as when entries lose the rotation they came with.
  void WriteKeys(Pair& p, int l) {
    if (GetParam().key_channels) return;
    for (int g = 0; g < kHeads; ++g) {
      const size_t h = At(l, g);
      if (!p.cache->rotated(static_cast<int32_t>(h))) continue;
      std::vector<Entry>& entries = p.naive.heads[h];
      for (size_t i = 0; i < entries.size(); ++i)
        entries[i].k = RoundTrip(i < entries.size() - p.naive.tail[h] ? Stored() : Raw(), entries[i].k);
    }
    const int64_t stride = p.cache->MaxSlots() + 1;
    const std::vector<uint8_t> marks(static_cast<size_t>(kHeads * stride), 1), heads(kHeads, 1);
    memory_.Evict(p.cache.get(), l, marks, stride, heads, {&none_, RopePairing::kHalf, true});
  }

  // Also after entries were removed one by one, and beside a fork that shares the pages.
  void Rewind(Pair& p) {
    int32_t newest = 0;
    for (const auto& head : p.naive.heads) newest = std::max(newest, head.empty() ? 0 : head.back().position);
    const int32_t first_gone = newest - static_cast<int32_t>(random_() % 20);
    ASSERT_TRUE(p.cache->RewindTo(memory_.stream(), first_gone).ok());
    for (size_t h = 0; h < p.naive.heads.size(); ++h) {
      size_t n = 0;
      std::vector<Entry>& head = p.naive.heads[h];
      for (; !head.empty() && head.back().position >= first_gone; ++n) head.pop_back();
      p.naive.tail[h] -= std::min(p.naive.tail[h], n);
    }
  }

  // A layer out, some entries chosen, and back, with other side values; or new ones behind it.
  void Compact(Pair& p, int l) {
    HostLayer kv = memory_.Load(*p.cache, l);
    std::vector<uint8_t> mark(kv.positions.size(), 1);
    for (float& x : kv.aux) x = 0.5f + std::abs(Random(1)[0]);
    for (int g = 0; g < kHeads; ++g) {
      const size_t h = At(l, g);
      std::vector<Entry> kept;
      ASSERT_EQ(kv.len[static_cast<size_t>(g)], static_cast<int32_t>(p.naive.heads[h].size()));
      for (int32_t i = 0; i < kv.len[static_cast<size_t>(g)]; ++i) {
        Entry& e = p.naive.heads[h][static_cast<size_t>(i)];
        for (int a = 0; a < GetParam().n_aux; ++a) e.aux[static_cast<size_t>(a)] = kv.Aux(a, g, i);
        if (random_() % 3 == 0) mark[kv.Entry(g, i)] = 0;
        if (mark[kv.Entry(g, i)] != 0) kept.push_back(e);
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
        kept[i].v = RoundTrip(coded ? StoredValue() : Raw(), kept[i].v);
        if (!coded || !GetParam().key_channels) kept[i].k = RoundTrip(coded ? Stored() : Raw(), kept[i].k);
      }
      p.naive.heads[h] = kept;
      p.naive.tail[h] = tail;
    }
    ASSERT_TRUE(memory_.Store(p.cache.get(), l, kv, &mark).ok());
  }

  void AppendBehind(Pair& p, int l) {
    const int32_t n = 1 + static_cast<int32_t>(random_() % 12);
    HostLayer kv(kHeads, kDim, n, GetParam().n_aux);
    for (int g = 0; g < kHeads; ++g) {
      for (int32_t i = 0; i < n; ++i) {
        const Vector k = Random(), v = Random();
        std::copy(k.begin(), k.end(), kv.Key(g, i)), std::copy(v.begin(), v.end(), kv.Value(g, i));
        kv.Position(g, i) = p.naive.next_position + i;
        AppendNaive(p.naive, At(l, g), k, v, p.naive.next_position + i);
        SettleNaive(p.naive, At(l, g));
      }
    }
    p.naive.next_position += n;
    ASSERT_TRUE(memory_.AppendFrom(p.cache.get(), l, kv, {0, 0}).ok());
  }

  void Check(Pair& p) {
    int64_t total = 0;
    for (int l = 0; l < kLayers; ++l) {
      HostLayer got = memory_.Load(*p.cache, l);
      for (int g = 0; g < kHeads; ++g) {
        std::vector<Entry>& entries = p.naive.heads[At(l, g)];
        const int32_t head = static_cast<int32_t>(At(l, g)), n = static_cast<int32_t>(entries.size());
        total += n;
        ASSERT_EQ(p.cache->Len(head), n);
        ASSERT_EQ(RingLen(p.cache->view(), head), static_cast<int32_t>(p.naive.tail[At(l, g)]));
        std::vector<int32_t> positions;
        ASSERT_TRUE(p.cache->Positions(memory_.stream(), head, &positions).ok());
        for (int32_t r = 0; r < n; ++r) {
          Entry& e = entries[static_cast<size_t>(r)];
          ASSERT_EQ(got.KeyOf(g, r), e.k) << "layer " << l << " head " << g << " rank " << r;
          for (int x = 0; e.mixed && x < kDim; ++x)
            ASSERT_NEAR(got.Value(g, r)[x], e.v[static_cast<size_t>(x)], 1e-5);
          if (e.mixed) e.v = got.ValueOf(g, r), e.mixed = false;
          ASSERT_EQ(got.ValueOf(g, r), e.v) << "layer " << l << " head " << g << " rank " << r;
          ASSERT_EQ(got.Position(g, r), e.position);
          ASSERT_EQ(positions[static_cast<size_t>(r)], e.position);
          for (int a = 0; a < GetParam().n_aux; ++a)
            ASSERT_EQ(got.Aux(a, g, r), e.aux[static_cast<size_t>(a)]);
        }
      }
    }
    ASSERT_EQ(p.cache->TotalEntries(), total);
  }

  // Pages in use only.
  void CheckTrimmed(Pair& p) {
    p.cache->Trim();
    const CacheLayout& layout = p.cache->layout();
    int64_t bytes = 0;
    for (int32_t h = 0; h < kLayers * kHeads; ++h) {
      const size_t main = p.naive.heads[static_cast<size_t>(h)].size() - p.naive.tail[static_cast<size_t>(h)];
      const int64_t slots = GetParam().page_slots;
      bytes += (static_cast<int64_t>(main) + slots - 1) / slots * PageBytes(layout, h);
      const bool has_ring = p.cache->HasRings() && p.cache->view().ring[h * kRingFields + kRingPage] >= 0;
      bytes += has_ring ? RingBytes(layout, h) : 0;
    }
    ASSERT_EQ(p.cache->bytes(), bytes);
    ASSERT_EQ(p.cache->bytes(), p.cache->LayerBytes(0) + p.cache->LayerBytes(1));
  }

  // One random operation. False: the cache it was for is not there any more, or another one is.
  bool Operate(std::vector<Pair>& pairs, size_t at, bool may_clear) {
    Pair& p = pairs[at];
    const int l = static_cast<int>(random_() % kLayers), g = static_cast<int>(random_() % kHeads);
    const uint32_t what = random_() % 100;
    if (what < 65) {
      Append(p);
    } else if (what < 78) {
      for (int i = 0; i < 3; ++i) RemoveOne(p, l, g);
    } else if (what < 82) {
      WriteKeys(p, l);
    } else if (what < 88) {
      AppendBehind(p, l);
    } else if (what < 91) {
      Rewind(p);
    } else if (what < 93) {
      Compact(p, l);
    } else if (what < 97 && pairs.size() < 4) {
      auto fork = p.cache->Fork();
      EXPECT_TRUE(fork.ok());
      const Naive copy = p.naive;
      pairs.push_back({std::move(fork.value()), copy});
      return false;
    } else if (what < 99 && pairs.size() > 1) {
      pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(random_() % pairs.size()));
      return false;
    } else if (what == 99 && may_clear) {
      p.cache->Clear();
      const int32_t next = p.naive.next_position;
      p.naive = Naive();
      p.naive.next_position = next;
    }
    return true;
  }

  std::mt19937 random_{17};
  test::TestDevice memory_{2, ReferenceKernels()};
  test::TokenStep step_{&memory_};
  const Rope none_ = Rope::None(kDim);
};

TEST_P(KvCacheRandom, HoldsWhatTheListsHold) {
  std::vector<Pair> pairs(1);
  auto made = KvCache::Create(Layout(), memory_.arenas());
  ASSERT_TRUE(made.ok());
  pairs[0].cache = std::move(made.value());
  const int n_ops = test::OnAnotherDevice() ? 800 : 4000 / test::EveryNth(5);
  for (int op = 0; op < n_ops && !HasFatalFailure(); ++op) {
    const size_t at = random_() % pairs.size();
    if (!Operate(pairs, at, op % 7 == 0)) continue;
    ASSERT_FALSE(HasFatalFailure()) << "operation " << op;
    if (op % 50 == 49) CheckTrimmed(pairs[at]);
    Check(pairs[at]);
    for (size_t i = 0; op % 40 == 0 && i < pairs.size(); ++i) Check(pairs[i]);
  }
  pairs.resize(1);
  // Every page lies in counted memory, of which a page touches one granule more than it fills at most.
  const int64_t granule = memory_.device()->info().granule,
                held = memory_.meter()->used() - pairs[0].cache->record_bytes(),
                pages = pairs[0].cache->bytes() / PageBytes(pairs[0].cache->layout(), 0) + kLayers * kHeads;
  EXPECT_GE(held, pairs[0].cache->bytes());
  EXPECT_LE(held, pairs[0].cache->bytes() + 2 * pages * granule);
  pairs.clear();
  EXPECT_EQ(memory_.meter()->used(), 0) << "nothing stays";
}

// What other caches, entries taken back and entries that left have had in the pages of a cache is not in its
// file, and is not needed to go on.
TEST_P(KvCacheRandom, WhatIsSavedHasNothingOfEntriesThatAreGone) {
  // Scales that keys share are also of those that were coded with them: nothing is taken back there.
  const bool takes_back = !GetParam().key_channels;
  constexpr int32_t kStay = 30, kSecret = 13;
  const auto feed = [&](KvCache& cache, int32_t position, uint32_t seed) {
    ASSERT_TRUE(step_.Ensure(&cache, true).ok());
    for (int l = 0; l < kLayers; ++l) {
      random_.seed(1000 * seed + static_cast<uint32_t>(kLayers * position + l));
      step_.Run(cache, {},
                {l, position, Random(kHeads * kGroup * kDim), Random(kHeads * kDim), Random(kHeads * kDim),
                 &none_, RopePairing::kHalf, kScale});
    }
    step_.Done(&cache);
  };
  std::vector<std::vector<uint8_t>> saved, later;
  const auto layout = Layout();
  const auto fresh = [&] { return std::move(KvCache::Create(layout, memory_.arenas()).value()); };
  std::vector<std::unique_ptr<KvCache>> neighbours;  // so that memory with pages of others is not given back
  for (const uint32_t secret : {1u, 2u}) {
    neighbours.push_back(fresh());
    {
      const auto other = fresh();
      for (int32_t t = 0; t < 60; ++t) feed(*neighbours.back(), t, 9), feed(*other, t, 10 + secret);
    }
    const auto cache = fresh();
    for (int32_t t = 0; t < kStay; ++t) feed(*cache, t, t == kSecret && GetParam().ordered ? secret : 0);
    for (int l = 0; l < kLayers && GetParam().ordered; ++l) {
      const int64_t stride = cache->MaxSlots() + 1;
      std::vector<uint8_t> marks(static_cast<size_t>(kHeads * stride), 1);
      for (int g = 0; g < kHeads; ++g) marks[static_cast<size_t>(g * stride) + kSecret] = 0;
      memory_.Evict(cache.get(), l, marks, stride, {1, 1}, {&none_, RopePairing::kHalf, false});
    }
    for (int32_t t = kStay; t < kStay + 21 && takes_back; ++t) feed(*cache, t, secret);
    ASSERT_TRUE(cache->RewindTo(memory_.stream(), kStay).ok());
    saved.push_back(test::Saved(cache.get(), memory_.stream()));
    const auto restored = fresh();
    MemorySource source({saved.back().data(), saved.back().size()});
    ArchiveReader in(&source, source.size());
    const Status status = restored->RestoreFrom(in, memory_.stream(), kStay, kStay, true, false);
    ASSERT_TRUE(status.ok()) << status.message();
    for (KvCache* one : {cache.get(), restored.get()}) {
      for (int32_t t = kStay; t < kStay + 30; ++t) feed(*one, t, 3);
      later.push_back(test::Saved(one, memory_.stream()));
    }
  }
  EXPECT_TRUE(saved[0] == saved[1]);
  for (const std::vector<uint8_t>& bytes : later) EXPECT_TRUE(bytes == later[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, KvCacheRandom,
    testing::Values(Kind{"f32", KvType::kF32, 0, 0, 4, 0, false},
                    Kind{"f16_ordered", KvType::kF16, 0, 0, 4, 0, true},
                    Kind{"f32_aux", KvType::kF32, 0, 0, 16, 2, true},
                    Kind{"bf16", KvType::kBf16, 0, 0, 64, 1, false},
                    Kind{"int8_tail", KvType::kInt8, 8, 5, 4, 0, false},
                    Kind{"int8_tail_ordered", KvType::kInt8, 8, 7, 4, 1, true},
                    Kind{"int8_channels", KvType::kInt8, 8, 7, 4, 0, false, true},
                    Kind{"int4_channels_aux", KvType::kInt4, 4, 8, 8, 1, false, true},
                    Kind{"int4_no_residual", KvType::kInt4, 4, 1, 16, 0, true},
                    Kind{"int8_int4", KvType::kInt8, 8, 5, 4, 1, true, false, 4},
                    Kind{"int8_channels_int4", KvType::kInt8, 8, 7, 4, 0, false, true, 4},
                    Kind{"int4_int8", KvType::kInt4, 4, 1, 16, 0, false, false, 8},
                    Kind{"int4_int2", KvType::kInt4, 4, 5, 4, 1, true, false, 2},
                    Kind{"int8_channels_int2", KvType::kInt8, 8, 7, 4, 0, false, true, 2},
                    Kind{"int4_at_once", KvType::kInt4, 4, 0, 4, 1, true},
                    Kind{"int4_int2_at_once", KvType::kInt4, 8, 0, 4, 1, false, false, 2}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST(KvCache, AStoreThatFindsNoMemoryChangesNothing) {
  // What so many entries of two heads and the records take, and not twice as many: of large granules one.
  const int64_t granule = test::TestDevice().device()->info().granule,
                times = std::max<int64_t>(granule / (64 << 10), 1),
                limit = std::max<int64_t>(64 << 10, granule + granule / 2);
  const auto entries = static_cast<int32_t>(300 * times);
  test::TestDevice memory(2, ReferenceKernels(), limit);
  test::UniformLayout layout;
  layout.n_kv_heads = 2, layout.head_dim = kDim, layout.page_slots = 16;
  auto made = KvCache::Create(layout.Make(), memory.arenas());
  ASSERT_TRUE(made.ok());
  KvCache& cache = *made.value();
  HostLayer kv(2, kDim, 2 * entries);
  for (int g = 0; g < 2; ++g) {
    for (int32_t i = 0; i < 2 * entries; ++i) {
      kv.Position(g, i) = i;
      std::fill_n(kv.Key(g, i), kDim, static_cast<float>(i));
      std::fill_n(kv.Value(g, i), kDim, static_cast<float>(-i));
    }
  }
  kv.len = {entries, entries};
  ASSERT_TRUE(memory.Store(&cache, 0, kv).ok());
  const int64_t held = memory.meter()->used();
  kv.len = {2 * entries, 2 * entries};
  EXPECT_EQ(memory.Store(&cache, 0, kv).code(), Code::kMemory);
  EXPECT_EQ(memory.meter()->used(), held);
  EXPECT_EQ(memory.AppendFrom(&cache, 0, kv, {entries, entries}).code(), Code::kMemory);
  EXPECT_EQ(memory.meter()->used(), held);
  EXPECT_EQ(cache.Len(1), entries);
  HostLayer got = memory.Load(cache, 0);
  EXPECT_EQ(got.Position(1, entries - 1), entries - 1);
  EXPECT_EQ(got.KeyOf(1, entries - 1), kv.KeyOf(1, entries - 1));
}

// Heads of a layer with a window leave it page by page and take what comes behind the first head's length: a
// file in which one holds as much, but less of it in pages, was made by nobody.
TEST(KvCache, RestoredHeadsOfAWindowHoldTheSameInTheSamePlaces) {
  test::TestDevice memory(2, ReferenceKernels());
  test::UniformLayout uniform;
  uniform.n_kv_heads = 2, uniform.head_dim = kDim, uniform.page_slots = 16;
  uniform.type = KvType::kInt8, uniform.quant_group = kDim, uniform.ring_slots = 8;
  const auto layout = std::make_shared<CacheLayout>(*uniform.Make());
  layout->windows = {64}, layout->window_slack = 4;
  const auto fresh = [&] { return std::move(KvCache::Create(layout, memory.arenas()).value()); };
  const auto restored = [&](KvCache* cache) {
    const std::vector<uint8_t> bytes = test::Saved(cache, memory.stream());
    MemorySource source({bytes.data(), bytes.size()});
    ArchiveReader in(&source, source.size());
    return fresh()->RestoreFrom(in, memory.stream(), 18, 18, false, false);
  };
  const auto cache = fresh();
  HostLayer kv(2, kDim, 20);
  for (int32_t i = 0; i < 20; ++i) kv.Position(0, i) = kv.Position(1, i) = i;
  ASSERT_TRUE(memory.Store(cache.get(), 0, kv).ok());
  ASSERT_TRUE(cache->RewindTo(memory.stream(), 18).ok());
  const CacheView& view = cache->view();
  ASSERT_EQ(view.len[1], 13);
  ASSERT_TRUE(restored(cache.get()).ok());
  // The newest entry of the second head's pages is the oldest of its ring.
  int32_t* ring = view.ring + kRingFields;
  const int32_t format = layout->heads[1].ring, slot = 7;
  const PageFormat& f = layout->formats[static_cast<size_t>(format)];
  ASSERT_EQ(ring[kRingStart], 0);
  memory.Write((view.bases[format] + ring[kRingPage] * f.bytes + f.positions + 4 * slot).As<int32_t>(),
               std::vector<int32_t>{12});
  --view.len[1], ring[kRingStart] = slot, ++ring[kRingLen];
  const Status status = restored(cache.get());
  EXPECT_EQ(status.code(), Code::kBadModel) << status.message();
}

}  // namespace
}  // namespace kvc

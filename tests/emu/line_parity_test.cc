// What is chosen along lines that one block passes over with many threads: of long prompts' scores, with ties
// of every kind, and of large vocabularies. As on the processor, and as a sort has it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/emu/device_pair.h"

namespace kvc {
namespace {

constexpr int32_t kHeads = 3;

class LineParity : public DeviceParity {
 protected:
  // Scores of so many kinds: apart, in steps, all alike, rising, and a few with what is no number among them.
  static constexpr int kKinds = 5;
  std::vector<float> Scores(int kind, int64_t n) {
    std::vector<float> x = Random(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      float& v = x[static_cast<size_t>(i)];
      if (kind == 1) v = std::round(2 * v) / 2;
      if (kind == 2) v = -0.25f;
      if (kind == 3) v = 1e-3f * static_cast<float>(i);
      if (kind == 4 && i % 37 == 5) v = i % 2 == 0 ? NAN : INFINITY;
      if (kind == 4 && i % 41 == 7) v = i % 2 == 0 ? -INFINITY : -0.0f;
    }
    return x;
  }
  // A layer of heads with these lengths, for operations that look at scores alone.
  LayerView LayerOf(std::vector<int32_t>* len, DevicePtr<int32_t> positions) {
    LayerView layer;
    layer.n_kv_heads = kHeads, layer.head_dim = 8, layer.capacity = (*len)[0], layer.len = len->data();
    layer.positions = positions;
    return layer;
  }
};

// By score, descending, then by place.
std::vector<uint8_t> BestOf(const float* scores, int32_t n, int32_t count) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  std::vector<uint8_t> marks(static_cast<size_t>(n), 0);
  for (int32_t i = 0; i < count; ++i) marks[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
  return marks;
}

TEST_F(LineParity, MarksTheBest) {
  for (const int32_t n : {40, 1023, 1025, 5000, 9001}) {
    std::vector<int32_t> len = {n, n - 1, n / 2 + 3}, positions(static_cast<size_t>(kHeads * n));
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i) % n;
    const auto at = pair_->Copy(positions);
    for (int kind = 0; kind < kKinds; ++kind) {
      const std::vector<float> values = Scores(kind, int64_t{kHeads} * n);
      const auto scores = pair_->Copy(values);
      const auto marks = pair_->Copy(std::vector<uint8_t>(values.size()));
      for (const SelectKind how : {SelectKind::kTop, SelectKind::kLowest, SelectKind::kDraw}) {
        SCOPED_TRACE(testing::Message()
                     << n << " entries, scores " << kind << ", rule " << static_cast<int>(how));
        SelectRule rule;
        rule.kind = how, rule.protect = {4, 9}, rule.random_share = 0.3, rule.seed = 5;
        const int32_t counts[kHeads] = {n / 3, 1, n};
        for (int i = 0; i < 2; ++i) {
          const auto scratch = pair_->Scratch(i, devices_[i]->SelectScratchBytes(kHeads, n));
          const SelectArgs a{rule, LayerOf(&len, at.at[i]), 2, counts, scores.at[i], marks.at[i], n, scratch};
          ASSERT_TRUE(devices_[i]->Select(streams_[i].get(), a).ok());
        }
        const std::vector<uint8_t> got = pair_->Read(marks, 1), expected = pair_->Read(marks, 0);
        for (int32_t g = 0; g < kHeads; ++g) {
          const auto first = static_cast<ptrdiff_t>(g) * n, end = first + len[static_cast<size_t>(g)];
          ASSERT_TRUE(std::equal(got.begin() + first, got.begin() + end, expected.begin() + first)) << g;
          if (how != SelectKind::kTop || kind == 4 || counts[g] >= n) continue;
          const int32_t free = static_cast<int32_t>(end - first) - 4 - 9;
          ASSERT_EQ(BestOf(values.data() + first + 4, free, std::min(counts[g], free)),
                    std::vector<uint8_t>(got.begin() + first + 4, got.begin() + end - 9))
              << g;
        }
      }
    }
    pair_->blocks.clear();
  }
}

TEST_F(LineParity, MarksWhatQueryHeadsKeepAndTakesMarksOff) {
  constexpr int32_t kGroup = 2;
  for (const int32_t n : {50, 1100, 4500}) {
    std::vector<int32_t> len = {n, n - 1, n / 2 + 3};
    const auto at = pair_->Copy(std::vector<int32_t>(static_cast<size_t>(kHeads * n)));
    for (int kind = 0; kind < kKinds; ++kind) {
      SCOPED_TRACE(testing::Message() << n << " entries, scores " << kind);
      const auto per_head = pair_->Copy(Scores(kind, int64_t{kHeads} * kGroup * n));
      const auto marks = pair_->Copy(std::vector<uint8_t>(static_cast<size_t>(kHeads * n)));
      const auto seen = pair_->Copy(std::vector<uint32_t>(static_cast<size_t>(kHeads * n)));
      const int32_t counts[kHeads] = {n / 4, 3, n / 2};
      int32_t kept[2][kHeads] = {};
      for (int i = 0; i < 2; ++i) {
        const auto scratch = pair_->Scratch(i, devices_[i]->SelectScratchBytes(kHeads, n));
        const SelectByQueryHeadArgs a{LayerOf(&len, at.at[i]),
                                      kHeads * kGroup,
                                      7,
                                      counts,
                                      per_head.at[i],
                                      marks.at[i],
                                      seen.at[i],
                                      n,
                                      scratch,
                                      kept[i]};
        ASSERT_TRUE(devices_[i]->SelectByQueryHead(streams_[i].get(), a).ok());
      }
      const auto equal = [&](const auto& what) {
        const auto a = pair_->Read(what, 0), b = pair_->Read(what, 1);
        for (int32_t g = 0; g < kHeads; ++g) {
          const auto first = a.begin() + static_cast<ptrdiff_t>(g) * n;
          if (!std::equal(first, first + len[static_cast<size_t>(g)], b.begin() + (first - a.begin())))
            return false;
        }
        return true;
      };
      EXPECT_TRUE(equal(marks));
      EXPECT_TRUE(equal(seen));
      int32_t held[kHeads];
      for (int g = 0; g < kHeads; ++g) {
        ASSERT_EQ(kept[0][g], kept[1][g]) << g;
        held[g] = std::max(kept[0][g] - 40 * g, 1);
      }
      for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(
            devices_[i]->Unmark(streams_[i].get(), {LayerOf(&len, at.at[i]), held, 2, marks.at[i], n}).ok());
      }
      EXPECT_TRUE(equal(marks));
    }
    pair_->blocks.clear();
  }
}

TEST_F(LineParity, CountsTheBestOfALayer) {
  for (const int32_t n : {60, 1500, 6000}) {
    std::vector<int32_t> len = {n, n - 1, n / 2 + 3};
    const auto at = pair_->Copy(std::vector<int32_t>(static_cast<size_t>(kHeads * n)));
    for (int kind = 0; kind < kKinds - 1; ++kind) {
      const auto scores = pair_->Copy(Scores(kind, int64_t{kHeads} * n));
      for (const auto& [total, locked] : {std::pair{n / 2, 0}, {3 * n / 2, n / 8}, {1, 0}, {n / 3, n / 10}}) {
        for (const bool concentrated : {false, true}) {
          SCOPED_TRACE(testing::Message() << n << ", scores " << kind << ", " << total << " of which "
                                          << locked << (concentrated ? ", concentrated" : ""));
          int64_t counts[2][kHeads] = {};
          for (int i = 0; i < 2; ++i) {
            const auto scratch = pair_->Scratch(i, devices_[i]->SelectScratchBytes(kHeads, n));
            const CountBestArgs a{LayerOf(&len, at.at[i]),
                                  {4, 9},
                                  scores.at[i],
                                  n,
                                  total,
                                  locked,
                                  n / 10,
                                  concentrated,
                                  counts[i],
                                  scratch};
            ASSERT_TRUE(devices_[i]->CountBest(streams_[i].get(), a).ok());
          }
          for (int g = 0; g < kHeads; ++g) EXPECT_EQ(counts[0][g], counts[1][g]) << g;
          EXPECT_EQ(std::accumulate(counts[1], counts[1] + kHeads, int64_t{0}), total);
        }
      }
    }
    pair_->blocks.clear();
  }
}

// WeightedKV: what is dropped goes into the next one that is there, in the order of averages, with ties.
TEST_F(LineParity, MergesIntoTheNextOne) {
  constexpr int32_t kD = 40;
  for (const int32_t n : {1, 40, 300, 2600}) {
    std::vector<int32_t> len = {n, std::max(n - 1, 1), n / 2 + 1};
    const auto at = pair_->Copy(std::vector<int32_t>(static_cast<size_t>(kHeads * n)));
    for (const int one_of : {2, 8, 700}) {
      for (const bool steps : {false, true}) {
        SCOPED_TRACE(testing::Message() << n << " entries of which one in " << one_of << " stays, "
                                        << (steps ? "averages in steps" : "averages apart"));
        const size_t all = static_cast<size_t>(kHeads * n);
        std::vector<float> aux = Random(2 * all), values = Random(all * kD);
        std::vector<uint8_t> marks(all);
        for (size_t i = 0; i < all; ++i) {
          aux[i] = steps ? static_cast<float>(random_() % 3) : std::fabs(aux[i]);
          aux[all + i] = static_cast<float>(1 + random_() % 4);
          marks[i] = random_() % static_cast<unsigned>(one_of) == 0 ? 1 : 0;
        }
        const auto side = pair_->Copy(aux), value = pair_->Copy(values);
        const auto mark = pair_->Copy(marks);
        for (int i = 0; i < 2; ++i) {
          MergeArgs a{};
          a.rule.kind = MergeKind::kIntoNext, a.rule.sums = 0, a.rule.counts = 1;
          a.layer = LayerOf(&len, at.at[i]);
          a.layer.head_dim = kD, a.layer.n_aux = 2, a.layer.aux = side.at[i];
          a.layer.values = value.at[i].As<uint8_t>();
          a.marks = mark.at[i], a.stride = n;
          a.scratch = pair_->Scratch(i, devices_[i]->SelectScratchBytes(kHeads, n));
          ASSERT_TRUE(devices_[i]->Merge(streams_[i].get(), a).ok());
        }
        const std::vector<float> expected = pair_->Read(value, 0), got = pair_->Read(value, 1);
        for (int32_t g = 0; g < kHeads; ++g) {
          for (int32_t e = 0; e < len[static_cast<size_t>(g)]; ++e) {
            const size_t entry = static_cast<size_t>(g * n + e);
            for (size_t j = entry * kD; marks[entry] != 0 && j < (entry + 1) * kD; ++j)
              ASSERT_NEAR(expected[j], got[j], 1e-6) << "head " << g << ", entry " << e;
          }
        }
      }
    }
    pair_->blocks.clear();
  }
}

// CaM: what is dropped is added to those behind it that stay, few of them or all, by a draw or its mean.
TEST_F(LineParity, SpreadsToThoseBehind) {
  constexpr int32_t kD = 40;
  for (const int32_t n : {1, 40, 300, 1500}) {
    std::vector<int32_t> len = {n, std::max(n - 1, 1), n / 2 + 1}, positions(static_cast<size_t>(kHeads * n));
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = 3 * (static_cast<int32_t>(i) % n);
    const auto at = pair_->Copy(positions);
    for (const int one_of : {2, 8, 400}) {
      for (const int32_t n_targets : {1, 5, 32, 4096}) {
        SCOPED_TRACE(testing::Message()
                     << n << " entries of which one in " << one_of << " stays, " << n_targets << " targets");
        const size_t all = static_cast<size_t>(kHeads * n);
        std::vector<float> sums = Random(all), values = Random(all * kD);
        for (float& x : sums) x = std::fabs(x);
        std::vector<uint8_t> marks(all);
        for (uint8_t& mark : marks) mark = random_() % static_cast<unsigned>(one_of) == 0 ? 1 : 0;
        const auto side = pair_->Copy(sums), value = pair_->Copy(values);
        const auto mark = pair_->Copy(marks);
        for (int i = 0; i < 2; ++i) {
          MergeArgs a{};
          a.rule.kind = MergeKind::kSpread, a.rule.sums = 0, a.rule.n_targets = n_targets;
          a.rule.expected = one_of == 8, a.rule.by_maximum = n_targets == 5, a.rule.seed = 7;
          a.layer = LayerOf(&len, at.at[i]);
          a.layer.head_dim = kD, a.layer.n_aux = 1, a.layer.aux = side.at[i];
          a.layer.values = value.at[i].As<uint8_t>();
          a.layer_index = 2, a.marks = mark.at[i], a.stride = n;
          a.scratch = pair_->Scratch(i, devices_[i]->SelectScratchBytes(kHeads, n));
          ASSERT_TRUE(devices_[i]->Merge(streams_[i].get(), a).ok());
        }
        const std::vector<float> expected = pair_->Read(value, 0), got = pair_->Read(value, 1);
        for (size_t j = 0; j < got.size(); ++j)
          ASSERT_NEAR(expected[j], got[j], 1e-5 * std::max(1.0f, std::fabs(expected[j]))) << j;
      }
    }
    pair_->blocks.clear();
  }
}

// Weights of large vocabularies, in steps as well, by everything that cuts them: of few likely tokens, of so
// many that no list holds them, and of one.
TEST_F(LineParity, SamplesFromLargeVocabularies) {
  int same = 0, all = 0;
  for (const int32_t n : {1025, 20011}) {
    for (int draw = 0; draw < 48; ++draw) {
      std::vector<float> values = Scores(draw % 2, n);
      const float sharp = draw < 16 ? 3.0f : draw < 32 ? 0.02f : 40.0f;
      for (float& v : values) v *= sharp;
      const auto logits = pair_->Copy(values), weights = pair_->Copy(std::vector<float>(values.size()));
      int32_t token[2] = {-2, -2};
      std::vector<float> left[2];
      for (int i = 0; i < 2; ++i) {
        SampleRow a;
        a.logits = logits.at[i];
        a.temperature = 0.9f, a.seed = 3, a.draw = draw;
        if (draw % 4 < 3) a.top_p = draw % 3 == 0 ? 0.05f : 0.9f;
        if (draw % 4 >= 2) a.top_k = 300;
        ASSERT_TRUE(devices_[i]->Sample(streams_[i].get(), {{&a, 1}, n, weights.at[i], &token[i]}).ok());
        left[i] = pair_->Read(weights, i);
      }
      const auto count = [](const std::vector<float>& w) {  // of those that count in whole numbers
        return std::count_if(w.begin(), w.end(), [](float x) { return x > 1e-12f; });
      };
      EXPECT_NEAR(static_cast<double>(count(left[0])), static_cast<double>(count(left[1])), 1)
          << n << " " << draw;
      EXPECT_LT(count(left[1]), n);
      ++all, same += token[0] == token[1] ? 1 : 0;
      pair_->blocks.clear();
    }
  }
  EXPECT_GE(same, all - 1) << "a draw on the border of two tokens may fall to either side";
}

// Rows at once are as they are alone, bit for bit: whichever draw, are penalised, biased or masked, and where
// one has nothing to choose. Their logits begin anywhere.
TEST_F(LineParity, RowsAreChosenAsAlone) {
  constexpr int32_t kRows = 37;
  for (const int32_t n : {1, 61, 1031}) {
    std::vector<float> values = Random(static_cast<size_t>(kRows * n), 3);
    std::fill_n(values.begin() + 5 * n, n, NAN);
    const std::vector<int32_t> repeated = {0, n / 2};
    const std::vector<TokenBias> biases = {{0, -1.0f}, {n / 2, 2.0f}, {n / 2, 1.0f}};
    const std::vector<uint32_t> allowed(static_cast<size_t>((n + 31) / 32), 0xfffffff5u);
    const auto rows_of = [&](DevicePtr<float> logits) {
      std::vector<SampleRow> rows(kRows);
      for (int32_t i = 0; i < kRows; ++i) {
        SampleRow& row = rows[static_cast<size_t>(i)];
        row.logits = logits + int64_t{i} * n;
        row.temperature = i % 3 == 0 ? 0.0f : 0.6f, row.seed = 7, row.draw = i / 2;
        if (i % 4 == 1) row.top_p = 0.8f;
        if (i % 5 == 2) row.top_k = 9;
        if (i % 2 == 0 && n > 1) row.repeated = repeated, row.repeat_penalty = 1.5f;
        if (i % 7 == 3) row.biases = biases;
        if (i % 6 == 4) row.allowed = allowed.data();
      }
      return rows;
    };
    // On the device, at once; there, one by one; on the processor.
    std::vector<int32_t> tokens[3];
    for (int way = 0; way < 3; ++way) {
      const int i = way < 2 ? 1 : 0;
      const auto logits = pair_->Copy(values), weights = pair_->Copy(values);
      const std::vector<SampleRow> rows = rows_of(logits.at[i]);
      tokens[way].assign(kRows, -2);
      ASSERT_GE(devices_[1]->info().sample_rows, kRows);
      for (size_t first = 0, some = way == 0 ? kRows : 1; first < rows.size(); first += some) {
        const Span<const SampleRow> now(rows.data() + first, some);
        ASSERT_TRUE(
            devices_[i]->Sample(streams_[i].get(), {now, n, weights.at[i], tokens[way].data() + first}).ok());
      }
    }
    EXPECT_EQ(tokens[0], tokens[1]) << n;
    EXPECT_EQ(tokens[0], tokens[2]) << n;
    EXPECT_EQ(tokens[0][5], -1);
    pair_->blocks.clear();
  }
}

// Many ranges at once, short and long, that begin and end anywhere; what lies between them stays.
TEST_F(LineParity, CopiesRanges) {
  std::mt19937 random(3);
  constexpr int64_t kBytes = 3 << 20;
  std::vector<uint8_t> from(kBytes), to(kBytes);
  for (uint8_t& x : from) x = static_cast<uint8_t>(random());
  for (const int n : {1, 2, 31, 32, 33, 150}) {
    const auto source = pair_->Copy(from), target = pair_->Copy(to);
    std::vector<PageCopy> copies[2];
    int64_t at = 0;
    for (int k = 0; k < n; ++k) {
      const int64_t step = int64_t{1} << random() % 6,  // on which addresses and lengths lie
          longest = n > 1 && k == n / 2 ? 600'000
                    : n == 1            ? 40'000
                                        : 14'000,
                    bytes = k % 13 == 5 ? 0 : (1 + random() % longest) / step * step;
      at = (at + 63) / step * step;
      const int64_t begin = static_cast<int64_t>(random() % (kBytes - bytes)) / step * step;
      for (int i = 0; i < 2; ++i) copies[i].push_back({target.at[i] + at, source.at[i] + begin, bytes});
      at += bytes;
    }
    ASSERT_LT(at, kBytes);
    for (int i = 0; i < 2; ++i)
      ASSERT_TRUE(devices_[i]->Copy(streams_[i].get(), {copies[i].data(), copies[i].size()}).ok());
    EXPECT_EQ(pair_->Read(target, 1), pair_->Read(target, 0)) << n;
    pair_->blocks.clear();
  }
}

// A mean over the layer's heads is of what all of them have by then, whatever each does to its own before and
// after.
TEST_F(LineParity, MeansOfTheLayer) {
  constexpr int32_t kLen = 200, kDim = 16, kGroup = 2, kRows = 5;
  std::vector<int32_t> len(kHeads, kLen);
  std::vector<int32_t> positions(static_cast<size_t>(kHeads * kLen));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i) % kLen;
  const auto at = pair_->Copy(positions);
  const auto keys = pair_->Copy(Random(positions.size() * kDim));
  const auto queries = pair_->Copy(Random(static_cast<size_t>(kRows * kHeads * kGroup * kDim)));
  const auto run = [&](int i, bool before, bool after) {
    ScoreProgram program;
    program.rows.n_rows = kRows;
    program.Add(ScoreOp::kRows);
    if (before) program.Add(ScoreOp::kMeanQ);
    program.Add(ScoreOp::kLayerMean);
    if (after) program.Add(ScoreOp::kDivideQ);
    const auto scores = pair_->Copy(std::vector<float>(positions.size())),
               per_head = pair_->Copy(std::vector<float>(positions.size() * kGroup));
    ScoreArgs a{};
    a.program = &program, a.n_heads = kHeads * kGroup, a.scale = 0.25f, a.stride = kLen;
    a.layer.n_kv_heads = kHeads, a.layer.head_dim = kDim, a.layer.capacity = kLen, a.layer.len = len.data();
    a.layer.keys = a.layer.values = keys.at[i].As<uint8_t>(), a.layer.positions = at.at[i];
    a.observed.n_rows = a.observed.n_new = kRows, a.observed.queries = queries.at[i];
    a.scores = scores.at[i], a.per_head = per_head.at[i];
    a.scratch = pair_->Scratch(
        i, devices_[i]->ScoreScratchBytes({&program, a.n_heads, kHeads, kDim, kRows, a.stride}));
    EXPECT_TRUE(devices_[i]->Score(streams_[i].get(), a).ok());
    return pair_->Read(scores, i);
  };
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> plain = run(i, false, false), divided = run(i, true, true);
    EXPECT_EQ(run(i, false, true), plain) << i;
    for (size_t t = 0; t < plain.size(); ++t)
      ASSERT_NEAR(divided[t] * kRows, plain[t], 1e-5) << i << " " << t;
  }
}

}  // namespace
}  // namespace kvc

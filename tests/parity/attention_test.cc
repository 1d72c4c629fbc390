// Attention over whole prompts against the textbook formula in double.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/parity/cases.h"

namespace kvc::parity {
namespace {

// Logits here reach 20; their f32 error of about 1e-6 is the relative error of every weight.
constexpr double kTolerance = 2e-5;

struct Expected {
  std::vector<double> out, lse;  // [n_q, d], [n_q]
};

Expected Attention(const RowsData& data) {
  const RowsCase& c = data.shape;
  Expected e;
  for (int32_t i = 0; i < c.n_q; ++i) {
    const int32_t end = c.first_visible + i + 1, begin = c.window > 0 ? std::max(0, end - c.window) : 0;
    std::vector<double> out(static_cast<size_t>(c.d));
    double sum = 0;
    for (int32_t t = begin; t < end; ++t) {
      const double p = std::exp(data.Logit(i, t));
      sum += p;
      for (int32_t j = 0; j < c.d; ++j)
        out[static_cast<size_t>(j)] += p * data.v[static_cast<size_t>(t * c.d + j)];
    }
    for (double x : out) e.out.push_back(x / sum);
    e.lse.push_back(std::log(sum));
  }
  return e;
}

std::string Name(const KernelTable* table, const RowsCase& c) {
  return std::string(table->name) + ": rows " + std::to_string(c.n_q) + " first " +
         std::to_string(c.first_visible) + " d " + std::to_string(c.d) + " window " +
         std::to_string(c.window);
}

void ExpectPrefillAgrees(const RowsData& data) {
  const RowsCase& c = data.shape;
  const Expected expected = Attention(data);
  for (const KernelTable* table : Tables()) {
    std::vector<float> out(data.q.size(), 5), lse(static_cast<size_t>(c.n_q));
    table->prefill_attention(data.Prefill(out.data(), lse.data()));
    for (int32_t i = 0; i < c.n_q; ++i) {
      ASSERT_NEAR(expected.lse[static_cast<size_t>(i)], lse[static_cast<size_t>(i)], kTolerance)
          << Name(table, c);
      for (int32_t j = 0; j < data.stride; ++j) {
        const float got = out[static_cast<size_t>(i * data.stride + j)];
        const double want =
            j < c.d ? expected.out[static_cast<size_t>(i * c.d + j)] : 5;  // what lies between rows stays
        ASSERT_NEAR(want, got, kTolerance) << Name(table, c) << " row " << i << " channel " << j;
      }
    }
  }
}

TEST(PrefillAttentionParity, AgreesWithDouble) {
  for (const RowsCase& c : RowsCases()) {
    ExpectPrefillAgrees(RowsData(c));
    if (HasFatalFailure()) return;
  }
}

// As an entry's does that stands for others.
TEST(PrefillAttentionParity, TheFirstLogitGains) {
  for (const RowsCase& c : RowsCases()) {
    RowsData data(c);
    data.first_logit = 3.25f;
    ExpectPrefillAgrees(data);
    if (HasFatalFailure()) return;
  }
}

// Without sums of values the sums of weights are the same to the bit.
TEST(PrefillAttentionParity, WithoutOutTheLseIsTheSame) {
  for (const RowsCase& c : RowsCases()) {
    const RowsData data(c);
    for (const KernelTable* table : Tables()) {
      std::vector<float> out(data.q.size()), lse(static_cast<size_t>(c.n_q)), alone(lse.size());
      table->prefill_attention(data.Prefill(out.data(), lse.data()));
      table->prefill_attention(data.Prefill(nullptr, alone.data()));
      ASSERT_EQ(alone, lse) << Name(table, c);
    }
  }
}

// One more logit below, among and far above the others: its share is nobody's, and it is in the lse.
TEST(PrefillAttentionParity, ASinkTakesItsShare) {
  for (const RowsCase& c : RowsCases()) {
    const RowsData data(c);
    const Expected without = Attention(data);
    for (const float sink : {-30.0f, 0.5f, 25.0f}) {
      for (const KernelTable* table : Tables()) {
        std::vector<float> out(data.q.size(), 5), lse(static_cast<size_t>(c.n_q));
        PrefillAttentionArgs a = data.Prefill(out.data(), lse.data());
        a.sink = &sink;
        table->prefill_attention(a);
        for (int32_t i = 0; i < c.n_q; ++i) {
          const double all = std::exp(without.lse[static_cast<size_t>(i)]),
                       sum = all + std::exp(double{sink});
          ASSERT_NEAR(std::log(sum), lse[static_cast<size_t>(i)], kTolerance)
              << Name(table, c) << " " << sink;
          for (int32_t j = 0; j < c.d; ++j) {
            ASSERT_NEAR(without.out[static_cast<size_t>(i * c.d + j)] * all / sum,
                        out[static_cast<size_t>(i * data.stride + j)], kTolerance)
                << Name(table, c) << " row " << i << " sink " << sink;
          }
        }
      }
    }
  }
}

// With a factor on the row's logits, which is on the sink too; keys that are not seen leave it all to the
// others.
TEST(ScoreRowsParity, ASinkTakesItsShare) {
  constexpr uint32_t kBit = 2;
  for (const RowsCase& c : RowsCases()) {
    const RowsData data(c);
    const std::vector<int32_t> visible(static_cast<size_t>(c.n_q), data.n_keys);
    std::vector<float> gain;
    for (int32_t i = 0; i < c.n_q; ++i) gain.push_back(0.5f + 0.25f * static_cast<float>(i % 5));
    std::vector<uint32_t> seen(static_cast<size_t>(data.n_keys), ~0u);
    for (size_t t = 1; t < seen.size(); t += 3) seen[t] = ~kBit;
    for (const float sink : {-30.0f, 0.5f, 12.0f}) {
      for (const KernelTable* table : Tables()) {
        std::vector<float> p(static_cast<size_t>(c.n_q) * data.n_keys, 9);
        ScoreRowsArgs a{data.q.data(), data.k.data(), visible.data(), gain.data(), p.data(),  data.stride,
                        data.n_keys,   c.n_q,         data.n_keys,    c.d,         data.scale};
        a.cap = c.cap, a.sink = &sink, a.seen = seen.data(), a.seen_bit = kBit;
        table->score_rows(a);
        for (int32_t i = 0; i < c.n_q; ++i) {
          const double factor = double{gain[static_cast<size_t>(i)]};
          double sum = std::exp(factor * sink);
          for (int32_t t = 0; t < data.n_keys; ++t)
            sum += (seen[static_cast<size_t>(t)] & kBit) != 0 ? std::exp(data.Logit(i, t, factor)) : 0;
          for (int32_t t = 0; t < data.n_keys; ++t) {
            const bool hidden = (seen[static_cast<size_t>(t)] & kBit) == 0;
            ASSERT_NEAR(hidden ? 0 : std::exp(data.Logit(i, t, factor)) / sum,
                        p[static_cast<size_t>(i) * data.n_keys + static_cast<size_t>(t)], 1e-5)
                << Name(table, c) << " row " << i << " key " << t << " sink " << sink;
          }
        }
      }
    }
  }
}

TEST(PrefillAttentionParity, CutsOfThePromptGiveTheSameBits) {
  for (const RowsCase& c : RowsCases()) {
    const RowsData data(c);
    for (const KernelTable* table : Tables()) {
      std::vector<float> whole(data.q.size()), parts(data.q.size()), lse(static_cast<size_t>(c.n_q)),
          lse_parts(lse);
      table->prefill_attention(data.Prefill(whole.data(), lse.data()));
      int32_t piece = 1;
      for (int32_t i = 0; i < c.n_q; piece = piece * 3 % 50 + 1) {
        PrefillAttentionArgs a = data.Prefill(parts.data() + i * data.stride, lse_parts.data() + i);
        a.q += i * data.stride, a.first_visible += i, a.n_q = std::min(piece, c.n_q - i);
        table->prefill_attention(a);
        i += a.n_q;
      }
      ASSERT_EQ(whole, parts) << Name(table, c);
      ASSERT_EQ(lse, lse_parts) << Name(table, c);
    }
  }
}

// Query heads that share a KV head: each has the bits that it has alone, whoever is with it.
TEST(PrefillAttentionParity, HeadsTogetherGiveTheSameBits) {
  for (const RowsCase& c : RowsCases()) {
    for (const int32_t n_heads : {2, 7, 19}) {
      const RowsData data(c);  // its keys and values
      const int32_t stride = n_heads * c.d;
      Random random(static_cast<uint64_t>(n_heads));
      const std::vector<float> q = random.Floats(int64_t{c.n_q} * stride, -2, 2),
                               sinks = random.Floats(n_heads);
      std::vector<uint32_t> seen(static_cast<size_t>(data.n_keys));
      for (size_t t = 0; t < seen.size(); ++t)  // every row sees itself
        seen[t] = t % 7 == 3 && t < static_cast<size_t>(c.first_visible) ? 0xaaaaaaaau << (t % 2) : ~0u;
      for (const KernelTable* table : Tables()) {
        std::vector<float> out(q.size()), alone(q.size()), lse(static_cast<size_t>(n_heads * c.n_q)),
            lse_alone(lse);
        PrefillAttentionArgs a = data.Prefill(out.data(), lse.data());
        a.q = q.data(), a.q_stride = a.out_stride = stride, a.n_heads = n_heads, a.lse_stride = c.n_q;
        a.sink = sinks.data(), a.seen = seen.data(), a.seen_bit = 1;
        table->prefill_attention(a);
        for (int32_t h = 0; h < n_heads; ++h) {
          PrefillAttentionArgs one = a;
          one.q += h * c.d, one.out = alone.data() + h * c.d, one.lse = lse_alone.data() + h * c.n_q;
          one.sink += h, one.seen_bit = 1u << h, one.n_heads = 1;
          table->prefill_attention(one);
        }
        ASSERT_EQ(alone, out) << Name(table, c) << " heads " << n_heads;
        ASSERT_EQ(lse_alone, lse) << Name(table, c) << " heads " << n_heads;
      }
    }
  }
}

TEST(PrefillAttentionParity, HugeLogitsStayFinite) {
  RowsData data({20, 80, 16, 0});
  for (float& q : data.q) q *= 1000;
  const Expected expected = [&] {  // the largest logit takes all
    Expected e;
    for (int32_t i = 0; i < 20; ++i) {
      int32_t best = 0;
      for (int32_t t = 1; t <= 80 + i; ++t) best = data.Logit(i, t) > data.Logit(i, best) ? t : best;
      for (int32_t j = 0; j < 16; ++j) e.out.push_back(data.v[static_cast<size_t>(best * 16 + j)]);
      e.lse.push_back(data.Logit(i, best));
    }
    return e;
  }();
  for (const KernelTable* table : Tables()) {
    std::vector<float> out(data.q.size()), lse(20);
    table->prefill_attention(data.Prefill(out.data(), lse.data()));
    for (int32_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(expected.lse[static_cast<size_t>(i)], lse[static_cast<size_t>(i)], 0.01) << table->name;
      for (int32_t j = 0; j < 16; ++j) {
        EXPECT_NEAR(expected.out[static_cast<size_t>(i * 16 + j)],
                    out[static_cast<size_t>(i * data.stride + j)], 0.05);
      }
    }
  }
}

// Keys that a query head does not see: whole tiles of them, and the very first.
std::vector<uint32_t> SomeSeen(int32_t n_keys, uint32_t bit) {
  std::vector<uint32_t> seen(static_cast<size_t>(n_keys), ~0u);
  for (int32_t t = 0; t < n_keys; ++t) {
    const bool hidden = t < 70 ? t % 5 != 4 && n_keys > 8 : t < 200 || t % 3 == 0;
    if (hidden) seen[static_cast<size_t>(t)] = ~bit;
  }
  return seen;
}

// Logits that are kept, of as many keys as all rows see, change nothing else.
TEST(PrefillAttentionParity, KeepsLogits) {
  constexpr uint32_t kBit = 4;
  for (const RowsCase& c : RowsCases()) {
    if (c.window > 0) continue;
    const RowsData data(c);
    std::vector<uint32_t> seen = SomeSeen(data.n_keys, c.d % 16 == 0 ? kBit : 0);
    std::fill(seen.begin() + c.first_visible, seen.end(), ~0u);
    for (const int32_t n_kept : {0, 1, c.first_visible / 2, c.first_visible + 1}) {
      const int64_t stride = (n_kept + kKeptKeys - 1) / kKeptKeys * kKeptKeys;
      for (const KernelTable* table : Tables()) {
        std::vector<float> out(data.q.size()), lse(static_cast<size_t>(c.n_q)), out_beside(out), beside(lse),
            kept(static_cast<size_t>(c.n_q * stride) + 1, 5);
        PrefillAttentionArgs a = data.Prefill(out.data(), lse.data());
        a.seen = seen.data(), a.seen_bit = kBit;
        table->prefill_attention(a);
        a.out = out_beside.data(), a.lse = beside.data();
        a.kept = kept.data(), a.kept_stride = stride, a.n_kept = n_kept;
        table->prefill_attention(a);
        ASSERT_EQ(out, out_beside) << Name(table, c);
        ASSERT_EQ(lse, beside) << Name(table, c);
        ASSERT_EQ(kept.back(), 5) << Name(table, c);
        for (int32_t i = 0; i < c.n_q; ++i) {
          for (int32_t t = 0; t < n_kept; ++t) {
            const float got = kept[static_cast<size_t>(i * stride + t)];
            if ((seen[static_cast<size_t>(t)] & kBit) == 0) {
              ASSERT_EQ(got, -INFINITY) << Name(table, c) << " row " << i << " key " << t;
            } else {
              ASSERT_NEAR(data.Logit(i, t), got, kTolerance)
                  << Name(table, c) << " row " << i << " key " << t;
            }
          }
        }
      }
    }
  }
}

TEST(PrefillAttentionParity, LeavesOutWhatAQueryHeadDoesNotSee) {
  constexpr uint32_t kBit = 4;
  for (const RowsCase& c : RowsCases()) {
    const RowsData data(c);
    std::vector<uint32_t> seen = SomeSeen(data.n_keys, kBit);
    std::fill(seen.begin() + c.first_visible, seen.end(), ~0u);  // every row sees itself
    std::vector<double> want_out, want_lse;
    for (int32_t i = 0; i < c.n_q; ++i) {
      const int32_t end = c.first_visible + i + 1, begin = c.window > 0 ? std::max(0, end - c.window) : 0;
      double sum = 0;
      std::vector<double> out(static_cast<size_t>(c.d), 0.0);
      for (int32_t t = begin; t < end; ++t) {
        if ((seen[static_cast<size_t>(t)] & kBit) == 0) continue;
        const double p = std::exp(data.Logit(i, t));
        sum += p;
        for (int32_t j = 0; j < c.d; ++j)
          out[static_cast<size_t>(j)] += p * data.v[static_cast<size_t>(t * c.d + j)];
      }
      for (double x : out) want_out.push_back(x / sum);
      want_lse.push_back(std::log(sum));
    }
    for (const KernelTable* table : Tables()) {
      std::vector<float> out(data.q.size()), lse(static_cast<size_t>(c.n_q));
      PrefillAttentionArgs a = data.Prefill(out.data(), lse.data());
      a.seen = seen.data(), a.seen_bit = kBit;
      table->prefill_attention(a);
      for (int32_t i = 0; i < c.n_q; ++i) {
        const size_t row = static_cast<size_t>(i);
        ASSERT_NEAR(want_lse[row], lse[row], 1e-3) << Name(table, c) << " row " << i;
        for (int32_t j = 0; j < c.d; ++j) {
          ASSERT_NEAR(want_out[static_cast<size_t>(i * c.d + j)],
                      out[static_cast<size_t>(i * data.stride + j)], 2e-4)
              << Name(table, c) << " row " << i;
        }
      }
    }
  }
}

TEST(ScoreRowsParity, LeavesOutWhatAQueryHeadDoesNotSee) {
  constexpr uint32_t kBit = 2;
  for (const RowsCase& c : RowsCases()) {
    const RowsData data(c);
    std::vector<uint32_t> seen = SomeSeen(data.n_keys, kBit);
    const std::vector<int32_t> visible(static_cast<size_t>(c.n_q), data.n_keys);
    for (const KernelTable* table : Tables()) {
      std::vector<float> p(static_cast<size_t>(c.n_q) * data.n_keys, 9);
      ScoreRowsArgs a{data.q.data(), data.k.data(), visible.data(), nullptr, p.data(),  data.stride,
                      data.n_keys,   c.n_q,         data.n_keys,    c.d,     data.scale};
      a.seen = seen.data(), a.seen_bit = kBit, a.cap = c.cap;
      table->score_rows(a);
      for (int32_t i = 0; i < c.n_q; ++i) {
        double sum = 0;
        for (int32_t t = 0; t < data.n_keys; ++t)
          sum += (seen[static_cast<size_t>(t)] & kBit) != 0 ? std::exp(data.Logit(i, t)) : 0;
        for (int32_t t = 0; t < data.n_keys; ++t) {
          const bool sees = (seen[static_cast<size_t>(t)] & kBit) != 0;
          ASSERT_NEAR(sees ? std::exp(data.Logit(i, t)) / sum : 0,
                      p[static_cast<size_t>(i * data.n_keys + t)], kTolerance)
              << Name(table, c) << " row " << i << " key " << t;
        }
      }
    }
  }
}

void ExpectScoreRowsAgree(const RowsData& data) {
  const RowsCase& c = data.shape;
  std::vector<int32_t> visible;
  std::vector<float> gain;
  for (int32_t i = 0; i < c.n_q; ++i) {
    visible.push_back(i % 3 == 0 ? 1 + i % data.n_keys : c.first_visible + i + 1);
    gain.push_back(1 + 0.125f * static_cast<float>(i % 5));
  }
  const int64_t stride = data.n_keys + 5;
  for (const KernelTable* table : Tables()) {
    for (const float* g : {static_cast<const float*>(nullptr), static_cast<const float*>(gain.data())}) {
      std::vector<float> p(static_cast<size_t>(c.n_q * stride), 9);
      ScoreRowsArgs a{data.q.data(), data.k.data(), visible.data(), g,   p.data(),  data.stride,
                      stride,        c.n_q,         data.n_keys,    c.d, data.scale};
      a.cap = c.cap, a.first_logit = data.first_logit;
      table->score_rows(a);
      for (int32_t i = 0; i < c.n_q; ++i) {
        const size_t row = static_cast<size_t>(i);
        const double factor = g != nullptr ? gain[row] : 1;
        std::vector<double> want(static_cast<size_t>(stride), 9);
        double sum = 0;
        for (int32_t t = 0; t < visible[row]; ++t)
          sum += want[static_cast<size_t>(t)] = std::exp(data.Logit(i, t, factor));
        for (int32_t t = 0; t < visible[row]; ++t) want[static_cast<size_t>(t)] /= sum;
        for (int32_t t = visible[row]; t < data.n_keys; ++t) want[static_cast<size_t>(t)] = 0;
        for (int64_t t = 0; t < stride; ++t) {
          const float got = p[static_cast<size_t>(i * stride + t)];
          ASSERT_NEAR(want[static_cast<size_t>(t)], got, kTolerance)
              << Name(table, c) << " row " << i << " key " << t;
        }
      }
    }
  }
}

TEST(ScoreRowsParity, AgreesWithDouble) {
  for (const RowsCase& c : RowsCases()) {
    RowsData data(c);
    for (const float first : {0.0f, 3.25f}) {
      data.first_logit = first;
      ExpectScoreRowsAgree(data);
      if (HasFatalFailure()) return;
    }
  }
}

// Of probabilities to a power: of the logits, their cap and lse times as much.
void ExpectColumnSums(float power, float first) {
  constexpr uint32_t kBit = 2;
  for (const RowsCase& c : RowsCases()) {
    if (c.window > 0) continue;
    RowsData data(c);
    data.first_logit = first;
    const std::vector<uint32_t> seen = SomeSeen(data.n_keys, c.d % 16 == 0 ? kBit : 0);
    std::vector<float> lse;
    for (double x : Attention(data).lse) lse.push_back(static_cast<float>(x));
    std::vector<double> want(static_cast<size_t>(data.n_keys), 0.5);
    for (int32_t i = 0; i < c.n_q; ++i) {
      for (int32_t t = 0; t <= c.first_visible + i; ++t) {
        if ((seen[static_cast<size_t>(t)] & kBit) == 0) continue;
        want[static_cast<size_t>(t)] +=
            0.25 * std::exp(power * (data.Logit(i, t) - lse[static_cast<size_t>(i)]));
      }
    }
    for (const KernelTable* table : Tables()) {
      std::vector<float> whole(static_cast<size_t>(data.n_keys), 0.5f), parts(whole);
      ColumnSumsArgs a{data.q.data(), data.k.data(), lse.data(),         whole.data(),
                       data.stride,   c.n_q,         c.first_visible,    0,
                       data.n_keys,   c.d,           power * data.scale, 0.25f,
                       power * c.cap};
      a.lse_factor = power, a.first_logit = power * first;
      a.seen = seen.data(), a.seen_bit = kBit;
      table->column_sums(a);
      for (size_t t = 0; t < want.size(); ++t) {
        ASSERT_NEAR(want[t], whole[t], kTolerance * (1 + want[t])) << Name(table, c) << " key " << t;
      }
      a.sums = parts.data();
      for (int32_t t = 0; t < data.n_keys; t = a.key_end) {
        a.key_begin = t, a.key_end = std::min(data.n_keys, t + 1 + t % 41);
        table->column_sums(a);
      }
      a.key_begin = a.key_end = data.n_keys / 2;
      table->column_sums(a);
      ASSERT_EQ(whole, parts) << Name(table, c);
    }
  }
}

TEST(ColumnSumsParity, AgreesWithDoubleInAnyCutOfTheKeys) { ExpectColumnSums(1, 0); }
TEST(ColumnSumsParity, SquaresAgreeWithDouble) { ExpectColumnSums(2, 0); }
TEST(ColumnSumsParity, TheFirstLogitGains) { ExpectColumnSums(2, 1.75f); }

TEST(ColumnMaximaParity, AgreesWithDoubleInAnyCutOfTheKeys) {
  constexpr uint32_t kBit = 2;
  for (const RowsCase& c : RowsCases()) {
    if (c.window > 0) continue;
    const RowsData data(c);
    const std::vector<uint32_t> seen = SomeSeen(data.n_keys, c.d % 16 == 0 ? kBit : 0);
    std::vector<float> lse;
    for (double x : Attention(data).lse) lse.push_back(static_cast<float>(x));
    constexpr float kBefore = 0.01f;  // some entries are below what stands there already
    std::vector<double> want(static_cast<size_t>(data.n_keys), kBefore);
    for (int32_t i = 0; i < c.n_q; ++i) {
      for (int32_t t = 0; t <= c.first_visible + i; ++t) {
        if ((seen[static_cast<size_t>(t)] & kBit) == 0) continue;
        double& largest = want[static_cast<size_t>(t)];
        largest = std::max(largest, 0.5 * std::exp(data.Logit(i, t) - lse[static_cast<size_t>(i)]));
      }
    }
    for (const KernelTable* table : Tables()) {
      std::vector<float> whole(static_cast<size_t>(data.n_keys), kBefore), parts(whole);
      ColumnSumsArgs a{
          data.q.data(), data.k.data(), lse.data(), whole.data(), data.stride, c.n_q, c.first_visible, 0,
          data.n_keys,   c.d,           data.scale, 0.5f,         c.cap};
      a.seen = seen.data(), a.seen_bit = kBit;
      table->column_maxima(a);
      for (size_t t = 0; t < want.size(); ++t)
        ASSERT_NEAR(want[t], whole[t], kTolerance) << Name(table, c) << " key " << t;
      a.sums = parts.data();
      for (int32_t t = 0; t < data.n_keys; t = a.key_end) {
        a.key_begin = t, a.key_end = std::min(data.n_keys, t + 1 + t % 41);
        table->column_maxima(a);
      }
      ASSERT_EQ(whole, parts) << Name(table, c);
    }
  }
}

}  // namespace
}  // namespace kvc::parity

// The eviction loss of kvc eval --explain: what it must be by hand and by a softmax over what is kept, and
// its bound.
#include "tools/explain/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvc::tool {
namespace {

struct Shape {
  int32_t n_heads, n_kv_heads, head_dim, hidden;
  size_t n;
};

// A layer of random values, with logits of a query [H][n] and what is kept [G][n].
struct Random {
  Shape shape;
  std::mt19937 draws;
  std::vector<float> projection;
  std::vector<std::vector<float>> values, logits;
  std::vector<std::vector<uint8_t>> kept;

  Random(const Shape& s, unsigned seed, double kept_share, float sharpness) : shape(s), draws(seed) {
    std::normal_distribution<float> normal;
    const auto fill = [&](size_t n, float scale) {
      std::vector<float> out(n);
      for (float& x : out) x = scale * normal(draws);
      return out;
    };
    projection = fill(static_cast<size_t>(s.hidden * s.n_heads * s.head_dim), 1);
    for (int32_t g = 0; g < s.n_kv_heads; ++g) {
      values.push_back(fill(s.n * static_cast<size_t>(s.head_dim), 1 + static_cast<float>(g)));
      kept.emplace_back();
      for (size_t t = 0; t < s.n; ++t)
        kept.back().push_back(t + 1 == s.n || std::uniform_real_distribution<>()(draws) < kept_share ? 1 : 0);
    }
    for (int32_t h = 0; h < s.n_heads; ++h) logits.push_back(fill(s.n, sharpness));
  }

  LayerValues Layer() const {
    LayerValues layer(shape.n_heads, shape.n_kv_heads, shape.head_dim, projection);
    for (int32_t g = 0; g < shape.n_kv_heads; ++g) layer.Set(g, values[static_cast<size_t>(g)], 0);
    return layer;
  }
  size_t GroupOf(size_t h) const { return h / static_cast<size_t>(shape.n_heads / shape.n_kv_heads); }
  // Softmax over the entries that are kept, or over all.
  std::vector<std::vector<float>> Attention(bool over_all) const {
    std::vector<std::vector<float>> p;
    for (size_t h = 0; h < logits.size(); ++h) {
      double sum = 0;
      std::vector<double> e(shape.n);
      for (size_t t = 0; t < shape.n; ++t) {
        if (over_all || kept[GroupOf(h)][t] != 0) e[t] = std::exp(static_cast<double>(logits[h][t]));
        sum += e[t];
      }
      p.emplace_back();
      for (const double x : e) p.back().push_back(static_cast<float>(x / sum));
    }
    return p;
  }
  // What the attention p adds to the network, [hidden].
  std::vector<double> Output(const std::vector<std::vector<float>>& p) const {
    std::vector<double> out(static_cast<size_t>(shape.hidden));
    const size_t d = static_cast<size_t>(shape.head_dim), width = d * static_cast<size_t>(shape.n_heads);
    for (size_t row = 0; row < out.size(); ++row) {
      for (size_t h = 0; h < p.size(); ++h) {
        for (size_t t = 0; t < shape.n; ++t) {
          for (size_t i = 0; i < d; ++i) {
            out[row] += static_cast<double>(projection[row * width + h * d + i]) *
                        static_cast<double>(p[h][t]) * static_cast<double>(values[GroupOf(h)][t * d + i]);
          }
        }
      }
    }
    return out;
  }
};

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(a[i] - b[i]);
  return sum;
}

const Shape kShapes[] = {{1, 1, 1, 1, 2}, {4, 2, 8, 12, 30}, {6, 6, 4, 5, 17}, {8, 1, 16, 32, 64}};

TEST(ExplainLoss, IsTheDistanceOfASoftmaxOverWhatIsKept) {
  for (const Shape& shape : kShapes) {
    for (unsigned seed = 1; seed <= 5; ++seed) {
      const Random r(shape, seed, 0.4, 2);
      const std::vector<double> full = r.Output(r.Attention(true)), evicted = r.Output(r.Attention(false));
      const LayerLoss found = LossOf(r.Layer(), r.Attention(true), r.kept);
      const std::vector<double> zero(full.size());
      EXPECT_NEAR(found.loss, Distance(full, evicted), 1e-5 * (1 + Distance(full, zero)));
      EXPECT_NEAR(found.output, Distance(full, zero), 1e-5 * (1 + Distance(full, zero)));
    }
  }
}

// Theorem 3.2 of Ada-KV, whatever is kept and however sharp the attention is.
TEST(ExplainLoss, NeverExceedsItsBounds) {
  int n_close = 0;
  for (const Shape& shape : kShapes) {
    for (unsigned seed = 1; seed <= 40; ++seed) {
      for (const double share : {0.0, 0.1, 0.5, 0.95}) {
        for (const float sharpness : {0.0f, 1.0f, 8.0f}) {
          const Random r(shape, seed, share, sharpness);
          const LayerLoss found = LossOf(r.Layer(), r.Attention(true), r.kept);
          const double rounding = 1e-9 * (1 + found.bound);
          ASSERT_LE(found.loss, found.bound_by_head + rounding);
          ASSERT_LE(found.bound_by_head, found.bound + rounding);
          ASSERT_GE(found.retained, 0);
          ASSERT_LE(found.retained, 1 + 1e-12);
          n_close += found.loss > 0.5 * found.bound;
        }
      }
    }
  }
  EXPECT_GT(n_close, 10) << "a bound that is never near says nothing";
}

TEST(ExplainLoss, ReachesItsBoundWhereWhatGoesIsTheOppositeOfWhatStays) {
  LayerValues layer(1, 1, 1, {3});
  layer.Set(0, {1, -1}, 0);
  const LayerLoss found = LossOf(layer, {{0.75f, 0.25f}}, {{1, 0}});
  EXPECT_DOUBLE_EQ(found.output, 1.5);  // 3 (0.75 - 0.25)
  EXPECT_DOUBLE_EQ(found.loss, 1.5);    // 3 against it
  EXPECT_DOUBLE_EQ(found.retained, 0.75);
  EXPECT_DOUBLE_EQ(found.bound, 1.5);  // 2 * 0.25 * 3
  EXPECT_DOUBLE_EQ(found.bound_by_head, 1.5);
}

// Half of the attention is a sink's: it is neither kept nor lost, and what is kept grows by less.
TEST(ExplainLoss, AnAttentionSinkKeepsItsShare) {
  LayerValues layer(1, 1, 1, {3});
  layer.Set(0, {1, -1}, 0);
  const LayerLoss found = LossOf(layer, {{0.375f, 0.125f}}, {{1, 0}});
  EXPECT_DOUBLE_EQ(found.output, 0.75);
  EXPECT_DOUBLE_EQ(found.retained, 0.875);
  EXPECT_DOUBLE_EQ(found.loss, 3 * (0.375 / 0.875 - 0.25));
  EXPECT_DOUBLE_EQ(found.bound, 0.75);
}

TEST(ExplainLoss, KeepingAllLosesNothing) {
  for (const Shape& shape : kShapes) {
    const Random r(shape, 3, 1.1, 1);
    const LayerLoss found = LossOf(r.Layer(), r.Attention(true), r.kept);
    EXPECT_EQ(found.loss, 0);
    EXPECT_EQ(found.bound, 0);
    EXPECT_GT(found.output, 0);
    EXPECT_NEAR(found.retained, 1, 1e-12);
  }
}

TEST(ExplainLoss, NormsThatAreKnownAreThoseThatAreTakenAgain) {
  const Random r({4, 2, 8, 12, 30}, 5, 0.5, 1);
  LayerValues grown = r.Layer();
  const LayerValues whole = r.Layer();
  std::vector<float> first(r.values[1].begin(), r.values[1].begin() + 20 * 8);
  grown.Set(1, first, 0);
  grown.Set(1, r.values[1], 20);
  for (int32_t head = 0; head < 4; ++head) EXPECT_EQ(grown.LargestNorm(head), whole.LargestNorm(head));
  std::vector<float> others(r.values[1].size(), 0.5f);  // another prompt: nothing is known
  grown.Set(1, others, 0);
  EXPECT_NE(grown.LargestNorm(3), whole.LargestNorm(3));
  EXPECT_EQ(grown.LargestNorm(0), whole.LargestNorm(0));
}

TEST(ExplainLoss, SimilarityIsTheCosineWithNothingWhereAnEntryIsGone) {
  EXPECT_EQ(AttentionSimilarity({0.5f, 0.25f, 0.25f}, {0.5f, 0.25f, 0.25f}, {1, 1, 1}), 1);
  EXPECT_EQ(AttentionSimilarity({1, 0}, {1}, {0, 1}), 0);
  EXPECT_DOUBLE_EQ(AttentionSimilarity({0.5f, 0.5f, 0}, {0.5f, 0.5f}, {1, 0, 1}), 0.5);  // 1/4 over sqrt(1/4)
  EXPECT_EQ(AttentionSimilarity({0.5f, 0.5f}, {0, 0}, {1, 1}), 0) << "all of it is an attention sink's";
}

TEST(ExplainLoss, TopShareIsTheMassOfTheMostAttended) {
  const std::vector<float> p = {0.1f, 0.4f, 0.05f, 0.25f, 0.2f};
  EXPECT_NEAR(TopShare(p, 0.2), 0.4, 1e-7);
  EXPECT_NEAR(TopShare(p, 0.4), 0.65, 1e-7);
  EXPECT_NEAR(TopShare(p, 0.001), 0.4, 1e-7) << "one entry at least";
  EXPECT_NEAR(TopShare(p, 1), 1, 1e-7);
  EXPECT_NEAR(TopShare(std::vector<float>(100, 0.01f), 0.05), 0.05, 1e-6);
  EXPECT_EQ(TopShare({}, 0.5), 0);
}

}  // namespace
}  // namespace kvc::tool

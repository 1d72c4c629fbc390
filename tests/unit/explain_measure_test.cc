// What kvc eval --explain counts of a session, against what the session holds.
#include "tools/explain/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <optional>

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"
#include "tests/support/tiny_model.h"

namespace kvc::tool {
namespace {

constexpr size_t kDim = 16;

TokenList Prompt(int32_t n, int32_t seed) {
  TokenList tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back((i * i * 31 + i * 7 + seed) % 250);
  return tokens;
}

// Share of the squares' sum that the largest singular value of [n, D] has, by power iteration.
double TopEnergy(const std::vector<float>& rows) {
  std::vector<double> v(kDim, 1), next(kDim);
  double squares = 0, length = 0;
  for (const float x : rows) squares += static_cast<double>(x) * static_cast<double>(x);
  for (int i = 0; i < 3000; ++i) {
    next.assign(kDim, 0);
    for (size_t row = 0; row < rows.size(); row += kDim) {
      double dot = 0;
      for (size_t d = 0; d < kDim; ++d) dot += static_cast<double>(rows[row + d]) * v[d];
      for (size_t d = 0; d < kDim; ++d) next[d] += dot * static_cast<double>(rows[row + d]);
    }
    length = 0;
    for (const double x : next) length += x * x;
    length = std::sqrt(length);
    for (size_t d = 0; d < kDim; ++d) v[d] = next[d] / length;
  }
  return length / squares;
}

class ExplainMeasure : public testing::Test {
 protected:
  ExplainMeasure() {
    EXPECT_TRUE(test::WriteTinyModel({}, path_).ok());
    kvc_model_params params = DefaultModelParams();
    params.n_threads = 1;
    model_.emplace(path_, "cpu", params);
    explainer_.emplace(*model_, path_, 0.1);
    explainer_->Count(&sums_, &full_sums_);
  }
  ~ExplainMeasure() override {
    explainer_.reset(), model_.reset();  // a file that is mapped cannot be removed everywhere
    std::remove(path_.c_str());
  }
  Session Prefilled(const std::string& spec, const TokenList& prompt) {
    Session session(*model_, Policy(spec), DefaultSessionParams());
    session.Prefill(prompt);
    return session;
  }

  const std::string path_ = testing::TempDir() + "kvc_explain_measure.kvc";
  std::optional<Model> model_;
  std::optional<Explainer> explainer_;
  std::vector<ExplainSums> sums_{1};
  FullCacheSums full_sums_;
};

TEST_F(ExplainMeasure, SpectraAreThoseOfWhatIsCachedOfEveryPrompt) {
  std::vector<double> keys(2), values(2);
  for (const int32_t n : {60, 9}) {
    Session full = Prefilled("full", Prompt(n, n));
    explainer_->NewPrompt();
    explainer_->Question(&full, {nullptr}, {5, 6, 7}, 1);
    explainer_->Question(&full, {nullptr}, {8, 9}, 0);  // of the same prompt
    for (int32_t i = 0; i < 4; ++i) {
      std::vector<float> vectors(static_cast<size_t>(n) * kDim);
      int32_t count = 0;
      const auto read = [&](auto get) {
        EXPECT_EQ(get(full.get(), i / 2, i % 2, vectors.data(), n * 16, &count), KVC_OK);
        EXPECT_EQ(count, n * 16);
        return TopEnergy(vectors) / 2;
      };
      keys[static_cast<size_t>(i / 2)] += read(kvc_session_get_keys);
      values[static_cast<size_t>(i / 2)] += read(kvc_session_get_values);
    }
  }
  EXPECT_EQ(full_sums_.n_prompts, 2);
  ASSERT_EQ(full_sums_.keys.size(), 2u);
  ASSERT_EQ(full_sums_.values.size(), 2u);
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_NEAR(full_sums_.keys[layer].top_energy, keys[layer], 1e-9);
    EXPECT_NEAR(full_sums_.values[layer].top_energy, values[layer], 1e-9);
    EXPECT_GT(std::abs(keys[layer] - values[layer]), 1e-3) << "one taken for the other would not be seen";
    EXPECT_DOUBLE_EQ(full_sums_.keys[layer].normalized[0], 2);
    EXPECT_LE(full_sums_.keys[layer].normalized[9], 1) << "nine entries have nine at most";
  }
}

// In the first layer the query is that of the full cache, so a policy's attention is proportional to the full
// cache's where entries are: the cosine is the root of the share of the squares that they have.
TEST_F(ExplainMeasure, SimilarityOfTheFirstLayerIsTheShareOfWhatIsKept) {
  for (const char* spec : {"weightedkv:budget=20", "h2o:budget=20", "snapkv:budget=20,window=8"}) {
    SCOPED_TRACE(spec);
    sums_ = std::vector<ExplainSums>(2);
    const TokenList fed = {5, 6, 7};
    Session full = Prefilled("full", Prompt(60, 1)), policy = Prefilled(spec, Prompt(60, 1));
    explainer_->NewPrompt();
    explainer_->Question(&full, {nullptr, &policy}, fed, 1);
    double known = 0;
    std::optional<Session> all = full.Fork(), own = policy.Fork();
    ASSERT_TRUE(all && own);
    EXPECT_EQ(kvc_session_observe_attention(all->get(), 1), KVC_OK);
    for (size_t i = 0; i < fed.size(); ++i) {
      std::vector<int32_t> kept[2] = {own->Kept(0, 0), own->Kept(0, 1)};
      const int32_t n = 61 + static_cast<int32_t>(i);
      for (Session* session : {&*all, &*own}) {
        kvc_session* handle = session->get();
        ASSERT_EQ(kvc_session_feed_batch(&handle, &fed[i], 1), KVC_OK);
      }
      for (int32_t head = 0; i >= 1 && head < 4; ++head) {
        std::vector<float> p(static_cast<size_t>(n));
        int32_t count = 0;
        ASSERT_EQ(kvc_session_get_attention(all->get(), 0, head, p.data(), n, &count), KVC_OK);
        const auto square = [](float x) { return static_cast<double>(x) * static_cast<double>(x); };
        double squares = 0, of_kept = square(p.back());
        for (const float x : p) squares += square(x);
        for (const int32_t position : kept[head / 2]) of_kept += square(p[static_cast<size_t>(position)]);
        known += std::sqrt(of_kept / squares) / 4;
      }
    }
    EXPECT_NEAR(sums_[1].similarity[0], known, 1e-5);
    EXPECT_LT(known, 1.99) << "of two queries";
    EXPECT_EQ(sums_[0].similarity, std::vector<double>(2, 2));
  }
}

}  // namespace
}  // namespace kvc::tool

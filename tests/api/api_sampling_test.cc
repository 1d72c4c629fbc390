// Sampling through the C API: seeds, and the distribution of the first token against the softmax of the
// logits it came from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/c_support.h"

namespace {

constexpr int kVocab = 262, kDraws = 4000;

class Sampling : public testing::Test {
 protected:
  void SetUp() override {
    int64_t n = 0;
    const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
    const kvc_model_params params = {sizeof params, 1, 0, nullptr, 0, 0};
    ASSERT_EQ(kvc_model_open_memory(bytes, n, nullptr, &params, &model_), KVC_OK);
    kvc_session* session = Fed({sizeof(kvc_session_params), 0, 0, 0, 0, 0, 0});
    logits_.resize(kVocab);
    int32_t n_out = 0;
    ASSERT_EQ(kvc_session_get_logits(session, logits_.data(), kVocab, &n_out), KVC_OK);
    kvc_session_close(session);
  }
  void TearDown() override { kvc_model_close(model_); }

  kvc_session* Fed(const kvc_session_params& params) {
    kvc_session* session = nullptr;
    EXPECT_EQ(kvc_session_create(model_, nullptr, &params, &session), KVC_OK) << kvc_last_error();
    const int32_t prompt[] = {256, 72, 105};
    EXPECT_EQ(kvc_session_prefill(session, prompt, 3), KVC_OK);
    return session;
  }

  // How often each token comes first, over seeds.
  std::vector<int> Counts(int32_t top_k, float top_p, float temperature) {
    std::vector<int> counts(kVocab, 0);
    for (int seed = 1; seed <= kDraws; ++seed) {
      kvc_session* session = Fed({sizeof(kvc_session_params), 0, 0, top_k, top_p, temperature, seed});
      int32_t token = -1;
      EXPECT_EQ(kvc_session_step(session, &token), KVC_OK);
      ++counts[static_cast<size_t>(token)];
      kvc_session_close(session);
    }
    return counts;
  }

  // softmax(logits / temperature) of the tokens in `order` alone, by token.
  std::vector<double> Softmax(const std::vector<int>& order, double temperature) const {
    std::vector<double> p(kVocab, 0.0);
    double sum = 0;
    for (int i : order)
      sum += p[static_cast<size_t>(i)] =
          std::exp(static_cast<double>(logits_[static_cast<size_t>(i)]) / temperature);
    for (double& x : p) x /= sum;
    return p;
  }

  std::vector<int> ByLogit() const {
    std::vector<int> order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return logits_[static_cast<size_t>(a)] > logits_[static_cast<size_t>(b)];
    });
    return order;
  }

  // Pearson's statistic over tokens expected at least 5 times, the others pooled. The seeds are fixed, so
  // this never changes.
  void ExpectDistribution(const std::vector<int>& counts, const std::vector<double>& p) {
    double chi = 0, rest = 0, rest_seen = 0;
    int degrees = 0;
    for (int i = 0; i < kVocab; ++i) {
      const double expected = p[static_cast<size_t>(i)] * kDraws, seen = counts[static_cast<size_t>(i)];
      if (p[static_cast<size_t>(i)] == 0) {
        EXPECT_EQ(seen, 0) << "token " << i << " cannot be drawn";
      }
      if (expected < 5) {
        rest += expected, rest_seen += seen;
        continue;
      }
      chi += (seen - expected) * (seen - expected) / expected;
      ++degrees;
    }
    if (rest > 5) chi += (rest_seen - rest) * (rest_seen - rest) / rest;
    EXPECT_LT(chi, degrees + 4 * std::sqrt(2.0 * std::max(degrees, 1)) + 4)
        << degrees << " degrees of freedom";
  }

  kvc_model* model_ = nullptr;
  std::vector<float> logits_;
};

TEST_F(Sampling, TemperatureGivesTheSoftmax) {
  ExpectDistribution(Counts(0, 0, 1.0f), Softmax(ByLogit(), 1.0));
  ExpectDistribution(Counts(0, 0, 0.3f), Softmax(ByLogit(), 0.3));
}

TEST_F(Sampling, TopKKeepsTheBest) {
  std::vector<int> order = ByLogit();
  order.resize(5);
  ExpectDistribution(Counts(5, 0, 1.0f), Softmax(order, 1.0));
}

TEST_F(Sampling, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<double> all = Softmax(ByLogit(), 0.5);
  std::vector<int> order = ByLogit();
  double sum = 0;
  size_t n = 0;
  while (sum < 0.6) sum += all[static_cast<size_t>(order[n++])];
  order.resize(n);
  ASSERT_GT(n, 1u);
  ASSERT_LT(n, static_cast<size_t>(kVocab));
  ExpectDistribution(Counts(0, 0.6f, 0.5f), Softmax(order, 0.5));
}

TEST_F(Sampling, SmallTemperatureTopKOfOneAndGreedyAgree) {
  const int best = ByLogit()[0];
  for (const kvc_session_params& params : {kvc_session_params{sizeof(kvc_session_params), 0, 0, 0, 0, 0, 9},
                                           {sizeof(kvc_session_params), 0, 0, 1, 0, 1, 9},
                                           {sizeof(kvc_session_params), 0, 0, 0, 1e-6f, 1, 9},
                                           {sizeof(kvc_session_params), 0, 0, 0, 0, 1e-4f, 9}}) {
    kvc_session* session = Fed(params);
    int32_t token = -1;
    EXPECT_EQ(kvc_session_step(session, &token), KVC_OK);
    EXPECT_EQ(token, best);
    kvc_session_close(session);
  }
}

TEST_F(Sampling, SeedsRepeatAndDiffer) {
  const auto answer = [&](int64_t seed) {
    kvc_session* session = Fed({sizeof(kvc_session_params), 0, 0, 40, 0.95f, 1.0f, seed});
    std::vector<int32_t> tokens(100);
    for (int32_t& t : tokens) EXPECT_EQ(kvc_session_step(session, &t), KVC_OK);
    EXPECT_EQ(kvc_session_reset(session), KVC_OK);  // the same seed from the start
    const int32_t prompt[] = {256, 72, 105};
    EXPECT_EQ(kvc_session_prefill(session, prompt, 3), KVC_OK);
    for (int32_t expected : tokens) {
      int32_t t = -1;
      EXPECT_EQ(kvc_session_step(session, &t), KVC_OK);
      EXPECT_EQ(t, expected);
    }
    kvc_session_close(session);
    return tokens;
  };
  const std::vector<int32_t> one = answer(1);
  EXPECT_EQ(answer(1), one);
  EXPECT_NE(answer(2), one);
  EXPECT_NE(answer(int64_t{1} << 32), one) << "all bits of the seed count";
  EXPECT_NE(answer(-1), one);
}

}  // namespace

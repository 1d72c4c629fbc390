// What narrows or bends the choice of a step: penalty, biases, mask, min_p. The oracle is the rule of kvc.h,
// applied here to the logits that the session gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kvc/kvc.h"
#include "tests/api/fixture.h"

namespace {

constexpr int32_t kVocab = FIXTURE_VOCAB;
constexpr size_t kWords = (kVocab + 31) / 32;

kvc_sampling Greedy() {
  kvc_sampling s{};
  kvc_params_init(&s, static_cast<int32_t>(sizeof s));
  return s;
}

class Choose : public testing::Test {
 protected:
  void SetUp() override {
    model_ = open_model(TEST_MODEL_TINY);
    session_ = fed_session(model_, nullptr, 40);
    fed_.resize(40);
    fill_tokens(fed_.data(), 40, 7);
  }
  void TearDown() override {
    kvc_session_close(session_);
    kvc_model_close(model_);
  }

  std::vector<float> Logits(kvc_session* session) {
    std::vector<float> logits(kVocab);
    int32_t n = 0;
    EXPECT_EQ(kvc_session_get_logits(session, logits.data(), kVocab, &n), KVC_OK) << kvc_last_error();
    return logits;
  }
  std::vector<float> Logits() { return Logits(session_); }

  int32_t Step(kvc_session* session) {
    int32_t token = -5;
    EXPECT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
    return token;
  }
  int32_t Step() {
    fed_.push_back(Step(session_));
    return fed_.back();
  }

  static int32_t Best(const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  // CTRL, section 4.1, over the newest `window` tokens.
  void Penalise(float penalty, size_t window, std::vector<float>* logits) const {
    const std::set<int32_t> recent(fed_.end() - static_cast<std::ptrdiff_t>(std::min(window, fed_.size())),
                                   fed_.end());
    for (int32_t token : recent) {
      float& logit = (*logits)[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }

  kvc_model* model_ = nullptr;
  kvc_session* session_ = nullptr;
  std::vector<int32_t> fed_;
};

TEST_F(Choose, PenaltyIsThatOfTheNewestTokens) {
  kvc_sampling s = Greedy();
  s.repeat_penalty = 1.3f, s.repeat_window = 16;
  ASSERT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK);
  int changed = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<float> logits = Logits();
    const int32_t plain = Best(logits);
    Penalise(1.3f, 16, &logits);
    changed += Best(logits) != plain;
    ASSERT_EQ(Step(), Best(logits)) << "step " << i;
  }
  EXPECT_GT(changed, 0) << "the penalty decided nothing";
  s.repeat_window = 0;  // 64
  ASSERT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK);
  std::vector<float> logits = Logits();
  Penalise(1.3f, 64, &logits);
  EXPECT_EQ(Step(), Best(logits));
}

TEST_F(Choose, PenaltySurvivesForkSaveAndRewind) {
  kvc_sampling s = Greedy();
  s.repeat_penalty = 1.5f, s.repeat_window = 512;
  ASSERT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK);
  for (int i = 0; i < 20; ++i) Step();
  kvc_session *fork = nullptr, *back = nullptr;
  ASSERT_EQ(kvc_session_fork(session_, &fork), KVC_OK);
  const std::string path = test_path("penalty.kvcs");
  ASSERT_EQ(kvc_session_save(session_, path.c_str()), KVC_OK);
  ASSERT_EQ(kvc_session_restore(model_, path.c_str(), &back), KVC_OK);
  std::vector<int32_t> answer;
  for (int i = 0; i < 20; ++i) {
    answer.push_back(Step());
    EXPECT_EQ(Step(fork), answer.back());
    EXPECT_EQ(Step(back), answer.back());
  }
  ASSERT_EQ(kvc_session_rewind(session_, 20), KVC_OK);
  fed_.resize(fed_.size() - 20);
  for (int32_t token : answer) {  // the same tokens in the window give the same choice
    ASSERT_EQ(kvc_session_accept(session_, token), KVC_OK);
    fed_.push_back(token);
  }
  std::vector<float> logits = Logits();
  Penalise(1.5f, 512, &logits);
  EXPECT_EQ(Step(), Best(logits));
  kvc_session_close(fork);
  kvc_session_close(back);
}

// Of the same token they add up, one after the other, whatever lies between them.
TEST_F(Choose, BiasesOfATokenComeInTheirOrder) {
  kvc_sampling s = Greedy();
  ASSERT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK);
  std::vector<int32_t> tokens;
  std::vector<float> biases;
  for (int i = 0; i < 20; ++i) {
    const bool first = i < 10;
    tokens.push_back(100 + i), biases.push_back(0);
    tokens.push_back(7), biases.push_back(first ? 0x1p100f : -0x1p100f);  // the logit is lost
  }
  tokens.push_back(7), biases.push_back(900.0f);
  tokens.push_back(8), biases.push_back(800.0f);
  const auto n = static_cast<int32_t>(tokens.size());
  std::vector<float> logits = Logits();
  for (size_t i = 0; i < tokens.size(); ++i) logits[static_cast<size_t>(tokens[i])] += biases[i];
  ASSERT_EQ(logits[7], 900.0f);
  ASSERT_EQ(kvc_session_set_logit_bias(session_, tokens.data(), biases.data(), n), KVC_OK);
  EXPECT_EQ(Step(), Best(logits));
  std::reverse(tokens.begin(), tokens.end());  // 900 is lost too
  std::reverse(biases.begin(), biases.end());
  ASSERT_EQ(kvc_session_set_logit_bias(session_, tokens.data(), biases.data(), n), KVC_OK);
  EXPECT_EQ(Step(), 8);
}

TEST_F(Choose, PenaltyThenBiasThenMask) {
  kvc_sampling s = Greedy();
  s.repeat_penalty = 2;
  ASSERT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK);
  const std::vector<int32_t> tokens = {5, 9, 200, 9};
  const std::vector<float> biases = {2.5f, -INFINITY, 3.0f, 1.0f};
  ASSERT_EQ(kvc_session_set_logit_bias(session_, tokens.data(), biases.data(), 4), KVC_OK);
  std::vector<float> logits = Logits();
  Penalise(2, 64, &logits);
  for (size_t i = 0; i < tokens.size(); ++i) logits[static_cast<size_t>(tokens[i])] += biases[i];
  EXPECT_EQ(logits[9], -INFINITY);
  const int32_t best = Best(logits);
  EXPECT_EQ(best, 200) << "the bias decides";
  std::vector<int32_t> mask(kWords, -1);
  mask[200 / 32] &= ~(1 << (200 % 32));
  ASSERT_EQ(kvc_session_set_token_mask(session_, mask.data(), kWords), KVC_OK);
  logits[200] = -INFINITY;
  kvc_session* fork = nullptr;  // begins with its parent's
  ASSERT_EQ(kvc_session_fork(session_, &fork), KVC_OK);
  EXPECT_EQ(Step(), Best(logits));
  EXPECT_EQ(Step(fork), Best(logits));
  ASSERT_EQ(kvc_session_set_token_mask(fork, nullptr, 0), KVC_OK);
  ASSERT_EQ(kvc_session_set_logit_bias(fork, nullptr, nullptr, 0), KVC_OK);
  ASSERT_EQ(kvc_session_set_sampling(fork, nullptr), KVC_OK);
  const int32_t plain = Best(Logits(fork));
  EXPECT_EQ(Step(fork), plain) << "all of it can be taken back";
  kvc_session_close(fork);
}

TEST_F(Choose, OnlyTokensOfTheMaskComeInStepsAndBatches) {
  kvc_sampling s = Greedy();
  s.temperature = 2, s.seed = 3;
  ASSERT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK);
  std::vector<int32_t> mask(kWords, 0);
  for (int32_t token : {3, 64, 255}) mask[static_cast<size_t>(token / 32)] |= int32_t(1u << (token % 32));
  ASSERT_EQ(kvc_session_set_token_mask(session_, mask.data(), kWords), KVC_OK);
  std::set<int32_t> seen;
  for (int i = 0; i < 60; ++i) seen.insert(Step());
  EXPECT_EQ(seen, (std::set<int32_t>{3, 64, 255}));
  kvc_session* other = fed_session(model_, nullptr, 12);
  kvc_session* both[] = {session_, other};
  int32_t tokens[2];
  const int32_t plain = Best(Logits(other));
  ASSERT_EQ(kvc_batch_step(both, 2, nullptr, tokens, nullptr), KVC_OK);
  EXPECT_TRUE(seen.count(tokens[0]));
  EXPECT_EQ(tokens[1], plain) << "a mask is of its session alone";
  kvc_session_close(other);
}

TEST_F(Choose, MinPKeepsTheLikely) {
  kvc_sampling s = Greedy();
  s.temperature = 1.5f, s.min_p = 0.5f;
  const std::vector<float> logits = Logits();
  const float most = *std::max_element(logits.begin(), logits.end());
  std::set<int32_t> likely, seen;
  for (int32_t i = 0; i < kVocab; ++i) {
    if (std::exp((logits[static_cast<size_t>(i)] - most) / 1.5) >= 0.5) likely.insert(i);
  }
  ASSERT_GT(likely.size(), 1u);
  ASSERT_LT(likely.size(), 200u);
  for (int i = 0; i < 3000; ++i) {
    s.seed = i;
    kvc_session* fork = nullptr;
    ASSERT_EQ(kvc_session_fork(session_, &fork), KVC_OK);
    ASSERT_EQ(kvc_session_set_sampling(fork, &s), KVC_OK);
    seen.insert(Step(fork));
    kvc_session_close(fork);
  }
  EXPECT_EQ(seen, likely);
}

TEST_F(Choose, ADraftGivesTheTokensOfSteps) {
  kvc_session* plain = nullptr;
  ASSERT_EQ(kvc_session_fork(session_, &plain), KVC_OK);
  std::vector<int32_t> answer;
  for (int i = 0; i < 6; ++i) answer.push_back(Step(plain));
  int32_t tokens[8], n = -1;
  answer[4] ^= 1;
  ASSERT_EQ(kvc_session_step_draft(session_, answer.data(), 6, tokens, 8, &n), KVC_OK) << kvc_last_error();
  answer[4] ^= 1;
  ASSERT_EQ(n, 5);
  EXPECT_TRUE(std::equal(tokens, tokens + 5, answer.begin()));
  ASSERT_EQ(kvc_session_step_draft(session_, nullptr, 0, tokens, 1, &n), KVC_OK);
  EXPECT_EQ(n, 1);
  EXPECT_EQ(tokens[0], answer[5]);
  EXPECT_EQ(Logits(), Logits(plain));
  kvc_session_close(plain);
  EXPECT_EQ(kvc_session_step_draft(session_, nullptr, 1, tokens, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_step_draft(session_, answer.data(), -1, tokens, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_step_draft(session_, answer.data(), 1, nullptr, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_step_draft(session_, answer.data(), 1, tokens, 8, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_step_draft(session_, answer.data(), 1, tokens, -1, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_step_draft(nullptr, answer.data(), 1, tokens, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_draft_lookup(nullptr, 1, 3, tokens, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_draft_lookup(answer.data(), 6, 65, tokens, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_draft_lookup(answer.data(), 6, 3, nullptr, 8, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_draft_lookup(answer.data(), 6, 3, tokens, -1, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_draft_lookup(nullptr, 0, 3, nullptr, 0, &n), KVC_OK);
  EXPECT_EQ(n, 0);
}

TEST_F(Choose, WhatCannotBeIsRefusedAndChangesNothing) {
  const auto refused = [](kvc_status status, const char* words) {
    EXPECT_EQ(status, KVC_E_INVALID);
    EXPECT_NE(std::string(kvc_last_error()).find(words), std::string::npos) << kvc_last_error();
  };
  const std::vector<float> before = Logits();
  kvc_sampling s = Greedy();
  s.min_p = 1.5f;
  refused(kvc_session_set_sampling(session_, &s), "min_p is 1.5");
  s = Greedy(), s.repeat_penalty = -1;
  refused(kvc_session_set_sampling(session_, &s), "repeat_penalty is -1");
  s = Greedy(), s.repeat_penalty = NAN;
  refused(kvc_session_set_sampling(session_, &s), "repeat_penalty");
  s = Greedy(), s.repeat_window = 513;
  refused(kvc_session_set_sampling(session_, &s), "repeat_window is 513");
  s = Greedy(), s.reserved = 1;
  refused(kvc_session_set_sampling(session_, &s), "reserved");
  const int32_t token = kVocab, negative = -1, good = 1;
  const float bias = 1, endless = INFINITY, none = NAN;
  refused(kvc_session_set_logit_bias(session_, &token, &bias, 1), "ids are 0 to 261");
  refused(kvc_session_set_logit_bias(session_, &negative, &bias, 1), "ids are 0 to 261");
  refused(kvc_session_set_logit_bias(session_, &good, &endless, 1), "bias 0 is inf");
  refused(kvc_session_set_logit_bias(session_, &good, &none, 1), "bias 0 is");
  refused(kvc_session_set_logit_bias(session_, &good, nullptr, 1), "biases is NULL");
  refused(kvc_session_set_logit_bias(session_, &good, &bias, -1), "-1");
  std::vector<int32_t> mask(kWords, 0);
  refused(kvc_session_set_token_mask(session_, mask.data(), kWords - 1), "a mask of 8 words");
  refused(kvc_session_set_token_mask(session_, nullptr, 3), "mask is NULL");
  refused(kvc_session_set_token_mask(session_, mask.data(), -1), "n_words is -1");
  ASSERT_EQ(kvc_session_set_token_mask(session_, mask.data(), kWords), KVC_OK);
  int32_t chosen = -7;
  refused(kvc_session_step(session_, &chosen), "leave no token");
  EXPECT_EQ(chosen, -7);
  ASSERT_EQ(kvc_session_set_token_mask(session_, nullptr, 0), KVC_OK);
  EXPECT_EQ(Logits(), before);
  EXPECT_EQ(Step(), Best(before));
}

// A step that may choose nothing is refused before the token of the step before is fed.
TEST_F(Choose, NoTokenLeftFeedsNone) {
  Step();  // chosen, fed by the step after
  kvc_session* fork = nullptr;
  ASSERT_EQ(kvc_session_fork(session_, &fork), KVC_OK);
  const int32_t expected = Step(fork);
  const auto fed = [&] {
    kvc_session_stats stats{};
    stats.struct_size = static_cast<int32_t>(sizeof stats);
    EXPECT_EQ(kvc_session_get_stats(session_, &stats), KVC_OK) << kvc_last_error();
    return stats.n_slots_full;
  };
  const int64_t before = fed();
  int32_t chosen = -7;
  std::vector<int32_t> mask(kWords, 0);
  mask[kWords - 1] = int32_t(~0u << kVocab % 32);  // bits of no token
  ASSERT_EQ(kvc_session_set_token_mask(session_, mask.data(), kWords), KVC_OK);
  EXPECT_EQ(kvc_session_step(session_, &chosen), KVC_E_INVALID);
  mask[1] = 1 << 5;  // one token, which a bias takes away
  ASSERT_EQ(kvc_session_set_token_mask(session_, mask.data(), kWords), KVC_OK);
  const int32_t only = 32 + 5;
  const float never = -INFINITY;
  ASSERT_EQ(kvc_session_set_logit_bias(session_, &only, &never, 1), KVC_OK);
  EXPECT_EQ(kvc_session_step(session_, &chosen), KVC_E_INVALID);
  EXPECT_EQ(chosen, -7);
  EXPECT_EQ(fed(), before);
  ASSERT_EQ(kvc_session_set_token_mask(session_, nullptr, 0), KVC_OK);
  ASSERT_EQ(kvc_session_set_logit_bias(session_, nullptr, nullptr, 0), KVC_OK);
  EXPECT_EQ(Step(session_), expected);
  kvc_session_close(fork);
}

// An older caller's struct ends before the new fields, and means what it meant.
TEST_F(Choose, StructOfTheFirstReleaseWorks) {
  kvc_sampling s = Greedy();
  s.struct_size = 24, s.repeat_penalty = 100, s.min_p = 7;  // behind its end
  EXPECT_EQ(kvc_session_set_sampling(session_, &s), KVC_OK) << kvc_last_error();
  const int32_t best = Best(Logits());
  EXPECT_EQ(Step(), best);
}

}  // namespace

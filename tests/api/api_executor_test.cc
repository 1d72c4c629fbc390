// kvc_executor: a model on the program's own threads computes what it computes on libkvc's.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/c_support.h"

namespace {

struct Counted {
  std::atomic<int> jobs{0}, calls{0};
  bool parallel = true;
};

void RunJob(void* context, int32_t n, void (*work)(void* job, int32_t i), void* job) {
  auto* counted = static_cast<Counted*>(context);
  ++counted->jobs, counted->calls += n;
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < n; ++i) {
    if (counted->parallel)
      threads.emplace_back(work, job, i);
    else
      work(job, i);
  }
  for (std::thread& thread : threads) thread.join();
}

kvc_status Open(const kvc_executor* executor, int32_t n_threads, kvc_model** out) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_WIDE, &n);
  const kvc_model_params params = {sizeof params, n_threads, 0, executor, 0, 0};
  return kvc_model_open_memory(bytes, n, "cpu", &params, out);
}

// 24 tokens behind a prompt of 200.
std::vector<int32_t> Answer(kvc_model* model) {
  kvc_policy* policy = nullptr;
  kvc_session* session = nullptr;
  EXPECT_EQ(kvc_policy_create("snapkv:budget=40,window=8", &policy), KVC_OK);
  EXPECT_EQ(kvc_session_create(model, policy, nullptr, &session), KVC_OK) << kvc_last_error();
  std::vector<int32_t> prompt(200), tokens(24);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 37 % 251);
  EXPECT_EQ(kvc_session_prefill(session, prompt.data(), 200), KVC_OK) << kvc_last_error();
  for (int32_t& token : tokens) EXPECT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
  kvc_session_close(session);
  kvc_policy_close(policy);
  return tokens;
}

TEST(Executor, ComputesWhatOwnThreadsCompute) {
  kvc_model* own = nullptr;
  ASSERT_EQ(Open(nullptr, 2, &own), KVC_OK) << kvc_last_error();
  const std::vector<int32_t> expected = Answer(own);
  kvc_model_close(own);
  for (const bool parallel : {true, false}) {
    for (const int32_t n_threads : {1, 2, 7}) {
      Counted counted;
      counted.parallel = parallel;
      kvc_model* model = nullptr;
      {
        const kvc_executor executor = {sizeof executor, n_threads, &counted, RunJob};
        ASSERT_EQ(Open(&executor, 0, &model), KVC_OK) << kvc_last_error();
      }  // copied
      EXPECT_EQ(Answer(model), expected) << n_threads;
      kvc_model_close(model);
      EXPECT_EQ(counted.jobs > 0, n_threads > 1);
      EXPECT_GE(counted.calls, 2 * counted.jobs);
      EXPECT_LE(counted.calls, n_threads * counted.jobs);
    }
  }
}

TEST(Executor, SessionsOnSeveralThreadsShareIt) {
  Counted counted;
  const kvc_executor executor = {sizeof executor, 3, &counted, RunJob};
  kvc_model* model = nullptr;
  ASSERT_EQ(Open(&executor, 0, &model), KVC_OK) << kvc_last_error();
  const std::vector<int32_t> alone = Answer(model);
  std::vector<std::vector<int32_t>> answers(3);
  std::vector<std::thread> threads;
  for (auto& answer : answers) threads.emplace_back([&] { answer = Answer(model); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, alone);
  kvc_model_close(model);
}

// Cancels a session in its n-th job from now.
struct Canceller {
  kvc_session* session = nullptr;
  int left = 0;
};

void RunAndCancel(void* context, int32_t n, void (*work)(void* job, int32_t i), void* job) {
  auto* canceller = static_cast<Canceller*>(context);
  for (int32_t i = 0; i < n; ++i) work(job, i);
  if (canceller->session != nullptr && --canceller->left == 0) kvc_session_cancel(canceller->session);
}

std::string Text(kvc_session* session) {
  uint8_t text[64];
  int32_t n = 0;
  EXPECT_EQ(kvc_session_read_text(session, text, 64, &n), KVC_OK) << kvc_last_error();
  return std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(n));
}

// Wherever a prompt that is read in parts ends: the first half of a character still waits for the other one.
TEST(Executor, APromptThatIsCancelledAnywhereLeavesTheTextAsItWas) {
  Canceller canceller;
  const kvc_executor executor = {sizeof executor, 2, &canceller, RunAndCancel};
  kvc_model* model = nullptr;
  ASSERT_EQ(Open(&executor, 0, &model), KVC_OK) << kvc_last_error();
  kvc_policy* policy = nullptr;
  ASSERT_EQ(kvc_policy_create("streaming:budget=64", &policy), KVC_OK);
  kvc_session_params params = {};
  params.struct_size = sizeof params, params.max_tokens = 100, params.on_full = KVC_ON_FULL_EVICT;
  std::vector<int32_t> prompt(150);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 37 % 251);
  kvc_status status = KVC_E_CANCELLED;
  int n_cancelled = 0;
  for (int at = 1; status == KVC_E_CANCELLED; ++at) {
    kvc_session* session = nullptr;
    ASSERT_EQ(kvc_session_create(model, policy, &params, &session), KVC_OK) << kvc_last_error();
    ASSERT_EQ(kvc_session_prefill(session, prompt.data(), 20), KVC_OK);
    ASSERT_EQ(kvc_session_accept(session, 0xc3), KVC_OK);
    ASSERT_EQ(Text(session), "");
    canceller = {session, at};
    status = kvc_session_prefill(session, prompt.data(), 150);
    canceller = {};
    if (status == KVC_E_CANCELLED) {
      ++n_cancelled;
      EXPECT_EQ(kvc_session_accept(session, 0xa9), KVC_OK);
      EXPECT_EQ(Text(session), "\xc3\xa9") << "cancelled in job " << at;
    }
    kvc_session_close(session);
  }
  EXPECT_EQ(status, KVC_OK) << kvc_last_error();
  EXPECT_GT(n_cancelled, 10);
  kvc_policy_close(policy);
  kvc_model_close(model);
}

// A session whose newest token, the caller's, waits to be fed.
kvc_session* Waiting(kvc_model* model) {
  kvc_session* session = nullptr;
  EXPECT_EQ(kvc_session_create(model, nullptr, nullptr, &session), KVC_OK) << kvc_last_error();
  std::vector<int32_t> prompt(20);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 37 % 251);
  EXPECT_EQ(kvc_session_prefill(session, prompt.data(), 20), KVC_OK) << kvc_last_error();
  EXPECT_EQ(kvc_session_accept(session, 65), KVC_OK) << kvc_last_error();
  return session;
}

int64_t Slots(kvc_session* session) {
  kvc_session_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvc_session_get_stats(session, &stats), KVC_OK);
  return stats.n_slots;
}

// What each call with a step in it gives: the bits of a token or of logits.
using StepCall = kvc_status (*)(kvc_session*, const std::vector<int32_t>& draft, std::vector<float>* got);

kvc_status OneStep(kvc_session* session, const std::vector<int32_t>&, std::vector<float>* got) {
  int32_t token = -3;
  const kvc_status status = kvc_session_step(session, &token);
  got->assign(1, static_cast<float>(token));
  return status;
}

kvc_status DraftStep(kvc_session* session, const std::vector<int32_t>& draft, std::vector<float>* got) {
  int32_t tokens[4] = {-3, -3, -3, -3}, n = 0;
  const kvc_status status =
      kvc_session_step_draft(session, draft.data(), static_cast<int32_t>(draft.size()), tokens, 4, &n);
  got->assign(tokens, tokens + n);
  return status;
}

kvc_status BatchStep(kvc_session* session, const std::vector<int32_t>&, std::vector<float>* got) {
  int32_t token = -3;
  kvc_status status = KVC_OK;
  EXPECT_EQ(kvc_batch_step(&session, 1, nullptr, &token, &status), KVC_OK);
  got->assign(1, static_cast<float>(token));
  return status;
}

kvc_status Logits(kvc_session* session, const std::vector<int32_t>&, std::vector<float>* got) {
  int32_t n = 0;
  got->assign(1000, 0);
  return kvc_session_get_logits(session, got->data(), 1000, &n);
}

// A step looks for a request before its token counts as fed: one that comes later finds the next call, and
// the step gives what it gives.
TEST(Executor, AStepThatHasBegunEndsWhereverItIsCancelled) {
  Canceller canceller;
  const kvc_executor executor = {sizeof executor, 2, &canceller, RunAndCancel};
  kvc_model* model = nullptr;
  ASSERT_EQ(Open(&executor, 0, &model), KVC_OK) << kvc_last_error();
  const std::pair<const char*, StepCall> ways[] = {
      {"step", OneStep}, {"draft", DraftStep}, {"batch", BatchStep}, {"logits", Logits}};
  for (const auto& [name, call] : ways) {
    SCOPED_TRACE(name);
    kvc_session* plain = Waiting(model);
    std::vector<int32_t> draft(3);
    for (int32_t& token : draft) ASSERT_EQ(kvc_session_step(plain, &token), KVC_OK) << kvc_last_error();
    kvc_session_close(plain);
    plain = Waiting(model);
    std::vector<float> expected, got;
    ASSERT_EQ(call(plain, draft, &expected), KVC_OK) << kvc_last_error();
    int32_t next = -3, token = -3;
    ASSERT_EQ(kvc_session_step(plain, &next), KVC_OK) << kvc_last_error();
    kvc_session_close(plain);
    bool cancelled = true;
    for (int at = 1; cancelled; ++at) {
      SCOPED_TRACE(at);
      kvc_session* session = Waiting(model);
      canceller = {session, at};
      ASSERT_EQ(call(session, draft, &got), KVC_OK) << kvc_last_error();
      EXPECT_EQ(got, expected);
      cancelled = canceller.left <= 0;
      canceller = {};
      const int64_t slots = Slots(session);
      if (cancelled) {
        EXPECT_EQ(kvc_session_step(session, &token), KVC_E_CANCELLED);
      }
      EXPECT_EQ(Slots(session), slots);
      ASSERT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
      EXPECT_EQ(token, next);
      kvc_session_close(session);
      EXPECT_TRUE(cancelled || at > 5) << "a step has some jobs";
    }
  }
  kvc_model_close(model);
}

TEST(Executor, WhatIsNoneIsRefused) {
  Counted counted;
  const kvc_executor good = {sizeof good, 2, &counted, RunJob};
  struct Case {
    kvc_executor executor;
    int32_t n_threads;
    const char* said;
  };
  const Case cases[] = {
      {{0, 2, &counted, RunJob}, 0, "struct_size"},
      {{sizeof good, 0, &counted, RunJob}, 0, "executor.n_threads is 0"},
      {{sizeof good, -1, &counted, RunJob}, 0, "executor.n_threads is -1"},
      {{sizeof good, 1025, &counted, RunJob}, 0, "executor.n_threads is 1025"},
      {{sizeof good, 2, &counted, nullptr}, 0, "executor.run is NULL"},
      {good, 2, "n_threads is 2 beside an executor"},
  };
  for (const Case& c : cases) {
    kvc_model* model = nullptr;
    EXPECT_EQ(Open(&c.executor, c.n_threads, &model), KVC_E_INVALID) << c.said;
    EXPECT_NE(std::string(kvc_last_error()).find(c.said), std::string::npos) << kvc_last_error();
    EXPECT_EQ(model, nullptr);
  }
  EXPECT_EQ(counted.jobs, 0);
}

}  // namespace

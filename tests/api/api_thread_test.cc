// Several threads: sessions of one model at once, a second call on a busy session, cancelling from outside.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/c_support.h"

namespace {

using Clock = std::chrono::steady_clock;

std::vector<int32_t> Prompt(int n, uint32_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 2654435761u + seed * 40503u) >> 7) & 0xff;
  return ids;
}

kvc_model* OpenWide(int n_threads) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_WIDE, &n);
  const kvc_model_params params = {sizeof params, n_threads, 0, nullptr, 0, 0};
  kvc_model* model = nullptr;
  EXPECT_EQ(kvc_model_open_memory(bytes, n, nullptr, &params, &model), KVC_OK) << kvc_last_error();
  return model;
}

kvc_session* Create(kvc_model* model, const char* spec, float temperature = 0, int64_t seed = 0) {
  kvc_policy* policy = nullptr;
  kvc_session* session = nullptr;
  const kvc_session_params params = {sizeof params, 0, 0, 0, 0, temperature, seed};
  EXPECT_EQ(kvc_policy_create(spec, &policy), KVC_OK) << kvc_last_error();
  EXPECT_EQ(kvc_session_create(model, policy, &params, &session), KVC_OK) << kvc_last_error();
  kvc_policy_close(policy);
  return session;
}

std::vector<int32_t> Steps(kvc_session* session, int n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n), -2);
  for (int32_t& token : tokens) EXPECT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
  return tokens;
}

std::vector<float> Logits(kvc_session* session) {
  std::vector<float> logits(262);
  int32_t n = 0;
  EXPECT_EQ(kvc_session_get_logits(session, logits.data(), 262, &n), KVC_OK) << kvc_last_error();
  return logits;
}

const char* const kSpecs[] = {"h2o:budget=64", "snapkv:budget=64,window=16",
                              "cokv:budget=64,window=16,kv=int8,quant_group=32", "streaming:budget=64"};

TEST(Threads, ResultsDoNotDependOnTheirNumber) {
  for (const char* spec : kSpecs) {
    std::vector<float> expected;
    std::vector<int32_t> tokens;
    for (int n_threads = 1; n_threads <= 4; ++n_threads) {
      kvc_model* model = OpenWide(n_threads);
      kvc_session* session = Create(model, spec, 0.8f, 42);
      ASSERT_EQ(kvc_session_prefill(session, Prompt(300, 1).data(), 300), KVC_OK);
      const std::vector<int32_t> got = Steps(session, 30);
      const std::vector<float> logits = Logits(session);
      if (n_threads == 1) expected = logits, tokens = got;
      EXPECT_EQ(got, tokens) << spec << ", " << n_threads << " threads";
      EXPECT_EQ(logits, expected) << spec << ", " << n_threads << " threads";
      kvc_session_close(session);
      kvc_model_close(model);
    }
  }
}

TEST(Threads, SessionsOfOneModelWorkAtOnce) {
  kvc_model* model = OpenWide(2);
  const auto work = [&](int i, std::vector<int32_t>* tokens) {
    kvc_session* session = Create(model, kSpecs[i % 4]);
    EXPECT_EQ(kvc_session_prefill(session, Prompt(200, static_cast<uint32_t>(i)).data(), 200), KVC_OK);
    *tokens = Steps(session, 40);
    kvc_session* fork = nullptr;
    EXPECT_EQ(kvc_session_fork(session, &fork), KVC_OK);
    kvc_session_close(session);
    const std::vector<int32_t> more = Steps(fork, 10);
    tokens->insert(tokens->end(), more.begin(), more.end());
    kvc_session_close(fork);
  };
  std::vector<std::vector<int32_t>> alone(4), together(4);
  for (int i = 0; i < 4; ++i) work(i, &alone[static_cast<size_t>(i)]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i, &together[static_cast<size_t>(i)]);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
  kvc_model_close(model);
}

TEST(Threads, ForksShareOneCacheAtOnce) {
  kvc_model* model = OpenWide(1);
  for (const char* spec : kSpecs) {
    kvc_session* parent = Create(model, spec);
    ASSERT_EQ(kvc_session_prefill(parent, Prompt(300, 1).data(), 300), KVC_OK);
    std::vector<std::vector<int32_t>> got(4);
    std::vector<kvc_session*> forks(4, nullptr);
    for (kvc_session*& fork : forks) ASSERT_EQ(kvc_session_fork(parent, &fork), KVC_OK);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        EXPECT_EQ(kvc_session_prefill(forks[i], Prompt(20, static_cast<uint32_t>(i / 2)).data(), 20), KVC_OK);
        got[i] = Steps(forks[i], 60);
        kvc_session_close(forks[i]);
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(got[0], got[1]) << spec;
    EXPECT_EQ(got[2], got[3]) << spec;
    Steps(parent, 5);
    kvc_session_close(parent);
  }
  kvc_model_close(model);
}

// Who reads a policy while another thread sets it gets what was there before or behind.
TEST(Threads, APolicyIsSetWhileSessionsAreMadeOfIt) {
  kvc_model* model = OpenWide(1);
  kvc_policy* policy = nullptr;
  ASSERT_EQ(kvc_policy_create("cokv:budget=64,window=16", &policy), KVC_OK);
  kvc_model_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_model_get_info(model, &info), KVC_OK);
  const std::vector<float> scores(static_cast<size_t>(info.n_layers * info.n_kv_heads), 1);
  ASSERT_EQ(kvc_policy_set_head_scores(policy, scores.data(), static_cast<int32_t>(scores.size())), KVC_OK);
  std::atomic<bool> done{false};
  std::thread setting([&] {
    while (!done) kvc_policy_set_head_scores(policy, scores.data(), static_cast<int32_t>(scores.size()));
  });
  for (int i = 0; i < 50; ++i) {
    kvc_session* session = nullptr;
    ASSERT_EQ(kvc_session_create(model, policy, nullptr, &session), KVC_OK) << kvc_last_error();
    kvc_session_close(session);
    char text[512];
    int32_t n = 0;
    ASSERT_EQ(kvc_policy_describe(policy, text, sizeof text, &n), KVC_OK) << kvc_last_error();
  }
  done = true;
  setting.join();
  kvc_policy_close(policy);
  kvc_model_close(model);
}

TEST(Threads, ASecondCallOnAWorkingSessionIsBusy) {
  kvc_model* model = OpenWide(1);
  kvc_session *session = Create(model, "h2o:budget=64"), *twin = Create(model, "h2o:budget=64");
  const std::vector<int32_t> prompt = Prompt(500, 3);
  std::atomic<bool> stop{false};
  std::thread worker([&] {  // works all the time, whatever the other thread gets in between
    while (!stop) {
      const kvc_status reset = kvc_session_reset(session);
      EXPECT_TRUE(reset == KVC_OK || reset == KVC_E_BUSY);
      const kvc_status status = kvc_session_prefill(session, prompt.data(), 500);
      EXPECT_TRUE(status == KVC_OK || status == KVC_E_BUSY) << kvc_last_error();
    }
  });
  const auto meets_busy = [&](auto&& call) {
    while (call() != KVC_E_BUSY) std::this_thread::yield();
    EXPECT_NE(std::string(kvc_last_error()).find("another call"), std::string::npos);
  };
  kvc_session_stats stats = {};
  stats.struct_size = sizeof stats;
  int32_t token = 0, n = 0, ids[1] = {1};
  meets_busy([&] { return kvc_session_get_stats(session, &stats); });
  meets_busy([&] { return n = 9, kvc_session_get_kept(session, 0, 0, nullptr, 0, &n); });
  EXPECT_EQ(n, 9) << "a busy call changes nothing";
  meets_busy([&] { return kvc_session_read_text(session, nullptr, 0, &n); });
  meets_busy([&] { return token = 7, kvc_session_step(session, &token); });
  EXPECT_EQ(token, 7);
  meets_busy([&] { return kvc_session_prefill(session, ids, 1); });
  meets_busy([&] { return kvc_session_append(session, ids, 1); });
  meets_busy([&] { return kvc_session_compress(session); });
  meets_busy([&] { return kvc_session_rewind(session, 1); });
  meets_busy([&] { return kvc_session_reset(session); });
  meets_busy([&] { return kvc_session_get_logits(session, nullptr, 0, &n); });
  meets_busy([&] {
    kvc_session* fork = nullptr;
    const kvc_status status = kvc_session_fork(session, &fork);
    EXPECT_EQ(fork != nullptr, status == KVC_OK);
    kvc_session_close(fork);
    return status;
  });
  stop = true;
  worker.join();
  ASSERT_EQ(kvc_session_reset(session), KVC_OK);
  for (kvc_session* s : {session, twin}) ASSERT_EQ(kvc_session_prefill(s, prompt.data(), 500), KVC_OK);
  EXPECT_EQ(Steps(session, 20), Steps(twin, 20));
  kvc_session_close(session);
  kvc_session_close(twin);
  kvc_model_close(model);
}

class CancelRecall : public testing::Test {
 protected:
  void SetUp() override {
    const kvc_model_params params = {sizeof params, 2, 0, nullptr, 0, 0};
    ASSERT_EQ(kvc_model_open(test_recall_path(KVC_SOURCE_DIR), nullptr, &params, &model_), KVC_OK)
        << kvc_last_error();
    for (size_t i = 0; i < prompt_.size(); ++i) prompt_[i] = static_cast<int32_t>(i * 7919 % 500) + 20;
  }
  void TearDown() override { kvc_model_close(model_); }

  // Cancels again and again from another thread until call() gives up; how long after the first request that
  // it could see.
  template <typename F>
  kvc_status Cancelled(kvc_session* session, F&& call, double* seconds) {
    std::atomic<bool> started{false}, done{false};
    std::atomic<double> asked{0};
    std::thread other([&] {
      while (!started) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      asked = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
      while (!done) EXPECT_EQ(kvc_session_cancel(session), KVC_OK);
    });
    started = true;
    const kvc_status status = call();
    *seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count() - asked;
    done = true;
    other.join();
    EXPECT_EQ(kvc_session_clear_cancel(session), KVC_OK);  // the last request may have come too late
    return status;
  }

  kvc_model* model_ = nullptr;
  std::vector<int32_t> prompt_ = std::vector<int32_t>(900);
};

TEST_F(CancelRecall, APromptLeavesTheSessionAsItWas) {
  for (const char* spec : {"full", "cokv:budget=64,window=8", "h2o:budget=64"}) {
    kvc_session *session = Create(model_, spec), *twin = Create(model_, spec);
    for (kvc_session* s : {session, twin}) {
      ASSERT_EQ(kvc_session_prefill(s, prompt_.data(), 200), KVC_OK) << kvc_last_error();
      EXPECT_EQ(Steps(s, 5).size(), 5u);
    }
    double seconds = 0;
    ASSERT_EQ(Cancelled(
                  session, [&] { return kvc_session_prefill(session, prompt_.data(), 600); }, &seconds),
              KVC_E_CANCELLED);
    RecordProperty(std::string("cancel_seconds_") + spec, std::to_string(seconds));
    kvc_session_stats a = {}, b = {};
    a.struct_size = b.struct_size = sizeof a;
    ASSERT_EQ(kvc_session_get_stats(session, &a), KVC_OK);
    ASSERT_EQ(kvc_session_get_stats(twin, &b), KVC_OK);
    EXPECT_EQ(a.n_prompt, b.n_prompt);
    EXPECT_EQ(a.cache_bytes, b.cache_bytes) << "nothing of the cancelled prompt stays";
    EXPECT_EQ(a.n_slots, b.n_slots);
    EXPECT_EQ(Steps(session, 10), Steps(twin, 10)) << spec;
    for (kvc_session* s : {session, twin}) ASSERT_EQ(kvc_session_prefill(s, prompt_.data(), 100), KVC_OK);
    EXPECT_EQ(Steps(session, 10), Steps(twin, 10)) << spec;
    kvc_session_close(session);
    kvc_session_close(twin);
  }
}

TEST_F(CancelRecall, AStepCanBeRepeated) {
  kvc_session *session = Create(model_, "h2o:budget=64"), *twin = Create(model_, "h2o:budget=64");
  for (kvc_session* s : {session, twin})
    ASSERT_EQ(kvc_session_prefill(s, prompt_.data(), 200), KVC_OK) << kvc_last_error();
  int cancelled = 0;
  std::vector<int32_t> tokens;
  double seconds = 0;
  const kvc_status status = Cancelled(
      session,
      [&] {
        kvc_status s = KVC_OK;
        while (cancelled < 5 && tokens.size() < 3000) {
          int32_t token = -3;
          s = kvc_session_step(session, &token);
          if (s == KVC_E_CANCELLED) {
            ++cancelled;
            EXPECT_EQ(token, -3);
          } else if (s == KVC_OK) {
            tokens.push_back(token);
            if (token == KVC_TOKEN_NONE) break;
          } else {
            break;
          }
        }
        return s;
      },
      &seconds);
  EXPECT_TRUE(status == KVC_OK || status == KVC_E_CANCELLED) << kvc_last_error();
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(Steps(twin, static_cast<int>(tokens.size())), tokens);
  EXPECT_EQ(Steps(twin, 10), Steps(session, 10));
  kvc_session_close(session);
  kvc_session_close(twin);
}

// A request that comes between two calls is meant for the next one that computes, and for that one only.
TEST_F(CancelRecall, BetweenCallsTheNextOneStops) {
  kvc_session *session = Create(model_, "h2o:budget=40"), *fork = nullptr;
  kvc_session_stats stats{};
  stats.struct_size = sizeof stats;
  int32_t token = -3, n = 0;
  std::vector<float> logits(1 << 16);
  const auto cancel = [&] { EXPECT_EQ(kvc_session_cancel(session), KVC_OK); };
  for (const auto prefill : {kvc_session_prefill, kvc_session_append}) {
    cancel();
    EXPECT_EQ(kvc_session_get_stats(session, &stats), KVC_OK) << "computes nothing";
    EXPECT_EQ(kvc_session_read_text(session, nullptr, 0, &n), KVC_OK);
    EXPECT_EQ(prefill(session, prompt_.data(), 50), KVC_E_CANCELLED);
    EXPECT_EQ(prefill(session, prompt_.data(), 50), KVC_OK);
  }
  cancel();
  EXPECT_EQ(kvc_session_step(session, &token), KVC_E_CANCELLED);
  EXPECT_EQ(token, -3);
  Steps(session, 1);
  cancel();
  EXPECT_EQ(kvc_session_accept(session, 5), KVC_E_CANCELLED);
  cancel();
  EXPECT_EQ(kvc_session_get_logits(session, logits.data(), 1 << 16, &n), KVC_E_CANCELLED)
      << "the token waits";
  cancel();
  EXPECT_EQ(kvc_session_compress(session), KVC_E_CANCELLED);
  cancel();
  EXPECT_EQ(kvc_session_trim(session, 30, nullptr), KVC_E_CANCELLED);
  cancel();
  EXPECT_EQ(kvc_session_fork(session, &fork), KVC_OK);
  Steps(fork, 2);  // the request is for the one session
  EXPECT_EQ(kvc_session_clear_cancel(session), KVC_OK);
  Steps(session, 3);
  kvc_session_close(fork);
  kvc_session_close(session);
}

// Between the parts of a long prompt too (weightedkv feeds them one by one).
TEST_F(CancelRecall, PromptsInPartsStopAndLeaveTheSession) {
  kvc_session* session = Create(model_, "weightedkv:budget=40,wkv_prefill=sequential");
  EXPECT_EQ(kvc_session_prefill(session, prompt_.data(), 30), KVC_OK);
  double seconds = 0;
  const kvc_status status = Cancelled(
      session, [&] { return kvc_session_prefill(session, prompt_.data(), 800); }, &seconds);
  EXPECT_EQ(status, KVC_E_CANCELLED) << kvc_last_error();
  kvc_session_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvc_session_get_stats(session, &stats), KVC_OK);
  EXPECT_EQ(stats.n_prompt, 30);
  Steps(session, 3);
  kvc_session_close(session);
}

}  // namespace

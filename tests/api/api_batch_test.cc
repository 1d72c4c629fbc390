// Batches, and prompts that are read between their steps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#define KVC_EXPERIMENTAL
#include "kvc/kvc.h"
#include "kvc/kvc_experimental.h"
#include "tests/support/c_support.h"

namespace {

// Policies that store, evict, merge and code in different ways.
const char* const kSpecs[] = {"full:kv=f32",
                              "snapkv:budget=40,window=8",
                              "h2o:budget=32",
                              "weightedkv:budget=32",
                              "full:kv=int8,quant_group=8,residual=4",
                              "spindlekv:budget=40,window=8",
                              "streaming:budget=24",
                              "snapkv:budget=32,window=8,decode=reobserve,slack=4"};
constexpr int kSessions = sizeof kSpecs / sizeof *kSpecs, kSteps = 24;

std::vector<int32_t> Prompt(int n, uint32_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 2654435761u + seed * 40503u) >> 7) & 0xff;
  return ids;
}

class Batch : public testing::Test {
 protected:
  void SetUp() override {
    int64_t n = 0;
    const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
    const kvc_model_params params = {sizeof params, 2, 0, nullptr, 0, 0};
    ASSERT_EQ(kvc_model_open_memory(bytes, n, nullptr, &params, &model_), KVC_OK) << kvc_last_error();
  }
  void TearDown() override {
    for (kvc_session* session : open_) kvc_session_close(session);
    kvc_model_close(model_);
  }
  kvc_session* Open(const char* spec, int32_t max_tokens = 0, float temperature = 0) {
    kvc_policy* policy = nullptr;
    EXPECT_EQ(kvc_policy_create(spec, &policy), KVC_OK) << kvc_last_error();
    kvc_session_params params = {};
    params.struct_size = sizeof params, params.max_tokens = max_tokens, params.temperature = temperature,
    params.seed = 5;
    kvc_session* session = nullptr;
    EXPECT_EQ(kvc_session_create(model_, policy, &params, &session), KVC_OK) << kvc_last_error();
    kvc_policy_close(policy);
    open_.push_back(session);
    return session;
  }
  kvc_session* Fed(int which, float temperature = 0) {
    kvc_session* session = Open(kSpecs[which], 0, temperature);
    const std::vector<int32_t> prompt = Prompt(30 + 9 * which, static_cast<uint32_t>(which));
    EXPECT_EQ(kvc_session_prefill(session, prompt.data(), static_cast<int32_t>(prompt.size())), KVC_OK);
    return session;
  }
  static kvc_session_stats Stats(kvc_session* session) {
    kvc_session_stats stats = {};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(kvc_session_get_stats(session, &stats), KVC_OK);
    return stats;
  }
  static int32_t Step(kvc_session* session) {
    int32_t token = -7;
    EXPECT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
    return token;
  }
  std::vector<float> Logits(kvc_session* session) {
    int32_t n = 0;
    EXPECT_EQ(kvc_session_get_logits(session, nullptr, 0, &n), KVC_OK) << kvc_last_error();
    std::vector<float> logits(static_cast<size_t>(n));
    EXPECT_EQ(kvc_session_get_logits(session, logits.data(), n, &n), KVC_OK);
    return logits;
  }
  static void ExpectSameKept(kvc_session* a, kvc_session* b) {
    std::vector<int32_t> of_a(4096), of_b(4096);
    for (int i = 0; i < 4; ++i) {
      int32_t n_a = 0, n_b = 0;
      ASSERT_EQ(kvc_session_get_kept(a, i / 2, i % 2, of_a.data(), 4096, &n_a), KVC_OK);
      ASSERT_EQ(kvc_session_get_kept(b, i / 2, i % 2, of_b.data(), 4096, &n_b), KVC_OK);
      ASSERT_EQ(std::vector<int32_t>(of_a.begin(), of_a.begin() + n_a),
                std::vector<int32_t>(of_b.begin(), of_b.begin() + n_b));
    }
  }

  kvc_model* model_ = nullptr;
  std::vector<kvc_session*> open_;
};

// The device says that a row is the same bits alone and in a batch.
TEST_F(Batch, EachAnswersAsItWouldAlone) {
  for (const float temperature : {0.0f, 0.9f}) {
    std::vector<kvc_session*> together, alone;
    for (int i = 0; i < kSessions; ++i)
      together.push_back(Fed(i, temperature)), alone.push_back(Fed(i, temperature));
    for (int step = 0; step < kSteps; ++step) {
      int32_t tokens[kSessions];
      kvc_status statuses[kSessions];
      ASSERT_EQ(kvc_batch_step(together.data(), kSessions, nullptr, tokens, statuses), KVC_OK)
          << kvc_last_error();
      for (int i = 0; i < kSessions; ++i) {
        ASSERT_EQ(statuses[i], KVC_OK) << kSpecs[i];
        ASSERT_EQ(tokens[i], Step(alone[static_cast<size_t>(i)])) << kSpecs[i] << " step " << step;
      }
    }
    for (size_t i = 0; i < kSessions; ++i) {
      EXPECT_EQ(Logits(together[i]), Logits(alone[i])) << kSpecs[i];
      ExpectSameKept(together[i], alone[i]);
    }
  }
}

// More than tokens are chosen for at once, each with settings of its own.
TEST_F(Batch, EachChoosesByItsOwnSettings) {
  constexpr int kMany = 40, kFewSteps = 3;
  std::vector<kvc_session*> together, alone;
  for (int i = 0; i < kMany; ++i) {
    for (auto* sessions : {&together, &alone}) {
      kvc_session* session = Open("full");
      const std::vector<int32_t> prompt = Prompt(8 + i % 5, static_cast<uint32_t>(i));
      ASSERT_EQ(kvc_session_prefill(session, prompt.data(), static_cast<int32_t>(prompt.size())), KVC_OK);
      kvc_sampling sampling = {};
      sampling.struct_size = sizeof sampling;
      sampling.temperature = i % 3 == 0 ? 0 : 0.7f + 0.01f * static_cast<float>(i), sampling.seed = 1000 + i;
      if (i % 4 == 1) sampling.top_p = 0.9f;
      if (i % 5 == 2) sampling.top_k = 11;
      if (i % 7 == 3) sampling.min_p = 0.01f;
      if (i % 2 == 1) sampling.repeat_penalty = 1.4f, sampling.repeat_window = i % 6 == 1 ? 512 : i;
      ASSERT_EQ(kvc_session_set_sampling(session, &sampling), KVC_OK) << kvc_last_error();
      sessions->push_back(session);
    }
  }
  for (int step = 0; step < kFewSteps; ++step) {
    int32_t tokens[kMany];
    ASSERT_EQ(kvc_batch_step(together.data(), kMany, nullptr, tokens, nullptr), KVC_OK) << kvc_last_error();
    for (int i = 0; i < kMany; ++i)
      ASSERT_EQ(tokens[i], Step(alone[static_cast<size_t>(i)])) << i << " step " << step;
  }
}

// More than are chosen for at once (32), whose samplers want different room; and then two tokens for each, of
// which more are fed than one pass has rows (256): how they are dealt out is the same on every device.
TEST_F(Batch, ManyAnswerAsTheyWouldAlone) {
  const char* device = std::getenv("KVC_TEST_DEVICE");
  if (device != nullptr && *device != 0 && std::string(device) != "cpu")
    GTEST_SKIP() << "minutes where it is emulated, and EachChoosesByItsOwnSettings runs there";
  constexpr int32_t kMany = 140;
  std::vector<kvc_session*> bases, together, alone;
  for (int i = 0; i < kSessions; ++i) bases.push_back(Fed(i));
  for (int32_t i = 0; i < kMany; ++i) {
    kvc_sampling sampling = {};
    sampling.struct_size = sizeof sampling, sampling.temperature = 0.9f, sampling.seed = i;
    if (i < 3) sampling.repeat_penalty = 1.5f, sampling.repeat_window = 200 / (i + 1);
    for (std::vector<kvc_session*>* sessions : {&together, &alone}) {
      kvc_session* fork = nullptr;
      ASSERT_EQ(kvc_session_fork(bases[static_cast<size_t>(i % kSessions)], &fork), KVC_OK);
      open_.push_back(fork), sessions->push_back(fork);
      ASSERT_EQ(kvc_session_set_sampling(fork, &sampling), KVC_OK);
    }
  }
  std::vector<int32_t> tokens(together.size()), fed(together.size());
  std::vector<kvc_status> statuses(together.size());
  for (int step = 0; step < 7; ++step) {
    ASSERT_EQ(kvc_batch_step(together.data(), kMany, nullptr, tokens.data(), statuses.data()), KVC_OK);
    for (size_t i = 0; i < together.size(); ++i)
      ASSERT_EQ(tokens[i], Step(alone[i])) << i << " step " << step;
  }
  for (size_t i = 0; i < fed.size(); ++i) fed[i] = static_cast<int32_t>(i);
  ASSERT_EQ(kvc_session_feed_batch(together.data(), fed.data(), kMany), KVC_OK) << kvc_last_error();
  for (size_t i = 0; i < together.size(); ++i) {
    ASSERT_EQ(kvc_session_feed_batch(&alone[i], &fed[i], 1), KVC_OK) << kvc_last_error();
    ASSERT_EQ(Logits(together[i]), Logits(alone[i])) << i;
  }
}

TEST_F(Batch, SessionsJoinAndLeaveAtAnyStep) {
  std::vector<kvc_session*> together, alone;
  for (int i = 0; i < kSessions; ++i) together.push_back(Fed(i)), alone.push_back(Fed(i));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<kvc_session*> now;
    std::vector<size_t> which;
    for (size_t i = 0; i < kSessions; ++i) {
      if ((static_cast<size_t>(step) * 5 + i * 3) % 4 != 0) now.push_back(together[i]), which.push_back(i);
    }
    std::vector<int32_t> tokens(now.size());
    ASSERT_EQ(kvc_batch_step(now.data(), static_cast<int32_t>(now.size()), nullptr, tokens.data(), nullptr),
              KVC_OK);
    for (size_t k = 0; k < now.size(); ++k) ASSERT_EQ(tokens[k], Step(alone[which[k]])) << kSpecs[which[k]];
  }
}

TEST_F(Batch, OneThatCannotGoOnDoesNotStopTheOthers) {
  kvc_session* full = Open("full:kv=f32", 32);
  const std::vector<int32_t> prompt = Prompt(31, 1);
  ASSERT_EQ(kvc_session_prefill(full, prompt.data(), 31), KVC_OK);
  kvc_session *empty = Open("full"), *cancelled = Fed(0), *fine = Fed(1), *same = Fed(1);
  kvc_session* const batch[] = {full, empty, cancelled, fine};
  int32_t tokens[4];
  kvc_status statuses[4];
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      ASSERT_EQ(kvc_session_cancel(cancelled), KVC_OK);
    }
    ASSERT_EQ(kvc_batch_step(batch, 4, nullptr, tokens, statuses), KVC_OK);
    EXPECT_EQ(statuses[0], step < 2 ? KVC_OK : KVC_E_CONTEXT_FULL) << step;
    EXPECT_EQ(statuses[1], KVC_E_INVALID);
    EXPECT_EQ(tokens[1], KVC_TOKEN_NONE);
    EXPECT_EQ(statuses[2], step == 2 ? KVC_E_CANCELLED : KVC_OK) << "a request is answered once";
    EXPECT_EQ(statuses[3], KVC_OK);
    EXPECT_EQ(tokens[3], Step(same));
  }
}

TEST_F(Batch, WhatCannotBeOneIsRefused) {
  kvc_session *a = Fed(0), *b = Fed(1);
  const std::vector<float> before = Logits(a);
  int32_t tokens[2];
  kvc_session *twice[] = {a, a}, *hole[] = {a, nullptr}, *both[] = {a, b};
  EXPECT_EQ(kvc_batch_step(twice, 2, nullptr, tokens, nullptr), KVC_E_BUSY);
  EXPECT_EQ(kvc_batch_step(hole, 2, nullptr, tokens, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_batch_step(nullptr, 2, nullptr, tokens, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_batch_step(both, 0, nullptr, tokens, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_batch_step(both, 257, nullptr, tokens, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_batch_step(both, 2, nullptr, nullptr, nullptr), KVC_E_INVALID);
  kvc_batch_params params = {sizeof params, -1};
  EXPECT_EQ(kvc_batch_step(both, 2, &params, tokens, nullptr), KVC_E_INVALID);
  float logits[8];
  EXPECT_EQ(kvc_batch_logits(both, 2, nullptr, logits, 8, tokens, nullptr), KVC_E_BUFFER_TOO_SMALL);
  kvc_model* other = nullptr;
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  ASSERT_EQ(kvc_model_open_memory(bytes, n, nullptr, nullptr, &other), KVC_OK);
  kvc_session* foreign = nullptr;
  ASSERT_EQ(kvc_session_create(other, nullptr, nullptr, &foreign), KVC_OK);
  kvc_session* mixed[] = {a, foreign};
  EXPECT_EQ(kvc_batch_step(mixed, 2, nullptr, tokens, nullptr), KVC_E_INVALID);
  EXPECT_NE(std::string(kvc_last_error()).find("another model"), std::string::npos) << kvc_last_error();
  const std::vector<int32_t> prompt = Prompt(9, 1);
  ASSERT_EQ(kvc_session_prefill(foreign, prompt.data(), 9), KVC_OK);
  EXPECT_EQ(kvc_session_feed_batch(mixed, prompt.data(), 2), KVC_E_INVALID);
  EXPECT_NE(std::string(kvc_last_error()).find("another model"), std::string::npos) << kvc_last_error();
  kvc_session_close(foreign);
  kvc_model_close(other);
  EXPECT_EQ(Logits(a), before) << "nothing was changed";
}

TEST_F(Batch, OnesOwnSamplerChoosesFromTheSameLogits) {
  kvc_session *a = Fed(0), *b = Fed(2), *alone[] = {Fed(0), Fed(2)};
  kvc_session* const batch[] = {a, b};
  const size_t vocab = Logits(alone[0]).size();
  std::vector<float> logits(2 * vocab);
  int32_t tokens[2];
  for (int step = 0; step < 8; ++step) {
    ASSERT_EQ(kvc_batch_logits(batch, 2, nullptr, logits.data(), static_cast<int64_t>(logits.size()), tokens,
                               nullptr),
              KVC_OK);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(tokens[i], KVC_TOKEN_NONE);
      const std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                                   logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
      ASSERT_EQ(row, Logits(alone[i])) << step;
      const int32_t choice = (step * 7 + static_cast<int32_t>(i)) % 200;
      ASSERT_EQ(kvc_session_accept(batch[i], choice), KVC_OK);
      ASSERT_EQ(kvc_session_accept(alone[i], choice), KVC_OK);
    }
  }
}

// However it is cut, a prompt leaves the same.
TEST_F(Batch, AQueuedPromptIsReadBetweenSteps) {
  const bool on_another = std::getenv("KVC_TEST_DEVICE") != nullptr;
  const int32_t n = on_another ? 300 : 900;  // on the processor four chunks in each layer
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const std::vector<int32_t> prompt = Prompt(n, 3);
    kvc_session *runs = Fed(0), *same = Fed(0), *queued = Open(spec, 2000), *whole = Open(spec, 2000);
    ASSERT_EQ(kvc_session_prefill(whole, prompt.data(), n), KVC_OK);
    ASSERT_EQ(kvc_session_enqueue(queued, prompt.data(), n, 1), KVC_OK);
    EXPECT_EQ(Stats(queued).prompt_progress, 0);
    EXPECT_EQ(Stats(queued).n_prompt, 0);
    kvc_session* const batch[] = {runs, queued};
    const kvc_batch_params params = {sizeof params, 256};
    int32_t tokens[2], n_reading = 0;
    double progress = 0;
    while (true) {
      ASSERT_EQ(kvc_batch_step(batch, 2, &params, tokens, nullptr), KVC_OK);
      ASSERT_EQ(tokens[0], Step(same)) << "a prompt that is read changes no other answer";
      if (tokens[1] != KVC_TOKEN_READING) break;
      EXPECT_GT(Stats(queued).prompt_progress, progress);
      progress = Stats(queued).prompt_progress;
      ASSERT_LT(++n_reading, 100);
    }
    // Two layers; a device that reads more than these tokens at once gives way between them.
    EXPECT_GE(n_reading, on_another ? 1 : 3) << "it gives way";
    EXPECT_EQ(Stats(queued).prompt_progress, 1);
    EXPECT_EQ(Stats(queued).n_prompt, n);
    EXPECT_EQ(tokens[1], Step(whole));
    EXPECT_EQ(Logits(queued), Logits(whole));
    ExpectSameKept(queued, whole);
  }
}

TEST_F(Batch, OtherCallsReadAQueuedPromptFirst) {
  const std::vector<int32_t> prompt = Prompt(50, 3), more = Prompt(5, 4);
  kvc_session *queued = Open("h2o:budget=32"), *whole = Open("h2o:budget=32");
  ASSERT_EQ(kvc_session_enqueue(queued, prompt.data(), 50, 1), KVC_OK);
  ASSERT_EQ(kvc_session_enqueue(queued, more.data(), 5, 1), KVC_OK);
  ASSERT_EQ(kvc_session_prefill(whole, prompt.data(), 50), KVC_OK);
  ASSERT_EQ(kvc_session_prefill(whole, more.data(), 5), KVC_OK);
  kvc_session* fork = nullptr;
  ASSERT_EQ(kvc_session_fork(queued, &fork), KVC_OK);
  open_.push_back(fork);
  const int32_t next = Step(whole);
  EXPECT_EQ(Step(fork), next);
  EXPECT_EQ(Step(queued), next);
}

TEST_F(Batch, AQueuedPromptIsTakenBackWhole) {
  const std::vector<int32_t> prompt = Prompt(600, 3);
  kvc_session *queued = Fed(1), *other = Fed(1);
  ASSERT_EQ(kvc_session_enqueue(queued, prompt.data(), 600, 1), KVC_OK);
  int32_t token = 0;
  kvc_status status = KVC_OK;
  ASSERT_EQ(kvc_batch_step(&queued, 1, nullptr, &token, &status), KVC_OK);
  ASSERT_EQ(token, KVC_TOKEN_READING);
  ASSERT_EQ(kvc_session_cancel(queued), KVC_OK);
  ASSERT_EQ(kvc_batch_step(&queued, 1, nullptr, &token, &status), KVC_OK);
  EXPECT_EQ(status, KVC_E_CANCELLED);
  EXPECT_EQ(Stats(queued).prompt_progress, 1) << "none waits";
  EXPECT_EQ(Logits(queued), Logits(other));
  ExpectSameKept(queued, other);
  ASSERT_EQ(kvc_session_enqueue(queued, prompt.data(), 600, 1), KVC_OK);
  ASSERT_EQ(kvc_session_reset(queued), KVC_OK);
  EXPECT_EQ(Stats(queued).n_slots, 0);
  const int32_t bad = 1 << 20;
  EXPECT_EQ(kvc_session_enqueue(queued, &bad, 1, 1), KVC_E_INVALID) << "refused beforehand";
}

// The prompts in front of it may take all that is read in a call.
TEST_F(Batch, AQueuedPromptWhoseTurnHasNotComeIsCancelledToo) {
  const std::vector<int32_t> prompt = Prompt(600, 3);
  kvc_session* const queued[] = {Fed(0), Fed(1)};
  for (kvc_session* session : queued) ASSERT_EQ(kvc_session_enqueue(session, prompt.data(), 600, 1), KVC_OK);
  ASSERT_EQ(kvc_session_cancel(queued[1]), KVC_OK);
  int32_t tokens[2];
  kvc_status statuses[2];
  const kvc_batch_params params = {sizeof params, 1};
  ASSERT_EQ(kvc_batch_step(queued, 2, &params, tokens, statuses), KVC_OK);
  EXPECT_EQ(tokens[0], KVC_TOKEN_READING);
  EXPECT_EQ(statuses[1], KVC_E_CANCELLED);
  EXPECT_EQ(Stats(queued[1]).prompt_progress, 1) << "none waits";
}

// A budget that a prompt of this length cannot have. Of one that is compressed chunk by chunk: the first.
TEST_F(Batch, APromptThatCannotBeCompressedIsRefusedBeforehand) {
  const std::vector<int32_t> prompt = Prompt(2000, 3);
  const std::pair<const char*, int32_t> refused[] = {
      {"scissorhands:budget_ratio=0.1", 100},
      {"scissorhands:budget_ratio=0.1,recent=64,compress_per_chunk=1", 2000},
  };
  for (const auto& [spec, n] : refused) {
    SCOPED_TRACE(spec);
    kvc_session* session = Open(spec, 4000);
    EXPECT_EQ(kvc_session_enqueue(session, prompt.data(), n, 1), KVC_E_INVALID);
    EXPECT_EQ(Stats(session).prompt_progress, 1) << "none waits";
    EXPECT_EQ(kvc_session_enqueue(session, prompt.data(), n, 0), KVC_OK) << kvc_last_error();
  }
  kvc_session* session = Open("scissorhands:budget_ratio=0.1,recent=64", 4000);
  EXPECT_EQ(kvc_session_enqueue(session, prompt.data(), 2000, 1), KVC_OK) << kvc_last_error();
  Step(session);
}

// A request to any of the sessions ends the call for all, once.
TEST_F(Batch, ACancelledPromptOfSeveralIsAnsweredOnce) {
  const std::vector<int32_t> prompt = Prompt(60, 3);
  kvc_session* const sessions[] = {Open("full"), Open("full")};
  for (kvc_session* cancelled : sessions) {
    ASSERT_EQ(kvc_session_cancel(cancelled), KVC_OK);
    EXPECT_EQ(kvc_session_prefill_together(sessions, 2, prompt.data(), 60), KVC_E_CANCELLED);
    for (kvc_session* session : sessions) EXPECT_EQ(Stats(session).n_prompt, 0);
    EXPECT_EQ(kvc_session_prefill_together(sessions, 2, prompt.data(), 60), KVC_OK) << kvc_last_error();
    for (kvc_session* session : sessions) ASSERT_EQ(kvc_session_reset(session), KVC_OK);
  }
}

// How many logits there are is asked for at any time: the token of the last step is read once.
TEST_F(Batch, LogitsAskedForInTheMiddleOfAPromptChangeNothing) {
  const std::vector<int32_t> prompt = Prompt(600, 3);
  kvc_session *asked = Fed(1), *left = Fed(1);
  for (kvc_session* s : {asked, left}) {
    Step(s);
    ASSERT_EQ(kvc_session_enqueue(s, prompt.data(), 600, 1), KVC_OK);
    const kvc_batch_params params = {sizeof params, 1};
    int32_t token = 0, n = 0;
    ASSERT_EQ(kvc_batch_step(&s, 1, &params, &token, nullptr), KVC_OK);
    ASSERT_EQ(token, KVC_TOKEN_READING);
    if (s != asked) continue;
    ASSERT_EQ(kvc_session_get_logits(s, nullptr, 0, &n), KVC_OK) << kvc_last_error();
  }
  EXPECT_EQ(Step(asked), Step(left));
  EXPECT_EQ(Logits(asked), Logits(left));
  ExpectSameKept(asked, left);
  int64_t n_bytes = 0;
  ASSERT_EQ(kvc_session_save_memory(asked, nullptr, 0, &n_bytes), KVC_OK);
  std::vector<uint8_t> bytes(static_cast<size_t>(n_bytes));
  ASSERT_EQ(kvc_session_save_memory(asked, bytes.data(), n_bytes, &n_bytes), KVC_OK);
  kvc_session* restored = nullptr;
  ASSERT_EQ(kvc_session_restore_memory(model_, bytes.data(), n_bytes, &restored), KVC_OK) << kvc_last_error();
  open_.push_back(restored);
}

TEST_F(Batch, AWholePromptMayBeReadInOneCall) {
  const std::vector<int32_t> prompt = Prompt(900, 3);
  kvc_session* session = Open("full:kv=f32");
  ASSERT_EQ(kvc_session_enqueue(session, prompt.data(), 900, 1), KVC_OK);
  const kvc_batch_params params = {sizeof params, INT32_MAX};
  int32_t token = KVC_TOKEN_READING;
  ASSERT_EQ(kvc_batch_step(&session, 1, &params, &token, nullptr), KVC_OK);
  EXPECT_GE(token, 0);
  EXPECT_EQ(Stats(session).n_prompt, 900);
}

// Scored again in a batch: each in room of its own size, whatever the others need.
TEST_F(Batch, SessionsOfOtherLengthsAreScoredAlike) {
  const char* const specs[] = {"snapkv:budget=600,window=8,decode=reobserve,slack=4",
                               "snapkv:budget=32,window=8,decode=reobserve,slack=4"};
  kvc_session *together[2], *alone[2];
  for (int i = 0; i < 2; ++i) {
    const std::vector<int32_t> prompt = Prompt(i == 0 ? 800 : 40, 5);
    for (kvc_session** s : {&together[i], &alone[i]}) {
      *s = Open(specs[i]);
      ASSERT_EQ(kvc_session_prefill(*s, prompt.data(), static_cast<int32_t>(prompt.size())), KVC_OK);
    }
  }
  for (int step = 0; step < kSteps; ++step) {
    int32_t tokens[2];
    ASSERT_EQ(kvc_batch_step(together, 2, nullptr, tokens, nullptr), KVC_OK) << kvc_last_error();
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(tokens[i], Step(alone[i])) << specs[i] << " step " << step;
      ExpectSameKept(together[i], alone[i]);
    }
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Logits(together[i]), Logits(alone[i]));
}

}  // namespace

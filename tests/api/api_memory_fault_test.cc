// No memory at any allocation: each one of a short run is made to fail in turn. Every call then says
// KVC_E_MEMORY and nothing else changes: called again it works, and the run ends with the tokens of a run
// without faults.
#define KVC_EXPERIMENTAL
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvc/kvc.h"
#include "kvc/kvc_experimental.h"
#include "tests/support/c_support.h"
#include "tests/support/emulated.h"
#include "tests/support/heap_faults.h"

namespace {

using kvc::test::HeapFault;

constexpr int kPrompt = 50, kSteps = 20;

std::vector<int32_t> Prompt(int n, uint32_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 2654435761u + seed * 40503u) >> 7) & 0xff;
  return ids;
}

// Runs calls one after the other; the one that the fault hits is called a second time.
class Caller {
 public:
  explicit Caller(HeapFault* fault) : fault_(fault) {}
  template <typename F>
  void operator()(const char* what, F&& call) {
    kvc_status status = call();
    if (status != KVC_OK && fault_ != nullptr && fault_->fired()) {
      fault_->Stop();
      EXPECT_EQ(status, KVC_E_MEMORY) << what << ": " << kvc_last_error();
      status = call();
    }
    ASSERT_EQ(status, KVC_OK) << what << ": " << kvc_last_error();
  }

 private:
  HeapFault* fault_;
};

kvc_model* OpenTiny(Caller& call, int32_t which = TEST_MODEL_TINY) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(which, &n);
  kvc_model_params params = {sizeof params, 1, 0, nullptr, 0, 0};
  kvc_model* model = nullptr;
  call("open", [&] { return kvc_model_open_memory(bytes, n, nullptr, &params, &model); });
  return model;
}

void Steps(Caller& call, kvc_session* session, int n, std::vector<int32_t>* tokens) {
  for (int i = 0; i < n; ++i) {
    int32_t token = -2;
    call("step", [&] { return kvc_session_step(session, &token); });
    tokens->push_back(token);
  }
}

// What a conversation and a grammar engine call, and a session in memory.
void Converse(Caller& call, kvc_model* model, kvc_session* session, std::vector<int32_t>* tokens) {
  const uint8_t text[] = {'h', 'i'};
  const int32_t favoured[] = {65, 66};
  const float biases[] = {2, -3};
  const int32_t mask[] = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
  static uint8_t bytes[1 << 20];  // the test itself takes nothing here
  kvc_sampling sampling;
  kvc_params_init(&sampling, static_cast<int32_t>(sizeof sampling));
  sampling.repeat_penalty = 1.5f;
  call("sampling", [&] { return kvc_session_set_sampling(session, &sampling); });
  call("bias", [&] { return kvc_session_set_logit_bias(session, favoured, biases, 2); });
  call("mask", [&] { return kvc_session_set_token_mask(session, mask, 9); });
  call("marks",
       [&] { return kvc_session_set_turn_marks(session, KVC_ROLE_USER, "a mark of the user's: ", "\n"); });
  call("say", [&] { return kvc_session_say(session, KVC_ROLE_USER, text, 2, KVC_ANSWER); });
  Steps(call, session, 3, tokens);
  int64_t n = 0;
  call("size", [&] { return kvc_session_save_memory(session, nullptr, 0, &n); });
  call("save to memory", [&] { return kvc_session_save_memory(session, bytes, sizeof bytes, &n); });
  kvc_session* back = nullptr;
  call("restore from memory", [&] { return kvc_session_restore_memory(model, bytes, n, &back); });
  call("say again", [&] { return kvc_session_say(back, KVC_ROLE_ASSISTANT, text, 2, 0); });
  Steps(call, back, 2, tokens);
  kvc_session_close(back);
}

// The tokens of everything that was generated.
std::vector<int32_t> RunAll(kvc_model* model, const char* spec, const std::string& path, int64_t at = -1,
                            HeapFault::Mode mode = HeapFault::kOne) {
  std::vector<int32_t> tokens;
  tokens.reserve(1000);
  const std::vector<int32_t> prompt = Prompt(kPrompt, 1), more = Prompt(20, 2);
  std::optional<HeapFault> fault;
  if (at >= 0) fault.emplace(at, mode);
  Caller call(fault.has_value() ? &*fault : nullptr);
  kvc_policy* policy = nullptr;
  kvc_session *session = nullptr, *fork = nullptr, *back = nullptr;
  kvc_session_params params = {sizeof params, 0, 0, 8, 0.9f, 0.7f, 5};
  kvc_plan plan = {};
  plan.struct_size = sizeof plan;
  call("policy", [&] { return kvc_policy_create(spec, &policy); });
  call("plan", [&] { return kvc_session_plan(model, policy, &params, kPrompt, &plan, nullptr, 0, nullptr); });
  call("create", [&] { return kvc_session_create(model, policy, &params, &session); });
  kvc_policy_close(policy);
  call("prefill", [&] { return kvc_session_prefill(session, prompt.data(), kPrompt); });
  Steps(call, session, 5, &tokens);
  call("second prompt", [&] { return kvc_session_prefill(session, more.data(), 20); });
  call("fork", [&] { return kvc_session_fork(session, &fork); });
  Steps(call, session, kSteps, &tokens);
  call("append", [&] { return kvc_session_append(fork, more.data(), 20); });
  call("compress", [&] { return kvc_session_compress(fork); });
  Steps(call, fork, 3, &tokens);
  call("save", [&] { return kvc_session_save(session, path.c_str()); });
  call("restore", [&] { return kvc_session_restore(model, path.c_str(), &back); });
  Steps(call, back, 3, &tokens);
  Steps(call, session, 3, &tokens);
  Converse(call, model, back, &tokens);
  kvc_session_close(session);
  kvc_session_close(fork);
  kvc_session_close(back);
  return tokens;
}

void ExpectRunGoesOn(int32_t which, const char* spec) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault, which);
  // Thousands of saved sessions: in memory where the system has such a folder, for each waits for its disk.
  const std::string memory = "/dev/shm/kvc-faults-" + std::to_string(::getpid());
  std::error_code no_memory_folder;
  std::filesystem::create_directory(memory, no_memory_folder);
  const std::string folder = no_memory_folder ? test_path("faults") : memory, path = folder + "/s.kvcs";
  std::filesystem::create_directories(folder);
  const std::vector<int32_t> expected = RunAll(model, spec, path);
  const int64_t before = kvc::test::HeapAllocations(), bytes_before = kvc::test::HeapBytes();
  RunAll(model, spec, path);
  const int64_t n = kvc::test::HeapAllocations() - before;
  EXPECT_EQ(kvc::test::HeapBytes(), bytes_before) << "a run leaves nothing behind";
  for (const HeapFault::Mode mode : {HeapFault::kOne, HeapFault::kAllFrom}) {
    const int64_t stride = kvc::test::EveryNth(23) * (mode == HeapFault::kOne ? 1 : 5);
    for (int64_t k = 0; k < n && !testing::Test::HasFailure(); k += stride) {
      const std::vector<int32_t> tokens = RunAll(model, spec, path, k, mode);
      ASSERT_EQ(tokens, expected) << "allocation " << k << " of " << n << ", mode " << mode;
      const auto files = std::filesystem::directory_iterator(folder);
      ASSERT_EQ(std::distance(begin(files), end(files)), 1) << "a temporary file was left";
    }
  }
  EXPECT_EQ(kvc::test::HeapBytes(), bytes_before);
  kvc_model_close(model);
  std::filesystem::remove_all(folder);
  testing::Test::RecordProperty("allocations", std::to_string(n));
}

class EachAllocationFails : public testing::TestWithParam<const char*> {};

TEST_P(EachAllocationFails, AndTheRunGoesOn) { ExpectRunGoesOn(TEST_MODEL_INT8, GetParam()); }

// Layers with windows hold theirs through it all.
class EachAllocationFailsWithWindows : public testing::TestWithParam<const char*> {};

TEST_P(EachAllocationFailsWithWindows, AndTheRunGoesOn) {
  ExpectRunGoesOn(TEST_MODEL_SMALL_WINDOWS, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Policies, EachAllocationFailsWithWindows,
                         testing::Values("full", "cokv-document:budget=32,window=8",
                                         "snapkv:budget=32,window=8,kv=int8,quant_group=16,decode=reobserve",
                                         "spindlekv:budget=32,window=8"));

INSTANTIATE_TEST_SUITE_P(Policies, EachAllocationFails,
                         testing::Values("full", "cokv:budget=32,window=8", "h2o:budget=32",
                                         "streaming:budget=32", "weightedkv:budget=32",
                                         "spindlekv:budget=32,window=8",
                                         "snapkv:budget=32,window=8,kv=int8,quant_group=16",
                                         "snapkv:budget=32,window=8,decode=reobserve",
                                         "ada-snapkv:budget=32,window=8", "cokv-document:budget=32,window=8",
                                         "reconstruct:budget=32,window=8,reread=own,reread_part=256",
                                         "weightedkv:budget=32,wkv_prefill=sequential"));

// The same for a run that makes its calls through a Caller and notes what it sees, without memory of its own.
template <typename T, typename Run>
void ExpectCleanFaults(Run&& run) {
  std::vector<T> expected, seen;
  expected.reserve(10000), seen.reserve(10000);
  Caller no_fault(nullptr);
  run(no_fault, &expected);
  const int64_t before = kvc::test::HeapAllocations(), bytes = kvc::test::HeapBytes();
  run(no_fault, &seen);
  const int64_t n = kvc::test::HeapAllocations() - before;
  EXPECT_EQ(kvc::test::HeapBytes(), bytes) << "a run leaves nothing behind";
  for (const HeapFault::Mode mode : {HeapFault::kOne, HeapFault::kAllFrom}) {
    for (int64_t k = 0; k < n && !testing::Test::HasFailure(); k += kvc::test::EveryNth(23)) {
      seen.clear();
      {
        HeapFault fault(k, mode);
        Caller call(&fault);
        run(call, &seen);
      }
      ASSERT_EQ(seen, expected) << "allocation " << k << " of " << n << ", mode " << mode;
    }
  }
  EXPECT_EQ(kvc::test::HeapBytes(), bytes);
}

kvc_session* OpenSession(Caller& call, kvc_model* model, const char* spec) {
  kvc_policy* policy = nullptr;
  kvc_session* session = nullptr;
  call("policy", [&] { return kvc_policy_create(spec, &policy); });
  call("create", [&] { return kvc_session_create(model, policy, nullptr, &session); });
  kvc_policy_close(policy);
  return session;
}

// One prompt for sessions of all kinds: all have it, or none has.
TEST(MemoryFault, APromptForSeveralSessionsFailsForAll) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault);
  const std::vector<int32_t> prompt = Prompt(kPrompt, 1);
  constexpr int kSessions = 5;
  ExpectCleanFaults<int32_t>([&](Caller& call, std::vector<int32_t>* tokens) {
    kvc_session* sessions[kSessions] = {
        OpenSession(call, model, "full"), OpenSession(call, model, "cokv-document:budget=32,window=8"),
        OpenSession(call, model, "h2o:budget=32"), OpenSession(call, model, "spindlekv:budget=32,window=8"),
        OpenSession(call, model, "cam:budget=32")};  // reads the prompt alone, token by token
    call("together", [&] {
      const kvc_status status = kvc_session_prefill_together(sessions, kSessions, prompt.data(), kPrompt);
      for (const kvc_session* session : sessions) {
        kvc_session_stats stats = {};
        stats.struct_size = sizeof stats;
        call("stats", [&] { return kvc_session_get_stats(session, &stats); });
        EXPECT_EQ(stats.n_prompt, status == KVC_OK ? kPrompt : 0);
        EXPECT_EQ(stats.cache_bytes > 0, status == KVC_OK) << "of a prompt that failed nothing stays";
      }
      return status;
    });
    for (kvc_session* session : sessions) Steps(call, session, 2, tokens);
    int32_t fed[kSessions] = {1, 2, 3, 4, 5};
    call("batch", [&] { return kvc_session_feed_batch(sessions, fed, kSessions); });
    for (kvc_session* session : sessions) Steps(call, session, 2, tokens);
    for (kvc_session* session : sessions) kvc_session_close(session);
  });
  kvc_model_close(model);
}

// A batch that says it had no memory has begun nothing; one that has says what became of every session.
TEST(MemoryFault, ABatchSaysWhatBecameOfAPromptThatWaited) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault);
  const std::vector<int32_t> prompt = Prompt(kPrompt, 1);
  constexpr kvc_status kUntouched = 77;
  bool fired = true;
  int n_begun = 0;
  for (int64_t k = 0; fired; ++k) {
    ASSERT_LT(k, 1000) << "more allocations than expected";
    kvc_session* sessions[] = {OpenSession(no_fault, model, "full"), OpenSession(no_fault, model, "full")};
    ASSERT_EQ(kvc_session_prefill(sessions[1], prompt.data(), kPrompt), KVC_OK);
    ASSERT_EQ(kvc_session_accept(sessions[1], 5), KVC_OK);
    ASSERT_EQ(kvc_session_enqueue(sessions[0], prompt.data(), kPrompt, 0), KVC_OK);
    ASSERT_EQ(kvc_session_cancel(sessions[0]), KVC_OK);  // which takes the prompt back
    int32_t tokens[] = {-9, -9};
    kvc_status statuses[] = {kUntouched, kUntouched}, batch = KVC_OK;
    {
      HeapFault fault(k, HeapFault::kOne);
      batch = kvc_batch_step(sessions, 2, nullptr, tokens, statuses);
      fired = fault.fired();
    }
    kvc_session_stats stats = {};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(kvc_session_get_stats(sessions[0], &stats), KVC_OK);
    if (batch == KVC_OK) {
      ++n_begun;
      EXPECT_TRUE(statuses[0] == KVC_E_CANCELLED || statuses[0] == KVC_E_MEMORY) << statuses[0];
      EXPECT_TRUE(statuses[1] == KVC_OK || statuses[1] == KVC_E_MEMORY) << statuses[1];
    } else {
      EXPECT_EQ(batch, KVC_E_MEMORY);
      EXPECT_EQ(statuses[0], kUntouched);
      EXPECT_LT(stats.prompt_progress, 1) << "its prompt is gone, allocation " << k;
    }
    for (kvc_session* session : sessions) kvc_session_close(session);
  }
  EXPECT_GT(n_begun, 1);
  kvc_model_close(model);
}

// Attention is kept by the step itself: one that finds no room for it has not begun.
TEST(MemoryFault, StepsThatKeepTheirAttentionCanBeRepeated) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault);
  const std::vector<int32_t> prompt = Prompt(kPrompt, 1);
  for (const char* spec : {"full", "snapkv:budget=32,window=8,kv=int8,quant_group=16", "h2o:budget=60"}) {
    SCOPED_TRACE(spec);
    ExpectCleanFaults<float>([&](Caller& call, std::vector<float>* seen) {
      kvc_session* session = OpenSession(call, model, spec);
      call("prefill", [&] { return kvc_session_prefill(session, prompt.data(), kPrompt); });
      call("observe", [&] { return kvc_session_observe_attention(session, 1); });
      for (int i = 0; i < kSteps; ++i) {
        int32_t token = 0, n = 0;
        float p[200], logits[300];
        call("step", [&] { return kvc_session_step(session, &token); });
        call("logits", [&] { return kvc_session_get_logits(session, logits, 300, &n); });  // feeds it
        seen->push_back(static_cast<float>(token));
        call("attention", [&] { return kvc_session_get_attention(session, 1, 3, p, 200, &n); });
        seen->insert(seen->end(), p, p + n);
      }
      static float values[10000];  // what the test takes itself would fail too
      int32_t n = 0;
      call("values", [&] { return kvc_session_get_values(session, 1, 1, values, 10000, &n); });
      seen->insert(seen->end(), values, values + std::min(n, 256));
      call("keys", [&] { return kvc_session_get_keys(session, 1, 1, values, 10000, &n); });
      seen->insert(seen->end(), values, values + std::min(n, 256));
      kvc_session_close(session);
    });
  }
  kvc_model_close(model);
}

TEST(ExperimentalVectors, SayWhatIsWrong) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault);
  kvc_session* session = OpenSession(no_fault, model, "full");
  const std::vector<int32_t> prompt = Prompt(10, 1);
  ASSERT_EQ(kvc_session_prefill(session, prompt.data(), 10), KVC_OK);
  for (const auto get : {kvc_session_get_keys, kvc_session_get_values}) {
    float vectors[10 * 16];
    int32_t n = 0;
    EXPECT_EQ(get(session, 2, 0, vectors, 160, &n), KVC_E_INVALID);
    EXPECT_EQ(get(session, 0, 2, vectors, 160, &n), KVC_E_INVALID);
    EXPECT_EQ(get(session, -1, 0, vectors, 160, &n), KVC_E_INVALID);
    EXPECT_EQ(get(nullptr, 0, 0, vectors, 160, &n), KVC_E_INVALID);
    EXPECT_EQ(n, 0);
    EXPECT_EQ(get(session, 0, 0, vectors, 159, &n), KVC_E_BUFFER_TOO_SMALL);
    EXPECT_EQ(n, 160);
    EXPECT_EQ(get(session, 0, 0, vectors, n, &n), KVC_OK);
  }
  kvc_session_close(session);
  kvc_model_close(model);
}

TEST(ExperimentalMeasure, IsTheDeviceOfTheModel) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault);
  double bytes_per_second = 0;
  EXPECT_EQ(kvc_model_measure(nullptr, &bytes_per_second), KVC_E_INVALID);
  EXPECT_EQ(kvc_model_measure(model, nullptr), KVC_E_INVALID);
  EXPECT_EQ(bytes_per_second, 0);
  EXPECT_EQ(kvc_model_measure(model, &bytes_per_second), KVC_OK) << kvc_last_error();
  EXPECT_GT(bytes_per_second, 0);
  kvc_model_close(model);
}

TEST(MemoryFault, OpeningAModelFailsCleanly) {
  Caller no_fault(nullptr);
  kvc_model_close(OpenTiny(no_fault));
  const int64_t before = kvc::test::HeapAllocations(), bytes = kvc::test::HeapBytes();
  kvc_model_close(OpenTiny(no_fault));
  const int64_t n = kvc::test::HeapAllocations() - before;
  for (int64_t k = 0; k < n && !HasFailure(); ++k) {
    HeapFault fault(k, HeapFault::kOne);
    Caller call(&fault);
    kvc_model_close(OpenTiny(call));
  }
  EXPECT_EQ(kvc::test::HeapBytes(), bytes);
}

TEST(MemoryFault, ModelCallsFailCleanly) {
  Caller no_fault(nullptr);
  kvc_model* model = OpenTiny(no_fault);
  const auto run = [&](Caller call) {
    const uint8_t text[] = "a text, and another";
    int32_t tokens[64], n = 0;
    uint8_t back[64];
    static char json[100000];
    call("tokenize", [&] { return kvc_tokenize(model, text, 19, KVC_ADD_BOS, tokens, 64, &n); });
    call("detokenize", [&] { return kvc_detokenize(model, tokens, n, back, 64, &n); });
    call("describe", [&] { return kvc_model_describe(model, json, sizeof json, &n); });
    call("method", [&] { return kvc_method_describe(0, json, sizeof json, &n); });
  };
  const int64_t before = kvc::test::HeapAllocations();
  run(no_fault);
  const int64_t n = kvc::test::HeapAllocations() - before;
  for (int64_t k = 0; k < n && !HasFailure(); ++k) {
    HeapFault fault(k, HeapFault::kOne);
    run(Caller(&fault));
  }
  kvc_model_close(model);
}

}  // namespace

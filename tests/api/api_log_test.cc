// kvc_set_log: which lines come, at which level, how often; that none comes unasked; from many threads at
// once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/c_support.h"
#include "tests/support/environment.h"
#include "tests/support/process_memory.h"

namespace {

struct Line {
  int32_t level;
  std::string text;
};

class Log : public testing::Test {
 protected:
  void SetUp() override { Listen(KVC_LOG_DEBUG); }
  void TearDown() override { kvc_set_log(0, nullptr, nullptr); }

  void Listen(int32_t min_level) { kvc_set_log(min_level, &Log::Take, &lines_); }
  static void Take(void* user, int32_t level, const char* text) {
    static_cast<std::vector<Line>*>(user)->push_back({level, text});
  }

  // The lines since the last call, whose number and levels must be these; words: a part of the first.
  std::string Expect(const std::vector<int32_t>& levels, const std::string& words) {
    std::vector<int32_t> got;
    std::string all;
    for (const Line& line : lines_) got.push_back(line.level), all += line.text + "\n";
    EXPECT_EQ(got, levels) << all;
    const std::string first = lines_.empty() ? "" : lines_[0].text;
    EXPECT_NE(first.find(words), std::string::npos) << first;
    lines_.clear();
    return first;
  }

  std::vector<Line> lines_;
};

kvc_model* OpenTiny(int32_t n_threads = 1, int64_t memory_limit = 0) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  const kvc_model_params params = {sizeof params, n_threads, memory_limit, nullptr, 0, 0};
  kvc_model* model = nullptr;
  EXPECT_EQ(kvc_model_open_memory(bytes, n, nullptr, &params, &model), KVC_OK) << kvc_last_error();
  return model;
}

kvc_session* Create(kvc_model* model, const char* spec, int32_t max_tokens, int32_t on_full) {
  kvc_policy* policy = nullptr;
  kvc_session* session = nullptr;
  const kvc_session_params params = {sizeof params, max_tokens, on_full, 0, 0, 0, 0};
  EXPECT_EQ(kvc_policy_create(spec, &policy), KVC_OK) << kvc_last_error();
  EXPECT_EQ(kvc_session_create(model, policy, &params, &session), KVC_OK) << kvc_last_error();
  kvc_policy_close(policy);
  return session;
}

std::vector<int32_t> Prompt(int n) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(i * 37 % 256);
  return ids;
}

void Prefill(kvc_session* session, int n) {
  EXPECT_EQ(kvc_session_prefill(session, Prompt(n).data(), n), KVC_OK) << kvc_last_error();
}

void Steps(kvc_session* session, int n) {
  int32_t token = 0;
  for (int i = 0; i < n; ++i) EXPECT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
}

kvc_session_stats Stats(kvc_session* session) {
  kvc_session_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvc_session_get_stats(session, &stats), KVC_OK);
  return stats;
}

TEST_F(Log, AnOpenedModelIsOneLine) {
  kvc_model_close(OpenTiny(2));
  const std::string line = Expect({KVC_LOG_INFO}, "2 layers with 2 KV heads, f32 weights");
  EXPECT_NE(line.find("2 threads"), std::string::npos) << line;
  Listen(KVC_LOG_WARNING);
  kvc_model_close(OpenTiny());
  Expect({}, "");
}

// Tools for Android's packages align to 4 bytes what they store; only a multiple of 64 can be mapped.
TEST_F(Log, AModelThatIsReadAndNotMapped) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  for (const int64_t offset : {4096, 4100, 64, 36}) {
    const std::string path = test_path("package.bin");
    std::ofstream file(path, std::ios::binary);
    file << std::string(static_cast<size_t>(offset), '.');
    file.write(reinterpret_cast<const char*>(bytes), n);
    file.close();
    const int fd = ::open(path.c_str(), O_RDONLY);
    kvc_model* model = nullptr;
    EXPECT_EQ(kvc_model_open_fd(fd, offset, n, nullptr, nullptr, &model), KVC_OK) << kvc_last_error();
    ::close(fd);
    kvc_model_close(model);
    if (offset % 64 == 0) {
      Expect({KVC_LOG_INFO}, "opened");
    } else {
      const std::string line = Expect({KVC_LOG_WARNING, KVC_LOG_INFO}, "read into memory");
      EXPECT_NE(line.find("offset " + std::to_string(offset) + " is no multiple of 64"), std::string::npos)
          << line;
    }
  }
}

TEST_F(Log, NothingWithoutACallback) {
  kvc_set_log(KVC_LOG_DEBUG, nullptr, nullptr);
  kvc_model* model = OpenTiny();
  kvc_session* session = Create(model, "snapkv:budget=24,window=8", 64, KVC_ON_FULL_EVICT);
  Prefill(session, 60);
  Steps(session, 10);
  kvc_session_close(session);
  kvc_model_close(model);
  Expect({}, "");
}

TEST_F(Log, AnUnknownInstructionSetIsIgnoredAloud) {
  const kvc::test::KeptVariable kept("KVC_ISA");
  kvc::test::SetVariable("KVC_ISA", "abacus");
  kvc_model_close(OpenTiny());
  Expect({KVC_LOG_WARNING, KVC_LOG_INFO}, "KVC_ISA=abacus");
  kvc::test::SetVariable("KVC_ISA", "ref");
  kvc_model_close(OpenTiny());
  const std::string line = Expect({KVC_LOG_INFO}, "opened");
  EXPECT_NE(line.find(", ref"), std::string::npos) << line;
}

TEST_F(Log, MaxTokensBeyondTheTrainedContext) {
  kvc_model* model = OpenTiny();
  lines_.clear();
  constexpr int32_t kTrained = 4096;
  kvc_session_close(Create(model, "full", kTrained, KVC_ON_FULL_ERROR));
  kvc_session_close(Create(model, "full", 0, KVC_ON_FULL_ERROR));
  // Positions counted in slots never leave the context.
  kvc_session_close(Create(model, "streaming:budget=24,pos_mode=incache", kTrained + 1, KVC_ON_FULL_ERROR));
  Expect({}, "");
  kvc_session_close(Create(model, "full", kTrained + 1, KVC_ON_FULL_ERROR));
  Expect({KVC_LOG_WARNING}, "max_tokens=4097 is beyond the 4096");
  kvc_model_close(model);
}

// Each merge decodes, adds and codes anew (methods.md 4.3).
TEST_F(Log, MergesOfValuesInFourBits) {
  kvc_model* model = OpenTiny();
  const auto open = [&](const std::string& spec) {
    lines_.clear();
    return Create(model, (spec + ",quant_group=8").c_str(), 0, KVC_ON_FULL_ERROR);
  };
  const char* const words = "merges values that are stored in 4 bits or fewer";
  for (const char* spec :
       {"weightedkv:budget=24,kv=int4", "weightedkv:budget=24,kv=int8,kv_values=int4",
        "cam:budget=24,kv=int4,kv_values=int2", "h2o:budget=24,kv=int4,reducer=weighted"}) {
    kvc_session* session = open(spec);
    Expect({KVC_LOG_WARNING}, words);
    Prefill(session, 60);
    kvc_session* fork = nullptr;
    ASSERT_EQ(kvc_session_fork(session, &fork), KVC_OK);
    for (const Line& line : lines_) EXPECT_EQ(line.level, KVC_LOG_DEBUG) << line.text;
    for (kvc_session* s : {session, fork}) kvc_session_close(s);
  }
  for (const char* spec : {"weightedkv:budget=24,kv=int8", "weightedkv:budget=24,kv=int4,kv_values=int8",
                           "h2o:budget=24,kv=int4", "weightedkv:budget=24,kv=int4,wkv_merge=0",
                           "full:kv=int4", "reconstruct:budget=24,kv=int4,reducer=rest"}) {
    kvc_session_close(open(spec));
    Expect({}, "");
  }
  kvc_model_close(model);
}

TEST_F(Log, AMemoryLimitThatRefuses) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  kvc_model_params params = {sizeof params, 1, 1000, nullptr, 0, 0};
  kvc_model* model = nullptr;
  EXPECT_EQ(kvc_model_open_memory(bytes, n, nullptr, &params, &model), KVC_E_MEMORY);
  const std::string line = Expect({KVC_LOG_WARNING}, "of the limit of 1000");
  EXPECT_NE(line.find(kvc_last_error()), std::string::npos) << line;
  // Other failures are told by their status alone.
  EXPECT_EQ(kvc_model_open("no such file", nullptr, nullptr, &model), KVC_E_IO);
  Expect({}, "");
}

TEST_F(Log, SavedAndRestored) {
  kvc_model* model = OpenTiny();
  kvc_session* session = Create(model, "full", 0, KVC_ON_FULL_ERROR);
  Prefill(session, 30);
  lines_.clear();
  const std::string path = test_path("log session");
  ASSERT_EQ(kvc_session_save(session, path.c_str()), KVC_OK);
  Expect({KVC_LOG_INFO}, "saved " + path + ": a session of 30 tokens, 120 slots");
  kvc_session* restored = nullptr;
  ASSERT_EQ(kvc_session_restore(model, path.c_str(), &restored), KVC_OK);
  Expect({KVC_LOG_INFO}, "restored " + path + ": a session of 30 tokens, 120 slots");
  EXPECT_EQ(kvc_session_save(session, test_path("none/session")), KVC_E_IO);
  Expect({}, "");
  kvc_session_close(restored);
  kvc_session_close(session);
  kvc_model_close(model);
}

TEST_F(Log, AFullSessionOnce) {
  kvc_model* model = OpenTiny();
  for (const int32_t on_full : {KVC_ON_FULL_EVICT, KVC_ON_FULL_SLIDE}) {
    kvc_session* session = Create(model, "full", 40, on_full);
    Prefill(session, 38);
    lines_.clear();
    Steps(session, 3);  // 40 are held, the third waits
    Expect({}, "");
    Steps(session, 20);
    const std::string line = Expect({KVC_LOG_INFO}, "max_tokens=40");
    EXPECT_NE(line.find(on_full == KVC_ON_FULL_EVICT ? "on_full=evict" : "on_full=slide"), std::string::npos);
    kvc_session *fork = nullptr, *restored = nullptr;
    ASSERT_EQ(kvc_session_fork(session, &fork), KVC_OK);
    Steps(fork, 3);
    Expect({}, "");
    const std::string path = test_path("full session");
    ASSERT_EQ(kvc_session_save(session, path.c_str()), KVC_OK);
    ASSERT_EQ(kvc_session_restore(model, path.c_str(), &restored), KVC_OK);
    Steps(restored, 3);
    Expect({KVC_LOG_INFO, KVC_LOG_INFO}, "saved");
    ASSERT_EQ(kvc_session_reset(session), KVC_OK);  // begins anew
    Listen(KVC_LOG_INFO);
    Prefill(session, 70);
    Expect({KVC_LOG_INFO}, "max_tokens=40");
    for (kvc_session* s : {session, fork, restored}) kvc_session_close(s);
  }
  kvc_model_close(model);
}

TEST_F(Log, WhatCompressionLeft) {
  kvc_model* model = OpenTiny();
  kvc_session* session = Create(model, "snapkv:budget=24,window=8", 0, KVC_ON_FULL_ERROR);
  lines_.clear();
  Prefill(session, 60);
  kvc_session_stats stats = Stats(session);
  EXPECT_EQ(stats.n_slots, 4 * 24);
  Expect({KVC_LOG_DEBUG}, "compressed 60 tokens in 4 KV heads from 240 to 96 slots, " +
                              std::to_string(stats.cache_bytes) + " bytes");
  Steps(session, 5);
  Expect({}, "");
  ASSERT_EQ(kvc_session_trim(session, 10, nullptr), KVC_OK);
  stats = Stats(session);
  Expect({KVC_LOG_DEBUG},
         "from " + std::to_string(4 * (24 + 5)) + " to " + std::to_string(stats.n_slots) + " slots");
  kvc_session_close(session);
  session = Create(model, "full", 0, KVC_ON_FULL_ERROR);
  Prefill(session, 60);
  ASSERT_EQ(kvc_session_append(session, Prompt(5).data(), 5), KVC_OK);
  Expect({}, "");
  kvc_session_close(session);
  kvc_model_close(model);
}

TEST_F(Log, ALineIsALineWhateverTheFileIsCalled) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  const std::string path = test_path("two\nlines\x1b[2J.kvc");
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes), n);
  kvc_model* model = nullptr;
  ASSERT_EQ(kvc_model_open(path.c_str(), nullptr, nullptr, &model), KVC_OK) << kvc_last_error();
  kvc_model_close(model);
  Expect({KVC_LOG_INFO}, "two?lines?[2J.kvc");
}

TEST_F(Log, FewerThreadsThanAsked) {
  if (kvc::test::kSanitized) GTEST_SKIP() << "sanitizers need more address space than the test leaves";
  if (kvc::test::kUnderQemu) GTEST_SKIP() << "the emulator grants addresses beyond a limit";
  if (std::getenv("KVC_TEST_DEVICE") != nullptr) GTEST_SKIP() << "a driver needs more addresses than that";
  // Stacks of 1024 threads do not fit into what is left of the address space.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = rlim_t{1} << 30;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  kvc_model* model = OpenTiny(1024);
  setrlimit(RLIMIT_AS, &before);
  Expect({KVC_LOG_WARNING, KVC_LOG_INFO}, "threads instead of 1024");
  kvc_model_close(model);
}

// Two sinks, each of a function and the counter it must be called with.
struct Counter {
  int which;
  std::atomic<int> lines{0}, foreign{0};
};
template <int kWhich>
void Count(void* user, int32_t, const char* text) {
  auto* counter = static_cast<Counter*>(user);
  if (counter->which != kWhich || std::string(text).find("opened") != 0) ++counter->foreign;
  ++counter->lines;
}

TEST_F(Log, FromAnyThreadWhileSinksChange) {
  constexpr int kThreads = 4, kModels = 25, kSetters = 2;
  Counter counters[2] = {{0}, {1}};
  kvc_model_close(OpenTiny());  // its bytes are made now
  kvc_set_log(KVC_LOG_INFO, &Count<0>, &counters[0]);
  std::atomic<int> working{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kModels; ++k) kvc_model_close(OpenTiny());
      --working;
    });
  }
  for (int i = 0; i < kSetters; ++i) {
    threads.emplace_back([&] {
      while (working > 0) {
        kvc_set_log(KVC_LOG_INFO, &Count<1>, &counters[1]);
        kvc_set_log(KVC_LOG_INFO, &Count<0>, &counters[0]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters[0].lines + counters[1].lines, kThreads * kModels);
  EXPECT_EQ(counters[0].foreign + counters[1].foreign, 0);
}

}  // namespace

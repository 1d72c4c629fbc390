// What a model with a large vocabulary and its texts took is the system's again after the last close, and
// what sessions of every kind of cache took. The heap is left as it is: whoever embeds the library cannot
// trim it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <cstdlib>
#include <iterator>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/process_memory.h"
#include "tests/support/raw_model_file.h"
#include "tests/support/tokenizers.h"
#include "tests/support/write_bytes.h"

namespace {

constexpr int64_t kMiB = 1 << 20;

void WriteModel(const std::string& path) {
  const kvc::TokenizerSpec tokenizer = kvc::GrownByteLevel(151387 - 256, 264);
  kvc::test::TinyModelOptions options;
  options.vocab_size = static_cast<int32_t>(tokenizer.pieces.size());
  kvc::test::RawModelFile raw = kvc::test::RawModelFile::Tiny(options);
  raw.content.tokenizer = tokenizer;
  kvc::test::WriteBytes(path, raw.Build());
}

// tokens: room for those of each text. The test's own memory must not grow, or it would change what the heap
// keeps.
void Use(const std::string& path, const std::vector<std::string>& texts, std::vector<int32_t>* tokens) {
  kvc_model* model = nullptr;
  ASSERT_EQ(kvc_model_open(path.c_str(), nullptr, nullptr, &model), KVC_OK) << kvc_last_error();
  for (const std::string& text : texts) {
    int32_t n = 0;
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    ASSERT_EQ(kvc_tokenize(model, bytes, static_cast<int32_t>(text.size()), 0, nullptr, 0, &n), KVC_OK);
    ASSERT_LE(static_cast<size_t>(n), tokens->size());
    ASSERT_EQ(kvc_tokenize(model, bytes, static_cast<int32_t>(text.size()), 0, tokens->data(), n, &n),
              KVC_OK);
  }
  kvc_model_close(model);
}

TEST(MemoryReturn, AfterTheLastClose) {
  if (kvc::test::kSanitized) GTEST_SKIP() << "resident memory is the sanitizer's";
  if (kvc::test::kUnderQemu) GTEST_SKIP() << "resident memory is the emulator's";
  if (std::getenv("KVC_TEST_FENCED") != nullptr) GTEST_SKIP() << "the fence keeps small blocks";
  const kvc::test::TempFolder folder;
  WriteModel(folder / "model.kvc");
  std::vector<std::string> texts(4);
  while (texts[0].size() < 4 * kMiB) texts[0] += "the cat sat ";
  texts[1].assign(4 * kMiB, 'a');
  texts[2].assign(2 * kMiB, '\xFF');
  while (texts[3].size() < 2 * kMiB) texts[3] += "e\xCC\x81 ";
  std::vector<int32_t> tokens(4 * kMiB + 100);
  const int64_t before = kvc::test::AnonymousBytes();
  ASSERT_GT(before, 0);
  for (int round = 0; round < 3; ++round) {
    Use(folder / "model.kvc", texts, &tokens);
    EXPECT_LT(kvc::test::AnonymousBytes() - before, kMiB) << "after round " << round;
  }
}

// ---- sessions ----

constexpr const char* kPolicies[] = {"full",
                                     "full:kv=int4",
                                     "snapkv:budget=256",
                                     "snapkv:budget=256,decode=reobserve,slack=8",
                                     "cokv:budget=256",
                                     "cokv-document:budget=256",
                                     "spindlekv:budget=256",
                                     "h2o:budget=256",
                                     "weightedkv:budget=256"};
constexpr size_t kSessions = std::size(kPolicies);

void Generate(kvc_session* session, int n) {
  int32_t token = 0;
  for (int i = 0; i < n; ++i) ASSERT_EQ(kvc_session_accept(session, i), KVC_OK) << kvc_last_error();
  ASSERT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
}

// A conversation under every policy, with a fork of each, a batch of four, and one that is saved and
// restored; all of them open together.
void Talk(const std::string& path, const std::string& saved, const std::vector<int32_t>& prompt) {
  kvc_model* model = nullptr;
  const kvc_model_params params = {sizeof params, 2, 0, nullptr, 0, 0};
  kvc_session *sessions[kSessions] = {}, *forks[kSessions] = {}, *restored = nullptr;
  ASSERT_EQ(kvc_model_open(path.c_str(), nullptr, &params, &model), KVC_OK) << kvc_last_error();
  for (size_t i = 0; i < kSessions; ++i) {
    kvc_policy* policy = nullptr;
    ASSERT_EQ(kvc_policy_create(kPolicies[i], &policy), KVC_OK) << kvc_last_error();
    ASSERT_EQ(kvc_session_create(model, policy, nullptr, &sessions[i]), KVC_OK) << kvc_last_error();
    kvc_policy_close(policy);
    ASSERT_EQ(kvc_session_prefill(sessions[i], prompt.data(), static_cast<int32_t>(prompt.size())), KVC_OK)
        << kvc_last_error();
    ASSERT_EQ(kvc_session_fork(sessions[i], &forks[i]), KVC_OK) << kvc_last_error();
    Generate(sessions[i], 20);
    Generate(forks[i], 20);
  }
  int32_t tokens[4] = {};
  kvc_status statuses[4] = {};
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(kvc_batch_step(sessions, 4, nullptr, tokens, statuses), KVC_OK) << kvc_last_error();
  ASSERT_EQ(kvc_session_save(sessions[2], saved.c_str()), KVC_OK) << kvc_last_error();
  ASSERT_EQ(kvc_session_restore(model, saved.c_str(), &restored), KVC_OK) << kvc_last_error();
  Generate(restored, 5);
  for (kvc_session* session : sessions) kvc_session_close(session);
  for (kvc_session* session : forks) kvc_session_close(session);
  kvc_session_close(restored);
  kvc_model_close(model);
}

// Written by a process of its own: the heap of this one is as it was.
void WriteApart(int32_t head_dim, const std::string& path) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    kvc::test::TinyModelOptions options;
    options.n_layers = 3, options.n_heads = 8, options.n_kv_heads = 4, options.head_dim = head_dim;
    options.hidden_size = 256, options.ffn_size = 512;
    ::_exit(kvc::test::WriteTinyModel(options, path).ok() ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

// Models of two sizes: of a small one much is in blocks that a heap keeps, of a large one more in all.
TEST(MemoryReturn, OfSessions) {
  if (kvc::test::kSanitized) GTEST_SKIP() << "resident memory is the sanitizer's";
  if (kvc::test::kUnderQemu) GTEST_SKIP() << "resident memory is the emulator's";
  if (std::getenv("KVC_TEST_FENCED") != nullptr) GTEST_SKIP() << "the fence keeps small blocks";
  const kvc::test::TempFolder folder;
  const std::string paths[] = {folder / "small.kvc", folder / "large.kvc"};
  WriteApart(32, paths[0]);
  WriteApart(128, paths[1]);
  std::vector<int32_t> prompt(400);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * 2654435761u) >> 9) & 0xff;
#if defined(__GLIBC__)
  malloc_trim(0);  // what other tests left would be room for what the library leaves
#endif
  const int64_t before = kvc::test::AnonymousBytes();
  ASSERT_GT(before, 0);
  for (int round = 0; round < 2; ++round) {
    for (const std::string& path : paths) {
      Talk(path, folder / "saved", prompt);
      EXPECT_LT(kvc::test::AnonymousBytes() - before, kMiB) << "after round " << round << ", " << path;
    }
  }
}

}  // namespace

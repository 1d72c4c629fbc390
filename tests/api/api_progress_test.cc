// Watching what takes long, from another thread: opening a model, reading a prompt. And sessions in memory.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "kvc/kvc.h"
#include "tests/api/fixture.h"

namespace {

std::string WideFile() {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_WIDE, &n);
  const std::string path = test_path("wide.kvc");
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes), n);
  return path;
}

// What a watcher sees of work that is repeated until it has seen some of it: shares between 0 and 1 that
// never fall while one piece of work runs. repeat(): one piece, KVC_OK or KVC_E_CANCELLED.
template <typename Repeat, typename Share, typename Stop>
void WatchAndStop(Repeat&& repeat, Share&& share, Stop&& stop) {
  std::atomic<bool> ended{false};
  kvc_status last = KVC_OK;
  std::string error;
  std::thread worker([&] {
    while (last == KVC_OK) last = repeat();  // until it is stopped, or fails
    error = kvc_last_error();
    ended.store(true);
  });
  double value = 1;
  while (!ended.load() && (value <= 0 || value >= 1)) {
    value = share();
    EXPECT_GE(value, 0);
    EXPECT_LE(value, 1);
  }
  stop();
  worker.join();
  EXPECT_EQ(last, KVC_E_CANCELLED) << error;
  EXPECT_EQ(share(), 1) << "nothing runs";
}

TEST(Progress, OfOpeningIsSeenAndCanBeStopped) {
  const std::string path = WideFile();
  kvc_loader* loader = nullptr;
  ASSERT_EQ(kvc_loader_create(&loader), KVC_OK);
  double share = -1;
  ASSERT_EQ(kvc_loader_get_progress(loader, &share), KVC_OK);
  EXPECT_EQ(share, 1);
  WatchAndStop(
      [&] {
        kvc_model* model = nullptr;
        const kvc_status status = kvc_loader_open(loader, path.c_str(), nullptr, nullptr, &model);
        EXPECT_EQ(model != nullptr, status == KVC_OK);
        kvc_model_close(model);
        return status;
      },
      [&] {
        EXPECT_EQ(kvc_loader_get_progress(loader, &share), KVC_OK);
        return share;
      },
      [&] { EXPECT_EQ(kvc_loader_cancel(loader), KVC_OK); });
  kvc_model* model = nullptr;  // the request has been answered
  ASSERT_EQ(kvc_loader_open(loader, path.c_str(), "cpu", nullptr, &model), KVC_OK) << kvc_last_error();
  kvc_loader_close(loader);
  kvc_session_close(fed_session(model, nullptr, 10));
  kvc_model_close(model);
}

// The line in the log is the last that an opening does.
TEST(Progress, OfOpeningIsStoppedAtItsVeryEnd) {
  struct End {
    kvc_loader* loader = nullptr;
    int n_lines = 0;
  } end;
  ASSERT_EQ(kvc_loader_create(&end.loader), KVC_OK);
  const auto cancel_now = [](void* user, int32_t, const char*) {
    End* const at = static_cast<End*>(user);
    ++at->n_lines;
    std::thread([at] { EXPECT_EQ(kvc_loader_cancel(at->loader), KVC_OK); }).join();
  };
  const std::string path = WideFile();
  kvc_model* model = reinterpret_cast<kvc_model*>(&end);
  kvc_set_log(KVC_LOG_INFO, cancel_now, &end);
  const kvc_status status = kvc_loader_open(end.loader, path.c_str(), nullptr, nullptr, &model);
  kvc_set_log(0, nullptr, nullptr);
  EXPECT_EQ(end.n_lines, 1);
  EXPECT_EQ(status, KVC_E_CANCELLED) << "nobody would answer the request";
  EXPECT_NE(std::string(kvc_last_error()).find("cancelled"), std::string::npos) << kvc_last_error();
  EXPECT_EQ(model, nullptr);
  double share = 0;
  ASSERT_EQ(kvc_loader_get_progress(end.loader, &share), KVC_OK);
  EXPECT_EQ(share, 1);
  ASSERT_EQ(kvc_loader_open(end.loader, path.c_str(), nullptr, nullptr, &model), KVC_OK)
      << "it was answered once";
  kvc_model_close(model);
  kvc_loader_close(end.loader);
}

TEST(Progress, OfALoaderThatIsMisused) {
  kvc_loader* loader = nullptr;
  double share = 0;
  kvc_model* model = reinterpret_cast<kvc_model*>(&share);
  EXPECT_EQ(kvc_loader_create(nullptr), KVC_E_INVALID);
  ASSERT_EQ(kvc_loader_create(&loader), KVC_OK);
  EXPECT_EQ(kvc_loader_open(nullptr, "x", nullptr, nullptr, &model), KVC_E_INVALID);
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(kvc_loader_open(loader, nullptr, nullptr, nullptr, &model), KVC_E_INVALID);
  EXPECT_EQ(kvc_loader_open(loader, "x", nullptr, nullptr, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_loader_open(loader, "/no/such/file", nullptr, nullptr, &model), KVC_E_IO);
  EXPECT_EQ(kvc_loader_open_fd(loader, -1, 0, 0, nullptr, nullptr, &model), KVC_E_INVALID);
  EXPECT_EQ(kvc_loader_get_progress(nullptr, &share), KVC_E_INVALID);
  EXPECT_EQ(kvc_loader_get_progress(loader, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_loader_cancel(nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_loader_clear_cancel(nullptr), KVC_E_INVALID);
  // A request that came before is for the next one.
  ASSERT_EQ(kvc_loader_cancel(loader), KVC_OK);
  EXPECT_EQ(kvc_loader_open(loader, WideFile().c_str(), nullptr, nullptr, &model), KVC_E_CANCELLED);
  EXPECT_EQ(kvc_loader_open(loader, WideFile().c_str(), nullptr, nullptr, &model), KVC_OK);
  kvc_model_close(model);
  // One that fails of itself has stopped, too; one that is withdrawn is for nobody.
  ASSERT_EQ(kvc_loader_cancel(loader), KVC_OK);
  EXPECT_EQ(kvc_loader_open(loader, "/no/such/file", nullptr, nullptr, &model), KVC_E_IO);
  EXPECT_EQ(kvc_loader_open(loader, WideFile().c_str(), nullptr, nullptr, &model), KVC_OK);
  kvc_model_close(model);
  ASSERT_EQ(kvc_loader_cancel(loader), KVC_OK);
  ASSERT_EQ(kvc_loader_clear_cancel(loader), KVC_OK);
  EXPECT_EQ(kvc_loader_open(loader, WideFile().c_str(), nullptr, nullptr, &model), KVC_OK);
  kvc_model_close(model);
  kvc_loader_close(loader);
  kvc_loader_close(nullptr);
}

TEST(Progress, OfAPromptIsSeenAndCanBeStopped) {
  kvc_model* model = open_model(TEST_MODEL_WIDE);
  kvc_session* session = new_session(model, nullptr, 0);
  std::vector<int32_t> tokens(1500);
  fill_tokens(tokens.data(), 1500, 3);
  double share = -1;
  ASSERT_EQ(kvc_session_get_progress(session, &share), KVC_OK);
  EXPECT_EQ(share, 1);
  WatchAndStop(
      [&] {
        EXPECT_EQ(kvc_session_reset(session), KVC_OK);
        return kvc_session_prefill(session, tokens.data(), 1500);
      },
      [&] {
        EXPECT_EQ(kvc_session_get_progress(session, &share), KVC_OK);
        return share;
      },
      [&] { EXPECT_EQ(kvc_session_cancel(session), KVC_OK); });
  EXPECT_EQ(kvc_session_get_progress(nullptr, &share), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_get_progress(session, nullptr), KVC_E_INVALID);
  kvc_session_close(session);
  kvc_model_close(model);
}

TEST(SessionInMemory, IsTheFile) {
  kvc_model* model = open_model(TEST_MODEL_TINY);
  kvc_session* session = fed_session(model, "snapkv:budget=24,window=8", 100);
  const std::string path = test_path("same.kvcs");
  ASSERT_EQ(kvc_session_save(session, path.c_str()), KVC_OK);
  std::ifstream in(path, std::ios::binary);
  const std::vector<uint8_t> file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  int64_t n = 0;
  ASSERT_EQ(kvc_session_save_memory(session, nullptr, 0, &n), KVC_OK);
  ASSERT_EQ(n, static_cast<int64_t>(file.size()));
  std::vector<uint8_t> bytes(file.size() + 8, 0xAB);
  n = 0;
  EXPECT_EQ(kvc_session_save_memory(session, bytes.data(), n + 100, &n), KVC_E_BUFFER_TOO_SMALL);
  EXPECT_EQ(n, static_cast<int64_t>(file.size()));
  EXPECT_EQ(bytes, std::vector<uint8_t>(bytes.size(), 0xAB)) << "nothing is written where it does not fit";
  ASSERT_EQ(kvc_session_save_memory(session, bytes.data(), static_cast<int64_t>(bytes.size()), &n), KVC_OK);
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin(), bytes.begin() + n), file);
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin() + n, bytes.end()), std::vector<uint8_t>(8, 0xAB));
  kvc_session* back = nullptr;
  ASSERT_EQ(kvc_session_restore_memory(model, bytes.data(), n, &back), KVC_OK) << kvc_last_error();
  for (int i = 0; i < 10; ++i) {
    int32_t a = 0, b = 0;
    ASSERT_EQ(kvc_session_step(session, &a), KVC_OK);
    ASSERT_EQ(kvc_session_step(back, &b), KVC_OK);
    EXPECT_EQ(a, b);
  }
  kvc_session_close(back);
  const auto refused = [&](const uint8_t* data, int64_t size, kvc_status status, const char* words) {
    back = session;
    EXPECT_EQ(kvc_session_restore_memory(model, data, size, &back), status);
    EXPECT_NE(std::string(kvc_last_error()).find(words), std::string::npos) << kvc_last_error();
    EXPECT_EQ(back, nullptr);
  };
  refused(bytes.data(), n - 1, KVC_E_BAD_MODEL, "session in memory: damaged or truncated");
  refused(bytes.data(), 3, KVC_E_BAD_MODEL, "truncated");
  refused(bytes.data(), 0, KVC_E_BAD_MODEL, "truncated");
  refused(bytes.data(), -1, KVC_E_INVALID, "negative");
  refused(nullptr, 5, KVC_E_INVALID, "data is NULL");
  EXPECT_EQ(kvc_session_restore_memory(model, bytes.data(), n, nullptr), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_restore_memory(nullptr, bytes.data(), n, &back), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_save_memory(session, nullptr, 5, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_save_memory(session, bytes.data(), -5, &n), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_save_memory(session, bytes.data(), 5, nullptr), KVC_E_INVALID);
  kvc_session_close(session);
  kvc_model_close(model);
}

TEST(ParamsInit, IsZerosAndTheSize) {
  kvc_sampling s;
  std::memset(&s, 0xff, sizeof s);
  kvc_params_init(&s, 24);  // of an older header: what is behind stays
  EXPECT_EQ(s.struct_size, 24);
  EXPECT_EQ(s.temperature, 0.0f);
  EXPECT_EQ(s.seed, 0);
  EXPECT_EQ(s.repeat_window, -1);
  kvc_params_init(nullptr, 24);
  kvc_params_init(&s, -1);
  EXPECT_EQ(s.struct_size, 24);
}

}  // namespace

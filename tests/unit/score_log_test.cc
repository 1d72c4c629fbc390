// The record of head scoring: cut anywhere, changed anywhere, on a full disk, by two at once.
#include "tools/score/work_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/support/tiny_model.h"
#include "tools/failure.h"
#include "tools/files.h"

namespace kvc::tool {
namespace {

using test::TempFolder;

Json Header(int seed = 1) { return Json{{"format", "kvc-score-log/1"}, {"seed", seed}, {"sizes", {3, 6}}}; }

WorkResult Result(uint32_t i) { return {4, 1.0 / (i + 3), 1.0 / (i + 7)}; }

std::string WriteLog(const TempFolder& folder, const std::string& name, uint32_t n, uint32_t first = 0) {
  WorkResults done;
  const auto log = WorkLogWriter::Open(folder / name, Header(), false, &done);
  for (uint32_t i = first; i < first + n; ++i) log->Append({0, 3, i}, Result(i));
  log->Flush();
  return folder / name;
}

void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ScoreLog, ReadsBackEveryBit) {
  const TempFolder folder;
  const WorkLog log = ReadWorkLog(WriteLog(folder, "a.log", 10));
  EXPECT_EQ(log.header, Header());
  ASSERT_EQ(log.results.size(), 10u);
  for (const auto& [key, result] : log.results) {
    EXPECT_EQ(result.in, Result(key.sample).in);
    EXPECT_EQ(result.out, Result(key.sample).out);
    EXPECT_EQ(result.n_examples, 4);
  }
}

// Killed at any byte: everything before the cut record is there, and the log goes on from there.
TEST(ScoreLog, GoesOnAfterACutAtAnyByte) {
  const TempFolder folder;
  const std::string path = WriteLog(folder, "a.log", 3), whole = ReadFile(path);
  const size_t header = whole.find('\n') + 1;
  for (size_t size = 0; size < whole.size(); ++size) {
    Overwrite(path, whole.substr(0, size));
    WorkResults done;
    {
      const auto log = WorkLogWriter::Open(path, Header(), true, &done);
      for (uint32_t i = static_cast<uint32_t>(done.size()); i < 3; ++i) log->Append({0, 3, i}, Result(i));
      log->Flush();
    }
    EXPECT_EQ(ReadFile(path), whole) << size;
    if (size < header) {
      EXPECT_TRUE(done.empty()) << size;
    }
  }
}

TEST(ScoreLog, NamesTheDamagedLine) {
  const TempFolder folder;
  const std::string path = WriteLog(folder, "a.log", 5);
  std::string bytes = ReadFile(path);
  size_t third = 0;
  for (int i = 0; i < 2; ++i) third = bytes.find('\n', third) + 1;
  bytes[third + 2] = static_cast<char>(bytes[third + 2] ^ 1);
  Overwrite(path, bytes);
  EXPECT_NE(MessageOf([&] { ReadWorkLog(path); }).find(path + ":3: damaged"), std::string::npos);
  Overwrite(path, "not a log\nat all\n");
  EXPECT_NE(MessageOf([&] { ReadWorkLog(path); }), "");
  WorkResults done;
  EXPECT_NE(MessageOf([&] { WorkLogWriter::Open(path, Header(), true, &done); }), "");
  EXPECT_EQ(ReadFile(path), "not a log\nat all\n");  // a file that is no log is left alone
}

TEST(ScoreLog, RefusesAnotherMeasurement) {
  const TempFolder folder;
  const std::string path = WriteLog(folder, "a.log", 2);
  WorkResults done;
  const std::string text = MessageOf([&] { WorkLogWriter::Open(path, Header(2), true, &done); });
  EXPECT_NE(text.find("seed is 1, here 2"), std::string::npos) << text;
  EXPECT_NE(MessageOf([&] { WorkLogWriter::Open(path, Header(), false, &done); }).find("--resume"),
            std::string::npos);
}

TEST(ScoreLog, OneWriterAtATime) {
  const TempFolder folder;
  const std::string path = WriteLog(folder, "a.log", 2);
  WorkResults done, other;
  const auto first = WorkLogWriter::Open(path, Header(), true, &done);
  EXPECT_NE(MessageOf([&] { WorkLogWriter::Open(path, Header(), true, &other); }).find("another process"),
            std::string::npos);
}

TEST(ScoreLog, MergeIsAUnionThatFindsConflicts) {
  const TempFolder folder;
  WorkResults all = ReadWorkLog(WriteLog(folder, "a.log", 4)).results;
  MergeResults(ReadWorkLog(WriteLog(folder, "b.log", 4, 2)).results, "b.log", &all);
  EXPECT_EQ(all.size(), 6u);
  WorkResults wrong = {{{0, 3, 1}, {4, Result(1).in + 1e-3, Result(1).out}}};
  const std::string text = MessageOf([&] { MergeResults(wrong, "c.log", &all); });
  EXPECT_NE(text.find("c.log: run 0, size 3, sample 1"), std::string::npos) << text;
  WorkResults rounded = {{{0, 3, 1}, {4, Result(1).in + 1e-9, Result(1).out}}};
  EXPECT_EQ(MessageOf([&] { MergeResults(rounded, "d.log", &all); }), "");
}

// The limit on file sizes stands in for a full disk.
TEST(ScoreLog, AFullDiskLeavesAWholeLog) {
  const TempFolder folder;
  const std::string path = WriteLog(folder, "a.log", 3), before = ReadFile(path);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  std::string text;
  {
    WorkResults done;
    const auto log = WorkLogWriter::Open(path, Header(), true, &done);
    const rlimit tight{before.size() + 20, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
    log->Append({0, 3, 3}, Result(3));
    text = MessageOf([&] { log->Flush(); });
    setrlimit(RLIMIT_FSIZE, &old);
  }
  signal(SIGXFSZ, old_handler);
  EXPECT_NE(text.find("--resume"), std::string::npos) << text;
  EXPECT_EQ(ReadFile(path), before);
}

// The one before was killed a moment ago and the system still closes its files.
TEST(ScoreLog, WaitsForAWriterThatIsAboutToEnd) {
  const TempFolder folder;
  const std::string path = WriteLog(folder, "a.log", 3);
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  std::thread ending([fd] {
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    close(fd);
  });
  WorkResults done;
  EXPECT_EQ(MessageOf([&] { WorkLogWriter::Open(path, Header(), true, &done); }), "");
  ending.join();
  EXPECT_EQ(done.size(), 3u);
}

}  // namespace
}  // namespace kvc::tool

// What is asked of the system, on every one: files, memory, threads, randomness.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/base/atomic_file.h"
#include "lib/base/mapped_file.h"
#include "lib/base/system_memory.h"
#include "lib/base/system_random.h"
#include "lib/base/system_thread.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

// Names as people give them; std::filesystem takes them as UTF-8 whatever the system's own encoding is.
const char* const kNames[] = {"plain", "with space", "\u00e9t\u00e9", "\u6a21\u578b", "\U0001F642"};

std::string Text(const std::string& path) {
  MemoryMeter meter(0);
  const auto file = MappedFile::Open(path, &meter);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::string(reinterpret_cast<const char*>(file.value().data()),
                     static_cast<size_t>(file.value().size()));
}

Status Replace(const std::string& path, const std::string& text) {
  auto file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  KVC_RETURN_IF_ERROR(file.value()->Write(text.data(), static_cast<int64_t>(text.size())));
  return file.value()->Commit();
}

int CountFiles(const std::string& folder) {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::u8path(folder)))
    n += !entry.path().empty();
  return n;
}

TEST(Files, AreWrittenReplacedAndReadUnderAnyName) {
  const test::TempFolder folder;
  for (const char* name : kNames) {
    const std::string path = folder / name;
    EXPECT_FALSE(FileExists(path));
    for (const char* text : {"first", "a longer second", "3\r\n\x1a\n"}) {  // no text mode in between
      const Status status = Replace(path, text);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(Text(path), text);
    }
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::u8path(path)));
  }
  EXPECT_EQ(CountFiles(folder.path()), 5);
}

TEST(Files, LongNames) {
  const test::TempFolder folder;
  std::string path = folder.path();
  for (int i = 0; i < 4; ++i) {
    path += "/" + std::string(80, static_cast<char>('a' + i));
    std::error_code error;
    std::filesystem::create_directory(std::filesystem::u8path(path), error);
    if (error) GTEST_SKIP() << "this test could make no such folder: " << error.message();
  }
  const Status status = Replace(path + "/file", "deep");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(Text(path + "/file"), "deep");
}

TEST(Files, WhatIsNotCommittedLeavesNothing) {
  const test::TempFolder folder;
  ASSERT_TRUE(Replace(folder / "f", "old").ok());
  {
    auto file = AtomicFile::Create(folder / "f");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file.value()->Write("new", 3).ok());
    EXPECT_EQ(CountFiles(folder.path()), 2);
  }
  EXPECT_EQ(CountFiles(folder.path()), 1);
  EXPECT_EQ(Text(folder / "f"), "old");
}

TEST(Files, WhatCannotBeIsSaid) {
  const test::TempFolder folder;
  MemoryMeter meter(0);
  const Status missing = MappedFile::Open(folder / "none", &meter).status();
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_NE(missing.message().find("none: cannot open: No such file"), std::string::npos)
      << missing.message();
  EXPECT_NE(MappedFile::Open(folder.path(), &meter).status().message().find("is a directory"),
            std::string::npos);
  EXPECT_NE(Replace(folder.path(), "x").message().find("is a directory"), std::string::npos);
  EXPECT_EQ(Replace(folder / "no/such/folder", "x").code(), Code::kIo);
  EXPECT_EQ(Replace(folder / "none/", "x").code(), Code::kIo);
  EXPECT_EQ(Replace("", "x").code(), Code::kInvalid);
  for (const int fd : {-1, 1000}) {
    FileInfo info;
    errno = 0;
    EXPECT_FALSE(Describe(fd, &info));
    EXPECT_EQ(errno, EBADF);
  }
}

TEST(Files, AreTheSameByAnyName) {
  const test::TempFolder folder;
  ASSERT_TRUE(Replace(folder / "a", "x").ok());
  ASSERT_TRUE(Replace(folder / "b", "x").ok());
  FileIdentity a, b, again;
  FileInfo info;
  ASSERT_TRUE(Identify(folder / "a", &a, &info) && Identify(folder / "b", &b, &info));
  ASSERT_TRUE(Identify(folder / "./a", &again, &info));
  EXPECT_TRUE(a == again);
  EXPECT_FALSE(a == b);
  EXPECT_EQ(info.kind, FileKind::kRegular);
  EXPECT_EQ(info.bytes, 1);
  EXPECT_FALSE(Identify(folder / "none", &b, &info));
  EXPECT_EQ(ResolveOutput(folder / "./new").value(), ResolveOutput(folder.path()).value() + "/new");
}

// Reservations are large and cost nothing; what is committed can be written; what was given up is usable
// again.
TEST(Memory, IsReservedCommittedAndGivenBack) {
  const int64_t page = PageBytes(), most = int64_t{1} << 34, part = 64 * page;
  auto* at = static_cast<uint8_t*>(ReserveAddresses(most));
  ASSERT_NE(at, nullptr);
  ASSERT_TRUE(CommitPages(at + most / 2, part));
  std::memset(at + most / 2, 7, static_cast<size_t>(part));
  EXPECT_TRUE(DecommitPages(at + most / 2 + page, 2 * page));
  EXPECT_EQ(at[most / 2], 7);
  EXPECT_EQ(at[most / 2 + 3 * page], 7);
  std::memset(at + most / 2 + page, 9, static_cast<size_t>(2 * page));
  EXPECT_EQ(at[most / 2 + 3 * page - 1], 9);
  UnreserveAddresses(at, most);
}

TEST(Memory, BlocksAreAlignedAndReturn) {
  if (!kMapsBlocks) GTEST_SKIP() << "blocks come from the heap here";
  EXPECT_EQ(MapBlock(kLeastMapBytes - 1), nullptr);
  for (const int64_t bytes : {kLeastMapBytes, kLeastMapBytes + 1, int64_t{5} << 20}) {
    auto* block = static_cast<uint8_t*>(MapBlock(bytes));
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % static_cast<uintptr_t>(PageBytes()), 0u);
    block[0] = block[bytes - 1] = 1;
    EXPECT_TRUE(DropBlockPages(block, bytes / PageBytes() * PageBytes()));
    block[0] = 2;
    EXPECT_EQ(block[0], 2);
    UnmapBlock(block, bytes);
  }
}

TEST(Memory, DroppedPagesOfAFileComeBack) {
  const test::TempFolder folder;
  std::string text(1 << 20, 'x');
  for (size_t i = 0; i < text.size(); i += 4096) text[i] = static_cast<char>('a' + i / 4096 % 26);
  ASSERT_TRUE(Replace(folder / "f", text).ok());
  MemoryMeter meter(0);
  const auto file = MappedFile::Open(folder / "f", &meter);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file.value().mapped());
  EXPECT_EQ(file.value().Drop(1, static_cast<int64_t>(text.size()) - 2),
            static_cast<int64_t>(text.size()) - 2 * PageBytes());
  EXPECT_EQ(std::memcmp(file.value().data(), text.data(), text.size()), 0);
}

TEST(Threads, RunAndEnd) {
  int n = 0;
  SystemThread threads[8];
  struct Work {
    int* n;
    int i;
  } work[8];
  int results[8] = {};
  for (int i = 0; i < 8; ++i) {
    work[i] = {results + i, i + 1};
    ASSERT_TRUE(
        threads[i].Start([](void* w) { *static_cast<Work*>(w)->n = static_cast<Work*>(w)->i; }, &work[i]));
  }
  for (SystemThread& thread : threads) thread.Join();
  for (int i = 0; i < 8; ++i) n += results[i];
  EXPECT_EQ(n, 36);
}

TEST(Randomness, DiffersAndFillsEveryByte) {
  unsigned char seen[13] = {}, bytes[13];
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(SystemRandom(bytes, sizeof bytes));
    for (size_t k = 0; k < sizeof bytes; ++k) seen[k] = static_cast<unsigned char>(seen[k] | bytes[k]);
  }
  for (unsigned char byte : seen)
    EXPECT_EQ(byte, 255);  // in 64 draws each bit was set once: fails once in 2^57
}

}  // namespace
}  // namespace kvc

// Files that change all at once or not at all.
#include "lib/base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

using test::TempFolder;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

std::vector<std::string> Names(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename());
  return names;
}

TEST(AtomicFile, TheTargetAppearsAtCommit) {
  const TempFolder folder;
  auto file = AtomicFile::Create(folder / "out");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file.value()->Write("hello world", 11).ok());
  ASSERT_TRUE(file.value()->WriteAt(0, "J", 1).ok());
  EXPECT_EQ(file.value()->size(), 11);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  ASSERT_TRUE(file.value()->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "out"), "Jello world");
  EXPECT_EQ(file.value()->Write("x", 1).code(), Code::kInternal) << "nothing is written after the end";
  EXPECT_EQ(file.value()->Commit().code(), Code::kInternal);
  EXPECT_EQ(Names(folder), std::vector<std::string>{"out"});
}

TEST(AtomicFile, WithoutCommitTheOldOneStays) {
  const TempFolder folder;
  std::ofstream(folder / "out") << "old";
  {
    auto file = AtomicFile::Create(folder / "out");
    ASSERT_TRUE(file.value()->Write("new", 3).ok());
    EXPECT_EQ(ReadAll(folder / "out"), "old");
    EXPECT_EQ(Names(folder).size(), 2u);
  }
  EXPECT_EQ(ReadAll(folder / "out"), "old");
  EXPECT_EQ(Names(folder).size(), 1u);
}

TEST(AtomicFile, OverwritesOnlyWhatWasWritten) {
  const TempFolder folder;
  auto file = AtomicFile::Create(folder / "out");
  ASSERT_TRUE(file.value()->Write("abc", 3).ok());
  EXPECT_EQ(file.value()->WriteAt(2, "xy", 2).code(), Code::kInternal);
  EXPECT_EQ(file.value()->WriteAt(-1, "x", 1).code(), Code::kInternal);
  EXPECT_TRUE(file.value()->WriteAt(2, "x", 1).ok());
}

TEST(AtomicFile, KeepsPermissionsAndFollowsLinks) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::ofstream(folder / "real/out") << "old";
  ASSERT_EQ(::chmod((folder / "real/out").c_str(), 0640), 0);
  ASSERT_EQ(::symlink("real/out", (folder / "link").c_str()), 0);
  auto file = AtomicFile::Create(folder / "link");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file.value()->Write("new", 3).ok());
  ASSERT_TRUE(file.value()->Commit().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(ReadAll(folder / "real/out"), "new");
  struct stat info;
  ASSERT_EQ(::stat((folder / "real/out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

// What takes the place of a file that is not for everybody is not for everybody while it is written either.
TEST(AtomicFile, ATemporaryFileOfASecretIsPrivate) {
  const TempFolder folder;
  const mode_t before = ::umask(022);
  const auto mode = [&](const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  const FileDescriptor hidden = CreateNewFile(folder / "hidden", /*is_private=*/true),
                       open = CreateNewFile(folder / "open", /*is_private=*/false);
  EXPECT_EQ(mode(folder / "hidden"), 0600u);
  EXPECT_EQ(mode(folder / "open"), 0644u);
  auto fresh = AtomicFile::Create(folder / "fresh");
  ASSERT_TRUE(fresh.ok() && fresh.value()->Commit().ok());
  EXPECT_EQ(mode(folder / "fresh"), 0644u);
  ::umask(before);
}

// A link is followed whether or not what it points to is there: writing through a name must not depend on it.
TEST(AtomicFile, FollowsLinksToFilesThatAreNotThereYet) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_directory(folder / "links");
  ASSERT_EQ(::symlink("second", (folder / "links/first").c_str()), 0);
  ASSERT_EQ(::symlink("../real/out", (folder / "links/second").c_str()), 0);  // from where the link is
  auto file = AtomicFile::Create(folder / "links/first");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file.value()->Write("new", 3).ok());
  ASSERT_TRUE(file.value()->Commit().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "links/first"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "links/second"));
  EXPECT_EQ(ReadAll(folder / "real/out"), "new");

  ASSERT_EQ(::symlink("nowhere/out", (folder / "lost").c_str()), 0);
  EXPECT_NE(AtomicFile::Create(folder / "lost").status().message().find("lost: cannot create a file beside"),
            std::string::npos);
  ASSERT_EQ(::symlink("round", (folder / "round").c_str()), 0);
  EXPECT_EQ(AtomicFile::Create(folder / "round").status().code(), Code::kIo);
}

TEST(AtomicFile, TellsWhereAnOutputWillStand) {
  const TempFolder folder;
  const std::string real = std::filesystem::canonical(folder.path());
  std::filesystem::create_directory(folder / "real");
  ASSERT_EQ(::symlink("real/out", (folder / "link").c_str()), 0);
  for (const char* name : {"real/out", "link", "real/../real/./out", "./link"})
    EXPECT_EQ(ResolveOutput(folder / name).value(), real + "/real/out") << name;
  std::ofstream(folder / "real/out") << "there";
  for (const char* name : {"real/out", "link", "real/../real/./out"})
    EXPECT_EQ(ResolveOutput(folder / name).value(), real + "/real/out") << name;
  EXPECT_EQ(ResolveOutput("").status().code(), Code::kInvalid);
  EXPECT_EQ(ResolveOutput(folder / "none/").status().code(), Code::kIo);
  EXPECT_EQ(ResolveOutput("/no-such-file-here").value(), "/no-such-file-here");
}

// What a program calls before it ends without unwinding.
TEST(AtomicFile, LeftoversOfThisProcessCanBeRemoved) {
  const TempFolder folder;
  std::ofstream(folder / "out") << "old";
  // Of another container that shares the folder: its processes are counted from 1 too.
  const std::string others = Format(".kvc-%lld", static_cast<long long>(ProcessNumber()));
  std::ofstream(folder / (others + "-0.tmp").c_str()) << "of another process";
  ASSERT_EQ(::symlink("out", (folder / "link").c_str()), 0);
  auto a = AtomicFile::Create(folder / "out"), b = AtomicFile::Create(folder / "link");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(Names(folder).size(), 5u);
  RemoveTemporaryFiles(folder / "link");
  EXPECT_EQ(Names(folder).size(), 3u);
  EXPECT_FALSE(a.value()->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "out"), "old");
}

TEST(AtomicFile, TwoAtOnceDoNotMeet) {
  const TempFolder folder;
  auto a = AtomicFile::Create(folder / "a"), b = AtomicFile::Create(folder / "b");
  ASSERT_TRUE(a.value()->Write("A", 1).ok());
  ASSERT_TRUE(b.value()->Write("B", 1).ok());
  ASSERT_TRUE(b.value()->Commit(/*durable=*/false).ok());
  ASSERT_TRUE(a.value()->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "a") + ReadAll(folder / "b"), "AB");
}

TEST(AtomicFile, RefusesWhatItCannotReplace) {
  const TempFolder folder;
  EXPECT_EQ(AtomicFile::Create("").status().code(), Code::kInvalid);
  EXPECT_EQ(AtomicFile::Create(folder.path()).status().code(), Code::kIo);
  EXPECT_NE(AtomicFile::Create("/dev/full").status().message().find("not a regular file"), std::string::npos);
  const Status status = AtomicFile::Create(folder / "none/out").status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("none/out: cannot create a file beside it: No such file"),
            std::string::npos)
      << status.message();
}

TEST(AtomicFile, AFailedWriteIsRemembered) {
  const TempFolder folder;
  std::ofstream(folder / "out") << "old";
  rlimit old;
  ::getrlimit(RLIMIT_FSIZE, &old);
  ASSERT_EQ(std::signal(SIGXFSZ, SIG_DFL), SIG_DFL) << "nobody takes care of the signal that comes with it";
  {
    auto file = AtomicFile::Create(folder / "out");
    ASSERT_TRUE(file.ok());
    const rlimit limit{10, old.rlim_max};  // stands for a full disk
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text(100, 'x');
    const Status status = file.value()->Write(text.data(), 100);
    ::setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find("out: cannot write: File too large"), std::string::npos)
        << status.message();
    EXPECT_EQ(file.value()->Write("x", 1).message(), status.message()) << "room again does not make it whole";
    EXPECT_EQ(file.value()->Commit().message(), status.message());
  }
  sigset_t waiting, blocked;
  ASSERT_EQ(::sigpending(&waiting), 0);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
  EXPECT_EQ(::sigismember(&waiting, SIGXFSZ), 0);
  EXPECT_EQ(::sigismember(&blocked, SIGXFSZ), 0);
  EXPECT_EQ(ReadAll(folder / "out"), "old");
  EXPECT_EQ(Names(folder).size(), 1u);
}

}  // namespace
}  // namespace kvc

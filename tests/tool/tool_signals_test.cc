// Whatever ends the program from outside: it leaves no temporary file and says how it ended.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/emulated.h"
#include "tests/tool/run_program.h"

namespace {

namespace fs = std::filesystem;

bool HasTemporary(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tmp") return true;
  }
  return false;
}

size_t CountFiles(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// A llama2.c checkpoint of four gigabytes of zeros, which the file system does not store: converting it takes
// long enough to be ended in the middle.
std::string LargeCheckpoint(const TemporaryFolder& folder) {
  const int32_t header[7] = {2048, 8192, 16, 16, 16, 512, 512};
  const std::string path = folder.Write("large.bin", std::string(reinterpret_cast<const char*>(header), 28));
  const int64_t d = 2048, f = 8192, per_layer = 2 * d + 4 * d * d + 3 * f * d;
  fs::resize_file(path, static_cast<uintmax_t>(28 + 4 * (512 * d + 16 * per_layer + d + 512 * 128)));
  fs::copy_file(KVC_SOURCE_DIR "/models/stories260k/tok512.bin", folder.Path("tok512.bin"));
  return path;
}

TEST(ToolSignals, NoSignalLeavesATemporaryFile) {
  if (kvc::test::kUnderQemu)
    GTEST_SKIP()
        << "QEMU 7.2 fails an assertion of its own, or waits for ever, where a thread takes a signal";
  const TemporaryFolder folder, source;
  const std::string checkpoint = LargeCheckpoint(source), out = folder.Write("out.kvc", "the old output");
  const std::vector<std::string> arguments = {"convert", checkpoint, out, "--weights", "int4"};
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGALRM}) {
    const ProgramResult ended = RunAndSignal(
        KVC_PROGRAM, arguments, {number}, [&](const std::string&) { return HasTemporary(folder.Path("")); });
    EXPECT_EQ(ended.exit_code, 128 + number) << ended.err;
    EXPECT_NE(ended.err, "") << number;
    EXPECT_EQ(CountFiles(folder.Path("")), 1u) << strsignal(number);
    EXPECT_EQ(ReadWholeFile(out), "the old output");
  }
}

// The second one does not wait for the command to notice the first.
TEST(ToolSignals, ASecondSignalEndsAtOnceAndCleansUpToo) {
  const TemporaryFolder folder, source;
  const std::string checkpoint = LargeCheckpoint(source);
  fs::create_symlink("elsewhere.kvc", folder.Path("link.kvc"));  // the temporary file is where the link leads
  const ProgramResult ended = RunAndSignal(KVC_PROGRAM, {"convert", checkpoint, folder.Path("link.kvc")},
                                           {SIGSTOP, SIGTERM, SIGINT, SIGCONT},
                                           [&](const std::string&) { return HasTemporary(folder.Path("")); });
  EXPECT_TRUE(ended.exit_code == 128 + SIGTERM || ended.exit_code == 128 + SIGINT) << ended.exit_code;
  EXPECT_EQ(CountFiles(folder.Path("")), 1u);
}

TEST(ToolSignals, CommandsThatCannotCancelEndAtOnce) {
  const TemporaryFolder folder;
  const ProgramResult waiting = RunAndSignal(
      "/bin/bash",
      {"-c", "echo started; exec \"$0\" tokenize \"$1\" --file <(while kill -0 $$; do sleep 1; done)",
       KVC_PROGRAM, KVC_RECALL},
      {SIGTERM}, [](const std::string& out) { return !out.empty(); });
  EXPECT_EQ(waiting.exit_code, 128 + SIGTERM);
}

// As under nohup: who started the program wants it to go on.
TEST(ToolSignals, WhatWasIgnoredStaysIgnored) {
  const ProgramResult ended = RunAndSignal(
      "/bin/bash",
      {"-c", "trap '' HUP; exec \"$0\" run \"$1\" --prompt 'It was' --max-tokens 100000 --context 100000",
       KVC_PROGRAM, KVC_RECALL},
      {SIGHUP, SIGTERM}, [](const std::string& out) { return !out.empty(); });
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM) << ended.err;
}

TEST(ToolSignals, AFileSizeLimitIsAFullDisk) {
  const TemporaryFolder folder;
  const std::string out = folder.Write("out.kvc", "the old output");
  const ProgramResult ended =
      RunShell("ulimit -f 100; exec \"$1\" convert \"$2\" \"$3\"", {KVC_SOURCE_DIR "/models/recall", out});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_NE(ended.err.find("out.kvc: cannot write: File too large"), std::string::npos) << ended.err;
  EXPECT_EQ(CountFiles(folder.Path("")), 1u);
  EXPECT_EQ(ReadWholeFile(out), "the old output");
}

}  // namespace

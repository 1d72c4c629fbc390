// Pipes and devices are no model files, and are not waited for.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/model/model_file.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

TEST(ModelFile, RefusesPipesAndDevices) {
  const test::TempFolder folder;
  MemoryMeter meter(0);
  const auto open = [&meter](const std::string& path) { return ModelFile::Open(path, &meter).status(); };
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_NE(open(folder / "fifo").message().find("not a regular file"), std::string::npos);
  EXPECT_EQ(open("/dev/null").code(), Code::kIo);
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_EQ(ModelFile::OpenFd(pipe_ends[0], 0, 0, &meter).status().code(), Code::kIo);
  ::close(pipe_ends[0]), ::close(pipe_ends[1]);
}

}  // namespace
}  // namespace kvc

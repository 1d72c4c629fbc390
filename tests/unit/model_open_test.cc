// What opening a model takes, counts and says, from a path, a descriptor and memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "kvc/kvc.h"
#include "lib/engine/model.h"
#include "tests/support/raw_model_file.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tokenizers.h"
#include "tests/support/write_bytes.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::RawModelFile;
using test::TempFolder;
using test::WriteBytes;

// The failures of the three ways to open these bytes, each with what must stand in front of it.
void ExpectFailure(const AlignedBytes& bytes, kvc_status code, const std::string& words) {
  const TempFolder folder;
  const std::string path = folder / "model.kvc";
  WriteBytes(path, bytes, "0123");
  const int fd = ::open(path.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  kvc_model* model = nullptr;
  EXPECT_EQ(kvc_model_open_fd(fd, 4, 0, nullptr, nullptr, &model), code);
  EXPECT_EQ(std::string(kvc_last_error()), Format("descriptor %d at byte 4: ", fd) + words);
  ::close(fd);
  WriteBytes(path, bytes);
  EXPECT_EQ(kvc_model_open(path.c_str(), nullptr, nullptr, &model), code);
  EXPECT_EQ(std::string(kvc_last_error()), path + ": " + words);
  EXPECT_EQ(kvc_model_open_memory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr, nullptr, &model),
            code);
  EXPECT_EQ(std::string(kvc_last_error()), "model in memory: " + words);
}

// Faults that only show when the tokenizer's tables are built.
TEST(ModelOpen, FaultsOfTheTokenizerNameTheFile) {
  RawModelFile raw = RawModelFile::Tiny({});
  raw.content.tokenizer.patterns = {"a("};
  ExpectFailure(
      raw.Build(), KVC_E_BAD_MODEL,
      "damaged: tokenizer pattern 0 \"a(\" is not a regular expression: missing closing parenthesis");
  raw.content.tokenizer.patterns = {"(a)\\1"};
  ExpectFailure(raw.Build(), KVC_E_UNSUPPORTED,
                "unsupported: tokenizer pattern 0 \"(a)\\1\" refers back to a group");
  raw.content.tokenizer.patterns.clear();
  raw.content.tokenizer.pieces[66] = "A";
  ExpectFailure(raw.Build(), KVC_E_BAD_MODEL, "damaged: pieces 65 and 66 are both \"A\"");
}

TEST(ModelOpen, ALimitNamesTheFileAndWhatWasWanted) {
  RawModelFile raw = RawModelFile::Tiny({});
  raw.content.tokenizer = GrownByteLevel(2000, 10);
  raw.content.config.vocab_size = static_cast<int32_t>(raw.content.tokenizer.pieces.size());
  test::TinyModelOptions options;
  options.vocab_size = raw.content.config.vocab_size;
  const TokenizerSpec tokenizer = raw.content.tokenizer;
  raw = RawModelFile::Tiny(options);
  raw.content.tokenizer = tokenizer;
  const AlignedBytes bytes = raw.Build();
  const auto open = [&](int64_t limit) {
    ModelParams params;
    params.threads = 1, params.memory_limit = limit;
    return Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
  };
  const auto model = open(0);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const int64_t weights = model.value()->file().weight_bytes(), overhead = model.value()->overhead_bytes();
  EXPECT_EQ(model.value()->meter()->used(), weights + overhead);
  EXPECT_GE(overhead, model.value()->tokenizer().bytes());
  EXPECT_GT(model.value()->tokenizer().bytes(), 2000 * 4);
  const int64_t most = model.value()->meter()->peak();
  EXPECT_TRUE(open(most).ok());
  bool wanted_tokenizer = false;
  for (int64_t limit = 1; limit < most; limit += most / 40) {
    const auto refused = open(limit);
    ASSERT_EQ(refused.status().code(), Code::kMemory) << limit;
    EXPECT_EQ(refused.status().message().rfind("model in memory: ", 0), 0u) << refused.status().message();
    wanted_tokenizer = wanted_tokenizer || refused.status().message().find("tokenizer") != std::string::npos;
  }
  EXPECT_NE(open(weights - 1).status().message().find("the weights"), std::string::npos);
  EXPECT_TRUE(wanted_tokenizer);
  EXPECT_NE(open(most - 1).status().message().find("the weights as this processor"), std::string::npos);
}

// Where a file is read because it cannot be mapped, its weights are counted once, as in a mapping.
TEST(ModelOpen, WeightsThatWereReadAreCountedOnce) {
  const TempFolder folder;
  const AlignedBytes bytes = test::TinyModelBytes({});
  int64_t used[2];
  for (const int64_t offset : {0, 1}) {
    WriteBytes(folder / "m", bytes, std::string(static_cast<size_t>(offset), 'x'));
    const int fd = ::open((folder / "m").c_str(), O_RDONLY);
    const auto model = Model::OpenFd(fd, offset, 0, ModelParams());
    ::close(fd);
    ASSERT_TRUE(model.ok()) << model.status().message();
    used[offset] = model.value()->meter()->used();
    EXPECT_EQ(used[offset], model.value()->file().weight_bytes() + model.value()->overhead_bytes());
  }
  EXPECT_GE(used[1], used[0]);
  EXPECT_LT(used[1], used[0] + static_cast<int64_t>(bytes.size()) / 2) << "directory and padding, no weights";
}

TEST(ModelOpen, TablesDoNotShareTheirScores) {
  RawModelFile raw = RawModelFile::Tiny({});
  HeadScoreTable table = raw.content.head_scores[0];
  raw.content.head_scores.clear();
  for (int i = 0; i < kMaxHeadScoreTables; ++i) {
    table.name = Format("table %d", i);
    table.scores.assign(i == 0 ? size_t{1} << 20 : 4, 0.5f);
    raw.content.head_scores.push_back(table);
  }
  AlignedBytes bytes = raw.Build();
  test::ShareHeadScores(&bytes);
  MemoryMeter meter(0);
  const auto opened = ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), &meter);
  EXPECT_EQ(opened.status().code(), Code::kBadModel);
  EXPECT_NE(opened.status().message().find("tables of the directory share texts or scores"),
            std::string::npos)
      << opened.status().message();
  EXPECT_LT(meter.peak(), 2 * static_cast<int64_t>(bytes.size()));
}

}  // namespace
}  // namespace kvc

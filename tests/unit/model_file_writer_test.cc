// Writing model files: what is refused, what stays when it fails, and head-score tables replaced in an
// existing file.
#include "models/convert/model_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

using test::TempFolder;
using test::TinyModelOptions;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

size_t CountFiles(const TempFolder& folder) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) n += !entry.path().empty();
  return n;
}

std::unique_ptr<ModelFile> OpenOk(const std::string& path) {
  auto file = ModelFile::Open(path, nullptr);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file.value()) : nullptr;
}

// Everything, in pieces of n bytes.
Status WriteInPieces(const TinyModelOptions& options, const std::string& path, size_t n) {
  const std::vector<TensorPlan> plans = test::TinyModelTensors(options);
  auto writer = ModelWriter::Create(path, test::TinyModelContent(options), plans);
  if (!writer.ok()) return writer.status();
  std::vector<uint8_t> all;
  for (const TensorPlan& plan : plans) {
    const std::vector<uint8_t> bytes = test::TinyTensorBytes(options, plan);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  for (size_t done = 0; done < all.size(); done += n) {
    const size_t now = std::min(n, all.size() - done);
    KVC_RETURN_IF_ERROR(writer.value()->Append(all.data() + done, static_cast<int64_t>(now)));
  }
  return writer.value()->Finish();
}

TEST(ModelWriter, PiecesOfAnySizeGiveTheSameFile) {
  TinyModelOptions options;
  options.ffn_size = 1024, options.hidden_size = 104,
  options.group = 26;  // larger than a block, and nothing round
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8, WeightType::kInt4}) {
    options.type = type;
    const TempFolder folder;
    ASSERT_TRUE(test::WriteTinyModel(options, folder / "a").ok());
    const std::string want = ReadAll(folder / "a");
    for (const size_t n : {size_t{1}, size_t{1000}, size_t{262145}, size_t{1} << 30}) {
      ASSERT_TRUE(WriteInPieces(options, folder / "b", n).ok());
      EXPECT_EQ(ReadAll(folder / "b"), want) << n;
    }
    EXPECT_NE(OpenOk(folder / "b"), nullptr);
    EXPECT_EQ(CountFiles(folder), 2u);
  }
}

TEST(ModelWriter, LargeVocabulariesWithFewerPiecesArePadded) {
  TinyModelOptions options;
  options.vocab_size = 300;
  ModelFileContent content = test::TinyModelContent(options);
  content.tokenizer.pieces.resize(270), content.tokenizer.piece_kinds.resize(270);
  const std::vector<TensorPlan> plans = test::TinyModelTensors(options);
  const TempFolder folder;
  auto writer = ModelWriter::Create(folder / "m", content, plans);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const TensorPlan& plan : plans) {
    const std::vector<uint8_t> bytes = test::TinyTensorBytes(options, plan);
    ASSERT_TRUE(writer.value()->Append(bytes.data(), static_cast<int64_t>(bytes.size())).ok());
  }
  ASSERT_TRUE(writer.value()->Finish().ok());
  const auto file = OpenOk(folder / "m");
  ASSERT_EQ(file->tokenizer_spec().pieces.size(), 300u);
  EXPECT_EQ(file->tokenizer_spec().piece_kinds[269], content.tokenizer.piece_kinds[269]);
  EXPECT_EQ(file->tokenizer_spec().piece_kinds[270], PieceKind::kUnused);
}

TEST(ModelWriter, RefusesContentThatNoReaderWouldTake) {
  const TempFolder folder;
  std::ofstream(folder / "m") << "old";
  const auto refusal = [&folder](auto change) {
    ModelFileContent content = test::TinyModelContent({});
    std::vector<TensorPlan> plans = test::TinyModelTensors({});
    change(&content, &plans);
    return ModelWriter::Create(folder / "m", content, plans).status();
  };
  using Content = ModelFileContent;
  using Plans = std::vector<TensorPlan>;
  EXPECT_EQ(refusal([](Content*, Plans* p) { p->pop_back(); }).code(), Code::kBadModel);
  EXPECT_EQ(refusal([](Content* c, Plans*) { c->config.head_dim = 20; }).code(), Code::kUnsupported);
  EXPECT_EQ(refusal([](Content* c, Plans*) { c->tokenizer.pieces.resize(500); }).code(), Code::kBadModel);
  EXPECT_EQ(refusal([](Content* c, Plans*) { c->config.vocab_size = INT32_MAX; }).code(), Code::kBadModel);
  EXPECT_EQ(refusal([](Content* c, Plans*) { c->head_scores[0].scores[0] = -1.f / 0.f; }).code(),
            Code::kBadModel);
  EXPECT_EQ(refusal([](Content* c, Plans*) { c->source.assign(70000, 'x'); }).code(), Code::kBadModel);
  const Status status = refusal([](Content*, Plans* p) { (*p)[2].rows = 7; });
  EXPECT_NE(status.message().find(
                "/m: cannot be written: tensor query of layer 0: shape [7, 32], the config needs"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(ReadAll(folder / "m"), "old");
  EXPECT_EQ(CountFiles(folder), 1u);
}

TEST(ModelWriter, UnfinishedOrBadWeightsLeaveTheOldFile) {
  const TempFolder folder;
  std::ofstream(folder / "m") << "old";
  const std::vector<TensorPlan> plans = test::TinyModelTensors({});
  const std::vector<uint8_t> first = test::TinyTensorBytes({}, plans[0]);
  {
    auto writer = ModelWriter::Create(folder / "m", test::TinyModelContent({}), plans);
    ASSERT_TRUE(writer.value()->Append(first.data(), 100).ok());
    const Status status = writer.value()->Finish();
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_NE(status.message().find("tensor embedding has 100 of 33536 bytes"), std::string::npos)
        << status.message();
  }
  {
    auto writer = ModelWriter::Create(folder / "m", test::TinyModelContent({}), plans);
    std::vector<uint8_t> bad = first;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bad.data() + 4 * (32 * 5 + 6), &nan, 4);
    const Status status = writer.value()->Append(bad.data(), static_cast<int64_t>(bad.size()));
    EXPECT_EQ(status.code(), Code::kBadModel);
    EXPECT_NE(status.message().find("tensor embedding: the value at row 5, column 6 is NaN"),
              std::string::npos);
  }
  EXPECT_EQ(ReadAll(folder / "m"), "old");
  EXPECT_EQ(CountFiles(folder), 1u);
}

// A limit on the size of files, in place of a full disk: writes fail after some bytes with an errno of their
// own.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

TEST(ModelWriter, AFullDiskLeavesTheOldFileAndNoRest) {
  const TempFolder folder;
  ASSERT_TRUE(test::WriteTinyModel({}, folder / "m").ok());
  const std::string old = ReadAll(folder / "m");
  TinyModelOptions other;
  other.seed = 2;
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{100}, rlim_t{9000}, rlim_t{old.size() - 1}}) {
    Status status;
    {
      const FileSizeLimit limit(bytes);
      status = test::WriteTinyModel(other, folder / "m");
    }
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find("/m: cannot write: File too large"), std::string::npos)
        << status.message();
    EXPECT_EQ(ReadAll(folder / "m"), old) << bytes;
    EXPECT_EQ(CountFiles(folder), 1u);
  }
  ASSERT_TRUE(test::WriteTinyModel(other, folder / "m").ok());
  EXPECT_NE(ReadAll(folder / "m"), old);
}

TEST(RewriteHeadScores, ReplacesTablesAndNothingElse) {
  const TempFolder folder;
  TinyModelOptions options;
  options.type = WeightType::kInt4, options.query_key_value_bias = true;
  ASSERT_TRUE(test::WriteTinyModel(options, folder / "m").ok());
  const auto before = OpenOk(folder / "m");
  HeadScoreTable table;
  table.name = "headkv", table.estimator = "headkv-r2", table.n_layers = 2, table.n_columns = 4;
  table.scores = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_TRUE(RewriteHeadScores(folder / "m", folder / "n", {table}).ok());
  ASSERT_TRUE(RewriteHeadScores(folder / "m", folder / "m", {table}).ok()) << "also in place";
  EXPECT_EQ(ReadAll(folder / "m"), ReadAll(folder / "n"));
  const auto after = OpenOk(folder / "m");
  ASSERT_EQ(after->head_scores().size(), 1u);
  EXPECT_EQ(after->head_scores()[0].name, "headkv");
  EXPECT_EQ(after->head_scores()[0].scores, table.scores);
  EXPECT_EQ(after->fingerprint(), before->fingerprint());
  EXPECT_EQ(after->source(), before->source());
  for (size_t i = 0; i < before->tensors().size(); ++i) {
    EXPECT_EQ(after->tensors()[i].checksum, before->tensors()[i].checksum);
  }
  table.scores.pop_back();
  const std::string kept = ReadAll(folder / "m");
  EXPECT_EQ(RewriteHeadScores(folder / "m", folder / "m", {table}).code(), Code::kBadModel);
  EXPECT_EQ(RewriteHeadScores(folder / "none", folder / "x", {}).code(), Code::kIo);
  EXPECT_EQ(ReadAll(folder / "m"), kept);
  EXPECT_EQ(CountFiles(folder), 2u);
}

}  // namespace
}  // namespace kvc

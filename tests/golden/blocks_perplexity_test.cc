// Perplexity of a trained model whose weights are blocks of Q4_K or Q6_K, as products take them, beside that
// of the same weights in f32. bench/block_perplexity.py measures it on more text, with blocks that the
// package gguf takes apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lib/engine/session.h"
#include "lib/model/model_check.h"
#include "lib/model/model_file.h"
#include "lib/ops/weight_blocks.h"
#include "models/convert/convert.h"
#include "models/convert/model_writer.h"
#include "tests/golden/golden_files.h"
#include "tests/golden/recall_model.h"
#include "tests/support/gguf_blocks.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr size_t kTokens = 500;
constexpr double kTolerance = 1e-3;  // of perplexities, relative

// The model in blocks of a type, or in f32 with the values of those blocks.
void Write(const ModelFile& from, WeightType type, bool in_blocks, const std::string& path) {
  std::vector<TensorPlan> plans;
  for (const TensorEntry& t : from.tensors()) {
    const bool blocks = in_blocks && !IsVectorRole(t.role);
    plans.push_back({t.role, t.layer, blocks ? type : WeightType::kF32, t.weight.rows, t.weight.cols,
                     blocks ? InfoOf(type).group : 0});
  }
  ModelFileContent content{from.config(),     from.tokenizer_spec(), from.turn_format(), {},
                           from.created_by(), from.source()};
  auto writer = ModelWriter::Create(path, std::move(content), std::move(plans));
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const test::BlockForm& form = type == WeightType::kQ4K ? test::kQ4KBlocks : test::kQ6KBlocks;
  for (const TensorEntry& t : from.tensors()) {
    const float* x = static_cast<const float*>(t.weight.data);
    const int64_t n = int64_t{t.weight.rows} * t.weight.cols;
    if (IsVectorRole(t.role)) {
      ASSERT_TRUE(writer.value()->Append(x, n * 4).ok());
      continue;
    }
    ASSERT_EQ(t.weight.cols % kBlockColumns, 0);
    std::vector<uint8_t> bytes(static_cast<size_t>(form.bytes));
    std::vector<float> values(kBlockColumns);
    for (int64_t at = 0; at < n; at += kBlockColumns) {
      form.encode(x + at, bytes.data());
      WeightBlock block;
      ReadBlockOf(type, bytes.data(), &block);
      for (int c = 0; c < kBlockColumns; ++c) {
        const int g = c / InfoOf(type).group;
        values[static_cast<size_t>(c)] = block.scale[g] * static_cast<float>(block.code[c]) - block.least[g];
      }
      const Status status = in_blocks ? writer.value()->Append(bytes.data(), form.bytes)
                                      : writer.value()->Append(values.data(), kBlockColumns * 4);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  ASSERT_TRUE(writer.value()->Finish().ok());
}

double Perplexity(const std::string& path, const std::vector<int32_t>& ids) {
  auto model = Model::Open(path, {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  const auto session = test::NewSession(model.value(), "full:kv=f32");
  Session* const one[] = {session.get()};
  EXPECT_TRUE(session->Prefill({ids.data(), 1}, true).ok());
  double loss = 0;
  for (size_t i = 1; i < kTokens; ++i) {
    const std::vector<float> logits = test::LogitsOf(*session);
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - most);
    loss += most + std::log(sum) - logits[static_cast<size_t>(ids[i])];
    EXPECT_TRUE(Session::FeedBatch({one, 1}, &ids[i]).ok());
  }
  return std::exp(loss / static_cast<double>(kTokens - 1));
}

TEST(BlocksPerplexity, IsThatOfTheSameWeightsInF32) {
  const test::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(test::ConvertRecall(WeightChoice::kF32, folder / "m.kvc"));
  const auto from = std::move(ModelFile::Open(folder / "m.kvc", nullptr).value());
  std::vector<int32_t> ids;
  const Json golden = ReadGolden("model/full.json");
  for (const Json& prompt : golden["prompts"]) {
    if (prompt["name"] == "prose1") ids = prompt["ids"].get<std::vector<int32_t>>();
  }
  ASSERT_GE(ids.size(), kTokens);
  const double trained = Perplexity(folder / "m.kvc", ids);
  for (const WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    Write(*from, type, true, folder / "blocks.kvc");
    Write(*from, type, false, folder / "plain.kvc");
    const double blocks = Perplexity(folder / "blocks.kvc", ids),
                 plain = Perplexity(folder / "plain.kvc", ids);
    RecordProperty(WeightTypeName(type), Format("%.6f, f32 %.6f", blocks, plain));
    EXPECT_LE(std::fabs(blocks / plain - 1), kTolerance) << WeightTypeName(type) << ": " << blocks;
    // The weights are the trained ones, rounded: not just any on which both agree.
    EXPECT_LE(std::fabs(plain / trained - 1), type == WeightType::kQ4K ? 0.1 : 0.01) << trained;
  }
}

}  // namespace
}  // namespace kvc

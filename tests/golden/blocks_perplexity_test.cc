// Perplexity of a trained model whose weights are blocks of Q4_K or Q6_K, as products take them, beside that
// of the same weights in f32. bench/block_perplexity.py measures it on more text, with blocks that the
// package gguf takes apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lib/base/half.h"
#include "lib/engine/session.h"
#include "lib/model/model_check.h"
#include "lib/model/model_file.h"
#include "lib/ops/weight_blocks.h"
#include "models/convert/convert.h"
#include "models/convert/model_writer.h"
#include "tests/golden/golden_files.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr size_t kTokens = 500;
constexpr double kTolerance = 1e-3;  // of perplexities, relative
constexpr int32_t kQ4KBytes = 144, kQ6KBytes = 210;

void PutHalf(uint16_t bits, uint8_t* to) {
  to[0] = static_cast<uint8_t>(bits & 255), to[1] = static_cast<uint8_t>(bits >> 8);
}

// The nearest of `most` + 1 multiples of step, from 0.
uint8_t Level(float x, float step, int most) {
  return static_cast<uint8_t>(step > 0 ? std::clamp(std::lrint(x / step), 0L, static_cast<long>(most)) : 0);
}

void ToQ4K(const float* x, uint8_t* out) {
  float scale[8], low[8], most_scale = 0, most_low = 0;
  for (int g = 0; g < 8; ++g) {
    const auto [least, most] = std::minmax_element(x + 32 * g, x + 32 * g + 32);
    low[g] = std::max(0.0f, -*least), scale[g] = std::max(0.0f, (*most + low[g]) / 15);
    most_scale = std::max(most_scale, scale[g]), most_low = std::max(most_low, low[g]);
  }
  const uint16_t d = FloatToF16(most_scale / 63), least = FloatToF16(most_low / 63);
  PutHalf(d, out), PutHalf(least, out + 2);
  std::fill(out + 4, out + kQ4KBytes, uint8_t{0});
  for (int g = 0; g < 8; ++g) {
    const uint8_t s = Level(scale[g], F16ToFloat(d), 63), m = Level(low[g], F16ToFloat(least), 63);
    uint8_t* b = out + 4;
    if (g < 4) {
      b[g] |= s, b[g + 4] |= m;
    } else {
      b[g + 4] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
      b[g - 4] = static_cast<uint8_t>(b[g - 4] | s >> 4 << 6),
            b[g] = static_cast<uint8_t>(b[g] | m >> 4 << 6);
    }
    for (int i = 0; i < 32; ++i) {
      const float value = x[32 * g + i] + F16ToFloat(least) * m;
      const int code = Level(std::max(0.0f, value), F16ToFloat(d) * s, 15);
      uint8_t& byte = out[16 + g / 2 * 32 + i];
      byte = static_cast<uint8_t>(byte | code << (g % 2 * 4));
    }
  }
}

void ToQ6K(const float* x, uint8_t* out) {
  float scale[16], most = 0;
  for (int g = 0; g < 16; ++g) {
    scale[g] = 0;
    for (int i = 0; i < 16; ++i) scale[g] = std::max(scale[g], std::fabs(x[16 * g + i]) / 31);
    most = std::max(most, scale[g]);
  }
  const uint16_t d = FloatToF16(most / 127);
  std::fill(out, out + kQ6KBytes, uint8_t{0});
  PutHalf(d, out + 208);
  for (int g = 0; g < 16; ++g) out[192 + g] = Level(scale[g], F16ToFloat(d), 127);
  for (int i = 0; i < 256; ++i) {
    const float step = F16ToFloat(d) * out[192 + i / 16];
    const int code = step > 0 ? static_cast<int>(std::clamp(std::lrint(x[i] / step), -32L, 31L)) + 32 : 32;
    const int half = i / 128, j = i % 128;
    uint8_t &low = out[64 * half + j % 64], &high = out[128 + 32 * half + j % 32];
    low = static_cast<uint8_t>(low | (code & 15) << (j / 64 * 4));
    high = static_cast<uint8_t>(high | code >> 4 << (j / 32 * 2));
  }
}

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
  const auto n_block = static_cast<size_t>(type == WeightType::kQ4K ? kQ4KBytes : kQ6KBytes);
  for (const TensorEntry& t : from.tensors()) {
    const float* x = static_cast<const float*>(t.weight.data);
    const int64_t n = int64_t{t.weight.rows} * t.weight.cols;
    if (IsVectorRole(t.role)) {
      ASSERT_TRUE(writer.value()->Append(x, n * 4).ok());
      continue;
    }
    ASSERT_EQ(t.weight.cols % kBlockColumns, 0);
    std::vector<uint8_t> bytes(n_block);
    std::vector<float> values(kBlockColumns);
    for (int64_t at = 0; at < n; at += kBlockColumns) {
      type == WeightType::kQ4K ? ToQ4K(x + at, bytes.data()) : ToQ6K(x + at, bytes.data());
      WeightBlock block;
      ReadBlockOf(type, bytes.data(), &block);
      for (int c = 0; c < kBlockColumns; ++c) {
        const int g = c / InfoOf(type).group;
        values[static_cast<size_t>(c)] = block.scale[g] * static_cast<float>(block.code[c]) - block.least[g];
      }
      const Status status = in_blocks ? writer.value()->Append(bytes.data(), static_cast<int64_t>(n_block))
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
  ConvertOptions options;
  options.weights = WeightChoice::kF32;
  const Status status =
      Convert(std::string(KVC_SOURCE_DIR) + "/models/recall", folder / "m.kvc", options, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
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

// The models that stand in the repository, and how each weight type stores them.
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

const std::string kRecall = std::string(KVC_SOURCE_DIR) + "/models/recall";
const std::string kStories = std::string(KVC_SOURCE_DIR) + "/models/stories260k/stories260K.bin";

// A reader of its own: what the file says, by name.
TestTensors ReadAllTensors(const std::string& path) {
  const std::string file = ReadAll(path);
  uint64_t n = 0;
  std::memcpy(&n, file.data(), 8);
  TestTensors tensors;
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, n));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], file.substr(8 + n + begin, end - begin)};
  }
  return tensors;
}

std::string HfName(const TensorEntry& t) {
  static const std::map<TensorRole, std::string> names = {{TensorRole::kAttentionNorm, "input_layernorm"},
                                                          {TensorRole::kQuery, "self_attn.q_proj"},
                                                          {TensorRole::kKey, "self_attn.k_proj"},
                                                          {TensorRole::kValue, "self_attn.v_proj"},
                                                          {TensorRole::kOutput, "self_attn.o_proj"},
                                                          {TensorRole::kFfnNorm, "post_attention_layernorm"},
                                                          {TensorRole::kGate, "mlp.gate_proj"},
                                                          {TensorRole::kUp, "mlp.up_proj"},
                                                          {TensorRole::kDown, "mlp.down_proj"}};
  if (t.role == TensorRole::kEmbedding) return "model.embed_tokens.weight";
  if (t.role == TensorRole::kFinalNorm) return "model.norm.weight";
  return "model.layers." + std::to_string(t.layer) + "." + names.at(t.role) + ".weight";
}

TEST(ConvertModels, RecallKeepsEveryByte) {
  ScratchDirectory scratch;
  ConvertOptions options;
  options.head_score_files = {kRecall + "/head_scores.json"};
  ConvertReport report;
  int calls = 0;
  options.progress = [&](const ConvertProgress& p) {
    ++calls;
    EXPECT_LE(p.bytes_done, p.bytes_total);
    return true;
  };
  const Status status = Convert(kRecall, scratch / "recall.kvc", options, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(report.kind, "hugging face");
  EXPECT_EQ(report.architecture, "llama");
  EXPECT_EQ(report.n_tensors, 56);
  EXPECT_TRUE(report.warnings.empty());
  EXPECT_GE(calls, 56);
  EXPECT_LT(report.peak_buffer_bytes, 16 << 20);
  const auto file = OpenModel(scratch / "recall.kvc");
  ASSERT_NE(file, nullptr);
  const ModelConfig& c = file->config();
  EXPECT_EQ(c.name, "recall");
  EXPECT_EQ(std::vector<int32_t>({c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.hidden_size, c.ffn_size,
                                  c.vocab_size, c.max_tokens}),
            std::vector<int32_t>({6, 8, 4, 64, 256, 512, 2048, 1024}));
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(c.rope_pairing, RopePairing::kHalf);
  EXPECT_EQ(file->tokenizer_spec().bos, 0);
  EXPECT_TRUE(file->tokenizer_spec().add_bos);
  EXPECT_EQ(file->tokenizer_spec().stop_tokens, std::vector<int32_t>({1}));
  ASSERT_EQ(file->head_scores().size(), 1u);
  EXPECT_EQ(file->head_scores()[0].estimator, "ssv");
  std::ifstream json(kRecall + "/head_scores.json");
  const nlohmann::json given = nlohmann::json::parse(json);
  const HeadScoreTable& table = file->head_scores()[0];
  EXPECT_EQ(table.n_samples, given["samples"]);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(table.scores[i], given["scores"][i / 4][i % 4].get<float>()) << i;
  const TestTensors source = ReadAllTensors(kRecall + "/model.safetensors");
  ASSERT_EQ(file->tensors().size(), source.size());
  for (const TensorEntry& t : file->tensors()) {
    const TestTensor& expected = source.at(HfName(t));
    if (IsVectorRole(t.role)) {
      EXPECT_EQ(t.weight.type, WeightType::kF32);
      EXPECT_EQ(Values(t.weight), Values(expected)) << HfName(t);
    } else {
      EXPECT_EQ(t.weight.type, WeightType::kBf16);
      EXPECT_EQ(std::memcmp(t.weight.data, expected.bytes.data(), expected.bytes.size()), 0) << HfName(t);
    }
  }
}

TEST(ConvertModels, RecallAsF32) {
  ScratchDirectory scratch;
  ConvertOptions options;
  options.weights = WeightChoice::kF32;
  ASSERT_TRUE(Convert(kRecall, scratch / "out.kvc", options, nullptr).ok());
  const auto file = OpenModel(scratch / "out.kvc");
  const TestTensors source = ReadAllTensors(kRecall + "/model.safetensors");
  for (const TensorEntry& t : file->tensors()) {
    EXPECT_EQ(t.weight.type, WeightType::kF32);
    EXPECT_EQ(Values(t.weight), Values(source.at(HfName(t)))) << HfName(t);
  }
}

// scale = max|x| / Q to the nearest f16, every value within half a step (a clamped one: within what rounding
// the scale took).
void ExpectCoded(const Weight& w, const std::vector<float>& x, const std::string& name) {
  const double limit = w.type == WeightType::kInt8 ? 127 : 7;
  const std::vector<float> got = Values(w);
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(w.group)) {
    double max = 0;
    for (int i = 0; i < w.group; ++i) max = std::max(max, std::fabs(static_cast<double>(x[at + i])));
    const double wanted = max == 0 ? 1.0 : max / limit, scale = F16ToFloat(w.scales[at / w.group]);
    ASSERT_LE(std::fabs(scale - wanted), std::max(wanted * 0x1p-11, 0x1p-25))
        << name << " group " << at / w.group;
    for (int i = 0; i < w.group; ++i) {
      const double code = std::nearbyint(x[at + i] / scale);
      const double exact = std::min(std::max(code, -limit), limit) * scale;
      ASSERT_NEAR(got[at + i], exact, 1e-12 + std::fabs(exact) * 1e-6) << name << " element " << at + i;
      ASSERT_LE(std::fabs(got[at + i] - x[at + i]), scale * 0.5 + max * 0x1p-10)
          << name << " element " << at + i;
    }
  }
}

class CodedWeights : public testing::TestWithParam<std::pair<WeightChoice, int32_t>> {};

TEST_P(CodedWeights, FollowTheFormula) {
  ScratchDirectory scratch;
  ConvertOptions options;
  options.weights = GetParam().first, options.group = GetParam().second;
  const Status status = Convert(kRecall, scratch / "out.kvc", options, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto file = OpenModel(scratch / "out.kvc");
  const TestTensors source = ReadAllTensors(kRecall + "/model.safetensors");
  for (const TensorEntry& t : file->tensors()) {
    const std::vector<float> x = Values(source.at(HfName(t)));
    if (IsVectorRole(t.role)) {
      EXPECT_EQ(Values(t.weight), x);
      continue;
    }
    const bool int8 = options.weights == WeightChoice::kInt8 || t.role == TensorRole::kEmbedding;
    EXPECT_EQ(t.weight.type, int8 ? WeightType::kInt8 : WeightType::kInt4);
    EXPECT_EQ(t.weight.group, options.group);
    ExpectCoded(t.weight, x, HfName(t));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodedWeights,
                         testing::Values(std::pair(WeightChoice::kInt8, 32),
                                         std::pair(WeightChoice::kInt8, 128),
                                         std::pair(WeightChoice::kInt4, 32),
                                         std::pair(WeightChoice::kInt4, 64)));

TEST(ConvertModels, Stories260kInTheOrderOfLlama2c) {
  ScratchDirectory scratch;
  ConvertReport report;
  const Status status = Convert(kStories, scratch / "stories.kvc", {}, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(report.kind, "llama2.c");
  const auto file = OpenModel(scratch / "stories.kvc");
  const ModelConfig& c = file->config();
  EXPECT_EQ(std::vector<int32_t>({c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.hidden_size, c.ffn_size,
                                  c.vocab_size, c.max_tokens}),
            std::vector<int32_t>({5, 8, 4, 8, 64, 172, 512, 512}));
  EXPECT_EQ(c.rope_pairing, RopePairing::kInterleaved);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(file->tokenizer_spec().bos, 1);
  const std::string bytes = ReadAll(kStories);
  size_t at = 28;  // the weights as run.c maps them, all layers of one kind together
  const auto expect = [&](TensorRole role, int32_t layer) {
    const TensorEntry* t = FindTensor(*file, role, layer);
    ASSERT_NE(t, nullptr);
    const size_t n = static_cast<size_t>(t->weight.rows) * t->weight.cols * 4;
    EXPECT_EQ(std::memcmp(t->weight.data, bytes.data() + at, n), 0) << TensorRoleName(role) << layer;
    at += n;
  };
  expect(TensorRole::kEmbedding, -1);
  for (const TensorRole role :
       {TensorRole::kAttentionNorm, TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue,
        TensorRole::kOutput, TensorRole::kFfnNorm, TensorRole::kGate, TensorRole::kDown, TensorRole::kUp}) {
    for (int32_t layer = 0; layer < 5; ++layer) expect(role, layer);
  }
  expect(TensorRole::kFinalNorm, -1);
  EXPECT_EQ(at + 512 * 8 * 4, bytes.size());
}

TEST(ConvertModels, ColumnsWithoutGroupsStayAsTheyAre) {
  ScratchDirectory scratch;
  ConvertOptions options;
  options.weights = WeightChoice::kInt8, options.group = 128;
  ConvertReport report;
  ASSERT_TRUE(Convert(kStories, scratch / "stories.kvc", options, &report).ok());
  const auto file = OpenModel(scratch / "stories.kvc");
  EXPECT_EQ(FindTensor(*file, TensorRole::kDown, 0)->weight.type, WeightType::kF32);  // 172 columns
  EXPECT_EQ(FindTensor(*file, TensorRole::kUp, 0)->weight.type, WeightType::kInt8);
  EXPECT_EQ(FindTensor(*file, TensorRole::kUp, 0)->weight.group, 64);  // 128 does not divide 64 columns
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_NE(report.warnings[0].find("5 matrices"), std::string::npos);
}

TEST(ConvertModels, EqualSourcesGiveEqualFiles) {
  ScratchDirectory scratch;
  ASSERT_TRUE(Convert(kStories, scratch / "a.kvc", {}, nullptr).ok());
  ASSERT_TRUE(Convert(kStories, scratch / "b.kvc", {}, nullptr).ok());
  EXPECT_EQ(ReadAll(scratch / "a.kvc"), ReadAll(scratch / "b.kvc"));
}

}  // namespace
}  // namespace kvc

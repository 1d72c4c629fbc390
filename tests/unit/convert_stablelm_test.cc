// StableLM on its way into a model file: what config.json may leave out, norms that every head has of its
// own, and biases whose dimensions change places with those of the rows beside them.
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using R = TensorRole;

nlohmann::json Config(bool heads, bool biases) {
  nlohmann::json config = SmallConfig("StableLmForCausalLM");
  config.erase("rms_norm_eps");
  config["layer_norm_eps"] = 1e-4, config["qk_layernorm"] = heads, config["use_qkv_bias"] = biases;
  return config;
}

std::string Block(int layer) { return "model.layers." + std::to_string(layer) + "."; }

TestTensors Tensors(bool heads, bool biases) {
  TestTensors t = SmallTensors("F32");
  uint32_t seed = 500;
  t["model.norm.bias"] = MakeTensor("F32", {kHidden}, seed++);
  for (int i = 0; i < kTestLayers; ++i) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      t[Block(i) + norm + ".bias"] = MakeTensor("F32", {kHidden}, seed++);
    for (int h = 0; heads && h < kHeads + kKvHeads; ++h) {
      const bool query = h < kHeads;
      t[Block(i) + "self_attn." + (query ? "q" : "k") + "_layernorm.norms." +
        std::to_string(query ? h : h - kHeads) + ".weight"] = MakeTensor("F32", {kHeadDim}, seed++);
    }
    for (const char* role : {"q_proj", "k_proj", "v_proj"}) {
      const int64_t n = (role[0] == 'q' ? kHeads : kKvHeads) * kHeadDim;
      if (biases) t[Block(i) + "self_attn." + role + ".bias"] = MakeTensor("F32", {n}, seed++);
    }
  }
  return t;
}

Status ConvertIt(const nlohmann::json& config, const TestTensors& tensors,
                 std::unique_ptr<ModelFile>* file = nullptr) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", config, tensors);
  const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, nullptr);
  if (status.ok() && file != nullptr) *file = OpenModel(scratch / "out.kvc");
  return status;
}

// A quarter of 8 dimensions turns: (0, 1). They are to stand where a rotation over the whole head has its
// first pair.
std::vector<float> Spread(const std::vector<float>& v) {
  std::vector<float> out;
  for (size_t head = 0; head < v.size(); head += kHeadDim) {
    for (const size_t i : {0, 2, 3, 4, 1, 5, 6, 7}) out.push_back(v[head + i]);
  }
  return out;
}

TEST(ConvertStableLm, DefaultsAndBiases) {
  const TestTensors tensors = Tensors(false, true);
  std::unique_ptr<ModelFile> file;
  const Status status = ConvertIt(Config(false, true), tensors, &file);
  ASSERT_TRUE(status.ok()) << status.message();
  const ModelConfig& c = file->config();
  EXPECT_TRUE(c.layer_norms && !c.qk_norm && !c.parallel_blocks);
  EXPECT_EQ(c.norm_eps, 1e-4);
  EXPECT_EQ(c.rope.rotated, kHeadDim / 4);
  EXPECT_EQ(file->version(), 4u);
  for (int i = 0; i < kTestLayers; ++i) {
    const std::string a = Block(i) + "self_attn.";
    EXPECT_EQ(Values(FindTensor(*file, R::kQueryBias, i)->weight),
              Spread(Values(tensors.at(a + "q_proj.bias"))));
    EXPECT_EQ(Values(FindTensor(*file, R::kKeyBias, i)->weight),
              Spread(Values(tensors.at(a + "k_proj.bias"))));
    EXPECT_EQ(Values(FindTensor(*file, R::kValueBias, i)->weight), Values(tensors.at(a + "v_proj.bias")));
    EXPECT_EQ(Values(FindTensor(*file, R::kFfnNormBias, i)->weight),
              Values(tensors.at(Block(i) + "post_attention_layernorm.bias")));
  }
}

TEST(ConvertStableLm, NormsOfEveryHead) {
  const TestTensors tensors = Tensors(true, false);
  std::unique_ptr<ModelFile> file;
  const Status status = ConvertIt(Config(true, false), tensors, &file);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(file->config().qk_norm && file->config().own_qk_norms);
  std::vector<float> wanted;
  for (int h = 0; h < kHeads; ++h) {
    const auto& one = tensors.at(Block(1) + "self_attn.q_layernorm.norms." + std::to_string(h) + ".weight");
    for (const float v : Spread(Values(one))) wanted.push_back(v);
  }
  EXPECT_EQ(Values(FindTensor(*file, R::kQueryNorm, 1)->weight), wanted);
}

TEST(ConvertStableLm, WhatDoesNotFitIsNamed) {
  const auto broken = [](bool heads, const std::function<void(TestTensors*)>& change) {
    TestTensors tensors = Tensors(heads, true);
    change(&tensors);
    return ConvertIt(Config(heads, true), tensors);
  };
  ExpectError(broken(false, [](TestTensors* t) { t->erase(Block(1) + "input_layernorm.bias"); }),
              Code::kBadModel, {"attention_norm_bias of layer 1 is missing"});
  ExpectError(broken(false, [](TestTensors* t) { t->erase(Block(1) + "self_attn.k_proj.bias"); }),
              Code::kBadModel, {"key_bias of layer 1 is missing"});
  ExpectError(
      broken(true, [](TestTensors* t) { t->erase(Block(0) + "self_attn.q_layernorm.norms.2.weight"); }),
      Code::kBadModel, {"self_attn.q_layernorm.norms.*.weight", "that of head 2 is missing"});
  ExpectError(broken(true,
                     [](TestTensors* t) {
                       (*t)[Block(0) + "self_attn.k_layernorm.norms.2.weight"] =
                           MakeTensor("F32", {kHeadDim}, 9);
                     }),
              Code::kBadModel, {"k_layernorm.norms.2", "only 2 heads"});
  ExpectError(broken(true,
                     [](TestTensors* t) {
                       (*t)[Block(0) + "self_attn.k_layernorm.norms.1.weight"] = MakeTensor("F32", {4}, 9);
                     }),
              Code::kBadModel, {"k_layernorm.norms.1", "another shape"});
  ExpectError(ConvertIt(Config(false, false), Tensors(false, true)), Code::kUnsupported,
              {"self_attn.k_proj.bias", "no such bias"});
  // Blocks side by side have one norm between them.
  nlohmann::json parallel = Config(false, false);
  parallel["use_parallel_residual"] = true;
  ExpectError(ConvertIt(parallel, Tensors(false, false)), Code::kUnsupported, {"post_attention_layernorm"});
}

}  // namespace
}  // namespace kvc

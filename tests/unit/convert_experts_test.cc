// Experts on their way into stacks: single tensors or one for all, in any order and file; and sources that
// say one thing and hold another.
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

constexpr int kExperts = 3, kChosen = 2, kExpertFfn = 16;
using R = TensorRole;

nlohmann::json MoeConfig() {
  nlohmann::json config = SmallConfig("Qwen3MoeForCausalLM");
  config["num_experts"] = kExperts, config["num_experts_per_tok"] = kChosen;
  config["moe_intermediate_size"] = kExpertFfn, config["norm_topk_prob"] = true,
  config["head_dim"] = kHeadDim;
  config["decoder_sparse_step"] = 1, config["mlp_only_layers"] = nlohmann::json::array();
  return config;
}

std::string Block(int layer) { return "model.layers." + std::to_string(layer) + "."; }
std::string Expert(int layer, int expert, const char* role) {
  return Block(layer) + "mlp.experts." + std::to_string(expert) + "." + role + ".weight";
}

TestTensors MoeTensors(const std::string& dtype) {
  TestTensors t = SmallTensors(dtype);
  uint32_t seed = 100;
  for (int i = 0; i < kTestLayers; ++i) {
    for (const char* role : {"gate_proj", "up_proj", "down_proj"})
      t.erase(Block(i) + "mlp." + role + ".weight");
    t[Block(i) + "self_attn.q_norm.weight"] = MakeTensor(dtype, {kHeadDim}, seed++);
    t[Block(i) + "self_attn.k_norm.weight"] = MakeTensor(dtype, {kHeadDim}, seed++);
    t[Block(i) + "mlp.gate.weight"] = MakeTensor(dtype, {kExperts, kHidden}, seed++);
    for (int e = 0; e < kExperts; ++e) {
      t[Expert(i, e, "gate_proj")] = MakeTensor(dtype, {kExpertFfn, kHidden}, seed++);
      t[Expert(i, e, "up_proj")] = MakeTensor(dtype, {kExpertFfn, kHidden}, seed++);
      t[Expert(i, e, "down_proj")] = MakeTensor(dtype, {kHidden, kExpertFfn}, seed++);
    }
  }
  return t;
}

Status ConvertMoe(const nlohmann::json& config, const TestTensors& tensors,
                  const ConvertOptions& options = {}, std::unique_ptr<ModelFile>* file = nullptr) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", config, tensors);
  const Status status = Convert(scratch / "model", scratch / "out.kvc", options, nullptr);
  EXPECT_EQ(scratch.CountFiles(), status.ok() ? 2u : 1u);
  if (status.ok() && file != nullptr) *file = OpenModel(scratch / "out.kvc");
  return status;
}

// The experts of a role, one behind the other.
std::string Joined(const TestTensors& tensors, int layer, const char* role) {
  std::string bytes;
  for (int e = 0; e < kExperts; ++e) bytes += tensors.at(Expert(layer, e, role)).bytes;
  return bytes;
}

void ExpectStacks(const ModelFile& file, const TestTensors& tensors) {
  const ModelConfig& c = file.config();
  EXPECT_EQ(std::vector<int32_t>({c.n_experts, c.n_chosen, c.ffn_size, c.normalise_experts}),
            std::vector<int32_t>({kExperts, kChosen, kExpertFfn, 1}));
  for (int i = 0; i < kTestLayers; ++i) {
    for (const auto& [role, name] :
         {std::pair(R::kExpertGate, "gate_proj"), {R::kExpertUp, "up_proj"}, {R::kExpertDown, "down_proj"}}) {
      const TensorEntry* t = FindTensor(file, role, i);
      ASSERT_NE(t, nullptr);
      const std::string bytes = Joined(tensors, i, name);
      ASSERT_EQ(t->size, static_cast<int64_t>(bytes.size()));
      EXPECT_EQ(std::memcmp(t->weight.data, bytes.data(), bytes.size()), 0) << name;
    }
  }
}

TEST(ConvertExperts, SingleTensorsBecomeStacks) {
  const TestTensors tensors = MoeTensors("BF16");
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertMoe(MoeConfig(), tensors, {}, &file).ok());
  ExpectStacks(*file, tensors);
  EXPECT_EQ(file->version(), 2u);
}

// As transformers holds them, and some tools save.
TEST(ConvertExperts, OneTensorForAllBecomesTheSame) {
  const TestTensors single = MoeTensors("BF16");
  TestTensors tensors = single;
  for (int i = 0; i < kTestLayers; ++i) {
    std::string gate_up;
    for (int e = 0; e < kExperts; ++e) {
      gate_up += single.at(Expert(i, e, "gate_proj")).bytes + single.at(Expert(i, e, "up_proj")).bytes;
      for (const char* role : {"gate_proj", "up_proj", "down_proj"}) tensors.erase(Expert(i, e, role));
    }
    tensors[Block(i) + "mlp.experts.gate_up_proj"] = {"BF16", {kExperts, 2 * kExpertFfn, kHidden}, gate_up};
    tensors[Block(i) + "mlp.experts.down_proj"] = {
        "BF16", {kExperts, kHidden, kExpertFfn}, Joined(single, i, "down_proj")};
  }
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertMoe(MoeConfig(), tensors, {}, &file).ok());
  ExpectStacks(*file, single);
}

TEST(ConvertExperts, ExpertsMayLieInDifferentFiles) {
  const TestTensors tensors = MoeTensors("F16");
  ScratchDirectory scratch;
  WriteHf(scratch / "model", MoeConfig(), {});
  std::filesystem::remove(scratch / "model/model.safetensors");
  TestTensors halves[2];
  nlohmann::json map;
  int i = 0;
  for (const auto& [name, tensor] : tensors) {
    map[name] = i % 2 == 0 ? "a.safetensors" : "b.safetensors";
    halves[i++ % 2][name] = tensor;
  }
  WriteAll(scratch / "model/a.safetensors", SafetensorsFile(halves[0]));
  WriteAll(scratch / "model/b.safetensors", SafetensorsFile(halves[1]));
  WriteAll(scratch / "model/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  ASSERT_TRUE(Convert(scratch / "model", scratch / "out.kvc", {}, nullptr).ok());
  ExpectStacks(*OpenModel(scratch / "out.kvc"), tensors);
}

// A code for every weight but the router's, which are few and decide much; panels where experts fill them.
TEST(ConvertExperts, TheRouterKeepsItsType) {
  ConvertOptions options;
  options.weights = WeightChoice::kInt4, options.layout = WeightLayout::kPanels16;
  TestTensors tensors = MoeTensors("F32");
  nlohmann::json config = MoeConfig();
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertMoe(config, tensors, options, &file).ok());
  EXPECT_EQ(FindTensor(*file, R::kRouter, 0)->weight.type, WeightType::kF32);
  const Weight& gate = FindTensor(*file, R::kExpertGate, 1)->weight;
  EXPECT_EQ(gate.type, WeightType::kInt4);
  EXPECT_EQ(gate.layout, WeightLayout::kPanels16);
}

TEST(ConvertExperts, WhatIsMissingOrTooMuchIsNamed) {
  const auto broken = [](void (*change)(TestTensors*)) {
    TestTensors tensors = MoeTensors("F32");
    change(&tensors);
    return ConvertMoe(MoeConfig(), tensors);
  };
  ExpectError(broken([](TestTensors* t) { t->erase(Expert(1, 2, "up_proj")); }), Code::kBadModel,
              {"model.layers.1.mlp.experts.*.up_proj.weight", "that of expert 2 is missing"});
  ExpectError(broken([](TestTensors* t) {
                for (int e = 0; e < kExperts; ++e) t->erase(Expert(0, e, "down_proj"));
              }),
              Code::kBadModel, {"expert_down of layer 0 is missing"});
  ExpectError(broken([](TestTensors* t) { t->erase(Block(0) + "mlp.gate.weight"); }), Code::kBadModel,
              {"router of layer 0 is missing"});
  ExpectError(broken([](TestTensors* t) { (*t)[Expert(0, 3, "up_proj")] = t->at(Expert(0, 2, "up_proj")); }),
              Code::kBadModel, {"experts.3.up_proj", "the configuration has only 3 experts"});
  ExpectError(
      broken([](TestTensors* t) { (*t)[Expert(0, 999999, "up_proj")] = t->at(Expert(0, 2, "up_proj")); }),
      Code::kBadModel, {"only 3 experts"});
  // Not one of its names.
  ExpectError(broken([](TestTensors* t) {
                (*t)[Block(0) + "mlp.experts.01.up_proj.weight"] = t->at(Expert(0, 1, "up_proj"));
              }),
              Code::kUnsupported, {"experts.01.up_proj.weight has no place"});
  ExpectError(broken([](TestTensors* t) { (*t)[Expert(2, 0, "up_proj")] = t->at(Expert(0, 0, "up_proj")); }),
              Code::kBadModel, {"the configuration has only 2 layers"});
  ExpectError(broken([](TestTensors* t) {
                (*t)[Expert(0, 1, "up_proj")] = MakeTensor("F32", {kHidden, kExpertFfn}, 1);
              }),
              Code::kBadModel, {"experts.1.up_proj", "another shape", "[16, 32]"});
  ExpectError(broken([](TestTensors* t) {
                (*t)[Expert(0, 1, "up_proj")] = MakeTensor("BF16", {kExpertFfn, kHidden}, 1);
              }),
              Code::kUnsupported, {"experts of different types, f32 and bf16"});
  ExpectError(
      broken([](TestTensors* t) {
        (*t)[Block(0) + "mlp.experts.down_proj"] = MakeTensor("F32", {kExperts, kHidden, kExpertFfn}, 1);
      }),
      Code::kBadModel, {"stands twice"});
  ExpectError(broken([](TestTensors* t) {
                (*t)[Block(0) + "mlp.experts.gate_up_proj"] = MakeTensor("F32", {kExperts, kHidden, 32}, 1);
                t->at(Block(0) + "mlp.experts.gate_up_proj").shape = {2 * kExperts, kExpertFfn, kHidden};
              }),
              Code::kBadModel, {"gate_up_proj has shape [6, 16, 32], the configuration says [3, 32, 32]"});
  ExpectError(broken([](TestTensors* t) {
                (*t)[Block(0) + "mlp.up_proj.weight"] = MakeTensor("F32", {kFfn, kHidden}, 1);
              }),
              Code::kUnsupported, {"does not belong to a model of this configuration"});
}

TEST(ConvertExperts, NoNumberInAnExpertIsFound) {
  TestTensors tensors = MoeTensors("F32");
  const float bad = NAN;
  std::memcpy(tensors[Expert(1, 2, "up_proj")].bytes.data() + 4 * (kHidden * 7 + 3), &bad, 4);
  ExpectError(ConvertMoe(MoeConfig(), tensors), Code::kBadModel,
              {"model.layers.1.mlp.experts.*.up_proj.weight: row 39, column 3: the value is not a finite"});
}

TEST(ConvertExperts, SettingsAreReadOrRefused) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = MoeConfig();
    config[key] = value;
    return ConvertMoe(config, MoeTensors("F32"));
  };
  EXPECT_TRUE(with("router_aux_loss_coef", 0.001).ok());
  ExpectError(with("num_experts", 0), Code::kBadModel, {"num_experts"});
  ExpectError(with("num_experts", 2000), Code::kBadModel, {"num_experts"});
  ExpectError(with("num_experts_per_tok", 4), Code::kBadModel, {"num_experts_per_tok"});
  ExpectError(with("num_experts_per_tok", nullptr), Code::kBadModel, {"num_experts_per_tok is missing"});
  ExpectError(with("mlp_only_layers", {1}), Code::kUnsupported, {"mlp_only_layers = [1] is not supported"});
  ExpectError(with("decoder_sparse_step", 2), Code::kUnsupported, {"decoder_sparse_step = 2"});
  ExpectError(with("shared_expert_intermediate_size", 64), Code::kUnsupported, {"shared_expert"});
  ExpectError(with("moe_intermediate_size", 24), Code::kBadModel, {"another shape"});
  EXPECT_TRUE(with("use_qk_norm", true).ok()) << "as Qwen3-Coder says";
  ExpectError(with("use_qk_norm", false), Code::kUnsupported, {"use_qk_norm = false"});
  // Dense tensors and none of the experts' settings.
  EXPECT_FALSE(ConvertMoe(SmallConfig("Qwen3MoeForCausalLM"), SmallTensors("F32")).ok());
}

}  // namespace
}  // namespace kvc

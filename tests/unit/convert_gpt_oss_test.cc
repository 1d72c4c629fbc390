// gpt-oss on its way into a model file: experts in MXFP4 whose halves take turns row by row, biases, sinks;
// and checkpoints that do not hold what they should.
#include <cmath>

#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using R = TensorRole;

constexpr int kExperts = 3, kChosen = 2, kExpertFfn = 32;
constexpr float kFp4[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

nlohmann::json Config() {
  nlohmann::json config = SmallConfig("GptOssForCausalLM");
  config["num_local_experts"] = kExperts, config["num_experts_per_tok"] = kChosen;
  config["intermediate_size"] = kExpertFfn, config["head_dim"] = kHeadDim, config["attention_bias"] = true;
  config["swiglu_limit"] = 5.5, config["sliding_window"] = 16;
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  return config;
}

std::string Block(int layer) { return "model.layers." + std::to_string(layer) + "."; }

std::string Bytes(size_t n, uint32_t seed, uint32_t low, uint32_t count) {
  std::string bytes;
  for (uint32_t state = seed * 2654435761u + 1; bytes.size() < n;) {
    state = state * 1664525u + 1013904223u;
    bytes += static_cast<char>(low + (state >> 16) % count);
  }
  return bytes;
}

// rows [experts, rows, columns] in blocks of 32 columns.
void AddMxfp4(const std::string& name, int64_t rows, int64_t cols, uint32_t seed, TestTensors* t) {
  const int64_t groups = cols / 32;
  (*t)[name + "_blocks"] = {"U8",
                            {kExperts, rows, groups, 16},
                            Bytes(static_cast<size_t>(kExperts * rows * groups * 16), seed, 0, 256)};
  (*t)[name + "_scales"] = {"U8",
                            {kExperts, rows, groups},
                            Bytes(static_cast<size_t>(kExperts * rows * groups), seed + 1, 104, 40)};
}

// By the format's own definition: [experts, rows, columns].
std::vector<float> Decoded(const TestTensors& t, const std::string& name) {
  const std::string &blocks = t.at(name + "_blocks").bytes, &scales = t.at(name + "_scales").bytes;
  std::vector<float> out;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto byte = static_cast<uint8_t>(blocks[i]);
    const float scale = std::ldexp(1.0f, static_cast<uint8_t>(scales[i / 16]) - 127);
    out.push_back(kFp4[byte & 15] * scale), out.push_back(kFp4[byte >> 4] * scale);
  }
  return out;
}

TestTensors Tensors() {
  TestTensors t = SmallTensors("BF16");
  uint32_t seed = 900;
  for (int i = 0; i < kTestLayers; ++i) {
    for (const char* role : {"gate_proj", "up_proj", "down_proj"})
      t.erase(Block(i) + "mlp." + role + ".weight");
    const std::string a = Block(i) + "self_attn.", m = Block(i) + "mlp.";
    t[a + "q_proj.bias"] = MakeTensor("BF16", {kHeads * kHeadDim}, seed++);
    t[a + "k_proj.bias"] = MakeTensor("BF16", {kKvHeads * kHeadDim}, seed++);
    t[a + "v_proj.bias"] = MakeTensor("BF16", {kKvHeads * kHeadDim}, seed++);
    t[a + "o_proj.bias"] = MakeTensor("BF16", {kHidden}, seed++);
    t[a + "sinks"] = MakeTensor("BF16", {kHeads}, seed++);
    t[m + "router.weight"] = MakeTensor("BF16", {kExperts, kHidden}, seed++);
    t[m + "router.bias"] = MakeTensor("BF16", {kExperts}, seed++);
    t[m + "experts.gate_up_proj_bias"] = MakeTensor("BF16", {kExperts, 2 * kExpertFfn}, seed++);
    t[m + "experts.down_proj_bias"] = MakeTensor("BF16", {kExperts, kHidden}, seed++);
    AddMxfp4(m + "experts.gate_up_proj", 2 * kExpertFfn, kHidden, seed += 2, &t);
    AddMxfp4(m + "experts.down_proj", kHidden, kExpertFfn, seed += 2, &t);
  }
  return t;
}

Status ConvertIt(const nlohmann::json& config, const TestTensors& tensors,
                 std::unique_ptr<ModelFile>* file = nullptr, ConvertReport* report = nullptr) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", config, tensors);
  const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, report);
  if (status.ok() && file != nullptr) *file = OpenModel(scratch / "out.kvc");
  return status;
}

// Rows of `size` values of which every second is taken, from `half` on.
std::vector<float> Half(const std::vector<float>& all, size_t size, size_t half) {
  std::vector<float> out;
  for (size_t row = half; row * size < all.size(); row += 2) {
    for (size_t i = 0; i < size; ++i) out.push_back(all[row * size + i]);
  }
  return out;
}

// int8 in groups of 32 holds every value of MXFP4 whose scale is one of f16.
TEST(ConvertGptOss, EveryValueOfMxfp4IsKept) {
  const TestTensors tensors = Tensors();
  std::unique_ptr<ModelFile> file;
  ConvertReport report;
  const Status status = ConvertIt(Config(), tensors, &file, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  const ModelConfig& c = file->config();
  EXPECT_EQ(file->version(), 4u);
  EXPECT_TRUE(c.attention_sinks && c.normalise_experts);
  EXPECT_EQ(c.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(c.activation_gain, 1.702f);
  EXPECT_EQ(c.activation_limit, 5.5f);
  EXPECT_EQ(c.layers[0].attention_window, 16);
  EXPECT_EQ(c.layers[1].attention_window, 0);
  for (int i = 0; i < kTestLayers; ++i) {
    const std::string m = Block(i) + "mlp.", a = Block(i) + "self_attn.";
    const std::vector<float> both = Decoded(tensors, m + "experts.gate_up_proj"),
                             biases = Values(tensors.at(m + "experts.gate_up_proj_bias"));
    const Weight& gate = FindTensor(*file, R::kExpertGate, i)->weight;
    EXPECT_EQ(gate.type, WeightType::kInt8);
    EXPECT_EQ(gate.group, 32);
    EXPECT_EQ(Values(gate), Half(both, kHidden, 0));
    EXPECT_EQ(Values(FindTensor(*file, R::kExpertUp, i)->weight), Half(both, kHidden, 1));
    EXPECT_EQ(Values(FindTensor(*file, R::kExpertDown, i)->weight),
              Decoded(tensors, m + "experts.down_proj"));
    EXPECT_EQ(Values(FindTensor(*file, R::kExpertGateBias, i)->weight), Half(biases, 1, 0));
    EXPECT_EQ(Values(FindTensor(*file, R::kExpertUpBias, i)->weight), Half(biases, 1, 1));
    EXPECT_EQ(Values(FindTensor(*file, R::kAttentionSinks, i)->weight), Values(tensors.at(a + "sinks")));
    EXPECT_EQ(Values(FindTensor(*file, R::kRouterBias, i)->weight), Values(tensors.at(m + "router.bias")));
  }
  for (const ConvertedType& type : report.types) {
    if (type.stored != std::string("int8")) continue;
    EXPECT_EQ(type.lost_squares, 0.0);
  }
}

// [experts, columns, rows] of a checkpoint in 16 bits, the rows of gate and up in turn.
TEST(ConvertGptOss, ExpertsColumnsFirstAreTurned) {
  for (const char* dtype : {"BF16", "F16", "F32"}) {
    TestTensors tensors = Tensors();
    for (int i = 0; i < kTestLayers; ++i) {
      const std::string e = Block(i) + "mlp.experts.";
      for (const char* end : {"_blocks", "_scales"})
        tensors.erase(e + "gate_up_proj" + end), tensors.erase(e + "down_proj" + end);
      const auto seed = static_cast<uint32_t>(70 + i);
      tensors[e + "gate_up_proj"] = MakeTensor(dtype, {kExperts, kHidden, 2 * kExpertFfn}, seed);
      tensors[e + "down_proj"] = MakeTensor(dtype, {kExperts, kExpertFfn, kHidden}, seed + 9);
    }
    nlohmann::json config = Config();
    config.erase("quantization_config");
    std::unique_ptr<ModelFile> file;
    const Status status = ConvertIt(config, tensors, &file);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < kTestLayers; ++i) {
      const std::string e = Block(i) + "mlp.experts.";
      const std::vector<float> both = Values(tensors.at(e + "gate_up_proj")),
                               down = Values(tensors.at(e + "down_proj"));
      std::vector<float> wanted[3];
      for (size_t x = 0; x < kExperts; ++x) {
        for (size_t half : {0, 1}) {
          for (size_t r = 0; r < kExpertFfn; ++r) {
            for (size_t c = 0; c < kHidden; ++c)
              wanted[half].push_back(both[(x * kHidden + c) * 2 * kExpertFfn + 2 * r + half]);
          }
        }
        for (size_t r = 0; r < kHidden; ++r) {
          for (size_t c = 0; c < kExpertFfn; ++c)
            wanted[2].push_back(down[(x * kExpertFfn + c) * kHidden + r]);
        }
      }
      EXPECT_EQ(Values(FindTensor(*file, R::kExpertGate, i)->weight), wanted[0]) << dtype;
      EXPECT_EQ(Values(FindTensor(*file, R::kExpertUp, i)->weight), wanted[1]) << dtype;
      EXPECT_EQ(Values(FindTensor(*file, R::kExpertDown, i)->weight), wanted[2]) << dtype;
    }
  }
}

TEST(ConvertGptOss, WhatIsMissingOrWrongIsNamed) {
  const auto broken = [](const std::function<void(TestTensors*)>& change) {
    TestTensors tensors = Tensors();
    change(&tensors);
    return ConvertIt(Config(), tensors);
  };
  const std::string a = Block(1) + "self_attn.", e = Block(1) + "mlp.experts.";
  const auto without = [&](const std::string& name) {
    return broken([&](TestTensors* t) { t->erase(name); });
  };
  ExpectError(without(a + "sinks"), Code::kBadModel, {"attention_sinks of layer 1 is missing"});
  ExpectError(without(a + "o_proj.bias"), Code::kBadModel, {"output_bias of layer 1 is missing"});
  ExpectError(without(e + "down_proj_bias"), Code::kBadModel, {"expert_down_bias of layer 1 is missing"});
  ExpectError(without(Block(1) + "mlp.router.bias"), Code::kBadModel, {"router_bias of layer 1 is missing"});
  ExpectError(broken([](TestTensors* t) {
                for (int i = 0; i < kTestLayers; ++i) t->erase(Block(i) + "mlp.experts.gate_up_proj_bias");
              }),
              Code::kBadModel, {"expert_gate_bias of layer 0 is missing, the configuration promises it"});
  ExpectError(without(e + "down_proj_scales"), Code::kBadModel, {"down_proj_blocks", "stands alone"});
  ExpectError(without(e + "gate_up_proj_blocks"), Code::kBadModel, {"gate_up_proj_scales", "stands alone"});
  ExpectError(broken([&](TestTensors* t) { (*t)[a + "sinks"] = MakeTensor("BF16", {kHeads + 1}, 3); }),
              Code::kBadModel, {"self_attn.sinks has shape [5]", "[4]"});
  ExpectError(broken([&](TestTensors* t) {
                (*t)[a + "sinks"].bytes[3] = '\x7f', (*t)[a + "sinks"].bytes[2] = '\x80';
              }),
              Code::kBadModel, {"self_attn.sinks", "row 0, column 1", "is not a finite number"});
  ExpectError(broken([&](TestTensors* t) {
                TestTensor& s = (*t)[e + "down_proj_scales"];
                s.shape = {kExperts, kHidden / 2, 2};
              }),
              Code::kBadModel, {"down_proj", "do not fit each other"});
  ExpectError(broken([&](TestTensors* t) { (*t)[e + "down_proj_scales"].bytes[0] = '\xff'; }),
              Code::kBadModel, {"down_proj_blocks", "row 0, column 0"});
  ExpectError(broken([&](TestTensors* t) {
                TestTensor& b = (*t)[e + "gate_up_proj_bias"];
                b = MakeTensor("BF16", {kExperts, kExpertFfn}, 3);
              }),
              Code::kBadModel, {"gate_up_proj_bias has shape [3, 32]", "[3, 64]"});
  // Sixteen bits: columns first.
  ExpectError(broken([&](TestTensors* t) {
                t->erase(e + "down_proj_blocks"), t->erase(e + "down_proj_scales");
                (*t)[e + "down_proj"] = MakeTensor("BF16", {kExperts, kExpertFfn + 1, kHidden}, 3);
              }),
              Code::kBadModel, {"experts.down_proj has shape [3, 33, ", "the configuration says [3, 32, "});
  // Blocks of bytes are for models that say so.
  nlohmann::json config = Config();
  config.erase("quantization_config");
  ExpectError(ConvertIt(config, Tensors()), Code::kUnsupported, {"dtype U8 is not supported"});
}

}  // namespace
}  // namespace kvc

// Hugging Face directories: architectures, shards, settings, special tokens; what is not supported is named.
#include "models/convert/hf_config.h"

#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using nlohmann::json;

Status ConvertSmall(const json& config, const TestTensors& tensors,
                    const std::map<std::string, std::string>& extra_files = {},
                    std::unique_ptr<ModelFile>* file = nullptr, ConvertReport* report = nullptr) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", config, tensors);
  for (const auto& [name, text] : extra_files) WriteAll(scratch / ("model/" + name), text);
  const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, report);
  EXPECT_EQ(std::filesystem::exists(scratch / "out.kvc"), status.ok());
  if (status.ok() && file != nullptr) *file = OpenModel(scratch / "out.kvc");
  return status;
}

Status ParseConfig(const json& config) {
  const std::string text = config.dump();
  return ParseHfConfig({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "config.json").status();
}

Result<HfConfig> Parsed(const json& config) {
  const std::string text = config.dump();
  auto result = ParseHfConfig({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "config.json");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result;
}

json With(const std::string& architecture, const json& more) {
  json config = SmallConfig(architecture);
  config.update(more);
  return config;
}

TEST(ConvertHf, EachTypeIsKept) {
  for (const auto& [dtype, type] : {std::pair("F32", WeightType::kF32), std::pair("F16", WeightType::kF16),
                                    std::pair("BF16", WeightType::kBf16)}) {
    std::unique_ptr<ModelFile> file;
    const TestTensors tensors = SmallTensors(dtype);
    ASSERT_TRUE(ConvertSmall(SmallConfig("LlamaForCausalLM"), tensors, {}, &file).ok());
    const TensorEntry* t = FindTensor(*file, TensorRole::kDown, 1);
    EXPECT_EQ(t->weight.type, type);
    const TestTensor& source = tensors.at("model.layers.1.mlp.down_proj.weight");
    EXPECT_EQ(std::memcmp(t->weight.data, source.bytes.data(), source.bytes.size()), 0);
    EXPECT_EQ(Values(FindTensor(*file, TensorRole::kFfnNorm, 0)->weight),
              Values(tensors.at("model.layers.0.post_attention_layernorm.weight")));
  }
}

TEST(ConvertHf, ShardsGiveTheSameFile) {
  ScratchDirectory scratch;
  const TestTensors tensors = SmallTensors("BF16");
  WriteHf(scratch / "a/model", SmallConfig("LlamaForCausalLM"), tensors);
  WriteHf(scratch / "b/model", SmallConfig("LlamaForCausalLM"), tensors);
  std::filesystem::remove(scratch / "b/model/model.safetensors");
  TestTensors shards[3];
  json map;
  int i = 0;
  for (const auto& [name, tensor] : tensors) {
    map[name] = "model-" + std::to_string(i % 3) + ".safetensors";
    shards[i++ % 3][name] = tensor;
  }
  for (int s = 0; s < 3; ++s)
    WriteAll(scratch / ("b/model/model-" + std::to_string(s) + ".safetensors"), SafetensorsFile(shards[s]));
  const std::string index = scratch / "b/model/model.safetensors.index.json";
  WriteAll(index, json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  ASSERT_TRUE(Convert(scratch / "a/model", scratch / "a.kvc", {}, nullptr).ok());
  const Status status = Convert(scratch / "b/model", scratch / "b.kvc", {}, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ReadAll(scratch / "a.kvc"), ReadAll(scratch / "b.kvc"));

  const auto with_map = [&](const json& changed) {
    WriteAll(index, json{{"weight_map", changed}}.dump());
    return Convert(scratch / "b/model", scratch / "c.kvc", {}, nullptr);
  };
  json wrong = map;
  wrong["model.norm.weight"] = "../../a/model/model.safetensors";
  ExpectError(with_map(wrong), Code::kBadModel, {"no name of a file in the same directory"});
  wrong = map;
  wrong["model.extra.weight"] = "model-0.safetensors";
  ExpectError(with_map(wrong), Code::kBadModel, {"model.extra.weight is not in model-0.safetensors"});
  wrong = map;
  wrong.erase("model.norm.weight");
  ExpectError(with_map(wrong), Code::kBadModel, {"model.norm.weight", "the index does not say so"});
  std::filesystem::remove(scratch / "b/model/model-2.safetensors");
  ExpectError(with_map(map), Code::kNotFound, {"model-2.safetensors"});
}

TEST(ConvertHf, Qwen2HasBiases) {
  TestTensors tensors = SmallTensors("BF16");
  ExpectError(ConvertSmall(SmallConfig("Qwen2ForCausalLM"), tensors), Code::kBadModel,
              {"query_bias", "missing"});
  for (int i = 0; i < kTestLayers; ++i) {
    const std::string b = "model.layers." + std::to_string(i) + ".self_attn.";
    tensors[b + "q_proj.bias"] = MakeTensor("BF16", {kHeads * kHeadDim}, 90);
    tensors[b + "k_proj.bias"] = MakeTensor("BF16", {kKvHeads * kHeadDim}, 91);
    tensors[b + "v_proj.bias"] = MakeTensor("BF16", {kKvHeads * kHeadDim}, 92);
  }
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertSmall(SmallConfig("Qwen2ForCausalLM"), tensors, {}, &file).ok());
  EXPECT_EQ(file->config().architecture, "qwen2");
  EXPECT_EQ(Values(FindTensor(*file, TensorRole::kKeyBias, 1)->weight),
            Values(tensors.at("model.layers.1.self_attn.k_proj.bias")));
  EXPECT_EQ(FindTensor(*file, TensorRole::kOutputBias, 1), nullptr);
  ExpectError(ConvertSmall(SmallConfig("LlamaForCausalLM"), tensors), Code::kUnsupported,
              {"_proj.bias", "no such bias"});
  tensors.erase("model.layers.1.self_attn.k_proj.bias");
  ExpectError(ConvertSmall(SmallConfig("Qwen2ForCausalLM"), tensors), Code::kBadModel,
              {"key_bias of layer 1", "missing"});
}

TEST(ConvertHf, Qwen3NormsQueriesAndKeys) {
  TestTensors tensors = SmallTensors("F32");
  ExpectError(ConvertSmall(SmallConfig("Qwen3ForCausalLM"), tensors), Code::kBadModel,
              {"query_norm", "missing"});
  for (int i = 0; i < kTestLayers; ++i) {
    const std::string b = "model.layers." + std::to_string(i) + ".self_attn.";
    tensors[b + "q_norm.weight"] = MakeTensor("F32", {kHeadDim}, 90);
    tensors[b + "k_norm.weight"] = MakeTensor("F32", {kHeadDim}, 91);
  }
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertSmall(With("Qwen3ForCausalLM", {{"head_dim", kHeadDim}}), tensors, {}, &file).ok());
  EXPECT_TRUE(file->config().qk_norm);
  EXPECT_EQ(Values(FindTensor(*file, TensorRole::kKeyNorm, 1)->weight),
            Values(tensors.at("model.layers.1.self_attn.k_norm.weight")));
  ExpectError(ConvertSmall(SmallConfig("LlamaForCausalLM"), tensors), Code::kUnsupported, {"k_norm.weight"});
}

// The rows of each group lie together: its query heads, its key, its value (modeling_internlm2.py: "b q (h gs
// d) -> b q h gs d").
TEST(ConvertHf, InternLm2IsUnpacked) {
  const TestTensors llama = SmallTensors("BF16");
  TestTensors packed;
  const std::map<std::string, std::string> names = {
      {"input_layernorm", "attention_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.o_proj", "attention.wo"},  {"mlp.gate_proj", "feed_forward.w1"},
      {"mlp.up_proj", "feed_forward.w3"},    {"mlp.down_proj", "feed_forward.w2"}};
  packed["model.tok_embeddings.weight"] = llama.at("model.embed_tokens.weight");
  packed["model.norm.weight"] = llama.at("model.norm.weight");
  const size_t head_bytes = kHeadDim * kHidden * 2, per_group = kHeads / kKvHeads;
  for (int i = 0; i < kTestLayers; ++i) {
    const std::string b = "model.layers." + std::to_string(i) + ".";
    for (const auto& [from, to] : names) packed[b + to + ".weight"] = llama.at(b + from + ".weight");
    std::string rows;
    for (size_t g = 0; g < kKvHeads; ++g) {
      rows += llama.at(b + "self_attn.q_proj.weight")
                  .bytes.substr(g * per_group * head_bytes, per_group * head_bytes);
      rows += llama.at(b + "self_attn.k_proj.weight").bytes.substr(g * head_bytes, head_bytes);
      rows += llama.at(b + "self_attn.v_proj.weight").bytes.substr(g * head_bytes, head_bytes);
    }
    packed[b + "attention.wqkv.weight"] = {"BF16", {(kHeads + 2 * kKvHeads) * kHeadDim, kHidden}, rows};
  }
  std::unique_ptr<ModelFile> a, b;
  ASSERT_TRUE(ConvertSmall(SmallConfig("LlamaForCausalLM"), llama, {}, &a).ok());
  const Status status = ConvertSmall(With("InternLM2ForCausalLM", {{"bias", false}}), packed, {}, &b);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(a->tensors().size(), b->tensors().size());
  for (const TensorEntry& t : a->tensors()) {
    EXPECT_EQ(Values(t.weight), Values(FindTensor(*b, t.role, t.layer)->weight))
        << TensorRoleName(t.role) << t.layer;
  }
  // Frequencies that change beyond the trained length only: up to it they are the plain ones.
  const auto dynamic =
      Parsed(With("InternLM2ForCausalLM", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}},
                                           {"max_position_embeddings", 4096}}));
  ASSERT_TRUE(dynamic.ok()) << dynamic.status().message();
  EXPECT_EQ(dynamic.value().model.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(dynamic.value().model.max_tokens, 4096);
  EXPECT_EQ(dynamic.value().warnings.size(), 1u);
}

TEST(ConvertHf, TensorsThatDoNotFit) {
  const json config = SmallConfig("LlamaForCausalLM");
  TestTensors tensors = SmallTensors("BF16");
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = MakeTensor("F32", {4}, 1);
  EXPECT_TRUE(ConvertSmall(config, tensors).ok());
  tensors["model.layers.0.mlp.experts.0.w1.weight"] = MakeTensor("F32", {4}, 1);
  ExpectError(ConvertSmall(config, tensors), Code::kUnsupported,
              {"model.layers.0.mlp.experts.0.w1.weight", "no place in a llama model"});
  tensors = SmallTensors("BF16");
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  ExpectError(ConvertSmall(config, tensors), Code::kBadModel, {"up of layer 1", "missing"});
  tensors = SmallTensors("BF16");
  tensors["model.layers.1.mlp.up_proj.weight"] = MakeTensor("BF16", {kHidden, kFfn}, 1);
  ExpectError(ConvertSmall(config, tensors), Code::kBadModel,
              {"model.layers.1.mlp.up_proj.weight", "[32, 96]", "[96, 32]"});
  tensors = SmallTensors("BF16");
  tensors["model.layers.2.mlp.up_proj.weight"] = MakeTensor("BF16", {kFfn, kHidden}, 1);
  ExpectError(ConvertSmall(config, tensors), Code::kBadModel, {"only 2 layers"});
  tensors = SmallTensors("BF16");
  tensors["lm_head.weight"] = MakeTensor("BF16", {kVocab, kHidden}, 1);
  ConvertReport report;
  EXPECT_TRUE(ConvertSmall(config, tensors, {}, nullptr, &report).ok());
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_NE(report.warnings[0].find("lm_head.weight is not used"), std::string::npos);
  std::unique_ptr<ModelFile> file;
  EXPECT_TRUE(
      ConvertSmall(With("LlamaForCausalLM", {{"tie_word_embeddings", false}}), tensors, {}, &file).ok());
  EXPECT_EQ(Values(FindTensor(*file, TensorRole::kOutputHead, -1)->weight),
            Values(tensors.at("lm_head.weight")));
}

TEST(ConvertHf, ArchitecturesAndSettingsThatAreNotSupportedAreNamed) {
  const std::string llama = "LlamaForCausalLM";
  ExpectError(ParseConfig(SmallConfig("BloomForCausalLM")), Code::kUnsupported,
              {"config.json",
               "architecture BloomForCausalLM is not supported; supported: LlamaForCausalLM, "
               "MistralForCausalLM"});
  ExpectError(
      ParseConfig(SmallConfig("Qwen2MoeForCausalLM")), Code::kUnsupported,
      {"Qwen2MoeForCausalLM is not supported: its mixture of experts is not supported; try Qwen3Moe"});
  ExpectError(ParseConfig(SmallConfig("Qwen3NextForCausalLM")), Code::kUnsupported, {"linear attention"});
  ExpectError(ParseConfig(With(llama, {{"hidden_act", "gelu"}})), Code::kUnsupported, {"hidden_act gelu"});
  ExpectError(ParseConfig(With(llama, {{"num_local_experts", 8}})), Code::kUnsupported,
              {"num_local_experts = 8"});
  ExpectError(ParseConfig(With(llama, {{"partial_rotary_factor", 0.5}})), Code::kUnsupported,
              {"partial_rotary_factor = 0.5"});
  ExpectError(ParseConfig(With(llama, {{"mlp_bias", true}})), Code::kUnsupported, {"mlp_bias = true"});
  ExpectError(ParseConfig(With(llama, {{"quantization_config", {{"quant_method", "bitsandbytes"}}}})),
              Code::kUnsupported, {"quantization_config", "bitsandbytes quantised are not supported"});
  ExpectError(ParseConfig(With(llama, {{"head_dim", 12}})), Code::kUnsupported, {"head size 12"});
  ExpectError(ParseConfig(With(llama, {{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}}}})),
              Code::kUnsupported, {"ntk", "default, linear, llama3, yarn, longrope"});
  ExpectError(
      ParseConfig(With(llama, {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}})),
      Code::kUnsupported, {"full_attention"});
  ExpectError(ParseConfig(With(llama, {{"layer_types", {"full_attention", "linear_attention"}}})),
              Code::kUnsupported, {"linear_attention"});
  ExpectError(
      ParseConfig(With("Qwen3ForCausalLM", {{"layer_types", {"full_attention", "sliding_attention"}}})),
      Code::kBadModel, {"sliding_window is not set"});
  ExpectError(ParseConfig(With("Qwen3ForCausalLM", {{"layer_types", {"full_attention"}}})), Code::kBadModel,
              {"layer_types", "2 layers"});
  EXPECT_EQ(Parsed(With(llama, {{"mlp_bias", false}, {"frobnicate", 3}, {"num_experts", 0}}))
                .value()
                .warnings.size(),
            1u);
}

TEST(ConvertHf, DamagedConfigurations) {
  const std::string llama = "LlamaForCausalLM";
  for (const auto& [key, value] : std::map<std::string, json>{{"hidden_size", -1},
                                                              {"hidden_size", "big"},
                                                              {"num_hidden_layers", 100000},
                                                              {"vocab_size", 1e30},
                                                              {"num_key_value_heads", 3},
                                                              {"num_attention_heads", 0},
                                                              {"rms_norm_eps", -1.0},
                                                              {"rope_theta", 0},
                                                              {"bos_token_id", 260},
                                                              {"eos_token_id", {1, -2}},
                                                              {"architectures", json::array()}}) {
    ExpectError(ParseConfig(With(llama, {{key, value}})), Code::kBadModel, {"config.json"});
  }
  json config = SmallConfig(llama);
  config.erase("hidden_size");
  ExpectError(ParseConfig(config), Code::kBadModel, {"hidden_size is missing"});
  ExpectError(ParseConfig(json::array({1})), Code::kBadModel, {"object"});
}

TEST(ConvertHf, RopeAndWindow) {
  const std::string llama = "LlamaForCausalLM";
  const json scaled = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  ModelConfig c =
      Parsed(With(llama, {{"rope_scaling", scaled}, {"max_position_embeddings", 131072}})).value().model;
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(c.rope.factor, 8);
  EXPECT_EQ(c.rope.original_max_tokens, 8192);
  EXPECT_EQ(c.max_tokens, 131072);
  c = Parsed(With("Qwen2ForCausalLM",
                  {{"max_position_embeddings", 32768},
                   {"rope_scaling",
                    {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}}))
          .value()
          .model;
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(c.rope.attention_factor, 0);
  EXPECT_EQ(c.max_tokens, 131072);
  c = Parsed(
          With(llama, {{"rope_theta", nullptr},
                       {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e6}}}}))
          .value()
          .model;
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.factor, 4);
  EXPECT_EQ(Parsed(With("MistralForCausalLM", {{"sliding_window", 64}})).value().model.sliding_window, 64);
  EXPECT_EQ(Parsed(With("MistralForCausalLM", {{"sliding_window", nullptr}})).value().model.sliding_window,
            0);
  EXPECT_EQ(Parsed(With("Qwen2ForCausalLM",
                        {{"use_sliding_window", false}, {"sliding_window", 64}, {"max_window_layers", 2}}))
                .value()
                .model.sliding_window,
            0);
  EXPECT_EQ(Parsed(With("Qwen2ForCausalLM",
                        {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 0}}))
                .value()
                .model.sliding_window,
            64);
  EXPECT_EQ(Parsed(With("Qwen2ForCausalLM", {{"use_sliding_window", true}, {"sliding_window", 64}}))
                .value()
                .model.sliding_window,
            0);
}

std::vector<int32_t> Windows(const ModelConfig& c) {
  std::vector<int32_t> windows;
  for (const LayerConfig& layer : c.layers) windows.push_back(layer.attention_window);
  return windows;
}

// What the classes of transformers have where config.json does not say (configuration_*.py); null is none.
TEST(ConvertHf, WhatIsAbsentIsWhatTheClassHas) {
  const auto read = [](const std::string& architecture, const char* absent, const json& more) {
    json config = With(architecture, more);
    config["num_hidden_layers"] = 4;
    config.erase(absent);
    return Parsed(config).value().model;
  };
  const json experts = {{"num_experts", 4}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}};
  const json none = json::object(), gelu = {{"hidden_activation", "gelu_pytorch_tanh"}};
  struct Default {
    const char* architecture;
    double eps;
    int32_t window;
    json more;
  };
  for (const auto& [name, eps, window, more] : {Default{"LlamaForCausalLM", 1e-6, 0, none},
                                                Default{"MistralForCausalLM", 1e-6, 4096, none},
                                                Default{"MinistralForCausalLM", 1e-6, 4096, none},
                                                Default{"MixtralForCausalLM", 1e-5, 0, experts},
                                                Default{"Qwen2ForCausalLM", 1e-6, 0, none},
                                                Default{"Qwen3ForCausalLM", 1e-6, 0, none},
                                                Default{"Qwen3MoeForCausalLM", 1e-6, 0, experts},
                                                Default{"GemmaForCausalLM", 1e-6, 0, gelu},
                                                Default{"Gemma2ForCausalLM", 1e-6, 4096, gelu},
                                                Default{"Gemma3ForCausalLM", 1e-6, 4096, gelu},
                                                Default{"Phi3ForCausalLM", 1e-5, 0, none},
                                                Default{"SmolLM3ForCausalLM", 1e-6, 0, none},
                                                Default{"GraniteForCausalLM", 1e-6, 0, none},
                                                Default{"Olmo2ForCausalLM", 1e-5, 0, none},
                                                Default{"Olmo3ForCausalLM", 1e-5, 4096, none},
                                                Default{"OlmoeForCausalLM", 1e-5, 0, experts},
                                                Default{"GlmForCausalLM", 1.5625e-7, 0, none},
                                                Default{"Glm4ForCausalLM", 1.5625e-7, 0, none},
                                                Default{"Exaone4ForCausalLM", 1e-5, 4096, none},
                                                Default{"GptOssForCausalLM", 1e-5, 128, experts}}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(read(name, "rms_norm_eps", more).norm_eps, eps);
    ModelConfig c = read(name, "sliding_window", more);
    int32_t widest = c.sliding_window;
    for (const int32_t one : Windows(c)) widest = std::max(widest, one);
    EXPECT_EQ(widest, window);
    json off = more;
    off["sliding_window"] = nullptr;
    c = read(name, "", off);
    EXPECT_EQ(c.sliding_window, 0);
    for (const int32_t one : Windows(c)) EXPECT_EQ(one, 0);
  }
  for (const char* name : {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}) {
    json on = experts;
    if (std::string(name) != "Qwen3MoeForCausalLM") on = none;
    on["use_sliding_window"] = true, on["max_window_layers"] = 0;
    EXPECT_EQ(read(name, "sliding_window", on).sliding_window, 4096) << name;
  }
  // InternLM 2's class is not one of transformers: it comes with each checkpoint.
  json config = SmallConfig("InternLM2ForCausalLM");
  config.erase("rms_norm_eps");
  ExpectError(ParseConfig(config), Code::kBadModel, {"rms_norm_eps is missing"});
  // EXAONE 4 with windows: layers that see everything do not rotate.
  const ModelConfig c = read("Exaone4ForCausalLM", "sliding_window", none);
  for (size_t i = 0; i < c.layers.size(); ++i) EXPECT_EQ(c.layers[i].rope, i == 3 ? -1 : 0);
}

TEST(ConvertHf, LayersThatDiffer) {
  ModelConfig c =
      Parsed(With("Qwen2ForCausalLM",
                  {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}}))
          .value()
          .model;
  EXPECT_EQ(Windows(c), std::vector<int32_t>({0, 64}));
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_TRUE(c.layers_differ());
  EXPECT_FALSE(c.fits_version_1());
  c = Parsed(With("Qwen3ForCausalLM",
                  {{"sliding_window", 64}, {"layer_types", {"full_attention", "sliding_attention"}}}))
          .value()
          .model;
  EXPECT_EQ(Windows(c), std::vector<int32_t>({0, 64}));
  c = Parsed(With("SmolLM3ForCausalLM", {{"no_rope_layers", {0, 1}}})).value().model;
  ASSERT_EQ(c.layers.size(), 2u);
  EXPECT_EQ(c.layers[0].rope, -1);
  EXPECT_EQ(c.layers[1].rope, 0);
  ExpectError(ParseConfig(With("SmolLM3ForCausalLM", {{"no_rope_layers", {0, 2}}})), Code::kBadModel,
              {"no_rope_layers"});
  ExpectError(ParseConfig(With("SmolLM3ForCausalLM", {{"no_rope_layers", {0}}})), Code::kBadModel,
              {"no_rope_layers"});
}

TEST(ConvertHf, LongRopeTakesTheSetForTheContext) {
  const json rope = {{"type", "longrope"},
                     {"short_factor", json::array({1, 1, 1, 1})},
                     {"long_factor", json::array({1, 2, 3, 4})}};
  const json config = With("Phi3ForCausalLM", {{"hidden_size", 32},
                                               {"num_attention_heads", 4},
                                               {"head_dim", nullptr},
                                               {"max_position_embeddings", 4096},
                                               {"original_max_position_embeddings", 1024},
                                               {"rope_scaling", rope}});
  const std::string text = config.dump();
  const Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const auto parsed = [&](int32_t context) {
    return ParseHfConfig(bytes, "config.json", {context, {}}).value();
  };
  EXPECT_EQ(parsed(0).model.rope.divisors, std::vector<float>({1, 2, 3, 4}));
  EXPECT_EQ(parsed(0).model.max_tokens, 4096);
  EXPECT_EQ(parsed(0).warnings.size(), 1u);
  EXPECT_NEAR(parsed(0).model.rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(1024.0)), 1e-12);
  EXPECT_EQ(parsed(1025).model.rope.divisors, std::vector<float>({1, 2, 3, 4}));
  EXPECT_EQ(parsed(1025).model.max_tokens, 1025);
  EXPECT_EQ(parsed(1024).model.rope.divisors, std::vector<float>({1, 1, 1, 1}));
  EXPECT_EQ(parsed(1024).model.max_tokens, 1024);
  for (const json& bad : {json::array({1, 2, 3}), json::array({1, 2, 3, 0}), json("all")}) {
    json damaged = config;
    damaged["rope_scaling"]["long_factor"] = bad;
    ExpectError(ParseConfig(damaged), Code::kBadModel, {"long_factor"});
  }
}

TEST(ConvertHf, SpecialTokensAndTurns) {
  const json config = SmallConfig("LlamaForCausalLM");
  const TestTensors tensors = SmallTensors("BF16");
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertSmall(config, tensors, {}, &file).ok());
  EXPECT_EQ(file->tokenizer_spec().bos, 256);
  EXPECT_FALSE(file->tokenizer_spec().add_bos);  // tokenizer.json puts nothing in front
  EXPECT_TRUE(file->turn_format().user_prefix.empty());
  const json tokenizer = {
      {"add_bos_token", false},
      {"bos_token", nullptr},
      {"eos_token", {{"content", "<|im_end|>"}}},
      {"chat_template",
       "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"}};
  ASSERT_TRUE(ConvertSmall(config, tensors,
                           {{"tokenizer_config.json", tokenizer.dump()},
                            {"generation_config.json", R"({"eos_token_id": [257, 258]})"}},
                           &file)
                  .ok());
  EXPECT_FALSE(file->tokenizer_spec().add_bos);
  EXPECT_EQ(file->tokenizer_spec().eos, 259);
  std::vector<int32_t> stops = file->tokenizer_spec().stop_tokens;
  std::sort(stops.begin(), stops.end());
  EXPECT_EQ(stops, std::vector<int32_t>({257, 258, 259}));
  EXPECT_EQ(file->turn_format().user_prefix, "<|im_start|>user\n");
  EXPECT_EQ(file->turn_format().assistant_suffix, "<|im_end|>\n");
  ExpectError(ConvertSmall(config, tensors, {{"generation_config.json", R"({"eos_token_id": [9999]})"}}),
              Code::kBadModel, {"generation_config.json", "9999"});
  ExpectError(ConvertSmall(config, tensors, {{"tokenizer_config.json", R"({"add_eos_token": true})"}}),
              Code::kUnsupported, {"add_eos_token"});
}

// tokenizer.json is whole by itself: what its post-processor puts in front of a text, nothing or a token that
// others do not call BOS, does the package tokenizers put there.
TEST(ConvertHf, ThePostProcessorSaysWhatATextBeginsWith) {
  const json config = SmallConfig("LlamaForCausalLM");  // bos_token_id 256, <|bos|>
  const auto begins = [&](const char* first, std::map<std::string, std::string> files) {
    json tokenizer = json::parse(SmallTokenizer());
    if (first != nullptr) {
      tokenizer["post_processor"] = {
          {"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", first}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}}};
    }
    files["tokenizer.json"] = tokenizer.dump();
    std::unique_ptr<ModelFile> file;
    const Status status = ConvertSmall(config, SmallTensors("BF16"), files, &file);
    EXPECT_TRUE(status.ok()) << status.message();
    const TokenizerSpec& spec = file->tokenizer_spec();
    EXPECT_EQ(spec.bos, 256);
    if (!spec.add_bos) return std::vector<int32_t>();
    return spec.begin_tokens.empty() ? std::vector<int32_t>{spec.bos} : spec.begin_tokens;
  };
  using Ids = std::vector<int32_t>;
  const std::map<std::string, std::string> none,
      named = {{"tokenizer_config.json", R"({"bos_token": "<|bos|>"})"}},
      off = {{"tokenizer_config.json", R"({"add_bos_token": false})"}},
      on = {{"tokenizer_config.json", R"({"add_bos_token": true})"}};
  for (const auto& files : {none, named}) {
    EXPECT_EQ(begins(nullptr, files), Ids());
    EXPECT_EQ(begins("<|bos|>", files), Ids({256}));
    EXPECT_EQ(begins("<|im_start|>", files), Ids({258}));
  }
  EXPECT_EQ(begins("<|im_start|>", off), Ids());
  EXPECT_EQ(begins(nullptr, on), Ids({256}));
}

// One that marks turns with `mark`, and begins with BOS.
std::string PlainTemplate(const std::string& mark) {
  return "{{ bos_token }}{% for m in messages %}" + mark +
         "{{ m.role + ':' + m.content + eos_token }}{% endfor %}";
}

TEST(ConvertHf, TheChatTemplateIsFoundWhereTransformersFindsIt) {
  const json config = SmallConfig("LlamaForCausalLM");
  const TestTensors tensors = SmallTensors("BF16");
  const auto prefix = [&](const std::map<std::string, std::string>& files) {
    std::unique_ptr<ModelFile> file;
    EXPECT_TRUE(ConvertSmall(config, tensors, files, &file).ok());
    return file->turn_format().first_user_prefix.value_or("none");
  };
  const std::string own = json{{"chat_template", PlainTemplate("1")}}.dump();
  EXPECT_EQ(prefix({{"tokenizer_config.json", own}}), "<|bos|>1user:");
  EXPECT_EQ(prefix({{"tokenizer_config.json", own}, {"chat_template.jinja", PlainTemplate("2")}}),
            "<|bos|>2user:");
  EXPECT_EQ(prefix({{"tokenizer_config.json", own},
                    {"chat_template.json", json{{"chat_template", PlainTemplate("3")}}.dump()}}),
            "<|bos|>3user:");
  const json several = {{{"name", "tool_use"}, {"template", PlainTemplate("4")}},
                        {{"name", "default"}, {"template", PlainTemplate("5")}}};
  EXPECT_EQ(prefix({{"tokenizer_config.json", json{{"chat_template", several}}.dump()}}), "<|bos|>5user:");
  // A token that is said to be none is none.
  EXPECT_EQ(prefix({{"tokenizer_config.json",
                     json{{"chat_template", PlainTemplate("6")}, {"bos_token", nullptr}}.dump()}}),
            "none");
}

TEST(ConvertHf, TheEndOfAnAssistantsTurnEndsAnAnswer) {
  const json config = SmallConfig("LlamaForCausalLM");
  const std::string text = "{% for m in messages %}{{ m.role + ':' + m.content }}<|im_end|>\n{% endfor %}";
  std::unique_ptr<ModelFile> file;
  ASSERT_TRUE(ConvertSmall(config, SmallTensors("BF16"), {{"chat_template.jinja", text}}, &file).ok());
  EXPECT_EQ(file->turn_format().assistant_suffix, "<|im_end|>\n");
  const std::vector<int32_t> stops = file->tokenizer_spec().stop_tokens;
  EXPECT_EQ(std::count(stops.begin(), stops.end(), 259), 1);
}

TEST(ConvertHf, AChatTemplateThatCannotBeKeptIsANote) {
  const json config = SmallConfig("LlamaForCausalLM");
  for (const char* text : {"{% include 'x' %}", "{{ unclosed",
                           "{% for m in messages %}{{ m.content }}{{ loop.index }}{% endfor %}"}) {
    std::unique_ptr<ModelFile> file;
    ConvertReport report;
    ASSERT_TRUE(ConvertSmall(config, SmallTensors("BF16"),
                             {{"tokenizer_config.json", json{{"chat_template", text}}.dump()}}, &file,
                             &report)
                    .ok());
    EXPECT_TRUE(file->turn_format().empty());
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_NE(report.warnings[0].find("the turn format stays empty"), std::string::npos)
        << report.warnings[0];
  }
}

// A special token of sibling models, for which this one has no row (Gemma 3's image token): no token of it.
TEST(ConvertHf, SpecialTokensBehindTheVocabularyAreLeftOut) {
  const json config = SmallConfig("LlamaForCausalLM");
  const TestTensors tensors = SmallTensors("BF16");
  const auto tokenizer = [&](bool special) {
    json text = json::parse(SmallTokenizer());
    json token = text["added_tokens"].back();
    token["id"] = kVocab, token["content"] = "<image_soft_token>", token["special"] = special;
    text["added_tokens"].push_back(token);
    return std::map<std::string, std::string>{{"tokenizer.json", text.dump()}};
  };
  std::unique_ptr<ModelFile> plain, file;
  ConvertReport report;
  ASSERT_TRUE(ConvertSmall(config, tensors, {}, &plain).ok());
  const Status status = ConvertSmall(config, tensors, tokenizer(true), &file, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(file->tokenizer_spec().pieces, plain->tokenizer_spec().pieces);
  EXPECT_EQ(file->tokenizer_spec().piece_kinds, plain->tokenizer_spec().piece_kinds);
  EXPECT_EQ(
      std::count_if(report.warnings.begin(), report.warnings.end(),
                    [](const std::string& w) { return w.find("<image_soft_token>") != std::string::npos; }),
      1);
  ExpectError(ConvertSmall(config, tensors, tokenizer(false)), Code::kBadModel, {"261 pieces", "260"});
}

}  // namespace
}  // namespace kvc

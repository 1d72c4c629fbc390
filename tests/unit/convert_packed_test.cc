// Weights that GPTQ and AWQ packed: every value is what their definitions say, kept to the bit where groups
// are neighbours; and packed layers that do not fit together.
#include <functional>

#include "lib/base/hash.h"
#include "models/convert/packed_linear.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using R = TensorRole;

// A quantised layer before it is packed: plain arrays.
struct Plain {
  int rows, cols, group;
  std::vector<int> codes, zeros;  // [rows, cols], [rows, cols / group]
  std::vector<uint16_t> scales;   // f16 [rows, cols / group]
  std::vector<int> order;         // group of each column
  int GroupOf(int c) const { return order[static_cast<size_t>(c)]; }
  int Index(int r, int g) const { return r * (cols / group) + g; }
  float Value(int r, int c) const {
    const auto at = static_cast<size_t>(Index(r, GroupOf(c)));
    return F16ToFloat(scales[at]) * static_cast<float>(codes[static_cast<size_t>(r * cols + c)] - zeros[at]);
  }
};

enum class Zeros { kEight, kAny };

Plain Draw(int rows, int cols, int group, Zeros zeros, uint32_t seed) {
  Plain p{rows, cols, group, {}, {}, {}, {}};
  uint32_t state = seed * 2654435761u + 1;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int i = 0; i < rows * cols; ++i) p.codes.push_back(static_cast<int>(next() % 16));
  for (int i = 0; i < rows * (cols / group); ++i) {
    p.zeros.push_back(zeros == Zeros::kEight ? 8 : static_cast<int>(next() % 16));
    p.scales.push_back(FloatToF16(0.001f + static_cast<float>(next() % 1000) * 1e-5f));
  }
  for (int c = 0; c < cols; ++c) p.order.push_back(c / group);
  return p;
}

std::string Words(const std::vector<uint32_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * 4};
}

using Pack = void (*)(const std::string& name, const Plain& p, TestTensors* t);

void PutScales(const std::string& name, const Plain& p, TestTensors* t) {
  std::string bytes;
  for (int g = 0; g < p.cols / p.group; ++g) {
    for (int r = 0; r < p.rows; ++r) {
      const uint16_t bits = p.scales[static_cast<size_t>(p.Index(r, g))];
      bytes.append(reinterpret_cast<const char*>(&bits), 2);
    }
  }
  (*t)[name + ".scales"] = {"F16", {p.cols / p.group, p.rows}, bytes};
}

// GPTQ: eight columns of a row in a word, the first lowest; zeros of eight rows, one less than they are in
// the first format (v1), modulo 16.
void PackGptq(const std::string& name, const Plain& p, int less, TestTensors* t) {
  const int n_groups = p.cols / p.group;
  std::vector<uint32_t> codes(static_cast<size_t>(p.cols / 8 * p.rows)),
      zeros(static_cast<size_t>(n_groups * p.rows / 8)), order;
  for (int r = 0; r < p.rows; ++r) {
    for (int c = 0; c < p.cols; ++c)
      codes[static_cast<size_t>(c / 8 * p.rows + r)] |=
          static_cast<uint32_t>(p.codes[static_cast<size_t>(r * p.cols + c)]) << (c % 8 * 4);
    for (int g = 0; g < n_groups; ++g)
      zeros[static_cast<size_t>(g * (p.rows / 8) + r / 8)] |=
          static_cast<uint32_t>((p.zeros[static_cast<size_t>(p.Index(r, g))] - less) & 15) << (r % 8 * 4);
  }
  for (int c = 0; c < p.cols; ++c) order.push_back(static_cast<uint32_t>(p.GroupOf(c)));
  (*t)[name + ".qweight"] = {"I32", {p.cols / 8, p.rows}, Words(codes)};
  (*t)[name + ".qzeros"] = {"I32", {n_groups, p.rows / 8}, Words(zeros)};
  (*t)[name + ".g_idx"] = {"I32", {p.cols}, Words(order)};
  PutScales(name, p, t);
}
void PackGptq1(const std::string& name, const Plain& p, TestTensors* t) { PackGptq(name, p, 1, t); }
void PackGptq2(const std::string& name, const Plain& p, TestTensors* t) { PackGptq(name, p, 0, t); }

// AWQ: eight rows of a column in a word, in the order 0, 2, 4, 6, 1, 3, 5, 7; zeros likewise.
void PackAwq(const std::string& name, const Plain& p, TestTensors* t) {
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const int n_groups = p.cols / p.group, words = p.rows / 8;
  std::vector<uint32_t> codes(static_cast<size_t>(p.cols * words)),
      zeros(static_cast<size_t>(n_groups * words));
  for (int w = 0; w < words; ++w) {
    for (int i = 0; i < 8; ++i) {
      const int r = 8 * w + kOrder[i];
      for (int c = 0; c < p.cols; ++c)
        codes[static_cast<size_t>(c * words + w)] |=
            static_cast<uint32_t>(p.codes[static_cast<size_t>(r * p.cols + c)]) << (4 * i);
      for (int g = 0; g < n_groups; ++g)
        zeros[static_cast<size_t>(g * words + w)] |=
            static_cast<uint32_t>(p.zeros[static_cast<size_t>(p.Index(r, g))]) << (4 * i);
    }
  }
  (*t)[name + ".qweight"] = {"I32", {p.cols, words}, Words(codes)};
  (*t)[name + ".qzeros"] = {"I32", {n_groups, words}, Words(zeros)};
  PutScales(name, p, t);
}

struct Linear {
  const char* name;
  R role;
  int rows, cols;
};
constexpr Linear kLinears[] = {
    {"self_attn.q_proj", R::kQuery, 32, 32}, {"self_attn.k_proj", R::kKey, 16, 32},
    {"self_attn.v_proj", R::kValue, 16, 32}, {"self_attn.o_proj", R::kOutput, 32, 32},
    {"mlp.gate_proj", R::kGate, 96, 32},     {"mlp.up_proj", R::kUp, 96, 32},
    {"mlp.down_proj", R::kDown, 32, 96}};

std::string NameOf(int layer, const Linear& l) {
  return "model.layers." + std::to_string(layer) + "." + l.name;
}

// A small Llama whose linear layers are packed.
struct Packed {
  TestTensors tensors = SmallTensors("F16");
  std::map<std::pair<int, R>, Plain> layers;

  Packed(Zeros zeros, Pack pack, const std::function<void(Plain*)>& change = {}) {
    uint32_t seed = 1;
    for (int i = 0; i < kTestLayers; ++i) {
      for (const Linear& l : kLinears) {
        Plain p = Draw(l.rows, l.cols, 32, zeros, ++seed);
        if (change) change(&p);
        tensors.erase(NameOf(i, l) + ".weight");
        pack(NameOf(i, l), p, &tensors);
        layers.emplace(std::pair(i, l.role), std::move(p));
      }
    }
  }
};

nlohmann::json With(const nlohmann::json& scheme) {
  nlohmann::json config = SmallConfig("LlamaForCausalLM");
  config["quantization_config"] = scheme;
  return config;
}

nlohmann::json Gptq(const std::string& format = "gptq") {
  return {{"quant_method", "gptq"}, {"bits", 4},   {"group_size", 32},
          {"desc_act", false},      {"sym", true}, {"checkpoint_format", format},
          {"damp_percent", 0.1}};
}
nlohmann::json Awq() {
  return {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"zero_point", true}, {"version", "gemm"}};
}

Status ConvertPacked(const nlohmann::json& config, const TestTensors& tensors,
                     ConvertReport* report = nullptr, std::unique_ptr<ModelFile>* file = nullptr,
                     const ConvertOptions& options = {}) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", config, tensors);
  const Status status = Convert(scratch / "model", scratch / "out.kvc", options, report);
  EXPECT_EQ(scratch.CountFiles(), status.ok() ? 2u : 1u);
  if (status.ok() && file != nullptr) *file = OpenModel(scratch / "out.kvc");
  return status;
}

// Largest difference of a stored value from its definition, over all layers.
double Farthest(const Packed& packed, const ModelFile& file, WeightType type, int32_t group) {
  double worst = 0;
  for (const auto& [key, plain] : packed.layers) {
    const TensorEntry* t = FindTensor(file, key.second, key.first);
    EXPECT_NE(t, nullptr);
    EXPECT_EQ(t->weight.type, type) << TensorRoleName(key.second);
    EXPECT_EQ(t->weight.group, group);
    const std::vector<float> values = Values(t->weight);
    for (int r = 0; r < plain.rows; ++r) {
      for (int c = 0; c < plain.cols; ++c)
        worst = std::max(worst, std::fabs(double{values[static_cast<size_t>(r * plain.cols + c)]} -
                                          double{plain.Value(r, c)}));
    }
  }
  return worst;
}

void ExpectExact(const nlohmann::json& scheme, Zeros zeros, Pack pack, WeightType type) {
  const Packed packed(zeros, pack);
  ConvertReport report;
  std::unique_ptr<ModelFile> file;
  const Status status = ConvertPacked(With(scheme), packed.tensors, &report, &file);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(Farthest(packed, *file, type, 32), 0);
  for (const ConvertedType& t : report.types) EXPECT_TRUE(t.exact()) << t.source;
}

TEST(ConvertPacked, ZerosOfEightFitFourBits) {
  ExpectExact(Gptq(), Zeros::kEight, PackGptq1, WeightType::kInt4);
  ExpectExact(Gptq("gptq_v2"), Zeros::kEight, PackGptq2, WeightType::kInt4);
  ExpectExact(Awq(), Zeros::kEight, PackAwq, WeightType::kInt4);
}

TEST(ConvertPacked, OtherZerosTakeEightBitsAndLoseNothing) {
  ExpectExact(Gptq(), Zeros::kAny, PackGptq1, WeightType::kInt8);
  ExpectExact(Gptq("gptq_v2"), Zeros::kAny, PackGptq2, WeightType::kInt8);
  ExpectExact(Awq(), Zeros::kAny, PackAwq, WeightType::kInt8);
}

TEST(ConvertPacked, WiderGroups) {
  for (const int group : {64, 128, 256, -1}) {
    ScratchDirectory scratch;
    nlohmann::json config = With(Awq());
    config["quantization_config"]["group_size"] = group;
    config["hidden_size"] = 256, config["intermediate_size"] = 256, config["head_dim"] = 8;
    config["num_hidden_layers"] = 1;
    Packed packed(Zeros::kAny, PackAwq);
    packed.layers.clear();
    TestTensors tensors;
    tensors["model.embed_tokens.weight"] = MakeTensor("F16", {kVocab, 256}, 1);
    for (const char* norm :
         {"model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"})
      tensors[std::string(norm) + ".weight"] = MakeTensor("F16", {256}, 2);
    for (const Linear& l : kLinears) {
      const int rows = l.role == R::kQuery                        ? 32
                       : l.role == R::kKey || l.role == R::kValue ? 16
                                                                  : 256,
                cols = l.role == R::kOutput ? 32 : 256;
      if (cols == 32) {  // a layer that was left as it was
        tensors[NameOf(0, l) + ".weight"] = MakeTensor("F16", {rows, cols}, 3);
        continue;
      }
      const Plain p = Draw(rows, cols, group < 0 ? cols : group, Zeros::kAny, 9);
      PackAwq(NameOf(0, l), p, &tensors);
      packed.layers.emplace(std::pair(0, l.role), p);
    }
    std::unique_ptr<ModelFile> file;
    const Status status = ConvertPacked(config, tensors, nullptr, &file);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(Farthest(packed, *file, WeightType::kInt8, group == 64 ? 64 : 128), 0) << group;
  }
}

// Checkpoints that AutoGPTQ and AutoAWQ packed (tests/vectors/make_packed_vectors.py): every matrix is to the
// bit what they unpack. Their logits are those of transformers (reference_logits_test).
TEST(ConvertPacked, WhatIsPackedElsewhereIsUnpackedAsThere) {
  for (const std::string name : {"llama_gptq", "llama_gptq_act_order", "llama_awq"}) {
    const std::string folder = std::string(KVC_TEST_DATA) + "/reference/hf_" + name;
    const nlohmann::json hashes = nlohmann::json::parse(ReadAll(folder + "/logits.json"))["weights"];
    ASSERT_EQ(hashes.size(), 2 * std::size(kLinears));
    for (const WeightChoice weights : {WeightChoice::kF32, WeightChoice::kKeep}) {
      // Groups that are not neighbours have no form of ours, and are coded anew.
      if (weights == WeightChoice::kKeep && name == "llama_gptq_act_order") continue;
      ScratchDirectory scratch;
      ConvertOptions options;
      options.weights = weights;
      const Status status = Convert(folder, scratch / "out.kvc", options, nullptr);
      ASSERT_TRUE(status.ok()) << name << ": " << status.message();
      const auto file = OpenModel(scratch / "out.kvc");
      for (int layer = 0; layer < 2; ++layer) {
        for (const Linear& l : kLinears) {
          const std::vector<float> values = Values(FindTensor(*file, l.role, layer)->weight);
          EXPECT_EQ(
              Format("%016llx", static_cast<unsigned long long>(Hash64(values.data(), values.size() * 4))),
              hashes[NameOf(layer, l) + ".weight"].get<std::string>())
              << name << ": " << NameOf(layer, l);
        }
      }
    }
  }
}

// Columns whose groups are mixed have no form of ours: they are coded anew, and the report says what it cost.
TEST(ConvertPacked, MixedGroupsAreCodedAnew) {
  const auto mix = [](Plain* p) {
    for (int c = 0; c < p->cols; ++c)
      p->order[static_cast<size_t>(c)] = c * 7 % p->cols % (p->cols / p->group);
  };
  const Packed packed(Zeros::kAny, PackGptq1, mix);
  ConvertReport report;
  std::unique_ptr<ModelFile> file;
  // Layers of one group have nothing to mix; only the widest one is coded anew.
  ASSERT_TRUE(ConvertPacked(With(Gptq()), packed.tensors, &report, &file).ok());
  bool found = false;
  for (const ConvertedType& t : report.types) {
    if (t.source != "4 bits by g_idx") continue;
    found = true;
    EXPECT_EQ(t.stored, "int8");
    EXPECT_EQ(t.n_tensors, kTestLayers);
    EXPECT_GT(t.Loss(), 0);
    EXPECT_LT(t.Loss(), 0.01);
  }
  EXPECT_TRUE(found);
  ConvertOptions options;
  options.weights = WeightChoice::kF32;
  ASSERT_TRUE(ConvertPacked(With(Gptq()), packed.tensors, nullptr, &file, options).ok());
  EXPECT_EQ(Farthest(packed, *file, WeightType::kF32, 0), 0);
}

TEST(ConvertPacked, BiasesOfZeroThatTheModelHasNotAreNothing) {
  Packed packed(Zeros::kEight, PackGptq1);
  for (const Linear& l : kLinears)
    packed.tensors[NameOf(0, l) + ".bias"] = {
        "F16", {l.rows}, std::string(static_cast<size_t>(2 * l.rows), '\0')};
  EXPECT_TRUE(ConvertPacked(With(Gptq()), packed.tensors).ok());
  packed.tensors["model.layers.0.mlp.up_proj.bias"].bytes[5] = 'x';
  ExpectError(ConvertPacked(With(Gptq()), packed.tensors), Code::kUnsupported,
              {"mlp.up_proj.bias", "no place"});
}

TEST(ConvertPacked, OlderCheckpointsSayItInAFileOfItsOwn) {
  const Packed packed(Zeros::kEight, PackGptq1);
  ScratchDirectory scratch;
  WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), packed.tensors);
  ExpectError(Convert(scratch / "model", scratch / "out.kvc", {}, nullptr), Code::kUnsupported,
              {"dtype I32"});
  WriteAll(scratch / "model/quantize_config.json", R"({"bits": 4, "group_size": 32, "sym": true})");
  ASSERT_TRUE(Convert(scratch / "model", scratch / "out.kvc", {}, nullptr).ok());
  EXPECT_EQ(Farthest(packed, *OpenModel(scratch / "out.kvc"), WeightType::kInt4, 32), 0);
}

TEST(ConvertPacked, OtherMethodsAndSettingsAreNamed) {
  const Packed packed(Zeros::kEight, PackGptq1);
  const auto with = [&](const char* key, const nlohmann::json& value, nlohmann::json scheme) {
    scheme[key] = value;
    return ConvertPacked(With(scheme), packed.tensors);
  };
  ExpectError(with("quant_method", "bitsandbytes", Gptq()), Code::kUnsupported, {"bitsandbytes"});
  ExpectError(with("quant_method", "compressed-tensors", Gptq()), Code::kUnsupported, {"compressed-tensors"});
  ExpectError(with("bits", 8, Gptq()), Code::kUnsupported, {"bits = 8"});
  ExpectError(with("bits", 3, Awq()), Code::kUnsupported, {"bits = 3"});
  ExpectError(with("checkpoint_format", "marlin", Gptq()), Code::kUnsupported,
              {"checkpoint_format = marlin"});
  ExpectError(with("is_marlin_format", true, Gptq()), Code::kUnsupported, {"is_marlin_format"});
  ExpectError(with("version", "gemv", Awq()), Code::kUnsupported, {"version = gemv"});
  ExpectError(with("dynamic", {{"-:lm_head", nlohmann::json::object()}}, Gptq()), Code::kUnsupported,
              {"dynamic"});
  ExpectError(with("group_size", 24, Gptq()), Code::kUnsupported, {"groups of 24"});
  ExpectError(with("group_size", 0, Gptq()), Code::kUnsupported, {"groups of 0"});
  ExpectError(with("group_size", 64, Gptq()), Code::kUnsupported, {"groups of 64"});
  ExpectError(with("quant_method", nullptr, Gptq()), Code::kUnsupported, {"quant_method is missing"});
  nlohmann::json config = SmallConfig("LlamaForCausalLM");
  config["quantization_config"] = "gptq";
  ExpectError(ConvertPacked(config, packed.tensors), Code::kBadModel, {"must be an object"});
}

TEST(ConvertPacked, PartsThatDoNotFitAreNamed) {
  const std::string up = "model.layers.1.mlp.up_proj", down = "model.layers.1.mlp.down_proj";
  const auto broken = [](const std::function<void(TestTensors*)>& change) {
    Packed packed(Zeros::kAny, PackGptq1);
    change(&packed.tensors);
    return ConvertPacked(With(Gptq()), packed.tensors);
  };
  for (const char* part : {".qweight", ".qzeros", ".scales"}) {
    ExpectError(broken([&](TestTensors* t) { t->erase(up + part); }), Code::kBadModel,
                {up + part, "missing"});
  }
  EXPECT_TRUE(broken([&](TestTensors* t) { t->erase(up + ".g_idx"); }).ok());  // neighbours then
  ExpectError(broken([&](TestTensors* t) { (*t)[up + ".qzeros"] = t->at(down + ".qzeros"); }),
              Code::kBadModel, {"up_proj.qzeros does not fit"});
  ExpectError(broken([&](TestTensors* t) {
                (*t)[up + ".scales"] = MakeTensor("BF16", {1, 96}, 1);
              }),
              Code::kUnsupported, {"up_proj.scales", "type bf16"});
  ExpectError(broken([&](TestTensors* t) {
                (*t)[up + ".qweight"] = MakeTensor("F16", {4, 96}, 1);
              }),
              Code::kUnsupported, {"up_proj.qweight", "type f16"});
  ExpectError(broken([&](TestTensors* t) { t->at(down + ".g_idx").bytes[4] = 3; }), Code::kBadModel,
              {"down_proj.g_idx: column 1 is in group 3 of 3"});
  ExpectError(broken([&](TestTensors* t) { t->at(down + ".g_idx").bytes[7] = '\xff'; }), Code::kBadModel,
              {"column 1 is in group -"});
  ExpectError(broken([&](TestTensors* t) {
                t->at(up + ".scales").bytes[2 * 5] = 0, t->at(up + ".scales").bytes[2 * 5 + 1] = 0x7c;
              }),
              Code::kBadModel, {"up_proj.weight: row 5, column 0: the value is not a finite number"});
  ExpectError(broken([&](TestTensors* t) {
                (*t)[up + ".weight"] = MakeTensor("F16", {96, 32}, 1);
              }),
              Code::kBadModel, {"stands twice"});
}

}  // namespace
}  // namespace kvc

// Adapters merged while a model is converted: logits are those that PEFT computes (make_lora_vectors.py),
// whatever stores the adapter; and adapters that are no sum over this model's matrices are refused by name.
#include "models/convert/lora.h"

#include <cmath>

#include "lib/compress/policy_text.h"
#include "lib/engine/session.h"
#include "tests/support/tiny_session.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using nlohmann::json;

std::string Data(const std::string& name) { return std::string(KVC_TEST_DATA) + "/" + name; }
std::string Adapter(const std::string& name) { return Data("lora/" + name); }
std::string Base(const std::string& name) { return Data("reference/hf_" + name); }

json Expected(const std::string& name) { return json::parse(ReadAll(Adapter(name) + "/logits.json")); }

struct Merged {
  Status status;
  ConvertReport report;
  std::vector<float> logits;  // behind the text of the vectors
};

Merged Merge(const std::string& source, const std::vector<LoraChoice>& adapters,
             const std::vector<int32_t>& ids, WeightChoice weights = WeightChoice::kF32) {
  Merged out;
  ScratchDirectory folder;
  ConvertOptions options;
  options.weights = weights, options.adapters = adapters;
  out.status = Convert(source, folder / "model.kvc", options, &out.report);
  if (!out.status.ok()) return out;
  auto model = Model::Open(folder / "model.kvc", {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  const Result<Policy> policy = ParsePolicy("full:kv=f32");
  auto session = Session::Create(model.value(), &policy.value(), {});
  EXPECT_TRUE(session.ok()) << session.status().message();
  EXPECT_TRUE(session.value()->Prefill({ids.data(), ids.size()}, true).ok());
  out.logits = test::LogitsOf(*session.value());
  return out;
}

float Worst(const std::vector<float>& logits, const json& expected) {
  if (logits.size() != expected.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    worst = std::max(worst, std::fabs(logits[i] - expected[i].get<float>()));
  return worst;
}

constexpr float kTolerance = 1e-4f;

class EveryAdapter : public testing::TestWithParam<std::string> {};

TEST_P(EveryAdapter, ComputesWhatPeftDoes) {
  const json expected = Expected(GetParam());
  const std::vector<int32_t> ids = expected["ids"];
  for (const auto& [strength, name] : {std::pair(0.0f, "none"), {0.5f, "half"}, {1.0f, "whole"}}) {
    const Merged merged = Merge(Base(GetParam()), {{Adapter(GetParam()), strength}}, ids);
    ASSERT_TRUE(merged.status.ok()) << merged.status.message();
    EXPECT_LE(Worst(merged.logits, expected[name]), kTolerance) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryAdapter, testing::Values("llama_gqa", "phi4_mini_partial", "mixtral"),
                         [](const auto& name) { return name.param; });

TEST(Lora, InGgufForAModelInGguf) {
  const json expected = Expected("mixtral");
  const std::vector<int32_t> ids = expected["ids"];
  const std::string source = Data("reference_gguf/mixtral.gguf"),
                    adapter = Adapter("mixtral") + "/adapter.gguf";
  EXPECT_LE(Worst(Merge(source, {}, ids).logits, expected["none"]), kTolerance);
  const Merged merged = Merge(source, {{adapter, 1}}, ids);
  ASSERT_TRUE(merged.status.ok()) << merged.status.message();
  EXPECT_LE(Worst(merged.logits, expected["whole"]), kTolerance);
  EXPECT_EQ(merged.report.n_adapted, std::vector<int32_t>{8}) << "4 of each of 2 layers";
}

TEST(Lora, SeveralAreAdded) {
  const json expected = Expected("llama_gqa");
  const LoraChoice half{Adapter("llama_gqa"), 0.5f};
  const Merged merged = Merge(Base("llama_gqa"), {half, half}, expected["ids"]);
  ASSERT_TRUE(merged.status.ok()) << merged.status.message();
  EXPECT_LE(Worst(merged.logits, expected["whole"]), kTolerance);
  EXPECT_EQ(merged.report.n_adapted, (std::vector<int32_t>{14, 14}));
}

std::unique_ptr<ModelFile> Stored(const std::string& source, const std::vector<LoraChoice>& adapters,
                                  WeightChoice weights, ConvertReport* report) {
  ScratchDirectory folder;
  ConvertOptions options;
  options.weights = weights, options.adapters = adapters;
  const Status status = Convert(source, folder / "model.kvc", options, report);
  EXPECT_TRUE(status.ok()) << status.message();
  return OpenModel(folder / "model.kvc");
}

// What an adapter changes is rounded to the type it had; what it does not change stays to the bit.
TEST(Lora, KeepsTypesWithoutGroups) {
  ConvertReport report;
  const std::vector<LoraChoice> adapters = {{Adapter("phi4_mini_partial"), 1}};
  const auto kept = Stored(Base("phi4_mini_partial"), adapters, WeightChoice::kKeep, &report),
             merged = Stored(Base("phi4_mini_partial"), adapters, WeightChoice::kF32, nullptr),
             before = Stored(Base("phi4_mini_partial"), {}, WeightChoice::kF32, nullptr);
  ASSERT_TRUE(kept != nullptr && merged != nullptr && before != nullptr);
  ASSERT_EQ(report.types.size(), 1u);
  EXPECT_EQ(report.types[0].stored, "bf16");
  EXPECT_FALSE(report.types[0].exact());
  int32_t n_changed = 0;
  for (const TensorEntry& tensor : kept->tensors()) {
    const std::vector<float> now = Values(tensor.weight);
    std::vector<float> exact = Values(FindTensor(*merged, tensor.role, tensor.layer)->weight);
    n_changed += exact != Values(FindTensor(*before, tensor.role, tensor.layer)->weight);
    if (!IsVectorRole(tensor.role)) {
      for (float& value : exact) value = Bf16ToFloat(FloatToBf16(value));
    }
    EXPECT_EQ(now, exact) << TensorRoleName(tensor.role) << tensor.layer;
  }
  EXPECT_EQ(n_changed, 2 * 6) << "queries, keys, values, gate, up, down of two layers";
}

TEST(Lora, CodesBecomeInt8) {
  ConvertReport report;
  const std::string source = Data("convert/llama_q4_0.gguf");
  const std::vector<LoraChoice> adapters = {{Adapter("q4_0") + "/adapter.gguf", 1}};
  const auto kept = Stored(source, adapters, WeightChoice::kKeep, &report),
             merged = Stored(source, adapters, WeightChoice::kF32, nullptr),
             before = Stored(source, {}, WeightChoice::kKeep, nullptr);
  ASSERT_TRUE(kept != nullptr && merged != nullptr && before != nullptr);
  EXPECT_EQ(report.n_adapted, std::vector<int32_t>{1});
  for (const TensorEntry& tensor : kept->tensors()) {
    const Weight& was = FindTensor(*before, tensor.role, tensor.layer)->weight;
    std::vector<float> expected = Values(was);
    const bool changes = tensor.role == TensorRole::kQuery && tensor.layer == 0;
    if (!changes) {
      EXPECT_EQ(tensor.weight.type, was.type);
      EXPECT_EQ(Values(tensor.weight), expected);
      continue;
    }
    for (float& value : expected) value += 0.25f;
    EXPECT_EQ(Values(FindTensor(*merged, tensor.role, tensor.layer)->weight), expected);
    EXPECT_EQ(was.type, WeightType::kInt4);
    ASSERT_EQ(tensor.weight.type, WeightType::kInt8);
    EXPECT_EQ(tensor.weight.group, 32);
    const std::vector<float> now = Values(tensor.weight);
    for (size_t i = 0; i < now.size(); ++i) {
      const float step = F16ToFloat(tensor.weight.scales[i / 32]);
      EXPECT_LE(std::fabs(now[i] - expected[i]), step * 0.5001f) << i;
    }
  }
}

// A folder with an adapter of the vectors, changed.
class ChangedAdapter : public testing::Test {
 protected:
  void SetUp() override {
    config_ = json::parse(ReadAll(Adapter("llama_gqa") + "/adapter_config.json"));
    weights_ = ReadAll(Adapter("llama_gqa") + "/adapter_model.safetensors");
    const uint64_t n = *reinterpret_cast<const uint64_t*>(weights_.data());
    header_ = json::parse(weights_.substr(8, n));
    data_ = weights_.substr(8 + n);
  }
  // What converting says; "": it went well.
  std::string Said(Code code) {
    WriteAll(folder_ / "adapter_config.json", config_.dump());
    WriteAll(folder_ / "adapter_model.safetensors", SafetensorsFile(header_.dump(), data_));
    ConvertOptions options;
    options.adapters = {{folder_ / "", 1}};
    const Status status = Convert(Base("llama_gqa"), out_ / "model.kvc", options, nullptr);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(out_.CountFiles(), status.ok() ? 1u : 0u);
    return status.message();
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  ScratchDirectory folder_, out_;
  json config_, header_;
  std::string weights_, data_;
};

constexpr char kFirst[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

TEST_F(ChangedAdapter, UnchangedIsTaken) { EXPECT_EQ(Said(Code::kOk), ""); }

TEST_F(ChangedAdapter, BytesAreNoMatrix) {
  size_t at = 0;
  for (auto& [name, tensor] : header_.items()) {
    if (name == "__metadata__") continue;
    const size_t n = tensor["shape"][0].get<size_t>() * tensor["shape"][1].get<size_t>();
    tensor["dtype"] = "U8", tensor["data_offsets"] = {at, at + n};
    at += n;
  }
  data_.assign(at, '\1');
  EXPECT_NE(Said(Code::kBadModel).find("is no matrix"), std::string::npos);
}

TEST_F(ChangedAdapter, FormsThatAreNoSumAreRefusedByName) {
  const json plain = config_;
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{
           {"peft_type", "LOHA"},
           {"bias", "all"},
           {"use_dora", true},
           {"fan_in_fan_out", true},
           {"lora_bias", true},
           {"modules_to_save", {"lm_head"}},
           {"alpha_pattern", {{"q_proj", 3}}},
           {"target_parameters", {"experts.down_proj"}},
           {"init_lora_weights", "pissa"},
           {"layer_replication", {{0, 1}}},
       }) {
    config_ = plain;
    config_[key] = value;
    EXPECT_TRUE(Has(Said(Code::kUnsupported), key)) << key;
  }
}

TEST_F(ChangedAdapter, DamageIsFound) {
  const json header = header_, config = config_;
  config_["r"] = 5;
  EXPECT_TRUE(Has(Said(Code::kBadModel), "rank"));
  config_ = config, config_["r"] = 0;
  EXPECT_TRUE(Has(Said(Code::kBadModel), "r "));
  config_ = config, config_["lora_alpha"] = "8";
  EXPECT_TRUE(Has(Said(Code::kBadModel), "lora_alpha"));
  config_ = config;
  header_[std::string(kFirst) + "x"] = header_[kFirst];
  header_.erase(kFirst);
  EXPECT_TRUE(Has(Said(Code::kUnsupported), "lora_A.weightx"));
  header_ = header;
  const json shape = header_[kFirst]["shape"];
  header_[kFirst]["shape"] = {shape[1], shape[0]};
  EXPECT_TRUE(Has(Said(Code::kBadModel), "ranks"));
  header_[kFirst]["shape"] = {shape[0].get<int>() * shape[1].get<int>()};
  EXPECT_TRUE(Has(Said(Code::kBadModel), "no matrix"));
  header_ = header;
  const float infinite = INFINITY;
  data_.replace(header_[kFirst]["data_offsets"][0].get<size_t>() + 12, 4,
                reinterpret_cast<const char*>(&infinite), 4);
  EXPECT_TRUE(Has(Said(Code::kBadModel), "element 3 is not a finite number"));
}

TEST_F(ChangedAdapter, HalvesWithoutTheOther) {
  const json lone = header_[kFirst];
  header_ = json{{kFirst, lone}};
  const size_t begin = lone["data_offsets"][0], end = lone["data_offsets"][1];
  header_[kFirst]["data_offsets"] = {0, end - begin};
  data_ = data_.substr(begin, end - begin);
  EXPECT_TRUE(Has(Said(Code::kBadModel), "is missing"));
  header_ = json::object(), data_.clear();
  EXPECT_TRUE(Has(Said(Code::kBadModel), "changes nothing"));
}

TEST_F(ChangedAdapter, ValuesTooLargeForTheModelAreFound) {
  for (const char* half : {"A", "B"}) {
    std::string name = kFirst;
    name.replace(name.find("lora_A") + 5, 1, half);
    const float huge = 3e38f;
    for (size_t at = header_[name]["data_offsets"][0]; at < header_[name]["data_offsets"][1].get<size_t>();
         at += 4)
      data_.replace(at, 4, reinterpret_cast<const char*>(&huge), 4);
  }
  EXPECT_TRUE(Has(Said(Code::kBadModel), "with the adapter is too large"));
}

TEST(LoraFiles, OfAnotherModelOrKind) {
  const std::vector<int32_t> ids = {1};
  const auto said = [&](const std::string& source, const std::string& adapter) {
    const Merged merged = Merge(source, {{adapter, 1}}, ids);
    return std::to_string(static_cast<int>(merged.status.code())) + ": " + merged.status.message();
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string gguf = Data("reference_gguf/mixtral.gguf"),
                    gguf_adapter = Adapter("mixtral") + "/adapter.gguf";
  EXPECT_TRUE(
      has(said(Base("llama_gqa"), Adapter("phi4_mini_partial")), "another model: this one has no tensor"));
  EXPECT_TRUE(has(said(Base("llama_mqa"), Adapter("llama_gqa")), "another model: model.layers"));
  EXPECT_TRUE(has(said(Base("mixtral"), gguf_adapter), "adapters of PEFT fit Hugging Face directories"));
  EXPECT_TRUE(has(said(gguf, Adapter("mixtral")), "those in GGUF fit models in GGUF"));
  EXPECT_TRUE(has(said(gguf, gguf), "is no adapter"));
  EXPECT_TRUE(has(said(Data("reference_gguf/qwen3moe.gguf"), gguf_adapter),
                  "an adapter of llama for one of qwen3moe"));
  EXPECT_TRUE(has(said(Base("llama_gqa"), Data("lora")), "adapter_config.json"));
  for (const std::string& source : {Base("llama_gqa"), gguf})
    EXPECT_TRUE(has(said(source, Data("no/such")), "no/such: there is no such file"))
        << said(source, Data("no/such"));
}

TEST(LoraFiles, StrengthAndOutput) {
  ConvertOptions options;
  ScratchDirectory folder;
  for (const float strength : {NAN, INFINITY, 101.0f}) {
    options.adapters = {{Adapter("llama_gqa"), strength}};
    EXPECT_EQ(Convert(Base("llama_gqa"), folder / "x.kvc", options, nullptr).code(), Code::kInvalid);
  }
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::filesystem::copy_file(Adapter("llama_gqa") + "/" + name, folder / name);
  }
  options.adapters = {{folder / "", 1}};
  const std::string before = ReadAll(folder / "adapter_config.json");
  EXPECT_EQ(Convert(Base("llama_gqa"), folder / "adapter_config.json", options, nullptr).code(),
            Code::kInvalid);
  EXPECT_EQ(ReadAll(folder / "adapter_config.json"), before);
}

}  // namespace
}  // namespace kvc

// Granite 4, whose one name stands for dense models, mixtures and hybrids with state spaces: the dense ones
// are taken, as config.json and as llama.cpp's converter write them, the others refused for what they are
// made of.
#include "models/convert/hf_config.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using nlohmann::json;

const std::string kHf = std::string(KVC_TEST_DATA) + "/reference/hf_granite4/config.json";
const std::string kGguf = std::string(KVC_TEST_DATA) + "/reference_gguf/granite4.gguf";

Result<HfConfig> ParseWith(const json& more) {
  json config = json::parse(ReadAll(kHf));
  config.merge_patch(more);  // null takes a member away
  const std::string text = config.dump();
  return ParseHfConfig({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "config.json");
}

void ExpectRotation(const ModelConfig& c, bool rotates) {
  if (rotates) {
    EXPECT_FALSE(c.layers_differ());
    return;
  }
  ASSERT_EQ(c.layers.size(), static_cast<size_t>(c.n_layers));
  for (const LayerConfig& layer : c.layers) EXPECT_EQ(layer.rope, -1);
}

TEST(ConvertGranite, TakesWhatIsDense) {
  for (const char* attention : {"attention", "full_attention"}) {
    const auto parsed = ParseWith({{"layer_types", {attention, attention}}});
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_TRUE(parsed.value().warnings.empty());
    EXPECT_EQ(parsed.value().model.ffn_size, 48);
    EXPECT_EQ(parsed.value().model.n_experts, 0);
    EXPECT_EQ(parsed.value().model.rope.theta, 1e7);
    ExpectRotation(parsed.value().model, true);
  }
  for (const json& nowhere : {json("nope"), json(nullptr)}) {
    const auto parsed = ParseWith({{"position_embedding_type", nowhere}, {"intermediate_size", 80}});
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed.value().model.ffn_size, 48);
    ExpectRotation(parsed.value().model, false);
  }
}

TEST(ConvertGranite, RefusesTheOthersForWhatTheyAreMadeOf) {
  const std::string states = "state spaces are not supported; try Granite 3, or Granite 4 without them";
  const std::string experts = "experts: its mixture of experts is not supported; try Granite 3 or 4 without";
  for (const json& types : {json{"mamba", "attention"}, json{"linear_attention", "attention"}, json(nullptr),
                            json::array(), json("attention")}) {
    ExpectError(ParseWith({{"layer_types", types}}).status(), Code::kUnsupported, {"config.json", states});
    // Both, as the hybrids of 2025 are: first the reason that leaves fewer models.
    ExpectError(ParseWith({{"layer_types", types}, {"num_local_experts", 62}}).status(), Code::kUnsupported,
                {states});
  }
  ExpectError(ParseWith({{"num_local_experts", 62}}).status(), Code::kUnsupported, {"with 62 " + experts});
  ExpectError(ParseWith({{"num_local_experts", nullptr}}).status(), Code::kUnsupported, {experts});
  ExpectError(ParseWith({{"position_embedding_type", "alibi"}}).status(), Code::kUnsupported,
              {"position_embedding_type alibi", "supported: rope, nope"});
  ExpectError(ParseWith({{"shared_intermediate_size", nullptr}}).status(), Code::kBadModel,
              {"shared_intermediate_size is missing"});
}

// The file of llama.cpp's converter with bytes behind a key changed.
Status ConvertChanged(const std::string& key, size_t skip, char value, std::unique_ptr<ModelFile>* file) {
  ScratchDirectory scratch;
  std::string bytes = ReadAll(kGguf);
  const size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos) << key;
  bytes[at + key.size() + skip] = value;
  WriteAll(scratch / "x.gguf", bytes);
  const Status status = Convert(scratch / "x.gguf", scratch / "out.kvc", {}, nullptr);
  if (status.ok() && file != nullptr) *file = OpenModel(scratch / "out.kvc");
  return status;
}

TEST(ConvertGranite, GgufSaysItLayerByLayer) {
  std::unique_ptr<ModelFile> file;
  // Behind a key: its type (4), what an array is of (4), of how many (8), the values (4 each).
  ASSERT_TRUE(ConvertChanged("granite.attention.head_count_kv", 16, 2, &file).ok());
  EXPECT_EQ(file->config().n_kv_heads, 2);
  ExpectRotation(file->config(), true);
  ExpectError(ConvertChanged("granite.attention.head_count_kv", 20, 1, nullptr), Code::kUnsupported,
              {"granite.attention.head_count_kv differs from layer to layer"});
  // Whether it was trained further with its rotation stands for whether there is one.
  ASSERT_TRUE(ConvertChanged("granite.rope.scaling.finetuned", 4, 0, &file).ok());
  ExpectRotation(file->config(), false);
  // With experts, the settings that are nothing's otherwise do not make it another model.
  ExpectError(ConvertChanged("granite.expert_count", 4, 8, nullptr), Code::kUnsupported,
              {"a mixture of 8 experts is not supported in architecture granite"});
}

}  // namespace
}  // namespace kvc

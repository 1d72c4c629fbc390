// Context extension by option: what is taken, what it makes of a configuration, and what is refused with what
// would be allowed. tests/golden/rope_extensions_test.cc compares the logits.
#include "models/convert/rope_extension.h"

#include "models/convert/hf_config.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using nlohmann::json;

const std::string kReference = std::string(KVC_TEST_DATA) + "/reference/";
const std::string kStories = std::string(KVC_SOURCE_DIR) + "/models/stories260k/stories260K.bin";

RopeExtension Extension(const std::string& text) {
  const auto parsed = ParseRopeExtension(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed.value() : RopeExtension();
}

Result<HfConfig> ParseWith(const json& more, const std::string& rope, int32_t context = 0,
                           const std::string& architecture = "LlamaForCausalLM") {
  json config = SmallConfig(architecture);  // 256 tokens
  config.merge_patch(more);
  const std::string text = config.dump();
  RopeOptions options{context, {}};
  if (!rope.empty()) options.extension = Extension(rope);
  return ParseHfConfig({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "config.json", options);
}

ModelConfig ConfigOf(const Result<HfConfig>& parsed) {
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed.value().model : ModelConfig();
}

void ExpectSameRope(const RopeConfig& a, const RopeConfig& b) {
  EXPECT_EQ(a.theta, b.theta);
  EXPECT_EQ(a.scaling, b.scaling);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.attention_factor, b.attention_factor);
  EXPECT_EQ(a.beta_fast, b.beta_fast);
  EXPECT_EQ(a.beta_slow, b.beta_slow);
  EXPECT_EQ(a.original_max_tokens, b.original_max_tokens);
  EXPECT_EQ(a.rotated, b.rotated);
}

TEST(ConvertRopeExtension, Texts) {
  for (const char* text : {"yarn:4", "linear:1.5", "dynamic:256", "dynamic:1", "yarn:1.0001"})
    EXPECT_EQ(RopeExtensionText(Extension(text)), text);
  for (const char* text : {"", "yarn", "yarn:", "yarn:1", "yarn:0.5", "yarn:-4", "yarn:256.5", "linear:1",
                           "dynamic:0.9", "yarn:nan", "yarn:inf", "yarn:4x", "yarn: 4", "yarn:4:4", "Yarn:4",
                           "llama3:8", ":4", "4", "longrope:4"}) {
    ExpectError(ParseRopeExtension(text).status(), Code::kInvalid,
                {"yarn:F, linear:F, dynamic:F", "F over 1 (dynamic: from 1) to 256"});
  }
}

// What the option makes of a configuration without scaling is what the same setting in config.json does.
TEST(ConvertRopeExtension, IsTheSettingOfTheConfiguration) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 256}};
  const json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  for (const auto& [rope, setting] : {std::pair(std::string("yarn:4"), yarn), {"linear:4", linear}}) {
    const ModelConfig asked = ConfigOf(ParseWith(json::object(), rope));
    ExpectSameRope(asked.rope, ConfigOf(ParseWith({{"rope_scaling", setting}}, "")).rope);
    EXPECT_EQ(asked.max_tokens, 1024);
    EXPECT_EQ(ConfigOf(ParseWith(json::object(), rope, 300)).max_tokens, 300);
  }
}

TEST(ConvertRopeExtension, TakesThePlaceOfAnother) {
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 4.0},
                     {"original_max_position_embeddings", 64},
                     {"beta_fast", 8.0},
                     {"attention_factor", 2.0}};
  const auto parsed = ParseWith({{"rope_scaling", yarn}}, "linear:8");
  EXPECT_EQ(ConfigOf(parsed).rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(ConfigOf(parsed).rope.factor, 8);
  EXPECT_EQ(ConfigOf(parsed).max_tokens, 512);
  EXPECT_EQ(parsed.value().extended.replaced, "yarn:4");
  EXPECT_EQ(parsed.value().extended.trained, 64);
  // Of the file's YaRN nothing is left.
  ExpectSameRope(ConfigOf(ParseWith({{"rope_scaling", yarn}}, "yarn:8")).rope,
                 ConfigOf(ParseWith({{"max_position_embeddings", 64}}, "yarn:8")).rope);
  // Dynamic scaling of the file's own is not a scaling within the trained length.
  const json dynamic = {{"type", "dynamic"}, {"factor", 2.0}};
  const auto fixed = ParseWith({{"rope_scaling", dynamic}}, "dynamic:2", 1000);
  EXPECT_EQ(ConfigOf(fixed).max_tokens, 1000);
  EXPECT_EQ(fixed.value().extended.replaced, "dynamic:2");
  EXPECT_TRUE(fixed.value().warnings.empty());
  EXPECT_EQ(ConfigOf(fixed).rope.scaling, RopeScaling::kNone);
  EXPECT_NEAR(ConfigOf(fixed).rope.theta, 10000 * std::pow(2 * 1000 / 256.0 - 1, 8 / 6.0), 1e-6);
  const auto plain = ParseWith({{"rope_scaling", dynamic}}, "");
  EXPECT_EQ(ConfigOf(plain).rope.theta, 10000);
  EXPECT_EQ(ConfigOf(plain).max_tokens, 256);
  ASSERT_EQ(plain.value().warnings.size(), 1u);
  for (const char* words : {"beyond 256 tokens", "--rope dynamic:2 --context N"})
    EXPECT_NE(plain.value().warnings[0].find(words), std::string::npos) << plain.value().warnings[0];
}

// Layers that slide and rotate by themselves go on as they did.
TEST(ConvertRopeExtension, LeavesLayersThatSlide) {
  for (const char* architecture : {"Gemma3ForCausalLM", "Olmo3ForCausalLM"}) {
    const json windows = {{"sliding_window", 16}, {"layer_types", {"sliding_attention", "full_attention"}}};
    const ModelConfig c = ConfigOf(ParseWith(windows, "yarn:4", 0, architecture));
    EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
    ASSERT_EQ(c.more_ropes.size(), 1u) << architecture;
    EXPECT_EQ(c.more_ropes[0].scaling, RopeScaling::kNone);
    EXPECT_EQ(c.layers[0].rope, 1);
    EXPECT_EQ(c.layers[1].rope, 0);
  }
}

TEST(ConvertRopeExtension, RefusesWhatItCannotDo) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const json trained = {{"rope_scaling", llama3}, {"max_position_embeddings", 512}};
  ExpectError(ParseWith(trained, "yarn:4").status(), Code::kInvalid,
              {"config.json: yarn:4 reaches 256 tokens of 64 trained for; allowed: 512 to "});
  EXPECT_EQ(ConfigOf(ParseWith(trained, "yarn:8")).max_tokens, 512);
  ExpectError(ParseWith(json::object(), "dynamic:2", 256).status(), Code::kInvalid,
              {"reaches 256 tokens", "allowed: 257 to "});
  ExpectError(ParseWith({{"max_position_embeddings", 1 << 20}}, "yarn:256").status(), Code::kInvalid,
              {"reaches 268435456 tokens"});
  const json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  ExpectError(ParseWith({{"rope_scaling", linear}}, "yarn:8").status(), Code::kUnsupported,
              {"yarn:8 cannot take the place of the model's own linear:4"});
  EXPECT_EQ(ConfigOf(ParseWith({{"rope_scaling", linear}}, "linear:8")).max_tokens, 512);
  ExpectError(ParseWith({{"rope_scaling", linear}}, "linear:3").status(), Code::kInvalid,
              {"reaches 192 tokens"});
  const auto convert = [](const std::string& source, const std::string& rope) {
    ScratchDirectory scratch;
    ConvertOptions options;
    options.rope = Extension(rope);
    return Convert(source, scratch / "out.kvc", options, nullptr);
  };
  ExpectError(convert(kReference + "hf_phi3_longrope_long", "yarn:4"), Code::kUnsupported, {"LongRoPE"});
  ExpectError(convert(kReference + "hf_granite4_nope", "yarn:4"), Code::kUnsupported,
              {"no layer rotates", "yarn:4 has nothing to extend"});
}

TEST(ConvertRopeExtension, AFactorOfNextToNothingIsNoLength) {
  const json tiny = {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.001}}},
                     {"max_position_embeddings", 1 << 22}};
  EXPECT_EQ(ParseWith(tiny, "linear:2").status().code(), Code::kInvalid);
}

TEST(ConvertRopeExtension, OfEverySource) {
  for (const std::string& source :
       {kReference + "hf_granite", std::string(KVC_TEST_DATA) + "/reference_gguf/granite.gguf", kStories}) {
    ScratchDirectory scratch;
    ConvertOptions options;
    options.rope = Extension("yarn:2");
    ConvertReport report;
    const Status status = Convert(source, scratch / "out.kvc", options, &report);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto file = OpenModel(scratch / "out.kvc");
    EXPECT_EQ(file->config().max_tokens, 1024);
    EXPECT_EQ(file->config().rope.scaling, RopeScaling::kYarn);
    EXPECT_EQ(file->config().rope.original_max_tokens, 512);
    EXPECT_NE(file->source().find(" + rope yarn:2"), std::string::npos) << file->source();
    ASSERT_FALSE(report.warnings.empty());
    for (const char* words :
         {"yarn:2: made for 1024 tokens, trained for 512", "short prompts change", "kvc eval"})
      EXPECT_NE(report.warnings.back().find(words), std::string::npos) << report.warnings.back();
  }
}

}  // namespace
}  // namespace kvc

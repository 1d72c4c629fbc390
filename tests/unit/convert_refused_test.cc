// What is refused by name says why, and the nearest thing that works, whether the name comes from config.json
// or from GGUF.
#include "models/convert/hf_config.h"
#include "models/convert/not_supported.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

// A text as GGUF has it: its length before it.
std::string GgufText(const std::string& text) {
  const uint64_t n = text.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + text;
}

// A file of GGUF with the first of one text as another.
Status ConvertRenamed(const std::string& from, const std::string& to) {
  ScratchDirectory scratch;
  std::string bytes = ReadAll(std::string(KVC_TEST_DATA) + "/convert/qwen2_q8_0.gguf");
  const size_t at = bytes.find(GgufText(from));
  EXPECT_NE(at, std::string::npos) << from;
  bytes.replace(at, 8 + from.size(), GgufText(to));
  bytes.append(64, '\0');  // where a shorter text has moved tensors to the front
  WriteAll(scratch / "x.gguf", bytes);
  return Convert(scratch / "x.gguf", scratch / "out.kvc", {}, nullptr);
}

Status ParseArchitecture(const std::string& name) {
  const std::string text = SmallConfig(name).dump();
  return ParseHfConfig({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "config.json").status();
}

struct Case {
  const char *hf, *gguf;  // null: it has no name there
  const char* why;
};

TEST(ConvertRefused, ArchitecturesInBothFormats) {
  for (const Case& c : {
           Case{"Lfm2ForCausalLM", "lfm2", "convolutions between the layers are not supported; try Qwen3"},
           Case{"Lfm2MoeForCausalLM", "lfm2moe", "convolutions between the layers are not supported"},
           Case{"Qwen3NextForCausalLM", "qwen3next", "linear attention is not supported; try Qwen3"},
           Case{"Qwen3_5MoeForCausalLM", "qwen35moe", "linear attention is not supported; try Qwen3"},
           Case{"KimiLinearForCausalLM", "kimi-linear", "linear attention is not supported"},
           Case{nullptr, "granitehybrid",
                "state spaces are not supported; try Granite 3, or Granite 4 without them (350m, 1b, micro)"},
           Case{"OlmoHybridForCausalLM", nullptr,
                "state spaces are not supported; try a model of the family"},
           Case{"MambaForCausalLM", "mamba", "state spaces are not supported; try Qwen3 or Llama"},
           Case{"Mamba2ForCausalLM", "mamba2", "state spaces are not supported"},
           Case{"FalconMambaForCausalLM", nullptr, "state spaces are not supported"},
           Case{"JambaForCausalLM", "jamba", "state spaces are not supported"},
           Case{"BambaForCausalLM", nullptr, "state spaces are not supported"},
           Case{"FalconH1ForCausalLM", "falcon-h1", "state spaces are not supported; try Falcon 3"},
           Case{"NemotronHForCausalLM", "nemotron_h_moe", "state spaces are not supported"},
           Case{"RwkvForCausalLM", "rwkv7", "recurrent states are not supported"},
           Case{"Qwen2MoeForCausalLM", "qwen2moe", "its mixture of experts is not supported; try Qwen3Moe"},
           Case{"GraniteMoeForCausalLM", "granitemoe", "try Granite 3 or 4 without experts"},
           Case{"DeepseekV3ForCausalLM", "deepseek2", "try the distilled models, which are Qwen2 and Llama"},
           Case{"Llama4ForCausalLM", "llama4", "its mixture of experts is not supported; try Llama 3"},
           Case{"Qwen2_5_VLForConditionalGeneration", "qwen2vl", "images and sound are not supported"},
           Case{"CohereForCausalLM", "command-r", "blocks side by side are not supported"},
           Case{"FalconForCausalLM", "falcon", "blocks side by side are not supported; try Falcon 3"},
           Case{"PhiForCausalLM", "phi2", "blocks side by side are not supported; try Phi3"},
           Case{"BertForMaskedLM", "nomic-bert", "encoders are not supported"},
           Case{"T5ForConditionalGeneration", "t5", "encoders are not supported"},
       }) {
    if (c.hf != nullptr) {
      ExpectError(ParseArchitecture(c.hf), Code::kUnsupported,
                  {std::string("architecture ") + c.hf + " is not supported: ", c.why, "LlamaForCausalLM"});
    }
    if (c.gguf != nullptr) {
      ExpectError(
          ConvertRenamed("qwen2", c.gguf), Code::kUnsupported,
          {std::string("architecture ") + c.gguf + " is not supported: ", c.why, "supported: llama, "});
    }
  }
  // Nothing is said where nothing is known.
  ExpectError(ParseArchitecture("BloomForCausalLM"), Code::kUnsupported, {"is not supported; supported:"});
  ExpectError(ConvertRenamed("qwen2", "bloom"), Code::kUnsupported, {"is not supported; supported:"});
}

// None of what is converted is on the list of what is not.
TEST(ConvertRefused, NoFamilyIsOnTheList) {
  for (const Family* family : Families()) {
    const std::string name = family->hf;
    if (name == "GraniteMoeHybridForCausalLM") continue;  // takes a part of what has this name
    if (family->experts != Family::kAlways) {
      EXPECT_EQ(WhyNotArchitecture(name), "") << name;
    }
  }
}

TEST(ConvertRefused, Tokenizers) {
  for (const auto& [model, why] : std::map<std::string, std::string>{
           {"t5", "Unigram is not supported; try a model with BPE"},
           {"bert", "WordPiece is not supported, which encoders have"},
           {"rwkv", "RWKV's own is not supported; try Qwen3 or Llama"},
           {"no_vocab", "the file has no tokenizer; convert the Hugging Face directory"}}) {
    ExpectError(ConvertRenamed("gpt2", model), Code::kUnsupported,
                {"the tokenizer model '" + model + "' is not supported: ", why, "supported: gpt2, llama"});
  }
  ExpectError(ConvertRenamed("gpt2", "morse"), Code::kUnsupported,
              {"the tokenizer model 'morse' is not supported; supported: gpt2, llama"});
  for (const auto& [type, why] :
       std::map<std::string, std::string>{{"Unigram", "Unigram is not supported: try a model with BPE"},
                                          {"WordPiece", "WordPiece is not supported: encoders have it"}}) {
    ScratchDirectory scratch;
    WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), SmallTensors("F32"));
    nlohmann::json tokenizer = nlohmann::json::parse(SmallTokenizer());
    tokenizer["model"]["type"] = type;
    WriteAll(scratch / "model/tokenizer.json", tokenizer.dump());
    ExpectError(Convert(scratch / "model", scratch / "out.kvc", {}, nullptr), Code::kUnsupported,
                {"tokenizer.json", why});
  }
}

TEST(ConvertRefused, PreTokenizersThatHaveNoRules) {
  ScratchDirectory scratch;
  std::string bytes = ReadAll(std::string(KVC_TEST_DATA) + "/convert/qwen2_q8_0.gguf");
  const uint32_t text_type = 8;
  const std::string type(reinterpret_cast<const char*>(&text_type), 4);
  const size_t at = bytes.find("tokenizer.ggml.pre" + type + GgufText("qwen2"));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at + 18 + 4 + 8, 5, "dbrx5");
  WriteAll(scratch / "x.gguf", bytes);
  ExpectError(Convert(scratch / "x.gguf", scratch / "out.kvc", {}, nullptr), Code::kUnsupported,
              {"the pre-tokenizer 'dbrx5' is not supported: try the Hugging Face directory of the model",
               "supported: gpt-2, "});
}

}  // namespace
}  // namespace kvc

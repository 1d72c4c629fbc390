// GGUF files beside the engines that their vectors are of (tests/vectors): transformers in float32 for the
// checkpoints of most families, llama.cpp for quantised matrices.
#include <filesystem>
#include <fstream>

#include "tests/golden/reference_vectors.h"

namespace kvc {
namespace {

// The same checkpoints as llama.cpp's converter writes them: its names, its order of rows, what it leaves to
// be known by the name of the architecture. NAME_fused is NAME with other names of tensors.
class ReferenceGgufFamily : public testing::TestWithParam<std::string> {};

TEST_P(ReferenceGgufFamily, ComputesWhatItsCheckpointDoes) {
  const Json reference =
      ReadReference("hf_" + GetParam().substr(0, GetParam().find("_fused")) + "/logits.json");
  const Tokens ids = reference["ids"];
  const auto model = Converted(std::string(KVC_TEST_DATA) + "/reference_gguf/" + GetParam() + ".gguf",
                               WeightChoice::kF32, reference.value("context", 0));
  ASSERT_NE(model, nullptr);
  Comparison all(GetParam());
  std::unique_ptr<Session> session;
  for (const Json& at : reference["logits"]) {
    session = FullSession(model);
    Prefill(*session, ids, 0, at["n"].get<size_t>());
    all.All(*session, at["values"]);
  }
  EXPECT_TRUE(CheckContinuation(*session, reference));
}

std::vector<std::string> GgufFamilies() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(KVC_TEST_DATA) + "/reference_gguf")) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceGgufFamily, testing::ValuesIn(GgufFamilies()),
                         [](const auto& name) { return name.param; });

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string Text(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }

// Converters before yarn_attn_factor was there wrote what config.json has as attention_factor of OLMo 3 as
// attn_factor. The names of the model fill what that makes the header shorter or longer.
TEST(ReferenceGguf, TheFinishedFactorOfOlmo3UnderItsOlderName) {
  std::ifstream in(std::string(KVC_TEST_DATA) + "/reference_gguf/olmo3.gguf", std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::string older = Text("olmo2.rope.scaling.attn_factor"),
                    newer = Text("olmo2.rope.scaling.yarn_attn_factor"), name = Text("Hf_Olmo3");
  const std::string size = Text("general.size_label") + Raw<uint32_t>(8) + Text("52K");
  using Edits = std::vector<std::pair<std::string, std::string>>;
  const Json reference = ReadReference("hf_olmo3/logits.json");
  const Tokens ids = reference["ids"];
  for (const Edits& edits :
       {Edits{{newer, older}, {name, Text("Hf_Olmo3.....")}},
        Edits{{size, older + Raw<uint32_t>(6) + Raw(1.1f)}, {name, Text("Hf_")}}}) {  // beside the newer one
    std::string bytes = whole;
    for (const auto& [from, to] : edits) {
      const size_t at = bytes.find(from);
      ASSERT_NE(at, std::string::npos);
      bytes.replace(at, from.size(), to);
    }
    ASSERT_EQ(bytes.size(), whole.size());
    test::TempFolder folder;
    std::ofstream(folder / "olmo3.gguf", std::ios::binary) << bytes;
    const auto model = Converted(folder / "olmo3.gguf", WeightChoice::kF32);
    ASSERT_NE(model, nullptr);
    Comparison all("olmo3, attn_factor");
    for (const Json& at : reference["logits"]) {
      const auto session = FullSession(model);
      Prefill(*session, ids, 0, at["n"].get<size_t>());
      all.All(*session, at["values"]);
    }
  }
}

// GGUF files whose matrices are quantised: llama.cpp computed with the same values as f32. Their logits
// spread over a quarter of a unit only, so the tolerance is a smaller one.
TEST(ReferenceGguf, LlamaCpp) {
  const Json models = ReadReference("gguf_llamacpp.json");
  ASSERT_GE(models.size(), 4u);
  for (const auto& [name, reference] : models.items()) {
    SCOPED_TRACE(name);
    const auto model =
        Converted(std::string(KVC_TEST_DATA) + "/convert/" + name + ".gguf", WeightChoice::kF32);
    ASSERT_NE(model, nullptr);
    const Tokens ids = reference["ids"];
    Comparison all(name, 2e-5);
    for (const Json& at : reference["logits"]) {
      const auto session = FullSession(model);
      Prefill(*session, ids, 0, at["n"].get<size_t>());
      all.All(*session, at["values"]);
    }
  }
}

}  // namespace
}  // namespace kvc

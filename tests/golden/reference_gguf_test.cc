// GGUF files beside the engines that their vectors are of (tests/vectors): transformers in float32 for the
// checkpoints of most families, llama.cpp for quantised matrices.
#include <filesystem>

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

// Context extension by option (kvc convert --rope) against transformers with the same rope_scaling in
// config.json, mostly beyond the length that a checkpoint was trained for; from GGUF too, where llama.cpp's
// converter has made one of the same checkpoint. tests/vectors/make_rope_vectors.py says how the vectors were
// made.
#include <filesystem>
#include <set>

#include "models/convert/convert_plan.h"
#include "tests/golden/reference_vectors.h"

namespace kvc {
namespace {

Json Cases() { return ReadReference("rope_extensions.json")["cases"]; }

class RopeExtensionCase : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    case_ = Cases()[GetParam()];
    auto extension = ParseRopeExtension(case_["rope"]);
    ASSERT_TRUE(extension.ok()) << extension.status().message();
    options_.weights = WeightChoice::kF32, options_.context = case_["context"];
    options_.rope = extension.value();
  }

  void Compare(const std::string& source) {
    SCOPED_TRACE(source);
    test::TempFolder folder;
    ExtendedRope extended;
    options_.planned = [&](const ConvertPlan& plan) { extended = plan.extended; };
    const Status status = Convert(source, folder / "model.kvc", options_, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    auto model = Model::Open(folder / "model.kvc", {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model.value()->config().max_tokens, extended.reached);
    EXPECT_GT(extended.reached, extended.trained);
    const Tokens ids = case_["ids"];
    // Each case has something to say of what the model was not trained for, and nothing of what it does not
    // reach.
    ASSERT_GT(ids.size(), static_cast<size_t>(extended.trained));
    ASSERT_LE(ids.size(), static_cast<size_t>(extended.reached));
    Comparison all("logits");
    for (const Json& at : case_["logits"]) {
      const auto session = FullSession(model.value());
      Prefill(*session, ids, 0, at["n"].get<size_t>());
      all.All(*session, at["values"]);
    }
  }

  Json case_;
  ConvertOptions options_;
};

TEST_P(RopeExtensionCase, ComputesWhatTransformersDoes) {
  const std::string name = case_["checkpoint"], data = std::string(KVC_TEST_DATA);
  Compare(data + "/reference/hf_" + name);
  const std::string gguf = data + "/reference_gguf/" + name + ".gguf";
  if (std::filesystem::exists(gguf)) Compare(gguf);
}

std::string NameOf(const testing::TestParamInfo<size_t>& info) {
  const Json one = Cases()[info.param];
  std::string name = one["checkpoint"].get<std::string>() + "_" + one["rope"].get<std::string>() + "_" +
                     std::to_string(one["context"].get<int>());
  std::replace(name.begin(), name.end(), ':', '_');
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, RopeExtensionCase, testing::Range(size_t{0}, Cases().size()), NameOf);

// All forms and both formats are among the cases.
TEST(RopeExtensionCases, CoverEveryForm) {
  std::set<std::string> forms, from_gguf;
  for (const Json& one : Cases()) {
    const std::string rope = one["rope"], form = rope.substr(0, rope.find(':'));
    forms.insert(form);
    if (std::filesystem::exists(std::string(KVC_TEST_DATA) + "/reference_gguf/" +
                                one["checkpoint"].get<std::string>() + ".gguf"))
      from_gguf.insert(form);
  }
  EXPECT_EQ(forms, std::set<std::string>({"yarn", "linear", "dynamic"}));
  EXPECT_EQ(from_gguf, forms);
}

}  // namespace
}  // namespace kvc

// Logits and greedy continuations of the trained model against transformers in float32.
#include "tests/golden/reference_vectors.h"

namespace kvc {
namespace {

TEST(ReferenceRecall, Transformers) {
  const auto model = Converted(std::string(KVC_SOURCE_DIR) + "/models/recall", WeightChoice::kF32);
  ASSERT_NE(model, nullptr);
  const Json reference = ReadReference("recall_transformers.json"), golden = ReadGolden("model/full.json");
  size_t n_whole = 0;
  for (const Json& expected : reference["cases"]) {
    const std::string name = expected["prompt"];
    const auto prompt = std::find_if(golden["prompts"].begin(), golden["prompts"].end(),
                                     [&](const Json& p) { return p["name"] == name; });
    ASSERT_NE(prompt, golden["prompts"].end()) << name;
    const Tokens ids = (*prompt)["ids"];
    const size_t n = expected["n"];
    const std::string label = name + "_" + std::to_string(n);
    SCOPED_TRACE(label);
    const auto session = FullSession(model);
    Prefill(*session, ids, 0, n);
    Comparison last(label);
    last.Pairs(*session, expected["top50"]);
    last.At(*session, reference["fixed_ids"], expected["fixed"]);
    if (!CheckContinuation(*session, expected)) continue;
    Comparison after(label + "_after_continuation");
    after.At(*session, reference["fixed_ids"], expected["after_fixed"]);
    ++n_whole;
  }
  EXPECT_GE(n_whole, 2u);
}

}  // namespace
}  // namespace kvc

// Every method on the trained model against reference values (tests/data/goldens/model): kept positions, the
// first decode step, greedy continuations, what is left after decode. Where the reference's margin says a
// head was decided by less than f32 can tell, it may differ.
#include <gtest/gtest.h>

#include <filesystem>

#include "lib/engine/session.h"
#include "tests/golden/golden_files.h"
#include "tests/golden/recall_model.h"
#include "tests/support/emulated.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr double kMargin = 2e-4;  // f32 with angles in double

std::shared_ptr<const Model> Recall() { return test::RecallF32(); }

class ModelCase {
 public:
  ModelCase(const Json& golden, const Json& prompt) : prompt_(prompt) {
    const std::string spec =
        GoldenSpec(golden["method"], golden.value("budget", 0), golden.value("options", Json::object()));
    Result<Policy> policy = ParsePolicy(spec.c_str());
    EXPECT_TRUE(policy.ok()) << spec << ": " << policy.status().message();
    for (double s : GoldenScores(golden.value("options", Json::object())))
      policy.value().head_scores.push_back(static_cast<float>(s));
    auto session = Session::Create(Recall(), &policy.value(), {});
    EXPECT_TRUE(session.ok()) << session.status().message();
    session_ = std::move(session.value());
    const std::vector<int32_t> ids = prompt["ids"];
    const Status status = session_->Prefill(ids, true);
    EXPECT_TRUE(status.ok()) << status.message();
    tolerance_ = !golden.contains("options") || !golden["options"].contains("bits") ? 2e-4
                 : golden["options"]["bits"] == 8                                   ? 5e-3
                                                                                    : 3e-2;
  }

  void CheckKept(const char* field) {
    if (!prompt_.contains(field)) return;
    const ModelConfig& c = Recall()->config();
    for (int layer = 0; layer < c.n_layers; ++layer) {
      for (int g = 0; g < c.n_kv_heads; ++g) {
        std::vector<int32_t> kept;
        EXPECT_TRUE(session_->Kept(layer, g, &kept).ok());
        if (kept == prompt_[field][layer][g].get<std::vector<int32_t>>()) continue;
        EXPECT_LE(SmallestMargin(layer, g), kMargin) << field << " layer " << layer << " head " << g;
        ++differing_;
      }
    }
  }

  void CheckFirstToken() {
    if (!prompt_.contains("last_top20")) return;
    const std::vector<float> logits = test::LogitsOf(*session_);
    for (const Json& pair : prompt_["last_top20"]) {
      EXPECT_NEAR(logits[pair[0].get<size_t>()], pair[1].get<double>(), 5e-4) << "token " << pair[0];
    }
  }

  void CheckContinuation() {
    const std::vector<int32_t> expected = prompt_["continuation"];
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i == 1) CheckFirstStep();
      // Two tokens too close to tell apart, or one at which an answer ends: the reference's is fed.
      const bool close = prompt_["gap"][i].get<double>() < 5 * (i == 0 ? 5e-4 : tolerance_);
      if (close || Recall()->tokenizer().IsStop(expected[i])) {
        const Status status = session_->Accept(expected[i]);
        ASSERT_TRUE(status.ok()) << status.message();
        ++fed_;
        continue;
      }
      int32_t token = -1;
      const Status status = session_->Step(&token);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(token, expected[i]) << "token " << i;
    }
    CheckKept("final_kept");
  }

  int differing() const { return differing_; }
  int fed() const { return fed_; }

 private:
  void CheckFirstStep() {
    const std::vector<float> logits = test::LogitsOf(*session_);
    for (const Json& pair : prompt_["first_step_top5"]) {
      EXPECT_NEAR(logits[pair[0].get<size_t>()], pair[1].get<double>(), tolerance_) << "token " << pair[0];
    }
  }

  double SmallestMargin(int layer, int g) const {
    double margin = INFINITY;
    if (prompt_.contains("margin")) {
      const Json& of_layer = prompt_["margin"][layer];
      const size_t per_head = of_layer.size() / static_cast<size_t>(Recall()->config().n_kv_heads);
      for (size_t j = 0; j < per_head; ++j)
        margin = std::min(margin, Margin(of_layer[static_cast<size_t>(g) * per_head + j]));
    }
    if (prompt_.contains("alloc_margin")) margin = std::min(margin, Margin(prompt_["alloc_margin"][layer]));
    if (prompt_.contains("decode_margin")) margin = std::min(margin, Margin(prompt_["decode_margin"][layer]));
    return margin;
  }

  const Json& prompt_;
  std::unique_ptr<Session> session_;
  double tolerance_ = 2e-4;
  int differing_ = 0, fed_ = 0;
};

// METHOD_bBUDGET; of an emulated processor every method with its smallest budget but one.
std::vector<std::string> Files() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(KVC_TEST_DATA) + "/goldens/model")) {
    const std::string name = entry.path().stem().string();
    if (!test::kUnderQemu || name == "full" || name.rfind("_b32") == name.size() - 4) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class GoldenModel : public testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, KeptAndContinuation) {
  const Json golden = ReadGolden("model/" + GetParam() + ".json");
  for (const Json& prompt : golden["prompts"]) {
    SCOPED_TRACE(GetParam() + " " + prompt["name"].get<std::string>());
    ModelCase c(golden, prompt);
    if (HasFailure()) return;
    c.CheckFirstToken();
    c.CheckKept("kept");
    c.CheckContinuation();
    RecordProperty("heads_that_differ", c.differing());
    RecordProperty("tokens_fed", c.fed());
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, testing::ValuesIn(Files()), [](const auto& name) {
  std::string s = name.param;
  for (char& ch : s) ch = ch == '-' ? '_' : ch;
  return s;
});

}  // namespace
}  // namespace kvc

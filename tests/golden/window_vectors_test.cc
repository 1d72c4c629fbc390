// Compression of models whose layers differ, against transformers: what the heads of layers that see all
// tokens keep, and the logits behind it. tests/vectors/make_window_vectors.py says how the vectors were made.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "lib/engine/session.h"
#include "models/convert/convert.h"
#include "tests/golden/golden_files.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr double kTolerance = 1e-4;

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(KVC_TEST_DATA) + "/reference_windows"))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

class WindowVectors : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ifstream in(std::string(KVC_TEST_DATA) + "/reference_windows/" + GetParam() + ".json");
    reference_ = Json::parse(in);
    const test::TempFolder folder;
    ConvertOptions options;
    options.weights = WeightChoice::kF32;
    const Status status = Convert(std::string(KVC_TEST_DATA) + "/reference/" + GetParam(),
                                  folder / "model.kvc", options, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    auto opened = Model::Open(folder / "model.kvc", {});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    model_ = opened.value();
  }

  // Of layers that see all tokens as the reference says; the others have the newest, window and slack.
  void CheckKept(const Session& session, const Json& kept, int32_t n) const {
    const int32_t held = std::min<int32_t>(n, reference_["window"].get<int32_t>() + kSlack);
    for (int32_t layer = 0; layer < model_->config().n_layers; ++layer) {
      for (int32_t g = 0; g < model_->config().n_kv_heads; ++g) {
        std::vector<int32_t> positions;
        ASSERT_TRUE(session.Kept(layer, g, &positions).ok());
        const Json& expected = kept[static_cast<size_t>(layer)];
        if (!expected.is_null()) {
          EXPECT_EQ(positions, expected[static_cast<size_t>(g)].get<std::vector<int32_t>>())
              << "layer " << layer << ", head " << g;
          continue;
        }
        ASSERT_GE(static_cast<int32_t>(positions.size()),
                  std::min<int32_t>(n, reference_["window"].get<int32_t>()));
        EXPECT_LE(static_cast<int32_t>(positions.size()), held);
        EXPECT_EQ(positions.back(), n - 1);
        EXPECT_EQ(positions.front(), n - static_cast<int32_t>(positions.size()));
      }
    }
  }

  static constexpr int32_t kSlack =
      32 + 9;  // tokens that can be taken back, and those that a scorer reads again
  Json reference_;
  std::shared_ptr<const Model> model_;
};

TEST_P(WindowVectors, KeptAndContinued) {
  const std::vector<int32_t> ids = reference_["ids"];
  const size_t n_prompt = reference_["prompt"];
  size_t n_logits = 0;
  for (const auto& [name, expected] : reference_["cases"].items()) {
    SCOPED_TRACE(name);
    Result<Policy> policy = ParsePolicy(expected["policy"].get<std::string>().c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    if (expected.contains("scores"))
      policy.value().head_scores = expected["scores"].get<std::vector<float>>();
    auto made = Session::Create(model_, &policy.value(), {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    Session& session = *made.value();
    ASSERT_TRUE(session.Prefill({ids.data(), n_prompt}, true).ok());
    CheckKept(session, expected["kept"], static_cast<int32_t>(n_prompt));
    size_t fed = 0;
    for (const Json& at : expected["logits"]) {
      Session* const one = &session;
      for (; fed < at["n"].get<size_t>(); ++fed)
        ASSERT_TRUE(Session::FeedBatch({&one, 1}, &ids[n_prompt + fed]).ok());
      const std::vector<float> logits = test::LogitsOf(session);
      ASSERT_EQ(logits.size(), at["values"].size());
      for (size_t i = 0; i < logits.size(); ++i, ++n_logits)
        ASSERT_NEAR(logits[i], at["values"][i].get<double>(), kTolerance)
            << "token " << fed << ", logit " << i;
    }
  }
  EXPECT_EQ(n_logits, size_t{7 * 3 * 260});
}

INSTANTIATE_TEST_SUITE_P(All, WindowVectors, testing::ValuesIn(Names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace kvc

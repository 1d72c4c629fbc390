// Logits and greedy continuations against other engines: transformers in float32, for a small checkpoint of
// every kind of network; llama.cpp for stories260k. tests/vectors says how the vectors of
// tests/data/reference were made.
#include <filesystem>

#include "tests/golden/reference_vectors.h"

namespace kvc {
namespace {

// Where a checkpoint's weights become int8, activations are rounded to as many bits beside them.
constexpr double kRoundedTolerance = 0.1;
// Weights of 16 bits meet activations of as many on tensor cores (docs/cuda.md); a device that has them
// declares that it is not batch-invariant. It was 5e-4 while the emulated ones added in f32, in a lucky
// order: with sums that are exact but for their cut-off end InternLM 2's small model is 5.8e-4 away, with
// exact ones 5.5e-4; what is lost is lost with the activations' 17th bit.
constexpr double kTensorCoreTolerance = 1e-3;

std::vector<std::string> Checkpoints() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(KVC_TEST_DATA) + "/reference")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Weights as the checkpoint has them, and as f32.
class ReferenceCheckpoint : public testing::TestWithParam<std::tuple<std::string, WeightChoice>> {
 protected:
  void SetUp() override {
    const std::string& name = std::get<0>(GetParam());
    reference_ = ReadReference(name + "/logits.json");
    ids_ = reference_["ids"].get<Tokens>();
    model_ = Converted(std::string(KVC_TEST_DATA) + "/reference/" + name, std::get<1>(GetParam()),
                       reference_.value("context", 0));
    ASSERT_NE(model_, nullptr);
  }

  // Of MXFP4 every value is kept, as whole numbers.
  double Tolerance() const {
    const bool rounds =
        ReadReference(std::get<0>(GetParam()) + "/config.json").contains("quantization_config");
    if (std::get<1>(GetParam()) != WeightChoice::kKeep) return kTolerance;
    if (rounds) return kRoundedTolerance;
    return model_->device().info().batch_invariant ? kTolerance : kTensorCoreTolerance;
  }

  Json reference_;
  Tokens ids_;
  std::shared_ptr<const Model> model_;
};

TEST_P(ReferenceCheckpoint, PromptAndContinuation) {
  Comparison prompt("prompt", Tolerance());
  std::unique_ptr<Session> session;
  for (const Json& at : reference_["logits"]) {
    session = FullSession(model_);
    Prefill(*session, ids_, 0, at["n"].get<size_t>());
    prompt.All(*session, at["values"]);
  }
  ASSERT_TRUE(CheckContinuation(*session, reference_));
  Comparison after("after_continuation", Tolerance());
  after.All(*session, reference_["after"]);
}

TEST_P(ReferenceCheckpoint, PromptInParts) {
  Comparison parts("prompt_in_parts", Tolerance());
  const auto session = FullSession(model_);
  size_t begin = 0;
  for (const Json& at : reference_["logits"]) {
    const size_t end = at["n"].get<size_t>();
    Prefill(*session, ids_, begin, end);
    parts.All(*session, at["values"]);
    begin = end;
  }
}

TEST_P(ReferenceCheckpoint, TokenByToken) {
  Comparison tokens("token_by_token", Tolerance());
  const auto session = FullSession(model_);
  Session* const one[] = {session.get()};
  size_t fed = 0;
  for (const Json& at : reference_["logits"]) {
    if (fed == 0) Prefill(*session, ids_, 0, fed = 1);
    for (; fed < at["n"].get<size_t>(); ++fed) ASSERT_TRUE(Session::FeedBatch({one, 1}, &ids_[fed]).ok());
    tokens.All(*session, at["values"]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceCheckpoint,
                         testing::Combine(testing::ValuesIn(Checkpoints()),
                                          testing::Values(WeightChoice::kKeep, WeightChoice::kF32)),
                         [](const auto& name) {
                           return std::get<0>(name.param) +
                                  (std::get<1>(name.param) == WeightChoice::kF32 ? "_f32" : "_kept");
                         });

class ReferenceStories : public testing::Test {
 protected:
  void SetUp() override {
    model_ =
        Converted(std::string(KVC_SOURCE_DIR) + "/models/stories260k/stories260K.bin", WeightChoice::kF32);
    ASSERT_NE(model_, nullptr);
    reference_ = ReadReference("stories260k_llamacpp.json");
    ids_ = reference_["ids"].get<Tokens>();
  }

  std::shared_ptr<const Model> model_;
  Json reference_;
  Tokens ids_;  // BOS and its greedy continuation
};

TEST_F(ReferenceStories, GreedyFromBos) {
  ASSERT_EQ(ids_.size(), 201u);
  Comparison steps("steps");
  const auto session = FullSession(model_);
  Prefill(*session, ids_, 0, 1);
  auto at = reference_["logits"].begin();
  for (size_t n = 1; n <= ids_.size(); ++n) {
    if (at != reference_["logits"].end() && (*at)["n"] == n) steps.Pairs(*session, (*at++)["top20"]);
    if (n == ids_.size()) break;
    int32_t token = -1;
    ASSERT_TRUE(session->Step(&token).ok());
    ASSERT_EQ(token, ids_[n]) << "token " << n;
    ASSERT_TRUE(session->FeedPending().ok());
  }
  EXPECT_EQ(at, reference_["logits"].end());
}

TEST_F(ReferenceStories, AsPrompt) {
  Comparison prompts("prompts");
  for (const Json& at : reference_["logits"]) {
    const auto session = FullSession(model_);
    Prefill(*session, ids_, 0, at["n"].get<size_t>());
    prompts.Pairs(*session, at["top20"]);
  }
}

}  // namespace
}  // namespace kvc

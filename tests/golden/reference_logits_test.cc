// Logits and greedy continuations against other engines: transformers in float32, for the trained model and
// for a small checkpoint of every kind of network; llama.cpp for stories260k. tests/vectors says how the
// vectors of tests/data/reference were made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lib/engine/session.h"
#include "models/convert/convert.h"
#include "tests/golden/golden_files.h"
#include "tests/support/tiny_session.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

constexpr double kTolerance = 1e-4;
// Where a checkpoint's weights become int8, activations are rounded to as many bits beside them.
constexpr double kRoundedTolerance = 0.1;
// Two tokens whose logits are closer than this may change places.
constexpr double kSmallestGap = 5 * kTolerance;

using Tokens = std::vector<int32_t>;

Json ReadReference(const std::string& name) {
  std::ifstream in(std::string(KVC_TEST_DATA) + "/reference/" + name);
  return Json::parse(in);
}

std::shared_ptr<const Model> Converted(const std::string& source, WeightChoice weights, int32_t context = 0) {
  test::TempFolder folder;
  ConvertOptions options;
  options.weights = weights, options.context = context;
  const Status status = Convert(source, folder / "model.kvc", options, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  if (!status.ok()) return nullptr;
  auto opened = Model::Open(folder / "model.kvc", {});
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? opened.value() : nullptr;
}

std::unique_ptr<Session> FullSession(std::shared_ptr<const Model> model) {
  const Result<Policy> policy = ParsePolicy("full:kv=f32");
  EXPECT_TRUE(policy.ok());
  auto session = Session::Create(std::move(model), &policy.value(), {});
  EXPECT_TRUE(session.ok()) << session.status().message();
  return std::move(session.value());
}

void Prefill(Session& session, const Tokens& ids, size_t begin, size_t end) {
  const Status status = session.Prefill({ids.data() + begin, end - begin}, true);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Collects the largest difference to the reference; every one above the tolerance is a failure.
class Comparison {
 public:
  explicit Comparison(std::string name, double tolerance = kTolerance)
      : name_(std::move(name)), tolerance_(tolerance) {}
  ~Comparison() {
    testing::Test::RecordProperty(name_, Format("%.2g", worst_));
    EXPECT_GT(n_, 0) << name_;
    EXPECT_LE(worst_, tolerance_) << name_ << ", of " << n_ << " logits";
  }
  void One(const std::vector<float>& logits, size_t id, double expected) {
    const double difference = std::fabs(logits[id] - expected);
    worst_ = std::isfinite(difference) ? std::max(worst_, difference) : INFINITY;
    ++n_;
  }
  void All(Session& session, const Json& values) {
    const std::vector<float> logits = test::LogitsOf(session);
    ASSERT_EQ(logits.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) One(logits, i, values[i].get<double>());
  }
  void Pairs(Session& session, const Json& pairs) {
    const std::vector<float> logits = test::LogitsOf(session);
    for (const Json& pair : pairs) One(logits, pair[0].get<size_t>(), pair[1].get<double>());
  }
  void At(Session& session, const Json& ids, const Json& values) {
    const std::vector<float> logits = test::LogitsOf(session);
    ASSERT_EQ(ids.size(), values.size());
    for (size_t i = 0; i < ids.size(); ++i) One(logits, ids[i].get<size_t>(), values[i].get<double>());
  }

 private:
  std::string name_;
  double tolerance_, worst_ = 0;
  size_t n_ = 0;
};

// True when all of the continuation could be compared: no stop token, no two tokens too close to tell apart.
bool CheckContinuation(Session& session, const Json& reference) {
  const Tokens expected = reference["continuation"];
  for (size_t i = 0; i < expected.size(); ++i) {
    if (reference["gap"][i].get<double>() < kSmallestGap) return false;
    int32_t token = -1;
    const Status status = session.Step(&token);
    EXPECT_TRUE(status.ok()) << status.message();
    const bool stop = session.model().tokenizer().IsStop(expected[i]);
    EXPECT_EQ(token, stop ? -1 : expected[i]) << "token " << i;
    if (stop || token != expected[i]) return false;
  }
  const Status status = session.FeedPending();
  EXPECT_TRUE(status.ok()) << status.message();
  return true;
}

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
    return rounds && std::get<1>(GetParam()) == WeightChoice::kKeep ? kRoundedTolerance : kTolerance;
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

// The same checkpoints as llama.cpp's converter writes them: its names, its order of rows, what it leaves to
// be known by the name of the architecture.
class ReferenceGgufFamily : public testing::TestWithParam<std::string> {};

TEST_P(ReferenceGgufFamily, ComputesWhatItsCheckpointDoes) {
  const Json reference = ReadReference("hf_" + GetParam() + "/logits.json");
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

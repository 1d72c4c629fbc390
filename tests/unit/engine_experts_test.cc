// Sessions of a model with experts: batches, drafts and restored sessions give the bits of plain steps,
// whatever the threads, and a plan knows what the experts' rows take.
#include <gtest/gtest.h>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::ExpectNearLogits;
using test::FedSession;
using test::LogitsOf;
using test::OpenTiny;
using test::Steps;

const test::AlignedBytes& Bytes() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_experts = 12, options.n_chosen = 3, options.normalise_experts = true;
    options.type = WeightType::kInt8, options.layout = WeightLayout::kPanels16;
    return test::TinyModelBytes(options);
  }();
  return bytes;
}

constexpr char kSpec[] = "snapkv:budget=24,window=8";

TEST(EngineExperts, ABatchGivesWhatSingleStepsDo) {
  const auto one = OpenTiny(Bytes(), 1), three = OpenTiny(Bytes(), 3);
  std::vector<std::unique_ptr<Session>> alone, together;
  std::vector<Session*> batch;
  for (int i = 0; i < 5; ++i) {
    alone.push_back(FedSession(one, kSpec, 40 + 13 * i));
    together.push_back(FedSession(three, kSpec, 40 + 13 * i));
    batch.push_back(together.back().get());
  }
  for (int32_t step = 0; step < 6; ++step) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 5; ++i) tokens.push_back((31 * step + 7 * i) % 250);
    ASSERT_TRUE(Session::FeedBatch({batch.data(), batch.size()}, tokens.data()).ok());
    for (size_t i = 0; i < alone.size(); ++i) {
      test::FeedTokens(*alone[i], {tokens[i]});
      SCOPED_TRACE(testing::Message() << "step " << step << " session " << i);
      ExpectNearLogits(*alone[i], *together[i], one->device().info().batch_invariant ? 0.0f : 1e-4f);
    }
  }
}

TEST(EngineExperts, DraftsChangeNoToken) {
  const auto model = OpenTiny(Bytes());
  const auto plain = FedSession(model, "full", 50), drafted = FedSession(model, "full", 50);
  const std::vector<int32_t> answer = Steps(*plain, 24);
  std::vector<int32_t> got;
  while (got.size() < answer.size()) {
    std::vector<int32_t> draft(answer.begin() + static_cast<ptrdiff_t>(got.size()), answer.end());
    draft.resize(std::min<size_t>(draft.size(), 5));
    if (!draft.empty()) draft.back() = (draft.back() + 1) % 250;  // its end is wrong
    int32_t tokens[8], n = 0;
    ASSERT_TRUE(drafted->StepDraft({draft.data(), draft.size()}, tokens, 8, &n).ok());
    ASSERT_GT(n, 0);
    got.insert(got.end(), tokens, tokens + n);
  }
  got.resize(answer.size());
  EXPECT_EQ(answer, got);
}

TEST(EngineExperts, ARestoredSessionGoesOnWithTheSameBits) {
  const auto model = OpenTiny(Bytes());
  const test::TempFolder folder;
  const auto session = FedSession(model, kSpec, 90);
  ASSERT_TRUE(session->Save(folder / "s").ok());
  auto restored = Session::Restore(OpenTiny(Bytes(), 1), folder / "s");
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(Steps(*session, 8), Steps(*restored.value(), 8));
  EXPECT_EQ(LogitsOf(*session), LogitsOf(*restored.value()));
}

// Choosing other experts, or weighing them otherwise, is another model.
TEST(EngineExperts, TheFingerprintKnowsWhoIsChosen) {
  test::TinyModelOptions options;
  std::vector<uint64_t> fingerprints;
  for (const auto& [n_chosen, normalise] : {std::pair(2, false), {3, false}, {2, true}}) {
    options.n_experts = 4, options.n_chosen = n_chosen, options.normalise_experts = normalise;
    const test::AlignedBytes bytes = test::TinyModelBytes(options);
    fingerprints.push_back(OpenTiny(bytes)->file().fingerprint());
  }
  EXPECT_NE(fingerprints[0], fingerprints[1]);
  EXPECT_NE(fingerprints[0], fingerprints[2]);
}

// Rows of experts are scratch of the device: planned, and what a session then takes.
TEST(EngineExperts, APlanIsWhatIsTaken) {
  const auto model = OpenTiny(Bytes());
  const Result<Policy> policy = ParsePolicy(kSpec);
  ASSERT_TRUE(policy.ok());
  SessionParams params;
  params.max_tokens = 700;
  const auto plan = Session::Plan(model, &policy.value(), params, 600);
  ASSERT_TRUE(plan.ok());
  const auto session = FedSession(model, kSpec, 600, params);
  Steps(*session, 4);
  const int64_t peak = model->meter()->peak();
  EXPECT_LE(peak, plan.value().total_bytes_peak);
  // A plan counts two granules of memory for each arena, which a small session may not have begun.
  const int64_t begun = peak + 2 * model->device().info().granule;
  EXPECT_GE(static_cast<double>(begun), 0.95 * static_cast<double>(plan.value().total_bytes_peak));
}

}  // namespace
}  // namespace kvc

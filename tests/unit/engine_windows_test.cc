// Models whose layers differ in their windows: what is compressed, what is refused, and that a session is the
// same however its tokens come.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/engine/session.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr int32_t kWindow = 12;

// Three layers: one slides, one does not rotate, one is plain. With caps, as models with windows often have
// them.
std::shared_ptr<const Model> MixedModel() {
  test::TinyModelOptions options;
  options.n_layers = 3, options.max_tokens = 256;
  ModelFileContent content = test::TinyModelContent(options);
  content.config.layers = {{kWindow, 0}, {0, -1}, {0, 0}};
  content.config.attention_cap = 5, content.config.logit_cap = 20;
  const test::TempFolder folder;
  const Status written = test::WriteTinyModel(options, std::move(content), folder / "m.kvc");
  EXPECT_TRUE(written.ok()) << written.message();
  auto model = Model::Open(folder / "m.kvc", {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? model.value() : nullptr;
}

Result<std::unique_ptr<Session>> NewSession(const std::shared_ptr<const Model>& model, const char* spec,
                                            int32_t max_tokens) {
  const Result<Policy> policy = ParsePolicy(spec);
  EXPECT_TRUE(policy.ok());
  SessionParams params;
  params.max_tokens = max_tokens;
  return Session::Create(model, &policy.value(), params);
}

std::vector<int32_t> Tokens(int32_t n) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < n; ++i) ids.push_back((i * 37 + 11) % 250);
  return ids;
}

// Where every layer slides there is nothing to compress; within the window they are layers like others.
TEST(Windows, CompressionIsRefusedWhereEveryLayerSlides) {
  test::TinyModelOptions options;
  options.sliding_window = kWindow;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  for (const char* spec : {"snapkv:budget=8,window=4", "streaming:budget=8", "cokv:budget=8,window=4"}) {
    for (const int32_t max_tokens : {0, kWindow + 1, 256}) {
      const auto refused = NewSession(model, spec, max_tokens);
      ASSERT_FALSE(refused.ok()) << spec;
      EXPECT_EQ(refused.status().code(), Code::kUnsupported);
      EXPECT_NE(
          refused.status().message().find("every layer of this model attends to its newest 12 tokens only"),
          std::string::npos)
          << refused.status().message();
      const Result<Policy> policy = ParsePolicy(spec);
      SessionParams params;
      params.max_tokens = max_tokens;
      EXPECT_EQ(Session::Plan(model, &policy.value(), params, 5).status().code(), Code::kUnsupported);
    }
    if (std::string(spec).rfind("streaming", 0) == 0) continue;  // counts beyond any window
    const auto session = NewSession(model, spec, kWindow);
    ASSERT_TRUE(session.ok()) << session.status().message();
    EXPECT_TRUE(session.value()->Prefill(Tokens(kWindow - 1), true).ok());
    int32_t token = -1;
    EXPECT_TRUE(session.value()->Step(&token).ok());
  }
  auto full = NewSession(model, "full:kv=mixed,scores=tiny-ssv,quant_group=8", 0);
  ASSERT_TRUE(full.ok()) << full.status().message();
  ASSERT_TRUE(full.value()->Prefill(Tokens(100), true).ok());
  test::Steps(*full.value(), 200);
  EXPECT_LE(full.value()->Stats().n_slots, 4 * (kWindow + 32 + 64));
}

// What left a window does not come back: a rewind that would need it says how far it can go, and can go
// there.
TEST(Windows, RewindGoesAsFarAsWindowsReach) {
  const auto model = MixedModel();
  ASSERT_NE(model, nullptr);
  const auto session = NewSession(model, "full:kv=f32", 0);
  ASSERT_TRUE(session.ok());
  Session& s = *session.value();
  const std::vector<int32_t> ids = Tokens(200);
  ASSERT_TRUE(s.Prefill({ids.data(), 150}, true).ok());
  test::FeedTokens(s, {ids.begin() + 150, ids.begin() + 155});
  const int32_t most = 32 + 1 + 5;  // the newest token shows as many as the window less itself
  const auto expect_refused = [&s](int32_t n) {
    const Status refused = s.Rewind(n + 1);
    EXPECT_EQ(refused.code(), Code::kUnsupported);
    EXPECT_NE(refused.message().find("can be taken back by " + std::to_string(n)), std::string::npos)
        << refused.message();
  };
  expect_refused(most);
  ASSERT_TRUE(s.Accept(3).ok());
  expect_refused(most + 1);  // the one that waits is in no window
  ASSERT_TRUE(s.Rewind(1).ok());
  const Status status = s.Rewind(most);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(s.Prefill({ids.data() + 155 - most, 20}, false).ok());
  test::FeedTokens(s, {ids.begin() + 155 - most + 20, ids.begin() + 200});
  const auto fresh = NewSession(model, "full:kv=f32", 0);
  ASSERT_TRUE(fresh.ok() && fresh.value()->Prefill({ids.data(), 1}, true).ok());
  test::FeedTokens(*fresh.value(), {ids.begin() + 1, ids.begin() + 200});
  const std::vector<float> a = test::LogitsOf(s), b = test::LogitsOf(*fresh.value());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << i;
}

// What a session would hold if nothing had been dropped is what one that keeps everything holds.
TEST(Windows, FullIsWhatFullSessionsHold) {
  const auto model = MixedModel();
  ASSERT_NE(model, nullptr);
  for (const int32_t n : {1, 43, 44, 45, 63, 64, 65, 128, 129}) {
    const auto session = NewSession(model, "full:kv=f32", 0);
    ASSERT_TRUE(session.ok() && session.value()->Prefill(Tokens(n), true).ok());
    const SessionStats stats = session.value()->Stats();
    EXPECT_EQ(stats.cache_bytes_full, stats.cache_bytes) << n;
    EXPECT_EQ(stats.n_slots_full, stats.n_slots) << n;
  }
}

// What begins anew needs nothing of what left.
TEST(Windows, AllTokensCanBeTakenBack) {
  const auto model = MixedModel();
  ASSERT_NE(model, nullptr);
  auto session = NewSession(model, "full:kv=f32", 0), fresh = NewSession(model, "full:kv=f32", 0);
  ASSERT_TRUE(session.ok() && fresh.ok());
  ASSERT_TRUE(session.value()->Prefill(Tokens(150), true).ok());
  ASSERT_TRUE(session.value()->Rewind(150).ok());
  EXPECT_EQ(session.value()->Stats().cache_bytes, 0);
  EXPECT_EQ(session.value()->Stats().n_slots, 0);
  const std::vector<int32_t> ids = Tokens(70);
  for (Session* s : {session.value().get(), fresh.value().get()}) {
    ASSERT_TRUE(s->Prefill({ids.data(), 60}, true).ok());
    test::FeedTokens(*s, {ids.begin() + 60, ids.end()});
  }
  EXPECT_EQ(test::LogitsOf(*session.value()), test::LogitsOf(*fresh.value()));
}

TEST(Windows, APromptAndItsTokensOneByOneGiveTheSameLogits) {
  const auto model = MixedModel();
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> ids = Tokens(5 * kWindow);
  auto whole = NewSession(model, "full:kv=f32", 0), steps = NewSession(model, "full:kv=f32", 0);
  ASSERT_TRUE(whole.ok() && steps.ok());
  ASSERT_TRUE(whole.value()->Prefill(ids, true).ok());
  ASSERT_TRUE(steps.value()->Prefill({ids.data(), 1}, true).ok());
  Session* const one[] = {steps.value().get()};
  for (size_t i = 1; i < ids.size(); ++i) ASSERT_TRUE(Session::FeedBatch({one, 1}, &ids[i]).ok());
  const std::vector<float> a = test::LogitsOf(*whole.value()), b = test::LogitsOf(*steps.value());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], 1e-5) << i;
    EXPECT_LE(std::fabs(a[i]), 20.0f);
  }
}

}  // namespace
}  // namespace kvc

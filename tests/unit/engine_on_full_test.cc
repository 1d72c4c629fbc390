// What happens at max_tokens: on_full = error, evict or slide, over full and over compressed caches.
#include "lib/engine/session.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::TinyPrompt;

constexpr int kMax = 60;

// One layer: keys and values are those of the tokens alone, whatever was attended before.
std::shared_ptr<const Model> OneLayer() {
  test::TinyModelOptions options;
  options.n_layers = 1;
  static const test::AlignedBytes bytes = test::TinyModelBytes(options);
  return test::OpenTiny(bytes);
}

std::shared_ptr<const Model> TwoLayers() {
  static const test::AlignedBytes bytes = test::TinyModelBytes({});
  return test::OpenTiny(bytes);
}

Result<std::unique_ptr<Session>> Create(const std::shared_ptr<const Model>& model, const char* spec,
                                        OnFull on_full, int max_tokens = kMax) {
  const Result<Policy> policy = ParsePolicy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  SessionParams params;
  params.max_tokens = max_tokens, params.on_full = on_full;
  return Session::Create(model, &policy.value(), params);
}

std::unique_ptr<Session> Fed(const std::shared_ptr<const Model>& model, const char* spec, OnFull on_full,
                             int max_tokens = kMax) {
  auto made = Create(model, spec, on_full, max_tokens);
  EXPECT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE(made.value()->Prefill(TinyPrompt(kMax), true).ok());
  return std::move(made.value());
}

void Feed(Session& session, int32_t token) {
  Session* const one = &session;
  const Status status = Session::FeedBatch({&one, 1}, &token);
  ASSERT_TRUE(status.ok()) << status.message();
}

void ExpectSameLogits(const Session& a, const Session& b, float tolerance) {
  for (size_t i = 0; i < a.logits().size(); ++i) ASSERT_NEAR(a.logits()[i], b.logits()[i], tolerance) << i;
}

// StreamingLLM over the context: the same rule by two ways through the code.
TEST(OnFull, SlideOfAFullCacheIsStreaming) {
  const auto model = TwoLayers();
  const auto slides = Fed(model, "full:kv=f32", OnFull::kSlide);
  const auto streams = Fed(model, "streaming:budget=60,n_sink=4,kv=f32", OnFull::kError, 400);
  for (int i = 0; i < 150; ++i) {
    int32_t a = -1, b = -1;
    ASSERT_TRUE(slides->Step(&a).ok());
    ASSERT_TRUE(streams->Step(&b).ok());
    ASSERT_EQ(a, b) << i;
  }
  ExpectSameLogits(*slides, *streams, 0.0f);
}

// Keys of a compressed cache carry positions with gaps; sliding turns them to their slots, as a session that
// counted in slots from its first dropped entry has them.
TEST(OnFull, SlideOfACompressedCacheCountsInSlots) {
  const auto model = OneLayer();
  for (const char* spec : {"snapkv:budget=24,window=8,kv=f32", "cokv:budget=24,window=8,kv=f32"}) {
    SCOPED_TRACE(spec);
    const auto slides = Fed(model, spec, OnFull::kSlide);
    const auto counts_in_slots =
        Fed(model, (std::string(spec) + ",pos_mode=incache").c_str(), OnFull::kSlide);
    const std::vector<int32_t> tokens = TinyPrompt(12, 11);
    for (size_t i = 0; i < tokens.size(); ++i) {
      Feed(*slides, tokens[i]);
      Feed(*counts_in_slots, tokens[i]);
      if (i == 0) continue;  // the step that makes room still sees the old positions
      ExpectSameLogits(*slides, *counts_in_slots, 2e-5f);
    }
  }
}

TEST(OnFull, EvictionKeepsOriginalPositions) {
  const auto session = Fed(TwoLayers(), "snapkv:budget=24,window=8,kv=f32", OnFull::kEvict);
  const int64_t slots = session->Stats().n_slots;
  std::vector<int32_t> before, kept;
  session->Kept(0, 0, &before);
  for (int32_t token : TinyPrompt(30, 11)) Feed(*session, token);
  EXPECT_EQ(session->Stats().n_slots, slots);
  session->Kept(0, 0, &kept);
  EXPECT_EQ(kept.back(), kMax + 29);
  EXPECT_TRUE(std::equal(kept.begin(), kept.begin() + 4, before.begin())) << "the first four stay";
}

// Stored queries and codebooks know original positions only.
TEST(OnFull, WhatCannotCountInSlotsIsRefused) {
  for (const char* spec : {"snapkv:budget=24,window=8,decode=reobserve", "spindlekv:budget=24,window=8"}) {
    const auto refused = Create(TwoLayers(), spec, OnFull::kSlide);
    ASSERT_FALSE(refused.ok()) << spec;
    EXPECT_EQ(refused.status().code(), Code::kUnsupported);
    EXPECT_NE(refused.status().message().find("on_full=slide"), std::string::npos)
        << refused.status().message();
    EXPECT_TRUE(Create(TwoLayers(), spec, OnFull::kEvict).ok()) << spec;
  }
}

TEST(OnFull, ErrorLeavesTheSessionAsItWas) {
  const auto session = Fed(TwoLayers(), "snapkv:budget=24,window=8,kv=f32", OnFull::kError);
  int32_t token = -1;
  ASSERT_TRUE(session->Step(&token).ok());
  for (int i = 0; i < 2; ++i) {
    const Status full = session->Step(&token);
    EXPECT_EQ(full.code(), Code::kContextFull);
    EXPECT_NE(full.message().find("max_tokens=60"), std::string::npos) << full.message();
  }
  ASSERT_TRUE(session->Rewind(1).ok());
}

}  // namespace
}  // namespace kvc

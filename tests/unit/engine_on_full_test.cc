// What happens at max_tokens: on_full = error, evict or slide, over full and over compressed caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::ExpectNearLogits;
using test::ExpectSameKept;
using test::FeedTokens;
using test::OpenOneLayer;
using test::OpenTwoLayers;
using test::TinyPrompt;

constexpr int kMax = 60;

std::unique_ptr<Session> Fed(const std::shared_ptr<const Model>& model, const std::string& spec,
                             OnFull on_full, int max_tokens = kMax) {
  SessionParams params;
  params.max_tokens = max_tokens, params.on_full = on_full;
  return test::FedSession(model, spec, kMax, params);
}

// StreamingLLM over the context: the same rule by two ways through the code.
TEST(OnFull, SlideOfAFullCacheIsStreaming) {
  const auto model = OpenTwoLayers();
  const auto slides = Fed(model, "full:kv=f32", OnFull::kSlide);
  const auto streams = Fed(model, "streaming:budget=60,n_sink=4,kv=f32", OnFull::kError, 400);
  for (int i = 0; i < 150; ++i) {
    int32_t a = -1, b = -1;
    ASSERT_TRUE(slides->Step(&a).ok());
    ASSERT_TRUE(streams->Step(&b).ok());
    ASSERT_EQ(a, b) << i;
  }
  ExpectNearLogits(*slides, *streams, 0.0f);
}

// The same stays whether tokens come one at a time, all at once or in parts, also in heads of no more entries
// than are never dropped.
TEST(OnFull, TheSameStaysHoweverTokensCome) {
  const auto model = OpenTwoLayers();
  for (const std::string spec :
       {"full", "snapkv:budget=5,window=4,kernel=1", "cokv:budget=12,window=4,kernel=1",
        "cokv:budget=3,window=2,kernel=1", "snapkv:budget=24,window=8", "knorm:budget=10"}) {
    for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
      for (const int max_tokens : {1, 3, 4, 5, 6, 40}) {
        SCOPED_TRACE(spec + ", max_tokens " + std::to_string(max_tokens));
        SessionParams params;
        params.max_tokens = max_tokens, params.on_full = on_full;
        const int n_prompt = std::min(max_tokens, 30);
        const auto steps = test::FedSession(model, spec, n_prompt, params),
                   at_once = test::FedSession(model, spec, n_prompt, params),
                   in_parts = test::FedSession(model, spec, n_prompt, params);
        const std::vector<int32_t> tokens = TinyPrompt(45, 3);
        FeedTokens(*steps, tokens);
        ASSERT_TRUE(at_once->Prefill(tokens, false).ok());
        for (size_t at = 0, n = 1; at < tokens.size();
             at += n, n = std::min<size_t>(2 * n + 1, tokens.size() - at))
          ASSERT_TRUE(in_parts->Prefill({tokens.data() + at, n}, false).ok());
        ExpectSameKept(*steps, *at_once);
        ExpectSameKept(*steps, *in_parts);
      }
    }
  }
}

// Keys of a compressed cache carry positions with gaps; sliding turns them to their slots, as a session that
// counted in slots from its first dropped entry has them.
TEST(OnFull, SlideOfACompressedCacheCountsInSlots) {
  const auto model = OpenOneLayer();
  for (const std::string spec :
       {"snapkv:budget=24,window=8,kv=f32", "cokv:budget=24,window=8,kv=f32",
        "snapkv:budget=24,window=8,kv=f32,decode=reobserve,slack=0",
        "snapkv:budget=24,window=8,kv=f32,reducer=codebook", "spindlekv:budget=24,window=8,kv=f32"}) {
    SCOPED_TRACE(spec);
    const auto slides = Fed(model, spec, OnFull::kSlide),
               counts_in_slots = Fed(model, spec + ",pos_mode=incache", OnFull::kSlide);
    const std::vector<int32_t> tokens = TinyPrompt(12, 11);
    for (size_t i = 0; i < tokens.size(); ++i) {
      FeedTokens(*slides, {tokens[i]});
      FeedTokens(*counts_in_slots, {tokens[i]});
      ExpectSameKept(*slides, *counts_in_slots);
      if (i == 0) continue;  // the step that makes room still sees the old positions
      ExpectNearLogits(*slides, *counts_in_slots, 5e-5f);
    }
  }
}

// The step that makes room is looked at again behind its attention, when keys and queries count in slots
// already.
TEST(OnFull, TheStepThatMakesRoomIsObservedInSlots) {
  const auto model = OpenOneLayer();
  for (int budget = 12; budget <= 40; budget += 4) {
    const std::string spec =
        "snapkv:window=8,kv=f32,kernel=1,decode=reobserve,slack=0,budget=" + std::to_string(budget);
    const auto slides = Fed(model, spec, OnFull::kSlide),
               counts_in_slots = Fed(model, spec + ",pos_mode=incache", OnFull::kSlide);
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(spec + ", token of seed " + std::to_string(seed));
      const auto one = std::move(slides->Fork().value()), other = std::move(counts_in_slots->Fork().value());
      FeedTokens(*one, TinyPrompt(1, seed));
      FeedTokens(*other, TinyPrompt(1, seed));
      ExpectSameKept(*one, *other);
    }
  }
}

TEST(OnFull, EvictionKeepsOriginalPositions) {
  const auto session = Fed(OpenTwoLayers(), "snapkv:budget=24,window=8,kv=f32", OnFull::kEvict);
  const int64_t slots = session->Stats().n_slots;
  std::vector<int32_t> before, kept;
  EXPECT_TRUE(session->Kept(0, 0, &before).ok());
  FeedTokens(*session, TinyPrompt(30, 11));
  EXPECT_EQ(session->Stats().n_slots, slots);
  EXPECT_TRUE(session->Kept(0, 0, &kept).ok());
  EXPECT_EQ(kept.back(), kMax + 29);
  EXPECT_TRUE(std::equal(kept.begin(), kept.begin() + 4, before.begin())) << "the first four stay";
}

// A budget beyond the context is that of the context.
TEST(OnFull, BudgetsBeyondTheContextAreThatOfTheContext) {
  const auto model = OpenTwoLayers();
  for (const std::string method : {"h2o", "weightedkv", "ahakv", "tova"}) {
    SCOPED_TRACE(method);
    const auto least = Fed(model, method + ":kv=f32,budget=" + std::to_string(kMax), OnFull::kEvict);
    FeedTokens(*least, TinyPrompt(25, 7));
    for (const int32_t more : {1, kMax / 2, kMax, 4 * kMax}) {
      SCOPED_TRACE(more);
      const auto session =
          Fed(model, method + ":kv=f32,budget=" + std::to_string(kMax + more), OnFull::kEvict);
      FeedTokens(*session, TinyPrompt(25, 7));
      ExpectSameKept(*least, *session);
    }
  }
}

// Entries leave one at a time while others are coded several at once, over every border of a page.
TEST(OnFull, CodesGoOnBeingMade) {
  const auto model = OpenTwoLayers();
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    for (int budget = 12; budget <= 60; ++budget) {
      const std::string spec =
          "spindlekv:window=8,tail=" + std::to_string(budget % 9 + 2) + ",budget=" + std::to_string(budget);
      SCOPED_TRACE(spec);
      const auto session = Fed(model, spec, on_full);
      const int64_t slots = session->Stats().n_slots;
      FeedTokens(*session, TinyPrompt(50, 11));
      EXPECT_EQ(session->Stats().n_slots, slots);
    }
  }
}

// The token of a step that fills the context is fed before one leaves for those that come behind it, whatever
// feeds it.
TEST(OnFull, ATokenThatWaitsAtTheEndMakesNobodyLeave) {
  const auto model = OpenTwoLayers();
  for (const std::string spec : {"full:kv=f32", "snapkv:budget=24,window=8,kv=f32",
                                 "weightedkv:budget=24,wkv_prefill=sequential,kv=f32",
                                 "weightedkv:budget=100,wkv_prefill=sequential,kv=f32"}) {
    for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
      for (const bool prompt : {false, true}) {
        SCOPED_TRACE(spec + (prompt ? ", read" : ", fed"));
        SessionParams params;
        params.max_tokens = kMax, params.on_full = on_full;
        const auto waits = test::FedSession(model, spec, kMax - 1, params),
                   fed = test::FedSession(model, spec, kMax - 1, params);
        for (Session* s : {waits.get(), fed.get()}) ASSERT_TRUE(s->Accept(5).ok());
        ASSERT_TRUE(fed->FeedPending().ok());
        for (Session* s : {waits.get(), fed.get()}) {
          if (prompt) {
            ASSERT_TRUE(s->Prefill(TinyPrompt(5, 3), true).ok());
          } else {
            FeedTokens(*s, {7});
          }
          EXPECT_TRUE(s->makes_room());
        }
        ExpectSameKept(*waits, *fed);
        ExpectNearLogits(*waits, *fed, 0.0f);
      }
    }
  }
  const auto full = test::FedSession(model, "full", kMax - 1, [] {
    SessionParams params;
    params.max_tokens = kMax;
    return params;
  }());
  ASSERT_TRUE(full->Accept(5).ok());
  Session* const one = full.get();
  const int32_t token = 7;
  EXPECT_EQ(Session::FeedBatch({&one, 1}, &token).code(), Code::kContextFull);
  EXPECT_EQ(full->Stats().n_tokens, kMax);
}

// Nothing of what left, and of how heads shared what stayed, is known behind a reset.
TEST(OnFull, AResetSessionHasItsContextAgain) {
  const auto model = OpenTwoLayers();
  for (const std::string spec : {"full:kv=f32", "snapkv:budget=24,window=8", "h2o:budget=24,allocator=ada",
                                 "snapkv:budget=24,window=8,decode=reobserve,slack=3,allocator=ada"}) {
    for (const int n : {3, 40, -40}) {  // below 0: appended
      SCOPED_TRACE(spec + ", " + std::to_string(n));
      const auto used = Fed(model, spec, OnFull::kSlide);
      test::Steps(*used, 20);
      ASSERT_TRUE(used->makes_room());
      used->Reset();
      EXPECT_FALSE(used->makes_room());
      SessionParams params;
      params.max_tokens = kMax, params.on_full = OnFull::kSlide;
      const auto fresh = test::NewSession(model, spec, params);
      for (Session* s : {used.get(), fresh.get()})
        ASSERT_TRUE(s->Prefill(TinyPrompt(std::abs(n), 3), n > 0).ok());
      EXPECT_EQ(test::Steps(*used, 30), test::Steps(*fresh, 30));
      ExpectSameKept(*used, *fresh);
      ExpectNearLogits(*used, *fresh, 0.0f);
    }
  }
}

TEST(OnFull, ErrorLeavesTheSessionAsItWas) {
  const auto session = Fed(OpenTwoLayers(), "snapkv:budget=24,window=8,kv=f32", OnFull::kError);
  int32_t token = -1;
  ASSERT_TRUE(session->Step(&token).ok());
  for (int i = 0; i < 2; ++i) {
    const Status full = session->Step(&token);
    EXPECT_EQ(full.code(), Code::kContextFull);
    EXPECT_NE(full.message().find("max_tokens=60"), std::string::npos) << full.message();
  }
  ASSERT_TRUE(session->Rewind(1).ok());
}

// A session that makes room already, and has some again since a rewind: a few tokens that go past the end of
// the context are read before it and behind it. All of them go when they are not read to their end.
TEST(OnFull, APromptAcrossTheEndIsTakenBackWhole) {
  test::TinyModelOptions options;
  options.sliding_window = 16;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  SessionParams params;
  params.max_tokens = 100, params.on_full = OnFull::kEvict;
  const auto cancelled = test::FedSession(model, "full:kv=f32", 100, params),
             left = test::FedSession(model, "full:kv=f32", 100, params);
  for (Session* s : {cancelled.get(), left.get()}) {
    FeedTokens(*s, TinyPrompt(4, 3));
    ASSERT_TRUE(s->makes_room());
    ASSERT_TRUE(s->Rewind(15).ok());
  }
  const SessionStats before = cancelled->Stats();
  ASSERT_TRUE(cancelled->Enqueue(TinyPrompt(32, 9), false).ok());
  StepWish row;
  row.session = cancelled.get();
  Session::RunBatch({&row, 1}, 1);
  ASSERT_TRUE(row.status.ok()) << row.status.message();
  ASSERT_EQ(row.token, StepWish::kReading);
  cancelled->call().RequestCancel();
  Session::RunBatch({&row, 1}, 1);
  ASSERT_EQ(row.status.code(), Code::kCancelled);
  cancelled->call().ClearCancel();
  EXPECT_EQ(cancelled->Stats().n_prompt, before.n_prompt);
  EXPECT_EQ(cancelled->Stats().n_slots, before.n_slots);
  for (Session* s : {cancelled.get(), left.get()}) ASSERT_TRUE(s->Prefill(TinyPrompt(32, 5), false).ok());
  ExpectSameKept(*cancelled, *left);
  ExpectNearLogits(*cancelled, *left, 0.0f);
}

// A prompt past the end of the context is read and compressed in parts, the token of the last step before
// them. What that took is forgotten with it.
TEST(OnFull, APromptInPartsThatIsTakenBackLeavesTheTimes) {
  const auto model = test::OpenTwoLayers();
  SessionParams params;
  params.max_tokens = 100, params.on_full = OnFull::kEvict;
  const auto session = test::FedSession(model, "snapkv:budget=24,window=8", 60, params);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(session->Accept(i).ok());  // the last of them waits
  const SessionStats before = session->Stats();
  ASSERT_EQ(before.n_tokens, params.max_tokens);
  ASSERT_TRUE(session->Enqueue(TinyPrompt(600, 9), true).ok());
  for (int i = 0; session->Stats().compress_seconds == before.compress_seconds; ++i) {
    ASSERT_LT(i, 100) << "the first part was never compressed";
    int64_t chunks = 1;
    ASSERT_TRUE(session->ReadOn(&chunks).ok());
  }
  ASSERT_TRUE(session->reads_prompt());
  session->call().RequestCancel();
  int64_t chunks = 1;
  ASSERT_EQ(session->ReadOn(&chunks).code(), Code::kCancelled);
  session->call().ClearCancel();
  const SessionStats after = session->Stats();
  EXPECT_EQ(after.compress_seconds, before.compress_seconds);
  EXPECT_EQ(after.prefill_seconds, before.prefill_seconds);
  EXPECT_EQ(after.decode_seconds, before.decode_seconds);
  EXPECT_EQ(after.n_prompt, before.n_prompt);
  EXPECT_EQ(after.n_tokens, before.n_tokens);
  EXPECT_EQ(after.n_slots, before.n_slots);
  EXPECT_EQ(after.n_compactions, before.n_compactions);
}

}  // namespace
}  // namespace kvc

// Where calls of kvc.h meet that seldom do: an answer taken back within a character, a session that is full,
// tokens of the caller's behind a stop token.
#define KVC_EXPERIMENTAL
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvc/kvc.h"
#include "kvc/kvc_experimental.h"
#include "tests/api/fixture.h"

namespace {

std::string Text(kvc_session* session) {
  uint8_t bytes[256];
  int32_t n = 0;
  EXPECT_EQ(kvc_session_read_text(session, bytes, sizeof bytes, &n), KVC_OK);
  return std::string(bytes, bytes + n);
}

kvc_session_stats Stats(kvc_session* session) {
  SIZED(kvc_session_stats, stats);
  EXPECT_EQ(kvc_session_get_stats(session, &stats), KVC_OK);
  return stats;
}

class SessionEdges : public testing::Test {
 protected:
  ~SessionEdges() override {
    kvc_session_close(s_);
    kvc_model_close(model_);
  }
  void Open(int32_t which, const char* spec, int32_t max_tokens, int32_t n_prompt) {
    model_ = open_model(which);
    s_ = new_session(model_, spec, max_tokens);
    fill_tokens(tokens_, kMost, 7);
    ASSERT_EQ(kvc_session_prefill(s_, tokens_, n_prompt), KVC_OK) << kvc_last_error();
  }
  static constexpr int32_t kMost = 300;
  int32_t tokens_[kMost];
  kvc_model* model_ = nullptr;
  kvc_session* s_ = nullptr;
};

// The tokens of these models are bytes.
TEST_F(SessionEdges, RewindTakesBackHalfACharacter) {
  Open(TEST_MODEL_TINY, nullptr, 0, 20);
  const auto accept = [this](int32_t byte) { ASSERT_EQ(kvc_session_accept(s_, byte), KVC_OK); };
  const auto rewind = [this](int32_t n) { ASSERT_EQ(kvc_session_rewind(s_, n), KVC_OK); };
  accept('a'), accept(0xE2);
  EXPECT_EQ(Text(s_), "a");
  rewind(1), accept('b');
  EXPECT_EQ(Text(s_), "b");
  accept(0xC3), rewind(1), accept(0xA9);
  EXPECT_EQ(Text(s_), "\xEF\xBF\xBD") << "the second byte of a character whose first one is gone";
  accept(0xF0), accept(0x9F), accept(0x91), rewind(2), accept(0x9A), accept(0x80), accept(0x80);
  EXPECT_EQ(Text(s_), "\xF0\x9A\x80\x80");
  accept(0xE2), rewind(2), accept('c');
  EXPECT_EQ(Text(s_), "c");
}

// Stop tokens have no text: what waits of a character is that of the tokens around them.
TEST_F(SessionEdges, RewindTakesNoTextBackForAStopToken) {
  Open(TEST_MODEL_STOPPING, nullptr, 0, 20);
  constexpr int32_t kStop = 'b';
  const auto accept = [this](int32_t token) { ASSERT_EQ(kvc_session_accept(s_, token), KVC_OK); };
  accept(0xE3), accept(kStop);
  ASSERT_EQ(kvc_session_rewind(s_, 1), KVC_OK);
  accept(0x81), accept(0x81);
  EXPECT_EQ(Text(s_), "\xE3\x81\x81");
  accept(kStop), accept(0xE3), accept(0x81);
  ASSERT_EQ(kvc_session_rewind(s_, 2), KVC_OK);
  accept('c');
  EXPECT_EQ(Text(s_), "c");
}

TEST_F(SessionEdges, RewindTakesTheEndOfTheAnswerBack) {
  Open(TEST_MODEL_STOPPING, nullptr, 0, 20);
  const int32_t stop = 257;
  const float more = 1000;
  int32_t token = 0;
  ASSERT_EQ(kvc_session_accept(s_, 'a'), KVC_OK);
  ASSERT_EQ(kvc_session_set_logit_bias(s_, &stop, &more, 1), KVC_OK);
  ASSERT_EQ(kvc_session_step(s_, &token), KVC_OK);
  EXPECT_EQ(token, KVC_TOKEN_NONE);
  EXPECT_EQ(Stats(s_).stop_token, stop);
  ASSERT_EQ(kvc_session_rewind(s_, 1), KVC_OK);
  EXPECT_EQ(Stats(s_).stop_token, -1);
  ASSERT_EQ(kvc_session_accept(s_, 'a'), KVC_OK);
  EXPECT_EQ(Stats(s_).stop_token, -1);
  ASSERT_EQ(kvc_session_step(s_, &token), KVC_OK);
  EXPECT_EQ(Stats(s_).stop_token, stop);
  ASSERT_EQ(kvc_session_accept(s_, 'c'), KVC_OK);
  EXPECT_EQ(Stats(s_).stop_token, -1) << "the answer goes on";
}

TEST_F(SessionEdges, StatisticsSayHowManyTokensAreHeld) {
  Open(TEST_MODEL_TINY, "snapkv:budget=16,window=8", 40, 20);
  EXPECT_EQ(Stats(s_).n_tokens, 20);
  int32_t token = 0;
  ASSERT_EQ(kvc_session_step(s_, &token), KVC_OK);
  EXPECT_EQ(Stats(s_).n_tokens, 21) << "the one that waits to be fed counts";
  ASSERT_EQ(kvc_session_accept(s_, 'a'), KVC_OK);
  ASSERT_EQ(kvc_session_rewind(s_, 2), KVC_OK);
  EXPECT_EQ(Stats(s_).n_tokens, 20);
  EXPECT_EQ(Stats(s_).n_answer, 2);
  kvc_status status = KVC_OK;
  while (status == KVC_OK) status = kvc_session_accept(s_, 'b');
  ASSERT_EQ(status, KVC_E_CONTEXT_FULL);
  EXPECT_EQ(Stats(s_).n_tokens, 40 + 1) << "the last has no place, and waits";
}

TEST_F(SessionEdges, AFullSessionCanBeTrimmed) {
  for (const char* spec : {"snapkv:budget=64,window=8", "h2o:budget=64"}) {
    Open(TEST_MODEL_TINY, spec, 100, 99);
    int32_t token = 0;
    kvc_status status = KVC_OK;
    while (status == KVC_OK) status = kvc_session_step(s_, &token);
    ASSERT_EQ(status, KVC_E_CONTEXT_FULL);
    const int64_t before = Stats(s_).cache_bytes;
    int64_t freed = 0;
    EXPECT_EQ(kvc_session_trim(s_, 16, &freed), KVC_OK) << kvc_last_error();
    EXPECT_EQ(freed, before - Stats(s_).cache_bytes);
    EXPECT_GT(freed, 0);
    EXPECT_EQ(kvc_session_compress(s_), KVC_OK) << kvc_last_error();
    EXPECT_EQ(kvc_session_step(s_, &token), KVC_E_CONTEXT_FULL) << "the last token still has no place";
    EXPECT_EQ(kvc_session_rewind(s_, 1), KVC_OK) << kvc_last_error();
    kvc_session_close(s_), kvc_model_close(model_);
    s_ = nullptr, model_ = nullptr;
  }
}

// Compressing is a part of what prompts take.
TEST_F(SessionEdges, SecondsOfCompressingCountAsPrefill) {
  for (const char* spec : {"snapkv:budget=64,window=8", "h2o:budget=64", "kvzip:budget=64"}) {
    Open(TEST_MODEL_TINY, spec, 0, 200);
    const kvc_session_stats before = Stats(s_);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(kvc_session_compress(s_), KVC_OK) << kvc_last_error();
    const kvc_session_stats after = Stats(s_);
    EXPECT_GT(after.compress_seconds, before.compress_seconds) << spec;
    EXPECT_NEAR(after.prefill_seconds - before.prefill_seconds,
                after.compress_seconds - before.compress_seconds, 1e-9)
        << spec;
    EXPECT_EQ(after.decode_seconds, before.decode_seconds) << spec;
    kvc_session_close(s_), kvc_model_close(model_);
    s_ = nullptr, model_ = nullptr;
  }
}

TEST_F(SessionEdges, ADraftThatIsRefusedGivesNoToken) {
  Open(TEST_MODEL_TINY, nullptr, 0, 20);
  int32_t out[4], n = 7;
  EXPECT_EQ(kvc_session_step_draft(s_, nullptr, -1, out, 4, &n), KVC_E_INVALID);
  EXPECT_STREQ(kvc_last_error(), "n_draft is -1");
  EXPECT_EQ(n, 0);
  n = 7;
  EXPECT_EQ(kvc_session_step_draft(s_, nullptr, 0, nullptr, 4, &n), KVC_E_INVALID);
  EXPECT_EQ(n, 0);
  n = 7;
  EXPECT_EQ(kvc_session_step_draft(nullptr, nullptr, 0, out, 4, &n), KVC_E_INVALID);
  EXPECT_EQ(n, 0);
}

// The answer goes on with a token of the caller's, fed in a batch as well as accepted.
TEST_F(SessionEdges, FedBehindAStopTokenTheAnswerGoesOn) {
  Open(TEST_MODEL_STOPPING, nullptr, 0, 30);
  int32_t token = 0;
  for (int i = 0; i < 500 && token != KVC_TOKEN_NONE; ++i) ASSERT_EQ(kvc_session_step(s_, &token), KVC_OK);
  ASSERT_EQ(token, KVC_TOKEN_NONE);
  kvc_session* accepts = nullptr;
  ASSERT_EQ(kvc_session_fork(s_, &accepts), KVC_OK);
  const int32_t next = 2;
  EXPECT_EQ(kvc_session_feed_batch(&s_, &next, 1), KVC_OK) << kvc_last_error();
  EXPECT_EQ(kvc_session_accept(accepts, next), KVC_OK);
  EXPECT_EQ(Stats(s_).stop_token, -1);
  for (int i = 0; i < 4; ++i) {
    int32_t a = 0, b = 0;
    ASSERT_EQ(kvc_session_step(s_, &a), KVC_OK) << kvc_last_error();
    ASSERT_EQ(kvc_session_step(accepts, &b), KVC_OK);
    EXPECT_EQ(a, b) << i;
    EXPECT_EQ(Stats(s_).stop_token, Stats(accepts).stop_token);
  }
  kvc_session_close(accepts);
}

TEST_F(SessionEdges, FeedingBehindARewindNeedsAToken) {
  Open(TEST_MODEL_TINY, nullptr, 0, 30);
  kvc_session* alone = nullptr;
  ASSERT_EQ(kvc_session_fork(s_, &alone), KVC_OK);
  const int32_t first = 'x', next = 'y';
  for (kvc_session* s : {s_, alone}) ASSERT_EQ(kvc_session_rewind(s, 2), KVC_OK);
  EXPECT_EQ(kvc_session_feed_batch(&s_, &next, 1), KVC_E_INVALID);
  EXPECT_STREQ(kvc_last_error(),
               "session 0 of the batch: feed after rewind: prefill or accept at least one token first");
  for (kvc_session* s : {s_, alone}) ASSERT_EQ(kvc_session_accept(s, first), KVC_OK);
  EXPECT_EQ(kvc_session_feed_batch(&s_, &next, 1), KVC_OK) << kvc_last_error();
  EXPECT_EQ(kvc_session_accept(alone, next), KVC_OK);
  for (int i = 0; i < 4; ++i) {
    int32_t a = 0, b = 0;
    ASSERT_EQ(kvc_session_step(s_, &a), KVC_OK) << kvc_last_error();
    ASSERT_EQ(kvc_session_step(alone, &b), KVC_OK) << kvc_last_error();
    EXPECT_EQ(a, b) << i;
  }
  kvc_session_close(alone);
}

// Text that is complete is the caller's, the token that it is of may go; half a character goes with its
// token.
TEST_F(SessionEdges, UnreadTextStaysBehindARewind) {
  Open(TEST_MODEL_TINY, nullptr, 0, 20);
  for (const int32_t token : {0x41, 0x42, 0xC3}) ASSERT_EQ(kvc_session_accept(s_, token), KVC_OK);
  ASSERT_EQ(kvc_session_rewind(s_, 2), KVC_OK) << kvc_last_error();
  for (const int32_t token : {0xA9, 0x43}) ASSERT_EQ(kvc_session_accept(s_, token), KVC_OK);
  uint8_t text[16];
  int32_t n = 0;
  ASSERT_EQ(kvc_session_read_text(s_, text, 16, &n), KVC_OK);
  EXPECT_EQ(std::string(text, text + n),
            "AB\xEF\xBF\xBD"
            "C");
}

// What was looked at is gone with the token that looked.
TEST_F(SessionEdges, NoAttentionBehindARewind) {
  Open(TEST_MODEL_TINY, nullptr, 0, 20);
  ASSERT_EQ(kvc_session_observe_attention(s_, 1), KVC_OK);
  ASSERT_EQ(kvc_session_append(s_, tokens_, 3), KVC_OK);
  float weights[64];
  int32_t n = 0;
  EXPECT_EQ(kvc_session_get_attention(s_, 0, 0, weights, 64, &n), KVC_OK);
  EXPECT_EQ(n, 23);
  ASSERT_EQ(kvc_session_rewind(s_, 3), KVC_OK);
  EXPECT_NE(kvc_session_get_attention(s_, 0, 0, weights, 64, &n), KVC_OK);
}

// The reason stands at the end of a message, behind a path however long that is.
TEST(LastError, ALongMessageKeepsItsEnds) {
  std::string path = "/nowhere/";
  for (int i = 0; i < 400; ++i) path += "\xE2\x82\xAC";
  kvc_model* model = nullptr;
  EXPECT_NE(kvc_model_open(path.c_str(), nullptr, nullptr, &model), KVC_OK);
  const std::string text = kvc_last_error();
  EXPECT_LT(text.size(), 1024u);
  EXPECT_GT(text.size(), 1000u);
  EXPECT_EQ(text.rfind("/nowhere/", 0), 0u);
  const size_t gap = text.find(" ... ");
  ASSERT_NE(gap, std::string::npos);
  EXPECT_EQ(static_cast<uint8_t>(text[gap - 1]), 0xAC) << "whole characters";
  EXPECT_EQ(static_cast<uint8_t>(text[gap + 5]), 0xE2);
  EXPECT_NE(text.find("cannot open: "), std::string::npos) << text;
}

// On failure outputs keep their value, but for the count that a buffer is too small for.
TEST_F(SessionEdges, AFailureLeavesTheCountOfTheLastCall) {
  Open(TEST_MODEL_TINY, nullptr, 21, 20);
  float logits[FIXTURE_VOCAB];
  int32_t n = -3;
  EXPECT_EQ(kvc_session_get_logits(s_, logits, FIXTURE_VOCAB - 1, &n), KVC_E_BUFFER_TOO_SMALL);
  EXPECT_EQ(n, FIXTURE_VOCAB);
  EXPECT_EQ(kvc_session_get_logits(s_, logits, 1, nullptr), KVC_E_INVALID);
  ASSERT_EQ(kvc_session_accept(s_, 1), KVC_OK);
  ASSERT_EQ(kvc_session_accept(s_, 2), KVC_OK);  // there is no room to feed it
  for (const int32_t cap : {0, FIXTURE_VOCAB + 0}) {
    n = -3;
    EXPECT_EQ(kvc_session_get_logits(s_, logits, cap, &n), KVC_E_CONTEXT_FULL);
    EXPECT_EQ(n, -3);
  }
}

}  // namespace

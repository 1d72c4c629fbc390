// Conversations: what kvc_session_say feeds is what the marks and the texts are by hand, whoever says what.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"
#include "tests/api/fixture.h"

namespace {

using Tokens = std::vector<int32_t>;

// The byte tokenizer by hand: a text is its bytes, and the special tokens have names.
const Tokens kBos{256}, kEos{257}, kPad{258};

Tokens Text(const std::string& text) {
  Tokens tokens;
  for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Conversation : public testing::Test {
 protected:
  void SetUp() override {
    model_ = open_model(TEST_MODEL_STOPPING);
    session_ = new_session(model_, nullptr, 0);
  }
  void TearDown() override {
    kvc_session_close(session_);
    kvc_model_close(model_);
  }

  void Mark(kvc_session* session) {
    EXPECT_EQ(kvc_session_set_turn_marks(session, KVC_ROLE_SYSTEM, "S:", "\n"), KVC_OK);
    EXPECT_EQ(kvc_session_set_turn_marks(session, KVC_ROLE_USER, "<pad>U:", "\n"), KVC_OK);
    EXPECT_EQ(kvc_session_set_turn_marks(session, KVC_ROLE_ASSISTANT, "A:", "<eos>\n"), KVC_OK);
  }
  kvc_status Say(kvc_session* session, int32_t role, const std::string& text, int32_t flags = 0) {
    return kvc_session_say(session, role, reinterpret_cast<const uint8_t*>(text.data()),
                           static_cast<int32_t>(text.size()), flags);
  }
  // A session that was fed by hand with the same tokens in the same calls: it must answer to the bit alike.
  struct ByHand {
    explicit ByHand(kvc_model* model) : session(new_session(model, nullptr, 0)) {}
    ~ByHand() { kvc_session_close(session); }
    void Read(const Tokens& tokens) {
      ASSERT_EQ(kvc_session_prefill(session, tokens.data(), static_cast<int32_t>(tokens.size())), KVC_OK);
    }
    kvc_session* session;
  };
  static kvc_session_stats StatsOf(kvc_session* session) {
    SIZED(kvc_session_stats, stats);
    EXPECT_EQ(kvc_session_get_stats(session, &stats), KVC_OK) << kvc_last_error();
    return stats;
  }
  static void ExpectSame(kvc_session* one, kvc_session* other) {
    std::vector<float> a(FIXTURE_VOCAB), b(FIXTURE_VOCAB);
    int32_t n = 0;
    ASSERT_EQ(kvc_session_get_logits(one, a.data(), FIXTURE_VOCAB, &n), KVC_OK) << kvc_last_error();
    ASSERT_EQ(kvc_session_get_logits(other, b.data(), FIXTURE_VOCAB, &n), KVC_OK) << kvc_last_error();
    EXPECT_EQ(a, b);
    EXPECT_EQ(StatsOf(one).n_slots_full, StatsOf(other).n_slots_full);
  }

  // As it is saved, a session is there again, and saves itself alike.
  void ExpectRestored(kvc_session* session) {
    const std::vector<uint8_t> saved = Saved(session);
    kvc_session* restored = nullptr;
    ASSERT_EQ(kvc_session_restore_memory(model_, saved.data(), static_cast<int64_t>(saved.size()), &restored),
              KVC_OK)
        << kvc_last_error();
    EXPECT_EQ(Saved(restored), saved);
    kvc_session_close(restored);
  }
  static std::vector<uint8_t> Saved(kvc_session* session) {
    int64_t n = 0;
    EXPECT_EQ(kvc_session_save_memory(session, nullptr, 0, &n), KVC_OK) << kvc_last_error();
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    EXPECT_EQ(kvc_session_save_memory(session, bytes.data(), n, &n), KVC_OK) << kvc_last_error();
    return bytes;
  }

  kvc_model* model_ = nullptr;
  kvc_session* session_ = nullptr;
};

TEST_F(Conversation, AFileWithoutMarksSaysSo) {
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "hello", KVC_ANSWER), KVC_E_UNSUPPORTED);
  EXPECT_NE(std::string(kvc_last_error()).find("kvc_session_set_turn_marks"), std::string::npos);
}

TEST_F(Conversation, WhatATurnIsEncodedFromIsChecked) {
  const uint8_t text[] = {'h', 'i'};
  int32_t n = 0;
  const auto encode = [&](kvc_model* model, int32_t role, const uint8_t* from, int32_t n_text,
                          int32_t flags) {
    return kvc_model_encode_turn(model, role, from, n_text, flags, nullptr, 0, &n);
  };
  EXPECT_EQ(encode(model_, KVC_ROLE_USER, text, 2, 0), KVC_E_UNSUPPORTED);  // the file has no marks
  EXPECT_EQ(encode(nullptr, KVC_ROLE_USER, text, 2, 0), KVC_E_INVALID);
  EXPECT_EQ(encode(model_, 3, text, 2, 0), KVC_E_INVALID);
  EXPECT_EQ(encode(model_, -1, text, 2, 0), KVC_E_INVALID);
  EXPECT_EQ(encode(model_, KVC_ROLE_USER, nullptr, 2, 0), KVC_E_INVALID);
  EXPECT_EQ(encode(model_, KVC_ROLE_USER, text, -1, 0), KVC_E_INVALID);
  EXPECT_EQ(encode(model_, KVC_ROLE_USER, text, 2, 32), KVC_E_INVALID);
  EXPECT_EQ(encode(model_, KVC_ROLE_USER, text, 2, KVC_TURN_HEAD | KVC_TURN_ANSWER), KVC_E_INVALID);
  EXPECT_EQ(kvc_model_describe_device(nullptr, nullptr, 0, &n), KVC_E_INVALID);
  ASSERT_EQ(kvc_model_describe_device(model_, nullptr, 0, &n), KVC_OK);
  std::string json(static_cast<size_t>(n), ' ');
  ASSERT_EQ(kvc_model_describe_device(model_, &json[0], n, &n), KVC_OK);
  EXPECT_NE(json.find("\"name\":\""), std::string::npos) << json;
}

TEST_F(Conversation, EveryTurnIsItsMarksAndItsText) {
  Mark(session_);
  ByHand hand(model_);
  ASSERT_EQ(Say(session_, KVC_ROLE_SYSTEM, "be kind"), KVC_OK) << kvc_last_error();
  hand.Read(kBos + Text("S:be kind\n"));
  ExpectSame(session_, hand.session);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi", KVC_ANSWER), KVC_OK);
  hand.Read(kPad + Text("U:hi\nA:"));
  ExpectSame(session_, hand.session);
  // The answer is cut off by the caller: its end comes before what is said next.
  for (kvc_session* s : {session_, hand.session}) ASSERT_EQ(kvc_session_accept(s, 'x'), KVC_OK);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "", KVC_ANSWER), KVC_OK);
  hand.Read(kEos + (Text("\n") + (kPad + Text("U:\nA:"))));
  ExpectSame(session_, hand.session);
  // A turn of the assistant's that the caller remembers.
  ASSERT_EQ(Say(session_, KVC_ROLE_ASSISTANT, "so"), KVC_OK);
  hand.Read(kEos + (Text("\nA:so") + (kEos + Text("\n"))));
  ExpectSame(session_, hand.session);
}

TEST_F(Conversation, TextIsNeverASpecialToken) {
  Mark(session_);
  ByHand hand(model_), other(model_);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "<eos><bos><pad>U:", KVC_ANSWER), KVC_OK);
  hand.Read(kBos + (kPad + Text("U:<eos><bos><pad>U:\nA:")));
  ExpectSame(session_, hand.session);
  // Nor where mark and text would make one together.
  kvc_session* tricky = new_session(model_, nullptr, 0);
  ASSERT_EQ(kvc_session_set_turn_marks(tricky, KVC_ROLE_USER, "<e", "s>"), KVC_OK);
  ASSERT_EQ(Say(tricky, KVC_ROLE_USER, "os>"), KVC_OK);
  other.Read(kBos + Text("<eos>s>"));
  ExpectSame(tricky, other.session);
  kvc_session_close(tricky);
}

TEST_F(Conversation, AStopTokenThatWasFedIsNotRepeated) {
  Mark(session_);
  ByHand hand(model_);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi", KVC_ANSWER), KVC_OK);
  hand.Read(kBos + (kPad + Text("U:hi\nA:")));
  for (kvc_session* s : {session_, hand.session}) ASSERT_EQ(kvc_session_accept(s, kEos[0]), KVC_OK);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "and"), KVC_OK) << kvc_last_error();
  hand.Read(Text("\n") + (kPad + Text("U:and\n")));
  ExpectSame(session_, hand.session);
}

TEST_F(Conversation, AStopTokenThatStepChoseIsRead) {
  Mark(session_);
  ByHand hand(model_);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi", KVC_ANSWER), KVC_OK);
  hand.Read(kBos + (kPad + Text("U:hi\nA:")));
  for (kvc_session* s : {session_, hand.session}) {
    const float much = 1000;
    const int32_t eos = 257;
    int32_t token = 0;
    ASSERT_EQ(kvc_session_set_logit_bias(s, &eos, &much, 1), KVC_OK);
    ASSERT_EQ(kvc_session_step(s, &token), KVC_OK);
    ASSERT_EQ(token, KVC_TOKEN_NONE);
  }
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "and"), KVC_OK) << kvc_last_error();
  hand.Read(kEos + (Text("\n") + (kPad + Text("U:and\n"))));
  ExpectSame(session_, hand.session);
}

TEST_F(Conversation, ABosInTheMarksIsNotRepeated) {
  ASSERT_EQ(kvc_session_set_turn_marks(session_, KVC_ROLE_USER, "<bos>U:", nullptr), KVC_OK);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi"), KVC_OK);
  ByHand hand(model_);
  hand.Read(kBos + Text("U:hi"));
  ExpectSame(session_, hand.session);
}

TEST_F(Conversation, GoesOnThroughForkSaveAndMemory) {
  Mark(session_);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi", KVC_ANSWER), KVC_OK);
  ASSERT_EQ(kvc_session_accept(session_, 'x'), KVC_OK);
  kvc_session* others[3] = {};
  ASSERT_EQ(kvc_session_fork(session_, &others[0]), KVC_OK);
  const std::string path = test_path("talk.kvcs");
  ASSERT_EQ(kvc_session_save(session_, path.c_str()), KVC_OK);
  ASSERT_EQ(kvc_session_restore(model_, path.c_str(), &others[1]), KVC_OK) << kvc_last_error();
  int64_t n = 0;
  ASSERT_EQ(kvc_session_save_memory(session_, nullptr, 0, &n), KVC_OK);
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  ASSERT_EQ(kvc_session_save_memory(session_, bytes.data(), n, &n), KVC_OK);
  ASSERT_EQ(kvc_session_restore_memory(model_, bytes.data(), n, &others[2]), KVC_OK) << kvc_last_error();
  ByHand hand(model_);
  hand.Read(kBos + (kPad + Text("U:hi\nA:")));
  ASSERT_EQ(kvc_session_accept(hand.session, 'x'), KVC_OK);
  hand.Read(kEos + Text("\nS:now\n"));
  for (kvc_session* s : others) {
    ASSERT_EQ(Say(s, KVC_ROLE_SYSTEM, "now"), KVC_OK) << kvc_last_error();
    ExpectSame(s, hand.session);
    kvc_session_close(s);
  }
}

TEST_F(Conversation, QueuedTurnsAreReadByTheBatch) {
  Mark(session_);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi", KVC_ANSWER | KVC_QUEUE), KVC_OK);
  SIZED(kvc_session_stats, stats);
  ASSERT_EQ(kvc_session_get_stats(session_, &stats), KVC_OK);
  EXPECT_EQ(stats.n_slots, 0);
  EXPECT_EQ(stats.prompt_progress, 0);
  int32_t token = KVC_TOKEN_READING;
  while (token == KVC_TOKEN_READING)
    ASSERT_EQ(kvc_batch_step(&session_, 1, nullptr, &token, nullptr), KVC_OK) << kvc_last_error();
  kvc_session* alone = new_session(model_, nullptr, 0);
  Mark(alone);
  ASSERT_EQ(Say(alone, KVC_ROLE_USER, "hi", KVC_ANSWER), KVC_OK);
  int32_t expected = 0;
  ASSERT_EQ(kvc_session_step(alone, &expected), KVC_OK);
  EXPECT_EQ(token, expected);
  kvc_session_close(alone);
}

TEST_F(Conversation, AnEmptyMessageBetweenEmptyMarksLetsTheModelSpeakOn) {
  for (int32_t role : {KVC_ROLE_USER, KVC_ROLE_ASSISTANT})
    ASSERT_EQ(kvc_session_set_turn_marks(session_, role, "", ""), KVC_OK);
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "", KVC_ANSWER), KVC_OK) << kvc_last_error();  // BOS, as it begins
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "Hello", KVC_ANSWER), KVC_OK) << kvc_last_error();
  for (int32_t flags : {int32_t{KVC_ANSWER}, KVC_ANSWER | KVC_QUEUE, 0, int32_t{KVC_ANSWER}, 0}) {
    EXPECT_EQ(Say(session_, KVC_ROLE_USER, "", flags), KVC_OK) << kvc_last_error();
    ExpectRestored(session_);
  }
  ByHand hand(model_);
  hand.Read(kBos);
  hand.Read(Text("Hello"));
  ExpectSame(session_, hand.session);
}

// Also by calls that have nothing to compute.
TEST_F(Conversation, ARequestToCancelIsAnsweredByTheNextCall) {
  for (int32_t role : {KVC_ROLE_USER, KVC_ROLE_ASSISTANT})
    ASSERT_EQ(kvc_session_set_turn_marks(session_, role, "", ""), KVC_OK);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "Hello", KVC_ANSWER), KVC_OK);
  ASSERT_EQ(kvc_session_cancel(session_), KVC_OK);
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "", KVC_ANSWER), KVC_E_CANCELLED);
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "", KVC_ANSWER), KVC_OK) << kvc_last_error();
  const float more = 1000;
  ASSERT_EQ(kvc_session_set_logit_bias(session_, &kEos[0], &more, 1), KVC_OK);
  int32_t token = 0;
  ASSERT_EQ(kvc_session_step(session_, &token), KVC_OK);
  ASSERT_EQ(token, KVC_TOKEN_NONE);
  ASSERT_EQ(kvc_session_cancel(session_), KVC_OK);
  EXPECT_EQ(kvc_session_step(session_, &token), KVC_E_CANCELLED) << "behind a complete answer";
  EXPECT_EQ(kvc_session_step(session_, &token), KVC_OK);
  EXPECT_EQ(token, KVC_TOKEN_NONE);
}

TEST_F(Conversation, WhatFailsChangesNothing) {
  Mark(session_);
  EXPECT_EQ(Say(session_, 3, "x"), KVC_E_INVALID);
  EXPECT_EQ(Say(session_, -1, "x"), KVC_E_INVALID);
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "x", 4), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_say(session_, KVC_ROLE_USER, nullptr, 3, 0), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_say(session_, KVC_ROLE_USER, nullptr, -1, 0), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_say(nullptr, KVC_ROLE_USER, nullptr, 0, 0), KVC_E_INVALID);
  EXPECT_EQ(kvc_session_set_turn_marks(session_, 7, "a", "b"), KVC_E_INVALID);
  const std::string huge((64 << 10) + 1, 'x');
  EXPECT_EQ(kvc_session_set_turn_marks(session_, KVC_ROLE_USER, huge.c_str(), ""), KVC_E_INVALID);
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "hi", KVC_ANSWER), KVC_OK);
  ASSERT_EQ(kvc_session_cancel(session_), KVC_OK);
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "lost", KVC_ANSWER), KVC_E_CANCELLED);
  const std::string long_text(5000, 'y');  // more than the context
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, long_text), KVC_E_CONTEXT_FULL);
  ASSERT_EQ(Say(session_, KVC_ROLE_SYSTEM, "s"), KVC_OK);
  ByHand hand(model_), fresh(model_);  // the answer that was begun is ended now, not by what failed
  hand.Read(kBos + (kPad + Text("U:hi\nA:")));
  hand.Read(kEos + Text("\nS:s\n"));
  ExpectSame(session_, hand.session);
  ASSERT_EQ(kvc_session_reset(session_), KVC_OK);
  ASSERT_EQ(Say(session_, KVC_ROLE_SYSTEM, "s"), KVC_OK);
  fresh.Read(kBos + Text("S:s\n"));
  ExpectSame(session_, fresh.session);
}

// A conversation goes on for ever: what is kept stays within the budget, past max_tokens too.
TEST_F(Conversation, NeverEnds) {
  kvc_policy* policy = nullptr;
  ASSERT_EQ(kvc_policy_create("snapkv:budget=32,window=8", &policy), KVC_OK);
  kvc_session_params params = {sizeof params, 128, KVC_ON_FULL_SLIDE, 0, 0, 0, 0};
  kvc_session* talk = nullptr;
  ASSERT_EQ(kvc_session_create(model_, policy, &params, &talk), KVC_OK);
  Mark(talk);
  SIZED(kvc_session_stats, stats);
  for (int turn = 0; turn < 40; ++turn) {
    ASSERT_EQ(Say(talk, KVC_ROLE_USER, "turn number " + std::to_string(turn), KVC_ANSWER), KVC_OK)
        << kvc_last_error();
    ASSERT_EQ(kvc_session_get_stats(talk, &stats), KVC_OK);
    const int64_t heads = FIXTURE_LAYERS * FIXTURE_KV_HEADS;
    if (stats.n_prompt > 32) {
      ASSERT_EQ(stats.n_slots, 32 * heads) << "turn " << turn;
    }
    int32_t token = 0;
    for (int i = 0; i < 6 && token != KVC_TOKEN_NONE; ++i)
      ASSERT_EQ(kvc_session_step(talk, &token), KVC_OK) << kvc_last_error();
  }
  EXPECT_GT(stats.n_prompt, 128 * 4);
  kvc_session_close(talk);
  kvc_policy_close(policy);
}

// An empty message between empty marks: there is nothing to read, and the model speaks on.
TEST_F(Conversation, AnEmptyMessageBeginsAnAnswerToo) {
  for (const int32_t role : {KVC_ROLE_USER, KVC_ROLE_ASSISTANT})
    ASSERT_EQ(kvc_session_set_turn_marks(session_, role, "", ""), KVC_OK);
  const int32_t eos = kEos[0], letter = 'a';
  const float much = 1000;
  int32_t token = 0;
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "Hello", KVC_ANSWER), KVC_OK) << kvc_last_error();
  ASSERT_EQ(kvc_session_set_logit_bias(session_, &eos, &much, 1), KVC_OK);
  ASSERT_EQ(kvc_session_step(session_, &token), KVC_OK);
  ASSERT_EQ(token, KVC_TOKEN_NONE);
  ASSERT_EQ(kvc_session_set_logit_bias(session_, &letter, &much, 1), KVC_OK);
  ASSERT_EQ(kvc_session_step(session_, &token), KVC_OK);
  EXPECT_EQ(token, KVC_TOKEN_NONE) << "the answer is complete";
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "", KVC_ANSWER), KVC_OK) << kvc_last_error();
  SIZED(kvc_session_stats, stats);
  ASSERT_EQ(kvc_session_get_stats(session_, &stats), KVC_OK);
  EXPECT_EQ(stats.stop_token, -1);
  ASSERT_EQ(kvc_session_step(session_, &token), KVC_OK);
  EXPECT_EQ(token, letter);
  // Behind a rewind there are no logits to answer from.
  ASSERT_EQ(kvc_session_rewind(session_, 1), KVC_OK);
  EXPECT_EQ(Say(session_, KVC_ROLE_USER, "", KVC_ANSWER), KVC_E_INVALID);
  EXPECT_NE(std::string(kvc_last_error()).find("after rewind"), std::string::npos) << kvc_last_error();
  ASSERT_EQ(Say(session_, KVC_ROLE_USER, "on", KVC_ANSWER), KVC_OK) << kvc_last_error();
  ASSERT_EQ(kvc_session_step(session_, &token), KVC_OK);
  EXPECT_EQ(token, letter);
}

// What docs/sessions.md says of many questions about one document: what is fed, and what is compressed when.
class AskedDocument : public Conversation {
 protected:
  using Feed = kvc_status (*)(kvc_session*, const int32_t*, int32_t);
  kvc_session* Begin(const char* spec) {
    kvc_session* session = new_session(model_, spec, 0);
    sessions_.push_back(session);
    return session;
  }
  kvc_session* Fork(kvc_session* session) {
    kvc_session* fork = nullptr;
    EXPECT_EQ(kvc_session_fork(session, &fork), KVC_OK) << kvc_last_error();
    sessions_.push_back(fork);
    return fork;
  }
  void TearDown() override {
    for (kvc_session* session : sessions_) kvc_session_close(session);
    Conversation::TearDown();
  }
  static void Read(kvc_session* session, Feed feed, const Tokens& tokens) {
    ASSERT_EQ(feed(session, tokens.data(), static_cast<int32_t>(tokens.size())), KVC_OK) << kvc_last_error();
  }
  static void ExpectSameSlots(kvc_session* one, kvc_session* other) {
    ExpectSame(one, other);
    EXPECT_EQ(StatsOf(one).n_slots, StatsOf(other).n_slots);
  }
  const std::string text_ = "it is said that Ada lives here, and that Bo does not";
  std::vector<kvc_session*> sessions_;
};

TEST_F(AskedDocument, IsAMessageOfItsOwn) {
  for (const char* spec : {"full", "snapkv:budget=16,window=4", "reconstruct:budget=16"}) {
    kvc_session *document = Begin(spec), *hand = Begin(spec);
    Mark(document);
    ASSERT_EQ(Say(document, KVC_ROLE_USER, text_), KVC_OK);
    Read(hand, kvc_session_append, kBos + (kPad + Text("U:" + text_ + "\n")));
    for (kvc_session* s : {document, hand}) ASSERT_EQ(kvc_session_compress(s), KVC_OK) << kvc_last_error();
    ExpectSameSlots(document, hand);
    for (const std::string question : {"who?", "and where is that?"}) {
      kvc_session *asked = Fork(document), *by_hand = Fork(hand);
      ASSERT_EQ(Say(asked, KVC_ROLE_USER, question, KVC_ANSWER), KVC_OK) << kvc_last_error();
      Read(by_hand, kvc_session_prefill, kPad + Text("U:" + question + "\nA:"));
      ExpectSameSlots(asked, by_hand);
    }
  }
}

// As `kvc run --chat --ask`: a prompt that is compressed, and what is appended to it.
TEST_F(AskedDocument, IsOneMessageWithItsQuestion) {
  for (const char* spec : {"full", "snapkv:budget=16,window=4", "reconstruct:budget=16",
                           "kvzip:budget_bytes=8KiB,reread=own,once=1"}) {
    kvc_session *document = Begin(spec), *hand = Begin(spec);
    ASSERT_EQ(kvc_session_set_turn_marks(document, KVC_ROLE_USER, "<pad>U:", ""), KVC_OK);
    ASSERT_EQ(kvc_session_set_turn_marks(document, KVC_ROLE_ASSISTANT, "", ""), KVC_OK);
    ASSERT_EQ(Say(document, KVC_ROLE_USER, text_, KVC_ANSWER), KVC_OK) << kvc_last_error();
    Read(hand, kvc_session_prefill, kBos + (kPad + Text("U:" + text_)));
    ExpectSameSlots(document, hand);
    for (const std::string question : {" who?", " and where is that?"}) {
      kvc_session *asked = Fork(document), *by_hand = Fork(hand);
      ASSERT_EQ(kvc_session_set_turn_marks(asked, KVC_ROLE_USER, "", "<eos>\nA:"), KVC_OK);
      ASSERT_EQ(Say(asked, KVC_ROLE_USER, question), KVC_OK) << kvc_last_error();
      Read(by_hand, kvc_session_append, Text(question) + (kEos + Text("\nA:")));
      ExpectSameSlots(asked, by_hand);
    }
  }
}

}  // namespace

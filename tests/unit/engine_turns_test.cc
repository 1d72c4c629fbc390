// A file's turn format in a session: first marks, a user's text behind the system's, the answer's mark, white
// space.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "lib/base/hash.h"
#include "lib/engine/turns.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::NewSession;

// As Llama 2's: the system text stands within the first user's turn.
std::shared_ptr<const Model> Nested() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    ModelFileContent content = test::TinyModelContent(options);
    TurnFormat& f = content.turn_format;
    f.system_prefix = "<bos>[S:", f.system_suffix = ":S]";
    f.user_prefix = "<pad>U:", f.user_suffix = ";", f.user_prefix_after_system = "";
    f.first_user_prefix = "<bos>U:", f.assistant_prefix = " A:", f.answer_prefix = "A?";
    f.assistant_suffix = "<eos>";
    f.trim = kTrimUserStart | kTrimUserEnd | kTrimAssistantEnd, f.bos_in_marks = true;
    f.system_turns = SystemTurns::kFirst;
    return test::TinyModelBytes(options, content);
  }();
  static const std::shared_ptr<const Model> model = test::OpenTiny(bytes);
  return model;
}

using Tokens = std::vector<int32_t>;

Tokens Text(const std::string& text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Tokens kBos{256}, kEos{257}, kPad{258};

Status Say(Session* session, Role role, const std::string& text, bool answer = false) {
  return session->Say(role, {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, answer, false);
}

void ExpectSame(Session* said, const Tokens& tokens) {
  std::unique_ptr<Session> hand = NewSession(Nested(), "full:kv=f32");
  ASSERT_TRUE(hand->Prefill({tokens.data(), tokens.size()}, true).ok());
  test::ExpectNearLogits(*said, *hand, 1e-4f);
}

TEST(EngineTurns, ASystemTextMayStandWithinTheUsersTurn) {
  std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
  ASSERT_TRUE(Say(session.get(), Role::kSystem, " kind ").ok());
  ASSERT_TRUE(Say(session.get(), Role::kUser, " hi ", true).ok());
  ExpectSame(session.get(), kBos + Text("[S: kind :S] hi;A?"));
  ASSERT_TRUE(session->Accept('x').ok());
  ASSERT_TRUE(Say(session.get(), Role::kUser, " on ", true).ok());
  ExpectSame(session.get(), (kBos + Text("[S: kind :S] hi;A?x")) + kEos + kPad + Text("U:on;A?"));
}

// Marks of some places alone are marks.
TEST(EngineTurns, AFormatIsEmptyWithoutAnyMark) {
  const TurnFormat none;
  EXPECT_TRUE(none.empty());
  for (auto mark : {&TurnFormat::first_system_prefix, &TurnFormat::first_user_prefix,
                    &TurnFormat::user_prefix_after_system, &TurnFormat::answer_prefix}) {
    TurnFormat f;
    f.*mark = "";
    EXPECT_TRUE(f.empty());
    f.*mark = "A:";
    EXPECT_FALSE(f.empty());
    EXPECT_TRUE(TurnMarks().Any(f));
  }
}

// A message in two parts: one ends and the other begins within the text, whose ends alone are trimmed.
TEST(EngineTurns, AMessageMayComeInTwoParts) {
  const auto encode = [](const std::string& text, const TurnPlace& place) {
    Tokens ids;
    const Status status =
        EncodeTurn(Nested()->tokenizer(), Nested()->file().turn_format(), TurnMarks(), Role::kUser,
                   {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, place, &ids);
    EXPECT_TRUE(status.ok()) << status.message();
    return ids;
  };
  TurnPlace head, tail, behind;
  head.first = tail.first = true, behind.after_system = true;
  head.open = behind.open = true;
  tail.opened = tail.answer = true;
  EXPECT_EQ(encode(" it <eos> is ", head), kBos + Text("U:it <eos> is "));
  EXPECT_EQ(encode(" who? ", tail), Text(" who?;A?"));
  EXPECT_EQ(encode("", tail), Text(";A?"));
  EXPECT_EQ(encode(" it", behind), Text(" it"));
  head.special = tail.special = true;
  EXPECT_EQ(encode("it <eos>", head), kBos + Text("U:it ") + kEos);
  EXPECT_EQ(encode("<pad>?", tail), kPad + Text("?;A?"));
}

// Tokens that the caller feeds in the assistant's turn are its answer's, which ends before the next message.
TEST(EngineTurns, WhatIsFedIntoAnAnswerBelongsToIt) {
  for (const int n : {2, 60}) {  // read as rows of a step, and by itself
    std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
    ASSERT_TRUE(Say(session.get(), Role::kUser, "hi", true).ok());
    const Tokens fed(static_cast<size_t>(n), 'x');
    ASSERT_TRUE(session->Prefill(fed, true).ok());
    ASSERT_TRUE(Say(session.get(), Role::kUser, "go").ok());
    ExpectSame(session.get(), kBos + Text("U:hi;A?") + fed + kEos + kPad + Text("U:go;"));
  }
}

TEST(EngineTurns, AConversationMayBeginOtherwiseThanItGoesOn) {
  std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
  ASSERT_TRUE(Say(session.get(), Role::kUser, "\n hi").ok());
  ASSERT_TRUE(Say(session.get(), Role::kAssistant, " so \xC2\xA0\n").ok());
  ASSERT_TRUE(Say(session.get(), Role::kUser, "on", true).ok());
  ExpectSame(session.get(), (kBos + Text("U:hi; A: so")) + kEos + kPad + Text("U:on;A?"));
  const Status late = Say(session.get(), Role::kSystem, "now");
  EXPECT_EQ(late.code(), Code::kUnsupported);
  EXPECT_NE(late.message().find("at the start of a conversation only"), std::string::npos) << late.message();
  session->Reset();
  ASSERT_TRUE(Say(session.get(), Role::kUser, "again", true).ok());
  ExpectSame(session.get(), kBos + Text("U:again;A?"));
}

TEST(EngineTurns, WhatWasSaidLastIsKnownToForksAndSavedSessions) {
  std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
  ASSERT_TRUE(Say(session.get(), Role::kSystem, "kind").ok());
  const test::TempFolder folder;
  ASSERT_TRUE(session->Save(folder / "s").ok());
  auto fork = session->Fork();
  ASSERT_TRUE(fork.ok());
  auto restored = Session::Restore(Nested(), folder / "s");
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  for (Session* s : {fork.value().get(), restored.value().get()}) {
    ASSERT_TRUE(Say(s, Role::kUser, "hi", true).ok());
    ExpectSame(s, kBos + Text("[S:kind:S]hi;A?"));
  }
}

// Several tokens before a text come where BOS would, once, whether the marks or the tokenizer say them.
TEST(EngineTurns, ManyTokensMayBeginAConversation) {
  test::TinyModelOptions options;
  ModelFileContent content = test::TinyModelContent(options);
  content.tokenizer.begin_tokens = {256, 258}, content.tokenizer.add_bos = true;
  TurnFormat& f = content.turn_format;
  f.user_prefix = "U:", f.assistant_prefix = "A:";
  const test::AlignedBytes bytes = test::TinyModelBytes(options, content);
  f.first_user_prefix = "<bos><pad>U:", f.bos_in_marks = true;
  const test::AlignedBytes marked = test::TinyModelBytes(options, content);
  for (const test::AlignedBytes* file : {&bytes, &marked}) {
    for (const char* own : {"", "U:", "<bos><pad>U:"}) {
      SCOPED_TRACE(own);
      const auto model = test::OpenTiny(*file);
      std::unique_ptr<Session> said = NewSession(model, "full:kv=f32"),
                               hand = NewSession(model, "full:kv=f32");
      if (*own != 0) {
        ASSERT_TRUE(said->SetTurnMarks(Role::kUser, own, "").ok());
      }
      ASSERT_TRUE(Say(said.get(), Role::kUser, "hi", true).ok());
      const Tokens first = kBos + kPad + Text("U:hiA:");
      ASSERT_TRUE(hand->Prefill({first.data(), first.size()}, true).ok());
      test::ExpectNearLogits(*said, *hand, 1e-4f);
      ASSERT_TRUE(Say(said.get(), Role::kUser, "ho", true).ok());  // no text begins here
      const Tokens second = (*own == '<' ? kBos + kPad : Tokens()) + Text("U:hoA:");
      ASSERT_TRUE(hand->Prefill({second.data(), second.size()}, false).ok());
      test::ExpectNearLogits(*said, *hand, 1e-4f);
    }
  }
}

// Files were written in which a turn that took the place of another stands behind it: the last is what was.
TEST(EngineTurns, OfTwoTurnsAtOnePlaceInAFileTheLastCounts) {
  const std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
  ASSERT_TRUE(Say(session.get(), Role::kUser, "hi", true).ok());
  const int32_t first = session->Stats().n_tokens;
  ASSERT_TRUE(Say(session.get(), Role::kUser, "on").ok());
  const int32_t second = session->Stats().n_tokens;
  std::vector<uint8_t> bytes = test::SavedBytes(*session);
  const int32_t spans[] = {first, 1, second, 0};
  const auto* begin = reinterpret_cast<const uint8_t*>(spans);
  const auto at = std::search(bytes.begin(), bytes.end(), begin, begin + sizeof spans);
  ASSERT_NE(at, bytes.end());
  std::memcpy(&*at, &second, sizeof second);
  const uint64_t digest = Hash64(bytes.data(), bytes.size() - sizeof(uint64_t));
  std::memcpy(bytes.data() + bytes.size() - sizeof digest, &digest, sizeof digest);
  auto restored = Session::RestoreFrom(Nested(), {bytes.data(), bytes.size()});
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  for (Session* s : {session.get(), restored.value().get()})
    ASSERT_TRUE(Say(s, Role::kUser, "go", true).ok());
  test::ExpectNearLogits(*restored.value(), *session, 0.0f);
}

// To say something else instead: what was said before counts, in restored sessions too.
TEST(EngineTurns, ARewindGoesBackInWhoseTurnItIs) {
  const test::TempFolder folder;
  for (const bool saved : {false, true}) {
    std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
    ASSERT_TRUE(Say(session.get(), Role::kSystem, "kind").ok());
    ASSERT_TRUE(Say(session.get(), Role::kUser, "hi", true).ok());
    const int32_t turn = static_cast<int32_t>(Text("hi;A?").size());
    if (saved) {
      ASSERT_TRUE(session->Save(folder / "s").ok());
      auto restored = Session::Restore(Nested(), folder / "s");
      ASSERT_TRUE(restored.ok()) << restored.status().message();
      session = std::move(restored.value());
    }
    ASSERT_TRUE(session->Accept('x').ok());
    ASSERT_TRUE(session->Rewind(turn + 1).ok());
    ASSERT_TRUE(Say(session.get(), Role::kUser, "ho", true).ok());
    ExpectSame(session.get(), kBos + Text("[S:kind:S]ho;A?"));
    ASSERT_TRUE(session->Rewind(turn + static_cast<int32_t>(Text("[S:kind:S]").size()) + 1).ok());
    ASSERT_TRUE(Say(session.get(), Role::kUser, "anew", true).ok());
    ExpectSame(session.get(), kBos + Text("U:anew;A?"));
  }
}

// The end of an answer is not said twice, however much was said since it was taken back to; of forks and
// restored sessions too.
TEST(EngineTurns, ARewindFindsTheEndOfAnAnswerFarBack) {
  const test::TempFolder folder;
  const auto begin = [&](bool ended) {
    std::unique_ptr<Session> session = NewSession(Nested(), "full:kv=f32");
    EXPECT_TRUE(Say(session.get(), Role::kUser, "hi", true).ok());
    EXPECT_TRUE(session->Accept('x').ok());
    if (ended) {
      EXPECT_TRUE(session->Accept(kEos[0]).ok());
    }
    return session;
  };
  const std::string much(1500, 'm');
  struct Way {
    int n_saved;
    bool forked;
  };
  for (const bool ended : {true, false}) {
    for (const Way& way : {Way{0, false}, Way{1, false}, Way{0, true}, Way{2, false}}) {
      SCOPED_TRACE(Format("saved %d times, forked: %d, ended: %d", way.n_saved, way.forked, ended));
      std::unique_ptr<Session> session = begin(ended);
      const Tokens before = kBos + Text("U:hi;A?x");
      const int32_t at = static_cast<int32_t>(before.size()) + ended;
      ASSERT_TRUE(Say(session.get(), Role::kUser, much, true).ok());
      ASSERT_TRUE(session->Accept('y').ok());
      ASSERT_TRUE(session->Accept(kEos[0]).ok());
      for (int i = 0; i < way.n_saved; ++i) {
        ASSERT_TRUE(session->Save(folder / "s").ok());
        auto restored = Session::Restore(Nested(), folder / "s");
        ASSERT_TRUE(restored.ok()) << restored.status().message();
        session = std::move(restored.value());
      }
      if (way.forked) {
        auto fork = session->Fork();
        ASSERT_TRUE(fork.ok());
        session = std::move(fork.value());
      }
      const size_t held = (before + kEos + kPad + Text("U:" + much + ";A?y") + kEos).size();
      ASSERT_TRUE(session->Rewind(static_cast<int32_t>(held) - at).ok());
      ASSERT_TRUE(Say(session.get(), Role::kUser, "on", true).ok());
      ExpectSame(session.get(), before + kEos + kPad + Text("U:on;A?"));
    }
  }
}

// The only turn there was may have begun behind something that was nobody's, which a rewind goes back to.
TEST(EngineTurns, ARestoredSessionKnowsWhereItsOnlyTurnBegan) {
  const test::TempFolder folder;
  std::vector<std::unique_ptr<Session>> sessions;
  sessions.push_back(NewSession(Nested(), "full:kv=f32"));
  ASSERT_TRUE(sessions[0]->Prefill(test::TinyPrompt(9), false).ok());
  ASSERT_TRUE(Say(sessions[0].get(), Role::kUser, "hi", true).ok());
  ASSERT_TRUE(sessions[0]->Save(folder / "s").ok());
  auto restored = Session::Restore(Nested(), folder / "s");
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  sessions.push_back(std::move(restored.value()));
  const int32_t turn = sessions[0]->Stats().n_prompt - 9;
  for (const auto& session : sessions) {
    ASSERT_TRUE(session->Rewind(turn).ok());
    ASSERT_TRUE(Say(session.get(), Role::kUser, "ho", true).ok());
  }
  EXPECT_EQ(sessions[0]->Stats().n_prompt, sessions[1]->Stats().n_prompt);
  test::ExpectNearLogits(*sessions[0], *sessions[1], 0.0f);
}

// An answer begins as its tokens do as a text of their own: pieces lose the space in front, bytes and what
// stands for unknown pieces do not.
TEST(EngineTurns, AnAnswerReadsAsItsTokens) {
  constexpr int32_t kSpaceByte = ' ', kUnknown = 259, kSpace = 260, kHello = 261, kWord = 262;
  for (const bool prefix : {false, true}) {
    for (const bool no_extra : {false, true}) {
      test::TinyModelOptions options;
      options.vocab_size = 263;
      ModelFileContent content = test::TinyModelContent(options);
      TokenizerSpec& t = content.tokenizer;
      t.kind = TokenizerKind::kSentencePieceBpe;
      t.add_space_prefix = prefix, t.remove_extra_spaces = no_extra, t.byte_fallback = true, t.unk = kUnknown;
      t.piece_kinds.assign(256, PieceKind::kByte);
      t.piece_kinds.resize(259, PieceKind::kControl);
      t.piece_kinds.push_back(PieceKind::kUnknown);
      t.piece_kinds.resize(263, PieceKind::kNormal);
      t.pieces.resize(259);
      for (const char* piece : {"<unk>", " ", " Hello", "word"}) t.pieces.push_back(piece);
      t.scores.assign(t.pieces.size(), 0);
      const test::AlignedBytes bytes = test::TinyModelBytes(options, content);
      const auto model = test::OpenTiny(bytes);
      for (const Tokens& answer : {Tokens{kHello, kHello}, Tokens{kSpaceByte, kHello},
                                   Tokens{kUnknown, kHello}, Tokens{kSpace, kSpace, kHello},
                                   Tokens{kSpace, kWord}, Tokens{kPad[0], kSpace, kSpaceByte, kHello},
                                   Tokens{kWord, kSpace, kHello, kUnknown, kSpaceByte}}) {
        SCOPED_TRACE(Format("prefix %d, no extra spaces %d, from %d", prefix, no_extra, answer[0]));
        const auto session = NewSession(model, "full");
        ASSERT_TRUE(session->Prefill(test::TinyPrompt(5), false).ok());
        for (const int32_t token : answer) ASSERT_TRUE(session->Accept(token).ok());
        std::string text(static_cast<size_t>(session->text().Available()), '\0'), expected;
        session->text().Pull(reinterpret_cast<uint8_t*>(&text[0]), static_cast<int32_t>(text.size()));
        ASSERT_TRUE(model->tokenizer().Decode(answer, &expected).ok());
        EXPECT_EQ(text, expected);
      }
    }
  }
}

}  // namespace
}  // namespace kvc

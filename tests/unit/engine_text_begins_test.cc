// Where the text of an answer begins: there, SentencePiece's pieces lose the space in front. A rewind goes
// back to it, in forks and restored sessions too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "lib/base/hash.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::NewSession;
using test::TinyPrompt;

using Bytes = std::vector<uint8_t>;
using Numbers = std::vector<int32_t>;

constexpr int32_t kStop = 257, kHello = 259, kWorld = 260;

test::AlignedBytes ModelBytes(bool space_prefix) {
  const test::TinyModelOptions options;
  ModelFileContent content = test::TinyModelContent(options);
  content.tokenizer.kind = TokenizerKind::kSentencePieceBpe;
  content.tokenizer.add_space_prefix = space_prefix, content.tokenizer.byte_fallback = true;
  content.tokenizer.piece_kinds.assign(256, PieceKind::kByte);
  content.tokenizer.piece_kinds.resize(259, PieceKind::kControl);
  content.tokenizer.pieces.resize(259);
  for (const char* piece : {" Hello", " world", " on"}) {
    content.tokenizer.pieces.push_back(piece);
    content.tokenizer.piece_kinds.push_back(PieceKind::kNormal);
  }
  content.tokenizer.scores.assign(content.tokenizer.pieces.size(), 0);
  return test::TinyModelBytes(options, content);
}

const std::shared_ptr<const Model>& Spaced() {
  static const test::AlignedBytes bytes = ModelBytes(true);
  static const std::shared_ptr<const Model> model = test::OpenTiny(bytes);
  return model;
}

// No text of this one loses anything.
const std::shared_ptr<const Model>& Plain() {
  static const test::AlignedBytes bytes = ModelBytes(false);
  static const std::shared_ptr<const Model> model = test::OpenTiny(bytes);
  return model;
}

std::string TextOf(Session* s) {
  std::string out(static_cast<size_t>(s->text().Available()), '\0');
  s->text().Pull(reinterpret_cast<uint8_t*>(&out[0]), static_cast<int32_t>(out.size()));
  return out;
}

std::unique_ptr<Session> Restored(const std::shared_ptr<const Model>& model, const Bytes& saved) {
  auto restored = Session::RestoreFrom(model, {saved.data(), saved.size()});
  EXPECT_TRUE(restored.ok()) << restored.status().message();
  return std::move(restored.value());
}

TEST(EngineTextBegins, ARewindGoesBackToIt) {
  const auto session = NewSession(Spaced(), "full:kv=f32");
  Session* s = session.get();
  const auto accept = [&](int32_t token) { ASSERT_TRUE(s->Accept(token).ok()); };
  const auto append = [&](int n) { ASSERT_TRUE(s->Prefill(TinyPrompt(n), false).ok()); };
  const auto rewind = [&](int32_t n) { ASSERT_TRUE(s->Rewind(n).ok()); };
  ASSERT_TRUE(s->Prefill(TinyPrompt(20), true).ok());
  accept(kHello), append(1), rewind(1), accept(kWorld);
  EXPECT_EQ(TextOf(s), "Hello world");
  rewind(2), accept(kWorld), accept(kHello);
  EXPECT_EQ(TextOf(s), "world Hello");
  append(3), accept(kWorld), rewind(4), accept(kWorld);  // behind the first text again
  EXPECT_EQ(TextOf(s), "world world");
  append(3), rewind(2), accept(kHello);  // within what was read
  EXPECT_EQ(TextOf(s), "Hello");
  append(40), accept(kStop), accept(kWorld), accept(kHello), rewind(2), accept(kHello);
  EXPECT_EQ(TextOf(s), "world HelloHello") << "a stop token has no text";
  auto fork = s->Fork();
  ASSERT_TRUE(fork.ok());
  s = fork.value().get();
  accept(kWorld), rewind(2), accept(kWorld);
  EXPECT_EQ(TextOf(s), " worldworld");
  const auto restored = Restored(Spaced(), test::SavedBytes(*s));
  s = restored.get();
  accept(kHello), rewind(1), accept(kHello);
  EXPECT_EQ(TextOf(s), " Hello Hello");
  rewind(2), accept(kHello);
  EXPECT_EQ(TextOf(s), "Hello");
}

// Any calls, on a session that is saved and restored all the time and on one that never is.
TEST(EngineTextBegins, ARestoredSessionKnowsIt) {
  for (const char* policy : {"full:kv=f32", "snapkv:budget=24,window=8", "h2o:budget=24"}) {
    SCOPED_TRACE(policy);
    std::mt19937 random(5);
    for (int round = 0; round < 12; ++round) {
      auto kept = NewSession(Spaced(), policy), saved = NewSession(Spaced(), policy);
      for (Session* s : {kept.get(), saved.get()}) ASSERT_TRUE(s->Prefill(TinyPrompt(30), true).ok());
      for (int call = 0; call < 24; ++call) {
        const uint32_t choice = random() % 8, argument = random();
        for (Session* s : {kept.get(), saved.get()}) {
          const int32_t n = static_cast<int32_t>(argument % 6) + 1;
          const Numbers tokens = {kHello, kWorld, kStop, 'x', ' '};
          Status status;
          if (choice < 4)
            status = s->Accept(tokens[argument % tokens.size()]);
          else if (choice < 6)
            status = s->Prefill(TinyPrompt(n), argument % 16 == 0);
          else
            static_cast<void>(s->Rewind(std::min(n, s->Stats().n_tokens - 1)));  // where the policy can
          ASSERT_TRUE(status.ok()) << status.message();
        }
        if (argument % 3 == 0) saved = Restored(Spaced(), test::SavedBytes(*saved));
      }
      for (Session* s : {kept.get(), saved.get()}) ASSERT_TRUE(s->Accept(kHello).ok());
      ASSERT_EQ(TextOf(saved.get()), TextOf(kept.get())) << "round " << round;
    }
  }
}

uint32_t FormatOf(const Bytes& saved) {
  uint32_t format = 0;
  std::memcpy(&format, &saved[4], sizeof format);
  return format;
}

void SetFormat(uint32_t format, Bytes* saved) { std::memcpy(&(*saved)[4], &format, sizeof format); }

void SetChecksum(Bytes* saved) {
  const uint64_t digest = Hash64(saved->data(), saved->size() - sizeof(uint64_t));
  std::memcpy(saved->data() + saved->size() - sizeof digest, &digest, sizeof digest);
}

// A count and so many numbers.
Bytes Sequence(const Numbers& numbers) {
  const int64_t n = static_cast<int64_t>(numbers.size());
  Bytes bytes(sizeof n + numbers.size() * sizeof(int32_t));
  std::memcpy(bytes.data(), &n, sizeof n);
  if (n > 0) std::memcpy(bytes.data() + sizeof n, numbers.data(), bytes.size() - sizeof n);
  return bytes;
}

// In place of the sequence `from`, which is there once.
Bytes With(const Bytes& saved, const Numbers& from, const Bytes& to) {
  const Bytes known = Sequence(from);
  const auto at = std::search(saved.begin(), saved.end(), known.begin(), known.end());
  const bool once =
      at != saved.end() && std::search(at + 1, saved.end(), known.begin(), known.end()) == saved.end();
  EXPECT_TRUE(once);
  if (!once) return saved;
  Bytes changed(saved.begin(), at);
  changed.insert(changed.end(), to.begin(), to.end());
  changed.insert(changed.end(), at + static_cast<std::ptrdiff_t>(known.size()), saved.end());
  SetChecksum(&changed);
  return changed;
}

std::unique_ptr<Session> Answering(const std::shared_ptr<const Model>& model, const char* policy) {
  auto session = NewSession(model, policy);
  EXPECT_TRUE(session->Prefill(TinyPrompt(30), true).ok());
  EXPECT_TRUE(session->Accept(kHello).ok());
  EXPECT_TRUE(session->Accept(kWorld).ok());
  return session;
}

// Older versions read files of older formats alone, and most say all that there is to know.
TEST(EngineTextBegins, OnlyFilesThatMustAreOfTheNewestFormat) {
  EXPECT_EQ(FormatOf(test::SavedBytes(*Answering(Spaced(), "full:kv=f32"))), 12u);
  EXPECT_EQ(FormatOf(test::SavedBytes(*Answering(Spaced(), "snapkv:budget=24,window=8,kv=f32"))), 12u);
  EXPECT_LT(FormatOf(test::SavedBytes(*Answering(Plain(), "full:kv=f32"))), 12u)
      << "a tokenizer whose texts lose nothing";
  EXPECT_LT(FormatOf(test::SavedBytes(*Answering(Spaced(), "h2o:budget=24"))), 12u)
      << "no rewind goes behind the newest token";
  const auto session = NewSession(Spaced(), "full:kv=f32");
  ASSERT_TRUE(session->Prefill(TinyPrompt(30), true).ok());
  EXPECT_LT(FormatOf(test::SavedBytes(*session)), 12u) << "before an answer";
  ASSERT_TRUE(session->Accept(kHello).ok());
  ASSERT_TRUE(session->Prefill(TinyPrompt(40, 9), false).ok());
  EXPECT_EQ(FormatOf(test::SavedBytes(*session)), 12u) << "no text begins where the first one had begun";
}

// They say whether the newest text has begun, which then counts for all that a rewind leaves.
TEST(EngineTextBegins, FilesOfOlderFormatsAreReadAsBefore) {
  Bytes bytes = test::SavedBytes(*Answering(Spaced(), "full:kv=f32"));
  SetFormat(11, &bytes);
  bytes = With(bytes, {31, 0}, {});
  const auto session = Restored(Spaced(), bytes);
  EXPECT_EQ(TextOf(session.get()), "Hello world");
  ASSERT_TRUE(session->Rewind(2).ok());
  ASSERT_TRUE(session->Accept(kWorld).ok());
  EXPECT_EQ(TextOf(session.get()), " world");
}

TEST(EngineTextBegins, PlacesThatNoSessionHasAreDamage) {
  const Bytes bytes = test::SavedBytes(*Answering(Spaced(), "full:kv=f32"));
  for (const Numbers& good : {Numbers{31, 0}, Numbers{1, 1, 32, 0}, Numbers{5, 0}}) {
    const Bytes changed = With(bytes, {31, 0}, Sequence(good));
    EXPECT_TRUE(Session::RestoreFrom(Spaced(), {changed.data(), changed.size()}).ok());
  }
  for (const Numbers& bad : {Numbers{}, Numbers{31}, Numbers{31, 1}, Numbers{31, 2}, Numbers{31, -1},
                             Numbers{0, 0}, Numbers{-1, 0}, Numbers{33, 0}, Numbers{kMaxPosition, 0},
                             Numbers{31, 1, 31, 0}, Numbers{31, 1, 30, 0}, Numbers{31, 0, 32, 1}}) {
    SCOPED_TRACE(testing::PrintToString(bad));
    const Bytes changed = With(bytes, {31, 0}, Sequence(bad));
    const auto restored = Session::RestoreFrom(Spaced(), {changed.data(), changed.size()});
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), Code::kBadModel);
    EXPECT_NE(restored.status().message().find("where texts begin"), std::string::npos)
        << restored.status().message();
  }
}

}  // namespace
}  // namespace kvc

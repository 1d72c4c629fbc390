// Faults that were found from outside, one test each: what a caller or a saved file could do to a session.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>

#include "lib/base/hash.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::AllFinite;
using test::ExpectNearLogits;
using test::ExpectSameKept;
using test::FedSession;
using test::LogitsOf;
using test::NewSession;
using test::OpenTwoLayers;
using test::SavedBytes;
using test::Steps;
using test::TinyPrompt;

int32_t LongestHead(const Session& s) {
  const ModelConfig& c = s.model().config();
  std::vector<int32_t> kept;
  size_t longest = 0;
  for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
    EXPECT_TRUE(s.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &kept).ok());
    longest = std::max(longest, kept.size());
  }
  return static_cast<int32_t>(longest);
}

SessionParams Limited(int32_t max_tokens, OnFull on_full) {
  SessionParams params;
  params.max_tokens = max_tokens, params.on_full = on_full;
  return params;
}

// ---- at the end of the context ----

TEST(OnFullAgain, LengthsHoldAfterALaterCompression) {
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    for (const char* spec : {"snapkv:budget=48,window=8,kv=f32", "h2o:budget=40,kv=f32", "full:kv=f32"}) {
      SCOPED_TRACE(spec);
      const auto s = FedSession(OpenTwoLayers(), spec, 60, Limited(64, on_full));
      Steps(*s, 40);
      ASSERT_LE(LongestHead(*s), 64);
      if (std::strncmp(spec, "full", 4) != 0) {
        ASSERT_TRUE(s->Recompress(30, nullptr).ok());
      }
      const int32_t held = LongestHead(*s);
      Steps(*s, 200);
      EXPECT_EQ(LongestHead(*s), held);
    }
  }
}

// A chat goes on for ever: prompts are read past max_tokens, in memory that does not grow.
TEST(OnFullAgain, PromptsGoOnPastTheEnd) {
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    for (const char* spec : {"full:kv=f32", "snapkv:budget=24,window=8,kv=f32", "h2o:budget=24,kv=f32",
                             "streaming:budget=24,kv=f32", "spindlekv:budget=24,window=8",
                             "snapkv:budget=24,window=8,kv=int8,quant_group=8,residual=4",
                             "ada-snapkv:budget=24,window=8,pos_mode=incache", "tova:budget=20",
                             "weightedkv:budget=24", "snapkv:budget=24,window=8,decode=reobserve,slack=3"}) {
      SCOPED_TRACE(std::string(spec) + (on_full == OnFull::kSlide ? " slide" : " evict"));
      const auto s = FedSession(OpenTwoLayers(), spec, 50, Limited(64, on_full));
      int64_t held = 0;
      for (int turn = 0; turn < 12; ++turn) {
        Steps(*s, 7);
        const std::vector<int32_t> input = TinyPrompt(3 + turn * 31, static_cast<uint32_t>(turn));
        const Status status = s->Prefill(input, turn % 2 == 0);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(AllFinite(LogitsOf(*s)));
        std::vector<int32_t> kept;
        EXPECT_TRUE(s->Kept(1, 1, &kept).ok());
        EXPECT_EQ(kept.back(), s->Stats().n_slots_full / 4 - 1) << "the newest token is there";
        if (turn == 5) held = LongestHead(*s);
        if (turn > 5) {
          EXPECT_LE(LongestHead(*s), std::max<int64_t>(held, 64));
        }
      }
      EXPECT_LE(LongestHead(*s), 64 + 16);
    }
  }
}

// A full cache past its end: the first four and the newest, as at steps.
TEST(OnFullAgain, APromptDropsTheOldestBehindTheSinks) {
  const auto s = FedSession(OpenTwoLayers(), "full:kv=f32", 40, Limited(64, OnFull::kEvict));
  ASSERT_TRUE(s->Prefill(TinyPrompt(100, 3), true).ok());
  std::vector<int32_t> kept, expected = {0, 1, 2, 3};
  for (int p = 80; p < 140; ++p) expected.push_back(p);
  for (int g = 0; g < 2; ++g) {
    EXPECT_TRUE(s->Kept(1, g, &kept).ok());
    EXPECT_EQ(kept, expected);
  }
}

// What slides after a prompt past the end is what slides after the same tokens one by one.
TEST(OnFullAgain, PartsAndStepsLeaveTheSameEntries) {
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    const auto by_prompt = FedSession(OpenTwoLayers(), "full:kv=f32", 64, Limited(64, on_full)),
               by_steps = FedSession(OpenTwoLayers(), "full:kv=f32", 64, Limited(64, on_full));
    const std::vector<int32_t> more = TinyPrompt(37, 5);
    ASSERT_TRUE(by_prompt->Prefill(more, false).ok());
    for (int32_t token : more) ASSERT_TRUE(by_steps->Accept(token).ok());
    ASSERT_TRUE(by_steps->FeedPending().ok());
    ExpectSameKept(*by_prompt, *by_steps);
  }
}

// The token of the last step, which nobody has fed yet, is one of those that fit.
TEST(OnFullAgain, APromptBehindAStepThatFillsTheContextKeepsAsMany) {
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    const auto by_prompt = FedSession(OpenTwoLayers(), "full:kv=f32", 63, Limited(64, on_full)),
               by_steps = FedSession(OpenTwoLayers(), "full:kv=f32", 63, Limited(64, on_full));
    for (Session* session : {by_prompt.get(), by_steps.get()}) ASSERT_TRUE(session->Accept(7).ok());
    const std::vector<int32_t> more = TinyPrompt(37, 5);
    ASSERT_TRUE(by_prompt->Prefill(more, false).ok());
    for (int32_t token : more) ASSERT_TRUE(by_steps->Accept(token).ok());
    ASSERT_TRUE(by_steps->FeedPending().ok());
    EXPECT_EQ(by_prompt->Stats().n_slots, 4 * 64);
    ExpectSameKept(*by_prompt, *by_steps);
  }
}

// Entries that are appended go round in the ring of a quantised cache, whose order is not that of its slots.
TEST(OneSet, AppendedEntriesOfAQuantisedCacheAreTheSameForAllHeads) {
  for (int n_more = 1; n_more <= 24; ++n_more) {
    SCOPED_TRACE(n_more);
    const auto session = FedSession(OpenTwoLayers(), "tova:budget=24,kv=int8,quant_group=8,residual=4", 60);
    ASSERT_TRUE(session->Prefill(TinyPrompt(n_more, 3), false).ok());
    for (int i = 0; i < 12; ++i) {
      int32_t token = -1;
      ASSERT_TRUE(session->Step(&token).ok());
      ASSERT_TRUE(session->FeedPending().ok());
      for (int32_t layer = 0; layer < 2; ++layer) {
        std::vector<int32_t> first, other;
        ASSERT_TRUE(session->Kept(layer, 0, &first).ok() && session->Kept(layer, 1, &other).ok());
        ASSERT_EQ(first, other) << "layer " << layer << " behind step " << i;
      }
    }
  }
}

TEST(OnFullAgain, WithoutRoomNothingFits) {
  const auto s = FedSession(OpenTwoLayers(), "full:kv=f32", 60, Limited(64, OnFull::kError));
  EXPECT_EQ(s->Prefill(TinyPrompt(5), true).code(), Code::kContextFull);
  EXPECT_EQ(s->Prefill(TinyPrompt(5), false).code(), Code::kContextFull);
}

// ---- the caller's own sampler ----

TEST(Accept, IsAStepWithAnotherChoice) {
  for (const char* spec : {"full:kv=f32", "snapkv:budget=24,window=8", "h2o:budget=24", "tova:budget=24",
                           "spindlekv:budget=24,window=8", "cam:budget=24"}) {
    SCOPED_TRACE(spec);
    const auto steps = FedSession(OpenTwoLayers(), spec, 50), accepts = FedSession(OpenTwoLayers(), spec, 50);
    for (int i = 0; i < 40; ++i) {
      int32_t token = -1;
      ASSERT_TRUE(steps->Step(&token).ok());
      if (token < 0) break;
      ASSERT_TRUE(accepts->Accept(token).ok());
      std::string a(64, 0), b(64, 0);
      a.resize(static_cast<size_t>(steps->text().Pull(reinterpret_cast<uint8_t*>(a.data()), 64)));
      b.resize(static_cast<size_t>(accepts->text().Pull(reinterpret_cast<uint8_t*>(b.data()), 64)));
      EXPECT_EQ(a, b);
      EXPECT_EQ(steps->Stats().n_answer, accepts->Stats().n_answer);
    }
    ASSERT_TRUE(steps->FeedPending().ok() && accepts->ReadLogits(nullptr).ok());
    ExpectNearLogits(*steps, *accepts, 0.0f);
    ExpectSameKept(*steps, *accepts);
  }
}

TEST(Accept, StopTokensEnterTheHistory) {
  const auto model = OpenTwoLayers();
  const int32_t eos = 257;
  ASSERT_TRUE(model->tokenizer().IsStop(eos));
  const auto accepts = FedSession(model, "full:kv=f32", 20);
  EXPECT_EQ(NewSession(model, "full")->Accept(5).code(), Code::kInvalid) << "nothing to go on from";
  EXPECT_EQ(accepts->Accept(262).code(), Code::kInvalid);
  EXPECT_EQ(accepts->Accept(-1).code(), Code::kInvalid);
  ASSERT_TRUE(accepts->Accept(eos).ok());
  EXPECT_EQ(accepts->text().Available(), 0);
  ASSERT_TRUE(accepts->Prefill(TinyPrompt(5, 2), false).ok());
  std::vector<int32_t> all = TinyPrompt(20), more = TinyPrompt(5, 2);
  all.push_back(eos);
  all.insert(all.end(), more.begin(), more.end());
  const auto whole = NewSession(model, "full:kv=f32");
  ASSERT_TRUE(whole->Prefill(all, false).ok());
  ExpectNearLogits(*accepts, *whole, 2e-4f);
}

TEST(Accept, FollowsARewind) {
  const auto model = OpenTwoLayers();
  const auto s = FedSession(model, "full:kv=f32", 20), other = NewSession(model, "full:kv=f32");
  ASSERT_TRUE(s->Rewind(3).ok());
  ASSERT_TRUE(s->Accept(65).ok());
  ASSERT_TRUE(s->FeedPending().ok());
  EXPECT_TRUE(s->CanGoOn("answer").ok());
  std::vector<int32_t> tokens = TinyPrompt(20);
  tokens.resize(17);
  tokens.push_back(65);
  ASSERT_TRUE(other->Prefill(tokens, false).ok());
  ExpectNearLogits(*s, *other, 2e-4f);
}

// ---- policies that ended the process ----

TEST(Extremes, ScissorhandsNeverDropsNothing) {
  const Result<Policy> policy = ParsePolicy("scissorhands:budget=24,recent=4,drop=0");
  ASSERT_FALSE(policy.ok());
  EXPECT_NE(policy.status().message().find("drop = 0"), std::string::npos) << policy.status().message();
}

TEST(Extremes, TrimsBelowWhatTheNewestTokenSurvived) {
  const auto s = FedSession(OpenTwoLayers(), "tova:budget=12,protect_last=0", 40);
  for (int budget : {8, 4, 2, 1}) {
    const Status status = s->Recompress(budget, nullptr);
    ASSERT_TRUE(status.ok()) << budget << ": " << status.message();
    EXPECT_EQ(LongestHead(*s), budget);
    Steps(*s, 3);
  }
}

TEST(Extremes, TrimsAfterEviction) {
  for (const char* spec : {"tova:budget=17", "snapkv:budget=30,window=8", "nacl:budget=40,recent=8",
                           "scissorhands:budget=30,recent=4,drop=4", "h2o:budget=17"}) {
    for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
      SCOPED_TRACE(spec);
      const auto s = FedSession(OpenTwoLayers(), spec, 60, Limited(64, on_full));
      Steps(*s, 30);
      const Status status = s->Recompress(12, nullptr);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), Code::kInvalid) << status.message();
      }
      Steps(*s, 10);
      ASSERT_TRUE(AllFinite(LogitsOf(*s)));
    }
  }
}

TEST(Extremes, BudgetsThatNoPolicyTextCanHave) {
  const auto s = FedSession(OpenTwoLayers(), "snapkv:budget=24,window=8", 40);
  const Status status = s->Recompress(17000000, nullptr);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("16777216"), std::string::npos) << status.message();
}

// A ring whose slots lie behind the entries: scratch is for the slots.
TEST(Extremes, CodesOverASmallContext) {
  const auto model = OpenTwoLayers();
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    const auto s = FedSession(model, "spindlekv:budget=40", 19, Limited(150, on_full));
    Steps(*s, 400);
    ASSERT_TRUE(AllFinite(LogitsOf(*s)));
  }
}

// More query heads in a group than a mask has bits.
TEST(Extremes, FortyQueryHeadsForOneKvHead) {
  test::TinyModelOptions options;
  options.n_heads = 40, options.n_kv_heads = 1, options.head_dim = 8;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  const auto all = FedSession(model, "snapkv:budget=200,window=8,kv=f32", 60),
             full = FedSession(model, "full:kv=f32", 60),
             some = FedSession(model, "snapkv:budget=24,window=8", 60);
  ExpectNearLogits(*all, *full, 0.0f);
  Steps(*some, 10);
  EXPECT_EQ(LongestHead(*some), 24 + 9);
}

// WeightedKV as printed reads what its budget holds at once: the token that waits is a part of it.
TEST(Extremes, ThePendingTokenCountsInTheFirstPart) {
  const auto model = OpenTwoLayers();
  const char* spec = "weightedkv:budget=24,kv=f32,wkv_prefill=sequential";
  const auto waits = FedSession(model, spec, 10), told = FedSession(model, spec, 10);
  int32_t token = -1;
  ASSERT_TRUE(waits->Step(&token).ok());
  ASSERT_TRUE(waits->Prefill(TinyPrompt(40, 9), true).ok());
  std::vector<int32_t> tokens = {token};
  for (int32_t t : TinyPrompt(40, 9)) tokens.push_back(t);
  ASSERT_TRUE(told->Prefill(tokens, true).ok());
  ExpectSameKept(*waits, *told);
  ExpectNearLogits(*waits, *told, 0.0f);
}

// Prompts leave sums behind that cannot be taken out again.
TEST(Extremes, WatchedTokensAreNotTakenBack) {
  const auto model = OpenTwoLayers();
  const auto h2o = FedSession(model, "h2o:budget=60,kv=f32", 20),
             window = FedSession(model, "snapkv:budget=60", 20);
  EXPECT_EQ(h2o->Rewind(3).code(), Code::kUnsupported);
  EXPECT_TRUE(window->Rewind(3).ok());
}

// ---- memory ----

TEST(Memory, TokensThatMayBeReadAgainStayFew) {
  const auto s = FedSession(OpenTwoLayers(), "snapkv:budget=24,window=8", 60, Limited(64, OnFull::kEvict));
  test::TempFolder folder;
  ASSERT_TRUE(s->Save(folder / "early").ok());
  Steps(*s, 6000);
  ASSERT_TRUE(s->Save(folder / "late").ok());
  const auto size = [&](const std::string& name) {
    return static_cast<int64_t>(std::ifstream(folder / name, std::ios::ate | std::ios::binary).tellg());
  };
  EXPECT_LT(size("late"), size("early") + 16 * 1024) << "the list of tokens has an end";
}

// ---- saved sessions ----

// With a checksum that fits.
Result<std::unique_ptr<Session>> Restored(std::shared_ptr<const Model> model, std::vector<uint8_t> bytes) {
  const size_t payload = bytes.size() - 8;
  const uint64_t digest = Hash64(bytes.data(), payload);
  std::memcpy(bytes.data() + payload, &digest, 8);
  return Session::RestoreFrom(std::move(model), {bytes.data(), bytes.size()});
}

// Every int32 of the file set to every value that once did harm: refused, or a session that works.
TEST(Saved, EveryNumberMayBeAnyNumber) {
  for (const char* spec : {"h2o:budget=24,kv=f32", "snapkv:budget=24,window=8,kv=f32"}) {
    const auto model = OpenTwoLayers();
    const auto s = FedSession(model, spec, 40, Limited(44, OnFull::kEvict));
    Steps(*s, 10);
    const std::vector<uint8_t> saved = SavedBytes(*s);
    const size_t n_words = std::min<size_t>(saved.size() / 4 - 2, 700);
    int refused = 0, works = 0;
    for (size_t word = 4; word < n_words; ++word) {
      for (int32_t value :
           {0, -1, 1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
        std::vector<uint8_t> changed = saved;
        std::memcpy(changed.data() + word * 4, &value, 4);
        auto restored = Restored(model, std::move(changed));
        if (!restored.ok()) {
          ASSERT_EQ(restored.status().code(), Code::kBadModel) << restored.status().message();
          ++refused;
          continue;
        }
        ++works;
        Session& r = *restored.value();
        int32_t token = -1;
        (void)r.Rewind(4);
        (void)r.Step(&token);
        (void)r.Recompress(16, nullptr);
        (void)r.Prefill(TinyPrompt(6), true);
        for (int i = 0; i < 3; ++i) (void)r.Step(&token);
      }
    }
    EXPECT_GT(refused, 100);
    EXPECT_GT(works, 100);
  }
}

TEST(Saved, TakingBackMoreThanWasIsRefused) {
  const auto model = OpenTwoLayers();
  const auto s = FedSession(model, "snapkv:budget=24,window=8,kv=f32", 40);
  std::vector<uint8_t> b = SavedBytes(*s);
  // n_tokens, n_prompt, n_answer, n_compactions, pending, changed_at: 40 40 0 1 -1 40.
  const int32_t fields[] = {40, 40, 0, 1, -1, 40};
  const auto at = std::search(b.begin(), b.end(), reinterpret_cast<const uint8_t*>(fields),
                              reinterpret_cast<const uint8_t*>(fields) + sizeof fields);
  ASSERT_NE(at, b.end());
  std::memset(&*at + 20, 0, 4);
  const auto restored = Restored(model, std::move(b));
  ASSERT_FALSE(restored.ok());
  EXPECT_EQ(restored.status().code(), Code::kBadModel);
}

// However far a session is taken back, it knows the tokens that its policy reads again.
TEST(Rewind, GoesFurtherThanAnyHeadroom) {
  const auto model = OpenTwoLayers();
  constexpr int kAll = 2200, kBack = 1030;
  const std::vector<int32_t> tokens = TinyPrompt(kAll);
  const char* spec = "snapkv:budget=128,window=8,kv=f32";
  const auto back = test::NewSession(model, spec), never = test::NewSession(model, spec);
  ASSERT_TRUE(back->Prefill(tokens, false).ok());
  ASSERT_TRUE(never->Prefill({tokens.data(), kAll - kBack}, false).ok());
  ASSERT_TRUE(back->Rewind(kBack).ok());
  auto restored = Restored(model, SavedBytes(*back));
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  for (Session* s : {back.get(), never.get(), restored.value().get()})
    ASSERT_TRUE(s->Recompress(0, nullptr).ok());
  test::ExpectSameKept(*back, *never);
  test::ExpectSameKept(*restored.value(), *never);
}

// The text of an answer that was cut within a character ends there.
TEST(Text, APromptBeginsAnother) {
  const auto model = OpenTwoLayers();
  for (const int n : {1, 40}) {  // read as a row of a step, and by itself
    const auto s = FedSession(model, "full", 20);
    ASSERT_TRUE(s->Accept(0xE2).ok());
    EXPECT_EQ(s->text().Available(), 0);
    ASSERT_TRUE(s->Prefill(TinyPrompt(n), n > 1).ok());
    ASSERT_TRUE(s->Accept('a').ok());
    uint8_t text[8];
    ASSERT_EQ(s->text().Pull(text, 8), 1) << n;
    EXPECT_EQ(text[0], 'a');
  }
}

TEST(Text, AForkGoesOnWithinACharacter) {
  const auto s = FedSession(OpenTwoLayers(), "full", 20);
  ASSERT_TRUE(s->Accept(0xC3).ok());
  auto fork = s->Fork();
  ASSERT_TRUE(fork.ok());
  for (Session* one : {s.get(), fork.value().get()}) {
    ASSERT_TRUE(one->Accept(0xA9).ok());
    uint8_t text[8];
    ASSERT_EQ(one->text().Pull(text, 8), 2);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(text), 2), "\xC3\xA9");
  }
}

TEST(Extremes, ScoresThatMayLeaveAHeadWithNothingAreRefused) {
  const auto model = OpenTwoLayers();
  const auto create = [&](const char* spec) {
    const Result<Policy> policy = ParsePolicy(spec);
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return Session::Create(model, &policy.value(), {}).status();
  };
  for (const char* spec :
       {"h2o:budget=2,h2o_recent=0,allocator=global", "h2o:budget=8,h2o_recent=0,allocator=ada,ada_floor=0",
        "tova:budget=8,tova_scope=kvhead,protect_last=0,allocator=ada,ada_floor=0"}) {
    const Status refused = create(spec);
    EXPECT_EQ(refused.code(), Code::kInvalid) << spec;
    EXPECT_NE(refused.message().find("may be left with nothing"), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(create("h2o:budget=8,h2o_recent=0,allocator=ada,ada_floor=0.5").ok());
  EXPECT_TRUE(create("h2o:budget=8,h2o_recent=1,allocator=global").ok());
}

TEST(Extremes, AWholePercentOfAHundredTokensIsThatMany) {
  const auto model = OpenTwoLayers();
  for (int percent = 10; percent <= 100; ++percent) {
    const auto s = FedSession(model, "snapkv:window=8,budget_ratio=" + std::to_string(percent) + "%", 100);
    std::vector<int32_t> kept;
    ASSERT_TRUE(s->Kept(0, 0, &kept).ok());
    ASSERT_EQ(kept.size(), static_cast<size_t>(percent));
  }
}

TEST(Extremes, ATableHasNoAverageToTrimTo) {
  Policy policy = ParsePolicy("table").value();
  policy.table.assign(4, 40);
  auto s = Session::Create(OpenTwoLayers(), &policy, {});
  ASSERT_TRUE(s.ok()) << s.status().message();
  ASSERT_TRUE(s.value()->Prefill(TinyPrompt(100), true).ok());
  int64_t freed = -1;
  EXPECT_EQ(s.value()->Recompress(16, &freed).code(), Code::kUnsupported);
  std::vector<int32_t> kept;
  ASSERT_TRUE(s.value()->Kept(1, 1, &kept).ok());
  EXPECT_EQ(kept.size(), 40u);
}

}  // namespace
}  // namespace kvc

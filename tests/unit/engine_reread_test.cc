// Scorer reconstruct: what a second reading of the prompt looks at. The oracle is the decode path: the same
// tokens fed one by one to a session with its full cache, whose attention is observed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/engine/reread.h"
#include "lib/engine/session.h"
#include "lib/model/forward.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::TinyPrompt;

constexpr int kLayers = 2, kHeads = 4, kKvHeads = 2;

std::shared_ptr<const Model> Tiny(int32_t max_tokens = 160, int n_threads = 2) {
  test::TinyModelOptions options;
  options.n_layers = kLayers, options.n_heads = kHeads, options.n_kv_heads = kKvHeads;
  options.max_tokens = max_tokens, options.weight_scale = 2;
  static std::vector<test::AlignedBytes> files;  // models read them as long as they live
  files.push_back(test::TinyModelBytes(options));
  return test::OpenTiny(files.back(), n_threads);
}

std::unique_ptr<Session> Make(const char* spec, const std::shared_ptr<const Model>& model,
                              int32_t max_tokens = 0) {
  SessionParams params;
  params.max_tokens = max_tokens;
  return test::NewSession(model, spec, params);
}

constexpr SecondReading kAgain = {true};

TEST(Reread, HasEveryTokenOnceBehindInstructionAndLead) {
  const std::vector<int32_t> ids = TinyPrompt(100);
  for (const int32_t context : {120, 200, 400}) {
    Reread reread;
    ASSERT_TRUE(MakeReread(*Tiny(context), kAgain, ids, 100, &reread).ok());
    const std::string instruction =
        "\n\nRepeat the previous text exactly:\n\n";  // the tiny model's tokens are bytes
    EXPECT_FALSE(reread.own || reread.local);
    EXPECT_EQ(reread.parts.size(), context == 400 ? 1u : context == 200 ? 2u : 4u);
    size_t at = 0, done = 0;
    for (const Reread::Part& part : reread.parts) {
      EXPECT_EQ(part.begin, static_cast<int32_t>(at));
      EXPECT_TRUE(part.first == 0 && part.last == 100);
      for (char c : instruction) EXPECT_EQ(reread.tokens[at++], static_cast<uint8_t>(c));
      for (size_t i = done < 8 ? 0 : done - 8; at < static_cast<size_t>(part.end); ++i) {
        EXPECT_EQ(reread.tokens[at++], ids[i]);
        done = std::max(done, i + 1);
      }
    }
    EXPECT_EQ(at, reread.tokens.size());
    EXPECT_EQ(done, ids.size());
    EXPECT_LE(100 + reread.Behind(), std::max(context, 100 + 37 + 8 + 32));
  }
}

// Heads of one layer are far longer than those of another: of some the logits are few enough to be kept.
TEST(Reread, LayersOfVeryDifferentLengths) {
  if (test::OnAnotherDevice())
    GTEST_SKIP() << "of the processor's scratch, and minutes where a GPU is emulated";
  struct Case {
    const char* policy;
    int32_t first, then, kept;
  };
  for (const Case& c : {Case{"reconstruct:budget=256,window=1,allocator=pyramid,reread=own", 2000, 3750, 256},
                        Case{"kvzip:budget=64,reread=own,reread_part=4352", 5500, 0, 64},
                        Case{"kvzip:budget=64,reread=own,reread_part=4096", 4200, 0, 64}}) {
    SCOPED_TRACE(c.policy);
    const auto session = Make(c.policy, Tiny(10000));
    ASSERT_TRUE(session->Prefill(TinyPrompt(c.first), true).ok());
    ASSERT_TRUE(c.then == 0 || session->Prefill(TinyPrompt(c.then, 3), true).ok());
    size_t n = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        std::vector<int32_t> kept;
        ASSERT_TRUE(session->Kept(layer, head, &kept).ok());
        n += kept.size();
      }
    }
    EXPECT_EQ(n, static_cast<size_t>(c.kept * kLayers * kKvHeads));
  }
}

// However full the context: a part that sees only itself is as long as was asked for.
TEST(Reread, PartsThatSeeThemselvesDoNotShrink) {
  const std::vector<int32_t> ids = TinyPrompt(700);
  Reread reread;
  ASSERT_TRUE(MakeReread(*Tiny(700), {true, false, 256, 1}, ids, 700, &reread).ok());
  ASSERT_EQ(reread.parts.size(), 3u);
  EXPECT_EQ(reread.Behind(), 0);
  EXPECT_EQ(reread.Remembered(), 0);
  for (size_t i = 0; i < 3; ++i) {
    const Reread::Part& part = reread.parts[i];
    EXPECT_EQ(part.first, static_cast<int32_t>(i) * 256);
    EXPECT_EQ(part.last, std::min(part.first + 256, 700));
    const std::vector<int32_t> rows(reread.tokens.begin() + part.end - (part.last - part.first),
                                    reread.tokens.begin() + part.end);
    EXPECT_EQ(rows, std::vector<int32_t>(ids.begin() + part.first, ids.begin() + part.last));
  }
}

TEST(Reread, OwnRowsComeByChunksAndRunNoTokens) {
  const std::vector<int32_t> ids = TinyPrompt(1200);
  Reread whole, parts;
  ASSERT_TRUE(MakeReread(*Tiny(4096), {true, true, 0, 1}, ids, 1200, &whole).ok());
  ASSERT_TRUE(MakeReread(*Tiny(4096), {true, true, 512, 1}, ids, 1200, &parts).ok());
  EXPECT_TRUE(whole.tokens.empty() && parts.tokens.empty());
  EXPECT_EQ(whole.Remembered(), 1200);
  EXPECT_EQ(parts.Remembered(), 512);
  EXPECT_EQ(whole.Behind(), kPromptChunk);
  ASSERT_EQ(whole.parts.size(), 5u);
  ASSERT_EQ(parts.parts.size(), 5u);
  for (int32_t i = 0; i < 5; ++i) {
    const Reread::Part &w = whole.parts[static_cast<size_t>(i)], &p = parts.parts[static_cast<size_t>(i)];
    EXPECT_TRUE(w.begin == i * 256 && w.end == std::min(w.begin + 256, 1200) && w.last == 1200);
    EXPECT_TRUE(p.begin == w.begin && p.end == w.end);
    EXPECT_TRUE(p.first == i / 2 * 512 && p.last == std::min(p.first + 512, 1200));
  }
  // A part is read when the prompt has come to its end, the others behind the prompt.
  std::vector<int32_t> order;
  for (const PromptTask& task : TasksOf(1200, &parts, kPromptChunk)) order.push_back(task.part);
  EXPECT_EQ(order, (std::vector<int32_t>{-1, -1, 0, 1, -1, -1, 2, 3, -1, 4}));
  order.clear();
  for (const PromptTask& task : TasksOf(1200, &whole, kPromptChunk)) order.push_back(task.part);
  EXPECT_EQ(order, (std::vector<int32_t>{-1, -1, -1, -1, -1, 0, 1, 2, 3, 4}));
}

TEST(Reread, AShareOfThePartsIsSpreadEvenly) {
  const std::vector<int32_t> ids = TinyPrompt(2560);  // ten parts
  for (const bool own : {false, true}) {
    for (const int32_t part : {0, 256}) {
      for (const double share : {0.01, 0.1, 0.3, 0.5, 1.0}) {
        Reread reread;
        ASSERT_TRUE(MakeReread(*Tiny(4096), {true, own, part, share}, ids, 2560, &reread).ok());
        if (share == 1 && !own && part == 0) continue;  // one long part, or two
        EXPECT_EQ(reread.parts.size(), static_cast<size_t>(std::ceil(10 * share - 1e-9)))
            << own << part << share;
      }
    }
  }
}

TEST(Reread, APlanKnowsWhatMemoryGoesBy) {
  for (const int32_t n : {1, 30, 100, 700, 2560}) {
    const std::vector<int32_t> ids = TinyPrompt(n);
    for (const int32_t context : {160, 4096}) {
      for (const bool own : {false, true}) {
        for (const int32_t part : {0, 256}) {
          for (const double share : {0.1, 1.0}) {
            SCOPED_TRACE(Format("%d of %d, own %d, part %d, share %g", n, context, own, part, share));
            const auto model = Tiny(context);
            const SecondReading reading{true, own, part, share};
            Reread made, planned;
            ASSERT_TRUE(MakeReread(*model, reading, ids, n, &made).ok());
            ASSERT_TRUE(PlanReread(*model, reading, n, n, &planned).ok());
            EXPECT_EQ(made.n_tokens, static_cast<int32_t>(made.tokens.size()));
            EXPECT_EQ(planned.n_tokens, made.n_tokens);
            EXPECT_EQ(planned.LongestPart(), made.LongestPart());
            EXPECT_EQ(planned.LongestSight(), made.LongestSight());
            EXPECT_EQ(planned.Behind(), made.Behind());
            EXPECT_EQ(planned.Remembered(), made.Remembered());
            EXPECT_TRUE(planned.tokens.empty());
          }
        }
      }
    }
  }
}

// [L, G, n]: the largest probability of any row of any segment, or the sum of the squares of all.
std::vector<std::vector<double>> FoundByDecoding(std::shared_ptr<const Model> model,
                                                 const std::vector<int32_t>& ids, bool squares) {
  auto full = Make("full:kv=f32", model, 4096);
  EXPECT_TRUE(full->Prefill(ids, true).ok());
  Reread reread;
  EXPECT_TRUE(MakeReread(*model, kAgain, ids, static_cast<int32_t>(ids.size()), &reread).ok());
  std::vector<std::vector<double>> largest(kLayers * kKvHeads, std::vector<double>(ids.size(), 0.0));
  int32_t at = 0;
  for (const Reread::Part& part : reread.parts) {
    auto fork = full->Fork();
    EXPECT_TRUE(fork.ok());
    Session* session = fork.value().get();
    session->ObserveAttention(true);
    for (; at < part.end; ++at) {
      EXPECT_TRUE(Session::FeedBatch({&session, 1}, &reread.tokens[static_cast<size_t>(at)]).ok());
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int h = 0; h < kHeads; ++h) {
          std::vector<float> p;
          EXPECT_TRUE(session->Attention(layer, h, &p).ok());
          std::vector<double>& line =
              largest[static_cast<size_t>(layer * kKvHeads + h / (kHeads / kKvHeads))];
          for (size_t t = 0; t < line.size(); ++t) {
            const double x = static_cast<double>(p[t]);
            line[t] = squares ? line[t] + x * x : std::max(line[t], x);
          }
        }
      }
    }
  }
  return largest;
}

void ExpectKeepsTheBest(bool squares) {
  const std::vector<int32_t> ids = TinyPrompt(100);
  const auto model = Tiny();
  constexpr int kBudget = 30, kWindow = 4;
  const std::string spec = "snapkv:budget=30,window=4,scorer=reconstruct,kernel=1,kv=f32";
  auto session = Make((spec + (squares ? ",reread_score=squares" : "")).c_str(), model);
  ASSERT_TRUE(session->Prefill(ids, true).ok());
  const std::vector<std::vector<double>> largest = FoundByDecoding(model, ids, squares);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int g = 0; g < kKvHeads; ++g) {
      const std::vector<double>& score = largest[static_cast<size_t>(layer * kKvHeads + g)];
      std::vector<int32_t> want(ids.size() - kWindow), got;
      std::iota(want.begin(), want.end(), 0);
      std::sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
        return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
      });
      const double last = score[static_cast<size_t>(want[kBudget - kWindow - 1])],
                   next = score[static_cast<size_t>(want[kBudget - kWindow])];
      ASSERT_GT(last - next, 1e-6) << "a tie decides nothing: take another prompt";
      want.resize(kBudget - kWindow);
      for (int32_t t = 0; t < kWindow; ++t) want.push_back(static_cast<int32_t>(ids.size()) - kWindow + t);
      std::sort(want.begin(), want.end());
      EXPECT_TRUE(session->Kept(layer, g, &got).ok());
      EXPECT_EQ(got, want) << "layer " << layer << " head " << g;
    }
  }
}

TEST(Reconstruct, KeepsWhatTheSecondReadingLooksAt) { ExpectKeepsTheBest(false); }
TEST(Reconstruct, KeepsWhatHasTheLargestSquares) { ExpectKeepsTheBest(true); }

constexpr const char* kReadings[] = {"",
                                     ",reread_part=256",
                                     ",reread=own",
                                     ",reread=own,reread_part=256",
                                     ",reread_share=0.5",
                                     ",reread_score=squares",
                                     ",reread=own,reread_part=256,reread_score=squares"};

std::vector<std::vector<int32_t>> AllKept(const Session& session) {
  std::vector<std::vector<int32_t>> kept(kLayers * kKvHeads);
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(session.Kept(static_cast<int>(i) / kKvHeads, static_cast<int>(i) % kKvHeads, &kept[i]).ok());
  return kept;
}

// One part that holds all of a first prompt sees what everybody sees.
TEST(Reconstruct, APartThatHoldsThePromptIsTheWhole) {
  const std::vector<int32_t> ids = TinyPrompt(250);
  const auto model = Tiny(4096);
  for (const std::string spec : {"reconstruct:budget=40,kv=f32", "reconstruct:budget=40,kv=f32,reread=own"}) {
    auto whole = Make(spec.c_str(), model), part = Make((spec + ",reread_part=256").c_str(), model);
    ASSERT_TRUE(whole->Prefill(ids, true).ok());
    ASSERT_TRUE(part->Prefill(ids, true).ok());
    EXPECT_EQ(AllKept(*whole), AllKept(*part)) << spec;
  }
}

TEST(Reconstruct, ReadingsChooseDifferently) {
  const std::vector<int32_t> ids = TinyPrompt(700);
  const auto model = Tiny(4096);
  std::vector<std::vector<std::vector<int32_t>>> seen;
  for (const char* reading : kReadings) {
    auto session = Make((std::string("reconstruct:budget=40,kv=f32") + reading).c_str(), model);
    ASSERT_TRUE(session->Prefill(ids, true).ok());
    const auto kept = AllKept(*session);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), kept), 0) << reading << " changes nothing";
    seen.push_back(kept);
  }
}

TEST(Reconstruct, ReadingAgainLeavesNoTrace) {
  const std::vector<int32_t> ids = TinyPrompt(300);  // two chunks
  for (const int n_threads : {1, 2}) {
    const auto model = Tiny(4096, n_threads);
    for (const char* reading : kReadings) {
      SCOPED_TRACE(reading);
      auto full = Make("full:kv=f32", model),
           all = Make((std::string("cokv-document:budget=300,kv=f32") + reading).c_str(), model);
      ASSERT_TRUE(full->Prefill(ids, true).ok());
      ASSERT_TRUE(all->Prefill(ids, true).ok());
      EXPECT_EQ(test::LogitsOf(*full), test::LogitsOf(*all));
      EXPECT_EQ(all->Stats().n_slots, 300 * kLayers * kKvHeads);
      for (int i = 0; i < 5; ++i) {
        int32_t a = -1, b = -2;
        ASSERT_TRUE(full->Step(&a).ok());
        ASSERT_TRUE(all->Step(&b).ok());
        EXPECT_EQ(a, b);
      }
    }
  }
}

TEST(Reconstruct, OnePassForManySessionsEqualsOneEach) {
  const std::vector<int32_t> ids = TinyPrompt(120);
  const auto model = Tiny();
  const std::vector<const char*> specs = {
      "full:kv=f32", "cokv-document:budget=40,kv=f32", "snapkv-w8:budget=40,kv=f32", "h2o:budget=40,kv=f32",
      // Each kind of second reading has a pass of its own.
      "cokv-document:budget=40,kv=f32,reread=own", "reconstruct:budget=40,kv=f32,reread=own",
      "cokv-document:budget=40,kv=f32,reread=own,reread_part=256",
      "cokv-document:budget=40,kv=f32,reread_part=256",
      // These read a prompt token by token, or in chunks.
      "cam:budget=40,kv=f32", "weightedkv:budget=40,wkv_prefill=sequential"};
  std::vector<std::unique_ptr<Session>> together;
  std::vector<Session*> sessions;
  for (const char* spec : specs) {
    together.push_back(Make(spec, model));
    sessions.push_back(together.back().get());
  }
  ASSERT_TRUE(Session::PrefillTogether({sessions.data(), sessions.size()}, ids).ok());
  for (size_t i = 0; i < specs.size(); ++i) {
    auto alone = Make(specs[i], model);
    ASSERT_TRUE(alone->Prefill(ids, true).ok());
    EXPECT_EQ(AllKept(*alone), AllKept(*together[i])) << specs[i];
    EXPECT_EQ(test::LogitsOf(*alone), test::LogitsOf(*together[i])) << specs[i];
  }
}

// Sessions of one model, empty, in each of which the prompt has room.
TEST(Reconstruct, WhatCannotBeReadTogetherIsRefused) {
  const std::vector<int32_t> ids = TinyPrompt(60);
  const auto model = Tiny(), other = Tiny();
  const auto good = Make("full", model), foreign = Make("full", other), waits = Make("full", model),
             fed = Make("full", model);
  SessionParams params;
  params.max_tokens = 40, params.on_full = OnFull::kSlide;
  const auto small = test::NewSession(model, "full", params);
  ASSERT_TRUE(waits->Enqueue(ids, true).ok());
  ASSERT_TRUE(fed->Prefill(ids, true).ok());
  const std::pair<Session*, Code> bad[] = {{foreign.get(), Code::kInvalid},
                                           {waits.get(), Code::kInvalid},
                                           {fed.get(), Code::kInvalid},
                                           {small.get(), Code::kContextFull}};
  for (const auto& [session, code] : bad) {
    Session* const both[] = {good.get(), session};
    const Status status = Session::PrefillTogether({both, 2}, ids);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(good->Stats().n_tokens, 0);
  }
  EXPECT_TRUE(waits->reads_prompt());
}

// A second prompt reads only itself again; what was kept before stays by what it was worth then or is now.
TEST(Reconstruct, SecondPromptKeepsTheBudget) {
  for (const char* reading : kReadings) {
    auto session =
        Make((std::string("snapkv:budget=30,window=4,scorer=reconstruct,kernel=1,kv=f32") + reading).c_str(),
             Tiny(600));
    ASSERT_TRUE(session->Prefill(TinyPrompt(100), true).ok());
    ASSERT_TRUE(session->Prefill(TinyPrompt(80), true).ok());
    for (const std::vector<int32_t>& kept : AllKept(*session)) {
      EXPECT_EQ(kept.size(), 30u) << reading;
      EXPECT_LT(kept.front(), 100) << reading;
      EXPECT_EQ(kept.back(), 179) << reading;
    }
  }
}

}  // namespace
}  // namespace kvc

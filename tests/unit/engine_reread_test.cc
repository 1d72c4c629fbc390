// Scorer reconstruct: what a second reading of the prompt looks at. The oracle is the decode path: the same
// tokens fed one by one to a session with its full cache, whose attention is observed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/engine/reread.h"
#include "lib/engine/session.h"
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

TEST(Reread, HasEveryTokenOnceBehindInstructionAndLead) {
  const std::vector<int32_t> ids = TinyPrompt(100);
  for (const int32_t context : {120, 200, 400}) {
    Reread reread;
    ASSERT_TRUE(MakeReread(*Tiny(context), ids, 100, &reread).ok());
    const std::string instruction =
        "\n\nRepeat the previous text exactly:\n\n";  // the tiny model's tokens are bytes
    ASSERT_GE(reread.ends.size(), 1u);
    EXPECT_EQ(reread.ends.back(), static_cast<int32_t>(reread.tokens.size()));
    EXPECT_EQ(reread.ends.size(), context == 400 ? 1u : context == 200 ? 2u : 4u);
    size_t begin = 0, done = 0;
    int32_t longest = 0;
    for (int32_t end : reread.ends) {
      longest = std::max(longest, end - static_cast<int32_t>(begin));
      for (char c : instruction) EXPECT_EQ(reread.tokens[begin++], static_cast<uint8_t>(c));
      for (size_t at = done < 8 ? 0 : done - 8; begin < static_cast<size_t>(end); ++at) {
        EXPECT_EQ(reread.tokens[begin++], ids[at]);
        done = std::max(done, at + 1);
      }
    }
    EXPECT_EQ(done, ids.size());
    EXPECT_EQ(reread.LongestSegment(), longest);
    EXPECT_LE(100 + longest, std::max(context, 100 + 37 + 8 + 32));
  }
}

// [L, G, n]: the largest probability of any row of any segment.
std::vector<std::vector<double>> LargestByDecoding(std::shared_ptr<const Model> model,
                                                   const std::vector<int32_t>& ids) {
  auto full = Make("full:kv=f32", model, 4096);
  EXPECT_TRUE(full->Prefill(ids, true).ok());
  Reread reread;
  EXPECT_TRUE(MakeReread(*model, ids, static_cast<int32_t>(ids.size()), &reread).ok());
  std::vector<std::vector<double>> largest(kLayers * kKvHeads, std::vector<double>(ids.size(), 0.0));
  int32_t at = 0;
  for (int32_t end : reread.ends) {
    auto fork = full->Fork();
    EXPECT_TRUE(fork.ok());
    Session* session = fork.value().get();
    session->ObserveAttention(true);
    for (; at < end; ++at) {
      EXPECT_TRUE(Session::FeedBatch({&session, 1}, &reread.tokens[static_cast<size_t>(at)]).ok());
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int h = 0; h < kHeads; ++h) {
          std::vector<float> p;
          EXPECT_TRUE(session->Attention(layer, h, &p).ok());
          std::vector<double>& line =
              largest[static_cast<size_t>(layer * kKvHeads + h / (kHeads / kKvHeads))];
          for (size_t t = 0; t < line.size(); ++t) line[t] = std::max(line[t], static_cast<double>(p[t]));
        }
      }
    }
  }
  return largest;
}

TEST(Reconstruct, KeepsWhatTheSecondReadingLooksAt) {
  const std::vector<int32_t> ids = TinyPrompt(100);
  const auto model = Tiny();
  constexpr int kBudget = 30, kWindow = 4;
  auto session = Make("snapkv:budget=30,window=4,scorer=reconstruct,kernel=1,kv=f32", model);
  ASSERT_TRUE(session->Prefill(ids, true).ok());
  const std::vector<std::vector<double>> largest = LargestByDecoding(model, ids);
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

TEST(Reconstruct, ReadingAgainLeavesNoTrace) {
  const std::vector<int32_t> ids = TinyPrompt(300);  // two chunks
  for (const int n_threads : {1, 2}) {
    const auto model = Tiny(4096, n_threads);
    auto full = Make("full:kv=f32", model), all = Make("cokv-document:budget=300,kv=f32", model);
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

TEST(Reconstruct, OnePassForManySessionsEqualsOneEach) {
  const std::vector<int32_t> ids = TinyPrompt(120);
  const auto model = Tiny();
  const std::vector<const char*> specs = {
      "full:kv=f32", "cokv-document:budget=40,kv=f32", "snapkv-w8:budget=40,kv=f32", "h2o:budget=40,kv=f32",
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
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int g = 0; g < kKvHeads; ++g) {
        std::vector<int32_t> a, b;
        EXPECT_TRUE(alone->Kept(layer, g, &a).ok() && together[i]->Kept(layer, g, &b).ok());
        EXPECT_EQ(a, b) << specs[i];
      }
    }
    EXPECT_EQ(test::LogitsOf(*alone), test::LogitsOf(*together[i])) << specs[i];
  }
}

// A second prompt reads only itself again; what was kept before stays by what it was worth then or is now.
TEST(Reconstruct, SecondPromptKeepsTheBudget) {
  auto session = Make("snapkv:budget=30,window=4,scorer=reconstruct,kernel=1,kv=f32", Tiny(600));
  ASSERT_TRUE(session->Prefill(TinyPrompt(100), true).ok());
  ASSERT_TRUE(session->Prefill(TinyPrompt(80), true).ok());
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int g = 0; g < kKvHeads; ++g) {
      std::vector<int32_t> kept;
      EXPECT_TRUE(session->Kept(layer, g, &kept).ok());
      EXPECT_EQ(kept.size(), 30u);
      EXPECT_LT(kept.front(), 100);
      EXPECT_EQ(kept.back(), 179);
    }
  }
}

}  // namespace
}  // namespace kvc

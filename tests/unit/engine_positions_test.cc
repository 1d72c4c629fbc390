// pos_mode=incache (methods.md 1.2) where keys are stored in other ways than as they are.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::ExpectNearLogits;
using test::ExpectSameKept;
using test::FedSession;
using test::FeedTokens;
using test::OpenOneLayer;
using test::TinyPrompt;

const std::string kSnap = "snapkv:budget=24,window=8,kv=f32";

// Codes that share no direction are the vectors themselves, up to rounding.
TEST(Positions, CodesCountInSlots) {
  const auto model = OpenOneLayer();
  for (const char* positions : {"original", "incache"}) {
    const std::string mode = std::string(",pos_mode=") + positions;
    const auto coded = FedSession(model, kSnap + ",reducer=codebook,theta_k=1,theta_v=1" + mode, 60),
               plain = FedSession(model, kSnap + mode, 60);
    for (int turn = 0; turn < 3; ++turn) {
      SCOPED_TRACE(mode + ", turn " + std::to_string(turn));
      ExpectSameKept(*coded, *plain);
      FeedTokens(*coded, TinyPrompt(6, 11));
      FeedTokens(*plain, TinyPrompt(6, 11));
      ExpectNearLogits(*coded, *plain, 1e-4f);
      for (Session* s : {coded.get(), plain.get()}) ASSERT_TRUE(s->Prefill(TinyPrompt(30, 17), true).ok());
      ExpectNearLogits(*coded, *plain, 1e-4f);
    }
  }
}

// Where positions are counted in slots, no token of a prompt is at one that the model does not know: what is
// longer than the trained context is read in parts, as if the caller had given them one after the other.
TEST(Positions, EndlessPromptsStayWithinTheTrainedContext) {
  constexpr int32_t kTrained = 600, kBudget = 32, kPart = kTrained - kBudget;
  test::TinyModelOptions options;
  options.max_tokens = kTrained;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  const std::vector<int32_t> all = TinyPrompt(3 * kPart + 70);
  const auto part = [&](size_t from, size_t n) {
    return std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(from),
                                all.begin() + static_cast<std::ptrdiff_t>(from + n));
  };
  for (const std::string spec : {"streaming:budget=32", "h2o:budget=32,pos_mode=incache"}) {
    SCOPED_TRACE(spec);
    const auto whole = test::NewSession(model, spec), parts = test::NewSession(model, spec);
    ASSERT_TRUE(whole->Prefill(all, true).ok());
    for (size_t at = 0; at < all.size(); at += kPart)
      ASSERT_TRUE(parts->Prefill(part(at, std::min<size_t>(kPart, all.size() - at)), true).ok());
    ExpectSameKept(*whole, *parts);
    ExpectNearLogits(*whole, *parts, 0.0f);
    EXPECT_EQ(test::Steps(*whole, 20), test::Steps(*parts, 20));
    EXPECT_EQ(whole->Stats().cache_bytes_peak, parts->Stats().cache_bytes_peak);
    const auto compactions = [&](Session& s, size_t n) {
      const int32_t before = s.Stats().n_compactions;
      EXPECT_TRUE(s.Prefill(part(0, n), true).ok());
      return s.Stats().n_compactions - before;
    };
    EXPECT_EQ(compactions(*test::NewSession(model, spec), kTrained), 1);
    EXPECT_EQ(compactions(*test::NewSession(model, spec), kTrained + 1), 2);
    EXPECT_EQ(compactions(*whole, kPart), 1);
    EXPECT_EQ(compactions(*parts, kPart + 1), 2);
  }
  SessionParams longer;
  longer.max_tokens = 2000;
  const auto original = test::NewSession(model, "h2o:budget=32", longer);
  ASSERT_TRUE(original->Prefill(part(0, 1500), true).ok());
  EXPECT_EQ(original->Stats().n_compactions, 1) << "original positions are read at once";
}

// Until something is dropped a slot is a position.
TEST(Positions, NothingDroppedNothingMoves) {
  const auto model = OpenOneLayer();
  for (const std::string spec :
       {"snapkv:budget=90,window=8,reducer=codebook", "snapkv:budget=90,window=8,decode=reobserve",
        "spindlekv:budget=90,window=8", "h2o:budget=90"}) {
    SCOPED_TRACE(spec);
    const auto slots = FedSession(model, spec + ",pos_mode=incache", 60),
               original = FedSession(model, spec + ",pos_mode=original", 60);
    FeedTokens(*slots, TinyPrompt(20, 11));
    FeedTokens(*original, TinyPrompt(20, 11));
    ExpectNearLogits(*slots, *original, 1e-5f);
  }
}

// Prefill and decode rotate, mask and read the cache by different code.
TEST(Positions, APromptOfOneTokenIsAStep) {
  const auto model = test::OpenTwoLayers();
  // A step attends over the newest entry as it is stored, a prompt as it was before.
  const struct {
    std::string spec;
    float tolerance;
  } cases[] = {{"full:kv=f32", 2e-5f},
               {"full:kv=int8,quant_group=8,residual=4", 1e-3f},
               {"full:kv=int8,quant_group=8,key_axis=channel", 1e-3f},
               {"snapkv:budget=24,window=8,kv=f32", 2e-5f},
               {"snapkv:budget=24,window=8,kv=f32,pos_mode=incache", 2e-5f},
               {"snapkv:budget=24,window=8,kv=bf16,decode=reobserve,slack=9,pos_mode=incache", 1e-2f},
               {"snapkv:budget=24,window=8,kv=f32,reducer=codebook,pos_mode=incache", 1e-3f},
               {"spindlekv:budget=24,window=8,kv=f32", 1e-3f},
               {"ada-snapkv:budget=24,window=8,kv=f32", 2e-5f},
               {"h2o:budget=24,kv=f32,decode=grow", 2e-5f},
               {"tova:budget=24,kv=f32,decode=grow,pos_mode=incache", 2e-5f},
               {"cokv-mixed:budget=24,quant_group=8", 1e-3f}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spec);
    const auto steps = FedSession(model, c.spec, 60), prompts = FedSession(model, c.spec, 60);
    for (const int32_t token : TinyPrompt(6, 11)) {
      FeedTokens(*steps, {token});
      ASSERT_TRUE(prompts->Prefill(std::vector<int32_t>{token}, false).ok());
      ExpectNearLogits(*steps, *prompts, c.tolerance);
      ExpectSameKept(*steps, *prompts);
    }
  }
}

// The keys do differ once something is gone.
TEST(Positions, DroppedEntriesCloseTheirGap) {
  const auto model = OpenOneLayer();
  const auto slots = FedSession(model, kSnap + ",pos_mode=incache", 60),
             original = FedSession(model, kSnap, 60);
  ExpectSameKept(*slots, *original);
  FeedTokens(*slots, {7});
  FeedTokens(*original, {7});
  EXPECT_GT(test::LargestDifference(*slots, *original), 1e-2);
}

}  // namespace
}  // namespace kvc

// SpindleKV: every query head reads its own set of a KV head's entries (methods.md 2.16 c), also when a later
// prompt comes upon them. The oracle is decoding: tokens fed one by one read the sets as they are stored.
#include <gtest/gtest.h>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::FeedTokens;
using test::LargestDifference;
using test::TinyPrompt;

// No two vectors are within cosine 1: the codebook is exact, and what is tested is who sees what.
constexpr char kExact[] = "spindlekv:budget=24,window=8,theta_k=1,theta_v=1,kv=f32";

std::shared_ptr<const Model> Tiny() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 2, options.n_heads = 8, options.n_kv_heads = 2, options.weight_scale = 2;
    return test::TinyModelBytes(options);
  }();
  return test::OpenTiny(bytes);
}

std::unique_ptr<Session> AfterAPrompt(const char* spec) {
  std::unique_ptr<Session> session = test::NewSession(Tiny(), spec);
  EXPECT_TRUE(session->Prefill(TinyPrompt(120, 1), true).ok());
  return session;
}

TEST(QueryHeadSets, ALaterPromptReadsThemAsDecodingDoes) {
  for (const int n : {1, 5, 40}) {
    auto at_once = AfterAPrompt(kExact), one_by_one = AfterAPrompt(kExact);
    const std::vector<int32_t> more = TinyPrompt(n, 2);
    ASSERT_TRUE(at_once->Prefill(more, false).ok());
    FeedTokens(*one_by_one, more);
    EXPECT_LT(LargestDifference(*at_once, *one_by_one), 2e-4) << n;
    // And it leaves them as they were.
    const std::vector<int32_t> rest = TinyPrompt(3, 3);
    FeedTokens(*at_once, rest), FeedTokens(*one_by_one, rest);
    EXPECT_LT(LargestDifference(*at_once, *one_by_one), 2e-4) << n;
  }
}

TEST(QueryHeadSets, DifferFromOneSetForAll) {
  auto own = AfterAPrompt(kExact),
       same = AfterAPrompt("spindlekv:budget=24,window=8,theta_k=1,theta_v=1,kv=f32,spindle_gqa=mean");
  FeedTokens(*own, TinyPrompt(5, 2)), FeedTokens(*same, TinyPrompt(5, 2));
  EXPECT_GT(LargestDifference(*own, *same), 1e-2) << "the first test would say nothing";
}

// What a head gave up does not come back to it, however it scores for its neighbours.
TEST(QueryHeadSets, ASecondCompressionOnlyShrinksThem) {
  auto compressed = AfterAPrompt(kExact);
  ASSERT_TRUE(compressed->Prefill(TinyPrompt(60, 2), true).ok());
  auto one_by_one = compressed->Fork();
  ASSERT_TRUE(one_by_one.ok());
  const std::vector<int32_t> more = TinyPrompt(9, 4);
  ASSERT_TRUE(compressed->Prefill(more, false).ok());
  FeedTokens(*one_by_one.value(), more);
  EXPECT_LT(LargestDifference(*compressed, *one_by_one.value()), 2e-4);
}

}  // namespace
}  // namespace kvc

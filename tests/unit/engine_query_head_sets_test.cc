// SpindleKV: every query head reads its own set of a KV head's entries (methods.md 2.16 c), also when a later
// prompt comes upon them. The oracle is decoding: tokens fed one by one read the sets as they are stored.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/engine/session.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

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
  Result<Policy> policy = ParsePolicy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  auto session = Session::Create(Tiny(), &policy.value(), {});
  EXPECT_TRUE(session.ok()) << session.status().message();
  EXPECT_TRUE(session.value()->Prefill(TinyPrompt(120, 1), true).ok());
  return std::move(session.value());
}

void Feed(Session& s, const std::vector<int32_t>& ids) {
  Session* one = &s;
  for (const int32_t id : ids) ASSERT_TRUE(Session::FeedBatch({&one, 1}, &id).ok());
}

double LargestDifference(const Session& a, const Session& b) {
  double largest = 0;
  for (size_t i = 0; i < a.logits().size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a.logits()[i]) - b.logits()[i]));
  return largest;
}

TEST(QueryHeadSets, ALaterPromptReadsThemAsDecodingDoes) {
  for (const int n : {1, 5, 40}) {
    auto at_once = AfterAPrompt(kExact), one_by_one = AfterAPrompt(kExact);
    const std::vector<int32_t> more = TinyPrompt(n, 2);
    ASSERT_TRUE(at_once->Prefill(more, false).ok());
    Feed(*one_by_one, more);
    EXPECT_LT(LargestDifference(*at_once, *one_by_one), 2e-4) << n;
    // And it leaves them as they were.
    const std::vector<int32_t> rest = TinyPrompt(3, 3);
    Feed(*at_once, rest), Feed(*one_by_one, rest);
    EXPECT_LT(LargestDifference(*at_once, *one_by_one), 2e-4) << n;
  }
}

TEST(QueryHeadSets, DifferFromOneSetForAll) {
  auto own = AfterAPrompt(kExact),
       same = AfterAPrompt("spindlekv:budget=24,window=8,theta_k=1,theta_v=1,kv=f32,spindle_gqa=mean");
  Feed(*own, TinyPrompt(5, 2)), Feed(*same, TinyPrompt(5, 2));
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
  Feed(*one_by_one.value(), more);
  EXPECT_LT(LargestDifference(*compressed, *one_by_one.value()), 2e-4);
}

}  // namespace
}  // namespace kvc

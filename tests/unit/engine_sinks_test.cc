// Attention sinks in sessions: what they take from the attention that is observed. That logits and choices
// are right is for tests/golden to say.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

test::AlignedBytes Bytes(bool sinks, float shift) {
  test::TinyModelOptions options;
  options.sink_shift = shift;
  options.change = [sinks](ModelConfig* c) { c->attention_sinks = sinks; };
  return test::TinyModelBytes(options);
}

// The attention of query head h in the first layer, whose logits no sink has touched.
std::vector<float> FirstLayer(const std::shared_ptr<const Model>& model, const char* spec, int32_t n, int h) {
  const auto session = test::NewSession(model, spec);
  const std::vector<int32_t> ids = test::TinyPrompt(n + 1);
  EXPECT_TRUE(session->Prefill({ids.data(), static_cast<size_t>(n)}, true).ok());
  session->ObserveAttention(true);
  test::FeedTokens(*session, {ids.back()});
  std::vector<float> p;
  EXPECT_TRUE(session->Attention(0, h, &p).ok());
  return p;
}

double Sum(const std::vector<float>& p) { return std::accumulate(p.begin(), p.end(), 0.0); }

// Every entry gives up the same share; a sink that is higher by x has e^x as much beside what is left.
TEST(Sinks, TakeTheSameShareOfEveryEntry) {
  const test::AlignedBytes bytes[] = {Bytes(false, 0), Bytes(true, 0), Bytes(true, 1.25f)};
  std::shared_ptr<const Model> models[3];
  for (int i = 0; i < 3; ++i) models[i] = test::OpenTiny(bytes[i]);
  for (const char* spec : {"full:kv=f32", "full:kv=int8,quant_group=8,residual=4"}) {
    for (int h = 0; h < 4; ++h) {
      const std::vector<float> plain = FirstLayer(models[0], spec, 300, h),
                               low = FirstLayer(models[1], spec, 300, h),
                               high = FirstLayer(models[2], spec, 300, h);
      ASSERT_EQ(plain.size(), 301u);
      ASSERT_EQ(low.size(), 301u);
      EXPECT_NEAR(Sum(plain), 1, 1e-5);
      const double share = Sum(low);
      EXPECT_LT(share, 0.9999);
      EXPECT_GT(share, 0.5);
      for (size_t t = 0; t < plain.size(); ++t) EXPECT_NEAR(low[t], plain[t] * share, 1e-6) << t;
      EXPECT_NEAR(std::log(1 / Sum(high) - 1) - std::log(1 / share - 1), 1.25, 0.02) << spec << " head " << h;
    }
  }
}

// Scissorhands counts a row that sees one entry like any other (methods.md 2.5): where sinks have nearly all
// of the attention every entry is below average in every row that sees it, and the oldest leaves.
TEST(Sinks, TheFirstRowIsBelowItsAverageToo) {
  const test::AlignedBytes bytes = Bytes(true, 20);
  const auto model = test::OpenTiny(bytes);
  const auto expect_newest = [&](const Session& s, int32_t n) {
    std::vector<int32_t> kept, expected(3);
    std::iota(expected.begin(), expected.end(), n - 3);
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(s.Kept(i / 2, i % 2, &kept).ok());
      EXPECT_EQ(kept, expected) << "KV head " << i;
    }
  };
  const char* const spec = "scissorhands:budget=3,recent=1,drop=1,kv=f32";
  const auto prompt = test::NewSession(model, spec), steps = test::NewSession(model, spec);
  ASSERT_TRUE(prompt->Prefill(test::TinyPrompt(4), true).ok());
  expect_newest(*prompt, 4);
  ASSERT_TRUE(steps->Prefill(test::TinyPrompt(1), true).ok());
  test::FeedTokens(*steps, test::TinyPrompt(3, 3));
  expect_newest(*steps, 4);
}

}  // namespace
}  // namespace kvc

// The attention of the newest token, as kvc_session_observe_attention keeps it.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

std::unique_ptr<Session> Fed(const char* spec) { return test::FedSession(test::OpenTwoLayers(), spec, 60); }

TEST(Observe, AttentionIsADistributionOverTheEntriesOfTheHead) {
  for (const char* spec : {"full", "snapkv:budget=24,window=8", "snapkv:budget=24,window=8,pos_mode=incache",
                           "full:kv=int8,quant_group=8,residual=4", "spindlekv:budget=24,window=8"}) {
    SCOPED_TRACE(spec);
    const auto session = Fed(spec);
    std::vector<float> p;
    EXPECT_EQ(session->Attention(0, 0, &p).code(), Code::kInvalid) << "nobody asked";
    session->ObserveAttention(true);
    test::FeedTokens(*session, {5});
    std::vector<int32_t> kept;
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 4; ++head) {
        ASSERT_TRUE(session->Attention(layer, head, &p).ok());
        EXPECT_TRUE(session->Kept(layer, head / 2, &kept).ok());
        EXPECT_EQ(p.size(), kept.size());
        EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1.0, 1e-5);
      }
    }
  }
}

TEST(Observe, ResetForgetsIt) {
  const auto session = Fed("full");
  session->ObserveAttention(true);
  test::FeedTokens(*session, {5});
  session->Reset();
  std::vector<float> p;
  EXPECT_EQ(session->Attention(0, 0, &p).code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvc

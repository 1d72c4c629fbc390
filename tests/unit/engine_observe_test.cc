// The attention of the newest token, as kvc_session_observe_attention keeps it, and the cached vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

// In the first layer the query is that of the full cache, whatever was dropped: its attention is that of the
// full cache over what was there when it came, made to sum to 1, also where the method scores by a sharper
// softmax. Step after step something is dropped behind it.
TEST(Observe, AttentionIsOverWhatWasThereBeforeAnythingLeft) {
  for (const char* spec : {"h2o:budget=24,kv=f32", "tova:budget=24,kv=f32", "weightedkv:budget=24,kv=f32",
                           "ahakv:budget=24,kv=f32,recent=8,aha_decode_i=logical",
                           "ahakv:budget=24,kv=f32,recent=8,aha_decode_i=logical,aha_units=scaled"}) {
    SCOPED_TRACE(spec);
    const auto full = Fed("full:kv=f32"), session = Fed(spec);
    full->ObserveAttention(true), session->ObserveAttention(true);
    int32_t own = 60;  // position of the next token
    for (const int32_t token : {5, 90, 17}) {
      std::vector<int32_t> before[2], after;
      for (int32_t g = 0; g < 2; ++g) {
        ASSERT_TRUE(session->Kept(0, g, &before[g]).ok());
        before[g].push_back(own);
      }
      test::FeedTokens(*full, {token});
      test::FeedTokens(*session, {token});
      for (int head = 0; head < 4; ++head) {
        std::vector<float> all, p;
        ASSERT_TRUE(full->Attention(0, head, &all).ok());
        ASSERT_TRUE(session->Attention(0, head, &p).ok());
        const std::vector<int32_t>& there = before[head / 2];
        ASSERT_EQ(p.size(), there.size());
        double sum = 0;
        for (const int32_t position : there) sum += static_cast<double>(all[static_cast<size_t>(position)]);
        for (size_t i = 0; i < there.size(); ++i)
          EXPECT_NEAR(p[i], static_cast<double>(all[static_cast<size_t>(there[i])]) / sum, 1e-5);
        ASSERT_TRUE(session->Kept(0, head / 2, &after).ok());
        EXPECT_NE(after, there) << "nothing was dropped";
      }
      ++own;
    }
  }
}

// What was looked at before entries went is of no use behind that.
TEST(Observe, WhatChangesTheHeadsForgetsIt) {
  using Change = Status (*)(Session&);
  const Change changes[] = {[](Session& s) { return s.Prefill(test::TinyPrompt(40, 3), true); },
                            [](Session& s) { return s.Recompress(12, nullptr); },
                            [](Session& s) { return s.MaskHeads(std::vector<uint8_t>(4, 0), 8); },
                            [](Session& s) { return s.Rewind(1); }};
  for (const Change change : changes) {
    const auto session = Fed("snapkv:budget=24,window=8");
    session->ObserveAttention(true);
    test::FeedTokens(*session, {5});
    std::vector<float> p;
    ASSERT_TRUE(session->Attention(1, 3, &p).ok());
    const Status changed = change(*session);
    ASSERT_TRUE(changed.ok()) << changed.message();
    EXPECT_EQ(session->Attention(1, 3, &p).code(), Code::kInvalid);
  }
}

// There is room for attention over so many entries at a time: past that a session has the attention of one
// that kept none before.
TEST(Observe, AttentionGrowsWithTheHeads) {
  const auto model = test::OpenTwoLayers();
  const auto always = test::FedSession(model, "full:kv=f32", 240),
             late = test::FedSession(model, "full:kv=f32", 240);
  always->ObserveAttention(true);
  for (Session* s : {always.get(), late.get()}) test::FeedTokens(*s, test::TinyPrompt(40, 3));
  late->ObserveAttention(true);
  for (Session* s : {always.get(), late.get()}) test::FeedTokens(*s, {9});
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 4; ++head) {
      std::vector<float> p, expected;
      ASSERT_TRUE(always->Attention(layer, head, &p).ok());
      ASSERT_TRUE(late->Attention(layer, head, &expected).ok());
      EXPECT_EQ(p.size(), 281u);
      EXPECT_EQ(p, expected) << layer << " " << head;
    }
  }
}

// Tokens that are read together by a session that drops at every one: the newest sees what the others left.
TEST(Observe, TokensReadTogetherLeaveTheAttentionOfTheLast) {
  for (const char* spec : {"weightedkv:budget=24,wkv_prefill=sequential,kv=f32", "cam:budget=24,kv=f32",
                           "cam:budget=61,kv=f32", "full:kv=f32"}) {
    SCOPED_TRACE(spec);
    const auto one_by_one = Fed(spec), together = Fed(spec);
    one_by_one->ObserveAttention(true), together->ObserveAttention(true);
    for (const int32_t token : {5, 90, 17}) test::FeedTokens(*one_by_one, {token});
    const int32_t tokens[] = {5, 90, 17};
    ASSERT_TRUE(together->Prefill({tokens, 3}, true).ok());
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 4; ++head) {
        std::vector<float> expected, p;
        ASSERT_TRUE(one_by_one->Attention(layer, head, &expected).ok());
        ASSERT_TRUE(together->Attention(layer, head, &p).ok());
        ASSERT_EQ(p.size(), expected.size());
        for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], expected[i], 1e-5);
      }
    }
  }
}

// So with the token of the last step, which is fed before the next: some methods drop many at once.
TEST(Observe, TheTokenOfTheLastStepComesFirst) {
  for (const char* spec :
       {"scissorhands:budget=40,kv=f32", "h2o:budget=24,kv=f32", "tova:budget=24,kv=f32"}) {
    SCOPED_TRACE(spec);
    const auto one_by_one = Fed(spec), together = Fed(spec);
    one_by_one->ObserveAttention(true), together->ObserveAttention(true);
    test::FeedTokens(*one_by_one, {5, 90});
    ASSERT_TRUE(together->Accept(5).ok());
    test::FeedTokens(*together, {90});
    for (int head = 0; head < 8; ++head) {
      std::vector<float> expected, p;
      ASSERT_TRUE(one_by_one->Attention(head / 4, head % 4, &expected).ok());
      ASSERT_TRUE(together->Attention(head / 4, head % 4, &p).ok());
      EXPECT_EQ(p, expected);
    }
  }
}

using Read = Status (Session::*)(int32_t, int32_t, std::vector<float>*) const;

// Vectors are those that were stored: what a policy keeps is what the full cache has there.
TEST(Observe, VectorsOfWhatIsKeptAreThoseOfTheFullCache) {
  const auto full = Fed("full:kv=f32");
  const std::pair<Read, const char*> rows[] = {
      {&Session::Values, "snapkv:budget=24,window=8,kv=f32"},
      {&Session::Values, "h2o:budget=24,kv=f32"},
      {&Session::Values, "snapkv:budget=24,window=8,pos_mode=incache,kv=f32"},
      {&Session::Keys, "snapkv:budget=24,window=8,kv=f32"},
      {&Session::Keys, "h2o:budget=24,kv=f32"}};
  for (const auto& [read, spec] : rows) {
    SCOPED_TRACE(spec);
    const auto session = Fed(spec);
    int n_differ = 0;
    for (int32_t i = 0; i < 4; ++i) {
      std::vector<float> all, kept;
      std::vector<int32_t> positions;
      ASSERT_TRUE((*full.*read)(i / 2, i % 2, &all).ok());
      ASSERT_TRUE((*session.*read)(i / 2, i % 2, &kept).ok());
      ASSERT_TRUE(session->Kept(i / 2, i % 2, &positions).ok());
      const size_t d = all.size() / 60;
      ASSERT_EQ(all.size(), 60 * d);
      ASSERT_EQ(kept.size(), positions.size() * d);
      ASSERT_LT(positions.size(), 60u);
      for (size_t k = 0; k < positions.size(); ++k) {
        for (size_t j = 0; j < d; ++j) {
          EXPECT_EQ(kept[k * d + j], all[static_cast<size_t>(positions[k]) * d + j]);
          n_differ += kept[k * d + j] != all[j];
        }
      }
    }
    EXPECT_GT(n_differ, 0) << "entries that are all alike would prove nothing";
  }
}

// Whether b is a, turned by so many positions.
void ExpectTurned(const float* a, const float* b, int64_t by) {
  constexpr int32_t kDim = 16;
  float cos[kDim / 2], sin[kDim / 2];
  Rope(RopeConfig{}, kDim).Angles(by, cos, sin);
  for (int32_t i = 0, j = kDim / 2; i < kDim / 2; ++i, ++j) {
    const float length = std::hypot(a[i], a[j]);
    EXPECT_NEAR(b[i], a[i] * cos[i] - a[j] * sin[i], 1e-5f * (1 + length));
    EXPECT_NEAR(b[j], a[i] * sin[i] + a[j] * cos[i], 1e-5f * (1 + length));
  }
}

TEST(Observe, KeysHaveTheRotationOfTheirPosition) {
  const auto session = test::NewSession(test::OpenOneLayer(), "full:kv=f32");
  ASSERT_TRUE(session->Prefill(std::vector<int32_t>(50, 7), true).ok());  // one token again and again
  for (int32_t g = 0; g < 2; ++g) {
    std::vector<float> keys;
    ASSERT_TRUE(session->Keys(0, g, &keys).ok());
    ASSERT_EQ(keys.size(), 50u * 16);
    for (int32_t at = 0; at < 50; ++at) ExpectTurned(keys.data(), &keys[static_cast<size_t>(at) * 16], at);
  }
}

TEST(Observe, KeysCountedInSlotsHaveTheRotationOfTheirSlot) {
  const auto full = Fed("full:kv=f32"), session = Fed("snapkv:budget=24,window=8,pos_mode=incache,kv=f32");
  int64_t n_moved = 0;
  for (int32_t i = 0; i < 4; ++i) {
    std::vector<float> all, kept;
    std::vector<int32_t> positions;
    ASSERT_TRUE(full->Keys(i / 2, i % 2, &all).ok());
    ASSERT_TRUE(session->Keys(i / 2, i % 2, &kept).ok());
    ASSERT_TRUE(session->Kept(i / 2, i % 2, &positions).ok());
    ASSERT_EQ(kept.size(), positions.size() * 16);
    for (size_t slot = 0; slot < positions.size(); ++slot) {
      const int64_t by = static_cast<int64_t>(slot) - positions[slot];
      ExpectTurned(&all[static_cast<size_t>(positions[slot]) * 16], &kept[slot * 16], by);
      n_moved += by != 0;
    }
  }
  EXPECT_GT(n_moved, 0);
}

TEST(Observe, MergedAndCodedValuesAreReadAsAttentionReadsThem) {
  const auto full = Fed("full:kv=f32"), merged = Fed("weightedkv:budget=24,kv=f32"),
             dropped = Fed("weightedkv:budget=24,wkv_merge=0,kv=f32"),
             coded = Fed("full:kv=int8,quant_group=16,residual=0");
  std::vector<float> of_full, of_merged, of_dropped, of_coded;
  std::vector<int32_t> a, b;
  ASSERT_TRUE(full->Values(0, 0, &of_full).ok() && merged->Values(0, 0, &of_merged).ok() &&
              dropped->Values(0, 0, &of_dropped).ok() && coded->Values(0, 0, &of_coded).ok());
  ASSERT_TRUE(merged->Kept(0, 0, &a).ok() && dropped->Kept(0, 0, &b).ok());
  EXPECT_EQ(a, b);
  EXPECT_NE(of_merged, of_dropped);
  ASSERT_EQ(of_coded.size(), of_full.size());
  for (size_t i = 0; i < of_full.size(); i += 16) {
    const auto [low, high] = std::minmax_element(&of_full[i], &of_full[i] + 16);
    const float step = std::max(std::fabs(*low), std::fabs(*high)) / 127;
    for (size_t j = i; j < i + 16; ++j) EXPECT_NEAR(of_coded[j], of_full[j], 0.51f * step + 1e-6f);
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

// Scoring has room for the rows that are recorded of a prompt: one in a hundred of its tokens here, and 32 at
// least.
TEST(Observe, RowsThatScoreAreTheOnlyOnesWithRoom) {
  const auto model = test::OpenTwoLayers();
  const auto by_rule = test::WorkspaceOf(model, "nacl:budget=40", 100, {}),
             by_number = test::WorkspaceOf(model, "nacl:budget=40,proxy_rows=32", 100, {});
  EXPECT_EQ(by_rule.planned, by_number.planned);
  EXPECT_EQ(by_rule.taken, by_number.taken);
}

}  // namespace
}  // namespace kvc

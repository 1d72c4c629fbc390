// decode=reobserve (methods.md 1.6). Another way through the code does the same: kvc_session_compress takes
// the newest tokens out, runs them again and scores with their queries, while reobserve keeps the queries it
// saw.
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

const std::string kGrow = "snapkv:budget=24,window=8,kv=f32";
const char* const kPositions[] = {",pos_mode=original", ",pos_mode=incache"};

std::string Reobserving(int slack) { return kGrow + ",decode=reobserve,slack=" + std::to_string(slack); }

// The next token sees the same entries at the same places.
void ExpectSame(Session& a, Session& b) {
  ExpectSameKept(a, b);
  FeedTokens(a, {5});
  FeedTokens(b, {5});
  ExpectNearLogits(a, b, 1e-5f);
}

// A prompt that was compressed, and one that only fills the budget while tokens come.
TEST(Reobserve, KeptQueriesScoreAsTokensRunAgain) {
  const auto model = OpenOneLayer();
  for (const char* positions : kPositions) {
    for (const int prompt : {60, 18}) {
      for (const int slack : {1, 4, 11}) {
        SCOPED_TRACE(Reobserving(slack) + positions + ", prompt of " + std::to_string(prompt));
        const auto observes = FedSession(model, Reobserving(slack) + positions, prompt),
                   again = FedSession(model, kGrow + positions, prompt);
        const std::vector<int32_t> tokens = TinyPrompt(24 - std::min(prompt, 24) + slack + 1, 11);
        FeedTokens(*observes, tokens);
        FeedTokens(*again, tokens);
        EXPECT_EQ(observes->Stats().n_slots, 2 * 24) << "scored again";
        ASSERT_TRUE(again->Recompress(0, nullptr).ok());
        ExpectSame(*observes, *again);
      }
    }
  }
}

TEST(Reobserve, AppendedTokensLeaveTheirQueries) {
  const auto model = OpenOneLayer();
  for (const char* positions : kPositions) {
    SCOPED_TRACE(positions);
    const auto observes = FedSession(model, Reobserving(0) + positions, 40),
               again = FedSession(model, kGrow + positions, 40);
    for (Session* s : {observes.get(), again.get()}) {
      ASSERT_TRUE(s->Prefill(TinyPrompt(20, 3), false).ok());
      FeedTokens(*s, {9});
    }
    ASSERT_TRUE(again->Recompress(0, nullptr).ok());
    ExpectSame(*observes, *again);
  }
}

TEST(Reobserve, TokensTakenBackLeaveNoQueries) {
  const auto model = OpenOneLayer();
  for (const char* positions : kPositions) {
    SCOPED_TRACE(positions);
    const auto rewound = FedSession(model, Reobserving(5) + positions, 60),
               straight = FedSession(model, Reobserving(5) + positions, 60);
    FeedTokens(*rewound, TinyPrompt(3, 21));
    ASSERT_TRUE(rewound->Rewind(3).ok());
    const std::vector<int32_t> tokens = TinyPrompt(6, 11), one(tokens.begin(), tokens.begin() + 1),
                               rest(tokens.begin() + 1, tokens.end());
    for (Session* s : {rewound.get(), straight.get()}) {
      ASSERT_TRUE(s->Prefill(one, false).ok());  // rewind needs a prompt next
      FeedTokens(*s, rest);
    }
    EXPECT_EQ(rewound->Stats().n_slots, 2 * 24);
    ExpectSame(*rewound, *straight);
  }
}

// A token that waits is fed together with the next one, and is scored for by itself all the same.
TEST(Reobserve, TokensThatCameTogetherAreScoredOneByOne) {
  const auto model = OpenOneLayer();
  for (const std::string& spec : {Reobserving(3), std::string("snapkv:budget=24,window=8,decode=reobserve,"
                                                              "slack=3,kv=int8,quant_group=16,residual=4")}) {
    SCOPED_TRACE(spec);
    const auto together = FedSession(model, spec, 60), apart = FedSession(model, spec, 60);
    for (const int32_t token : TinyPrompt(10, 17)) {
      ASSERT_TRUE(together->Accept(token).ok());
      FeedTokens(*together, {token ^ 1});
      FeedTokens(*apart, {token, token ^ 1});
      ExpectSameKept(*together, *apart);
      ExpectNearLogits(*together, *apart, 0.0f);
    }
  }
}

// A trim runs the newest tokens again: their queries are in the ring once.
TEST(Reobserve, TokensOfATrimAreObservedOnce) {
  const auto model = OpenOneLayer();
  for (const char* positions : kPositions) {
    SCOPED_TRACE(positions);
    const auto observes = FedSession(model, Reobserving(6) + positions, 60),
               again = FedSession(model, kGrow + positions, 60);
    for (Session* s : {observes.get(), again.get()}) {
      ASSERT_TRUE(s->Recompress(20, nullptr).ok());
      FeedTokens(*s, TinyPrompt(7, 13));
    }
    ASSERT_TRUE(again->Recompress(0, nullptr).ok());
    EXPECT_EQ(observes->Stats().n_slots, 2 * 20);
    ExpectSame(*observes, *again);
  }
}

// A prompt below the budget is kept whole, and then every head goes to its own share, however much of theirs
// the others leave (methods.md 1.6).
TEST(Reobserve, HeadsGoToTheirSharesBehindAShortPrompt) {
  const auto model = test::OpenTwoLayers();
  for (const std::string spec : {"pyramidkv:budget=48,window=8,decode=reobserve,slack=0",
                                 "cokv:budget=48,window=8,decode=reobserve,slack=0",
                                 "h2o:budget=48,allocator=pyramid", "h2o:budget=48,allocator=cokv"}) {
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const auto plan = Session::Plan(model, &policy.value(), {}, 2000);  // beyond every share
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const std::vector<int32_t>& shares = plan.value().slots;
    ASSERT_LT(*std::min_element(shares.begin(), shares.end()), 40) << spec;
    const auto s = FedSession(model, spec, 40);
    EXPECT_EQ(s->Stats().n_slots, 4 * 40) << spec;
    for (int i = 1; i < 3; ++i) {
      FeedTokens(*s, {i});
      for (int head = 0; head < 4; ++head) {
        std::vector<int32_t> kept;
        ASSERT_TRUE(s->Kept(head / 2, head % 2, &kept).ok());
        EXPECT_EQ(static_cast<int32_t>(kept.size()), std::min(40 + i, shares[static_cast<size_t>(head)]))
            << spec << ", head " << head << " at step " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvc

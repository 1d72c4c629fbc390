// Policies and calls that seldom meet: a share of a prompt that is read token by token, bytes behind a trim,
// heads of one set with bits of their own, budgets of heads that would be left with nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::FedSession;
using test::NewSession;
using test::OpenTwoLayers;
using test::TinyPrompt;

// The part that is read at once has the budget of the whole prompt.
TEST(RarePolicies, AShareOfAPromptReadTokenByToken) {
  const auto model = OpenTwoLayers();
  const int64_t heads = model->config().n_layers * model->config().n_kv_heads;
  for (const std::string spec : {"cam:budget_ratio=0.3", "cam:budget_ratio=0.1",
                                 "weightedkv:budget_ratio=0.3,wkv_prefill=sequential"}) {
    const int share = spec.find("0.1") != std::string::npos ? 20 : 60;
    EXPECT_EQ(FedSession(model, spec, 200)->Stats().n_slots, heads * share) << spec;
  }
}

// One of bytes stays where it is the smaller, for every length there will be.
TEST(RarePolicies, ALargerTrimKeepsTheBytes) {
  const auto model = OpenTwoLayers();
  const auto s = FedSession(model, "snapkv:budget_bytes=10000,window=4", 10);
  int64_t freed = 0;
  ASSERT_TRUE(s->Recompress(200, &freed).ok());
  ASSERT_TRUE(s->Prefill(TinyPrompt(300, 3), true).ok());
  EXPECT_LE(s->Stats().cache_bytes, 10000);
}

// Also behind a smaller one, which took its place meanwhile, in forks and in saved sessions.
TEST(RarePolicies, ALargerTrimBehindASmallerKeepsTheBytes) {
  const auto model = OpenTwoLayers();
  const auto first = FedSession(model, "snapkv:budget_bytes=10000,window=4", 300);
  int64_t freed = 0;
  ASSERT_TRUE(first->Recompress(8, &freed).ok());
  const int64_t heads = model->config().n_layers * model->config().n_kv_heads;
  EXPECT_EQ(first->Stats().n_slots, heads * 8);
  const std::vector<uint8_t> bytes = test::SavedBytes(*first);
  auto restored = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  auto fork = first->Fork();
  ASSERT_TRUE(fork.ok());
  for (Session* s : {first.get(), restored.value().get(), fork.value().get()}) {
    ASSERT_TRUE(s->Recompress(200, &freed).ok());
    ASSERT_TRUE(s->Prefill(TinyPrompt(300, 3), true).ok());
    const SessionStats stats = s->Stats();
    EXPECT_LE(stats.cache_bytes, 10000);
    EXPECT_GT(stats.n_slots, heads * 8) << "the bytes hold more";
    EXPECT_EQ(stats.n_slots, first->Stats().n_slots);
  }
}

TEST(RarePolicies, OneSetWithBitsByHeadIsRestored) {
  const auto model = OpenTwoLayers();
  for (const std::string spec :
       {"pyramidinfer:budget=24,kv=mixed,bits_levels=16:0.25+8:0.75,quant_group=8,residual=4",
        "tova:budget=24,kv=mixed,bits_levels=8:0.25+4:0.75,quant_group=8,residual=4"}) {
    const auto s = FedSession(model, spec, 60);
    const std::vector<uint8_t> bytes = test::SavedBytes(*s);
    const auto restored = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
    ASSERT_TRUE(restored.ok()) << spec << ": " << restored.status().message();
    test::ExpectSameKept(*s, *restored.value());
  }
  // What is dropped together has to lie in the same places.
  const Result<Policy> policy =
      ParsePolicy("tova:budget=24,kv=mixed,bits_levels=16:0.25+8:0.75,quant_group=8,residual=4");
  ASSERT_TRUE(policy.ok());
  const auto refused = Session::Create(model, &policy.value(), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalid);
  EXPECT_NE(refused.status().message().find("8 and 4 only"), std::string::npos) << refused.status().message();
}

TEST(RarePolicies, NoHeadIsLeftWithNothing) {
  const auto model = OpenTwoLayers();
  const Result<Policy> policy = ParsePolicy("ada-pyramid:budget=20,scorer=h2o,h2o_recent=0,ada_floor=0");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  const auto made = Session::Create(model, &policy.value(), {});
  const Status status = made.ok() ? made.value()->Prefill(TinyPrompt(100), true) : made.status();
  EXPECT_EQ(status.code(), Code::kInvalid) << status.message();
}

// methods.md 2.9, 2.15: merging weighs by the attention an entry has had, also where entries are ranked by
// its mean. With nothing but newest entries in the budget, all of these drop the same.
TEST(RarePolicies, MergingWeighsBySums) {
  const auto model = OpenTwoLayers();
  for (const std::string merges : {"cam:budget=24,cam_expected=1,cam_prefill=oneshot,kv=f32",
                                   "cam:budget=24,cam_expected=1,kv=f32", "weightedkv:budget=24,kv=f32"}) {
    const auto by_sums = FedSession(model, merges + ",scorer=h2o,h2o_recent=24", 80);
    const auto by_norm = FedSession(model, merges + ",scorer=h2o,h2o_recent=24,h2o_norm=count", 80);
    const auto by_mean = FedSession(model, merges + ",scorer=h2o_count,h2o_recent=24", 80);
    for (int i = 0; i < 3; ++i) {
      for (Session* s : {by_norm.get(), by_mean.get()}) {
        test::ExpectSameKept(*by_sums, *s);
        EXPECT_EQ(test::LogitsOf(*by_sums), test::LogitsOf(*s)) << merges << ", behind part " << i;
      }
      for (Session* s : {by_sums.get(), by_norm.get(), by_mean.get()}) {
        if (i == 0) test::FeedTokens(*s, TinyPrompt(30, 3));
        const Status status = i == 1 ? s->Prefill(TinyPrompt(40, 5), true) : Status();
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
  }
}

// methods.md 2.3: the mean is over all rows that could see the entry, in however many parts they came.
TEST(RarePolicies, MeansOfPartsAreMeansOfTheWhole) {
  const auto model = OpenTwoLayers();
  for (const std::string spec : {"h2o:budget=24,h2o_recent=4,h2o_norm=count,decode=grow,kv=f32",
                                 "h2o:budget=24,h2o_recent=4,scorer=h2o_count,decode=grow,kv=f32"}) {
    const auto whole = FedSession(model, spec, 160);
    const std::vector<int32_t> ids = TinyPrompt(160);
    for (const size_t first : {1u, 40u, 120u, 159u}) {
      const auto parts = NewSession(model, spec);
      ASSERT_TRUE(parts->Prefill({ids.data(), first}, false).ok());
      ASSERT_TRUE(parts->Prefill({ids.data() + first, ids.size() - first}, false).ok());
      ASSERT_TRUE(parts->Recompress(0, nullptr).ok());
      test::ExpectSameKept(*whole, *parts);
    }
  }
}

// A share that is less than what is always kept is raised until something may be chosen.
TEST(RarePolicies, AShareHoldsWhatIsAlwaysKept) {
  const auto model = OpenTwoLayers();
  for (const int n : {90, 100, 200}) {
    const auto s = NewSession(model, "weightedkv:budget_ratio=0.2,n_sink=40");
    const Status status = s->Prefill(TinyPrompt(n), true);
    EXPECT_TRUE(status.ok()) << n << ": " << status.message();
  }
}

}  // namespace
}  // namespace kvc

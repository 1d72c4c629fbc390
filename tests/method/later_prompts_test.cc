// A cache that was compressed takes prompt after prompt, long and short, with answers between: after each the
// layer is reduced to the same budget (methods.md 1.9), and the slots of its heads add up to it exactly
// (1.8).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/method/every_method.h"
#include "tests/support/emulated.h"

namespace kvc {
namespace {

using test::DropsSeveral;
using test::EveryMethod;
using test::MethodPolicy;
using test::SlotsOfHead;
using test::TinyPrompt;
using test::Variants;

std::vector<int64_t> SlotsOfLayers(const Session& s) {
  std::vector<int64_t> slots(static_cast<size_t>(test::kMethodLayers), 0);
  std::vector<int32_t> kept;
  for (int i = 0; i < test::kMethodLayers * test::kMethodKvHeads; ++i) {
    EXPECT_TRUE(s.Kept(i / test::kMethodKvHeads, i % test::kMethodKvHeads, &kept).ok());
    slots[static_cast<size_t>(i / test::kMethodKvHeads)] += static_cast<int64_t>(kept.size());
  }
  return slots;
}

// Slots that each length of the sequence shares anew between layers: what is compared is their sum.
std::vector<int64_t> SlotsToCompare(const Session& s, const Policy& policy) {
  std::vector<int64_t> slots = SlotsOfLayers(s);
  if (!policy.allocator->across_layers && !policy.allocator->whole_heads_grow) return slots;
  return {std::accumulate(slots.begin(), slots.end(), int64_t{0})};
}

int64_t Sum(const std::vector<int64_t>& slots) {
  return std::accumulate(slots.begin(), slots.end(), int64_t{0});
}

constexpr int kPrompts[] = {3, 48, 1, 200, 7};
constexpr int kLaterPrompts = 20 / test::EveryNth(2);

// Prompts of a few tokens, of as many as the budget, and of several times as many.
void ExpectSameSlots(const Policy& policy, const std::string& extra) {
  auto s = test::MakeSession(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(test::kMethodPrompt), true).ok());
  const std::vector<int64_t> first = SlotsToCompare(*s, policy);
  ASSERT_EQ(Sum(first), test::SlotsOfPrompt(policy, test::kMethodPrompt)) << extra;
  for (int i = 0; i < kLaterPrompts; ++i) {
    const int n_steps = i % 4 * 3, n = kPrompts[i % 5];
    test::Steps(*s, n_steps);
    std::vector<int64_t> expected = DropsSeveral(policy) ? SlotsOfLayers(*s) : first;
    for (int64_t& slots : expected) {
      if (!DropsSeveral(policy)) break;
      // The last step's token is fed with the prompt.
      slots = test::kMethodKvHeads * SlotsOfHead(policy, slots / test::kMethodKvHeads + (n_steps > 0) + n);
    }
    const Status status = s->Prefill(TinyPrompt(n, static_cast<uint32_t>(i)), true);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(SlotsToCompare(*s, policy), expected)
        << "after prompt " << i << " of " << n << " tokens" << extra;
  }
}

void ExpectSameSeen(const Policy& policy) {
  auto s = test::MakeSession(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(test::kMethodPrompt), true).ok());
  for (int i = 0; i < kLaterPrompts; ++i) {
    SCOPED_TRACE("before prompt " + std::to_string(i));
    test::ExpectSeenIsTheBudget(policy, *s);
    if (testing::Test::HasFatalFailure()) return;
    test::Steps(*s, i % 4 * 3);
    const Status status = s->Prefill(TinyPrompt(kPrompts[i % 5], static_cast<uint32_t>(i)), true);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(EveryMethod, LaterPromptsEndAtTheBudget) {
  const Policy policy = MethodPolicy(Which(), test::kMethodBudget);
  if (policy.keeps_all()) return;
  if (policy.reducer->codebook) return ExpectSameSeen(policy);
  ExpectSameSlots(policy, "");
  if (!policy.allocator->dynamic || policy.allocator->across_layers) return;
  for (const char* extra : {",ada_floor=0", ",ada_floor=0.5", ",ada_floor=1"})
    ExpectSameSlots(MethodPolicy(Which(), test::kMethodBudget, extra), extra);
}

// A long prompt whose parts are compressed before the next ones are read: each is a later prompt. The last
// part may be a single token.
TEST_P(EveryMethod, PartsOfAPromptEndAtTheBudget) {
  const Policy whole = MethodPolicy(Which(), test::kMethodBudget);
  if (whole.keeps_all()) return;
  std::vector<std::string> extras = {""};
  if (whole.allocator->dynamic && !whole.allocator->across_layers)
    extras = {",ada_floor=0", ",ada_floor=0.5", ",ada_floor=1"};
  for (const std::string& extra : extras) {
    const Policy policy = MethodPolicy(Which(), test::kMethodBudget, ",compress_per_chunk=1" + extra);
    for (const int n : {1025, 1060, 2100}) {
      auto s = test::MakeSession(&policy);
      const Status status = s->Prefill(TinyPrompt(n), true);
      ASSERT_TRUE(status.ok()) << status.message();
      if (policy.reducer->codebook) {
        test::ExpectSeenIsTheBudget(policy, *s);
        continue;
      }
      int64_t expected = test::SlotsOfPrompt(policy, 1024);
      if (DropsSeveral(policy)) {
        const int64_t heads = test::kMethodLayers * test::kMethodKvHeads;
        int64_t head = 0;
        for (int at = 0; at < n; at += 1024) head = SlotsOfHead(policy, head + std::min(1024, n - at));
        expected = heads * head;
      }
      ASSERT_EQ(Sum(SlotsOfLayers(*s)), expected) << n << extra;
    }
  }
}

std::vector<size_t> Lengths(const Session& s) {
  std::vector<size_t> lengths;
  std::vector<int32_t> kept;
  for (int i = 0; i < test::kMethodLayers * test::kMethodKvHeads; ++i) {
    EXPECT_TRUE(s.Kept(i / test::kMethodKvHeads, i % test::kMethodKvHeads, &kept).ok());
    lengths.push_back(kept.size());
  }
  return lengths;
}

// methods.md 2.11: what the scores of a prompt gave a head is its own until the next prompt that compresses,
// whatever is appended.
TEST(BudgetsByScores, OutlastWhatIsAppended) {
  for (const std::string spec :
       {"h2o:budget=48,allocator=ada,kv=f32", "h2o:budget=48,allocator=global,kv=f32",
        "h2o:budget_ratio=30%,allocator=ada,kv=f32", "h2o:budget=48,allocator=ada+pyramid,kv=f32",
        "ada-snapkv:budget=48,window=8,decode=reobserve,slack=0,kv=f32"}) {
    SCOPED_TRACE(spec);
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    auto s = test::MakeSession(&policy.value());
    ASSERT_TRUE(s->Prefill(TinyPrompt(test::kMethodPrompt), true).ok());
    const std::vector<size_t> lengths = Lengths(*s);
    EXPECT_NE(*std::min_element(lengths.begin(), lengths.end()),
              *std::max_element(lengths.begin(), lengths.end()));
    ASSERT_TRUE(s->Prefill(TinyPrompt(40, 3), false).ok());
    test::Steps(*s, 3);
    EXPECT_EQ(Lengths(*s), lengths);
  }
}

// methods.md 1.8: what a head cannot hold goes to the others, also where it cannot because it dropped it.
TEST(LaterPrompts, ShareWhatAHeadDroppedBefore) {
  for (const std::string method : {"cokv", "headkv-r2"}) {
    SCOPED_TRACE(method);
    Result<Policy> policy = ParsePolicy((method + ":budget_ratio=15%,window=8,kv=f32").c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    policy.value().head_scores = {100, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0};
    auto s = test::MakeSession(&policy.value());
    ASSERT_TRUE(s->Prefill(TinyPrompt(60), true).ok());
    EXPECT_EQ(s->Stats().n_slots, 9 * 9);
    ASSERT_LE(Lengths(*s)[0], 8u + 9u) << "of 60 tokens";
    ASSERT_TRUE(s->Prefill(TinyPrompt(40, 3), true).ok());
    EXPECT_EQ(s->Stats().n_slots, 9 * 15);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::Range(0, static_cast<int>(Variants().size())),
                         [](const auto& index) {
                           return Variants()[static_cast<size_t>(index.param)].label;
                         });

// methods.md 1.9: parts of a prompt are prompts, to the bit.
TEST(PartsOfAPrompt, AreAsPromptsOfTheirOwn) {
  const std::vector<int32_t> ids = TinyPrompt(2100);
  for (const std::string spec :
       {"snapkv:budget=32,window=8", "h2o:budget=32,kv=f32",
        "ada-snapkv:budget=32,window=8,kv=int8,quant_group=16", "weightedkv:budget=32",
        "scissorhands:budget=32,recent=8", "kvzip:budget=32"}) {
    SCOPED_TRACE(spec);
    const auto model = test::OpenTwoLayers();
    const auto at_once = test::NewSession(model, spec + ",compress_per_chunk=1"),
               one_by_one = test::NewSession(model, spec);
    ASSERT_TRUE(at_once->Prefill(ids, true).ok());
    for (size_t at = 0; at < ids.size(); at += 1024) {
      const Span<const int32_t> part = {ids.data() + at, std::min<size_t>(1024, ids.size() - at)};
      ASSERT_TRUE(one_by_one->Prefill(part, true).ok());
    }
    test::ExpectSameKept(*at_once, *one_by_one);
    test::ExpectNearLogits(*at_once, *one_by_one, 0.0f);
  }
}

// methods.md 2.17: max(32, 0.01 n), of 3,650 tokens 36.
TEST(ProxyRows, AreAHundredthOfALongPrompt) {
  const auto model = test::OpenTwoLayers();
  const auto with = [&](const char* rows) {
    return test::FedSession(model, std::string("nacl:budget=64,recent=8,kv=f32") + rows, 3650);
  };
  const auto given = with("");
  test::ExpectSameKept(*given, *with(",proxy_rows=36"));
  const auto fewer = with(",proxy_rows=32");
  bool same = true;
  for (int head = 0; head < 4; ++head) {
    std::vector<int32_t> a, b;
    ASSERT_TRUE(given->Kept(head / 2, head % 2, &a).ok());
    ASSERT_TRUE(fewer->Kept(head / 2, head % 2, &b).ok());
    same = same && a == b;
  }
  EXPECT_FALSE(same);
}

}  // namespace
}  // namespace kvc

// No method holds more than the full cache would for the same entries, after prompts and at every step,
// however it stores them. What a method must know of an entry beside its key and value (accumulated
// attention, its place, who sees it) or of a page (its bounds) comes on top, and a head has at least one page
// of each of its parts.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/method/every_method.h"

namespace kvc {
namespace {

using test::EveryMethod;
using test::MethodPolicy;
using test::TinyPrompt;
using test::Variants;

// Bytes of n entries of one head as plain vectors with side values of so many bytes.
int64_t PlainBytes(const Policy& policy, int32_t page_slots, int32_t n, int64_t side) {
  const int32_t kv = policy.Int(OptionId::kKv);
  PageFormat f;
  f.type = kv <= kStoreBf16 ? static_cast<KvType>(kv) : KvType::kF16;
  f.d = 16, f.slots = page_slots, f.n_aux = static_cast<int32_t>(side / 4);
  f.key_bounds = policy.method->reads_pages, f.packed = page_slots == 4;
  f.Lay();
  return (n + page_slots - 1) / page_slots * f.bytes;
}

struct Bound {
  Policy policy;
  StoragePlan plan;
  int32_t page_slots;
  int64_t side;  // bytes of an entry's side values

  explicit Bound(const Policy& p, int32_t max_tokens)
      : policy(p), plan(Plan(p)), page_slots(plan.PageSlots(max_tokens)), side(4 * int64_t{plan.n_aux()}) {
    if (p.positions == PositionMode::kInCache) side += 4;
    if (plan.query_heads_see_their_own()) side += 4;
  }
  static StoragePlan Plan(const Policy& p) {
    HeadScores scores;
    scores.values.assign(p.head_scores.begin(), p.head_scores.end());
    if (scores.values.empty()) scores.values.assign(9, 0.5);
    auto made = StoragePlan::Create(p, {3, 6, 3, 16, {}, 0}, scores, false);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.value();
  }

  // coming: tokens for which there is room already.
  void Check(const Session& s, int32_t coming, bool strict) const {
    const CacheLayout layout = plan.LayoutFor(page_slots);
    int64_t most = 0, bare = 0;
    for (int i = 0; i < 9; ++i) {
      std::vector<int32_t> kept;
      ASSERT_TRUE(s.Kept(i / 3, i % 3, &kept).ok());
      const int32_t n = static_cast<int32_t>(kept.size()) + coming;
      // A head that stores entries late has at least a page of each kind.
      const int64_t least = policy.quantises() ? RingBytes(layout, i) + PageBytes(layout, i) : 0;
      most += std::max(PlainBytes(policy, page_slots, n, side), least);
      bare += std::max(PlainBytes(policy, page_slots, n, 0), least);
    }
    EXPECT_LE(s.Stats().cache_bytes, most);
    if (strict) {
      EXPECT_LE(s.Stats().cache_bytes, bare);
    }
  }
};

void PromptsAndSteps(const Policy& policy, int n_prompt) {
  SessionParams params;
  params.max_tokens = 400;
  auto s = test::MakeSession(&policy, test::MethodModel(), params);
  const Bound bound(policy, params.max_tokens);
  const bool bare = bound.side == 0;
  ASSERT_TRUE(s->Prefill(TinyPrompt(n_prompt), true).ok());
  bound.Check(*s, 0, bare);
  for (int i = 0; i < 70; ++i) {
    test::Steps(*s, 1);
    bound.Check(*s, 1, bare);
    if (testing::Test::HasFailure()) return;
  }
  ASSERT_TRUE(s->Prefill(TinyPrompt(30, 3), true).ok());
  bound.Check(*s, 0, bare);
}

TEST_P(EveryMethod, NeverHoldsMoreThanTheFullCache) {
  for (const char* budget : {"48", "100000", "ratio"}) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE(budget);
    Policy policy = MethodPolicy(Which(), 100000);
    if (policy.budget_kind == BudgetKind::kSlots) {
      policy.budget_kind = budget[0] == 'r' ? BudgetKind::kRatio : BudgetKind::kSlots;
      policy.budget = budget[0] == '4' ? 48 : budget[0] == '1' ? 100000 : 1;
    }
    for (const int n : {5, 40, 150}) PromptsAndSteps(policy, n);
  }
}

// The same entries in other storage.
TEST(FullBytes, HoldInEveryStorage) {
  for (const char* method : {"full:", "snapkv:window=8,", "h2o:", "ada-snapkv:window=8,", "streaming:"}) {
    for (const char* kv : {"kv=f16", "kv=bf16", "kv=int8,quant_group=16", "kv=int8,quant_group=4,residual=0",
                           "kv=int4,quant_group=8", "kv=int4,quant_group=16,residual=60"}) {
      const bool full = std::string(method) == "full:";
      for (const char* budget : {"budget=40,", "budget_ratio=1,", "budget_ratio=0.6,"}) {
        const std::string spec = std::string(method) + (full ? "" : budget) + kv;
        SCOPED_TRACE(spec);
        const Result<Policy> policy = ParsePolicy(spec.c_str());
        ASSERT_TRUE(policy.ok()) << policy.status().message();
        PromptsAndSteps(policy.value(), 150);
      }
    }
  }
}

// Where the budget covers the prompt every query head sees everything: SpindleKV holds what full holds.
TEST(FullBytes, SpindleAtTheWholePromptIsAtMostFull) {
  for (const char* kv : {"kv=f32", "kv=f16"}) {
    for (const char* scope : {"head", "layer"}) {
      const std::string spec =
          std::string("spindlekv:budget_ratio=1,window=8,") + kv + ",spindle_scope=" + scope;
      const Result<Policy> policy = ParsePolicy(spec.c_str());
      ASSERT_TRUE(policy.ok());
      auto s = test::MakeSession(&policy.value());
      ASSERT_TRUE(s->Prefill(TinyPrompt(150), true).ok());
      EXPECT_LE(s->Stats().cache_bytes, s->Stats().cache_bytes_full) << spec;
      test::Steps(*s, 60);
      EXPECT_LE(s->Stats().cache_bytes, s->Stats().cache_bytes_full) << spec;
      // As published it takes more: few of these vectors share a direction.
      const Result<Policy> always = ParsePolicy((spec + ",spindle_code=always").c_str());
      ASSERT_TRUE(always.ok());
      auto coded = test::MakeSession(&always.value());
      ASSERT_TRUE(coded->Prefill(TinyPrompt(150), true).ok());
      EXPECT_GT(coded->Stats().cache_bytes, coded->Stats().cache_bytes_full) << spec;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::Range(0, static_cast<int>(Variants().size())),
                         [](const auto& index) {
                           return Variants()[static_cast<size_t>(index.param)].label;
                         });

}  // namespace
}  // namespace kvc

// What small budgets cost: pages follow the average budget, so that a slot promised is hardly more than a
// slot paid, and the raw tail of quantised caches stays a small part of the bytes that were given.
#include <gtest/gtest.h>

#include "lib/compress/policy.h"
#include "lib/compress/storage_plan.h"

namespace kvc {
namespace {

constexpr int kLayers = 3, kKvHeads = 3, kDim = 16;

StoragePlan PlanOf(const std::string& spec, int32_t max_tokens = 4096) {
  const Result<Policy> policy = ParsePolicy(spec.c_str());
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  HeadScores scores;
  if (policy.value().wants_head_scores()) scores.values.assign(kLayers * kKvHeads, 0.5);
  auto plan = StoragePlan::Create(policy.value(), {kLayers, 2 * kKvHeads, kKvHeads, kDim, {}, max_tokens},
                                  scores, false);
  EXPECT_TRUE(plan.ok()) << spec << ": " << plan.status().message();
  return plan.value();
}

int32_t PageOf(const std::string& spec, int32_t tokens = 4096) {
  return PlanOf(spec, tokens).PageSlots(tokens);
}

TEST(SmallBudgets, PagesFollowTheAverageBudget) {
  for (const int budget : {12, 63, 64, 127})
    EXPECT_EQ(PageOf("snapkv-w8:budget=" + std::to_string(budget)), 4);
  for (const int budget : {128, 255}) EXPECT_EQ(PageOf("snapkv-w8:budget=" + std::to_string(budget)), 16);
  EXPECT_EQ(PageOf("snapkv-w8:budget=256"), 64);
  EXPECT_EQ(PageOf("snapkv-w8:budget_ratio=0.02", 1000), 4);
  EXPECT_EQ(PageOf("snapkv-w8:budget_ratio=0.02", 100000), 64);
  EXPECT_EQ(PageOf("full"), 64);
  EXPECT_EQ(PageOf("full", 100), 16);
  EXPECT_EQ(PageOf("quest:read=64"), 16);
  // Keys of a page share scales.
  EXPECT_EQ(PageOf("snapkv-w8:budget=12,kv=int8,quant_group=16,key_axis=channel"), 32);
}

// Pages of 16 slots and more, and what lies beside them, are as saved sessions have always had them.
TEST(SmallBudgets, OnlySmallPagesArePacked) {
  for (const char* spec :
       {"snapkv:budget=300,window=8,kv=int8,quant_group=16", "full:kv=int4,quant_group=16,residual=8",
        "snapkv-w8:budget=200", "spindlekv:budget=300,tail=4", "kvzip:budget=12,kv=int4,quant_group=16",
        "quest:read=64", "h2o:budget=12"}) {
    SCOPED_TRACE(spec);
    for (const int32_t slots : {16, 32, 64}) {
      for (const PageFormat& format : PlanOf(spec).LayoutFor(slots).formats) EXPECT_EQ(format.bytes % 64, 0);
    }
  }
  const CacheLayout layout = PlanOf("snapkv:budget=300,window=8,kv=int8,quant_group=16").LayoutFor(16);
  // Nine raw entries: keys and values of 32 bytes, and positions.
  EXPECT_EQ(layout.formats[static_cast<size_t>(layout.heads[0].ring)].bytes, (9 * 64 + 48 + 63) / 64 * 64);
  EXPECT_EQ(PlanOf("snapkv-w8:budget=12").LayoutFor(4).formats[0].bytes, 4 * (2 * 2 * kDim + 4));
}

// What 128 and 256 slots of every head take is enough for the larger pages, and a byte less is not.
TEST(SmallBudgets, BytesHaveThePagesOfTheirSlots) {
  const int64_t slot = 2 * 2 * kDim + 4, heads = kLayers * kKvHeads;  // keys, values, position
  const auto page_of = [](int64_t bytes) {
    return PageOf("snapkv-w8:budget_bytes=" + std::to_string(bytes));
  };
  EXPECT_EQ(page_of(heads * 128 * slot - 1), 4);
  EXPECT_EQ(page_of(heads * 128 * slot), 16);
  EXPECT_EQ(page_of(heads * 256 * slot - 1), 16);
  EXPECT_EQ(page_of(heads * 256 * slot), 64);
}

// An eighth of the bytes at most, unless the policy says how many, or has slots.
TEST(SmallBudgets, RawTailsAreASmallPartOfTheBytes) {
  const int64_t entry = 2 * 2 * kDim * kLayers * kKvHeads;
  const auto residual = [](const std::string& spec) {
    return PlanOf(spec).policy().Int(OptionId::kResidual);
  };
  for (const char* kv : {"int8", "int4", "mixed"}) {
    const std::string more = std::string(",quant_group=8,kv=") + kv;
    for (const int n : {9, 17, 31}) {
      const std::string bytes = std::to_string(8 * n * entry), fewer = std::to_string(8 * n * entry - 1);
      EXPECT_EQ(residual("cokv:budget_bytes=" + bytes + more), std::min(n, 8)) << "its window is 8";
      EXPECT_EQ(residual("snapkv-w8:window=31,budget_bytes=" + bytes + more), n);
      EXPECT_EQ(residual("snapkv-w8:window=32,budget_bytes=" + fewer + more), n - 1);
      EXPECT_EQ(residual("knorm:budget_bytes=" + bytes + more), n);
      EXPECT_EQ(residual("knorm:residual=40,budget_bytes=" + bytes + more), 40);
    }
    EXPECT_EQ(residual("knorm:budget_bytes=100MiB" + more), 32);
    EXPECT_LT(residual("knorm:budget=64" + more), 0) << "auto";
  }
}

}  // namespace
}  // namespace kvc

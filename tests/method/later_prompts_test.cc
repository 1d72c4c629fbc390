// A cache that was compressed takes prompt after prompt, long and short, with answers between: after each the
// layer is reduced to the same budget (methods.md 1.9), and the slots of its heads add up to it exactly
// (1.8).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/method/every_method.h"

namespace kvc {
namespace {

using test::EveryMethod;
using test::MethodPolicy;
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

bool DropsSeveral(const Policy& policy) {
  const auto& options = policy.scorer->options;
  return std::find(options.begin(), options.end(), OptionId::kDrop) != options.end();
}

// Slots that each length of the sequence shares anew between layers: what is compared is their sum.
std::vector<int64_t> SlotsToCompare(const Session& s, const Policy& policy) {
  std::vector<int64_t> slots = SlotsOfLayers(s);
  if (!policy.allocator->across_layers && !policy.allocator->whole_heads_grow) return slots;
  return {std::accumulate(slots.begin(), slots.end(), int64_t{0})};
}

// Twenty prompts of a few tokens, of as many as the budget, and of several times as many.
void ExpectSameSlots(const Policy& policy, const std::string& extra) {
  constexpr int kPrompts[] = {3, 48, 1, 200, 7};
  auto s = test::MakeSession(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(test::kMethodPrompt), true).ok());
  const std::vector<int64_t> first = SlotsToCompare(*s, policy);
  for (int i = 0; i < 20; ++i) {
    const int n_steps = i % 4 * 3, n = kPrompts[i % 5];
    test::Steps(*s, n_steps);
    // Scissorhands drops half a budget at a time, as often as a head is beyond its budget (methods.md 2.5).
    std::vector<int64_t> expected = DropsSeveral(policy) ? SlotsOfLayers(*s) : first;
    for (int64_t& slots : expected) {
      if (!DropsSeveral(policy)) break;
      slots += test::kMethodKvHeads * ((n_steps > 0) + n);  // the last step's token is fed with the prompt
      while (slots > test::kMethodKvHeads * test::kMethodBudget)
        slots -= test::kMethodKvHeads * test::kMethodBudget / 2;
    }
    const Status status = s->Prefill(TinyPrompt(n, static_cast<uint32_t>(i)), true);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(SlotsToCompare(*s, policy), expected)
        << "after prompt " << i << " of " << n << " tokens" << extra;
  }
}

TEST_P(EveryMethod, LaterPromptsEndAtTheSameSlots) {
  const Policy policy = MethodPolicy(Which(), test::kMethodBudget);
  // With a codebook query heads choose, and their KV head holds what any of them chose: see
  // engine_query_head_sets_test.
  if (policy.keeps_all() || policy.reducer->codebook) return;
  ExpectSameSlots(policy, "");
  if (!policy.allocator->dynamic || policy.allocator->across_layers) return;
  for (const char* extra : {",ada_floor=0", ",ada_floor=0.5", ",ada_floor=1"})
    ExpectSameSlots(MethodPolicy(Which(), test::kMethodBudget, extra), extra);
}

INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::Range(0, static_cast<int>(Variants().size())),
                         [](const auto& index) {
                           return Variants()[static_cast<size_t>(index.param)].label;
                         });

}  // namespace
}  // namespace kvc

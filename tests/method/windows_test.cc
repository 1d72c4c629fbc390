// Every method on a model in which every second layer attends to its newest tokens only. Those layers hold
// these tokens, whatever the method; the others have all of its budget (methods.md 1.9).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/method/every_method.h"

namespace kvc {
namespace {

using test::DropsSeveral;
using test::EveryMethod;
using test::Steps;
using test::TinyPrompt;
using test::Variant;
using test::Variants;

constexpr int kLayers = 4, kKvHeads = 3, kWindow = 24, kPrompt = 150, kBudget = 48, kShared = 2 * kKvHeads;

bool IsSliding(int layer) { return layer % 2 == 0; }

std::shared_ptr<const Model> Sliding(int window = kWindow, int n_threads = 2) {
  static std::map<int, test::AlignedBytes> models;
  if (models.count(window) == 0) {
    test::TinyModelOptions options;
    options.n_layers = kLayers, options.n_heads = 6, options.n_kv_heads = kKvHeads, options.head_dim = 16,
    options.hidden_size = 48;
    if (window > 0) options.layers = {{window, 0}, {0, 0}, {window, 0}, {0, 0}};
    models.emplace(window, test::TinyModelBytes(options));
  }
  return test::OpenTiny(models.at(window), n_threads);
}

// A table has a number for every head, also of layers that slide.
Policy PolicyOf(const Variant& variant, int budget = kBudget, const std::string& extra = "") {
  Policy policy = test::MethodPolicy(variant, budget, extra);
  if (variant.method == "table") policy.table = {1, 1, 1, 40, 60, 44, 2, 2, 2, 50, 42, 52};
  return policy;
}

int32_t SlackOf(const Policy& policy, int32_t max_tokens = 4096) {
  const int32_t rows = policy.keeps_all() || policy.scorer->window_rows == nullptr
                           ? 0
                           : policy.scorer->window_rows(policy, max_tokens);
  return 32 + (rows < max_tokens ? rows : 0);
}

// Of a session with room for a long text: small where budgets are, at least a block of keys that share a
// scale.
int32_t PageSlotsOf(const Policy& policy) {
  if (policy.method->reads_pages) return 16;
  if (policy.keeps_all()) return 64;
  return policy.quantises() && policy.Int(OptionId::kKeyAxis) == 1 ? 32 : 4;
}

// What the layers with windows hold: the newest without a gap, those of the window and at most so many more.
void CheckWindows(const Session& s, int32_t n_tokens, int32_t most) {
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int g = 0; IsSliding(layer) && g < kKvHeads; ++g) {
      std::vector<int32_t> kept;
      ASSERT_TRUE(s.Kept(layer, g, &kept).ok());
      const int32_t n = static_cast<int32_t>(kept.size());
      ASSERT_GE(n, std::min(n_tokens, kWindow));
      ASSERT_LE(n, most);
      ASSERT_EQ(kept.front(), n_tokens - n);
      ASSERT_EQ(kept.back(), n_tokens - 1);
    }
  }
}

std::vector<int64_t> SharedSlots(const Session& s) {
  std::vector<int64_t> slots;
  std::vector<int32_t> kept;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (IsSliding(layer)) continue;
    slots.push_back(0);
    for (int g = 0; g < kKvHeads; ++g) {
      EXPECT_TRUE(s.Kept(layer, g, &kept).ok());
      slots.back() += static_cast<int64_t>(kept.size());
    }
  }
  return slots;
}

class Windows : public EveryMethod {
 protected:
  std::unique_ptr<Session> Make(int budget = kBudget, int n_threads = 2, SessionParams params = {}) const {
    const Policy policy = PolicyOf(Which(), budget);
    return test::MakeSession(&policy, Sliding(kWindow, n_threads), params);
  }
};

// Twenty prompts, short and long, with answers between.
TEST_P(Windows, HoldTheirNewestAndTheOthersTheBudget) {
  const Policy policy = PolicyOf(Which());
  const int32_t page = policy.keeps_all() ? 64 : 32,
                most = kWindow + SlackOf(policy) + (policy.reads_by_steps() ? page : 0);
  constexpr int kPrompts[] = {3, 48, 1, 200, 7};
  auto s = Make();
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  int32_t n_tokens = kPrompt;
  CheckWindows(*s, n_tokens, most);
  // Who drops half a budget at a time, counts slots of query heads, or keeps heads whole has other sums.
  const bool exact = !policy.keeps_all() && !policy.reducer->codebook && !DropsSeveral(policy) &&
                     policy.allocator->needs != kNeedsTable && !policy.allocator->whole_heads_grow;
  for (int i = 0; i < 20; ++i) {
    if (exact) {
      const std::vector<int64_t> slots = SharedSlots(*s);
      ASSERT_EQ(slots[0] + slots[1], int64_t{kShared} * kBudget) << "before prompt " << i;
    }
    const int n_steps = i % 4 * 3, n = kPrompts[i % 5];
    Steps(*s, n_steps);
    n_tokens += std::max(n_steps - 1, 0);  // the last token is fed with the prompt
    CheckWindows(*s, n_tokens, most + page);
    const Status status = s->Prefill(TinyPrompt(n, static_cast<uint32_t>(i)), true);
    ASSERT_TRUE(status.ok()) << status.message();
    n_tokens += n + (n_steps > 0);
    CheckWindows(*s, n_tokens, most + page + 32);
  }
}

// A page of the oldest, of small ones 16 entries, goes when a token comes and all of it is behind the window
// and its slack.
TEST_P(Windows, MemoryDoesNotGrowWithTheText) {
  const Policy policy = PolicyOf(Which());
  const int32_t most = kWindow + SlackOf(policy), page = std::max(PageSlotsOf(policy), 16);
  auto s = Make();
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  const auto sliding_slots = [&] {
    const std::vector<int64_t> shared = SharedSlots(*s);
    return s->Stats().n_slots - shared[0] - shared[1];
  };
  int64_t held = sliding_slots() / (2 * kKvHeads);
  if (policy.reads_by_steps()) {
    EXPECT_GE(held, most);
    EXPECT_LE(held, most + page);
  } else {
    EXPECT_EQ(held, std::min(kPrompt, most));
  }
  for (int i = 0; i < 150; ++i) {
    test::FeedTokens(*s, TinyPrompt(1, static_cast<uint32_t>(i)));
    held += 1 - std::max<int64_t>(held - most, 0) / page * page;
    ASSERT_EQ(sliding_slots(), 2 * kKvHeads * held) << "after step " << i;
    ASSERT_LE(held, most + page);
  }
}

// What the full cache would hold, by hand: windows with their slack, in whole pages.
TEST_P(Windows, FullCountsWindowsAndPages) {
  const Policy policy = PolicyOf(Which());
  SessionParams params;
  params.max_tokens = 340;
  const int64_t page = PageSlotsOf(policy), most = kWindow + SlackOf(policy, params.max_tokens),
                element = policy.Int(OptionId::kKv) == static_cast<int32_t>(KvType::kF32) ? 4 : 2,
                page_bytes = page * (2 * 16 * element + 4);  // key, value and position of each entry
  const auto slots = [&](int64_t n) { return 2 * kKvHeads * (std::min(n, most) + n); };
  const auto bytes = [&](int64_t n) {
    return 2 * kKvHeads * ((std::min(n, most) + page - 1) / page + (n + page - 1) / page) * page_bytes;
  };
  auto s = Make(kBudget, 2, params);
  EXPECT_EQ(s->Stats().n_slots_full, 0);
  EXPECT_EQ(s->Stats().cache_bytes_full, 0);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(s->Stats().n_slots_full, slots(kPrompt));
  EXPECT_EQ(s->Stats().cache_bytes_full, bytes(kPrompt));
  if (policy.keeps_all() && !policy.quantises()) {
    EXPECT_EQ(s->Stats().n_slots, slots(kPrompt));
    const int64_t bounds =
        policy.method->reads_pages ? 2 * 16 * element : 0;  // of pages that are chosen from
    EXPECT_EQ(s->Stats().cache_bytes, bytes(kPrompt) + 2 * kKvHeads * ((kPrompt + page - 1) / page) * bounds);
  }
  int fed = kPrompt;
  for (const int n : {200, params.max_tokens}) {
    test::FeedTokens(*s, TinyPrompt(n - fed, 3));
    fed = n;
    EXPECT_EQ(s->Stats().n_slots_full, slots(n));
    EXPECT_EQ(s->Stats().cache_bytes_full, bytes(n));
  }
  auto plan = Session::Plan(Sliding(), &policy, params, kPrompt);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan.value().cache_bytes_full, bytes(params.max_tokens));
}

TEST_P(Windows, FirstTokenIsThatOfTheFullCache) {
  const Policy policy = PolicyOf(Which());
  if (policy.reads_by_steps()) return;
  auto s = Make(), full = test::MakeSession(nullptr, Sliding());
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(full->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(test::LogitsOf(*s), test::LogitsOf(*full));
}

TEST_P(Windows, SameOnAnyThreads) {
  auto one = Make(kBudget, 1), three = Make(kBudget, 3);
  ASSERT_TRUE(one->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(three->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(Steps(*one, 20), Steps(*three, 20));
  EXPECT_EQ(test::LogitsOf(*one), test::LogitsOf(*three));
}

TEST_P(Windows, ForksAndSavedSessionsContinueAlike) {
  auto s = Make();
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 37);  // a page has left the windows
  auto fork = s->Fork();
  ASSERT_TRUE(fork.ok()) << fork.status().message();
  const test::TempFolder folder;
  ASSERT_TRUE(s->Save(folder / "session").ok());
  const std::shared_ptr<const Model> model(&s->model(), [](const Model*) {});
  auto restored = Session::Restore(model, folder / "session");
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(restored.value()->Stats().n_slots, s->Stats().n_slots);
  const std::vector<int32_t> tokens = Steps(*s, 40);
  EXPECT_EQ(Steps(*fork.value(), 40), tokens);
  EXPECT_EQ(Steps(*restored.value(), 40), tokens);
  for (Session* other : {fork.value().get(), restored.value().get()}) {
    EXPECT_EQ(test::LogitsOf(*other), test::LogitsOf(*s));
    EXPECT_EQ(other->Stats().n_slots, s->Stats().n_slots);
  }
  for (Session* each : {s.get(), restored.value().get()})
    ASSERT_TRUE(each->Prefill(TinyPrompt(15, 9), true).ok());
  EXPECT_EQ(test::LogitsOf(*restored.value()), test::LogitsOf(*s));
}

// What is taken back was never there: up to 32 tokens always, more never wrongly.
TEST_P(Windows, RewindIsExactOrRefused) {
  auto s = Make();
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  auto reference = s->Fork();
  ASSERT_TRUE(reference.ok());
  for (const int n : {32, 120}) {
    const std::vector<int32_t> more = TinyPrompt(n, 3);
    ASSERT_TRUE(s->Prefill({more.data(), 20}, false).ok());
    ASSERT_TRUE(s->Prefill({more.data() + 20, more.size() - 20}, false).ok());
    const int64_t slots = s->Stats().n_slots;
    const Status status = s->Rewind(n);
    const Policy policy = PolicyOf(Which());
    const bool takes_back = policy.keeps_all() || policy.decode == DecodeMode::kGrow;
    if (n == 32 && takes_back && s->Stats().n_slots < slots) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kUnsupported) << status.message();
      EXPECT_EQ(s->Stats().n_slots, slots);
      Steps(*s, 2);
      return;
    }
    ASSERT_TRUE(s->Prefill(TinyPrompt(6, 4), false).ok());
    auto other = reference.value()->Fork();
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE(other.value()->Prefill(TinyPrompt(6, 4), false).ok());
    ASSERT_EQ(test::LogitsOf(*s), test::LogitsOf(*other.value())) << n;
    ASSERT_TRUE(s->Rewind(6).ok());
  }
}

TEST_P(Windows, TrimFreesOfTheOthersOnly) {
  const Policy policy = PolicyOf(Which(), 96);
  if (policy.keeps_all() || policy.allocator->needs == kNeedsTable) return;
  auto s = Make(96);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 3);
  ASSERT_TRUE(s->FeedPending().ok());
  const int64_t before = s->Stats().cache_bytes;
  int64_t freed = 0;
  const Status status = s->Recompress(48, &freed);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GT(freed, 0);
  EXPECT_LE(s->Stats().cache_bytes, before - freed);
  CheckWindows(*s, kPrompt + 3, kWindow + SlackOf(policy) + 32);
  Steps(*s, 3);
}

TEST_P(Windows, PastTheEndOfTheContextSessionsGoOn) {
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    const Policy policy = PolicyOf(Which());
    SessionParams params;
    params.max_tokens = 170, params.on_full = on_full;
    auto made = Session::Create(Sliding(), &policy, params);
    if (!made.ok()) {  // keys that are coded together
      EXPECT_EQ(made.status().code(), Code::kUnsupported) << made.status().message();
      continue;
    }
    Session& s = *made.value();
    ASSERT_TRUE(s.Prefill(TinyPrompt(kPrompt), true).ok());
    Steps(s, 60);
    const std::vector<int64_t> slots = SharedSlots(s);
    Steps(s, 60);
    if (policy.keeps_all()) {
      EXPECT_EQ(SharedSlots(s), slots);
    }
    ASSERT_TRUE(s.Prefill(TinyPrompt(70, 5), true).ok());
    Steps(s, 5);
    ASSERT_TRUE(s.FeedPending().ok());
    CheckWindows(s, kPrompt + 120 + 70 + 5, kWindow + SlackOf(policy, params.max_tokens) + 64 + 32);
    for (const float x : test::LogitsOf(s)) ASSERT_TRUE(std::isfinite(x));
  }
}

// A window that holds the whole text changes nothing: the same as a model without windows, compressed or not.
TEST_P(Windows, WindowsBeyondTheTextAreNone) {
  const Policy full = PolicyOf({"full", "kv=f32", ""});
  auto with = test::MakeSession(&full, Sliding(400)), without = test::MakeSession(&full, Sliding(0));
  ASSERT_TRUE(with->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(without->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(Steps(*with, 30), Steps(*without, 30));
  EXPECT_EQ(test::LogitsOf(*with), test::LogitsOf(*without));
  Policy policy = PolicyOf(Which());
  if (policy.allocator == nullptr || policy.allocator->needs == kNeedsTable) return;
  SessionParams params;
  params.max_tokens = 400;  // so that the window is none
  auto a = test::MakeSession(&policy, Sliding(400), params),
       b = test::MakeSession(&policy, Sliding(0), params);
  ASSERT_TRUE(a->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(b->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(Steps(*a, 10), Steps(*b, 10));
  EXPECT_EQ(test::LogitsOf(*a), test::LogitsOf(*b));
  EXPECT_EQ(a->Stats().n_slots, b->Stats().n_slots);
}

TEST_P(Windows, TheAverageIsOverTheLayersThatShare) {
  const Policy policy = PolicyOf(Which());
  auto plan = Session::Plan(Sliding(), &policy, {}, kPrompt);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  auto s = Make();
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  int64_t planned = 0, of_windows = 0;
  for (size_t i = 0; i < plan.value().slots.size(); ++i) {
    planned += plan.value().slots[i];
    if (IsSliding(static_cast<int>(i) / kKvHeads)) of_windows += plan.value().slots[i];
  }
  const bool by_steps = policy.reads_by_steps();  // page by page
  EXPECT_EQ(of_windows, int64_t{2 * kKvHeads} *
                            std::min(kPrompt, kWindow + SlackOf(policy) +
                                                  (by_steps ? std::max(PageSlotsOf(policy), 16) - 1 : 0)));
  const bool exact = policy.keeps_all() || !(policy.reducer->codebook || by_steps || DropsSeveral(policy));
  EXPECT_LE(s->Stats().n_slots, planned);
  if (!exact) return;
  EXPECT_EQ(s->Stats().n_slots, planned);
  // Where scores decide, no one knows whose last page is full.
  const double spread = policy.allocator != nullptr && policy.allocator->dynamic ? 0.2 : 0;
  EXPECT_NEAR(static_cast<double>(s->Stats().cache_bytes),
              static_cast<double>(plan.value().cache_bytes_prompt),
              spread * static_cast<double>(plan.value().cache_bytes_prompt));
  EXPECT_LE(s->Stats().cache_bytes_peak, plan.value().cache_bytes_peak * (1 + spread));
}

// Entries leave a window from what is coded: a longer part that is not coded must not keep more of them.
TEST(WindowsInBits, HoldNoMoreThanWithoutBits) {
  constexpr int32_t kHeld = kWindow + 32;
  for (const std::string kv :
       {"f16", "int8", "int4", "int8,key_axis=channel", "mixed,bits_levels=8:0.5+4:0.5"}) {
    const auto make = [&](int residual) {
      const std::string coded = kv == "f16" ? "" : ",quant_group=16,residual=" + std::to_string(residual);
      const Policy policy = ParsePolicy(("full:kv=" + kv + coded).c_str()).value();
      return test::MakeSession(&policy, Sliding());
    };
    SCOPED_TRACE(kv);
    auto s = make(600), same = make(kHeld);
    constexpr int32_t kPage = 64;  // leaves before the next token comes
    for (Session* one : {s.get(), same.get()}) ASSERT_TRUE(one->Prefill(TinyPrompt(kPrompt), true).ok());
    for (int i = 0; i < 200; ++i) {
      CheckWindows(*s, kPrompt + i, kHeld + kPage);
      ASSERT_EQ(s->Stats().n_slots, same->Stats().n_slots);
      for (Session* one : {s.get(), same.get()}) test::FeedTokens(*one, {i % 7 + 3});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Windows, testing::Range(0, static_cast<int>(Variants().size())),
                         [](const auto& index) {
                           return Variants()[static_cast<size_t>(index.param)].label;
                         });

}  // namespace
}  // namespace kvc

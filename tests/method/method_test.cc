// What must hold for every method of the table and for every composition of parts (craft: invariants over the
// table, no list of names here).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "lib/compress/method_table.h"
#include "lib/engine/session.h"
#include "tests/method/every_method.h"

namespace kvc {
namespace {

using test::Steps;
using test::TinyPrompt;

using test::EveryMethod;
using test::MethodPolicy;
using test::Variants;
constexpr int kPrompt = test::kMethodPrompt, kBudget = test::kMethodBudget, kSteps = 40;

std::shared_ptr<const Model> Tiny(int n_threads = 2) { return test::MethodModel(n_threads); }

std::unique_ptr<Session> Make(const Policy* policy, std::shared_ptr<const Model> model = Tiny(),
                              SessionParams params = {}) {
  return test::MakeSession(policy, std::move(model), params);
}

std::vector<float> Logits(Session& s) {
  std::vector<float> logits(static_cast<size_t>(s.model().config().vocab_size));
  EXPECT_TRUE(s.ReadLogits(logits.data()).ok());
  return logits;
}

TEST_P(EveryMethod, KeepsItsBudgetInOrder) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  int64_t total = 0;
  for (int layer = 0; layer < 3; ++layer) {
    for (int g = 0; g < 3; ++g) {
      std::vector<int32_t> kept;
      EXPECT_TRUE(s->Kept(layer, g, &kept).ok());
      total += static_cast<int64_t>(kept.size());
      ASSERT_FALSE(kept.empty());
      EXPECT_EQ(kept.back(), kPrompt - 1) << "the newest token stays";
      for (size_t i = 1; i < kept.size(); ++i) ASSERT_LT(kept[i - 1], kept[i]);
      if (policy.n_rest() > 0 && kept.front() < 0)  // stands for all that are not there
        ASSERT_EQ(-kept.front() + static_cast<int>(kept.size()) - 1, kPrompt);
      else
        ASSERT_GE(kept.front(), 0);
    }
  }
  EXPECT_EQ(total, s->Stats().n_slots);
  if (!policy.keeps_all()) {
    EXPECT_LT(s->Stats().cache_bytes, s->Stats().cache_bytes_full);
  }
  if (!policy.keeps_all() && policy.reducer->codebook) {
    test::ExpectSeenIsTheBudget(policy, *s);
    return;
  }
  EXPECT_EQ(total, test::SlotsOfPrompt(policy, kPrompt));
}

// What the allocator holds after a prompt is the kept entries of every head, rounded up to its pages, and
// nothing else.
TEST_P(EveryMethod, CacheBytesAreThePagesOfWhatIsKept) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  if (Which().storage != "kv=f32" || Which().method == "spindlekv")
    return;  // raw tails, codebooks: the plan's tests have them
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  int64_t n_aux = policy.keeps_all() || policy.scorer->n_aux == nullptr ? 0 : policy.scorer->n_aux(policy);
  if (!policy.keeps_all() && policy.reducer->kind == MergeKind::kSpread && n_aux == 0) n_aux = 1;
  static_assert(kBudget < 128, "pages of four slots");
  const int64_t page_slots = policy.method->reads_pages ? 16 : policy.keeps_all() ? 64 : 4;
  const int64_t rank = policy.positions == PositionMode::kInCache ? 4 : 0;  // entries know their place
  const int64_t bounds = policy.method->reads_pages ? 2 * 16 * 4 : 0;
  const int64_t parts = page_slots * (2 * 16 * 4 + 4 + rank + 4 * n_aux) + bounds;  // each of whole 16 bytes
  const int64_t page_bytes = page_slots < 16 ? parts : (parts + 63) / 64 * 64;
  int64_t expected = 0;
  for (int layer = 0; layer < 3; ++layer) {
    for (int g = 0; g < 3; ++g) {
      std::vector<int32_t> kept;
      EXPECT_TRUE(s->Kept(layer, g, &kept).ok());
      expected += (static_cast<int64_t>(kept.size()) + page_slots - 1) / page_slots * page_bytes;
    }
  }
  EXPECT_EQ(s->Stats().cache_bytes, expected);
}

TEST_P(EveryMethod, FirstTokenIsThatOfTheFullCache) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  // Where a prompt is read token by token its end has seen a compressed cache.
  if (policy.reads_by_steps()) return;
  auto s = Make(&policy), full = Make(nullptr);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(full->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(Logits(*s), Logits(*full));
}

TEST_P(EveryMethod, BudgetThatCoversThePromptChangesNothing) {
  const std::string name = Name();
  if (name == "table" || name == "cokv-mixed" || name == "spindlekv") {
    // A table is a table; mixed precision and codebooks store differently whatever the budget.
    Policy policy = MethodPolicy(Which(), 100000);
    auto s = Make(&policy);
    ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
    if (policy.Real(OptionId::kSpindleMaxBytes) == 0) {
      EXPECT_EQ(s->Stats().n_slots, 9 * kPrompt);
    }
    return;
  }
  // Pages of another size are added up in another order: engine_read_pages_test.
  if (FindRow(Methods(), name)->reads_pages) return;
  const Policy policy = MethodPolicy(Which(), 4000), off = MethodPolicy({"full", Which().storage, "", ""}, 0);
  auto s = Make(&policy), full = Make(&off);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(full->Prefill(TinyPrompt(kPrompt), true).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(Steps(*s, 1), Steps(*full, 1));
    ASSERT_EQ(Logits(*s), Logits(*full)) << "step " << i;
  }
}

TEST_P(EveryMethod, SameInputSameOutputOnAnyThreads) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  auto one = Make(&policy, Tiny(1)), three = Make(&policy, Tiny(3));
  ASSERT_TRUE(one->Prefill(TinyPrompt(kPrompt), true).ok());
  ASSERT_TRUE(three->Prefill(TinyPrompt(kPrompt), true).ok());
  EXPECT_EQ(Steps(*one, kSteps), Steps(*three, kSteps));
  EXPECT_EQ(Logits(*one), Logits(*three));
}

TEST_P(EveryMethod, HoldsItsMemoryWhileGenerating) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 2);
  const int64_t bytes = s->Stats().cache_bytes, slots = s->Stats().n_slots;
  Steps(*s, 4 * kBudget);
  if (!policy.keeps_all() && policy.allocator->whole_heads_grow) {
    EXPECT_GT(s->Stats().n_slots, slots) << "heads that hold all of the prompt";
    EXPECT_LT(s->Stats().n_slots, slots + 9 * 4 * kBudget) << "the others do not grow";
  } else if (!policy.keeps_all() && policy.decode == DecodeMode::kStep) {
    EXPECT_LE(s->Stats().n_slots, 9 * (kBudget + 1));
    EXPECT_LE(s->Stats().cache_bytes, bytes + bytes / 2)
        << "slots " << slots << " then " << s->Stats().n_slots;
  } else {
    EXPECT_EQ(s->Stats().n_slots, slots + 9 * 4 * kBudget);
  }
}

TEST_P(EveryMethod, SecondPromptAttendsToWhatIsKept) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 3);
  const int64_t slots = s->Stats().n_slots;
  ASSERT_TRUE(s->Prefill(TinyPrompt(20, 3), true).ok());
  if (!policy.keeps_all() && !policy.reducer->codebook) {
    EXPECT_LE(s->Stats().n_slots, std::max<int64_t>(slots, 9 * kBudget + 9 * 10));
  }
  Steps(*s, 3);
}

TEST_P(EveryMethod, ForkContinuesAlikeAndApart) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 2);
  const int64_t bytes = s->Stats().cache_bytes;
  auto forked = s->Fork();
  ASSERT_TRUE(forked.ok()) << forked.status().message();
  EXPECT_EQ(s->Stats().cache_bytes, bytes) << "a fork takes no cache bytes";
  auto other = s->Fork();
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(other.value()->Prefill(TinyPrompt(9, 5), true).ok());  // writes into what it shares
  Steps(*other.value(), 5);
  const std::vector<int32_t> a = Steps(*s, kSteps), b = Steps(*forked.value(), kSteps);
  EXPECT_EQ(a, b);
  EXPECT_EQ(Logits(*s), Logits(*forked.value()));
}

TEST_P(EveryMethod, SavedSessionContinuesBitForBit) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  const auto model = Tiny();
  auto s = Make(&policy, model);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 7);
  const test::TempFolder folder;
  const std::string path = folder.path() + "/session";
  const Status saved = s->Save(path);
  ASSERT_TRUE(saved.ok()) << saved.message();
  auto restored = Session::Restore(model, path);
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(Steps(*s, kSteps), Steps(*restored.value(), kSteps));
  EXPECT_EQ(Logits(*s), Logits(*restored.value()));
  ASSERT_TRUE(s->Prefill(TinyPrompt(15, 9), true).ok());
  ASSERT_TRUE(restored.value()->Prefill(TinyPrompt(15, 9), true).ok());
  EXPECT_EQ(Logits(*s), Logits(*restored.value()));
}

TEST_P(EveryMethod, TrimGivesMemoryBack) {
  const Policy policy = MethodPolicy(Which(), 96);
  if (policy.keeps_all() || policy.allocator->needs == kNeedsTable) return;
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  Steps(*s, 3);
  ASSERT_TRUE(s->FeedPending().ok());
  const int64_t before = s->Stats().cache_bytes;
  int64_t freed = 0;
  const Status status = s->Recompress(48, &freed);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GT(freed, 0);
  EXPECT_EQ(s->Stats().cache_bytes, before - freed);
  Steps(*s, 3);
}

TEST_P(EveryMethod, PartsThenCompressEqualsOnePrompt) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  if (!policy.keeps_all() && policy.decode == DecodeMode::kStep) return;  // such methods act on every token
  auto whole = Make(&policy), parts = Make(&policy);
  const std::vector<int32_t> ids = TinyPrompt(kPrompt);
  ASSERT_TRUE(whole->Prefill(ids, true).ok());
  ASSERT_TRUE(parts->Prefill({ids.data(), 60}, false).ok());
  ASSERT_TRUE(parts->Prefill({ids.data() + 60, ids.size() - 60}, false).ok());
  EXPECT_EQ(parts->Stats().n_slots, 9 * kPrompt);
  const Status status = parts->Recompress(0, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  if (policy.keeps_all() || policy.Int(OptionId::kKv) != 0 || policy.reducer->codebook)
    return;                                       // stored with rounding in between
  if (policy.scorer->reading != nullptr) return;  // each part was read again when it came
  if (Name() == "nacl") return;  // its proxy rows are more than the window that is run again exactly
  for (int layer = 0; layer < 3; ++layer) {
    for (int g = 0; g < 3; ++g) {
      std::vector<int32_t> a, b;
      EXPECT_TRUE(whole->Kept(layer, g, &a).ok() && parts->Kept(layer, g, &b).ok());
      EXPECT_EQ(a, b) << layer << " " << g;
    }
  }
}

// Where side values remember what entries were worth, a second compression at the same budget finds nothing
// to drop and adds nothing to what they remember.
void ExpectCompressingAgainChangesNothing(const Policy& policy) {
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  auto again = s->Fork();
  ASSERT_TRUE(again.ok());
  for (int i = 0; i < 3; ++i) {
    const Status status = again.value()->Recompress(0, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    test::ExpectSameKept(*s, *again.value());
  }
  EXPECT_EQ(Steps(*s, kSteps), Steps(*again.value(), kSteps));
  EXPECT_EQ(Logits(*s), Logits(*again.value()));
  test::ExpectSameKept(*s, *again.value());
}

TEST_P(EveryMethod, CompressingAgainAtTheBudgetChangesNothing) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  if (policy.keeps_all() || policy.scorer->n_aux == nullptr || policy.Int(OptionId::kKv) != kStoreF32) return;
  if (policy.scorer->clear_after_reduce) return;  // the newest rows are counted anew
  ExpectCompressingAgainChangesNothing(policy);
}

TEST_P(EveryMethod, RewindIsExactOrRefused) {
  const Policy policy = MethodPolicy(Which(), kBudget);
  auto s = Make(&policy);
  ASSERT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
  auto reference = s->Fork();
  ASSERT_TRUE(reference.ok());
  ASSERT_TRUE(s->Prefill(TinyPrompt(12, 3), false).ok());
  const Status status = s->Rewind(12);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), Code::kUnsupported);
    Steps(*s, 2);
    return;
  }
  int32_t token;
  EXPECT_EQ(s->Step(&token).code(), Code::kInvalid) << "logits of a removed token are no basis";
  ASSERT_TRUE(s->Prefill(TinyPrompt(6, 4), false).ok());
  ASSERT_TRUE(reference.value()->Prefill(TinyPrompt(6, 4), false).ok());
  EXPECT_EQ(Logits(*s), Logits(*reference.value()));
}

TEST_P(EveryMethod, ShortPromptsWork) {
  for (int n : {1, 2, 7, 8, 9, kBudget - 1, kBudget, kBudget + 1}) {
    const Policy policy = MethodPolicy(Which(), kBudget);
    auto s = Make(&policy);
    ASSERT_TRUE(s->Prefill(TinyPrompt(n), true).ok()) << n;
    Steps(*s, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::Range(0, static_cast<int>(Variants().size())),
                         [](const auto& index) {
                           return Variants()[static_cast<size_t>(index.param)].label;
                         });

// methods.md 2.14: what a prompt adds to the scores is pooled, and not what was there.
TEST(AhaScorePool, PoolsNoScoreTwice) {
  const Result<Policy> policy = ParsePolicy("ahakv:budget=48,recent=8,aha_score_pool=5,kv=f32");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  ExpectCompressingAgainChangesNothing(policy.value());
}

// methods.md 2.16 (g): a layer that is too large keeps fewer tokens, and only as few as four rounds find.
TEST(SpindleMaxBytes, LayersShrinkToTheLimit) {
  const auto run = [](const std::string& extra) {
    Result<Policy> policy = ParsePolicy(("spindlekv:kv=f32,window=8,tail=8" + extra).c_str());
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    auto s = Make(&policy.value());
    EXPECT_TRUE(s->Prefill(TinyPrompt(kPrompt), true).ok());
    return s;
  };
  const auto free = run(",budget=96"), wide = run(",budget=96,spindle_max_bytes=1GiB");
  EXPECT_EQ(wide->Stats().cache_bytes, free->Stats().cache_bytes);
  EXPECT_EQ(wide->Stats().n_slots, free->Stats().n_slots);
  for (const int percent : {80, 60, 45}) {
    const int64_t limit = free->Stats().cache_bytes / 3 * percent / 100;
    const auto s = run(",budget=96,spindle_max_bytes=" + std::to_string(limit));
    EXPECT_LE(s->Stats().cache_bytes, 3 * limit);
    EXPECT_GE(s->Stats().cache_bytes, 3 * limit * 6 / 10) << percent << " %: far less than allowed";
    EXPECT_LT(s->Stats().n_slots, free->Stats().n_slots);
    for (int layer = 0; layer < 3; ++layer) {
      for (int g = 0; g < 3; ++g) {
        std::vector<int32_t> kept, before;
        EXPECT_TRUE(s->Kept(layer, g, &kept).ok() && free->Kept(layer, g, &before).ok());
        EXPECT_TRUE(std::includes(before.begin(), before.end(), kept.begin(), kept.end()));
        for (int i = 1; i <= 8; ++i) EXPECT_EQ(kept[kept.size() - static_cast<size_t>(i)], kPrompt - i);
      }
    }
    Steps(*s, 30);
    for (float x : Logits(*s)) ASSERT_TRUE(std::isfinite(x));
  }
  // Also where the budget covers the prompt.
  for (const char* budget : {",budget=96", ",budget=4000"})
    EXPECT_EQ(run(std::string(budget) + ",spindle_max_bytes=1")->Stats().n_slots, 9 * 8) << "always kept";
}

// The pages of a session stay what they were when it was made, whatever its budget became.
TEST(Trimmed, SessionsAreSavedWithTheirPages) {
  for (const char* spec : {"snapkv:budget=300,kv=f32,window=8", "snapkv:budget_bytes=4MiB,window=8",
                           "snapkv:budget=300,window=8,kv=int8,quant_group=8,residual=4,key_axis=channel"}) {
    SCOPED_TRACE(spec);
    const Result<Policy> policy = ParsePolicy(spec);
    ASSERT_TRUE(policy.ok());
    const auto model = Tiny();
    auto s = Make(&policy.value(), model);
    ASSERT_TRUE(s->Prefill(TinyPrompt(200), true).ok());
    ASSERT_TRUE(s->Recompress(48, nullptr).ok());
    const test::TempFolder folder;
    const std::string path = folder.path() + "/session";
    ASSERT_TRUE(s->Save(path).ok());
    auto restored = Session::Restore(model, path);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(restored.value()->Stats().cache_bytes, s->Stats().cache_bytes);
    EXPECT_EQ(Steps(*s, 20), Steps(*restored.value(), 20));
    EXPECT_EQ(Logits(*s), Logits(*restored.value()));
  }
}

// methods.md 1.1, 1.6: a share of the prompt is what heads come back to at steps, also where it holds all of
// the prompt.
TEST(BudgetRatio, HoldsBehindPromptsThatAreKeptWhole) {
  const struct {
    const char* spec;
    int n_prompt, n_slots;
  } cases[] = {{"streaming:budget_ratio=10%", 6, 6},
               {"streaming:budget_ratio=10%", 3, 6},
               {"ahakv:budget_ratio=5%", 33, 33},
               {"h2o:budget_ratio=1", 20, 20},
               {"h2o:budget_ratio=1,allocator=ada", 20, 20},
               {"snapkv:budget_ratio=5%,decode=reobserve,slack=0", 33, 33}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spec);
    const Result<Policy> policy = ParsePolicy(c.spec);
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    auto s = Make(&policy.value());
    ASSERT_TRUE(s->Prefill(TinyPrompt(c.n_prompt), true).ok());
    EXPECT_EQ(s->Stats().n_slots, 9 * c.n_prompt);
    for (int i = 0; i < 4; ++i) {
      Steps(*s, 25);
      EXPECT_EQ(s->Stats().n_slots, 9 * c.n_slots) << "after " << 25 * (i + 1) << " steps";
    }
  }
}

TEST(KeyChannels, SessionsThatDropSinglyAreRefused) {
  const Result<Policy> policy = ParsePolicy("full:kv=int8,quant_group=8,key_axis=channel");
  ASSERT_TRUE(policy.ok());
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    SessionParams params;
    params.max_tokens = 100, params.on_full = on_full;
    const auto made = Session::Create(Tiny(), &policy.value(), params);
    EXPECT_EQ(made.status().code(), Code::kUnsupported);
    EXPECT_NE(made.status().message().find("key_axis=channel"), std::string::npos);
  }
}

// Queries of a part stand at places of the text, which a session that slides has given up.
TEST(SecondReadings, PartsOfSessionsThatSlideAreRefused) {
  SessionParams params;
  params.max_tokens = 600, params.on_full = OnFull::kSlide;
  const auto made = [&](const char* spec) {
    const Result<Policy> policy = ParsePolicy(spec);
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return Session::Create(Tiny(), &policy.value(), params).status();
  };
  const Status refused = made("kvzip:budget=64,reread_part=256");
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_NE(refused.message().find("reread_part=0"), std::string::npos) << refused.message();
  EXPECT_TRUE(made("kvzip:budget=64").ok());
  params.on_full = OnFull::kEvict;
  EXPECT_TRUE(made("kvzip:budget=64,reread_part=256").ok());
}

// allocator x scorer x reducer x storage x decode: what parses must run and obey its budget.
TEST(Composition, EveryAcceptedCombinationRuns) {
  int ran = 0, refused = 0;
  for (const Allocator* allocator : Allocators()) {
    for (const Scorer* scorer : Scorers()) {
      for (const Reducer* reducer : Reducers()) {
        for (const char* tail :
             {"decode=grow,kv=f32", "decode=grow,kv=int4,quant_group=8,residual=4,key_axis=channel",
              "decode=reobserve,kv=int8,quant_group=8,key_axis=channel", "decode=step,kv=f16",
              "decode=step,kv=int8,quant_group=8,residual=4", "decode=reobserve,kv=f32",
              "decode=step,kv=f32,pos_mode=incache", "decode=grow,kv=f16,pos_mode=incache",
              "decode=reobserve,slack=2,kv=f32,pos_mode=incache"}) {
          const std::string spec = std::string("snapkv:budget=48,allocator=") + allocator->name +
                                   ",scorer=" + scorer->name + ",reducer=" + reducer->name + "," + tail;
          Result<Policy> policy = ParsePolicy(spec.c_str());
          if (!policy.ok()) {
            EXPECT_EQ(policy.status().code(), Code::kInvalid) << spec;
            ++refused;
            continue;
          }
          policy.value().table.assign(9, 50);
          auto made = Session::Create(Tiny(), &policy.value(), {});
          if (!made.ok()) {
            EXPECT_TRUE(made.status().code() == Code::kUnsupported || made.status().code() == Code::kInvalid)
                << spec << ": " << made.status().message();
            ++refused;
            continue;
          }
          SCOPED_TRACE(spec);
          ASSERT_TRUE(made.value()->Prefill(TinyPrompt(90), true).ok());
          for (float x : Logits(*made.value())) ASSERT_TRUE(std::isfinite(x));
          Steps(*made.value(), 6);
          for (float x : Logits(*made.value())) ASSERT_TRUE(std::isfinite(x));
          if (policy.value().decode == DecodeMode::kStep) {
            EXPECT_LE(made.value()->Stats().n_slots, 9 * (allocator->whole_heads_grow ? 52 + 6 : 52));
          }
          ++ran;
        }
      }
    }
  }
  EXPECT_GT(ran, 150);
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace kvc

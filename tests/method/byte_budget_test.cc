// budget_bytes is a promise about what the allocator holds: after every prompt that is compressed, after
// compressing again and after a trim, for every method and storage (methods.md 1.1). What is appended or
// generated comes on top until then.
#include <gtest/gtest.h>

#include <algorithm>

#include "lib/compress/method_table.h"
#include "lib/engine/session.h"
#include "tests/support/emulated.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::Steps;
using test::TinyPrompt;

constexpr int kHeads = 9, kPrompt = 150;

std::shared_ptr<const Model> Tiny() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 3, options.n_heads = 6, options.n_kv_heads = 3, options.head_dim = 16,
    options.hidden_size = 48;
    return test::TinyModelBytes(options);
  }();
  return test::OpenTiny(bytes);
}

void Append(Session& s, int n, uint32_t seed) { ASSERT_TRUE(s.Prefill(TinyPrompt(n, seed), false).ok()); }

void Compress(Session& s, int slots) {
  const Status status = s.Recompress(slots, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Small protected parts, so that the tiny model's budgets hold them.
std::string Spec(const Method& method, const char* storage, int64_t budget) {
  std::string spec = method.name + std::string(":budget_bytes=") + std::to_string(budget) + storage;
  const OptionSpan options = method.scorer->options;
  if (std::find(options.begin(), options.end(), OptionId::kWindow) != options.end()) spec += ",window=8";
  if (std::find(options.begin(), options.end(), OptionId::kRecent) != options.end()) spec += ",recent=8";
  return spec;
}

class ByteBudget : public testing::TestWithParam<int> {};

// The session's whole life; every line that compresses must come back to the budget.
void Live(const Policy& policy, Session& s, int64_t budget) {
  const auto holds = [&](const char* when) { EXPECT_LE(s.Stats().cache_bytes, budget) << when; };
  ASSERT_TRUE(s.Prefill(TinyPrompt(kPrompt, 7), true).ok());
  holds("a prompt");
  const bool shares = policy.allocator->shares_bytes;
  if (shares && s.Stats().n_slots < s.Stats().n_slots_full) {
    EXPECT_GE(s.Stats().cache_bytes, budget * 85 / 100);
  }
  Steps(s, 7);
  ASSERT_TRUE(s.Prefill(TinyPrompt(60, 3), true).ok());
  holds("a second prompt, after some steps");
  ASSERT_TRUE(s.Prefill(TinyPrompt(5, 4), true).ok());
  holds("a short prompt");
  Append(s, 70, 5);
  Compress(s, 0);
  holds("append and compress");
  Steps(s, 40);
  Compress(s, 0);
  holds("steps and compress");
  auto fork = s.Fork();
  ASSERT_TRUE(fork.ok());
  fork.value().reset();
  Append(s, 30, 6);
  Append(s, 3, 8);
  Compress(s, 0);
  holds("two parts and compress");
  const int32_t slots = static_cast<int32_t>(s.Stats().n_slots / kHeads);
  Compress(s, 2 * slots + 100);
  holds("a trim to more than the bytes allow");
  Append(s, 30, 9);
  // Harder than the budget; where query heads choose, a slot is one of theirs, and two share a KV head here.
  const Status trimmed = s.Recompress(slots / 2, nullptr);
  if (trimmed.ok()) return holds("a trim");
  EXPECT_EQ(trimmed.code(), Code::kInvalid) << trimmed.message();  // less than what is always kept
}

TEST_P(ByteBudget, HoldsAfterWhateverCompresses) {
  const Method& method = *GetMethod(GetParam());
  if (method.scorer == nullptr || method.allocator->needs == kNeedsTable) return;  // no budget; the caller's
  int ran = 0, n_cases = 0;
  for (const char* storage :
       {",kv=f32", ",kv=f16", ",kv=int4,quant_group=8,residual=4", ",kv=mixed,quant_group=8,residual=4",
        ",kv=mixed,quant_group=8,high_bits=16", ",kv=int8,quant_group=8,residual=4,key_axis=channel",
        ",decode=reobserve,slack=8", ",wkv_prefill=sequential", ",spindle_scope=layer,tail=4",
        ",pos_mode=incache"}) {
    for (const int64_t budget : {60000, 90000, 140000, 300000}) {
      const std::string spec = Spec(method, storage, budget);
      const Result<Policy> policy = ParsePolicy(spec.c_str());
      if (!policy.ok()) continue;
      if (n_cases++ % test::EveryNth(3) != 0) continue;
      SCOPED_TRACE(spec);
      auto made = Session::Create(Tiny(), &policy.value(), {});
      if (!made.ok()) {  // less than what is always kept, or no such combination
        EXPECT_TRUE(made.status().code() == Code::kInvalid || made.status().code() == Code::kUnsupported)
            << made.status().message();
        continue;
      }
      Live(policy.value(), *made.value(), budget);
      if (HasFatalFailure()) return;
      ++ran;
    }
  }
  EXPECT_GE(ran, test::kUnderQemu ? 2 : 5);
}

// A prompt one token longer than its chunks: the last one is compressed like the others.
TEST(ByteBudgetOfChunks, HoldsAtEveryLength) {
  for (const char* name : {"snapkv", "cokv", "h2o", "spindlekv", "cokv-document"}) {
    for (const int n : {1024, 1025, 1056, 2049}) {
      const std::string spec = Spec(*FindRow(Methods(), name), ",compress_per_chunk=1", 90000);
      SCOPED_TRACE(spec + " " + std::to_string(n));
      const Result<Policy> policy = ParsePolicy(spec.c_str());
      ASSERT_TRUE(policy.ok()) << policy.status().message();
      auto made = Session::Create(Tiny(), &policy.value(), {});
      ASSERT_TRUE(made.ok()) << made.status().message();
      ASSERT_TRUE(made.value()->Prefill(TinyPrompt(n, 7), true).ok());
      EXPECT_LE(made.value()->Stats().cache_bytes, 90000);
    }
  }
}

// Entries of sessions that may come to count positions in slots carry their place too.
TEST(ByteBudgetOfSlidingSessions, HoldsAfterAPrompt) {
  SessionParams params;
  params.on_full = OnFull::kSlide;
  for (const char* name : {"snapkv", "cokv", "ada-snapkv", "spindlekv"}) {
    for (const int64_t budget : {60000, 90000, 140000}) {
      const std::string spec = Spec(*FindRow(Methods(), name), "", budget);
      SCOPED_TRACE(spec);
      const Result<Policy> policy = ParsePolicy(spec.c_str());
      ASSERT_TRUE(policy.ok()) << policy.status().message();
      auto made = Session::Create(Tiny(), &policy.value(), params);
      ASSERT_TRUE(made.ok()) << made.status().message();
      ASSERT_TRUE(made.value()->Prefill(TinyPrompt(kPrompt), true).ok());
      EXPECT_LE(made.value()->Stats().cache_bytes, budget);
    }
  }
}

// Where layers hold windows of their own those take their part first, and what they take does not pass it.
TEST(ByteBudgetOfWindows, HoldsWhatWindowsLeave) {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 4, options.n_heads = 6, options.n_kv_heads = 3, options.head_dim = 16,
    options.hidden_size = 48;
    options.layers = {{24, 0}, {0, 0}, {24, 0}, {0, 0}};
    return test::TinyModelBytes(options);
  }();
  const auto model = test::OpenTiny(bytes);
  int ran = 0;
  for (int i = 0; i < MethodCount(); ++i) {
    const Method& method = *GetMethod(i);
    if (method.scorer == nullptr || method.allocator->needs == kNeedsTable) continue;
    for (const char* storage : {",kv=f32", ",kv=int4,quant_group=8,residual=4"}) {
      for (const int64_t budget : {150000, 220000, 500000}) {
        const std::string spec = Spec(method, storage, budget);
        const Result<Policy> policy = ParsePolicy(spec.c_str());
        if (!policy.ok()) continue;
        SCOPED_TRACE(spec);
        auto made = Session::Create(model, &policy.value(), {});
        if (!made.ok()) {
          EXPECT_EQ(made.status().code(), Code::kInvalid) << made.status().message();
          continue;
        }
        Live(policy.value(), *made.value(), budget);
        if (HasFatalFailure()) return;
        ++ran;
      }
    }
  }
  EXPECT_GE(ran, 60);
  const Result<Policy> policy = ParsePolicy("snapkv:budget_bytes=30000,window=8,kv=f32");
  ASSERT_TRUE(policy.ok());
  const Status refused = Session::Create(model, &policy.value(), {}).status();
  EXPECT_EQ(refused.code(), Code::kInvalid);
  for (const char* part : {"budget_bytes = 30000 is 0 slots per KV head of the 2 layers that see all tokens",
                           "the windows of the other 2 take", "bytes"})
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
}

// What is refused says how many bytes would do, and they do, and few less do not.
TEST(ByteBudgetTooSmall, SaysWhatWouldDo) {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 4, options.n_heads = 6, options.n_kv_heads = 3, options.head_dim = 16,
    options.hidden_size = 48;
    return test::TinyModelBytes(options);
  }();
  const auto model = test::OpenTiny(bytes);
  const auto create = [&](const std::string& method, long long kib) {
    const Result<Policy> policy =
        ParsePolicy((method + ",budget_bytes=" + std::to_string(kib) + "KiB").c_str());
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return Session::Create(model, &policy.value(), {}).status();
  };
  for (const std::string method : {"snapkv:window=32", "h2o:kv=int8,quant_group=8", "streaming:n_sink=4",
                                   "ada-snapkv:window=8,kv=int4,quant_group=8", "scissorhands:recent=10"}) {
    const Status refused = create(method, 1);
    ASSERT_EQ(refused.code(), Code::kInvalid) << method;
    const std::string mark = "; budget_bytes=";
    const size_t at = refused.message().rfind(mark);
    ASSERT_NE(at, std::string::npos) << refused.message();
    const long long kib = std::stoll(refused.message().substr(at + mark.size()));
    EXPECT_TRUE(create(method, kib).ok()) << method << ", " << kib;
    EXPECT_FALSE(create(method, kib - std::max(kib / 32, 2LL)).ok()) << method << ", " << kib;
  }
  const Result<Policy> other = ParsePolicy("snapkv:budget_bytes=1KiB,kv=int8,quant_group=7");
  ASSERT_TRUE(other.ok());
  const Status refused = Session::Create(model, &other.value(), {}).status();
  EXPECT_EQ(refused.message().find("would do"), std::string::npos) << refused.message();
}

INSTANTIATE_TEST_SUITE_P(Methods, ByteBudget, testing::Range(0, MethodCount()), [](const auto& index) {
  std::string name = GetMethod(index.param)->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace kvc

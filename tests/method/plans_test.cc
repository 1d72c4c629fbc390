// What a plan promises a session in so many bytes, to the byte: nothing is left over in these limits but what
// arenas take by the granule.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

// Four layers, every second one with a window.
test::AlignedBytes ModelWithWindows(int32_t window) {
  test::TinyModelOptions options;
  options.n_layers = 4, options.layers = {{0, 0}, {window, 0}, {0, 0}, {window, 0}};
  return test::TinyModelBytes(options);
}

// A prompt of n tokens and max_tokens in all run in the memory that is planned for them.
void ExpectFits(const test::AlignedBytes& bytes, const std::string& spec, int n, int max_tokens) {
  const Result<Policy> policy = ParsePolicy(spec.c_str());
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  SessionParams params;
  params.max_tokens = max_tokens;
  const auto plan = Session::Plan(test::OpenTiny(bytes), &policy.value(), params, n);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Status status = test::RunWithin(plan.value().total_bytes_peak, bytes, policy.value(), params, n);
  EXPECT_TRUE(status.ok()) << spec << ", " << n << " of " << max_tokens << ": " << status.message();
}

// Rows of a prompt have their places before the first of them comes: those of the rows before have left the
// windows by then.
TEST(Plans, HoldWhereRowsLeaveWindows) {
  const test::AlignedBytes bytes = ModelWithWindows(40);
  for (const int n : {100, 200, 300})
    ExpectFits(bytes, "weightedkv:budget=17,kv=f32,wkv_prefill=sequential", n, n + 1);
}

// The places of 32 rows are what such a prompt takes at the most, though they go with the rows.
TEST(Plans, CountTheRowsOfAPrompt) {
  const auto model = test::OpenTwoLayers();
  for (const std::string spec :
       {"cam:budget=20,kv=f32", "weightedkv:budget=17,kv=f32,wkv_prefill=sequential"}) {
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const auto plan = Session::Plan(model, &policy.value(), {}, 150);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const SessionStats stats = test::FedSession(model, spec, 150)->Stats();
    EXPECT_EQ(stats.cache_bytes_peak, plan.value().cache_bytes_peak) << spec;
    EXPECT_EQ(stats.cache_bytes, plan.value().cache_bytes_prompt) << spec;
  }
}

// A window that ends with a page (32 and the 32 that can be taken back) has one page more for a moment: the
// step that begins it may yet fail, and until then the oldest stays.
TEST(Plans, HoldWhereStepsLeaveWindows) {
  const test::AlignedBytes bytes = ModelWithWindows(32);
  for (const std::string kv : {"f32", "int8,quant_group=16,residual=0", "int8,quant_group=16,residual=16"})
    ExpectFits(bytes, "full:kv=" + kv, 10, 400);
}

// Where a session takes next to nothing, the model itself takes most while it is opened.
TEST(Plans, HoldTheOpeningOfTheModel) {
  test::TinyModelOptions options;
  options.vocab_size = 2000, options.n_layers = 1;
  ExpectFits(test::TinyModelBytes(options), "full:kv=f32", 2, 2);
}

// A prompt below the budget is kept whole, and the first step behind it takes heads down to their shares
// (methods.md 1.6): their pages go with the entries, and the end of the session is planned from the shares.
TEST(Plans, EndWithTheSharesOfHeads) {
  test::TinyModelOptions options;
  options.n_layers = 4;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  for (const std::string spec :
       {"h2o:budget=48,kv=f32,allocator=pyramid", "h2o:budget=48,kv=f32,allocator=cokv",
        "pyramidkv:budget=48,kv=f32,window=8,decode=reobserve,slack=0"}) {
    SCOPED_TRACE(spec);
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    SessionParams params;
    params.max_tokens = 200;
    const auto plan = Session::Plan(model, &policy.value(), params, 40);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto s = test::FedSession(model, spec, 40, params);
    EXPECT_EQ(s->Stats().cache_bytes, plan.value().cache_bytes_prompt);
    test::FeedTokens(*s, {3});
    const SessionStats one = s->Stats();
    const int64_t page = 4 * (2 * 16 * 4 + 4) + 4 * 4;  // of the h2o sum besides
    EXPECT_LE(one.cache_bytes, (one.n_slots + 8 * 3) * page / 4) << "pages without entries";
    test::FeedTokens(*s, test::TinyPrompt(159, 5));
    EXPECT_EQ(s->Stats().cache_bytes, plan.value().cache_bytes_end);
    ExpectFits(bytes, spec, 40, 200);
  }
}

}  // namespace
}  // namespace kvc

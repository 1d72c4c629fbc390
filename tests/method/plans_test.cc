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

// A window that ends with a page (32 and the 32 that can be taken back) has one page more for a moment: the
// step that begins it may yet fail, and until then the oldest stays.
TEST(Plans, HoldWhereStepsLeaveWindows) {
  const test::AlignedBytes bytes = ModelWithWindows(32);
  for (const std::string kv : {"f32", "int8,quant_group=16,residual=0", "int8,quant_group=16,residual=16"})
    ExpectFits(bytes, "full:kv=" + kv, 10, 400);
}

}  // namespace
}  // namespace kvc

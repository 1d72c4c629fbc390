// What a session takes from the heap beside its pages while nothing happens (design.md 10.5), and what a plan
// takes that is made of one.
#include <gtest/gtest.h>

#include "tests/support/heap_faults.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::HeapBytes;
using test::TinyPrompt;

class IdleHeap : public testing::TestWithParam<const char*> {
 protected:
  // A session behind a prompt of n tokens and an answer that was read.
  std::unique_ptr<Session> Used(int n) const {
    auto session = Session::Create(model_, &policy_, {});
    EXPECT_TRUE(session.ok()) << session.status().message();
    Session& s = *session.value();
    const Status read = s.Prefill(TinyPrompt(n), true);
    EXPECT_TRUE(read.ok()) << read.message();
    for (int32_t i = 0, token = 0; i < 20; ++i) EXPECT_TRUE(s.Step(&token).ok());
    uint8_t text[64];
    while (s.text().Pull(text, sizeof text) > 0) continue;
    return std::move(session.value());
  }
  // Of one that comes when all that sessions share is there.
  int64_t BytesOf(int n) const {
    const int64_t before = HeapBytes();
    const std::unique_ptr<Session> session = Used(n);
    return HeapBytes() - before;
  }

  const std::shared_ptr<const Model> model_ = test::OpenTwoLayers();
  const Policy policy_ = ParsePolicy(GetParam()).value();
};

// However long the prompt was that was compressed.
TEST_P(IdleHeap, GoesByWhatIsKept) {
  if (test::OnAnotherDevice()) GTEST_SKIP() << "memory of an emulated device is the heap's";
  const std::unique_ptr<Session> first = Used(3000);
  BytesOf(3000);  // the pages of two
  const int64_t behind_short = BytesOf(1000), behind_long = BytesOf(3000);
  EXPECT_NEAR(behind_short, behind_long, 256);  // a token is four bytes; blocks of malloc are rounded up
  EXPECT_LT(behind_long, 16 << 10);
}

INSTANTIATE_TEST_SUITE_P(Policies, IdleHeap,
                         testing::Values("snapkv:budget=32", "cokv:budget=32", "h2o:budget=32",
                                         "streaming:budget=32", "tova:budget=32", "ahakv:budget=32",
                                         "weightedkv:budget=32", "snapkv:budget=32,kv=int8,quant_group=16"));

// However long the prompt is that it is made for.
TEST(PlanHeap, IsThatOfAShortPrompt) {
  const auto model = test::OpenTwoLayers();
  SessionParams params;
  params.max_tokens = kMaxContext;
  for (const char* spec :
       {"full", "snapkv:budget=128", "kvzip:budget=128", "kvzip:budget=128,reread_part=256",
        "kvzip:budget=128,reread=own", "cokv-document:budget=128", "h2o:budget=128"}) {
    SCOPED_TRACE(spec);
    const Policy policy = ParsePolicy(spec).value();
    const auto peak = [&](int32_t n) {
      const int64_t before = HeapBytes();
      test::ResetHeapPeak();
      const auto plan = Session::Plan(model, &policy, params, n);
      EXPECT_TRUE(plan.ok()) << plan.status().message();
      return test::HeapPeak() - before;
    };
    EXPECT_LT(peak(60000000), peak(1000) + (16 << 10));
  }
}

}  // namespace
}  // namespace kvc

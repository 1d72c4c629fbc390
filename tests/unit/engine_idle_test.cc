// What a session costs that holds nothing yet, with as many layers and heads as a 0.5B model has.
// bench/cache_bench says what ten thousand take of the process.
#include <gtest/gtest.h>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr int64_t kMost = 16 * 1024;

TEST(Idle, ASessionWithoutCacheTakesLittle) {
  test::TinyModelOptions o;
  o.n_layers = 24, o.n_heads = 14, o.n_kv_heads = 2, o.head_dim = 64, o.hidden_size = 64, o.ffn_size = 64;
  const test::AlignedBytes bytes = test::TinyModelBytes(o);
  for (const char* spec :
       {"full", "full:kv=int4", "streaming:budget=128", "snapkv:budget=128", "h2o:budget=128",
        "weightedkv:budget=128", "tova:budget=128", "spindlekv:budget=128", "ada-snapkv:budget=128"}) {
    const auto model = test::OpenTiny(bytes, 1);
    const int64_t before = model->meter()->used();
    const auto first = test::NewSession(model, spec);
    const int64_t one = model->meter()->used() - before;
    EXPECT_GT(one, 0) << spec;
    EXPECT_LE(one, kMost) << spec;
    const auto second = test::NewSession(model, spec);
    EXPECT_EQ(model->meter()->used() - before, 2 * one) << spec << ": nothing is kept for them together";
  }
}

// What a prompt and steps needed beside pages belongs to the model, and what was dropped is gone.
TEST(Idle, ASessionThatWasUsedAndResetTakesNoMore) {
  const auto model = test::OpenTwoLayers();
  for (const char* spec : {"full", "snapkv:budget=24,window=8", "h2o:budget=24", "spindlekv:budget=48"}) {
    const auto used = test::FedSession(model, spec, 60), fresh = test::NewSession(model, spec);
    test::Steps(*used, 4);
    used->Reset();
    const int64_t before = model->meter()->used();
    const auto other = test::FedSession(model, spec, 60);
    test::Steps(*other, 4);
    other->Reset();
    const int64_t one = model->meter()->used() - before;
    EXPECT_LE(one, kMost) << spec;
  }
}

// A prompt that ends before it is through, however that comes, leaves nothing of what it was read in.
TEST(Idle, APromptThatWasLeftTakesNoMore) {
  const auto model = test::OpenTwoLayers();
  const auto used = [&] { return model->meter()->used(); };
  for (const char* spec : {"full", "kvzip:budget=64", "h2o:budget=24"}) {
    SCOPED_TRACE(spec);
    const auto other = test::FedSession(model, spec, 20);
    auto s = test::FedSession(model, spec, 20);
    test::Steps(*s, 2);
    const auto pause = [&] {
      ASSERT_TRUE(s->Enqueue(test::TinyPrompt(700, 3), true).ok());
      int64_t chunks = 1;
      ASSERT_TRUE(s->ReadOn(&chunks).ok());
      ASSERT_TRUE(s->reads_prompt());
    };
    const int64_t before = used();
    pause();
    EXPECT_GT(used(), before);
    s->call().RequestCancel();
    int32_t token = 0;
    EXPECT_EQ(s->Step(&token).code(), Code::kCancelled);
    EXPECT_LE(used(), before) << "cancelled";
    s->call().ClearCancel();
    pause();
    s->Reset();
    EXPECT_LE(used(), before) << "reset";
    s = test::FedSession(model, spec, 20);
    test::Steps(*s, 2);
    EXPECT_EQ(used(), before);
    pause();
    s.reset();
    EXPECT_LE(used(), before) << "closed";
  }
}

}  // namespace
}  // namespace kvc

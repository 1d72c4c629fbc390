// How often the threads of a model meet at a step of whole sessions. This program makes its own device "cpu"
// (KVC_CPU_MAKER): the processor, with a pool that counts.
#include <gtest/gtest.h>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/devices.h"
#include "tests/support/counting_pool.h"
#include "tests/support/tiny_session.h"

namespace kvc {

static int64_t n_meetings = 0;

CpuMaker CountedCpu();
CpuMaker CountedCpu() {
  return [](const ThreadOptions&) -> Result<std::unique_ptr<Device>> {
    return std::unique_ptr<Device>(
        new cpu::CpuDevice(std::make_unique<test::CountingPool>(&n_meetings), BestKernels()));
  };
}

namespace {

// Query, key and value; attention; what it gives to the residual; gate and up; down.
constexpr int64_t kInLayer = 5, kForLogits = 1;

// Every product is large enough to be shared among threads.
test::AlignedBytes BytesOf(int n_layers, WeightType type, int vocab_size = 0) {
  test::TinyModelOptions o;
  if (vocab_size > 0) o.vocab_size = vocab_size;
  o.n_layers = n_layers, o.type = type, o.group = 32;
  o.n_heads = 8, o.n_kv_heads = 2, o.head_dim = 32, o.hidden_size = 256, o.ffn_size = 512;
  return test::TinyModelBytes(o);
}

// Policies that grow at steps, evict at them by position and by what they attended to, store codes.
const char* const kSpecs[] = {"full", "snapkv:budget=24,window=8", "streaming:budget=24", "h2o:budget=24",
                              "full:kv=int8,quant_group=8,residual=4"};

TEST(Barriers, FiveALayerAtAStep) {
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8}) {
    for (const int n_layers : {1, 4}) {
      const test::AlignedBytes bytes = BytesOf(n_layers, type);
      const auto model = test::OpenTiny(bytes);
      for (const char* spec : kSpecs) {
        const auto session = test::FedSession(model, spec, 60);
        test::Steps(*session, 1);  // of the prompt's logits: nothing passes the network
        for (int step = 0; step < 3; ++step) {
          n_meetings = 0;
          test::Steps(*session, 1);
          EXPECT_EQ(n_meetings, kInLayer * n_layers + kForLogits) << spec << ", layers: " << n_layers;
        }
      }
    }
  }
}

// The likeliest token of many is looked for by all threads.
TEST(Barriers, OnceMoreForTheTokenOfALargeVocabulary) {
  for (const bool large : {false, true}) {
    const test::AlignedBytes bytes = BytesOf(1, WeightType::kInt8, large ? 20000 : 8000);
    const auto model = test::OpenTiny(bytes);
    const auto session = test::FedSession(model, "full", 60);
    test::Steps(*session, 1);
    n_meetings = 0;
    test::Steps(*session, 1);
    EXPECT_EQ(n_meetings, kInLayer + kForLogits + large);
  }
}

// Sessions of all those policies in one pass: as often, and once more to look up the rows of their tokens.
TEST(Barriers, ABatchMeetsAsOftenAsOneSession) {
  const int n_layers = 3;
  const test::AlignedBytes bytes = BytesOf(n_layers, WeightType::kInt8);
  const auto model = test::OpenTiny(bytes);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<StepWish> wishes;
  for (const char* spec : kSpecs) {
    sessions.push_back(test::FedSession(model, spec, 60));
    test::Steps(*sessions.back(), 1);
    wishes.emplace_back();
    wishes.back().session = sessions.back().get();
  }
  n_meetings = 0;
  Session::RunBatch({wishes.data(), wishes.size()}, 1);
  for (const StepWish& wish : wishes) EXPECT_TRUE(wish.status.ok()) << wish.status.message();
  EXPECT_EQ(n_meetings, 1 + kInLayer * n_layers + kForLogits);
}

}  // namespace
}  // namespace kvc

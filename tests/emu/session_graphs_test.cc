// Steps of sessions as graphs: the bits of single launches, as few calls of the host as there are pieces, and
// lengths that the host knows without asking.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/stream.h"
#include "lib/engine/session.h"
#include "lib/ops/devices.h"
#include "tests/emu/emulator.h"
#include "tests/emu/step_records.h"
#include "tests/support/tiny_session.h"

namespace kvc::cuda {
namespace {

// Whether a kernel of that name did, since calls are counted.
bool Ran(const char* kernel) {
  const auto& all = emu::GetCalls().kernels;
  return std::any_of(all.begin(), all.end(),
                     [=](const std::string& name) { return name.find(kernel) != std::string::npos; });
}

// The same bits with graphs and without; a step of a session costs a few calls, and the host waits for none
// of them, or once.
class SessionGraphsTest : public testing::TestWithParam<int32_t> {};

TEST_P(SessionGraphsTest, StepsOfASession) {
  test::TinyModelOptions options;
  options.n_layers = 3, options.head_dim = GetParam();  // the first and the last share room
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  for (const StepCase& c : StepCases(GetParam())) {
    SCOPED_TRACE(c.policy);
    std::vector<std::vector<float>> logits;
    for (const char* graphs : {"0", "1"}) {
      ::setenv("KVC_CUDA_GRAPHS", graphs, 1);
      const auto model = test::OpenEmulated(bytes);
      const auto session = test::NewSession(model, c.policy);
      ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
      test::FeedTokens(*session, test::TinyPrompt(40, 3));  // every ring is full
      test::LogitsOf(*session);                             // kernels run when somebody waits
      emu::GetCalls() = {};
      test::FeedTokens(*session, test::TinyPrompt(1, 5));
      EXPECT_LE(emu::GetCalls().waits, c.waits);
      EXPECT_EQ(emu::GetCalls().graphs > 0, graphs[0] == '1');
      const int64_t launches = emu::GetCalls().launches;
      test::LogitsOf(*session);
      // docs/cuda.md: 5 a layer and the embedding; one more where the attention does not append, and one more
      // for what methods do to entries. Behind all of them the session's copy of the row.
      const int64_t of_layer = 5 + (Ran("step_append") ? 1 : 0) + (Ran("update_heads") ? 1 : 0);
      EXPECT_EQ(launches, (graphs[0] == '1' ? 0 : options.n_layers * of_layer + 1) + 1);
      EXPECT_TRUE(Ran("copy_ranges"));
      EXPECT_EQ(Ran("update_heads"), c.updates);
      EXPECT_EQ(Ran("attend_step_codes"), c.of_64);
      test::FeedTokens(*session, test::TinyPrompt(30, 7));  // segments become more
      logits.push_back(test::LogitsOf(*session));
    }
    ::unsetenv("KVC_CUDA_GRAPHS");
    EXPECT_EQ(logits[0], logits[1]);
  }
}

TEST_P(SessionGraphsTest, TheHostKnowsWhatTheDeviceHas) {
  test::TinyModelOptions options;
  options.n_layers = 3, options.head_dim = GetParam();
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  std::vector<StepCase> cases = StepCases(GetParam());
  if (GetParam() == 16) {
    cases.push_back({"full:kv=int8,quant_group=16,kv_values=int4,residual=1"});
    cases.push_back({"tova:budget=24,kv=int8,quant_group=16,residual=0", true, 1});
    cases.push_back({"tova:budget=24,kv=int8,quant_group=16", true, 1});
    cases.push_back({"ahakv:budget=48,kv=int4,quant_group=16,recent=20,residual=16"});
    cases.push_back({"kvzip:budget=24,kv=int8,quant_group=16,once=1,residual=5"});
    cases.push_back(
        {"spindlekv:budget=24,window=8,tail=3,spindle_code=always,theta_k=0.6,theta_v=0.6", true, 1});
  }
  for (const StepCase& c : cases) {
    SCOPED_TRACE(c.policy);
    const auto model = test::OpenEmulated(bytes);
    const auto session = test::NewSession(model, c.policy);
    ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
    constexpr int kSteps = 110;
    const RecordsOfHeads records;
    emu::GetCalls() = {};
    test::FeedTokens(*session, test::TinyPrompt(kSteps, 3));
    EXPECT_LE(emu::GetCalls().to_host, kSteps * c.waits);
    std::vector<float> logits(static_cast<size_t>(options.vocab_size));
    ASSERT_TRUE(session->ReadLogits(logits.data()).ok());  // waits
    EXPECT_EQ(records.n_compared, (kSteps - 1) * options.n_layers * options.n_kv_heads);
    EXPECT_EQ(records.n_left > 0, c.policy.find("kv=int") != std::string::npos || c.waits > 0);
  }
}

// A session at the end of its context, where the oldest leave.
TEST(SessionGraphs, TheHostKnowsWhoLeavesAFullContext) {
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  for (const char* policy : {"full:kv=int8,quant_group=16", "full:kv=int4,quant_group=16,residual=0",
                             "h2o:budget=48,kv=int8,residual=16,quant_group=16",
                             "snapkv:budget=24,window=8,kv=int8,quant_group=16,residual=3"}) {
    SCOPED_TRACE(policy);
    const auto model = test::OpenEmulated(bytes);
    SessionParams of_session;
    of_session.max_tokens = 100;
    of_session.on_full = OnFull::kSlide;
    const auto session = test::NewSession(model, policy, of_session);
    ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
    const RecordsOfHeads records;
    test::FeedTokens(*session, test::TinyPrompt(80, 3));
    emu::GetCalls() = {};
    test::FeedTokens(*session, test::TinyPrompt(20, 5));
    EXPECT_EQ(emu::GetCalls().to_host, 0);
    test::LogitsOf(*session);
    EXPECT_EQ(records.n_compared, 99 * 2 * 2);
  }
}

// Layers that turn alike have the angles of a step from one packet.
TEST(SessionGraphs, AnglesAreMadeOnceAStepAndRope) {
  test::TinyModelOptions options;
  options.n_layers = 5;
  options.change = [](ModelConfig* c) {
    c->more_ropes.resize(1);
    c->more_ropes[0].theta = 500;
  };
  options.layers = {{0, 0}, {8, 1}, {8, 1}, {0, 0}, {8, 1}};
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  RopeConfig other = options.rope;
  other.theta = 500;
  const Rope ropes[] = {Rope(options.rope, options.head_dim), Rope(other, options.head_dim)};
  const auto model = test::OpenEmulated(bytes);
  std::unique_ptr<Session> sessions[] = {test::NewSession(model, "h2o:budget=24"),
                                         test::NewSession(model, "full")};
  ASSERT_TRUE(sessions[0]->Prefill(test::TinyPrompt(40), true).ok());
  ASSERT_TRUE(sessions[1]->Prefill(test::TinyPrompt(50), true).ok());
  std::set<const float*> places;
  int n = 0;
  emu::GetOptions().on_ran = [&](const std::string& kernel, void* const* kernel_params) {
    if (kernel.find("attend_step") == std::string::npos) return;
    const auto& p = *static_cast<const StepParams*>(*kernel_params);
    const int32_t layer = p.rows[0].cache.first_head / p.n_kv_heads, d = p.d;
    ASSERT_EQ(p.n_rows, 2);
    for (int r = 0; r < 2; ++r, ++n) {
      std::vector<float> expected(static_cast<size_t>(d));
      ropes[options.layers[static_cast<size_t>(layer)].rope].Angles(p.rows[r].position, expected.data(),
                                                                    expected.data() + d / 2);
      EXPECT_EQ(std::vector<float>(p.rows[r].angles, p.rows[r].angles + d), expected);
      places.insert(p.rows[r].angles);
    }
  };
  for (int32_t step = 0; step < 4; ++step) {
    Session* both[] = {sessions[0].get(), sessions[1].get()};
    const int32_t tokens[] = {step, step + 7};
    places.clear();
    ASSERT_TRUE(Session::FeedBatch({both, 2}, tokens).ok());
    test::LogitsOf(*sessions[0]);
    EXPECT_EQ(places.size(), 4u) << "two ropes, two rows";
  }
  EXPECT_EQ(n, 4 * 5 * 2);
  emu::GetOptions() = {};
}

// The rows of a draft are one attention a layer where they only append, and their tokens come back at once:
// those of plain steps. Pages that are chosen by what they hold are filled row by row.
TEST_P(SessionGraphsTest, ADraftIsOneAttentionALayer) {
  constexpr int kRows = 5;
  test::TinyModelOptions options;
  options.n_layers = 3, options.head_dim = GetParam();
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenEmulated(bytes);
  for (const bool chooses_pages : {false, true}) {
    SessionParams params;
    params.sampler.temperature = 0.8f, params.sampler.repeat_penalty = 1.2f;
    const std::string policy = chooses_pages ? "quest:read=32" : "snapkv:budget=24,window=8";
    const auto session = test::FedSession(model, policy, 90, params),
               plain = test::FedSession(model, policy, 90, params);
    std::vector<int32_t> expected(kRows + 1), tokens(kRows + 1);
    for (int32_t& token : expected) ASSERT_TRUE(plain->Step(&token).ok());
    test::LogitsOf(*session);
    std::map<std::string, int> ran;
    emu::GetOptions().on_ran = [&](const std::string& kernel, void* const*) {
      ++ran[kernel.find("attend_step") != std::string::npos ? "attend_step" : kernel];
    };
    emu::GetOptions().order = 1;  // who appends need not come first
    int32_t n = 0;
    ASSERT_TRUE(session->StepDraft({expected.data(), kRows}, tokens.data(), kRows + 1, &n).ok());
    EXPECT_EQ(n, kRows + 1);
    EXPECT_EQ(tokens, expected);
    EXPECT_EQ(ran["attend_step"], options.n_layers * (chooses_pages ? kRows : 1));
    EXPECT_EQ(ran["sample"], 1);
    emu::GetOptions() = {};
    test::ExpectNearLogits(*session, *plain, 1e-4f);
  }
}

// Kernels of many rows begin early too; all but what comes behind a piece's packet.
TEST(SessionGraphs, EveryKernelOfABatchBeginsEarly) {
  test::TinyModelOptions options;
  options.type = WeightType::kBf16;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenEmulated(bytes);
  for (const size_t n : {5, 9}) {  // two numbers of f16 an activation, and one
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> all;
    for (size_t i = 0; i < n; ++i) {
      sessions.push_back(test::FedSession(model, "full", 2));
      all.push_back(sessions.back().get());
    }
    const std::vector<int32_t> tokens = test::TinyPrompt(static_cast<int>(n));
    std::map<std::string, int64_t> ran;
    int64_t kernels = 0;
    for (int step = 0; step < 2; ++step) {  // from the second on pieces are graphs
      ran.clear(), kernels = 0, emu::GetCalls() = {};
      emu::GetOptions().on_ran = [&](const std::string& name, void* const*) { ++ran[name], ++kernels; };
      ASSERT_TRUE(Session::FeedBatch({all.data(), n}, tokens.data()).ok());
      test::LogitsOf(*all[0]);  // kernels run when somebody waits
    }
    emu::GetOptions() = {};
    EXPECT_GT(emu::GetCalls().graphs, 0);
    EXPECT_EQ(emu::GetCalls().early, kernels - emu::GetCalls().graphs) << n << testing::PrintToString(ran);
  }
}

// What was compiled for devices that have no early starts does not wait by itself where there are some.
TEST(SessionGraphs, KernelsOfOlderDevicesDoNotBeginEarly) {
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  for (const int compiled_for : {90, 80}) {
    emu::GetOptions().compiled_for = compiled_for;
    const auto model = test::OpenEmulated(bytes);
    const auto session = test::NewSession(model, "full");
    ASSERT_TRUE(session->Prefill(test::TinyPrompt(20), true).ok());
    emu::GetCalls() = {};
    test::FeedTokens(*session, test::TinyPrompt(4, 3));
    test::LogitsOf(*session);  // kernels run when somebody waits
    EXPECT_EQ(emu::GetCalls().early > 0, std::min(compiled_for, emu::UsualCapability()) >= 90);
  }
  emu::GetOptions().compiled_for = 0;
}

// Scratch for a shape is enough for every smaller one: sessions grow into what was planned for their end.
TEST(SessionGraphs, ScratchGrowsWithTheShape) {
  auto device = OpenDevice("emu", {});
  ASSERT_TRUE(device.ok()) << device.status().message();
  for (const bool attention : {false, true}) {
    StepShape shape = {};
    shape.n_rows = 1, shape.n_heads = 32, shape.n_kv_heads = 8, shape.head_dim = 128;
    shape.any_attention = attention, shape.any_update = true;
    int64_t least = 0;
    for (shape.longest = 256; shape.longest <= 1 << 18; shape.longest += 256) {
      const int64_t bytes = device.value()->StepScratchBytes(shape);
      ASSERT_GE(bytes, least) << shape.longest;
      least = bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, SessionGraphsTest, testing::Values(16, 64));

}  // namespace
}  // namespace kvc::cuda

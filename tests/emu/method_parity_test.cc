// Whole sessions on the CUDA backend beside the same on the processor (which tests/golden holds to reference
// values): what every head keeps after prompts and after steps, and the logits. For what no test of a single
// operation reaches.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lib/engine/session.h"
#include "tests/emu/device_pair.h"
#include "tests/method/every_method.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr float kLogits = 1e-4f;
// Of pages of 16 bits: where the numbers behind them differ in f32, some lie a bit apart there.
constexpr float kLogitsOfHalves = 1e-3f;

test::TinyModelOptions TwoLayers() {
  test::TinyModelOptions options;
  options.n_layers = 2, options.n_heads = 6, options.n_kv_heads = 2, options.head_dim = 16,
  options.hidden_size = 48;
  return options;
}

void ExpectSame(const test::AlignedBytes& bytes, const char* policy, float tolerance = kLogits) {
  ::unsetenv("KVC_TEST_DEVICE");  // "cpu" is the processor here
  std::unique_ptr<Session> sessions[2];
  for (int i = 0; i < 2; ++i) sessions[i] = test::NewSession(OpenOn(i == 0 ? "cpu" : kOther, bytes), policy);
  ASSERT_NE(sessions[0]->model().device().info().name, sessions[1]->model().device().info().name);
  const auto compare = [&](const char* when) {
    SCOPED_TRACE(when);
    test::ExpectSameKept(*sessions[0], *sessions[1]);
    test::ExpectNearLogits(*sessions[0], *sessions[1], tolerance);
  };
  for (auto& s : sessions) ASSERT_TRUE(s->Prefill(test::TinyPrompt(150), true).ok());
  compare("a prompt");
  for (auto& s : sessions) test::FeedTokens(*s, test::TinyPrompt(24, 3));
  compare("steps");
  for (auto& s : sessions) ASSERT_TRUE(s->Prefill(test::TinyPrompt(70, 5), true).ok());
  compare("another prompt");
  for (auto& s : sessions) test::FeedTokens(*s, test::TinyPrompt(5, 9));
  compare("more steps");
  for (auto& s : sessions) ASSERT_TRUE(s->Recompress(0, nullptr).ok());
  for (auto& s : sessions) test::FeedTokens(*s, test::TinyPrompt(3, 11));
  compare("compressing again and steps");
}

#if defined(KVC_EMU)
TEST(HostProgram, StreamsOfItsAreLeftAlone) {
  const test::AlignedBytes bytes = test::TinyModelBytes(TwoLayers());
  emu::GetCalls() = {};
  {
    const auto session = test::NewSession(OpenOn(kOther, bytes), "snapkv:budget=32");
    ASSERT_TRUE(session->Prefill(test::TinyPrompt(100), true).ok());
    test::FeedTokens(*session, test::TinyPrompt(3, 3));
  }
  EXPECT_GT(emu::GetCalls().launches, 0);
  EXPECT_EQ(emu::GetCalls().unnamed, 0) << "calls on the stream that waits for all others of a program";
}
#endif

std::string NameOf(const testing::TestParamInfo<const char*>& p) {
  std::string name = p.param;
  for (char& ch : name) ch = std::isalnum(static_cast<unsigned char>(ch)) != 0 ? ch : '_';
  return name;
}

class MethodParity : public testing::TestWithParam<const char*> {};

TEST_P(MethodParity, KeepsTheSame) {
  static const test::AlignedBytes bytes = test::TinyModelBytes(TwoLayers());
  ExpectSame(bytes, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Policies, MethodParity,
    testing::Values("keydiff:budget=24,kv=f32", "lagkv:budget=24,kv=f32,lag=8",
                    "quest:read=48,read_skip=0,kv=f32", "quest:read=64,read_skip=1,kv=f32,gqa_agg=mean",
                    "lagkv:budget=48,kv=f32,lag=60,n_sink=2",
                    "expected-attention:budget=24,kv=f32,future_positions=64",
                    "ahakv:budget=24,kv=f32,recent=8,aha_decode_i=logical",
                    "ahakv:budget=24,kv=f32,recent=8,aha_decode_i=logical,aha_units=scaled",
                    "ahakv:budget=24,kv=f32,recent=8,allocator=ada", "h2o:budget=24,kv=f32,h2o_norm=count",
                    "streaming:budget=48,kv=int8,quant_group=16,residual=16",
                    "snapkv:budget=24,window=8,kv=int8,quant_group=16,decode=reobserve,slack=4",
                    "snapkv:budget=24,kv=f32,window=8,pool_rows_first=1,reducer=rest",
                    "spindlekv:budget=24,kv=f32,window=8,tail=8,spindle_code=always,theta_k=0.6,theta_v=0.6",
                    "spindlekv:budget=24,kv=f32,window=8,tail=8,spindle_code=always,theta_k=0.6,theta_v=0.6,"
                    "spindle_magnitude=0"),
    NameOf);

// Every method there is, as all other tests of methods run them: one whose operations a backend lacks fails
// here without anybody listing it. Short, as there are many.
class EveryMethodParity : public test::EveryMethod {};

// Each once: keys of one token have the same length in layer 0 wherever it stands, and rounding would decide.
std::vector<int32_t> TokensFrom(int first, int n) {
  std::vector<int32_t> ids;
  for (int i = first; i < first + n; ++i) ids.push_back((i * 73 + 11) % 256);
  return ids;
}

TEST_P(EveryMethodParity, KeepsTheSame) {
  ::unsetenv("KVC_TEST_DEVICE");  // "cpu" is the processor here
  static const std::shared_ptr<const Model> models[2] = {OpenOn("cpu", test::MethodModelBytes()),
                                                         OpenOn(kOther, test::MethodModelBytes())};
  const Policy policy = test::MethodPolicy(Which(), 16);
  std::unique_ptr<Session> sessions[2];
  for (int i = 0; i < 2; ++i) {
    sessions[i] = test::MakeSession(&policy, models[i]);
    ASSERT_TRUE(sessions[i]->Prefill(TokensFrom(0, 40), true).ok());
    test::FeedTokens(*sessions[i], TokensFrom(40, 3));
    ASSERT_TRUE(sessions[i]->Prefill(TokensFrom(43, 12), true).ok());
    test::FeedTokens(*sessions[i], TokensFrom(55, 2));
  }
  test::ExpectSameKept(*sessions[0], *sessions[1]);
  // A code may round the other way on a device that adds in another order.
  const bool codes = Which().storage.rfind("kv=f32", 0) != 0;
  test::ExpectNearLogits(*sessions[0], *sessions[1], codes ? kLogitsOfHalves : kLogits);
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryMethodParity,
                         testing::Range(0, static_cast<int>(test::Variants().size())),
                         [](const auto& p) { return test::Variants()[static_cast<size_t>(p.param)].label; });

// Heads and pages that tensor cores attend to in steps (cuda/attend_step_mma.cu, attend_step_codes.cu): with
// all that methods want of the attention, and with what they keep from it.
test::TinyModelOptions HeadsOf64() {
  test::TinyModelOptions options = TwoLayers();
  options.head_dim = 64;
  return options;
}

class HeadsOf64Parity : public testing::TestWithParam<const char*> {};

TEST_P(HeadsOf64Parity, KeepsTheSame) {
  static const test::AlignedBytes bytes = test::TinyModelBytes(HeadsOf64());
  ExpectSame(bytes, GetParam(), kLogitsOfHalves);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, HeadsOf64Parity,
    testing::Values("full:kv=f16", "h2o:budget=24,kv=f16", "tova:budget=24,kv=f16",
                    "quest:read=48,read_skip=0,kv=f16", "ahakv:budget=24,kv=f16,recent=8", "full:kv=bf16",
                    "snapkv:budget=24,kv=bf16,window=8", "h2o:budget=24,kv=bf16", "full:kv=int8,residual=0",
                    "h2o:budget=24,kv=int8,residual=0", "full:kv=int4,quant_group=64,residual=0",
                    "tova:budget=24,kv=int8,kv_values=int4,residual=0", "ahakv:budget=24,kv=int8,recent=8",
                    "full:kv=int8", "full:kv=int4,quant_group=16",
                    "full:kv=int8,quant_group=16,key_axis=channel"),
    NameOf);

// Sinks join every softmax that a method sees.
class SinkParity : public testing::TestWithParam<const char*> {};

TEST_P(SinkParity, KeepsTheSame) {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options = TwoLayers();
    options.sink_shift = 1;
    options.change = [](ModelConfig* c) { c->attention_sinks = true; };
    return test::TinyModelBytes(options);
  }();
  ExpectSame(bytes, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Policies, SinkParity,
                         testing::Values("snapkv:budget=24,kv=f32,window=8", "h2o:budget=24,kv=f32",
                                         "tova:budget=24,kv=f32", "kvzip:budget=24,kv=f32",
                                         "scissorhands:budget=24,kv=f32,recent=8,drop=8",
                                         "kvzip:budget=24,kv=f32,reread=own,reread_part=256",
                                         "kvzip:budget=24,kv=f32,reread_part=256",
                                         "expected-attention:budget=24,kv=f32,future_positions=64",
                                         "ahakv:budget=24,kv=f32,recent=8,aha_decode_i=logical"),
                         NameOf);

// Layers of other families.
TEST(LayerParity, LayerNormsParallelBlocksAndNormsOfEveryHead) {
  test::TinyModelOptions options = TwoLayers();
  options.query_key_value_bias = options.output_bias = options.qk_norm = true;
  options.change = [](ModelConfig* c) { c->layer_norms = c->parallel_blocks = c->own_qk_norms = true; };
  ExpectSame(test::TinyModelBytes(options), "snapkv:budget=24,kv=f32,window=8");
}

TEST(LayerParity, MixtureOfExperts) {
  test::TinyModelOptions options = TwoLayers();
  options.n_experts = 12, options.n_chosen = 3, options.normalise_experts = true;
  ExpectSame(test::TinyModelBytes(options), "snapkv:budget=24,kv=f32,window=8");
}

// Two runs give the same bits: logits after a prompt, after steps and after a second prompt; emulated, also
// when blocks run in another order and everything happens at once.
void ExpectSameBits(const test::AlignedBytes& bytes, const char* policy) {
  const auto run = [&] {
    std::vector<std::vector<float>> logits;
    const auto session = test::NewSession(OpenOn(kOther, bytes), policy);
    EXPECT_TRUE(session->Prefill(test::TinyPrompt(150), true).ok());
    logits.push_back(test::LogitsOf(*session));
    test::FeedTokens(*session, test::TinyPrompt(24, 3));
    logits.push_back(test::LogitsOf(*session));
    EXPECT_TRUE(session->Prefill(test::TinyPrompt(70, 5), true).ok());
    test::FeedTokens(*session, test::TinyPrompt(5, 9));
    logits.push_back(test::LogitsOf(*session));
    return logits;
  };
  const auto first = run();
  EXPECT_EQ(run(), first);
#if defined(KVC_EMU)
  emu::GetOptions().order = 2, emu::GetOptions().eager = true;
  EXPECT_EQ(run(), first);
  emu::GetOptions() = {};
#endif
}

class TwoRuns : public testing::TestWithParam<const char*> {};

TEST_P(TwoRuns, GiveTheSameBits) {
  static const test::AlignedBytes bytes = test::TinyModelBytes(TwoLayers()),
                                  of_64 = test::TinyModelBytes(HeadsOf64());
  for (const test::AlignedBytes* model : {&bytes, &of_64}) ExpectSameBits(*model, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Policies, TwoRuns,
                         testing::Values("full", "full:kv=int4,quant_group=16", "snapkv:budget=24,window=8",
                                         "quest:read=48,read_skip=0", "ada-snapkv:budget=24,window=8",
                                         "h2o:budget=24", "weightedkv:budget=24",
                                         "spindlekv:budget=24,window=8"),
                         NameOf);

}  // namespace
}  // namespace kvc

// Steps that check a draft: whatever the draft says, tokens, text, cache and what follows are those of plain
// steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "lib/engine/lookup.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::ExpectNearLogits;
using test::ExpectSameKept;
using test::OpenTwoLayers;
using test::TinyPrompt;

constexpr int kPrompt = 70, kAnswer = 48;
constexpr int32_t kEos = 257;

// A session whose answers are long.
std::unique_ptr<Session> Endless(const std::shared_ptr<const Model>& model, const std::string& spec,
                                 const SessionParams& params = {}, int n_prompt = kPrompt) {
  auto session = test::FedSession(model, spec, n_prompt, params);
  const float never[] = {-INFINITY};
  EXPECT_TRUE(session->SetBias({&kEos, 1}, never).ok());
  return session;
}

SessionParams Sampled() {
  SessionParams params;
  params.sampler.temperature = 0.9f, params.sampler.top_k = 20, params.sampler.seed = 5;
  params.sampler.repeat_penalty = 1.3f, params.sampler.repeat_window = 24;
  return params;
}

std::vector<int32_t> PlainSteps(Session& session, int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) {
    int32_t token = -1;
    EXPECT_TRUE(session.Step(&token).ok());
    if (token < 0) break;
    tokens.push_back(token);
  }
  return tokens;
}

// Drafts of 0 to 9 tokens of an answer that is known: some right to the end, some wrong from the i-th token
// on.
struct Draft {
  int length, right;
};

std::vector<int32_t> DraftOf(const std::vector<int32_t>& answer, size_t at, const Draft& draft) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < draft.length; ++i) {
    const size_t j = at + static_cast<size_t>(i);
    const int32_t right = j < answer.size() ? answer[j] : 7;
    tokens.push_back(i < draft.right ? right : (right + 1) % 250);
  }
  return tokens;
}

std::string TextOf(Session& session) {
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(
      session.text().Pull(reinterpret_cast<uint8_t*>(text.data()), static_cast<int32_t>(text.size()))));
  return text;
}

enum class Saves { kNothing, kSome, kAll };  // passes: all that can be had by the draft

void ExpectSameAsPlain(const std::shared_ptr<const Model>& model, const std::string& spec,
                       const SessionParams& params, Saves saves, int n_prompt = kPrompt,
                       int n_answer = kAnswer) {
  SCOPED_TRACE(spec);
  const auto plain = Endless(model, spec, params, n_prompt), drafted = Endless(model, spec, params, n_prompt);
  const std::vector<int32_t> answer = PlainSteps(*plain, n_answer);
  std::vector<int32_t> got;
  int calls = 0;
  for (uint32_t i = 0; got.size() < answer.size(); ++i, ++calls) {
    const int length = static_cast<int>(i * 7 % 10), right = static_cast<int>(i * 5 % (length + 1u));
    int32_t tokens[40];
    int32_t n = -1;
    const int32_t cap = std::min<int32_t>(40, static_cast<int32_t>(answer.size() - got.size()));
    ASSERT_TRUE(drafted->StepDraft(DraftOf(answer, got.size(), {length, right}), tokens, cap, &n).ok());
    ASSERT_GE(n, 1);
    if (saves == Saves::kAll) {
      ASSERT_EQ(n, std::min({right + 1, cap, length + 1}));
    }
    got.insert(got.end(), tokens, tokens + n);
  }
  EXPECT_EQ(got, answer);
  if (saves == Saves::kNothing) {
    EXPECT_EQ(calls, static_cast<int>(answer.size()));
  } else {
    EXPECT_LT(calls, static_cast<int>(answer.size()));
  }
  EXPECT_EQ(TextOf(*drafted), TextOf(*plain));
  ExpectSameKept(*drafted, *plain);
  EXPECT_EQ(drafted->Stats().cache_bytes, plain->Stats().cache_bytes);
  EXPECT_EQ(drafted->Stats().n_slots, plain->Stats().n_slots);
  EXPECT_EQ(drafted->Stats().n_answer, plain->Stats().n_answer);
  ExpectNearLogits(*drafted, *plain, model->device().info().batch_invariant ? 0.0f : 1e-4f);
  EXPECT_EQ(PlainSteps(*drafted, 8), PlainSteps(*plain, 8));
}

TEST(StepDraft, IsSoManyPlainSteps) {
  const auto model = OpenTwoLayers();
  for (const SessionParams& params : {SessionParams(), Sampled()}) {
    for (const std::string spec :
         {"full", "full:kv=f32", "snapkv:budget=24,window=8", "cokv:budget=24,window=8",
          "quest:read=32,read_skip=0", "quest:read=48,read_skip=1,kv=f32", "ada-snapkv:budget=24,window=8",
          "snapkv:budget=24,window=8,pos_mode=incache"})
      ExpectSameAsPlain(model, spec, params, Saves::kAll);
  }
}

// Rows of a draft attend segment by segment, some of them to one segment more than others.
TEST(StepDraft, IsSoManyPlainStepsAcrossSegments) {
  const auto model = OpenTwoLayers();
  for (const int n_prompt : {230, 500, 750}) {
    for (const std::string spec :
         {"full", "snapkv:budget=240,window=8", "snapkv:budget=240,window=8,pos_mode=incache"})
      ExpectSameAsPlain(model, spec, Sampled(), Saves::kAll, n_prompt);
  }
}

// A page that leaves a window between two tokens leaves between the rows of a draft, too.
TEST(StepDraft, IsSoManyPlainStepsWhereWindowsMoveOn) {
  test::TinyModelOptions options;
  options.sliding_window = 300;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  // A page of 64 goes every 64 tokens. In f32 the last bit of a sum is seen ever after.
  for (const std::string spec : {"full", "full:kv=f32"})
    ExpectSameAsPlain(model, spec, Sampled(), Saves::kSome, 600, 200);
}

// Passes that perfect drafts of 8 tokens take for 96 tokens.
int PassesOf(const std::shared_ptr<const Model>& model, const char* spec) {
  const auto plain = Endless(model, spec, {}, 300), drafted = Endless(model, spec, {}, 300);
  const std::vector<int32_t> answer = PlainSteps(*plain, 96);
  int passes = 0;
  for (size_t at = 0; at < answer.size(); ++passes) {
    int32_t tokens[16];
    int32_t n = 0;
    const int32_t cap = static_cast<int32_t>(std::min<size_t>(16, answer.size() - at));
    EXPECT_TRUE(drafted->StepDraft(DraftOf(answer, at, {8, 8}), tokens, cap, &n).ok());
    if (n < 1) break;
    at += static_cast<size_t>(n);
  }
  return passes;
}

// How far a draft reaches does not depend on how small the pages are: they leave windows together.
TEST(StepDraft, ReachesAsFarOverSmallPages) {
  test::TinyModelOptions options;
  options.layers.resize(2);
  options.layers[0].attention_window = 60;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  EXPECT_EQ(PassesOf(model, "snapkv:budget=24,window=8"), PassesOf(model, "snapkv:budget=200,window=8"));
}

// A draft costs time only: where its rows find no memory, a step does.
TEST(StepDraft, IsAPlainStepWhereMemoryIsForOne) {
  test::TinyModelOptions options;
  options.vocab_size = 20000;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto open = [&](int64_t limit) {
    ModelParams params;
    params.threads = 1, params.memory_limit = limit;
    auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.value();
  };
  const auto free = open(0);
  const std::vector<int32_t> answer = PlainSteps(*Endless(free, "full"), 4);
  const auto tight = open(free->meter()->peak());
  const auto session = Endless(tight, "full");
  std::vector<int32_t> got;
  while (got.size() < answer.size()) {
    int32_t tokens[32], n = 0;
    const Status status = session->StepDraft(std::vector<int32_t>(31, 7), tokens, 32, &n);
    ASSERT_TRUE(status.ok()) << status.message();
    got.insert(got.end(), tokens, tokens + n);
  }
  got.resize(answer.size());
  EXPECT_EQ(got, answer);
}

// Where a step changes more than the newest entry, drafts are left out.
TEST(StepDraft, IsOnePlainStepWhereEntriesLeave) {
  const auto model = OpenTwoLayers();
  for (const std::string spec :
       {"h2o:budget=24", "tova:budget=24", "streaming:budget=24",
        "snapkv:budget=24,window=8,kv=int8,quant_group=16", "cokv-document:budget=24",
        "snapkv:budget=24,window=8,decode=reobserve,slack=0", "spindlekv:budget=24,window=8"})
    ExpectSameAsPlain(model, spec, Sampled(), Saves::kNothing);
}

TEST(StepDraft, EndsWhereTheContextDoes) {
  const auto model = OpenTwoLayers();
  for (const OnFull on_full : {OnFull::kError, OnFull::kEvict, OnFull::kSlide}) {
    SessionParams params;
    params.max_tokens = kPrompt + 11, params.on_full = on_full;
    const auto plain = Endless(model, "full", params), drafted = Endless(model, "full", params);
    const std::vector<int32_t> answer = PlainSteps(*Endless(model, "full"), 40);
    std::vector<int32_t> expected, got;
    Status last, drafted_last;
    while (expected.size() < 30 && last.ok()) {
      int32_t token = -1;
      last = plain->Step(&token);
      if (last.ok()) expected.push_back(token);
    }
    while (got.size() < expected.size() && drafted_last.ok()) {
      int32_t tokens[40], n = 0;
      drafted_last = drafted->StepDraft(DraftOf(answer, got.size(), {6, 6}), tokens,
                                        static_cast<int32_t>(expected.size() - got.size()), &n);
      got.insert(got.end(), tokens, tokens + n);
    }
    EXPECT_EQ(got, expected);
    int32_t tokens[8], n = 0;
    if (on_full == OnFull::kError) {
      EXPECT_EQ(drafted->StepDraft(DraftOf(answer, got.size(), {6, 6}), tokens, 8, &n).code(),
                Code::kContextFull);
    }
    ExpectSameKept(*drafted, *plain);
  }
}

// A stop token within a draft ends the answer, and nothing behind it stays.
TEST(StepDraft, StopsAtAStopToken) {
  const auto model = OpenTwoLayers();
  const auto plain = Endless(model, "full"), drafted = Endless(model, "full");
  const std::vector<int32_t> answer = PlainSteps(*Endless(model, "full"), 8);
  ASSERT_TRUE(model->tokenizer().IsStop(kEos));
  const float more[] = {1000};  // of the stop token, instead of the bias against it
  for (Session* s : {plain.get(), drafted.get()}) {
    PlainSteps(*s, 3);
    ASSERT_TRUE(s->SetBias({&kEos, 1}, more).ok());
  }
  EXPECT_TRUE(PlainSteps(*plain, 1).empty());
  int32_t tokens[8], n = -1;
  ASSERT_TRUE(drafted->StepDraft(std::vector<int32_t>{answer[3], answer[4], answer[5]}, tokens, 8, &n).ok());
  EXPECT_EQ(n, 0);
  EXPECT_EQ(drafted->Stats().stop_token, kEos);
  ExpectSameKept(*drafted, *plain);
  ASSERT_TRUE(drafted->StepDraft(std::vector<int32_t>{1, 2}, tokens, 8, &n).ok());
  EXPECT_EQ(n, 0) << "the answer stays complete";
  // A draft that holds the stop token itself.
  ASSERT_TRUE(plain->Accept(answer[3]).ok());
  ASSERT_TRUE(drafted->Accept(answer[3]).ok());
  EXPECT_TRUE(PlainSteps(*plain, 1).empty());
  ASSERT_TRUE(drafted->StepDraft(std::vector<int32_t>{kEos, kEos, answer[5]}, tokens, 8, &n).ok());
  EXPECT_EQ(n, 0);
  ExpectNearLogits(*drafted, *plain, 0.0f);
}

// One behind tokens that were foreseen is seen in the same pass: that is so many plain steps, and the one
// that gives no token.
TEST(StepDraft, StopsBehindARightToken) {
  const auto model = OpenTwoLayers();
  const auto watched = Endless(model, "full");
  std::vector<int32_t> answer;
  std::vector<float> wanted,
      logits(static_cast<size_t>(model->config().vocab_size));  // bias that makes it stop
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(watched->Fork().value()->ReadLogits(logits.data()).ok());
    const float stop = logits[kEos];
    logits[kEos] = -INFINITY;
    wanted.push_back(*std::max_element(logits.begin(), logits.end()) - stop);
    answer.push_back(PlainSteps(*watched, 1).at(0));
  }
  size_t at = 0;
  while (at + 1 < wanted.size() && wanted[at + 1] > wanted[at] - 0.01f) ++at;
  ASSERT_LT(at + 1, wanted.size());
  const float bias = (wanted[at] + wanted[at + 1]) / 2;
  const auto plain = Endless(model, "full"), drafted = Endless(model, "full");
  for (Session* s : {plain.get(), drafted.get()}) {
    PlainSteps(*s, static_cast<int>(at));
    ASSERT_TRUE(s->SetBias({&kEos, 1}, &bias).ok());
  }
  int32_t tokens[8], n = -1;
  ASSERT_TRUE(drafted->StepDraft(std::vector<int32_t>{answer[at], answer[at + 1]}, tokens, 8, &n).ok());
  ASSERT_EQ(n, 1);
  EXPECT_EQ(tokens[0], answer[at]);
  EXPECT_EQ(drafted->Stats().stop_token, kEos);
  EXPECT_EQ(PlainSteps(*plain, 2), std::vector<int32_t>{answer[at]});
  EXPECT_EQ(plain->Stats().stop_token, kEos);
  EXPECT_EQ(drafted->figures().n_tokens, plain->figures().n_tokens);
  EXPECT_EQ(TextOf(*drafted), TextOf(*plain));
  ExpectSameKept(*drafted, *plain);
  ExpectNearLogits(*drafted, *plain, 0.0f);
  ASSERT_TRUE(drafted->StepDraft(std::vector<int32_t>{answer[at]}, tokens, 8, &n).ok());
  EXPECT_EQ(n, 0);
}

TEST(StepDraft, RefusesWhatItCannotRead) {
  const auto model = OpenTwoLayers();
  const auto session = Endless(model, "full");
  int32_t tokens[4], n = -1;
  EXPECT_EQ(session->StepDraft(std::vector<int32_t>{1, 262}, tokens, 4, &n).code(), Code::kInvalid);
  EXPECT_EQ(session->StepDraft(std::vector<int32_t>{1, -1}, tokens, 4, &n).code(), Code::kInvalid);
  EXPECT_EQ(session->StepDraft(std::vector<int32_t>{1}, tokens, 0, &n).code(), Code::kInvalid);
  EXPECT_EQ(n, 0);
  const auto empty = test::NewSession(model, "full");
  EXPECT_EQ(empty->StepDraft(std::vector<int32_t>{1}, tokens, 4, &n).code(), Code::kInvalid);
  session->call().RequestCancel();
  EXPECT_EQ(session->StepDraft(std::vector<int32_t>{1}, tokens, 4, &n).code(), Code::kCancelled);
  session->call().ClearCancel();
  const auto plain = Endless(model, "full");
  EXPECT_EQ(PlainSteps(*session, 5), PlainSteps(*plain, 5));
}

// Tokens that are made less likely, by their words: the newest of those fed and those of a draft, each once.
TEST(Sampler, PenalisesTheNewestTokensOfAll) {
  uint32_t state = 3;
  const auto tokens = [&state](int n) {
    std::vector<int32_t> list;
    for (int i = 0; i < n; ++i) {
      state = state * 1664525u + 1013904223u;
      list.push_back(static_cast<int32_t>(state >> 20));
    }
    return list;
  };
  for (const int32_t window : {1, 5, 64, 512}) {
    SamplerParams params;
    params.repeat_penalty = 0.5f, params.repeat_window = window;  // which makes them likelier
    Sampler sampler(params);
    ASSERT_EQ(sampler.penalized(), static_cast<size_t>(window));
    sampler.ReserveTokens();
    std::vector<int32_t> all, lists;
    for (const int n : {1, 3, 700, 1, 30, 200, 2000, 7}) {
      const std::vector<int32_t> more = tokens(n);
      sampler.Saw(more);
      all.insert(all.end(), more.begin(), more.end());
      if (all.size() > 200) {  // as far as tokens are remembered for every window
        sampler.Rewind(128 - n % 128);
        all.resize(all.size() - static_cast<size_t>(128 - n % 128));
      }
      for (const int n_draft : {0, 1, 9}) {
        const std::vector<int32_t> draft = tokens(n_draft);
        std::vector<int32_t> expected = all;
        expected.insert(expected.end(), draft.begin(), draft.end());
        expected.erase(
            expected.begin(),
            expected.end() - std::min<std::ptrdiff_t>(window, static_cast<std::ptrdiff_t>(expected.size())));
        std::sort(expected.begin(), expected.end());
        expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
        lists.clear(), lists.reserve(static_cast<size_t>(window));
        const SampleRow row = sampler.RowOf({}, 0, draft, &lists);
        ASSERT_EQ(std::vector<int32_t>(row.repeated.begin(), row.repeated.end()), expected)
            << window << " of " << all.size() << " and " << n_draft;
      }
      const std::vector<int32_t> filler = tokens(1000);
      sampler.Saw(filler);
      all.insert(all.end(), filler.begin(), filler.end());
    }
  }
}

// The rule of lookup.h by its words: the longest suffix first, the newest place first.
std::vector<int32_t> LookUpSlowly(const std::vector<int32_t>& t, int n_gram, size_t cap) {
  for (int gram = n_gram; gram >= std::min(n_gram, 2); --gram) {
    const auto length = static_cast<size_t>(gram);
    for (size_t begin = t.size(); begin-- > 0;) {
      if (begin + length >= t.size() ||
          !std::equal(t.end() - gram, t.end(), t.begin() + static_cast<int>(begin)))
        continue;
      const size_t end = begin + length, n = std::min(cap, t.size() - end);
      return {t.begin() + static_cast<int>(end), t.begin() + static_cast<int>(end + n)};
    }
  }
  return {};
}

TEST(DraftLookup, FindsTheNewestPlaceOfTheLongestSuffix) {
  uint32_t state = 1;
  int found = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> tokens;
    const int length = i % 40, kinds = 2 + i % 5;
    for (int j = 0; j < length; ++j) {
      state = state * 1664525u + 1013904223u;
      tokens.push_back(static_cast<int32_t>(state >> 20) % kinds);
    }
    const int n_gram = 1 + i % 6;
    const size_t cap = static_cast<size_t>(i % 7);
    std::vector<int32_t> draft(cap, -1);
    draft.resize(static_cast<size_t>(LookUpDraft(tokens, n_gram, draft.data(), static_cast<int32_t>(cap))));
    ASSERT_EQ(draft, LookUpSlowly(tokens, n_gram, cap)) << i;
    found += draft.empty() ? 0 : 1;
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace kvc

// Since when nothing has left a cache, on every path on which entries leave: rewind stops there, statistics
// count it, and a saved session says it, or would be refused when it is restored.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::FeedTokens;
using test::TinyPrompt;

using Kept = std::vector<std::vector<int32_t>>;  // positions, by KV head

Kept KeptOf(const Session& s) {
  const ModelConfig& c = s.model().config();
  Kept kept(static_cast<size_t>(c.n_layers * c.n_kv_heads));
  for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i)
    EXPECT_TRUE(s.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &kept[static_cast<size_t>(i)]).ok());
  return kept;
}

// Whether a head lost one of the entries it had, or of the tokens [begin, end) that came since.
bool AnyLeft(const Kept& before, const Kept& after, int32_t begin, int32_t end) {
  for (size_t head = 0; head < before.size(); ++head) {
    std::vector<int32_t> all = before[head];
    for (int32_t position = begin; position < end; ++position) all.push_back(position);
    if (all != after[head]) return true;
  }
  return false;
}

std::unique_ptr<Session> ForkOf(Session& s) {
  auto fork = s.Fork();
  EXPECT_TRUE(fork.ok()) << fork.status().message();
  return std::move(fork.value());
}

// The restored session is the saved one: the same entries, and the same answer to the bit.
void ExpectRestored(const std::shared_ptr<const Model>& model, Session& s, const std::string& path) {
  ASSERT_TRUE(s.Save(path).ok());
  auto restored = Session::Restore(model, path);
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  Session& back = *restored.value();
  test::ExpectSameKept(s, back);
  test::ExpectNearLogits(s, back, 0.0f);
  const auto goes_on = ForkOf(s);
  for (int i = 0; i < 4; ++i) {
    int32_t a = -1, b = -1;
    ASSERT_EQ(goes_on->Step(&a).code(), back.Step(&b).code());
    ASSERT_EQ(a, b);
  }
  test::ExpectSameKept(*goes_on, back);
  test::ExpectNearLogits(*goes_on, back, 0.0f);
}

// The n_new tokens that came can be taken back where no entry left since, and then all is as before.
// can_take_back: neither side values nor codes of a residual forbid it anyway.
void ExpectRewinds(Session& s, int32_t n_new, bool left, bool can_take_back, const Kept& before) {
  if (n_new == 0) return;  // the answer had ended
  const auto fork = ForkOf(s);
  const Status status = fork->Rewind(n_new);
  EXPECT_EQ(status.code(), left || !can_take_back ? Code::kUnsupported : Code::kOk) << status.message();
  if (status.ok()) {
    EXPECT_EQ(KeptOf(*fork), before);
  }
}

// A compression that drops nothing leaves what a rewind can do.
void ExpectRoomyCompressionChangesNothing(Session& s, int32_t budget) {
  const auto roomy = ForkOf(s);
  const Kept before = KeptOf(s);
  ASSERT_TRUE(roomy->Recompress(budget, nullptr).ok());
  const int32_t n_tokens = roomy->figures().n_tokens;
  if (AnyLeft(before, KeptOf(*roomy), n_tokens, n_tokens)) return;
  for (const int32_t n : {1, 3, 9, 40})
    EXPECT_EQ(ForkOf(*roomy)->Rewind(n).code(), ForkOf(s)->Rewind(n).code()) << n;
}

// ---- the paths ----

using Path = std::function<void(Session&, uint32_t seed)>;

void StepsOfABatch(Session& s, uint32_t seed) {
  const auto other = ForkOf(s);
  Session* const both[] = {other.get(), &s};
  const std::vector<int32_t> tokens = TinyPrompt(2, seed);
  ASSERT_TRUE(Session::FeedBatch({both, 2}, tokens.data()).ok());
}

void ReadOnBesideSteps(Session& s, uint32_t seed) {
  const auto other = ForkOf(s);
  const std::vector<int32_t> tokens = TinyPrompt(5, seed);
  ASSERT_TRUE(s.Enqueue({tokens.data(), tokens.size()}, true).ok());
  while (s.reads_prompt()) {
    int64_t chunks = 1;
    ASSERT_TRUE(s.ReadOn(&chunks).ok());
    FeedTokens(*other, {7});
  }
}

const std::pair<const char*, Path> kPaths[] = {
    {"a step", [](Session& s, uint32_t seed) { FeedTokens(s, TinyPrompt(1, seed)); }},
    {"a step of its own choice",
     [](Session& s, uint32_t) {
       int32_t token = -1;
       ASSERT_TRUE(s.Step(&token).ok());
       ASSERT_TRUE(s.FeedPending().ok());
     }},
    {"a step of two tokens",
     [](Session& s, uint32_t seed) {
       ASSERT_TRUE(s.Accept(static_cast<int32_t>(seed) % 256).ok());
       FeedTokens(s, TinyPrompt(1, seed));
     }},
    {"a step of a batch", StepsOfABatch},
    {"appended tokens",
     [](Session& s, uint32_t seed) { ASSERT_TRUE(s.Prefill(TinyPrompt(3, seed), false).ok()); }},
    {"a prompt", [](Session& s, uint32_t seed) { ASSERT_TRUE(s.Prefill(TinyPrompt(3, seed), true).ok()); }},
    {"a queued prompt", ReadOnBesideSteps},
};

struct Method {
  const char* spec;
  bool can_take_back = true;
};

// Ways to drop at steps: none, one for each that comes, several at once, after scoring again; what is merged,
// coded late or shared; side values and none.
constexpr Method kMethods[] = {
    {"full"},
    {"full:kv=int8,quant_group=16,residual=4", false},
    {"streaming:budget=24"},
    {"streaming:budget=24,pos_mode=original"},
    {"snapkv:budget=24,window=8"},
    {"snapkv:budget=24,window=8,pos_mode=incache"},
    {"snapkv:budget=24,window=8,decode=reobserve,slack=0"},
    {"snapkv:budget=24,window=8,decode=reobserve,slack=5"},
    {"snapkv:budget=24,window=8,decode=reobserve,slack=5,pos_mode=incache"},
    {"snapkv:budget=24,window=8,decode=reobserve,slack=3,kv=int8,quant_group=16,residual=4", false},
    {"snapkv:budget=50,window=8,decode=reobserve,slack=3"},
    {"cokv:budget=24,window=8,decode=reobserve,slack=3"},
    {"h2o:budget=24", false},
    {"tova:budget=24"},
    {"scissorhands:budget=24,recent=4,history=16", false},
    {"cam:budget=24,m_b=4", false},
    {"weightedkv:budget=24", false},
    {"weightedkv:budget=24,wkv_prefill=sequential", false},
    {"spindlekv:budget=24,window=8,tail=4", false},
};

class ChangedAt : public testing::TestWithParam<std::tuple<Method, OnFull>> {};

TEST_P(ChangedAt, IsKnownOnEveryPath) {
  const auto [method, on_full] = GetParam();
  const test::TempFolder folder;
  const auto model = test::OpenTwoLayers();
  SessionParams params;
  // The context ends in the middle of the paths, if it may.
  params.max_tokens = on_full == OnFull::kError ? 400 : 58, params.on_full = on_full;
  const auto session = test::FedSession(model, method.spec, 40, params);
  Session& s = *session;
  const bool keeps_all = std::string(method.spec).find("full") == 0;
  const int32_t budget = keeps_all ? 0 : 20, roomy = keeps_all ? 0 : 200;
  ExpectRoomyCompressionChangesNothing(s, roomy);
  for (uint32_t round = 0; round < 2; ++round) {
    for (const auto& [name, path] : kPaths) {
      // Twice: what one call leaves behind is no news to the next.
      for (uint32_t time = 0; time < 2; ++time) {
        SCOPED_TRACE(std::string(method.spec) + ", round " + std::to_string(round) + ", " + name);
        const Kept before = KeptOf(s);
        const Session::Figures then = s.figures();
        path(s, 100 * round + time);
        const Session::Figures now = s.figures();
        const bool left = AnyLeft(before, KeptOf(s), then.n_tokens, now.n_tokens);
        EXPECT_EQ(now.n_compactions > then.n_compactions, left);
        ExpectRoomyCompressionChangesNothing(s, roomy);
        ExpectRewinds(s, now.n_tokens - then.n_tokens, left, method.can_take_back, before);
        ExpectRestored(model, s, folder / "s");
        if (HasFailure()) return;
      }
    }
    const auto recompressed = ForkOf(s);
    ASSERT_TRUE(recompressed->Recompress(budget, nullptr).ok());
    ExpectRestored(model, *recompressed, folder / "s");
    FeedTokens(*recompressed, {5});
    ExpectRestored(model, *recompressed, folder / "s");
  }
}

std::string NameOf(const testing::TestParamInfo<ChangedAt::ParamType>& of) {
  constexpr const char* kOnFull[] = {"Error", "Evict", "Slide"};
  std::string name = std::get<0>(of.param).spec;
  name += kOnFull[static_cast<int>(std::get<1>(of.param))];
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }),
             name.end());
  return name;
}

INSTANTIATE_TEST_SUITE_P(Methods, ChangedAt,
                         testing::Combine(testing::ValuesIn(kMethods),
                                          testing::Values(OnFull::kError, OnFull::kEvict, OnFull::kSlide)),
                         NameOf);

}  // namespace
}  // namespace kvc

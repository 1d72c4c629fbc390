// Policies, models and sequences of calls drawn at random, and what must be equal however a session is used:
// with one thread or several, saved and restored between the calls, as a fork of a fork, with its prompts
// read by parts and its steps in a batch with others, or with drafts. Besides: slots add up to the budget,
// bytes stay within it, pages are those of what is kept, a rewind leaves no trace, and nothing is held when
// all is closed.
//
// KVC_RANDOM_FIRST and KVC_RANDOM_COUNT choose the seeds; each seed is a case of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tests/support/emulated.h"
#include "tests/support/environment.h"
#include "tests/support/random_sessions.h"
#include "tests/support/stored_vectors.h"
#include "tests/support/tiny_session.h"

namespace kvc::test {
namespace {

std::vector<int32_t> TokensOf(const Call& call) { return TinyPrompt(call.n, call.seed); }

// What a way does before a call. A forked replica goes on as its fork, and the shadow is what it was.
void Prepare(Replica& r, std::unique_ptr<Session>* shadow) {
  if (r.way == Way::kRestored) {
    const std::vector<uint8_t> bytes = SavedBytes(*r.session);
    auto restored = Session::RestoreFrom(r.model, {bytes.data(), bytes.size()});
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    const std::vector<uint8_t> again = SavedBytes(*restored.value());
    EXPECT_EQ(bytes, again) << "what was restored is saved as something else";
    r.session = std::move(restored.value());
  }
  if (r.way == Way::kForked) {
    auto fork = r.session->Fork();
    ASSERT_TRUE(fork.ok()) << fork.status().message();
    *shadow = std::move(r.session);
    r.session = std::move(fork.value());
  }
}

void PullText(Replica& r) {
  uint8_t text[64];
  for (int32_t n; (n = r.session->text().Pull(text, sizeof text)) > 0;)
    r.text.append(reinterpret_cast<const char*>(text), static_cast<size_t>(n));
}

class RandomSessions : public testing::TestWithParam<int> {};

// What most tests draw first. Each has an offset of its own to the seeds.
struct Drawn {
  Drawn(int seed, uint64_t offset)
      : d(static_cast<uint64_t>(seed) + offset),
        which(d.Below(kWorlds)),
        world(WorldOf(which)),
        policy(RandomPolicy(world.models[0]->config(), &d, &spec)) {}
  Draws d;
  const int which;
  World& world;
  std::string spec;  // of the policy
  Policy policy;
};

std::string Described(int which, const std::string& spec, const SessionParams& params) {
  return "model " + std::to_string(which) + " " + spec + " max_tokens " + std::to_string(params.max_tokens) +
         " on_full " + std::to_string(static_cast<int>(params.on_full));
}

// That keeps everything, stored as the policy stores it; what has no such storage, in f32.
std::unique_ptr<Session> FullSession(const std::shared_ptr<const Model>& model, const Policy& policy) {
  static const char* const kFull[] = {"full:kv=f32", "full:kv=f16", "full:kv=bf16"};
  const int32_t kv = policy.Int(OptionId::kKv);
  return NewSession(model, kFull[kv < 3 ? kv : 0]);
}

int64_t SlotsOf(const Seen& seen) {
  int64_t n = 0;
  for (const auto& kept : seen.kept) n += static_cast<int64_t>(kept.size());
  return n;
}

// Slots after a first prompt that was compressed at once.
void CheckSlots(const Policy& p, const ModelConfig& c, int n, const Seen& seen) {
  const int64_t expected = ExpectedSlots(p, c, n);
  if (expected < 0) return;
  EXPECT_EQ(SlotsOf(seen), expected) << "slots after the first prompt of " << n << " tokens";
}

// One session for each way; none where the policy is refused.
void MakeReplicas(const World& world, const Policy& policy, const Policy& others, const SessionParams& params,
                  std::vector<Replica>* replicas) {
  for (const Way way : kWays) {
    Replica r;
    r.way = way, r.model = world.models[way == Way::kOneThread ? 1 : 0];
    auto made = Session::Create(r.model, &policy, params);
    if (!made.ok()) {
      EXPECT_TRUE(made.status().code() == Code::kInvalid || made.status().code() == Code::kUnsupported)
          << made.status().message();
      replicas->clear();
      return;
    }
    r.session = std::move(made.value());
    if (way == Way::kBatch) {
      auto companion = Session::Create(r.model, &others, {});
      if (!companion.ok()) companion = Session::Create(r.model, nullptr, {});
      ASSERT_TRUE(companion.ok());
      r.companion = std::move(companion.value());
      const Status read = r.companion->Prefill(TinyPrompt(50, 3), true);
      if (read.code() == Code::kInvalid) {
        r.companion = std::move(Session::Create(r.model, nullptr, {}).value());
        ASSERT_TRUE(r.companion->Prefill(TinyPrompt(50, 3), true).ok());
      }
    }
    replicas->push_back(std::move(r));
  }
}

struct Done {
  std::vector<Outcome> outcomes;
  std::vector<Seen> seen;
};

// Each replica in its way.
void DoEach(const Call& call, std::vector<Replica>* replicas, Done* done) {
  for (Replica& r : *replicas) {
    std::unique_ptr<Session> shadow;
    Prepare(r, &shadow);
    if (testing::Test::HasFatalFailure()) return;
    Seen before;
    if (shadow != nullptr) before = Look(*shadow);
    done->outcomes.push_back(Do(r, call, TokensOf(call)));
    if (shadow != nullptr) {
      const std::string changed = Difference(before, Look(*shadow));
      EXPECT_EQ(changed, "") << "a fork changed what it came from";
      shadow.reset();
    }
    PullText(r);
    done->seen.push_back(Look(*r.session));
    const SessionStats stats = r.session->Stats();
    EXPECT_LE(stats.cache_bytes, stats.cache_bytes_peak);
  }
}

void CheckAlike(const std::vector<Replica>& replicas, const Done& done) {
  const Outcome& out = done.outcomes[0];
  for (size_t k = 1; k < replicas.size(); ++k) {
    SCOPED_TRACE(NameOf(replicas[k].way));
    ASSERT_EQ(static_cast<int>(done.outcomes[k].code), static_cast<int>(out.code))
        << out.message << " and " << done.outcomes[k].message;
    ASSERT_EQ(done.outcomes[k].tokens, out.tokens);
    const std::string difference = Difference(done.seen[0], done.seen[k]);
    ASSERT_EQ(difference, "");
    ASSERT_EQ(replicas[k].text, replicas[0].text);
  }
  ASSERT_NE(static_cast<int>(out.code), static_cast<int>(Code::kInternal)) << out.message;
  ASSERT_NE(static_cast<int>(out.code), static_cast<int>(Code::kMemory)) << out.message;
}

void CheckOneSet(const Policy& policy, const ModelConfig& c, const Seen& seen) {
  if (policy.keeps_all() || policy.scorer->one_set == nullptr || !policy.scorer->one_set(policy)) return;
  for (size_t h = 0; h < seen.kept.size(); ++h) {
    EXPECT_EQ(seen.kept[h], seen.kept[h - h % static_cast<size_t>(c.n_kv_heads)])
        << "one set for all heads, head " << h;
  }
}

// After a reduction bytes are within the budget (but behind `once`), and pages are those of what is kept.
void CheckBytes(const World& world, const Policy& policy, bool behind_once,
                const std::vector<Replica>& replicas) {
  const Replica& plain = replicas[0];
  const int64_t cache_bytes = plain.session->Stats().cache_bytes;
  if (policy.budget_kind == BudgetKind::kBytes && !behind_once) {
    EXPECT_LE(static_cast<double>(cache_bytes), policy.budget);
  }
  if (world.windows) return;
  const std::vector<uint8_t> bytes = SavedBytes(*plain.session);
  auto restored = Session::RestoreFrom(plain.model, {bytes.data(), bytes.size()});
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  // The page of a ring is saved where something is in it.
  if (!policy.quantises() && (policy.keeps_all() || !policy.reducer->codebook)) {
    EXPECT_EQ(restored.value()->Stats().cache_bytes, cache_bytes) << "pages beyond those of what is kept";
  }
  for (const Replica& r : replicas) {
    if (r.way == Way::kRestored && policy.quantises()) continue;
    EXPECT_EQ(r.session->Stats().cache_bytes, cache_bytes) << NameOf(r.way);
  }
}

TEST_P(RandomSessions, AreAlikeHoweverTheyAreUsed) {
  Draws d(static_cast<uint64_t>(GetParam()));
  const int which = d.Below(kWorlds);
  World& world = WorldOf(which);
  const ModelConfig& c = world.models[0]->config();
  std::string spec, other_spec;
  const Policy policy = RandomPolicy(c, &d, &spec), others = RandomPolicy(c, &d, &other_spec);
  SessionParams params;
  const int32_t contexts[] = {70, 150, 400, 2000, 4000};
  params.max_tokens = d.Of(contexts);
  params.on_full = static_cast<OnFull>(d.OneIn(2) ? 0 : d.Below(3));
  SCOPED_TRACE(Described(which, spec, params));
  std::vector<Replica> replicas;
  MakeReplicas(world, policy, others, params, &replicas);
  if (HasFatalFailure() || replicas.empty()) return;
  std::string story;
  bool first_prompt = true, trimmed = false;
  for (int i = d.Between(3, 12); i > 0 && !HasFailure(); --i) {
    const Call call = RandomCall(&d, replicas[0].session->figures().n_tokens == 0);
    story += " " + TextOf(call);
    SCOPED_TRACE("calls:" + story);
    Done done;
    const bool behind_once = policy.compresses_once() && replicas[0].session->figures().n_compactions > 0;
    DoEach(call, &replicas, &done);
    if (HasFatalFailure()) return;
    CheckAlike(replicas, done);
    if (HasFatalFailure()) return;
    if (done.outcomes[0].code != Code::kOk) {
      story += "!";
      continue;
    }
    CheckOneSet(policy, c, done.seen[0]);
    if (call.op == Op::kReset) first_prompt = true;
    if (call.op == Op::kTrim) trimmed = true;
    if (call.op == Op::kPrefill && first_prompt && !trimmed && call.n <= params.max_tokens &&
        !(policy.Flag(OptionId::kChunkCompress) && call.n > 1024)) {
      CheckSlots(policy, c, call.n, done.seen[0]);
    }
    if (call.op == Op::kPrefill || call.op == Op::kAppend) first_prompt = false;
    // What keeps everything has nothing to reduce: of a full session the page stays that the next step needs.
    const bool reduces = call.op == Op::kPrefill ||
                         ((call.op == Op::kCompress || call.op == Op::kTrim) && !policy.keeps_all());
    if (reduces) CheckBytes(world, policy, behind_once, replicas);
    if (HasFatalFailure()) return;
  }
  replicas.clear();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(world.models[i]->meter()->used(), world.used[i]) << "bytes held";
}

// What was taken back leaves no trace, where it can be taken back.
TEST_P(RandomSessions, RewindsLeaveNoTrace) {
  Drawn drawn(GetParam(), 1000003);
  auto& [d, which, world, spec, policy] = drawn;
  SessionParams params;
  const int32_t contexts[] = {200, 700, 4000};
  params.max_tokens = d.Of(contexts);
  params.on_full = static_cast<OnFull>(d.OneIn(2) ? 0 : d.Below(3));
  auto made = Session::Create(world.models[0], &policy, params);
  if (!made.ok()) return;
  Session& s = *made.value();
  const int n = d.Between(1, 180);
  SCOPED_TRACE("model " + std::to_string(which) + " " + spec + " prompt " + std::to_string(n));
  const Status read = s.Prefill(TinyPrompt(n), !d.OneIn(4));
  if (read.code() == Code::kInvalid) return;  // a share of a short prompt may be too little
  ASSERT_TRUE(read.ok()) << read.message();
  for (int i = 0; i < 4; ++i) {
    auto reference = s.Fork();
    ASSERT_TRUE(reference.ok());
    Session& ref = *reference.value();
    if (!s.FeedPending().ok() || !ref.FeedPending().ok()) return;
    const int more = d.Between(1, 32), tokens = s.figures().n_tokens;
    const bool steps = d.OneIn(3), compresses = d.OneIn(2);
    if (tokens + more > params.max_tokens) return;
    if (s.makes_room()) return;
    if (steps) {
      FeedTokens(s, TinyPrompt(more, 11));
    } else {
      const Status also = s.Prefill(TinyPrompt(more, 11), compresses);
      if (also.code() == Code::kInvalid) return;
      ASSERT_TRUE(also.ok()) << also.message();
    }
    const Status back = s.Rewind(more);
    if (!back.ok()) {
      ASSERT_EQ(static_cast<int>(back.code()), static_cast<int>(Code::kUnsupported)) << back.message();
      return;
    }
    const int again = d.Between(1, 50);
    const bool compress = d.OneIn(3);
    const Status a = s.Prefill(TinyPrompt(again, 5), compress),
                 b = ref.Prefill(TinyPrompt(again, 5), compress);
    ASSERT_EQ(static_cast<int>(a.code()), static_cast<int>(b.code())) << a.message() << b.message();
    if (!a.ok()) return;
    Seen of_s = Look(s), of_ref = Look(ref);
    of_s.n_prompt = of_ref.n_prompt;  // counts what was ever read
    const std::string difference = Difference(of_s, of_ref, world.windows);
    ASSERT_EQ(difference, "") << "after " << more
                              << (steps        ? " steps"
                                  : compresses ? " read"
                                               : " appended")
                              << " taken back and " << again << (compress ? " read" : " appended");
    // Queries of tokens that were taken back do not come again, and the next reduction looks with fewer.
    if (d.OneIn(2) && !world.windows && policy.decode != DecodeMode::kReobserve) {
      for (int k = 0; k < 5; ++k) {
        int32_t x = -2, y = -2;
        const Status p = s.Step(&x), q = ref.Step(&y);
        ASSERT_EQ(static_cast<int>(p.code()), static_cast<int>(q.code())) << p.message() << q.message();
        ASSERT_EQ(x, y);
        if (!p.ok()) return;
      }
    }
  }
}

// One pass of the network for several sessions leaves each as its own would have.
TEST_P(RandomSessions, PromptsReadTogetherAreAsAlone) {
  Draws d(static_cast<uint64_t>(GetParam()) + 2000003);
  const int which = d.Below(kWorlds);
  World& world = WorldOf(which);
  const int n = d.OneIn(5) ? d.Between(1000, 1200) : d.Between(1, 300);
  std::vector<std::unique_ptr<Session>> together, alone;
  std::string story = "model " + std::to_string(which) + " prompt " + std::to_string(n);
  for (int i = d.Between(2, 4); i > 0; --i) {
    std::string spec;
    const Policy policy = RandomPolicy(world.models[0]->config(), &d, &spec);
    SessionParams params;
    params.max_tokens = d.OneIn(2) ? 4000 : std::max(n, 60);
    params.on_full = static_cast<OnFull>(d.Below(3));
    auto a = Session::Create(world.models[0], &policy, params),
         b = Session::Create(world.models[0], &policy, params);
    if (!a.ok()) continue;
    story += "; " + spec;
    together.push_back(std::move(a.value())), alone.push_back(std::move(b.value()));
  }
  SCOPED_TRACE(story);
  if (together.empty()) return;
  std::vector<Session*> sessions;
  for (auto& s : together) sessions.push_back(s.get());
  const Status read = Session::PrefillTogether(sessions, TinyPrompt(n));
  if (read.code() == Code::kInvalid) return;
  ASSERT_TRUE(read.ok()) << read.message();
  for (size_t i = 0; i < together.size(); ++i) {
    SCOPED_TRACE("session " + std::to_string(i));
    ASSERT_TRUE(alone[i]->Prefill(TinyPrompt(n), true).ok());
    ASSERT_EQ(Difference(Look(*together[i]), Look(*alone[i])), "");
    EXPECT_EQ(together[i]->Stats().cache_bytes, alone[i]->Stats().cache_bytes);
    for (int k = 0; k < 2; ++k) {
      int32_t x = -2, y = -2;
      const Status a = together[i]->Step(&x), b = alone[i]->Step(&y);
      ASSERT_EQ(static_cast<int>(a.code()), static_cast<int>(b.code())) << a.message() << b.message();
      ASSERT_EQ(x, y);
    }
    const Status a = together[i]->Prefill(TinyPrompt(20, 4), true),
                 b = alone[i]->Prefill(TinyPrompt(20, 4), true);
    ASSERT_EQ(static_cast<int>(a.code()), static_cast<int>(b.code())) << a.message() << b.message();
    ASSERT_EQ(Difference(Look(*together[i]), Look(*alone[i])), "");
  }
  // In one batch they answer as alone.
  for (int k = 0; k < 6; ++k) {
    std::vector<StepWish> rows(together.size());
    for (size_t i = 0; i < rows.size(); ++i) rows[i].session = together[i].get(), rows[i].chooses = true;
    Session::RunBatch({rows.data(), rows.size()}, 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      int32_t y = -1;
      const Status b = alone[i]->Step(&y);
      ASSERT_EQ(static_cast<int>(rows[i].status.code()), static_cast<int>(b.code())) << b.message();
      if (b.ok()) {
        ASSERT_EQ(rows[i].token, y) << "session " << i;
      }
    }
  }
  for (size_t i = 0; i < together.size(); ++i)
    ASSERT_EQ(Difference(Look(*together[i]), Look(*alone[i])), "") << i;
  together.clear(), alone.clear();
  EXPECT_EQ(world.models[0]->meter()->used(), world.used[0]) << "bytes held";
}

// A prompt in parts that is then compressed leaves what one prompt leaves, where entries are not rounded
// between and no scorer reads each part for itself.
TEST_P(RandomSessions, PartsThenCompressAreOnePrompt) {
  Drawn drawn(GetParam(), 3000003);
  auto& [d, which, world, spec, policy] = drawn;
  if (policy.keeps_all() || policy.Int(OptionId::kKv) != 0 || policy.reducer->codebook ||
      policy.reducer->kind != MergeKind::kNone || policy.scorer->reading != nullptr ||
      policy.decode == DecodeMode::kStep || policy.Flag(OptionId::kChunkCompress) ||
      std::string(policy.scorer->name) == "proxy_random" ||
      std::string(policy.scorer->name) == "window_accum" ||
      std::string(policy.scorer->name) == "window_sg_value")
    return;
  const int n = d.Between(30, 300), first = d.Between(1, n - 1);
  SCOPED_TRACE("model " + std::to_string(which) + " " + spec + " prompt " + std::to_string(n) + " first " +
               std::to_string(first));
  auto whole = Session::Create(world.models[0], &policy, {}),
       parts = Session::Create(world.models[0], &policy, {});
  if (!whole.ok()) return;
  const std::vector<int32_t> ids = TinyPrompt(n);
  ASSERT_TRUE(whole.value()->Prefill(ids, true).ok());
  ASSERT_TRUE(parts.value()->Prefill({ids.data(), static_cast<size_t>(first)}, false).ok());
  ASSERT_TRUE(parts.value()->Prefill({ids.data() + first, static_cast<size_t>(n - first)}, false).ok());
  const Status status = parts.value()->Recompress(0, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const Seen a = Look(*whole.value()), b = Look(*parts.value());
  ASSERT_EQ(a.problem + b.problem, "");
  int different = 0;
  for (size_t i = 0; i < a.kept.size(); ++i) different += a.kept[i] != b.kept[i];
  EXPECT_EQ(different, 0) << "heads of " << a.kept.size() << " that kept something else";
}

// The session answers a token as a full one that got the tokens of its entries. Where those are codes they
// are looked at one by one, and the answer where both hold the same: what an answer loses to codes is no
// number that is known.
void CheckAnswer(Session& s, const std::shared_ptr<const Model>& model, const Policy& policy,
                 const SessionParams& params, const std::vector<int32_t>& history, int32_t token) {
  std::vector<int32_t> kept, held;
  ASSERT_TRUE(s.Kept(0, 0, &kept).ok());
  for (const int32_t position : kept) held.push_back(history[static_cast<size_t>(position)]);
  if (policy.quantises() && model->device().info().batch_invariant) {
    static std::map<const Model*, TokenVectors> vectors;
    if (vectors.count(model.get()) == 0) vectors.emplace(model.get(), VectorsOfTokens(model));
    ASSERT_EQ(CheckStored(s, policy, vectors.at(model.get()), held), "");
  }
  const std::string storage = policy.quantises() ? SameStorage(policy) : "";
  auto full = storage.empty() ? FullSession(model, policy) : NewSession(model, storage);
  ASSERT_TRUE(full->Prefill(held, true).ok());
  if (policy.quantises() && !SameEntries(s, *full)) return;
  auto fork = s.Fork();
  ASSERT_TRUE(fork.ok());
  if (s.figures().n_tokens >= params.max_tokens && !s.makes_room() && params.on_full == OnFull::kError)
    return;
  Session *one = fork.value().get(), *two = full.get();
  const Status fed = Session::FeedBatch({&one, 1}, &token);
  ASSERT_TRUE(fed.ok()) << fed.message();
  ASSERT_TRUE(Session::FeedBatch({&two, 1}, &token).ok());
  std::vector<float> a(static_cast<size_t>(model->config().vocab_size)), b(a);
  ASSERT_TRUE(one->ReadLogits(a.data()).ok() && two->ReadLogits(b.data()).ok());
  float largest = 0;
  for (size_t k = 0; k < a.size(); ++k) largest = std::max(largest, std::fabs(a[k] - b[k]));
  ASSERT_LT(largest, NearOf(policy)) << kept.size() << " entries of " << history.size();
}

// In a layer by itself an entry is its token's, whatever was attended before. So a session answers as a full
// one that got the tokens it holds and no others: where there are no positions, and where they are counted in
// slots.
TEST_P(RandomSessions, HoldTheEntriesOfTheirTokens) {
  Draws d(static_cast<uint64_t>(GetParam()) + 5000003);
  const int which = d.OneIn(2) ? kWithoutRope : kOneHead;
  World& world = WorldOf(which);
  const auto model = world.models[0];
  std::string spec;
  const Policy policy = RandomPolicy(model->config(), &d, &spec);
  if (policy.method->reads_pages) return;
  if (!policy.keeps_all() && (policy.reducer->codebook || policy.reducer->kind != MergeKind::kNone)) return;
  SessionParams params;
  const int32_t contexts[] = {60, 150, 700, 2000};
  params.max_tokens = d.Of(contexts);
  params.on_full = static_cast<OnFull>(d.Below(3));
  const bool in_cache = !policy.keeps_all() && policy.positions == PositionMode::kInCache;
  auto made = Session::Create(model, &policy, params);
  if (!made.ok()) return;
  std::unique_ptr<Session> s = std::move(made.value());
  SCOPED_TRACE(Described(which, spec, params));
  std::vector<int32_t> history;
  std::string story;
  for (int i = d.Between(3, 12); i > 0; --i) {
    const Call call = RandomCall(&d, history.empty());
    story += " " + TextOf(call);
    SCOPED_TRACE("calls:" + story);
    Replica r;
    r.way = d.OneIn(2) ? Way::kPlain : Way::kRestored, r.model = model, r.session = std::move(s);
    std::unique_ptr<Session> shadow;
    Prepare(r, &shadow);
    const Outcome out = Do(r, call, TokensOf(call));
    s = std::move(r.session);
    if (out.code != Code::kOk) story += "!";
    if (call.op == Op::kReset) history.clear();
    if (out.code == Code::kOk &&
        (call.op == Op::kPrefill || call.op == Op::kAppend || call.op == Op::kFeed)) {
      const std::vector<int32_t> more = TokensOf(call);
      history.insert(history.end(), more.begin(), more.end());
    }
    if (call.op == Op::kFeed && out.code != Code::kOk) return;  // some of them were fed
    history.insert(history.end(), out.tokens.begin(), out.tokens.end());
    if (out.code == Code::kOk && call.op == Op::kAccept) history.push_back(call.argument % 259);
    if (out.code == Code::kOk && call.op == Op::kRewind)
      history.resize(history.size() - static_cast<size_t>(call.n));
    if (history.empty() || !s->FeedPending().ok() || !s->CanGoOn("step").ok()) continue;
    ASSERT_EQ(s->figures().n_tokens, static_cast<int32_t>(history.size()));
    if (which == kOneHead && !in_cache && !(s->makes_room() && params.on_full == OnFull::kSlide)) continue;
    CheckAnswer(*s, model, policy, params, history, call.argument % 256);
    if (HasFatalFailure()) return;
  }
}

// A budget that holds everything drops nothing, and answers as the full cache.
TEST_P(RandomSessions, DropNothingWithinTheBudget) {
  Drawn drawn(GetParam(), 6000003);
  auto& [d, which, world, spec, policy] = drawn;
  // At steps every head goes to its own budget, however much the others leave.
  if (policy.keeps_all() || policy.reducer->codebook || policy.Int(OptionId::kKv) > 2 ||
      !policy.table.empty() || policy.decode != DecodeMode::kGrow)
    return;
  policy.budget_kind = BudgetKind::kSlots, policy.budget = 3000;
  if (!ValidatePolicy(policy).ok()) return;
  auto made = Session::Create(world.models[0], &policy, {});
  if (!made.ok()) return;
  Session& s = *made.value();
  auto full = FullSession(world.models[0], policy);
  std::string story = "model " + std::to_string(which) + " " + spec;
  int total = 0;
  for (int i = d.Between(2, 8); i > 0; --i) {
    const Call call = RandomCall(&d, total == 0);
    if (call.op != Op::kPrefill && call.op != Op::kAppend && call.op != Op::kFeed && call.op != Op::kCompress)
      continue;
    total += call.n;
    if (total > 2900) break;
    story += " " + TextOf(call);
    SCOPED_TRACE(story);
    if (call.op == Op::kCompress) {
      const Status status = s.Recompress(0, nullptr);
      ASSERT_TRUE(status.ok() || status.code() == Code::kUnsupported) << status.message();
    } else if (call.op == Op::kFeed) {
      FeedTokens(s, TokensOf(call)), FeedTokens(*full, TokensOf(call));
    } else {
      ASSERT_TRUE(s.Prefill(TokensOf(call), call.op == Op::kPrefill).ok());
      ASSERT_TRUE(full->Prefill(TokensOf(call), true).ok());
    }
    const Seen a = Look(s), b = Look(*full);
    ASSERT_EQ(a.problem + b.problem, "");
    for (const auto& kept : a.kept) ASSERT_EQ(static_cast<int>(kept.size()), total);
    static const float kNear[] = {1e-3f, 1e-2f, 6e-2f};  // f32, f16, bf16
    const float near = kNear[policy.Int(OptionId::kKv)];
    for (size_t k = 0; k < a.logits.size(); ++k) ASSERT_NEAR(a.logits[k], b.logits[k], near);
  }
}

// The plan is what is taken, or a little more: with exactly so much memory everything can be done.
TEST_P(RandomSessions, PlansHold) {
  Drawn drawn(GetParam(), 4000003);
  auto& [d, which, world, spec, policy] = drawn;
  if (policy.Flag(OptionId::kChunkCompress)) return;
  SessionParams params;
  const int n = d.OneIn(4) ? d.Between(300, 1500) : d.Between(1, 300);
  params.max_tokens = n + d.Between(0, 150);
  SCOPED_TRACE("model " + std::to_string(which) + " " + spec + " prompt " + std::to_string(n) +
               " max_tokens " + std::to_string(params.max_tokens));
  const Result<SessionPlan> planned = Session::Plan(world.models[0], &policy, params, n);
  ModelParams no_weights;
  no_weights.threads = 2, no_weights.plan_only = true;
  const Result<SessionPlan> alone = Session::Plan(OpenTiny(world.bytes, no_weights), &policy, params, n);
  ASSERT_EQ(planned.status().message(), alone.status().message());
  if (planned.ok()) {
    EXPECT_EQ(NumbersOf(planned.value()), NumbersOf(alone.value()));
  }
  auto probe = Session::Create(world.models[0], &policy, params);
  if (!planned.ok() || !probe.ok()) {
    const Status refused = probe.ok() ? probe.value()->Prefill(TinyPrompt(n), true) : probe.status();
    ASSERT_EQ(static_cast<int>(planned.status().code()), static_cast<int>(refused.code()))
        << planned.status().message() << refused.message();
    return;
  }
  const SessionPlan& plan = planned.value();
  Session& s = *probe.value();
  const Status read = s.Prefill(TinyPrompt(n), true);
  if (read.code() == Code::kInvalid) return;
  ASSERT_TRUE(read.ok()) << read.message();
  const SessionStats fed = s.Stats();
  const double tolerance = !policy.keeps_all() && policy.allocator->dynamic ? 0.2 : 0.0;
  // Between layers any head may get any slots, and by steps none gets more.
  const bool upper =
      !policy.keeps_all() && (policy.reducer->codebook || std::string(policy.scorer->name) == "persistence" ||
                              (policy.allocator->across_layers && policy.reads_by_steps()));
  // By steps pages are there before it is known which are given back.
  const double least = tolerance > 0 || policy.reads_by_steps() ? 0.5 : 1;
  const auto near = [&](int64_t real, int64_t expected, double share, const char* what) {
    EXPECT_LE(static_cast<double>(real), static_cast<double>(expected) * (1 + tolerance))
        << what << " " << real << " planned " << expected;
    EXPECT_GE(static_cast<double>(real), upper ? 0.0 : static_cast<double>(expected) * share)
        << what << " " << real << " planned " << expected;
  };
  near(fed.cache_bytes, plan.cache_bytes_prompt, least, "after the prompt");
  near(fed.cache_bytes_peak, plan.cache_bytes_peak, least, "at the most");
  if (!upper && !world.windows) {
    const int64_t slots = std::accumulate(plan.slots.begin(), plan.slots.end(), int64_t{0});
    const bool filled = UsesBytesUp(policy);
    EXPECT_GE(fed.n_slots, slots);
    EXPECT_LE(fed.n_slots, filled ? INT64_MAX : slots);
    EXPECT_LE(fed.cache_bytes, filled ? static_cast<int64_t>(policy.budget) : INT64_MAX);
  }
  FeedTokens(s, TinyPrompt(params.max_tokens - n, 3));
  near(s.Stats().cache_bytes, plan.cache_bytes_end, 0.5, "at the end");
  if (upper) return;
  const double unknown = static_cast<double>(plan.cache_bytes_peak) * tolerance;
  const Status fits =
      RunWithin(plan.total_bytes_peak + static_cast<int64_t>(unknown), world.bytes, policy, params, n);
  EXPECT_TRUE(fits.ok()) << fits.message();
}

const int kFirst = test::NumberVariable("KVC_RANDOM_FIRST", 1);
const int kCount = test::NumberVariable("KVC_RANDOM_COUNT", 40 / EveryNth(4));
INSTANTIATE_TEST_SUITE_P(Seeds, RandomSessions, testing::Range(kFirst, kFirst + kCount));

}  // namespace
}  // namespace kvc::test

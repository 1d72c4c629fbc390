#include "tests/support/random_sessions.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvc::test {

// Seeds that are neighbours begin far apart in the one sequence that all are pieces of.
Draws::Draws(uint64_t seed) : bits_(SplitMix64(seed).Bits()) {}

uint32_t Draws::Next() { return static_cast<uint32_t>(bits_.Bits() >> 32); }

int Draws::Below(int n) { return static_cast<int>(Next() % static_cast<uint32_t>(n)); }

int Draws::Between(int low, int high) { return low + Below(high - low + 1); }

bool Draws::OneIn(int n) { return Below(n) == 0; }

// ---- models ----

namespace {

World MakeWorld(int which) {
  TinyModelOptions o;
  World w;
  switch (which) {
    case 0:
      break;
    case 1:
      o.n_layers = 3, o.n_heads = 6, o.n_kv_heads = 3, o.hidden_size = 48;
      break;
    case 2:
      o.n_layers = 2, o.n_heads = 6, o.n_kv_heads = 2, o.head_dim = 8, o.hidden_size = 24;
      o.rope_pairing = RopePairing::kInterleaved;
      break;
    case 3:
      o.n_layers = 3, o.layers = {{10, 0}, {0, 0}, {24, 0}};
      w.windows = true;
      break;
    case 4:
      o.n_layers = 1, o.n_heads = 4, o.n_kv_heads = 1;
      o.change = [](ModelConfig* c) { c->attention_sinks = true; };
      break;
    case kWithoutRope:
      o.n_layers = 1, o.n_heads = 4, o.n_kv_heads = 1, o.layers = {{0, -1}};
      break;
    case kOneHead:
      o.n_layers = 1, o.n_heads = 3, o.n_kv_heads = 1;
      break;
    default:
      o.n_layers = 4, o.layers = {{0, 0}, {40, 0}, {0, 0}, {40, 0}};
      w.windows = true;
  }
  w.bytes = TinyModelBytes(o);
  return w;
}

std::shared_ptr<const Model> Open(const AlignedBytes& bytes, int n_threads) {
  ModelParams params;
  params.threads = n_threads;
  auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
  if (!model.ok()) {
    std::fprintf(stderr, "test support: %s\n", model.status().message().c_str());
    std::abort();
  }
  return model.value();
}

bool HasWindow(const ModelConfig& c, int layer) {
  return !c.layers.empty() && c.layers[static_cast<size_t>(layer)].attention_window > 0;
}

}  // namespace

World& WorldOf(int which) {
  static World worlds[kAllWorlds];
  World& w = worlds[which];
  if (w.models[0] == nullptr) {
    w = MakeWorld(which);
    for (int i = 0; i < 2; ++i) {
      w.models[i] = Open(w.bytes, 2 - i);
      w.used[i] = w.models[i]->meter()->used();
    }
  }
  return w;
}

// ---- policies ----

namespace {

const char* const kStorage[] = {"",
                                "",
                                "kv=f32",
                                "kv=f32",
                                "kv=bf16",
                                "kv=int8,quant_group=8,residual=4",
                                "kv=int8,quant_group=8,residual=0",
                                "kv=int4,quant_group=8",
                                "kv=int8,kv_values=int4,quant_group=8,residual=4",
                                "kv=int4,kv_values=int2,quant_group=8,residual=0",
                                "kv=int8,quant_group=8,key_axis=channel",
                                "kv=int4,quant_group=8,residual=4,key_axis=channel",
                                "kv=mixed,quant_group=8,residual=4",
                                "kv=mixed,quant_group=8,bits_levels=16:0.2+8:0.3+4:0.5"};
const char* const kParts[] = {"pos_mode=incache",
                              "decode=step",
                              "decode=grow",
                              "decode=reobserve,slack=3",
                              "decode=reobserve,slack=0",
                              "compress_per_chunk=1",
                              "allocator=ada",
                              "allocator=ada+pyramid",
                              "allocator=pyramid",
                              "allocator=cokv",
                              "allocator=global",
                              "allocator=headkv",
                              "allocator=duo",
                              "allocator=spindle_ratio",
                              "scorer=h2o",
                              "scorer=h2o_count",
                              "scorer=window_accum",
                              "scorer=reconstruct",
                              "scorer=window",
                              "scorer=avg_accum",
                              "scorer=last_row",
                              "scorer=position",
                              "scorer=window_sg_value",
                              "reducer=cam",
                              "reducer=weighted",
                              "reducer=rest",
                              "reread=own",
                              "reread_part=256"};

std::string RandomOption(const Policy& policy, Draws* d) {
  const std::vector<OptionId> used = OptionsOf(policy);
  if (used.empty()) return "";
  const Option& o = GetOption(used[static_cast<size_t>(d->Below(static_cast<int>(used.size())))]);
  if (o.kind == OptionKind::kLevels || o.id == OptionId::kKv) return "";
  if (o.id == OptionId::kSpindleMaxBytes)
    return std::string(",") + o.key + "=" + std::to_string(d->Between(500, 40000));
  const double most = std::min(o.max, o.min + (d->OneIn(2) ? 12 : 200));
  double chosen = d->OneIn(4) ? o.min : d->OneIn(8) ? o.max : o.min + (most - o.min) * d->Below(1001) / 1000;
  if (o.kind != OptionKind::kReal) chosen = std::floor(chosen);
  return std::string(",") + o.key + "=" + ValueText(o, chosen);
}

std::string RandomBudget(const ModelConfig& c, Draws* d) {
  switch (d->Below(6)) {
    case 0:
      return "budget_ratio=" + std::to_string(d->Between(5, 100) / 100.0);
    case 1: {
      const int64_t entry = 4 * c.head_dim, heads = c.n_layers * c.n_kv_heads;
      return "budget_bytes=" + std::to_string(entry * heads * d->Between(8, 400));
    }
    case 2:
      return "budget=" + std::to_string(d->Between(128, 300));
    default:
      return "budget=" + std::to_string(d->Between(6, 90));
  }
}

// Adds to the text what the policy can have besides.
void TryWith(const std::string& more, Policy* policy, std::string* text) {
  if (more.empty()) return;
  Result<Policy> with = ParsePolicy((*text + more).c_str());
  if (with.ok()) *policy = std::move(with.value()), *text += more;
}

// Of the method's own storage, which is all it has.
void TryStorage(const std::string& name, const char* storage, Policy* policy, std::string* text) {
  const std::string other = name + ":" + storage;
  Result<Policy> with = ParsePolicy(other.c_str());
  if (with.ok()) *policy = std::move(with.value()), *text = other;
}

}  // namespace

Policy RandomPolicy(const ModelConfig& c, Draws* d, std::string* text) {
  for (;;) {
    const std::string name = GetMethod(d->Below(MethodCount()))->name;
    const bool budget =
        name != "full" && name != "quest" && name != "table" && (name != "cokv-mixed" || d->OneIn(2));
    std::string spec = name + ":" + (budget ? RandomBudget(c, d) : "kv=f16");
    Result<Policy> policy = ParsePolicy(spec.c_str());
    for (const char* more : {",window=4", ",recent=4", ",window=8", ",recent=2"}) {
      if (!policy.ok() || d->OneIn(3)) {
        Result<Policy> with = ParsePolicy((spec + more).c_str());
        if (with.ok()) policy = std::move(with), spec += more;
      }
    }
    if (!policy.ok()) continue;
    Policy p = std::move(policy.value());
    const char* storage = d->Of(kStorage);
    if (*storage != 0) {
      if (budget || name == "table")
        TryWith(std::string(",") + storage, &p, &spec);
      else
        TryStorage(name, storage, &p, &spec);
    }
    for (int i = d->Below(4); i > 0; --i) TryWith(std::string(",") + d->Of(kParts), &p, &spec);
    for (int i = d->Below(4); i > 0; --i) TryWith(RandomOption(p, d), &p, &spec);
    if ((p.allocator != nullptr && (p.allocator->needs & kNeedsTable) != 0) || name == "table") {
      for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) p.table.push_back(d->Between(8, 70));
    }
    *text = spec;
    return p;
  }
}

namespace {

// Whether the budget says exactly how many slots there are.
bool HasExactSlots(const Policy& p) {
  if (p.keeps_all() || p.budget_kind == BudgetKind::kBytes) return false;
  if (p.reducer->codebook || p.scorer->per_query_head) return false;
  if (p.scorer->select != nullptr && std::string(p.scorer->name) == "persistence") return false;
  for (const OptionId id : OptionsOf(p)) {
    if ((id == OptionId::kPyramidRounding || id == OptionId::kCokvRounding ||
         id == OptionId::kHeadkvRounding || id == OptionId::kSpindleRounding) &&
        p.Int(id) == 1)
      return false;
    if (id == OptionId::kRedistribute && !p.Flag(id)) return false;
  }
  return true;
}

}  // namespace

int64_t ExpectedSlots(const Policy& p, const ModelConfig& c, int n) {
  if (!HasExactSlots(p)) return -1;
  int sharing = 0;
  for (int layer = 0; layer < c.n_layers; ++layer) sharing += HasWindow(c, layer) ? 0 : 1;
  const int64_t heads = int64_t{sharing} * c.n_kv_heads;
  int64_t expected = 0;
  if (!p.table.empty()) {
    for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
      if (!HasWindow(c, i / c.n_kv_heads)) expected += std::min(p.table[static_cast<size_t>(i)], n);
    }
  } else {
    double budget = p.budget;
    if (p.budget_kind == BudgetKind::kRatio) {
      budget = std::max(1.0, std::floor(p.budget * n * (1 + 1e-12)));
      for (double before = 0; before != budget;) {
        const Protected part = p.scorer->protect(p, static_cast<int32_t>(budget));
        before = budget, budget = std::max(budget, static_cast<double>(part.n_sink + part.n_recent + 1));
      }
    }
    expected = heads * std::min<int64_t>(static_cast<int64_t>(budget), n);
  }
  return expected;
}

// ---- what can be seen ----

namespace {

std::vector<float> Logits(Session& s) {
  std::vector<float> logits;
  if (!s.HasLogits().ok()) return logits;
  logits.resize(static_cast<size_t>(s.model().config().vocab_size));
  auto fork = s.Fork();
  if (!fork.ok() || !fork.value()->ReadLogits(logits.data()).ok()) logits.clear();
  return logits;
}

}  // namespace

Seen Look(Session& s) {
  Seen seen;
  const ModelConfig& c = s.model().config();
  const SessionStats stats = s.Stats();
  seen.n_tokens = s.figures().n_tokens, seen.n_answer = stats.n_answer, seen.n_prompt = stats.n_prompt;
  seen.stop_token = stats.stop_token;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    for (int g = 0; g < c.n_kv_heads; ++g) {
      std::vector<int32_t> kept;
      const Status status = s.Kept(layer, g, &kept);
      if (!status.ok()) seen.problem = status.message();
      if (!HasWindow(c, layer)) seen.kept.push_back(kept);
    }
  }
  seen.logits = Logits(s);
  return seen;
}

std::string Difference(const Seen& a, const Seen& b, bool near) {
  if (!a.problem.empty() || !b.problem.empty()) return a.problem + b.problem;
  if (a.n_tokens != b.n_tokens)
    return "tokens " + std::to_string(a.n_tokens) + " " + std::to_string(b.n_tokens);
  if (a.n_answer != b.n_answer) return "n_answer";
  if (a.n_prompt != b.n_prompt) return "n_prompt";
  if (a.stop_token != b.stop_token) return "stop token";
  for (size_t i = 0; i < a.kept.size(); ++i) {
    if (a.kept[i] != b.kept[i])
      return "kept of head " + std::to_string(i) + ": " + std::to_string(a.kept[i].size()) + " and " +
             std::to_string(b.kept[i].size()) + " entries";
  }
  if (a.logits.size() != b.logits.size()) return "whether there are logits";
  for (size_t i = 0; i < a.logits.size(); ++i) {
    if (near ? !(std::fabs(a.logits[i] - b.logits[i]) < 1e-3f)
             : std::memcmp(&a.logits[i], &b.logits[i], 4) != 0)
      return "logit " + std::to_string(i) + ": " + std::to_string(a.logits[i]) + " and " +
             std::to_string(b.logits[i]);
    if (!std::isfinite(a.logits[i])) return "logit " + std::to_string(i) + " is not finite";
  }
  return "";
}

// ---- calls ----

Call RandomCall(Draws* d, bool empty) {
  Call call;
  const int kind = d->Below(100);
  call.op = empty || kind < 18 ? Op::kPrefill
            : kind < 28        ? Op::kAppend
            : kind < 48        ? Op::kSteps
            : kind < 58        ? Op::kDraft
            : kind < 64        ? Op::kAccept
            : kind < 72        ? Op::kFeed
            : kind < 80        ? Op::kRewind
            : kind < 87        ? Op::kCompress
            : kind < 93        ? Op::kTrim
            : kind < 94        ? Op::kReset
                               : Op::kSampling;
  call.seed = d->Next() % 1000;
  call.argument = d->Below(1 << 20);
  switch (call.op) {
    case Op::kPrefill:
    case Op::kAppend:
      call.n = d->OneIn(12)  ? d->Between(1000, 1400)
               : d->OneIn(3) ? d->Between(100, 330)
               : d->OneIn(2) ? d->Between(30, 100)
                             : d->Between(1, 40);
      break;
    case Op::kSteps:
    case Op::kFeed:
    case Op::kDraft:
      call.n = d->OneIn(5) ? d->Between(20, 90) : d->Between(1, 12);
      break;
    case Op::kRewind:
      call.n = d->OneIn(4) ? d->Between(1, 32) : d->Between(1, 6);
      break;
    case Op::kTrim:
      call.n = d->OneIn(6) ? d->Between(100, 400) : d->Between(4, 70);
      break;
    default:
      break;
  }
  return call;
}

std::string TextOf(const Call& call) {
  const char* const names[] = {"prefill", "append",   "steps", "draft", "accept",  "feed",
                               "rewind",  "compress", "trim",  "reset", "sampling"};
  return std::string(names[static_cast<int>(call.op)]) + "(" + std::to_string(call.n) + "," +
         std::to_string(call.seed) + "," + std::to_string(call.argument) + ")";
}

// ---- sessions ----

const char* NameOf(Way way) {
  const char* const names[] = {"plain", "one thread", "restored", "forked", "batch"};
  return names[static_cast<int>(way)];
}

namespace {

Outcome Said(const Status& status, std::vector<int32_t> tokens = {}) {
  return {status.code(), status.message(), std::move(tokens)};
}

Outcome OneStep(Replica& r) {
  int32_t token = -1;
  if (r.way != Way::kBatch) {
    const Status status = r.session->Step(&token);
    return Said(status, {token});
  }
  std::vector<StepWish> rows(2);
  rows[0].session = r.companion.get(), rows[1].session = r.session.get();
  rows[0].chooses = rows[1].chooses = true;
  if (r.session->Stats().n_answer % 2 == 1) std::swap(rows[0], rows[1]);
  const size_t own = rows[0].session == r.session.get() ? 0 : 1;
  Session::RunBatch({rows.data(), rows.size()}, 0);
  return Said(rows[own].status, {rows[own].token});
}

Outcome Read(Replica& r, const std::vector<int32_t>& tokens, bool compress) {
  if (r.way != Way::kBatch) return Said(r.session->Prefill(tokens, compress));
  const Status queued = r.session->Enqueue(tokens, compress);
  if (!queued.ok()) return Said(queued);
  for (;;) {  // the companion steps between
    int64_t chunks = 3;
    const Status read = r.session->ReadOn(&chunks);
    if (!read.ok()) return Said(read);
    if (!r.session->reads_prompt()) return {};
    int32_t token = -1;
    static_cast<void>(r.companion->Step(&token));
  }
}

// One step added to what came before; whether it chose a token.
bool AddStep(Replica& r, Outcome* out) {
  const Outcome one = OneStep(r);
  out->code = one.code, out->message = one.message;
  if (one.code != Code::kOk || one.tokens[0] < 0) return false;
  out->tokens.push_back(one.tokens[0]);
  return true;
}

Outcome Steps(Replica& r, int n) {
  Outcome out;
  for (int i = 0; i < n && AddStep(r, &out); ++i) {
  }
  return out;
}

// A few tokens that a fork chose, so that they are right, and a few that are right by chance.
std::vector<int32_t> DraftFor(Session& s, int argument) {
  std::vector<int32_t> draft;
  if (argument % 3 != 0) {
    auto oracle = s.Fork();
    for (int i = 0; oracle.ok() && i < argument % 9; ++i) {
      int32_t token = -1;
      if (!oracle.value()->Step(&token).ok() || token < 0) break;
      draft.push_back(token);
    }
  }
  for (int i = 0; i < argument / 7 % 6; ++i) draft.push_back((argument + i * 31) % 256);
  return draft;
}

// As steps, and so they are for some where rows of a pass are what steps are (DeviceInfo::batch_invariant).
Outcome DraftedSteps(Replica& r, const Call& call) {
  const bool as_steps = r.way == Way::kOneThread || r.way == Way::kBatch;
  if (as_steps && r.model->device().info().batch_invariant) return Steps(r, call.n);
  Outcome out;
  while (static_cast<int>(out.tokens.size()) < call.n) {
    const std::vector<int32_t> draft = DraftFor(*r.session, call.argument);
    std::vector<int32_t> got(static_cast<size_t>(std::min(call.n - static_cast<int>(out.tokens.size()), 40)));
    int32_t n = 0;
    const Status status = r.session->StepDraft(draft, got.data(), static_cast<int32_t>(got.size()), &n);
    out.code = status.code(), out.message = status.message();
    if (!status.ok() || n == 0) break;
    out.tokens.insert(out.tokens.end(), got.begin(), got.begin() + n);
  }
  return out;
}

Outcome Feed(Replica& r, const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) {
    Session* sessions[2] = {r.session.get(), r.companion.get()};
    const int32_t fed[2] = {token, (token + 1) % 256};
    const Status status = Session::FeedBatch({sessions, r.way == Way::kBatch ? size_t{2} : size_t{1}}, fed);
    if (!status.ok()) return Said(status);
  }
  return {};
}

SamplerParams SamplingOf(int argument) {
  SamplerParams p;
  p.temperature = static_cast<float>(argument % 3) * 0.7f, p.seed = argument;
  p.top_k = argument / 3 % 4 * 10, p.top_p = argument / 12 % 2 == 0 ? 0 : 0.9f;
  if (argument / 24 % 3 == 0) p.repeat_penalty = 1.2f, p.repeat_window = 40;
  return p;
}

}  // namespace

Outcome Do(Replica& r, const Call& call, const std::vector<int32_t>& tokens) {
  Session& s = *r.session;
  switch (call.op) {
    case Op::kPrefill:
      return Read(r, tokens, true);
    case Op::kAppend:
      return Read(r, tokens, false);
    case Op::kSteps:
      return Steps(r, call.n);
    case Op::kDraft:
      return DraftedSteps(r, call);
    case Op::kAccept:
      return Said(s.Accept(call.argument % 259));
    case Op::kFeed:
      return Feed(r, tokens);
    case Op::kRewind:
      return Said(s.Rewind(call.n));
    case Op::kCompress:
      return Said(s.Recompress(0, nullptr));
    case Op::kTrim:
      return Said(s.Recompress(call.n, nullptr));
    case Op::kReset:
      s.Reset();
      return {};
    case Op::kSampling:
      return Said(s.SetSampling(SamplingOf(call.argument)));
  }
  return {};
}

float NearOf(const Policy& policy) {
  if (policy.quantises()) return 1e-4f;
  const int32_t kv = policy.Int(OptionId::kKv);
  return kv == 2 ? 0.06f : kv == 1 ? 1e-2f : 1e-4f;
}

bool UsesBytesUp(const Policy& policy) {
  return !policy.keeps_all() && policy.budget_kind == BudgetKind::kBytes && policy.allocator->across_layers &&
         policy.decode == DecodeMode::kGrow;
}

}  // namespace kvc::test

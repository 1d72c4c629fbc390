// Any sequence of calls on a session: steps, prompts, rewinds, forks, trims, saves and restores, of every
// method, with and without room at the end of the context and memory to do it in. A call ends well and leaves
// a cache that holds together, or says why not and leaves the session as it was. A session that dropped
// nothing answers as one that got all its tokens in one prompt.
//
// Input: method, budget, storage and decode, what happens when full, how much memory there is, and three
// options with their values, extreme ones among them (11 bytes), then pairs of an operation and its argument.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "lib/base/hash.h"
#include "lib/compress/policy_text.h"
#include "lib/engine/session.h"
#include "tests/support/tiny_model.h"

namespace {

#define REQUIRE(x) \
  if (!(x)) std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), std::abort()

constexpr int32_t kContext = 96;
constexpr int kOperations = 40;
const char* const kStorage[] = {"",
                                ",kv=f32",
                                ",kv=f16",
                                ",kv=int8,quant_group=8,residual=4",
                                ",kv=int4,quant_group=8,key_axis=channel",
                                ",pos_mode=incache",
                                ",decode=step",
                                ",decode=reobserve,slack=2",
                                ",decode=step,pos_mode=incache,kv=bf16"};

struct World {
  kvc::test::AlignedBytes bytes = kvc::test::TinyModelBytes({});
  std::shared_ptr<const kvc::Model> model = Open(0);
  int64_t weights = model->meter()->used();
  kvc::test::TempFolder folder;
  const std::string path = folder / "session";
  std::shared_ptr<const kvc::Model> Open(int64_t limit) const {
    kvc::ModelParams params;
    params.n_threads = 1, params.memory_limit = limit;
    auto opened = kvc::Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
    REQUIRE(opened.ok());
    return opened.value();
  }
};

// What a caller can see.
struct Seen {
  int64_t slots, tokens;
  uint64_t logits;
};

Seen Look(kvc::Session& s) {
  const kvc::SessionStats stats = s.Stats();
  std::vector<float> logits(static_cast<size_t>(s.model().config().vocab_size), 0.0f);
  auto fork = s.Fork();
  if (fork.ok() && fork.value()->ReadLogits(logits.data()).ok()) {
    for (float logit : logits) REQUIRE(std::isfinite(logit));
  }
  return {stats.n_slots, stats.n_slots_full, kvc::Hash64(logits.data(), logits.size() * sizeof(float))};
}

bool Same(const Seen& a, const Seen& b) {
  return a.slots == b.slots && a.tokens == b.tokens && a.logits == b.logits;
}

void CheckCache(const kvc::Session& s) {
  const kvc::ModelConfig& c = s.model().config();
  const kvc::SessionStats stats = s.Stats();
  const int64_t n_tokens = stats.n_slots_full / (int64_t{c.n_layers} * c.n_kv_heads);
  REQUIRE(stats.stop_token >= -1 && stats.stop_token < c.vocab_size);
  int64_t slots = 0;
  std::vector<int32_t> kept;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    for (int g = 0; g < c.n_kv_heads; ++g) {
      REQUIRE(s.Kept(layer, g, &kept).ok());
      slots += static_cast<int64_t>(kept.size());
      REQUIRE(n_tokens == 0 || !kept.empty());
      for (size_t i = 0; i < kept.size(); ++i)
        REQUIRE(kept[i] > (i == 0 ? -1 : kept[i - 1]) && kept[i] < n_tokens);
    }
  }
  REQUIRE(slots == stats.n_slots);
  REQUIRE(stats.cache_bytes <= stats.cache_bytes_peak);
}

// A copy of the session must answer as the session itself.
void CheckSameAnswer(kvc::Session& a, kvc::Session& b) {
  REQUIRE(Same(Look(a), Look(b)));
  const auto left = a.Fork(), right = b.Fork();
  for (int i = 0; left.ok() && right.ok() && i < 2; ++i) {
    int32_t x = -1, y = -1;
    if (!left.value()->Step(&x).ok() || !right.value()->Step(&y).ok()) return;
    REQUIRE(x == y);
  }
}

// A session and the tokens it should hold.
struct Played {
  std::unique_ptr<kvc::Session> session;
  std::vector<int32_t> tokens;
  bool whole;  // f32 and nothing dropped so far
};

kvc::Status SaveAndRestore(const std::string& path, Played* played) {
  kvc::Session& s = *played->session;
  const std::shared_ptr<const kvc::Model> model(&s.model(), [](const kvc::Model*) {});
  kvc::Status status = s.Save(path);
  if (!status.ok()) return status;
  auto restored = kvc::Session::Restore(model, path);
  if (!restored.ok()) {
    REQUIRE(restored.status().code() == kvc::Code::kMemory);
    return restored.status();
  }
  CheckSameAnswer(s, *restored.value());
  return {};
}

std::vector<int32_t> Tokens(int n, uint8_t seed) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * 37 + seed * 11) % 256);
  return ids;
}

kvc::Status Feed(int operation, uint8_t argument, Played* played) {
  kvc::Session& s = *played->session;
  std::vector<int32_t>& tokens = played->tokens;
  if (operation < 2) {
    int32_t token = -1;
    const kvc::Status status = s.Step(&token);
    if (token >= 0) tokens.push_back(token);
    return status;
  }
  if (operation < 4) {  // now and then more than the context holds
    const std::vector<int32_t> more = Tokens(argument % 16 == 15 ? 150 : argument % 48 + 1, argument);
    const kvc::Status status = s.Prefill(more, operation == 2);
    if (status.ok()) tokens.insert(tokens.end(), more.begin(), more.end());
    return status;
  }
  if (operation == 4) {
    const kvc::Status status = s.Rewind(argument % 5);
    if (status.ok()) tokens.resize(tokens.size() - argument % 5);
    return status;
  }
  const kvc::Status status = s.Accept(argument);
  if (status.ok()) tokens.push_back(argument);
  return status;
}

kvc::Status Other(int operation, uint8_t argument, Played* played) {
  kvc::Session& s = *played->session;
  if (operation == 12) {
    kvc::SamplerParams sampling;
    sampling.temperature = static_cast<float>(argument % 4),
    sampling.top_p = static_cast<float>(argument % 5) / 4;
    sampling.top_k = argument % 7, sampling.seed = argument;
    return s.SetSampling(sampling);
  }
  if (operation ==
      13) {  // the next call that computes says so and changes nothing; then the request is answered
    s.call().RequestCancel();
    int32_t token = -1;
    const Seen before = Look(s);
    const kvc::Status status = argument % 2 == 0 ? s.Prefill(Tokens(5, argument), true) : s.Step(&token);
    s.call().ClearCancel();
    REQUIRE(token == -1 && Same(Look(s), before));
    return status;
  }
  s.ObserveAttention(argument % 2 == 0);
  return {};
}

// *strong: a failure leaves everything as it was. The other calls feed the token of the last step first.
kvc::Status Operate(int operation, uint8_t argument, const std::string& path, Played* played, Played* other,
                    bool* strong) {
  kvc::Session& s = *played->session;
  *strong = operation != 5 && operation != 10 && operation != 14;
  switch (operation) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return Feed(operation, argument, played);
    case 14:
      return Feed(5, argument, played);
    case 5: {
      int64_t freed = -1;
      const kvc::Status status = s.Recompress(argument % 64, &freed);
      REQUIRE(!status.ok() || freed >= 0);
      return status;
    }
    case 6: {
      auto fork = s.Fork();
      if (!fork.ok()) return fork.status();
      CheckSameAnswer(s, *fork.value());
      *other = {std::move(fork.value()), played->tokens, played->whole};
      return {};
    }
    case 7:
      if (other->session != nullptr) std::swap(*played, *other);
      return {};
    case 8:
      return SaveAndRestore(path, played);
    case 9:
      if (argument % 4 != 0) return {};
      s.Reset();
      played->tokens.clear();
      return {};
    case 10: {
      uint8_t keep[4];
      for (int bit = 0; bit < 4; ++bit) keep[bit] = argument >> bit & 1;
      played->whole = false;
      return s.MaskHeads({keep, 4}, argument / 16 + 1);
    }
    default:
      return Other(operation, argument, played);
  }
}

// One of the options the policy has, at one end of its range, at its default or anywhere between.
std::string ExtremeOption(const kvc::Policy& policy, uint8_t which, uint8_t value) {
  const std::vector<kvc::OptionId> used = kvc::OptionsOf(policy);
  if (used.empty() || which >= 128) return "";
  const kvc::Option& option = kvc::GetOption(used[which % used.size()]);
  if (option.kind == kvc::OptionKind::kLevels || option.kind == kvc::OptionKind::kBytes) return "";
  const double most = std::min(option.max, option.min + 300),
               at = option.min + (most - option.min) * (value / 4) / 63;
  double chosen = value % 4 == 0   ? option.min
                  : value % 4 == 1 ? option.max
                  : value % 4 == 2 ? option.default_value
                                   : at;
  if (option.kind != kvc::OptionKind::kReal) chosen = std::floor(chosen);
  return std::string(",") + option.key + "=" + kvc::ValueText(option, chosen);
}

kvc::Result<kvc::Policy> ChoosePolicy(const uint8_t* data) {
  const std::string name = kvc::GetMethod(data[0] % kvc::MethodCount())->name;
  std::string spec = name;
  if (name != "full")
    spec += (name == "table" ? ":window=4" : ":budget=" + std::to_string(12 + data[1] % 60));
  spec += kStorage[data[2] % std::size(kStorage)];
  if (name == "full" && spec.size() > name.size()) spec[name.size()] = ':';
  kvc::Result<kvc::Policy> policy = kvc::ParsePolicy(spec.c_str());
  if (!policy.ok() && name != "full") policy = kvc::ParsePolicy((spec + ",window=4").c_str());
  if (!policy.ok() && name != "full") policy = kvc::ParsePolicy((spec + ",recent=4").c_str());
  for (int i = 0; i < 3 && policy.ok() && name != "full"; ++i) {
    const std::string more = spec + ExtremeOption(policy.value(), data[5 + 2 * i], data[6 + 2 * i]);
    kvc::Result<kvc::Policy> with = kvc::ParsePolicy(more.c_str());
    REQUIRE(with.ok() || !with.status().message().empty());
    if (with.ok()) policy = std::move(with), spec = more;
  }
  if (policy.ok() && name == "table") policy.value().table = {12, 20, data[1] % 60 + 8, 31};
  return policy;
}

// Steps and prompts in parts round differently from one prompt, and a tie may fall either way: logits, near.
void CheckWhole(const World& world, Played* played) {
  if (played->session == nullptr || !played->whole || played->tokens.empty() ||
      !played->session->CanGoOn("answer").ok())
    return;
  if (!played->session->FeedPending().ok()) return;
  REQUIRE(played->session->Stats().n_slots == static_cast<int64_t>(4 * played->tokens.size()));
  const kvc::Result<kvc::Policy> full = kvc::ParsePolicy("full:kv=f32");
  auto fresh = kvc::Session::Create(world.model, &full.value(), {});
  REQUIRE(fresh.ok() && fresh.value()->Prefill(played->tokens, true).ok());
  std::vector<float> whole(static_cast<size_t>(world.model->config().vocab_size)), parts(whole);
  REQUIRE(fresh.value()->ReadLogits(whole.data()).ok() && played->session->ReadLogits(parts.data()).ok());
  for (size_t i = 0; i < whole.size(); ++i) REQUIRE(std::fabs(whole[i] - parts[i]) < 1e-3f);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  if (size < 11) return 0;
  const kvc::Result<kvc::Policy> policy = ChoosePolicy(data);
  if (!policy.ok()) return 0;
  const bool tight = data[4] % 4 == 0;
  const auto model = tight ? world.Open(world.weights + 20000 + data[4] * 2000) : world.model;
  kvc::SessionParams params;
  params.on_full = static_cast<kvc::OnFull>(data[3] % 3);
  params.max_tokens = kContext;
  {
    auto made = kvc::Session::Create(model, &policy.value(), params);
    if (!made.ok()) {
      REQUIRE(!made.status().message().empty());
      return 0;
    }
    constexpr int32_t kF32 = 0;  // of the choices of kv
    const bool whole = policy.value().keeps_all() && policy.value().Int(kvc::OptionId::kKv) == kF32 &&
                       params.on_full == kvc::OnFull::kError;
    Played played = {std::move(made.value()), {}, whole}, other = {nullptr, {}, whole};
    data += 11, size -= 11;
    for (int i = 0; i < kOperations && size >= 2; ++i, data += 2, size -= 2) {
      const Seen before = Look(*played.session);
      bool strong = false;
      const kvc::Status status = Operate(data[0] % 15, data[1], world.path, &played, &other, &strong);
      REQUIRE(status.ok() || !status.message().empty());
      REQUIRE(status.ok() || status.code() != kvc::Code::kInternal);
      REQUIRE(tight || status.code() != kvc::Code::kMemory);
      if (!status.ok() && strong) REQUIRE(Same(Look(*played.session), before));
      CheckCache(*played.session);
    }
    CheckWhole(world, &played);
    CheckWhole(world, &other);
  }
  REQUIRE(model->meter()->used() == world.weights);
  return 0;
}

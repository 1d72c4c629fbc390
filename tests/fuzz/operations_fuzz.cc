// Any sequence of calls on a session: steps, prompts, rewinds, forks, trims, saves and restores, of every
// method, with and without room at the end of the context and memory to do it in. A call ends well and leaves
// a cache that holds together, or says why not and leaves the session as it was. A session that dropped
// nothing answers as one that got all its tokens in one prompt.
//
// Input: method, budget, storage and decode, what happens when full (and whether the model has windows), how
// much memory there is, and three options with their values, extreme ones among them (11 bytes), then pairs
// of an operation and its argument.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "lib/compress/policy_text.h"
#include "tests/fuzz/play_session.h"
#include "tests/support/tiny_model.h"

namespace {

using kvc::test::Played;
using kvc::test::Seen;

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
  explicit World(bool windows) : bytes(Bytes(windows)) {}
  // windows: the first of the two layers attends to its newest tokens only.
  static kvc::test::AlignedBytes Bytes(bool windows) {
    kvc::test::TinyModelOptions options;
    if (windows) options.layers = {{10, 0}, {0, 0}};
    return kvc::test::TinyModelBytes(options);
  }
  const kvc::test::AlignedBytes bytes;
  std::shared_ptr<const kvc::Model> model = Open(0);
  int64_t weights = model->meter()->used(), most = model->meter()->peak();  // while it was opened
  kvc::test::TempFolder folder;
  const std::string path = folder / "session";
  std::shared_ptr<const kvc::Model> Open(int64_t limit) const {
    kvc::ModelParams params;
    params.threads = 1, params.memory_limit = limit;
    auto opened = kvc::Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
    KVC_REQUIRE(opened.ok());
    return opened.value();
  }
};

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
    KVC_REQUIRE(with.ok() || !with.status().message().empty());
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
  const kvc::SessionStats stats = played->session->Stats();
  KVC_REQUIRE(stats.n_slots >= stats.n_slots_full);  // pages of layers with windows hold a few more
  KVC_REQUIRE(stats.n_slots <= static_cast<int64_t>(4 * played->tokens.size()));
  const kvc::Result<kvc::Policy> full = kvc::ParsePolicy("full:kv=f32");
  auto fresh = kvc::Session::Create(world.model, &full.value(), {});
  KVC_REQUIRE(fresh.ok() && fresh.value()->Prefill(played->tokens, true).ok());
  const std::vector<float> whole = kvc::test::LogitsOf(*fresh.value()),
                           parts = kvc::test::LogitsOf(*played->session);
  for (size_t i = 0; i < whole.size() && i < parts.size(); ++i)
    KVC_REQUIRE(std::fabs(whole[i] - parts[i]) < 1e-3f);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 11) return 0;
  static World plain(false), with_windows(true);
  const World& world = data[3] >= 212 && data[3] <= 250 ? with_windows : plain;
  const kvc::Result<kvc::Policy> policy = ChoosePolicy(data);
  if (!policy.ok()) return 0;
  const bool tight = data[4] % 4 == 0;
  const auto model = tight ? world.Open(world.most + 20000 + data[4] * 2000) : world.model;
  kvc::SessionParams params;
  params.on_full = static_cast<kvc::OnFull>(data[3] % 3);
  params.max_tokens = kContext;
  {
    auto made = kvc::Session::Create(model, &policy.value(), params);
    if (!made.ok()) {
      KVC_REQUIRE(!made.status().message().empty());
      return 0;
    }
    constexpr int32_t kF32 = 0;  // of the choices of kv
    const bool whole = policy.value().keeps_all() && policy.value().Int(kvc::OptionId::kKv) == kF32 &&
                       params.on_full == kvc::OnFull::kError;
    Played played = {std::move(made.value()), {}, whole}, other = {nullptr, {}, whole};
    data += 11, size -= 11;
    for (int i = 0; i < kOperations && size >= 2; ++i, data += 2, size -= 2) {
      const Seen before = kvc::test::Look(*played.session);
      bool strong = false;
      const kvc::Status status =
          kvc::test::Operate(kvc::test::OperationOf(data[0]), data[1], world.path, &played, &other, &strong);
      KVC_REQUIRE(status.ok() || !status.message().empty());
      KVC_REQUIRE(status.ok() || status.code() != kvc::Code::kInternal);
      KVC_REQUIRE(tight || status.code() != kvc::Code::kMemory);
      if (!status.ok() && strong) KVC_REQUIRE(kvc::test::Same(kvc::test::Look(*played.session), before));
      kvc::test::CheckCache(*played.session);
    }
    CheckWhole(world, &played);
    CheckWhole(world, &other);
  }
  KVC_REQUIRE(model->meter()->used() == world.weights);
  return 0;
}

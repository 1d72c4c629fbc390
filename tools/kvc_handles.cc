#include "tools/kvc_handles.h"

#include <algorithm>
#include <functional>
#include <iterator>

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"
#include "tools/watch.h"

namespace kvc::tool {
namespace {

// Reads a buffer whose size the library tells: asks, then fetches. One spare element holds the NUL of text.
template <typename T>
std::vector<T> Fetch(const std::string& doing, const std::function<kvc_status(T*, int32_t, int32_t*)>& call) {
  int32_t count = 0;
  kvc_status status = call(nullptr, 0, &count);
  if (status != KVC_OK && status != KVC_E_BUFFER_TOO_SMALL) Check(status, doing);
  std::vector<T> data(static_cast<size_t>(count) + 1);
  Check(call(data.data(), count + 1, &count), doing);
  data.resize(static_cast<size_t>(count));
  return data;
}

std::string FetchText(const std::string& doing,
                      const std::function<kvc_status(char*, int32_t, int32_t*)>& call) {
  const std::vector<char> data = Fetch<char>(doing, call);
  std::string text(data.begin(), data.end());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

int32_t CountOf(size_t size, const char* what) {
  if (size > INT32_MAX) throw Failure(std::string(what) + " has more than 2,147,483,647 elements");
  return static_cast<int32_t>(size);
}

}  // namespace

void Check(kvc_status status, const std::string& doing) {
  if (status == KVC_OK) return;
  const std::string text = kvc_last_error();
  throw StatusFailure(status,
                      doing + ": " + (text.empty() ? "failed" : text) + " (" + kvc_status_name(status) + ")");
}

Model::Model(const std::string& path, const std::string& device, const kvc_model_params& params)
    : path_(path) {
  kvc_model* model = nullptr;
  kvc_loader* loader = nullptr;
  Check(kvc_loader_create(&loader), "cannot open " + path);
  const std::unique_ptr<kvc_loader, CloseHandle> owner(loader);
  const Watch watch("opening " + path, [loader] {
    double share = 1;
    return kvc_loader_get_progress(loader, &share) == KVC_OK ? share : 1;
  });
  const kvc_status status = kvc_loader_open(loader, path.c_str(), device.c_str(), &params, &model);
  const std::string text = kvc_last_error();
  if (status != KVC_OK && text.find(path) != std::string::npos)
    throw StatusFailure(status, text + " (" + kvc_status_name(status) + ")");
  Check(status, "cannot open " + path);
  handle_.reset(model);
  info_.struct_size = sizeof info_;
  Check(kvc_model_get_info(model, &info_), "cannot read the description of " + path);
  const Json about = Describe();
  if (about.contains("tokenizer")) add_bos_ = about["tokenizer"].value("add_bos", true);
  begin_ = Tokenize("", KVC_ADD_BOS);
}

Json Model::Describe() const {
  return Json::parse(FetchText("cannot describe the model", [&](char* text, int32_t cap, int32_t* n) {
    return kvc_model_describe(handle_.get(), text, cap, n);
  }));
}

TokenList Model::StopTokens() const {
  return Describe().value("tokenizer", Json::object()).value("stop_tokens", TokenList{});
}

std::vector<float> Model::HeadScores(int32_t index) const {
  return Fetch<float>("cannot read head scores", [&](float* scores, int32_t cap, int32_t* n) {
    return kvc_model_get_head_scores(handle_.get(), index, scores, cap, n);
  });
}

TokenList Model::Tokenize(const std::string& text, int32_t flags) const {
  const int32_t n_text = CountOf(text.size(), "the text");
  return Fetch<int32_t>("cannot tokenize", [&](int32_t* tokens, int32_t cap, int32_t* n) {
    return kvc_tokenize(handle_.get(), reinterpret_cast<const uint8_t*>(text.data()), n_text, flags, tokens,
                        cap, n);
  });
}

Json FramingJson(const Framing& framing) {
  Json out{{"special", framing.special}, {"chat", framing.chat}};
  if (!framing.system.empty()) out["system"] = framing.system;
  return out;
}

bool Model::HasTurns() const {
  const Json format = Describe().value("turn_format", Json::object());
  constexpr const char* kMarks[] = {"system_prefix", "system_suffix",    "user_prefix",
                                    "user_suffix",   "assistant_prefix", "assistant_suffix"};
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [&](const char* mark) { return format.value(mark, "") != ""; });
}

Json Model::Device() const {
  return Json::parse(FetchText("cannot describe the device", [&](char* text, int32_t cap, int32_t* n) {
    return kvc_model_describe_device(handle_.get(), text, cap, n);
  }));
}

void Model::SetFraming(const Framing& framing) {
  if (framing.chat && !HasTurns())
    throw Failure(
        "--chat: the model file does not say how turns are marked (kvc inspect): it was not made for "
        "conversations, or kvc convert could not read its chat template. Without --chat texts are read as "
        "they stand; --special takes the marks that are written in them");
  framing_ = framing;
}

TokenList Model::EncodeTurn(int32_t role, const std::string& text, int32_t flags) const {
  if (role == KVC_ROLE_USER && framing_.special) flags |= KVC_TURN_PARSE_SPECIAL;  // texts, not --system
  const int32_t n_text = CountOf(text.size(), "the text");
  return Fetch<int32_t>("cannot write the turn", [&](int32_t* tokens, int32_t cap, int32_t* n) {
    return kvc_model_encode_turn(handle_.get(), role, reinterpret_cast<const uint8_t*>(text.data()), n_text,
                                 flags, tokens, cap, n);
  });
}

TokenList Model::EncodeMessage(const std::string& text, int32_t flags) const {
  TokenList tokens;
  if (!framing_.system.empty()) {
    tokens = EncodeTurn(KVC_ROLE_SYSTEM, framing_.system, 0);
    flags |= KVC_TURN_AFTER_SYSTEM;
  }
  const TokenList message = EncodeTurn(KVC_ROLE_USER, text, flags);
  tokens.insert(tokens.end(), message.begin(), message.end());
  if (tokens.empty()) throw Failure("the prompt is empty, and this model's turns begin with no mark");
  return tokens;
}

void Model::TakeOffBeginning(TokenList* tokens, size_t written) const {
  const auto n = static_cast<std::ptrdiff_t>(begin_.size()), at = static_cast<std::ptrdiff_t>(written);
  if (framing_.special && tokens->size() >= written + begin_.size() &&
      std::equal(begin_.begin(), begin_.end(), tokens->begin() + at))
    tokens->erase(tokens->begin(), tokens->begin() + n);
}

TokenList Model::TokenizePrompt(const std::string& text) const {
  if (framing_.chat) return EncodeMessage(text, KVC_TURN_HEAD);
  TokenList tokens = Tokenize(text, (add_bos_ ? KVC_ADD_BOS : 0) | SpecialFlag());
  if (add_bos_) TakeOffBeginning(&tokens, begin_.size());
  if (tokens.empty()) tokens = begin_;
  if (tokens.empty()) throw Failure("the prompt is empty and this model has no BOS token to start from");
  return tokens;
}

TokenList Model::TokenizeWhole(const std::string& text) const {
  return framing_.chat ? EncodeMessage(text, KVC_TURN_ANSWER) : TokenizePrompt(text);
}

TokenList Model::TokenizeAfter(const TokenList& prompt, const std::string& text) const {
  if (framing_.chat) return EncodeTurn(KVC_ROLE_USER, text, KVC_TURN_TAIL | KVC_TURN_ANSWER);
  const bool begins = prompt.empty() || prompt == begin_;
  return Tokenize(text, (begins ? 0 : KVC_CONTINUE) | SpecialFlag());
}

TokenList Model::TokenizeAnswer(const std::string& text) const {
  return Tokenize(text, KVC_CONTINUE | SpecialFlag());
}

TokenList Model::TokenizeText(const std::string& text) const {
  TokenList tokens = Tokenize(text, SpecialFlag());
  if (add_bos_) TakeOffBeginning(&tokens, 0);
  return tokens;
}

std::string Model::Detokenize(const TokenList& tokens) const {
  const std::vector<uint8_t> text =
      Fetch<uint8_t>("cannot detokenize", [&](uint8_t* bytes, int32_t cap, int32_t* n) {
        return kvc_detokenize(handle_.get(), tokens.data(), CountOf(tokens.size(), "the token list"), bytes,
                              cap, n);
      });
  return std::string(text.begin(), text.end());
}

std::vector<std::string> PolicyOptions(const std::string& spec) {
  std::vector<std::string> options;
  for (size_t at = std::min(spec.find(':'), spec.size()), end = 0; at < spec.size(); at = end) {
    end = std::min(spec.find(',', at + 1), spec.size());
    options.push_back(spec.substr(at + 1, end - at - 1));
  }
  return options;
}

Policy::Policy(const std::string& spec) : spec_(spec) {
  kvc_policy* policy = nullptr;
  const kvc_status status = kvc_policy_create(spec.c_str(), &policy);
  const std::string doing = "policy \"" + spec + "\"";
  if (status == KVC_E_INVALID || status == KVC_E_NOT_FOUND) throw UsageError(doing + ": " + kvc_last_error());
  Check(status, doing);
  handle_.reset(policy);
}

std::string Policy::Describe() const {
  return FetchText("cannot describe the policy", [&](char* text, int32_t cap, int32_t* n) {
    return kvc_policy_describe(handle_.get(), text, cap, n);
  });
}

void Policy::SetHeadScores(const std::vector<float>& scores) {
  Check(kvc_policy_set_head_scores(handle_.get(), scores.data(), CountOf(scores.size(), "the score table")),
        "head scores of policy \"" + spec_ + "\"");
}

void Policy::SetTable(const std::vector<int32_t>& slots) {
  Check(kvc_policy_set_table(handle_.get(), slots.data(), CountOf(slots.size(), "the slot table")),
        "slot table of policy \"" + spec_ + "\"");
}

// A policy that this one's user can take on a model without head scores: budgets by the prompt, the same
// number of entries, the same number of readings. Empty: there is none of that budget.
static std::string WithoutHeadScores(const Policy& policy) {
  std::string options;
  for (const std::string& option : PolicyOptions(policy.spec()))
    if (option.compare(0, 6, "budget") == 0) options += (options.empty() ? ":" : ",") + option;
  if (policy.Describe().find("scorer=reconstruct") != std::string::npos) options += ",scorer=reconstruct";
  for (const char* window : {"", ",window=8"}) {
    const std::string candidate = "ada-snapkv" + options + window;
    kvc_policy* found = nullptr;
    const bool works = kvc_policy_create(candidate.c_str(), &found) == KVC_OK;
    kvc_policy_close(found);
    if (works) return candidate;
  }
  return "";
}

// The names of the tables that a model file has; empty: it has none.
static std::string ScoreNames(const Model& model) {
  std::string names;
  for (const Json& table : model.Describe().value("head_scores", Json::array()))
    names += (names.empty() ? "" : ", ") + table.value("name", "");
  return names;
}

// Check, and what to do when the policy wants head scores that the model has not, or slots.
static void CheckWith(const Model& model, const Policy& policy, kvc_status status, const std::string& doing) {
  try {
    Check(status, doing);
  } catch (const StatusFailure& failure) {
    const std::string text = failure.what();
    if (status == KVC_E_INVALID && text.find("layers x KV heads), it got 0") != std::string::npos)
      throw StatusFailure(status, text + "\n--table FILE gives them to a policy");
    if (status != KVC_E_NOT_FOUND || text.find("needs head scores") == std::string::npos) throw;
    const std::string there = ScoreNames(model);
    if (text.find("has none named ") != std::string::npos && !there.empty())
      throw StatusFailure(status, text + "\nits tables are " + there);
    const std::string instead = WithoutHeadScores(policy), &beside = model.scores_beside();
    throw StatusFailure(status,
                        text + "\n" + (beside.empty() ? "" : beside + "\n") +
                            "kvc score measures head scores, and --head-scores FILE gives them to a policy" +
                            (instead.empty() ? "" : "; without them, try --policy " + instead));
  }
}

Session::Session(const Model& model, const Policy& policy, const kvc_session_params& params) {
  kvc_session* session = nullptr;
  CheckWith(model, policy, kvc_session_create(model.get(), policy.get(), &params, &session),
            "cannot start a session");
  handle_.reset(session);
}

void Session::Prefill(const TokenList& tokens) {
  Check(kvc_session_prefill(handle_.get(), tokens.data(), CountOf(tokens.size(), "the prompt")),
        "cannot process the prompt");
}

void Session::Append(const TokenList& tokens) {
  Check(kvc_session_append(handle_.get(), tokens.data(), CountOf(tokens.size(), "the prompt")),
        "cannot add to the prompt");
}

void Session::Enqueue(const TokenList& tokens) {
  Check(kvc_session_enqueue(handle_.get(), tokens.data(), CountOf(tokens.size(), "the prompt"), 1),
        "cannot queue the prompt");
}

std::optional<int32_t> Session::Step() {
  int32_t token = KVC_TOKEN_NONE;
  Check(kvc_session_step(handle_.get(), &token), "cannot generate");
  return token == KVC_TOKEN_NONE ? std::nullopt : std::optional<int32_t>(token);
}

TokenList Session::StepDraft(const TokenList& draft, int32_t cap) {
  TokenList tokens(static_cast<size_t>(cap));
  int32_t n = 0;
  Check(kvc_session_step_draft(handle_.get(), draft.data(), CountOf(draft.size(), "the draft"), tokens.data(),
                               cap, &n),
        "cannot generate");
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

void Session::Rewind(int32_t n) { Check(kvc_session_rewind(handle_.get(), n), "cannot go back"); }

void Session::Accept(int32_t token) {
  Check(kvc_session_accept(handle_.get(), token), "cannot go on with the answer");
}

void Session::Say(int32_t role, const std::string& text, int32_t flags) {
  Check(kvc_session_say(handle_.get(), role, reinterpret_cast<const uint8_t*>(text.data()),
                        CountOf(text.size(), "the message"), flags),
        "cannot take the message");
}

void Session::SetSampling(const kvc_sampling& sampling) {
  Check(kvc_session_set_sampling(handle_.get(), &sampling), "cannot sample like that");
}

void Session::Compress() { Check(kvc_session_compress(handle_.get()), "cannot compress"); }

int64_t Session::Trim(int32_t budget) {
  int64_t freed = 0;
  Check(kvc_session_trim(handle_.get(), budget, &freed), "cannot trim");
  return freed;
}

void Session::Save(const std::string& path) const {
  Check(kvc_session_save(handle_.get(), path.c_str()), "cannot save the session");
}

Session Session::Restore(const Model& model, const std::string& path) {
  kvc_session* session = nullptr;
  Check(kvc_session_restore(model.get(), path.c_str(), &session), "cannot load the session");
  return Session(session);
}

std::string Session::ReadText() {
  uint8_t buffer[4096];
  std::string text;
  for (;;) {
    int32_t n = 0;
    const kvc_status status = kvc_session_read_text(handle_.get(), buffer, sizeof buffer, &n);
    if (status == KVC_E_BUFFER_TOO_SMALL) {
      std::vector<uint8_t> large(static_cast<size_t>(n));
      Check(kvc_session_read_text(handle_.get(), large.data(), n, &n), "cannot read the text");
      return text.append(large.begin(), large.begin() + n);
    }
    Check(status, "cannot read the text");
    if (n <= 0) return text;
    text.append(buffer, buffer + n);
  }
}

void Session::GetLogits(std::vector<float>* logits) const {
  int32_t n = 0;
  kvc_status status =
      kvc_session_get_logits(handle_.get(), logits->data(), static_cast<int32_t>(logits->size()), &n);
  if ((status == KVC_OK || status == KVC_E_BUFFER_TOO_SMALL) && static_cast<size_t>(n) != logits->size()) {
    logits->resize(static_cast<size_t>(n));
    status = kvc_session_get_logits(handle_.get(), logits->data(), n, &n);
  }
  Check(status, "cannot read the logits");
}

kvc_session_stats Session::Stats() const {
  kvc_session_stats stats = {};
  stats.struct_size = sizeof stats;
  Check(kvc_session_get_stats(handle_.get(), &stats), "cannot read the statistics");
  return stats;
}

double Session::Progress() const {
  double share = 1;
  Check(kvc_session_get_progress(handle_.get(), &share), "cannot see how far the prompt is");
  return share;
}

std::vector<int32_t> Session::Kept(int32_t layer, int32_t kv_head) const {
  return Fetch<int32_t>("cannot list the kept positions", [&](int32_t* positions, int32_t cap, int32_t* n) {
    return kvc_session_get_kept(handle_.get(), layer, kv_head, positions, cap, n);
  });
}

void Session::Reset() { Check(kvc_session_reset(handle_.get()), "cannot reset the session"); }

std::optional<Session> Session::Fork() {
  kvc_session* fork = nullptr;
  const kvc_status status = kvc_session_fork(handle_.get(), &fork);
  if (status == KVC_E_UNSUPPORTED) return std::nullopt;
  Check(status, "cannot fork the session");
  return Session(fork);
}

void StepBatch(const std::vector<kvc_session*>& sessions, TokenList* tokens) {
  std::vector<kvc_status> statuses(sessions.size());
  tokens->resize(sessions.size());
  Check(kvc_batch_step(sessions.data(), CountOf(sessions.size(), "the sessions"), nullptr, tokens->data(),
                       statuses.data()),
        "cannot step the batch");
  // The library's text is that of the last one.
  std::for_each(statuses.rbegin(), statuses.rend(),
                [](kvc_status status) { Check(status, "cannot step a session of the batch"); });
}

kvc_model_params DefaultModelParams() {
  kvc_model_params params = {};
  params.struct_size = sizeof params;
  return params;
}

kvc_session_params DefaultSessionParams() {
  kvc_session_params params = {};
  params.struct_size = sizeof params;
  return params;
}

SessionPlan PlanSession(const Model& model, const Policy& policy, const kvc_session_params& params,
                        int32_t n_prompt) {
  SessionPlan plan;
  plan.bytes.struct_size = sizeof plan.bytes;
  plan.slots.resize(static_cast<size_t>(model.n_kv_heads_total()));
  int32_t n = 0;
  CheckWith(model, policy,
            kvc_session_plan(model.get(), policy.get(), &params, n_prompt, &plan.bytes, plan.slots.data(),
                             static_cast<int32_t>(plan.slots.size()), &n),
            "cannot plan");
  return plan;
}

std::string DeviceText(const Model& model) {
  const Json device = model.Device();
  return device["name"].get<std::string>() + ", " + device["description"].get<std::string>();
}

Json MethodJson(int32_t index) {
  return Json::parse(FetchText("cannot describe a method", [&](char* text, int32_t cap, int32_t* n) {
    return kvc_method_describe(index, text, cap, n);
  }));
}

Json DeviceJson(int32_t index) {
  return Json::parse(FetchText("cannot describe a device", [&](char* text, int32_t cap, int32_t* n) {
    return kvc_device_describe(index, text, cap, n);
  }));
}

std::string LibraryVersion() {
  const int32_t version = kvc_version();
  return Format("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace kvc::tool

// Sessions of kvc.h.
#include <optional>

#include "lib/api/handles.h"
#include "lib/base/log.h"
#include "lib/engine/lookup.h"

namespace kvc {
namespace {

Status ReadParams(const kvc_session_params* params, SessionParams* out) {
  kvc_session_params p;
  KVC_RETURN_IF_ERROR(CopyIn(params, "params (kvc_session_params)", &p));
  if (p.on_full < KVC_ON_FULL_ERROR || p.on_full > KVC_ON_FULL_SLIDE)
    return Error(Code::kInvalid, "on_full is %d; it is 0 to 2", p.on_full);
  out->max_tokens = p.max_tokens;
  out->on_full = static_cast<OnFull>(p.on_full);
  out->sampler.temperature = p.temperature, out->sampler.top_p = p.top_p, out->sampler.top_k = p.top_k,
  out->sampler.seed = p.seed;
  return {};
}

// tokens as a span, or what is wrong with it.
Status ReadTokens(const int32_t* tokens, int32_t n, Span<const int32_t>* out,
                  const char* count = "n_tokens") {
  if (n < 0) return Error(Code::kInvalid, "%s is %d", count, n);
  if (tokens == nullptr && n > 0) return NullError("tokens");
  *out = {tokens, static_cast<size_t>(n)};
  return {};
}

// A copy of the caller's policy, or none.
class PolicyCopy {
 public:
  explicit PolicyCopy(const kvc_policy* policy) {
    if (policy != nullptr) copy_ = policy->Copy();
  }
  const Policy* get() const { return copy_ ? &*copy_ : nullptr; }

 private:
  std::optional<Policy> copy_;
};

void TellIfBeyondTraining(const Model& model, const Policy* policy, const SessionParams& params) {
  const bool counts_slots = policy != nullptr && !policy->keeps_all() &&
                            policy->decode == DecodeMode::kStep &&
                            policy->positions == PositionMode::kInCache;
  if (params.max_tokens <= model.config().max_tokens || counts_slots) return;
  Log(kLogWarning, "max_tokens=%d is beyond the %d tokens that the model was trained for", params.max_tokens,
      model.config().max_tokens);
}

// methods.md 4.3.
void TellIfMergesAreCoarse(const Policy* policy) {
  if (policy == nullptr || !policy->merges_small_codes()) return;
  Log(kLogWarning,
      "reducer %s merges values that are stored in 4 bits or fewer, and each merge rounds them anew: "
      "kv_values=int8 or kv=f16 loses less",
      policy->reducer->name);
}

// What a call compressed, for the log. Takes no memory: the call has succeeded by then.
class CompressionNote {
 public:
  explicit CompressionNote(const Session& session) : session_(session), before_(session.figures()) {}
  void Tell() const {
    const Session::Figures now = session_.figures();
    if (now.n_compactions == before_.n_compactions) return;
    const ModelConfig& c = session_.model().config();
    const int64_t heads = int64_t{c.n_layers} * c.n_kv_heads,
                  came = heads * (now.n_tokens - before_.n_tokens);
    Log(kLogDebug, "compressed %d tokens in %lld KV heads from %lld to %lld slots, %lld bytes", now.n_tokens,
        static_cast<long long>(heads), static_cast<long long>(before_.n_slots + came),
        static_cast<long long>(now.n_slots), static_cast<long long>(now.cache_bytes));
  }

 private:
  const Session& session_;
  const Session::Figures before_;
};

Status RecompressAndTell(Session& session, int32_t budget, int64_t* freed) {
  const CompressionNote note(session);
  KVC_RETURN_IF_ERROR(session.Recompress(budget, freed));
  note.Tell();
  return {};
}

Status CheckRole(int32_t role) {
  if (role >= KVC_ROLE_SYSTEM && role <= KVC_ROLE_ASSISTANT) return {};
  return Error(Code::kInvalid, "role is %d; it is 0 (system), 1 (user) or 2 (assistant)", role);
}

void TellOfFile(const char* what, const Session& session, const char* path) {
  const Session::Figures now = session.figures();
  Log(kLogInfo, "%s %s: a session of %d tokens, %lld slots, %lld bytes of cache", what, path, now.n_tokens,
      static_cast<long long>(now.n_slots), static_cast<long long>(now.cache_bytes));
}

kvc_status PrefillOrAppend(kvc_session* session, const int32_t* tokens, int32_t n_tokens, bool compress) {
  return GuardSession(session, [&](Session& s) -> Status {
    Span<const int32_t> span;
    KVC_RETURN_IF_ERROR(ReadTokens(tokens, n_tokens, &span));
    const CompressionNote note(s);
    KVC_RETURN_IF_ERROR(s.Prefill(span, compress));
    note.Tell();
    return {};
  });
}

void Wrap(std::unique_ptr<Session> session, kvc_session** out) {
  std::unique_ptr<kvc_session> handle(new kvc_session());
  handle->session = std::move(session);
  handle->told_full = handle->session->makes_room();  // of a fork or a file: it was told when it came to it
  *out = handle.release();
}

}  // namespace

void TellFull(kvc_session* handle) {
  const Session& session = *handle->session;
  handle->told_full = session.makes_room();
  if (!handle->told_full) return;
  const bool slides = session.params().on_full == OnFull::kSlide;
  Log(kLogInfo, "a session holds max_tokens=%d tokens and drops an old one for each new one (on_full=%s)",
      session.params().max_tokens, slides ? "slide" : "evict");
}

}  // namespace kvc

using kvc::Code;
using kvc::CopyBuffer;
using kvc::Error;
using kvc::Guard;
using kvc::GuardSession;
using kvc::NullError;
using kvc::Session;
using kvc::Status;

extern "C" {

kvc_status kvc_session_plan(const kvc_model* model, const kvc_policy* policy,
                            const kvc_session_params* params, int32_t n_prompt, kvc_plan* out_plan,
                            int32_t* slots, int32_t cap_slots, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    KVC_RETURN_IF_ERROR(kvc::CheckOut(out_plan, "out_plan"));  // before slots are written
    kvc::SessionParams p;
    KVC_RETURN_IF_ERROR(kvc::ReadParams(params, &p));
    const kvc::PolicyCopy chosen(policy);
    auto plan = Session::Plan(model->model, chosen.get(), p, n_prompt);
    if (!plan.ok()) return plan.status();
    const kvc::SessionPlan& v = plan.value();
    kvc_plan out{};
    out.n_prompt = n_prompt;
    out.weight_bytes = v.weight_bytes, out.workspace_bytes = v.workspace_bytes,
    out.cache_bytes_peak = v.cache_bytes_peak;
    out.cache_bytes_prompt = v.cache_bytes_prompt, out.cache_bytes_end = v.cache_bytes_end,
    out.cache_bytes_full = v.cache_bytes_full;
    out.total_bytes_peak = v.total_bytes_peak;
    if (n_out != nullptr || cap_slots != 0)
      KVC_RETURN_IF_ERROR(CopyBuffer(v.slots.data(), v.slots.size(), "slots", slots, cap_slots, n_out));
    return kvc::CopyOut(out, "out_plan", out_plan);
  });
}

kvc_status kvc_session_create(kvc_model* model, const kvc_policy* policy, const kvc_session_params* params,
                              kvc_session** out_session) {
  if (out_session == nullptr) return kvc::SetLastError(Code::kInvalid, "out_session is NULL");
  *out_session = nullptr;
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    kvc::SessionParams p;
    KVC_RETURN_IF_ERROR(kvc::ReadParams(params, &p));
    const kvc::PolicyCopy chosen(policy);
    auto session = Session::Create(model->model, chosen.get(), p);
    if (!session.ok()) return session.status();
    kvc::Wrap(std::move(session.value()), out_session);
    kvc::TellIfBeyondTraining(*model->model, chosen.get(), p);
    kvc::TellIfMergesAreCoarse(chosen.get());
    return {};
  });
}

void kvc_session_close(kvc_session* session) { delete session; }

kvc_status kvc_session_prefill(kvc_session* session, const int32_t* tokens, int32_t n_tokens) {
  return kvc::PrefillOrAppend(session, tokens, n_tokens, true);
}

kvc_status kvc_session_append(kvc_session* session, const int32_t* tokens, int32_t n_tokens) {
  return kvc::PrefillOrAppend(session, tokens, n_tokens, false);
}

kvc_status kvc_session_enqueue(kvc_session* session, const int32_t* tokens, int32_t n_tokens,
                               int32_t compress) {
  return GuardSession(session, [&](Session& s) -> Status {
    kvc::Span<const int32_t> span;
    KVC_RETURN_IF_ERROR(kvc::ReadTokens(tokens, n_tokens, &span));
    return s.Enqueue(span, compress != 0);
  });
}

kvc_status kvc_session_say(kvc_session* session, int32_t role, const uint8_t* text, int32_t n_text,
                           int32_t flags) {
  return GuardSession(session, [&](Session& s) -> Status {
    KVC_RETURN_IF_ERROR(kvc::CheckRole(role));
    if (n_text < 0 || (n_text > 0 && text == nullptr))
      return Error(Code::kInvalid, "text: %d bytes at %s", n_text, text == nullptr ? "NULL" : "an address");
    if ((flags & ~(KVC_ANSWER | KVC_QUEUE)) != 0)
      return Error(Code::kInvalid, "flags are 0x%x; known are KVC_ANSWER (1) and KVC_QUEUE (2)",
                   static_cast<unsigned>(flags));
    const kvc::CompressionNote note(s);
    KVC_RETURN_IF_ERROR(s.Say(static_cast<kvc::Role>(role), {text, static_cast<size_t>(n_text)},
                              (flags & KVC_ANSWER) != 0, (flags & KVC_QUEUE) != 0));
    note.Tell();
    return {};
  });
}

kvc_status kvc_session_set_turn_marks(kvc_session* session, int32_t role, const char* prefix,
                                      const char* suffix) {
  return GuardSession(session, [&](Session& s) -> Status {
    KVC_RETURN_IF_ERROR(kvc::CheckRole(role));
    return s.SetTurnMarks(static_cast<kvc::Role>(role), prefix, suffix);
  });
}

kvc_status kvc_session_step(kvc_session* session, int32_t* out_token) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (out_token == nullptr) return NullError("out_token");
    int32_t token;
    KVC_RETURN_IF_ERROR(s.Step(&token));
    *out_token = token;
    return {};
  });
}

kvc_status kvc_session_step_draft(kvc_session* session, const int32_t* draft, int32_t n_draft,
                                  int32_t* tokens, int32_t cap_tokens, int32_t* n_out) {
  if (n_out != nullptr) *n_out = 0;  // also where the session is busy
  return GuardSession(session, [&](Session& s) -> Status {
    if (n_out == nullptr) return NullError("n_out");
    if (tokens == nullptr) return NullError("tokens");
    kvc::Span<const int32_t> span;
    KVC_RETURN_IF_ERROR(kvc::ReadTokens(draft, n_draft, &span, "n_draft"));
    return s.StepDraft(span, tokens, cap_tokens, n_out);
  });
}

kvc_status kvc_draft_lookup(const int32_t* tokens, int32_t n_tokens, int32_t n_gram, int32_t* draft,
                            int32_t cap_draft, int32_t* n_out) {
  return Guard([&]() -> Status {
    constexpr int32_t kMostGram = 64;
    kvc::Span<const int32_t> span;
    if (n_out == nullptr) return NullError("n_out");
    KVC_RETURN_IF_ERROR(kvc::ReadTokens(tokens, n_tokens, &span));
    if (n_gram < 1 || n_gram > kMostGram)
      return Error(Code::kInvalid, "n_gram is %d; it is 1 to %d", n_gram, kMostGram);
    if (cap_draft < 0) return Error(Code::kInvalid, "cap_draft is %d", cap_draft);
    if (draft == nullptr && cap_draft > 0) return NullError("draft");
    *n_out = kvc::LookUpDraft(span, n_gram, draft, cap_draft);
    return {};
  });
}

kvc_status kvc_session_accept(kvc_session* session, int32_t token) {
  return GuardSession(session, [&](Session& s) { return s.Accept(token); });
}

kvc_status kvc_session_set_sampling(kvc_session* session, const kvc_sampling* sampling) {
  return GuardSession(session, [&](Session& s) -> Status {
    kvc_sampling p;
    KVC_RETURN_IF_ERROR(kvc::CopyIn(sampling, "sampling", &p));
    kvc::SamplerParams params;
    params.temperature = p.temperature, params.top_p = p.top_p, params.top_k = p.top_k, params.seed = p.seed;
    params.min_p = p.min_p, params.repeat_penalty = p.repeat_penalty, params.repeat_window = p.repeat_window;
    if (p.reserved != 0) return Error(Code::kInvalid, "sampling: reserved is %d; it is 0", p.reserved);
    return s.SetSampling(params);
  });
}

kvc_status kvc_session_set_logit_bias(kvc_session* session, const int32_t* tokens, const float* biases,
                                      int32_t n) {
  return GuardSession(session, [&](Session& s) -> Status {
    kvc::Span<const int32_t> span;
    KVC_RETURN_IF_ERROR(kvc::ReadTokens(tokens, n, &span, "n"));
    if (biases == nullptr && n > 0) return NullError("biases");
    return s.SetBias(span, biases);
  });
}

kvc_status kvc_session_set_token_mask(kvc_session* session, const int32_t* mask, int32_t n_words) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (n_words < 0) return Error(Code::kInvalid, "n_words is %d", n_words);
    if (mask == nullptr && n_words > 0) return NullError("mask");
    return s.SetMask({mask, static_cast<size_t>(n_words)});
  });
}

kvc_status kvc_session_read_text(kvc_session* session, uint8_t* text, int32_t cap_text, int32_t* n_out) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (n_out == nullptr) return NullError("n_out");
    if (cap_text < 0 || (cap_text > 0 && text == nullptr))
      return Error(Code::kInvalid, "text: a capacity of %d", cap_text);
    if (cap_text == 0) {
      *n_out = s.text().Available();
      return {};
    }
    const int32_t next = s.text().NextBytes();
    if (next > cap_text) {
      *n_out = next;
      return Error(Code::kBufferTooSmall, "text: the next character has %d bytes, room for %d", next,
                   cap_text);
    }
    *n_out = s.text().Pull(text, cap_text);
    return {};
  });
}

kvc_status kvc_session_get_logits(kvc_session* session, float* logits, int32_t cap_logits, int32_t* n_out) {
  return GuardSession(session, [&](Session& s) -> Status {
    const size_t n = static_cast<size_t>(s.model().config().vocab_size);
    KVC_RETURN_IF_ERROR(s.HasLogits());
    int32_t count = 0;
    Status status = kvc::CheckBuffer(n, "logits", logits, cap_logits, n_out == nullptr ? nullptr : &count);
    if (status.ok()) status = s.ReadLogits(cap_logits == 0 ? nullptr : logits);
    if (status.ok() || status.code() == Code::kBufferTooSmall) *n_out = count;
    return status;
  });
}

kvc_status kvc_session_get_stats(const kvc_session* session, kvc_session_stats* out_stats) {
  return GuardSession(const_cast<kvc_session*>(session), [&](Session& s) -> Status {
    const kvc::SessionStats v = s.Stats();
    kvc_session_stats out{};
    out.stop_token = v.stop_token, out.n_tokens = v.n_tokens, out.prompt_progress = v.prompt_progress;
    out.n_prompt = v.n_prompt, out.n_answer = v.n_answer, out.n_compactions = v.n_compactions;
    out.cache_bytes = v.cache_bytes, out.cache_bytes_peak = v.cache_bytes_peak,
    out.cache_bytes_full = v.cache_bytes_full;
    out.workspace_bytes = v.workspace_bytes, out.weight_bytes = v.weight_bytes, out.n_slots = v.n_slots,
    out.n_slots_full = v.n_slots_full;
    out.prefill_seconds = v.prefill_seconds, out.compress_seconds = v.compress_seconds,
    out.decode_seconds = v.decode_seconds;
    return kvc::CopyOut(out, "out_stats", out_stats);
  });
}

kvc_status kvc_session_get_progress(const kvc_session* session, double* out_share) {
  if (session == nullptr || out_share == nullptr)
    return kvc::SetLastError(Code::kInvalid, session == nullptr ? "session is NULL" : "out_share is NULL");
  *out_share = session->session->call().progress();
  return KVC_OK;
}

kvc_status kvc_session_get_kept(const kvc_session* session, int32_t layer, int32_t kv_head,
                                int32_t* positions, int32_t cap_positions, int32_t* n_out) {
  return GuardSession(const_cast<kvc_session*>(session), [&](Session& s) -> Status {
    const kvc::ModelConfig& c = s.model().config();
    if (layer < 0 || layer >= c.n_layers || kv_head < 0 || kv_head >= c.n_kv_heads) {
      return Error(Code::kInvalid, "layer %d, KV head %d: the model has %d layers of %d", layer, kv_head,
                   c.n_layers, c.n_kv_heads);
    }
    std::vector<int32_t> kept;
    KVC_RETURN_IF_ERROR(s.Kept(layer, kv_head, &kept));
    return CopyBuffer(kept.data(), kept.size(), "positions", positions, cap_positions, n_out);
  });
}

kvc_status kvc_session_reset(kvc_session* session) {
  return GuardSession(session, [](Session& s) -> Status {
    s.Reset();
    return {};
  });
}

kvc_status kvc_session_cancel(kvc_session* session) {
  if (session == nullptr) return kvc::SetLastError(Code::kInvalid, "session is NULL");
  session->session->call().RequestCancel();
  return KVC_OK;
}

kvc_status kvc_session_clear_cancel(kvc_session* session) {
  if (session == nullptr) return kvc::SetLastError(Code::kInvalid, "session is NULL");
  session->session->call().ClearCancel();
  return KVC_OK;
}

kvc_status kvc_session_compress(kvc_session* session) {
  return GuardSession(session, [](Session& s) { return kvc::RecompressAndTell(s, 0, nullptr); });
}

kvc_status kvc_session_trim(kvc_session* session, int32_t budget, int64_t* out_freed) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (budget < 1) return Error(Code::kInvalid, "budget is %d; it is 1 or more slots per KV head", budget);
    int64_t freed = 0;
    KVC_RETURN_IF_ERROR(kvc::RecompressAndTell(s, budget, &freed));
    if (out_freed != nullptr) *out_freed = freed;
    return {};
  });
}

kvc_status kvc_session_fork(kvc_session* session, kvc_session** out_session) {
  if (out_session == nullptr) return kvc::SetLastError(Code::kInvalid, "out_session is NULL");
  *out_session = nullptr;
  return GuardSession(session, [&](Session& s) -> Status {
    auto fork = s.Fork();
    if (!fork.ok()) return fork.status();
    kvc::Wrap(std::move(fork.value()), out_session);
    return {};
  });
}

kvc_status kvc_session_rewind(kvc_session* session, int32_t n_tokens) {
  return GuardSession(session, [&](Session& s) { return s.Rewind(n_tokens); });
}

kvc_status kvc_session_save(kvc_session* session, const char* path) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (path == nullptr) return NullError("path");
    KVC_RETURN_IF_ERROR(s.Save(path));
    kvc::TellOfFile("saved", s, path);
    return {};
  });
}

kvc_status kvc_session_restore(kvc_model* model, const char* path, kvc_session** out_session) {
  if (out_session == nullptr) return kvc::SetLastError(Code::kInvalid, "out_session is NULL");
  *out_session = nullptr;
  return Guard([&]() -> Status {
    if (model == nullptr || path == nullptr) return NullError(model == nullptr ? "model" : "path");
    auto session = Session::Restore(model->model, path);
    if (!session.ok()) return session.status();
    kvc::Wrap(std::move(session.value()), out_session);
    kvc::TellOfFile("restored", *(*out_session)->session, path);
    return {};
  });
}

kvc_status kvc_session_save_memory(kvc_session* session, uint8_t* data, int64_t cap_data, int64_t* n_out) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (n_out == nullptr) return NullError("n_out");
    if (cap_data < 0 || (cap_data > 0 && data == nullptr))
      return Error(Code::kInvalid, "data: a capacity of %lld with %s buffer",
                   static_cast<long long>(cap_data), data == nullptr ? "no" : "a");
    kvc::MemorySink size(nullptr, 0);
    KVC_RETURN_IF_ERROR(s.SaveTo(&size));
    if (cap_data == 0 || size.size() > cap_data) *n_out = size.size();
    if (cap_data == 0) return {};
    if (size.size() > cap_data)
      return Error(Code::kBufferTooSmall, "data: %lld bytes, room for %lld",
                   static_cast<long long>(size.size()), static_cast<long long>(cap_data));
    kvc::MemorySink sink(data, cap_data);
    KVC_RETURN_IF_ERROR(s.SaveTo(&sink));
    *n_out = size.size();
    kvc::TellOfFile("saved", s, "into memory");
    return {};
  });
}

kvc_status kvc_session_restore_memory(kvc_model* model, const uint8_t* data, int64_t n_bytes,
                                      kvc_session** out_session) {
  if (out_session == nullptr) return kvc::SetLastError(Code::kInvalid, "out_session is NULL");
  *out_session = nullptr;
  return Guard([&]() -> Status {
    if (model == nullptr || data == nullptr) return NullError(model == nullptr ? "model" : "data");
    if (n_bytes < 0) return Error(Code::kInvalid, "n_bytes is negative");
    auto session = Session::RestoreFrom(model->model, {data, static_cast<size_t>(n_bytes)});
    if (!session.ok()) return session.status();
    kvc::Wrap(std::move(session.value()), out_session);
    kvc::TellOfFile("restored", *(*out_session)->session, "from memory");
    return {};
  });
}

}  // extern "C"

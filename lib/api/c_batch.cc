// Batches of kvc.h: many sessions in one pass over the weights.
#include "lib/api/handles.h"

namespace kvc {
namespace {

constexpr int32_t kDefaultPromptTokens = 256;

// What both calls have in common. logits null: tokens are chosen.
Status RunBatch(Span<Session* const> sessions, const kvc_batch_params* params, float* logits,
                int32_t* out_tokens, kvc_status* out_statuses) {
  if (out_tokens == nullptr) return NullError("out_tokens");
  kvc_batch_params p;
  KVC_RETURN_IF_ERROR(CopyIn(params, "params (kvc_batch_params)", &p));
  if (p.prompt_tokens < 0)
    return Error(Code::kInvalid, "prompt_tokens is %d; it is 0 (256) or more", p.prompt_tokens);
  const Model& model = sessions[0]->model();
  std::vector<StepWish> rows(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (&sessions[i]->model() != &model)
      return Error(Code::kInvalid, "session %zu of the batch has another model", i);
    rows[i].session = sessions[i];
    if (logits != nullptr) rows[i].logits = logits + static_cast<int64_t>(i) * model.config().vocab_size;
  }
  const int32_t tokens = p.prompt_tokens > 0 ? p.prompt_tokens : kDefaultPromptTokens;
  Session::RunBatch({rows.data(), rows.size()}, Session::ChunksOf(model, tokens));
  for (size_t i = 0; i < rows.size(); ++i) {
    out_tokens[i] = rows[i].token;
    const kvc_status status = rows[i].status.ok() ? KVC_OK : Report(rows[i].status);
    if (status == KVC_E_CANCELLED) sessions[i]->call().ClearCancel();  // the request has been answered
    if (out_statuses != nullptr) out_statuses[i] = status;
  }
  return {};
}

}  // namespace
}  // namespace kvc

using kvc::Code;
using kvc::Error;
using kvc::GuardBatch;
using kvc::Session;
using kvc::Status;

extern "C" {

kvc_status kvc_batch_step(kvc_session* const* sessions, int32_t n, const kvc_batch_params* params,
                          int32_t* out_tokens, kvc_status* out_statuses) {
  return GuardBatch(sessions, n, [&](kvc::Span<Session* const> batch) -> Status {
    return kvc::RunBatch(batch, params, nullptr, out_tokens, out_statuses);
  });
}

kvc_status kvc_batch_logits(kvc_session* const* sessions, int32_t n, const kvc_batch_params* params,
                            float* logits, int64_t cap_logits, int32_t* out_tokens,
                            kvc_status* out_statuses) {
  return GuardBatch(sessions, n, [&](kvc::Span<Session* const> batch) -> Status {
    if (logits == nullptr) return kvc::NullError("logits");
    const int64_t wanted = int64_t{n} * batch[0]->model().config().vocab_size;
    if (cap_logits < wanted) {
      return Error(Code::kBufferTooSmall, "logits: %lld numbers, room for %lld",
                   static_cast<long long>(wanted), static_cast<long long>(cap_logits));
    }
    return kvc::RunBatch(batch, params, logits, out_tokens, out_statuses);
  });
}

}  // extern "C"

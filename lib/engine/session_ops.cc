// Operations on a cache beside filling it: fork, rewind, compressing again.
#include <algorithm>

#include "lib/engine/session.h"

namespace kvc {

void Session::CopyCounters(const Session& from) {
  n_tokens_ = from.n_tokens_, n_prompt_ = from.n_prompt_, n_answer_ = from.n_answer_;
  n_compactions_ = from.n_compactions_;
  pending_ = from.pending_, stop_token_ = from.stop_token_, finished_ = from.finished_;
  changed_at_ = from.changed_at_;
  tokens_ = from.tokens_, keeps_tokens_ = from.keeps_tokens_;
  rewound_ = from.rewound_;
}

// `other` is a fork of this session from before something failed.
void Session::TakeStateOf(Session& other) {
  cache_ = std::move(other.cache_);
  compressor_ = std::move(other.compressor_);
  std::copy(other.logits_.data(), other.logits_.data() + logits_.size(), logits_.data());
  CopyCounters(other);
}

Result<std::unique_ptr<Session>> Session::Fork() {
  MemoryMeter* meter = model_->meter().get();
  const ModelConfig& config = model_->config();
  std::unique_ptr<Session> s(new Session(model_, params_));
  Result<std::unique_ptr<Compressor>> compressor = compressor_->Fork();
  if (!compressor.ok()) return compressor.status();
  s->compressor_ = std::move(compressor.value());
  Result<std::unique_ptr<KvCache>> cache = cache_->Fork();
  if (!cache.ok()) return cache.status();
  s->cache_ = std::move(cache.value());
  KVC_RETURN_IF_ERROR(s->logits_.Allocate(meter, config.vocab_size, "logits"));
  KVC_RETURN_IF_ERROR(s->rotated_q_.Allocate(meter, int64_t{config.n_heads} * config.head_dim, "queries"));
  KVC_RETURN_IF_ERROR(s->forward_.ReserveDecode(config, 1, meter));
  std::copy(logits_.data(), logits_.data() + config.vocab_size, s->logits_.data());
  s->CopyCounters(*this);
  s->cache_bytes_peak_ = cache_->bytes();
  return s;
}

Status Session::Rewind(int32_t n) {
  const int32_t held = n_tokens_ + (pending_ >= 0);
  if (n < 1 || n > held) return Error(Code::kInvalid, "rewind by %d: the session holds %d tokens", n, held);
  const int32_t fed = n - (pending_ >= 0);
  if (fed > 0 && n_tokens_ - fed < changed_at_) {
    return Error(Code::kUnsupported,
                 "rewind by %d: an older entry was dropped, merged or quantised %d tokens ago", n,
                 n_tokens_ - changed_at_);
  }
  if (fed > 0) {
    KVC_RETURN_IF_ERROR(cache_->RewindTo(n_tokens_ - fed));
    compressor_->Rewind(fed);
    n_tokens_ -= fed;
    if (keeps_tokens_) tokens_.resize(tokens_.size() - std::min(tokens_.size(), static_cast<size_t>(fed)));
  }
  pending_ = stop_token_ = -1;
  finished_ = false;
  rewound_ = true;
  return {};
}

// Window scorers need the queries of the newest tokens, which nobody keeps: those tokens are taken out and
// run once more over the entries there are (methods.md 1.9, a second prompt). Where everything is still
// cached that repeats the first run exactly; a head that had dropped some of them may choose again.
Status Session::Recompress(int32_t budget, int64_t* freed) {
  KVC_RETURN_IF_ERROR(CheckCancel("compression"));
  KVC_RETURN_IF_ERROR(FeedPending());
  if (n_tokens_ == 0) return Error(Code::kInvalid, "there is nothing to compress before the first prompt");
  const int64_t before = cache_->bytes();
  Result<std::unique_ptr<KvCache>> forked = cache_->Fork();
  if (!forked.ok()) return forked.status();
  Result<std::unique_ptr<Compressor>> compressor = compressor_->Fork();
  if (!compressor.ok()) return compressor.status();
  if (budget > 0) KVC_RETURN_IF_ERROR(compressor.value()->SetBudget(budget, n_tokens_));
  if (compressor_->policy().keeps_all()) {
    if (freed != nullptr) *freed = 0;
    return {};
  }
  const int32_t rows = std::min(compressor_->ReplayRows(n_tokens_), static_cast<int32_t>(tokens_.size()));
  if (rows > 0) {
    const std::vector<int32_t> newest(tokens_.end() - rows, tokens_.end());
    KVC_RETURN_IF_ERROR(forked.value()->RewindTo(n_tokens_ - rows));
    compressor.value()->Rewind(rows);
    std::vector<float> logits;
    KVC_RETURN_IF_ERROR(RunPrompt(newest, std::move(forked.value()), std::move(compressor.value()),
                                  n_tokens_ - rows, true, &logits));
  } else {
    KVC_RETURN_IF_ERROR(ReduceBySideValues(std::move(forked.value()), std::move(compressor.value())));
  }
  Commit();
  changed_at_ = n_tokens_;
  if (freed != nullptr) *freed = std::max<int64_t>(before - cache_->bytes(), 0);
  return {};
}

// Scorers with side values remember what they need: each layer is loaded, chosen from and stored again.
Status Session::ReduceBySideValues(std::unique_ptr<KvCache> cache, std::unique_ptr<Compressor> compressor) {
  PromptScope scope(this);
  prompt_ = Prompt();
  prompt_.cache = std::move(cache);
  prompt_.compressor = std::move(compressor);
  prompt_.compress = true;
  PromptNeeds needs;
  Status status = prompt_.compressor->BeginPrompt(n_tokens_, &needs);
  PrefillRequest request;
  request.n = 1, request.max_cached = prompt_.cache->MaxLen(), request.n_aux = compressor_->n_aux(),
  request.column_sums = true;
  const Reread nothing;  // to look at again
  if (needs.reread) request.reread = &nothing;
  LayerKv* kv = nullptr;
  Observation* observed = nullptr;
  if (status.ok())
    status = forward_.ReserveLayer(model_->config(), request, model_->meter().get(), &kv, &observed);
  for (int layer = 0; layer < model_->config().n_layers && status.ok(); ++layer) {
    status = BeginLayer(layer, kv);
    if (status.ok())
      status = prompt_.compressor->CompressLayer(layer, kv, observed, true, prompt_.cache.get());
  }
  if (status.ok()) scope.Keep();
  return status;
}

Status Session::MaskHeads(Span<const uint8_t> keep, int32_t window) {
  const ModelConfig& c = model_->config();
  if (keep.size() != static_cast<size_t>(c.n_layers * c.n_kv_heads) || window < 1) {
    return Error(
        Code::kInvalid,
        "mask_heads: %zu flags and window %d; the model has %d x %d KV heads, the window is 1 or more",
        keep.size(), window, c.n_layers, c.n_kv_heads);
  }
  if (compressor_->in_cache()) {
    return Error(Code::kUnsupported,
                 "mask_heads: this session counts positions in slots, which masked heads would number anew");
  }
  KVC_RETURN_IF_ERROR(FeedPending());
  Result<std::unique_ptr<KvCache>> masked = cache_->Fork();
  if (!masked.ok()) return masked.status();
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i] != 0) continue;
    KVC_RETURN_IF_ERROR(masked.value()->KeepNewest(static_cast<int>(i) / c.n_kv_heads,
                                                   static_cast<int>(i) % c.n_kv_heads, window));
  }
  cache_ = std::move(masked.value());
  changed_at_ = n_tokens_;
  return {};
}

Status Session::FeedBatch(Span<Session* const> sessions, const int32_t* tokens) {
  if (sessions.empty()) return {};
  Session& first = *sessions[0];
  std::vector<DecodeRow> rows;
  for (size_t i = 0; i < sessions.size(); ++i) {
    Session& s = *sessions[i];
    if (s.model_ != first.model_)
      return Error(Code::kInvalid, "session %zu of the batch has another model", i);
    if (s.n_tokens_ == 0 || s.rewound_)
      return Error(Code::kInvalid, "session %zu of the batch has no prompt", i);
    KVC_RETURN_IF_ERROR(s.CheckTokenIds({tokens + i, 1}));
    KVC_RETURN_IF_ERROR(s.FeedPending());
    const Status room = s.MakeRoom();
    if (!room.ok()) return Error(room.code(), "session %zu of the batch: %s", i, room.message().c_str());
  }
  KVC_RETURN_IF_ERROR(first.forward_.ReserveDecode(
      first.model_->config(), static_cast<int32_t>(sessions.size()), first.model_->meter().get()));
  for (size_t i = 0; i < sessions.size(); ++i) {
    KVC_RETURN_IF_ERROR(sessions[i]->ReserveStep(1));
    rows.push_back({tokens[i], sessions[i]->n_tokens_, sessions[i], sessions[i]->logits_.data()});
  }
  Decode(first.model_->network(), rows.data(), static_cast<int32_t>(rows.size()), &first.forward_);
  for (size_t i = 0; i < sessions.size(); ++i) sessions[i]->Fed(tokens[i]);
  return {};
}

Status Session::Attention(int layer, int32_t head, std::vector<float>* p) const {
  const ModelConfig& c = model_->config();
  const size_t i = static_cast<size_t>(layer * c.n_heads + head);
  if (i >= attention_.size() || attention_[i].empty())
    return Error(Code::kInvalid, "no attention was kept: switch it on before the token is fed");
  *p = attention_[i];
  if (static_cast<int32_t>(p->size()) != cache_->Len(layer, head / (c.n_heads / c.n_kv_heads))) {
    return Error(Code::kUnsupported, "the head has dropped entries since");
  }
  return {};
}

}  // namespace kvc

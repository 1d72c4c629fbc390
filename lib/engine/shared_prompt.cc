// One prompt for several sessions with policies of their own: the network runs once, every layer is handed to
// each session's compressor.
#include <algorithm>
#include <chrono>

#include "lib/engine/reread.h"
#include "lib/engine/session.h"

namespace kvc {

class SharedPrompt final : public PrefillSink {
 public:
  SharedPrompt(Span<Session* const> sessions, Span<const int32_t> tokens)
      : sessions_(sessions), tokens_(tokens.begin(), tokens.end()), needs_(sessions.size()) {}
  // However it ends, memory included: the buffers go, and what no session took.
  ~SharedPrompt() override {
    sessions_[0]->forward_.FreePrefill();
    for (Session* s : sessions_) s->prompt_ = Session::Prompt();
  }
  SharedPrompt(const SharedPrompt&) = delete;
  SharedPrompt& operator=(const SharedPrompt&) = delete;

  Status Run() {
    const auto begin = std::chrono::steady_clock::now();
    Session& first = *sessions_[0];
    MemoryMeter* meter = first.model_->meter().get();
    PrefillRequest request;
    request.tokens = tokens_.data(), request.n = static_cast<int32_t>(tokens_.size());
    request.sink = this, request.call = &first.call_;
    std::vector<float> logits(static_cast<size_t>(first.model_->config().vocab_size));
    request.logits = logits.data();
    PrefillExtras extras;
    request.extras = &extras;
    Status status = Begin(&request);
    const bool again =
        std::any_of(needs_.begin(), needs_.end(), [](const PromptNeeds& n) { return n.reread; });
    Reread reread;
    if (status.ok() && again) {
      status = MakeReread(*first.model_, tokens_, request.n, &reread);
      request.reread = &reread;
    }
    // Every compressor gets a copy it may change; one copy at a time.
    PrefillRequest copy = request;
    for (Session* s : sessions_) copy.n_aux = std::max(copy.n_aux, s->compressor_->n_aux());
    if (status.ok()) status = copy_.ReserveLayer(first.model_->config(), copy, meter, &kv_, &observed_);
    if (status.ok()) status = kvc::Prefill(first.model_->network(), request, &first.forward_, meter);
    if (!status.ok()) return status;
    // What a session of its own would have taken: the network, what its scorer asked for, its compression.
    double network = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() -
                     extras.column_sums - extras.reread;
    for (const Session* s : sessions_) network -= s->prompt_.compress_seconds;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      Session* s = sessions_[i];
      s->prefill_seconds_ += network + (needs_[i].column_sums ? extras.column_sums : 0) +
                             (needs_[i].reread ? extras.reread : 0) + s->prompt_.compress_seconds;
      s->TakePrompt(tokens_, request.n, logits.data());
    }
    return {};
  }

  Status BeginLayer(int, LayerKv* kv) override {
    std::fill(kv->len.begin(), kv->len.end(), 0);
    return {};
  }

  Status EndLayer(int layer, LayerKv* kv, Observation* observed) override {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      CopyLayer(*kv, *observed, needs_[i], sessions_[i]->compressor_->n_aux());
      sessions_[i]->prompt_.first_new.assign(kv->len.size(), 0);
      KVC_RETURN_IF_ERROR(sessions_[i]->EndLayer(layer, kv_, observed_));
    }
    return {};
  }

 private:
  Status Begin(PrefillRequest* request) {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      Session& s = *sessions_[i];
      if (s.model_ != sessions_[0]->model_) return Error(Code::kInvalid, "session %zu has another model", i);
      if (s.n_tokens_ != 0 || s.pending_ >= 0) return Error(Code::kInvalid, "session %zu is not empty", i);
      KVC_RETURN_IF_ERROR(s.CheckTokens(tokens_));
      if (request->n > s.params_.max_tokens)
        return Error(Code::kContextFull, "session %zu: %d tokens do not fit in max_tokens=%d", i, request->n,
                     s.params_.max_tokens);
      Result<std::unique_ptr<KvCache>> cache = s.cache_->Fork();
      if (!cache.ok()) return cache.status();
      Result<std::unique_ptr<Compressor>> compressor = s.compressor_->Fork();
      if (!compressor.ok()) return compressor.status();
      KVC_RETURN_IF_ERROR(s.BeginPrompt(std::move(cache.value()), std::move(compressor.value()), request->n,
                                        true, &needs_[i]));
      request->window_rows = std::max(request->window_rows, needs_[i].window_rows);
      request->column_sums = request->column_sums || needs_[i].column_sums;
    }
    return {};
  }

  void CopyLayer(const LayerKv& from, const Observation& seen, const PromptNeeds& needs, int32_t n_aux) {
    const int64_t entries = int64_t{from.n_kv_heads} * from.capacity;
    std::copy_n(from.keys.data(), entries * from.head_dim, kv_->keys.data());
    std::copy_n(from.values.data(), entries * from.head_dim, kv_->values.data());
    std::copy_n(from.positions.data(), entries, kv_->positions.data());
    kv_->n_aux = n_aux;
    if (n_aux > 0) std::fill_n(kv_->aux.data(), n_aux * entries, 0.0f);
    kv_->len = from.len;
    const int32_t rows = std::min(needs.window_rows, seen.n_rows);
    const int64_t width =
        seen.n_rows == 0 ? 0 : int64_t{sessions_[0]->model_->config().n_heads} * from.head_dim;
    std::copy_n(seen.queries.data() + (seen.n_rows - rows) * width, rows * width, observed_->queries.data());
    observed_->n_rows = rows, observed_->n_new = seen.n_new;
    if (seen.column_sums) std::copy_n(seen.sums.data(), entries, observed_->sums.data());
    if (seen.reread) std::copy_n(seen.maxima.data(), entries, observed_->maxima.data());
  }

  Span<Session* const> sessions_;
  const std::vector<int32_t> tokens_;
  std::vector<PromptNeeds> needs_;
  ForwardWorkspace copy_;
  LayerKv* kv_ = nullptr;
  Observation* observed_ = nullptr;
};

Status Session::PrefillTogether(Span<Session* const> sessions, Span<const int32_t> tokens) {
  return sessions.empty() ? Status() : SharedPrompt(sessions, tokens).Run();
}

}  // namespace kvc

#include "lib/engine/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lib/engine/reread.h"

namespace kvc {
namespace {

constexpr int32_t kCompressChunk = 1024;  // tokens of compress_per_chunk
constexpr int32_t kFullChunk = 256;  // tokens of a prompt that are read before others leave, past max_tokens
constexpr int32_t kTokenHeadroom = 1024;  // tokens remembered beside those that may be run again
constexpr int32_t kStepHeadroom =
    64;  // steps whose scratch is taken with the prompt's, so that a step takes none

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool IsEndless(const Policy& policy) {
  return !policy.keeps_all() && policy.decode == DecodeMode::kStep &&
         policy.positions == PositionMode::kInCache;
}

Policy FullPolicy() {
  Result<Policy> full = ParsePolicy("full");
  assert(full.ok());
  return full.value();
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, const SessionParams& params)
    : model_(std::move(model)),
      params_(params),
      sampler_(params.sampler),
      text_(model_->tokenizer().spec().kind == TokenizerKind::kSentencePieceBpe &&
            model_->tokenizer().spec().add_space_prefix) {}

Status Session::CheckPolicy(const Model& model, const Policy& policy) {
  const int32_t window = model.config().sliding_window;
  if (window > 0 && window < model.config().max_tokens && !policy.keeps_all()) {
    return Error(Code::kUnsupported,
                 "this model's layers attend to the newest %d tokens only; such layers are not compressed "
                 "(use policy full)",
                 window);
  }
  return {};
}

Result<std::unique_ptr<Session>> Session::Create(std::shared_ptr<const Model> model, const Policy* policy,
                                                 const SessionParams& params) {
  std::shared_ptr<MemoryMeter> meter = model->meter();
  return CreateOn(std::move(model), policy, params, std::move(meter));
}

Result<std::unique_ptr<Session>> Session::CreateOn(std::shared_ptr<const Model> model, const Policy* policy,
                                                   const SessionParams& params,
                                                   std::shared_ptr<MemoryMeter> meter) {
  const Policy chosen = policy != nullptr ? *policy : FullPolicy();
  Result<HeadScores> scores = model->ScoresFor(chosen);
  if (!scores.ok()) return scores.status();
  return CreateWithScores(std::move(model), chosen, std::move(scores.value()), params, std::move(meter),
                          /*page_slots=*/0);
}

Result<std::unique_ptr<Session>> Session::CreateWithScores(std::shared_ptr<const Model> model,
                                                           const Policy& chosen, HeadScores scores,
                                                           const SessionParams& params,
                                                           std::shared_ptr<MemoryMeter> shared_meter,
                                                           int32_t page_slots) {
  const ModelConfig& config = model->config();
  if (params.max_tokens < 0 || params.max_tokens > kMaxContext) {
    return Error(Code::kInvalid, "max_tokens is %d; it is 0 (the model's context) to %d", params.max_tokens,
                 kMaxContext);
  }
  KVC_RETURN_IF_ERROR(Sampler::Check(params.sampler));
  KVC_RETURN_IF_ERROR(CheckPolicy(*model, chosen));
  MemoryMeter* meter = shared_meter.get();
  Result<std::unique_ptr<Compressor>> compressor =
      Compressor::Create(chosen, Shape(*model), std::move(scores), model->ops(), meter);
  if (!compressor.ok()) return compressor.status();

  std::unique_ptr<Session> s(new Session(model, params));
  if (s->params_.max_tokens == 0) s->params_.max_tokens = IsEndless(chosen) ? kMaxContext : config.max_tokens;
  s->compressor_ = std::move(compressor.value());
  s->keeps_tokens_ = s->compressor_->ReplayRows(s->params_.max_tokens) > 0;
  CacheConfig cache_config = page_slots > 0 ? s->compressor_->FormatsFor(page_slots)
                                            : s->compressor_->MakeCacheConfig(s->params_.max_tokens);
  cache_config.ordered = cache_config.ordered || params.on_full != OnFull::kError;
  const bool blocks = std::any_of(cache_config.formats.begin(), cache_config.formats.end(),
                                  [](const HeadFormat& format) { return format.key_channels; });
  if (blocks && cache_config.ordered) {
    return Error(Code::kUnsupported,
                 "key_axis=channel codes the keys of many tokens together; on_full drops them one by one");
  }
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(cache_config, model->ops().kernels, shared_meter);
  if (!cache.ok()) return cache.status();
  s->cache_ = std::move(cache.value());
  KVC_RETURN_IF_ERROR(s->logits_.Allocate(meter, config.vocab_size, "logits"));
  KVC_RETURN_IF_ERROR(s->rotated_q_.Allocate(meter, int64_t{config.n_heads} * config.head_dim, "queries"));
  KVC_RETURN_IF_ERROR(s->forward_.ReserveDecode(config, 1, meter));
  return s;
}

Status Session::CheckTokenIds(Span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= model_->config().vocab_size) {
      return Error(Code::kInvalid, "token %zu is %d; ids are 0 to %d", i, tokens[i],
                   model_->config().vocab_size - 1);
    }
  }
  return {};
}

Status Session::CheckTokens(Span<const int32_t> tokens) const {
  if (tokens.empty()) return Error(Code::kInvalid, "the prompt has no tokens; an empty text is BOS alone");
  KVC_RETURN_IF_ERROR(CheckTokenIds(tokens));
  const int64_t total = held() + static_cast<int64_t>(tokens.size());
  if (total > params_.max_tokens && params_.on_full == OnFull::kError) {
    return Error(Code::kContextFull, "%zu more tokens after %d do not fit in max_tokens=%d", tokens.size(),
                 held(), params_.max_tokens);
  }
  if (total <= kMaxPosition) return {};
  return Error(Code::kContextFull, "%zu more tokens after %d: a session counts %d", tokens.size(), held(),
               kMaxPosition);
}

Status Session::CheckCancel(const char* what) const {
  return call_.cancelled() ? Error(Code::kCancelled, "the %s was cancelled; it may be repeated", what)
                           : Status();
}

// Makes prompt_ ready for tokens that bring the sequence to n_tokens; needs says what must be recorded.
Status Session::BeginPrompt(std::unique_ptr<KvCache> cache, std::unique_ptr<Compressor> compressor,
                            int32_t n_tokens, bool compress, PromptNeeds* needs) {
  prompt_ = Prompt();
  prompt_.cache = std::move(cache);
  prompt_.compressor = std::move(compressor);
  prompt_.compress = compress;
  if (keeps_tokens_)
    tokens_.reserve(tokens_.size() + static_cast<size_t>(n_tokens - n_tokens_) + kTokenHeadroom);
  if (n_tokens > params_.max_tokens && !prompt_.compressor->keeps_lengths())
    prompt_.compressor->KeepLengths(*prompt_.cache, params_.on_full == OnFull::kSlide, n_tokens_);
  return prompt_.compressor->BeginPrompt(n_tokens, needs);
}

// Runs tokens through the network onto `cache`; prompt_ then holds what they leave. The session itself is not
// touched.
Status Session::RunPrompt(const std::vector<int32_t>& tokens, std::unique_ptr<KvCache> cache,
                          std::unique_ptr<Compressor> compressor, int32_t first_position, bool compress,
                          std::vector<float>* logits) {
  const int32_t n = static_cast<int32_t>(tokens.size());
  PromptScope scope(this);
  PromptNeeds needs;
  PrefillRequest request;
  Reread reread;
  Status status = BeginPrompt(std::move(cache), std::move(compressor), first_position + n, compress, &needs);
  prompt_.n_new = n;
  if (status.ok() && needs.reread) status = MakeReread(*model_, tokens, first_position + n, &reread);
  if (status.ok()) {
    request.tokens = tokens.data(), request.n = n, request.first_position = first_position;
    request.max_cached = prompt_.cache->MaxLen();
    request.positions_in_cache = prompt_.compressor->in_cache();
    request.window_rows = needs.window_rows, request.column_sums = needs.column_sums,
    request.reread = needs.reread ? &reread : nullptr;
    request.seen_masks = prompt_.cache->config().seen_masks && request.max_cached > 0;
    request.n_aux = compressor_->n_aux();
    request.sink = this, request.call = &call_;
    logits->resize(static_cast<size_t>(model_->config().vocab_size));
    request.logits = logits->data();
    status = kvc::Prefill(model_->network(), request, &forward_, model_->meter().get());
  }
  if (status.ok()) scope.Keep();
  return status;
}

void Session::Commit() {
  cache_ = std::move(prompt_.cache);
  compressor_ = std::move(prompt_.compressor);
  // From a compressed prompt on, heads hold what it left them.
  if (prompt_.compress && compressor_->keeps_lengths()) compressor_->HoldLengths(*cache_);
  if (compressor_->TakeChanged()) {
    ++n_compactions_;
    changed_at_ = n_tokens_;
  }
  compress_seconds_ += prompt_.compress_seconds;
  cache_bytes_peak_ = std::max({cache_bytes_peak_, prompt_.peak, cache_->bytes()});
  prompt_ = Prompt();
}

Status Session::Prefill(Span<const int32_t> tokens, bool compress) {
  KVC_RETURN_IF_ERROR(CheckTokens(tokens));
  KVC_RETURN_IF_ERROR(CheckCancel("prefill"));
  const Policy& policy = compressor_->policy();
  const int32_t n = held() + static_cast<int32_t>(tokens.size());
  if (compress && !policy.keeps_all()) {
    if (policy.Flag(OptionId::kChunkCompress) && tokens.size() > kCompressChunk)
      return PrefillInParts(tokens, true, kCompressChunk, kCompressChunk);
    // WeightedKV as printed: what the budget holds at once, then a token at a time (methods.md 2.15).
    const int32_t budget = compressor_->BudgetFor(n);
    if (policy.Int(OptionId::kWkvPrefill) == 1 && policy.decode == DecodeMode::kStep && n > budget &&
        tokens.size() > 1)
      return PrefillInParts(tokens, true, std::max(budget - held(), 1), 1);
  }
  // Past max_tokens as many entries leave as come, a part at a time.
  if (n > params_.max_tokens)
    return PrefillInParts(tokens, compress, static_cast<int32_t>(tokens.size()), kFullChunk);
  return PrefillWhole(tokens, compress);
}

// A part at a time, each compressed before the next when that is asked (methods.md 1.9); no part goes across
// max_tokens. A fork keeps what was, so that a failure leaves the session as before.
Status Session::PrefillInParts(Span<const int32_t> tokens, bool compress, int32_t first, int32_t step) {
  struct Undo {  // also when memory ends
    Session* session;
    std::unique_ptr<Session> before;
    ~Undo() {
      if (before != nullptr) session->TakeStateOf(*before);
    }
  };
  Result<std::unique_ptr<Session>> before = Fork();
  if (!before.ok()) return before.status();
  Undo undo{this, std::move(before.value())};
  const int32_t n = static_cast<int32_t>(tokens.size());
  for (int32_t at = 0; at < n;) {
    KVC_RETURN_IF_ERROR(CheckCancel("prefill"));
    int32_t part = std::min(at == 0 ? first : step, n - at);
    const int32_t room = params_.max_tokens - held();
    if (part > room) part = room > 0 ? room : std::min(part, kFullChunk);
    if (step == 1 && at > 0) {
      KVC_RETURN_IF_ERROR(MakeRoom());
      KVC_RETURN_IF_ERROR(Feed(tokens[static_cast<size_t>(at)]));
      ++n_prompt_;
    } else {
      KVC_RETURN_IF_ERROR(
          PrefillWhole(tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(part)), compress));
    }
    at += part;
  }
  if (step == 1) KVC_RETURN_IF_ERROR(cache_->Pack());  // steps take more than the prompt needs
  undo.before.reset();
  return {};
}

Status Session::PrefillWhole(Span<const int32_t> tokens, bool compress) {
  const double begin = Seconds();
  std::vector<int32_t> all;  // the token of the last step comes first
  if (pending_ >= 0) all.push_back(pending_);
  all.insert(all.end(), tokens.begin(), tokens.end());
  Result<std::unique_ptr<KvCache>> cache = cache_->Fork();
  if (!cache.ok()) return cache.status();
  Result<std::unique_ptr<Compressor>> compressor = compressor_->Fork();
  if (!compressor.ok()) return compressor.status();
  std::vector<float> logits;
  KVC_RETURN_IF_ERROR(
      RunPrompt(all, std::move(cache.value()), std::move(compressor.value()), n_tokens_, compress, &logits));
  TakePrompt(all, static_cast<int32_t>(tokens.size()), logits.data());
  prefill_seconds_ += Seconds() - begin;
  return {};
}

// The prompt went well: the session becomes what prompt_ holds. n_given: tokens of the caller among them.
void Session::TakePrompt(const std::vector<int32_t>& tokens, int32_t n_given, const float* logits) {
  std::copy(logits, logits + logits_.size(), logits_.data());
  n_tokens_ += static_cast<int32_t>(tokens.size());
  n_prompt_ += n_given;
  Remember(tokens);
  pending_ = stop_token_ = -1;
  finished_ = rewound_ = false;
  Commit();
  if (!CanTakeBack()) changed_at_ = n_tokens_;
}

Status Session::BeginLayer(int layer, LayerKv* kv) {
  prompt_.cache->Load(layer, kv);
  if (prompt_.compressor->keeps_lengths()) prompt_.compressor->MakeRoom(layer, prompt_.n_new, kv);
  prompt_.compressor->RotateLoaded(layer, kv);
  prompt_.first_new = kv->len;
  return {};
}

Status Session::EndLayer(int layer, LayerKv* kv, Observation* observed) {
  const double begin = Seconds();
  const bool had_entries = *std::max_element(prompt_.first_new.begin(), prompt_.first_new.end()) > 0;
  const bool only_append = had_entries && compressor_->n_aux() == 0 && !prompt_.compressor->codebook() &&
                           !prompt_.compressor->keeps_lengths() &&
                           (!prompt_.compress || compressor_->policy().keeps_all());
  const Status status =
      only_append
          ? prompt_.compressor->AppendLayer(layer, kv, *observed, prompt_.first_new, prompt_.cache.get())
          : prompt_.compressor->CompressLayer(layer, kv, observed, prompt_.compress, prompt_.cache.get());
  prompt_.compress_seconds += Seconds() - begin;
  const int64_t layer_bytes =
      kv->keys.bytes() + kv->values.bytes() + kv->positions.bytes() + kv->aux.bytes() + kv->seen.bytes();
  prompt_.peak = std::max(prompt_.peak, prompt_.cache->bytes() + layer_bytes);
  workspace_peak_ = std::max(workspace_peak_, WorkspaceBytes() - layer_bytes);
  return status;
}

// Everything the next step may need is taken here: from the first append on a step cannot fail.
Status Session::ReserveStep(int32_t ahead) {
  MemoryMeter* meter = model_->meter().get();
  if (keeps_tokens_ && tokens_.size() == tokens_.capacity())
    tokens_.reserve(2 * tokens_.size() + static_cast<size_t>(kTokenHeadroom));
  // Whole pages: scratch grows in a step that takes pages, if it must.
  const int32_t page = cache_->config().page_slots,
                longest = (cache_->MaxLen() + ahead + page - 1) / page * page;
  KVC_RETURN_IF_ERROR(cache_->ReserveStep());
  KVC_RETURN_IF_ERROR(ReserveScratch(longest, n_tokens_ + ahead, meter));
  if (observe_) {
    attention_.resize(static_cast<size_t>(model_->config().n_layers * model_->config().n_heads));
    for (std::vector<float>& p : attention_) p.reserve(static_cast<size_t>(longest));
  }
  workspace_peak_ = std::max(workspace_peak_, WorkspaceBytes());
  return {};
}

// What a step computes in, for heads of at most `longest` entries of a sequence of n_tokens.
Status Session::ReserveScratch(int32_t longest, int32_t n_tokens, MemoryMeter* meter) {
  KVC_RETURN_IF_ERROR(
      attend_.Reserve(cache_->config(), longest, kStepHeadroom, model_->ops().pool->n_threads(), meter));
  const int32_t angles = compressor_->AngleRows(longest, n_tokens);
  if (angles > angles_.rows())
    KVC_RETURN_IF_ERROR(angles_.Grow(model_->network().rope, angles + kStepHeadroom, meter));
  // A prompt that failed may have lost the buffers it shares with steps.
  KVC_RETURN_IF_ERROR(forward_.ReserveDecode(model_->config(), 1, meter));
  return compressor_->ReserveStep(longest);
}

Status Session::Feed(int32_t token) {
  const double begin = Seconds();
  KVC_RETURN_IF_ERROR(ReserveStep(1));
  const DecodeRow row{token, n_tokens_, this, logits_.data()};
  Decode(model_->network(), &row, 1, &forward_);
  Fed(token);
  decode_seconds_ += Seconds() - begin;
  return {};
}

// Book-keeping after a token went through the network.
void Session::Fed(int32_t token) {
  ++n_tokens_;
  rewound_ = false;
  Remember({&token, 1});
  if (compressor_->TakeChanged()) {
    ++n_compactions_;
    changed_at_ = n_tokens_;
  }
  if (!CanTakeBack()) changed_at_ = n_tokens_;
  cache_bytes_peak_ = std::max(cache_bytes_peak_, cache_->bytes());
}

// Of tokens that may be run again the newest are enough: the list stays short however long a session runs.
// ReserveStep or BeginPrompt made room.
void Session::Remember(Span<const int32_t> tokens) {
  if (!keeps_tokens_) return;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const size_t enough = static_cast<size_t>(compressor_->ReplayRows(n_tokens_) + kTokenHeadroom);
  if (tokens_.size() >= 2 * enough)
    tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(enough));
}

Status Session::FeedPending() {
  if (pending_ < 0) return {};
  KVC_RETURN_IF_ERROR(CheckCancel("step"));
  KVC_RETURN_IF_ERROR(MakeRoom());
  KVC_RETURN_IF_ERROR(Feed(pending_));
  pending_ = -1;
  return {};
}

// At max_tokens: an error, or from now on an old entry leaves for each new one.
Status Session::MakeRoom() {
  if (n_tokens_ < params_.max_tokens) return {};
  if (n_tokens_ >= kMaxPosition) return Error(Code::kContextFull, "a session counts %d tokens", kMaxPosition);
  if (params_.on_full == OnFull::kError)
    return Error(Code::kContextFull, "the session holds max_tokens=%d tokens", params_.max_tokens);
  if (!compressor_->keeps_lengths())
    compressor_->KeepLengths(*cache_, params_.on_full == OnFull::kSlide, n_tokens_);
  return {};
}

Status Session::Step(int32_t* token) {
  *token = -1;
  if (held() == 0) return Error(Code::kInvalid, "step before any prompt: prefill at least BOS");
  if (rewound_ && pending_ < 0) {
    return Error(Code::kInvalid, "step after rewind: prefill or accept at least one token first");
  }
  if (finished_) return {};
  KVC_RETURN_IF_ERROR(CheckCancel("step"));
  KVC_RETURN_IF_ERROR(sampler_.Reserve(model_->config().vocab_size, model_->meter().get()));
  KVC_RETURN_IF_ERROR(FeedPending());
  KVC_RETURN_IF_ERROR(CheckCancel("step"));
  int32_t picked = -1;
  KVC_RETURN_IF_ERROR(sampler_.Pick(*model_->ops().kernels, logits(), n_answer_, &picked));
  if (model_->tokenizer().IsStop(picked)) {
    finished_ = true;
    stop_token_ = picked;
    text_.Flush();
    return {};
  }
  TakeToken(picked);
  *token = picked;
  return {};
}

Status Session::Accept(int32_t token) {
  KVC_RETURN_IF_ERROR(CheckTokenIds({&token, 1}));
  if (held() == 0) return Error(Code::kInvalid, "accept before any prompt: prefill at least BOS");
  KVC_RETURN_IF_ERROR(CheckCancel("accept"));
  KVC_RETURN_IF_ERROR(FeedPending());
  TakeToken(token);
  finished_ = false;
  return {};
}

// The next token of the answer. Stop tokens have no text.
void Session::TakeToken(int32_t token) {
  if (!model_->tokenizer().IsStop(token))
    text_.Push(model_->tokenizer().Piece(token));  // takes memory at most before it changes anything
  pending_ = token;
  stop_token_ = -1;
  ++n_answer_;
}

Status Session::SetSampling(const SamplerParams& params) {
  KVC_RETURN_IF_ERROR(Sampler::Check(params));
  sampler_.set_params(params);
  params_.sampler = params;
  return {};
}

void Session::Attend(int layer, const float* q, const float* k, const float* v, float* out) {
  const ModelConfig& c = model_->config();
  for (int32_t g = 0; g < c.n_kv_heads; ++g)
    cache_->Append(layer, g, k + int64_t{g} * c.head_dim, v + int64_t{g} * c.head_dim, n_tokens_);
  const OpContext ops = model_->ops();
  const AttendArgs args{ops,
                        *cache_,
                        layer,
                        q,
                        out,
                        Shape(*model_).scale,
                        c.sliding_window,
                        compressor_->wants_probabilities() || observe_,
                        compressor_->RotationOf(layer),
                        &angles_,
                        c.rope_pairing,
                        rotated_q_.data()};
  kvc::Attend(args, &attend_);
  if (observe_) {  // ReserveStep made room
    for (int32_t h = 0; h < c.n_heads; ++h) {
      const int32_t g = h / (c.n_heads / c.n_kv_heads);
      std::vector<float>& p = attention_[static_cast<size_t>(layer * c.n_heads + h)];
      p.resize(static_cast<size_t>(cache_->Len(layer, g)));
      cache_->ToRankOrder(layer, g, attend_.Probabilities(h), p.data());
    }
  }
  compressor_->AfterAttend(layer, q, v, &attend_, cache_.get());
}

void Session::Kept(int layer, int32_t kv_head, std::vector<int32_t>* positions) const {
  positions->resize(static_cast<size_t>(cache_->Len(layer, kv_head)));
  for (size_t r = 0; r < positions->size(); ++r)
    (*positions)[r] = cache_->PositionAt(layer, kv_head, static_cast<int32_t>(r));
}

void Session::Reset() {
  cache_->Clear();
  cache_->ReleaseSpare();
  compressor_->Reset();
  text_.Clear();
  n_tokens_ = n_prompt_ = n_answer_ = n_compactions_ = 0;
  pending_ = stop_token_ = -1;
  finished_ = false;
  cache_bytes_peak_ = workspace_peak_ = 0;
  changed_at_ = 0;
  tokens_.clear();
  attention_.clear();
  rewound_ = false;
  prefill_seconds_ = compress_seconds_ = decode_seconds_ = 0;
}

int64_t Session::WorkspaceBytes() const {
  return forward_.bytes() + attend_.bytes() + angles_.bytes() + logits_.bytes() + rotated_q_.bytes() +
         sampler_.bytes() + compressor_->bytes() +
         (prompt_.compressor == nullptr ? 0 : prompt_.compressor->bytes());
}

SessionStats Session::Stats() const {
  SessionStats stats;
  const ModelConfig& c = model_->config();
  stats.n_prompt = n_prompt_, stats.n_answer = n_answer_, stats.n_compactions = n_compactions_;
  stats.stop_token = stop_token_;
  stats.cache_bytes = cache_->bytes();
  stats.cache_bytes_peak =
      std::max(cache_bytes_peak_, stats.cache_bytes);  // a fork takes pages of the same pools
  const CacheConfig full = FullCacheConfig(*model_, compressor_->policy(), cache_->config().page_slots);
  const int64_t heads = int64_t{c.n_layers} * c.n_kv_heads,
                pages = (int64_t{n_tokens_} + full.page_slots - 1) / full.page_slots;
  stats.cache_bytes_full = heads * pages * KvCache::PageBytes(full, full.formats[0]);
  stats.n_slots = cache_->TotalEntries(), stats.n_slots_full = heads * n_tokens_;
  stats.workspace_bytes = std::max(workspace_peak_, WorkspaceBytes()),
  stats.weight_bytes = model_->file().weight_bytes();
  stats.prefill_seconds = prefill_seconds_, stats.compress_seconds = compress_seconds_,
  stats.decode_seconds = decode_seconds_;
  return stats;
}

}  // namespace kvc

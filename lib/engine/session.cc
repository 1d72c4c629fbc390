#include "lib/engine/session.h"

#include <algorithm>
#include <array>
#include <new>

#include "lib/engine/step_batch.h"

namespace kvc {
namespace {

constexpr int32_t kTokenHeadroom = 256;  // tokens remembered beside those that may be run again

bool KeysByChannel(const CacheLayout& layout) {
  return std::any_of(layout.formats.begin(), layout.formats.end(),
                     [](const PageFormat& f) { return f.coding == EntryCoding::kKeyChannels; });
}

}  // namespace

// ---- life ----

Session::Session(std::shared_ptr<const Model> model, const SessionParams& params)
    : model_(std::move(model)), user_(model_->executor()), params_(params), sampler_(params.sampler) {}

Policy Session::ChosenPolicy(const Policy* policy) {
  if (policy != nullptr) return *policy;
  Result<Policy> full = ParsePolicy("full");
  assert(full.ok());
  return full.value();
}

int32_t Session::EffectiveMaxTokens(const ModelConfig& config, const Policy& policy,
                                    const SessionParams& params) {
  if (params.max_tokens > 0) return params.max_tokens;
  return policy.endless() ? kMaxContext : config.max_tokens;
}

Status Session::CheckParams(const SessionParams& params) {
  if (params.max_tokens < 0 || params.max_tokens > kMaxContext) {
    return Error(Code::kInvalid, "max_tokens is %d; it is 0 (the model's context) to %d", params.max_tokens,
                 kMaxContext);
  }
  return CheckSampling(params.sampler);
}

// Within its window a layer is like any other.
ModelShape Session::ShapeOf(const ModelConfig& c, const Policy& policy, const SessionParams& params) {
  ModelShape shape;
  shape.n_layers = c.n_layers, shape.n_heads = c.n_heads, shape.n_kv_heads = c.n_kv_heads,
  shape.head_dim = c.head_dim, shape.max_tokens = EffectiveMaxTokens(c, policy, params),
  shape.trained_tokens = c.max_tokens;
  const bool goes_on = params.on_full != OnFull::kError;
  bool any = false;
  for (size_t i = 0; i < static_cast<size_t>(c.n_layers); ++i) {
    const int32_t window = c.layers.empty() ? c.sliding_window : c.layers[i].attention_window;
    const bool slides = window > 0 && (goes_on || window < shape.max_tokens);
    shape.windows.push_back(slides ? window : 0);
    any = any || slides;
  }
  if (!any) shape.windows.clear();
  return shape;
}

Result<CacheLayout> Session::LayoutOf(const StoragePlan& plan, const SessionParams& params) {
  CacheLayout layout = plan.LayoutFor(plan.PageSlots(params.max_tokens));
  if (KeysByChannel(layout) && (params.on_full != OnFull::kError || plan.evicts_at_steps())) {
    return Error(Code::kUnsupported,
                 "key_axis=channel codes the keys of many tokens together; on_full drops them one by one");
  }
  if (layout.has_rest && params.on_full != OnFull::kError) {
    return Error(Code::kUnsupported,
                 "reducer rest makes one entry of what a prompt drops; on_full drops tokens one by one");
  }
  return layout;
}

Result<std::unique_ptr<Session>> Session::Create(std::shared_ptr<const Model> model, const Policy* policy,
                                                 const SessionParams& params) {
  const Policy chosen = ChosenPolicy(policy);
  Result<HeadScores> scores = model->ScoresFor(chosen);
  if (!scores.ok()) return scores.status();
  return CreateWithScores(std::move(model), chosen, std::move(scores.value()), params, /*page_slots=*/0);
}

Result<std::unique_ptr<Session>> Session::CreateWithScores(std::shared_ptr<const Model> model,
                                                           const Policy& policy, HeadScores scores,
                                                           const SessionParams& params, int32_t page_slots) {
  KVC_RETURN_IF_ERROR(model->CanRun());
  KVC_RETURN_IF_ERROR(CheckParams(params));
  Executor* executor = model->executor();
  ModelShape shape = ShapeOf(model->config(), policy, params);
  shape.page_slots = page_slots;
  Result<std::unique_ptr<Compressor>> compressor =
      Compressor::Create(policy, shape, std::move(scores), params.on_full == OnFull::kSlide,
                         model->attention_rule(), executor->memory());
  if (!compressor.ok()) return compressor.status();
  std::unique_ptr<Session> s(new Session(std::move(model), params));
  s->params_.max_tokens = EffectiveMaxTokens(s->model_->config(), policy, params);
  s->compressor_ = std::move(compressor.value());
  s->keeps_tokens_ = s->compressor_->plan().ReplayRows(s->params_.max_tokens) > 0;
  Result<CacheLayout> layout = LayoutOf(s->compressor_->plan(), s->params_);
  if (!layout.ok()) return layout.status();
  Result<std::unique_ptr<KvCache>> cache =
      KvCache::Create(std::make_shared<const CacheLayout>(std::move(layout.value())), executor->arenas());
  if (!cache.ok()) return cache.status();
  s->cache_ = std::move(cache.value());
  return s;
}

void Session::Reset() {
  waiting_.reset();
  cache_->Clear();
  compressor_->Reset();
  text_.Clear();
  hidden_.Free();
  attention_.Free();
  attention_len_.clear();
  attention_stride_ = 0;
  n_tokens_ = n_prompt_ = n_answer_ = n_compactions_ = 0;
  pending_ = stop_token_ = -1;
  finished_ = rewound_ = torn_ = false;
  turns_.clear(), answer_ends_.clear(), texts_.clear();
  sampler_.Forget();
  cache_bytes_peak_ = workspace_peak_ = 0;
  changed_at_ = 0;
  tokens_.clear();
  prefill_seconds_ = compress_seconds_ = decode_seconds_ = 0;
}

// ---- what is asked for ----

Status Session::CheckTokenIds(Span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= model_->config().vocab_size) {
      return Error(Code::kInvalid, "token %zu is %d; ids are 0 to %d", i, tokens[i],
                   model_->config().vocab_size - 1);
    }
  }
  return {};
}

Status Session::CheckCancel(const char* what) const { return call_.Check(what); }

// Whether there is something that an answer can go on from.
Status Session::CanGoOn(const char* what) const {
  if (held() == 0) return Error(Code::kInvalid, "%s before any prompt: prefill at least BOS", what);
  if (!rewound_ || pending_ >= 0) return {};
  return Error(Code::kInvalid, "%s after rewind: prefill or accept at least one token first", what);
}

Status Session::CheckRoom() const {
  if (n_tokens_ < params_.max_tokens) return {};
  if (n_tokens_ >= kMaxPosition) return Error(Code::kContextFull, "a session counts %d tokens", kMaxPosition);
  if (params_.on_full == OnFull::kError)
    return Error(Code::kContextFull, "the session holds max_tokens=%d tokens", params_.max_tokens);
  return {};
}

// At max_tokens: from now on an old entry leaves for each new one.
Status Session::MakeRoom(Stream* stream) {
  if (n_tokens_ < params_.max_tokens || compressor_->keeps_lengths()) return {};
  made_room_ = true;
  return compressor_->KeepLengths(executor()->device(), stream, *cache_, params_.on_full == OnFull::kSlide,
                                  n_tokens_);
}

void Session::LeaveRoom() {
  if (made_room_) compressor_->ForgetLengths();
  made_room_ = false;
}

// ---- steps ----

Status Session::FeedPending() {
  if (pending_ < 0) return {};
  KVC_RETURN_IF_ERROR(CheckCancel("step"));
  return FeedRows({&pending_, 1});
}

// Tokens as rows of a step; the pending one is the first of them, if there is one.
Status Session::FeedRows(Span<const int32_t> tokens) {
  KVC_RETURN_IF_ERROR(CheckRoom());
  StepWish wish;
  wish.session = this, wish.tokens = tokens;
  return StepRunner(executor()).Run({&wish, 1}, /*all=*/true);
}

// Book-keeping after tokens went through the network: the pending one, if there was one, was the first.
void Session::Fed(Span<const int32_t> tokens, bool dropped) {
  n_tokens_ += static_cast<int32_t>(tokens.size());
  rewound_ = made_room_ = false;
  Count(&n_compactions_, dropped ? 1 : 0);
  if (dropped || !CanTakeBack()) changed_at_ = n_tokens_;
  Remember(tokens);  // the pending one where it lies
  pending_ = -1;
}

void Session::ReserveTokens(size_t more) {
  sampler_.ReserveTokens();
  if (keeps_tokens_ && tokens_.capacity() - tokens_.size() < more)
    tokens_.reserve(2 * std::max(tokens_.size(), static_cast<size_t>(kTokenHeadroom)) + more);
}

// Of tokens that may be run again the newest are enough, also behind the deepest rewind: the list is short
// where entries go all the time. ReserveTokens made room; changed_at_ is that of what the tokens did.
void Session::Remember(Span<const int32_t> tokens) {
  sampler_.Saw(tokens);
  if (!keeps_tokens_) return;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const size_t enough = static_cast<size_t>(compressor_->plan().ReplayRows(n_tokens_) +
                                            std::max(n_tokens_ - changed_at_, kTokenHeadroom));
  if (tokens_.size() >= 2 * enough)
    tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(enough));
}

// Behind a prompt: the room that all of it took goes where little of it is remembered. Fails silently, as
// what was reserved is enough.
void Session::FreeTokenRoom() {
  if (tokens_.capacity() > 4 * std::max(tokens_.size(), static_cast<size_t>(kTokenHeadroom)))
    tokens_.shrink_to_fit();
}

Status Session::ReserveHidden() {
  return hidden_.Reserve(executor()->memory(), model_->config().hidden_size, "the newest token");
}

Status Session::Step(int32_t* token) {
  StepWish row;
  row.session = this;
  *token = StepWish::kNone;
  KVC_RETURN_IF_ERROR(FinishPrompt());
  RunBatch({&row, 1}, 0);
  if (row.status.ok()) *token = row.token;
  return row.status;
}

Status Session::HasLogits() const {
  if (held() == 0 && !reads_prompt())
    return Error(Code::kInvalid, "there are no logits before the first prompt");
  return reads_prompt() ? Status() : CanGoOn("logits");
}

Status Session::ReadLogits(float* logits) {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  KVC_RETURN_IF_ERROR(HasLogits());
  if (logits == nullptr) return FeedPending();
  StepWish row;
  row.session = this, row.logits = logits;
  RunBatch({&row, 1}, 0);
  return row.status;
}

// Makes a session ready for a step, or says why it has none.
Status Session::PrepareRow(StepWish* row, int64_t* chunks) {
  row->rests = true;
  KVC_RETURN_IF_ERROR(ReadOn(chunks));
  if (reads_prompt()) {
    row->token = StepWish::kReading;
    return {};
  }
  KVC_RETURN_IF_ERROR(CanGoOn("step"));
  KVC_RETURN_IF_ERROR(CheckCancel("step"));
  row->chooses = row->logits == nullptr;
  if (finished_ && row->chooses) return {};
  if (pending_ >= 0) {
    KVC_RETURN_IF_ERROR(CheckRoom());
    row->tokens = {&pending_, 1};
  }
  row->rests = false;
  return {};
}

namespace {

// Memory that ends in one row is that row's failure: what the others did is theirs. Says so in as few
// characters as a string holds without memory of its own.
template <typename F>
Status OfRow(F&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(Code::kMemory, "no memory");
  }
}

}  // namespace

void Session::RunBatch(Span<StepWish> rows, int64_t chunks) {
  bool any = false;
  for (StepWish& row : rows) {
    row.token = StepWish::kNone;
    row.status = OfRow([&] { return row.session->PrepareRow(&row, &chunks); });
    any = any || (row.status.ok() && !row.rests);
  }
  if (!any) return;
  const Status status =
      OfRow([&] { return StepRunner(rows[0].session->executor()).Run(rows, /*all=*/false); });
  for (StepWish& row : rows) {
    if (row.rests) continue;
    if (row.status.ok()) row.status = status;
    if (row.status.ok() && row.chooses) {
      row.status = OfRow([&]() -> Status {
        row.session->Took(&row.token);
        return {};
      });
    }
    if (!row.status.ok()) row.token = StepWish::kNone;  // chosen, maybe, and not taken
  }
}

// *token was chosen: the answer ends with it, or goes on.
void Session::Took(int32_t* token) {
  if (!model_->tokenizer().IsStop(*token)) return TakeToken(*token);
  finished_ = true;
  stop_token_ = *token;
  text_.Flush();
  *token = StepWish::kNone;
}

Status Session::Accept(int32_t token) {
  KVC_RETURN_IF_ERROR(CheckTokenIds({&token, 1}));
  KVC_RETURN_IF_ERROR(FinishPrompt());
  if (held() == 0) return Error(Code::kInvalid, "accept before any prompt: prefill at least BOS");
  KVC_RETURN_IF_ERROR(CheckCancel("accept"));
  KVC_RETURN_IF_ERROR(FeedPending());
  TakeToken(token);
  finished_ = false;
  return {};
}

// The next token of the answer. Stop tokens have no text.
void Session::TakeToken(int32_t token) {
  if (!model_->tokenizer().IsStop(token)) {
    ReserveTexts(1);
    bool at_start = text_.at_start();
    const Span<const uint8_t> bytes = model_->tokenizer().TextOf(token, &at_start);
    text_.Push(bytes, at_start);  // takes memory at most before it changes anything
    NoteText(n_tokens_ + 1);
  }
  pending_ = token;
  stop_token_ = -1;
  Count(&n_answer_, 1);
}

Status Session::SetBias(Span<const int32_t> tokens, const float* biases) {
  return sampler_.SetBias(tokens, biases, model_->config().vocab_size, model_->meter().get());
}

Status Session::SetMask(Span<const int32_t> words) {
  return sampler_.SetMask(words, model_->config().vocab_size, model_->meter().get());
}

// Tokens that have the caller's choice: fed behind what still waits, in the one pass over the weights.
Status Session::FeedBatch(Span<Session* const> sessions, const int32_t* tokens) {
  std::vector<StepWish> wishes(sessions.size());
  std::vector<std::array<int32_t, 2>> fed(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i) {
    Session& s = *sessions[i];
    if (s.model_ != sessions[0]->model_)
      return Error(Code::kInvalid, "session %zu of the batch has another model", i);
    KVC_RETURN_IF_ERROR(s.FinishPrompt());
    const Status ready = s.CanGoOn("feed");
    if (!ready.ok()) return Error(ready.code(), "session %zu of the batch: %s", i, ready.message().c_str());
    KVC_RETURN_IF_ERROR(s.CheckTokenIds({tokens + i, 1}));
    // Before the next token comes an entry has to leave, or the layers are looked at again.
    const bool apart = s.n_tokens_ + 1 == s.params_.max_tokens || s.compressor_->ends_later();
    const Status room = apart ? s.FeedPending() : s.CheckRoom();
    if (!room.ok()) return Error(room.code(), "session %zu of the batch: %s", i, room.message().c_str());
    const size_t waits = s.pending_ >= 0 ? 1 : 0;
    fed[i] = {s.pending_, tokens[i]};
    wishes[i].session = &s, wishes[i].tokens = {fed[i].data() + 1 - waits, 1 + waits};
  }
  for (const Session* s : sessions) KVC_RETURN_IF_ERROR(s->CheckRoom());
  if (sessions.empty()) return {};
  KVC_RETURN_IF_ERROR(StepRunner(sessions[0]->executor()).Run({wishes.data(), wishes.size()}, true));
  for (Session* s : sessions) s->finished_ = false, s->stop_token_ = -1;
  return {};
}

// ---- what can be seen ----

void Session::NotePeaks(int64_t cache_bytes, int64_t workspace_bytes) {
  cache_bytes_peak_ = std::max(cache_bytes_peak_, cache_bytes);
  workspace_peak_ = std::max(workspace_peak_, workspace_bytes);
}

Status Session::Kept(int layer, int32_t kv_head, std::vector<int32_t>* positions) const {
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  return cache_->Positions(lease.value()->stream.get(), layer * model_->config().n_kv_heads + kv_head,
                           positions);
}

Status Session::Attention(int layer, int32_t head, std::vector<float>* p) const {
  const ModelConfig& c = model_->config();
  const int32_t kv_head = layer * c.n_kv_heads + head / (c.n_heads / c.n_kv_heads);
  if (attention_len_.empty() || attention_len_[static_cast<size_t>(kv_head)] == 0)
    return Error(Code::kInvalid, "no attention was kept: switch it on before the token is fed");
  const int32_t n = attention_len_[static_cast<size_t>(kv_head)];
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  p->resize(static_cast<size_t>(n));
  const DevicePtr<float> from = attention_.at() + (int64_t{layer} * c.n_heads + head) * attention_stride_;
  return executor()->device()->Read(lease.value()->stream.get(), from.As<uint8_t>(), p->data(),
                                    4 * int64_t{n});
}

Status Session::Vectors(int32_t layer, int32_t kv_head, DeviceBytes LayerView::*which,
                        std::vector<float>* vectors) const {
  const ModelConfig& c = model_->config();
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Workspace& w = *lease.value();
  const PromptUse use(&w);
  const int64_t entries = std::max(cache_->MaxLen(), 1);
  KVC_RETURN_IF_ERROR(w.layer.Reserve(executor()->memory(), c.n_kv_heads, c.head_dim, entries, entries,
                                      compressor_->plan().n_aux(), cache_->layout().seen_masks));
  LoadArgs args{};
  args.cache = &cache_->view(), args.layer = layer, args.to = w.layer.view();
  args.turning = compressor_->turning(layer);
  args.scratch = w.layer.order(), args.scratch_entries = w.layer.max_cached();
  KVC_RETURN_IF_ERROR(executor()->device()->LoadLayer(w.stream.get(), args));
  const int64_t width = c.head_dim, n = w.layer.len()[static_cast<size_t>(kv_head)];
  vectors->resize(static_cast<size_t>(n * width));
  const DeviceBytes from = w.layer.view().*which + 4 * kv_head * w.layer.view().capacity * width;
  return executor()->device()->Read(w.stream.get(), from, vectors->data(), 4 * n * width);
}

SessionStats Session::Stats() const {
  SessionStats stats;
  const ModelConfig& c = model_->config();
  stats.n_prompt = n_prompt_, stats.n_answer = n_answer_, stats.n_compactions = n_compactions_;
  stats.stop_token = stop_token_, stats.n_tokens = held();
  stats.cache_bytes = cache_->bytes();
  stats.cache_bytes_peak = std::max(cache_bytes_peak_, stats.cache_bytes);
  stats.cache_bytes_full = FullCacheBytes(n_tokens_);
  stats.n_slots = cache_->TotalEntries();
  for (int32_t layer = 0; layer < c.n_layers; ++layer)
    stats.n_slots_full += int64_t{c.n_kv_heads} * cache_->layout().HeldOf(layer, n_tokens_);
  stats.workspace_bytes = workspace_peak_;
  stats.weight_bytes = model_->file().weight_bytes();
  stats.prefill_seconds = prefill_seconds_, stats.compress_seconds = compress_seconds_,
  stats.decode_seconds = decode_seconds_;
  if (waiting_ != nullptr) stats.prompt_progress = waiting_->Progress();
  return stats;
}

Result<CodeRatios> Session::Ratios() const {
  if (!compressor_->plan().codebook())
    return Error(Code::kUnsupported, "policy %s has no codebooks", compressor_->policy().method->name);
  return cache_->Ratios(n_tokens_);
}

}  // namespace kvc

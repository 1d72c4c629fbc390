// Operations on a cache beside filling it: fork, rewind, compressing again.
#include <algorithm>

#include "lib/base/clock.h"
#include "lib/engine/session.h"

namespace kvc {

void Session::CopyCounters(const Session& from) {
  n_tokens_ = from.n_tokens_, n_prompt_ = from.n_prompt_, n_answer_ = from.n_answer_;
  n_compactions_ = from.n_compactions_;
  pending_ = from.pending_, stop_token_ = from.stop_token_, finished_ = from.finished_;
  changed_at_ = from.changed_at_;
  tokens_ = from.tokens_, keeps_tokens_ = from.keeps_tokens_;
  rewound_ = from.rewound_, torn_ = from.torn_;
  turns_ = from.turns_, answer_ends_ = from.answer_ends_, texts_ = from.texts_;
}

// `other` is a fork of this session from before something failed. Takes no memory.
void Session::TakeStateOf(Session& other) {
  cache_ = std::move(other.cache_);
  compressor_ = std::move(other.compressor_);
  hidden_ = std::move(other.hidden_);
  attention_len_.clear();
  std::vector<int32_t> tokens = std::move(other.tokens_);
  std::vector<TurnSpan> turns = std::move(other.turns_);
  std::vector<AnswerEnd> ends = std::move(other.answer_ends_);
  std::vector<TextSpan> texts = std::move(other.texts_);
  other.tokens_.clear(), other.turns_.clear(), other.answer_ends_.clear(), other.texts_.clear();
  CopyCounters(other);
  tokens_ = std::move(tokens), turns_ = std::move(turns), answer_ends_ = std::move(ends);
  texts_ = std::move(texts);
  sampler_.TakeTokens(&other.sampler_);
  text_.GoOnFrom(other.text_);
}

Result<std::unique_ptr<Session>> Session::Fork() {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Stream* stream = lease.value()->stream.get();
  std::unique_ptr<Session> s(new Session(model_, params_));
  Result<std::unique_ptr<Compressor>> compressor = compressor_->Fork(stream);
  if (!compressor.ok()) return compressor.status();
  s->compressor_ = std::move(compressor.value());
  Result<std::unique_ptr<KvCache>> cache = cache_->Fork();
  if (!cache.ok()) return cache.status();
  s->cache_ = std::move(cache.value());
  if (hidden_.size() > 0) {
    KVC_RETURN_IF_ERROR(s->ReserveHidden());
    const PageCopy copy{s->hidden_.raw(), hidden_.raw(), 4 * hidden_.size()};
    KVC_RETURN_IF_ERROR(executor()->device()->Copy(stream, {&copy, 1}));
  }
  s->CopyCounters(*this);
  s->text_.GoOnFrom(text_);
  s->sampler_ = sampler_;
  if (marks_ != nullptr) s->marks_ = std::make_unique<TurnMarks>(*marks_);
  s->cache_bytes_peak_ = cache_->bytes();
  return s;
}

Status Session::Rewind(int32_t n) {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  if (n < 1 || n > held())
    return Error(Code::kInvalid, "rewind by %d: the session holds %d tokens", n, held());
  const int32_t fed = n - (pending_ >= 0);
  const size_t text_bytes = NewestTextBytes(n);
  if (fed > 0 && n_tokens_ - fed < changed_at_) {
    if (!CanTakeBack())
      return Error(
          Code::kUnsupported,
          "rewind by %d: what this policy remembers of entries, or how it stores them, changes with every "
          "token and cannot be taken back%s; a fork from before can go on instead",
          n, compressor_->policy().compresses_once() ? "" : " (of some methods it can with once=1)");
    return Error(Code::kUnsupported,
                 "rewind by %d: an older entry was dropped, merged or quantised %d tokens ago", n,
                 n_tokens_ - changed_at_);
  }
  if (fed > 0 && n_tokens_ > fed && n_tokens_ - fed < cache_->LeastTokens(n_tokens_)) {
    return Error(
        Code::kUnsupported,
        "rewind by %d: layers that attend to their newest tokens only do not hold what they would need; this "
        "session can be taken back by %d",
        n, n_tokens_ - cache_->LeastTokens(n_tokens_) + (pending_ >= 0));
  }
  if (fed > 0) {
    Result<Executor::Lease> lease = executor()->Acquire();
    if (!lease.ok()) return lease.status();
    // Every head has what came since changed_at_.
    const Status status = cache_->TakeBack(lease.value()->stream.get(), n_tokens_ - fed, fed);
    torn_ = status.code() == Code::kDevice;
    KVC_RETURN_IF_ERROR(status);
    compressor_->Rewind(fed);
    n_tokens_ -= fed;
    sampler_.Rewind(fed);
    if (keeps_tokens_) tokens_.resize(tokens_.size() - std::min(tokens_.size(), static_cast<size_t>(fed)));
  }
  pending_ = stop_token_ = -1;
  finished_ = false;
  rewound_ = true;
  while (!texts_.empty() && texts_.back().from > held()) texts_.pop_back();
  text_.TakeBack(text_bytes);
  text_.set_at_start(texts_.empty() || texts_.back().at_start);
  attention_len_.clear();
  while (!turns_.empty() && turns_.back().from > held()) turns_.pop_back();
  while (!answer_ends_.empty() && answer_ends_.back().at > held()) answer_ends_.pop_back();
  return {};
}

// Of text of the newest n tokens, at most as many as may wait for the rest of a character.
size_t Session::NewestTextBytes(int32_t n) const {
  constexpr size_t kMostWaiting = 3;
  size_t bytes = 0;
  for (int32_t i = 0; i < n && bytes < kMostWaiting; ++i) {
    const int32_t token = i == 0 && pending_ >= 0 ? pending_ : sampler_.newest(i - (pending_ >= 0));
    if (token < 0) break;
    if (!model_->tokenizer().IsStop(token)) bytes += model_->tokenizer().Piece(token).size();
  }
  return bytes;
}

// The last token of a session that is full waits on: it has no place in the cache.
Status Session::FeedWhatHasRoom() {
  const bool room = n_tokens_ < params_.max_tokens || params_.on_full != OnFull::kError;
  return room ? FeedPending() : Status();
}

// Of the newest tokens, whose queries score.
Status Session::RowsToRunAgain(Stream* stream, const KvCache& cache, int32_t* rows) const {
  const StoragePlan& plan = compressor_->plan();
  *rows =
      plan.remembers_rows() ? 0 : std::min(plan.ReplayRows(n_tokens_), static_cast<int32_t>(tokens_.size()));
  if (*rows == 0 || *rows == n_tokens_) return {};
  if (n_tokens_ - *rows < cache.LeastTokens(n_tokens_)) {
    return Error(
        Code::kUnsupported,
        "policy %s compresses by its newest %d tokens, which would have to be read again, and after a rewind "
        "layers with windows do not hold what comes before them: read at least %d tokens first",
        compressor_->policy().method->name, *rows, cache.LeastTokens(n_tokens_) - (n_tokens_ - *rows));
  }
  if (!cache.layout().has_rest) return {};
  // A token that a head dropped is in its rest: run again it would count twice.
  KVC_RETURN_IF_ERROR(cache.NewestOfAll(stream, n_tokens_, *rows, rows));
  if (*rows > 0) return {};
  return Error(Code::kUnsupported,
               "policy %s compresses by its newest tokens, and a head has the last one in the entry for the "
               "rest alone: read at least one token first",
               compressor_->policy().method->name);
}

// Window scorers need the queries of the newest tokens, which nobody keeps: those tokens are taken out and
// run once more over the entries there are (methods.md 1.9, a second prompt). Where everything is still
// cached that repeats the first run exactly; a head that had dropped some of them may choose again.
Status Session::Recompress(int32_t budget, int64_t* freed) {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  KVC_RETURN_IF_ERROR(CheckCancel("compression"));
  KVC_RETURN_IF_ERROR(FeedWhatHasRoom());
  if (n_tokens_ == 0) return Error(Code::kInvalid, "there is nothing to compress before the first prompt");
  if (compressor_->policy().compresses_once())
    return Error(Code::kUnsupported,
                 "once=1: entries remember no score to compress them by again; with once=0 they do");
  if (compressor_->policy().keeps_all() && budget == 0) {
    if (freed != nullptr) *freed = 0;
    return {};
  }
  const int64_t before = cache_->bytes();
  const double begin = Seconds();
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Workspace& workspace = *lease.value();
  const PromptUse use(&workspace);
  // As for a prompt: what others left, and what steps need, may be needed.
  if (model_->meter()->limit() > 0) executor()->FreeIdle();
  workspace.FreeStepBuffers();
  std::vector<PromptJob::Taker> takers(1);
  PromptJob::Taker& taker = takers[0];
  KVC_RETURN_IF_ERROR(MakeTaker(workspace.stream.get(), 0, true, &taker));
  if (budget > 0) KVC_RETURN_IF_ERROR(taker.compressor->SetBudget(budget, n_tokens_));
  taker.cache->LeaveWindows();
  int32_t rows = 0;
  KVC_RETURN_IF_ERROR(RowsToRunAgain(workspace.stream.get(), *taker.cache, &rows));
  if (rows > 0) {
    KVC_RETURN_IF_ERROR(taker.cache->RewindTo(workspace.stream.get(), n_tokens_ - rows));
    taker.compressor->Rewind(rows);
    PromptJob job(*model_, executor(), std::vector<int32_t>(tokens_.end() - rows, tokens_.end()),
                  n_tokens_ - rows, std::move(takers));
    KVC_RETURN_IF_ERROR(job.Begin(executor()->memory(), &workspace));
    while (!job.done()) {
      KVC_RETURN_IF_ERROR(CheckCancel("compression"));
      KVC_RETURN_IF_ERROR(job.Advance(&workspace));
    }
    job.takers()[0].compress_seconds = 0;  // a part of all that is counted below
    Commit(&job.takers()[0]);
    NotePeaks(cache_->bytes(), job.workspace_peak());
  } else {
    KVC_RETURN_IF_ERROR(ReduceBySideValues(&workspace, n_tokens_, &taker));
    Commit(&taker);
  }
  const double took = Seconds() - begin;
  prefill_seconds_ += took, compress_seconds_ += took;
  if (freed != nullptr) *freed = std::max<int64_t>(before - cache_->bytes(), 0);
  return {};
}

// Scorers with side values remember what they need: each layer is loaded, chosen from and stored again.
Status Session::ReduceBySideValues(Workspace* w, int32_t n_tokens, PromptJob::Taker* taker) {
  Compressor& compressor = *taker->compressor;
  KVC_RETURN_IF_ERROR(compressor.BeginPrompt(n_tokens, &taker->needs, true, taker->cache.get(), 0));
  const ModelConfig& c = model_->config();
  const int64_t longest = std::max(compressor.LongestHead(*taker->cache), 1);
  KVC_RETURN_IF_ERROR(compressor.ReserveComparison(executor()->memory().meter, longest));
  KVC_RETURN_IF_ERROR(w->ReserveReduction(executor()->memory(), c, longest, compressor.plan().n_aux(),
                                          taker->cache->layout().seen_masks, taker->needs.reading.wanted));
  w->observed.n_rows = w->observed.n_new = 0;
  const LayerWork work = executor()->WorkOf(w);
  for (int layer = 0; compressor.waits_for_all_layers() && layer < c.n_layers; ++layer) {
    if (compressor.slides(layer) || compressor.HasScores(layer)) continue;
    KVC_RETURN_IF_ERROR(CheckCancel("compression"));
    KVC_RETURN_IF_ERROR(w->observed.Clear(w->stream.get(), executor()->device()));
    KVC_RETURN_IF_ERROR(compressor.LoadLayer(work, layer, 0, *taker->cache, &w->layer));
    KVC_RETURN_IF_ERROR(compressor.AddScores(work, layer, w->layer, w->observed));
  }
  if (compressor.waits_for_all_layers()) compressor.ChooseAcrossLayers();
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (compressor.slides(layer)) continue;
    KVC_RETURN_IF_ERROR(CheckCancel("compression"));
    KVC_RETURN_IF_ERROR(w->observed.Clear(w->stream.get(), executor()->device()));
    KVC_RETURN_IF_ERROR(compressor.LoadLayer(work, layer, 0, *taker->cache, &w->layer));
    const std::vector<int32_t> before(w->layer.len());
    KVC_RETURN_IF_ERROR(
        compressor.StoreLayer(work, layer, w->layer, w->observed, true, before, taker->cache.get()));
  }
  NotePeaks(0, w->bytes() - w->layer.bytes() + compressor.waiting_bytes());
  compressor.EndAcrossLayers();
  return {};
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
  const StoragePlan& plan = compressor_->plan();
  if (plan.evicts_at_steps() || plan.reobserves() || params_.on_full != OnFull::kError) {
    return Error(Code::kUnsupported,
                 "mask_heads: this session drops entries one by one, whatever a head was left with");
  }
  if (plan.one_set()) {
    return Error(Code::kUnsupported,
                 "mask_heads: all heads of a layer keep the same entries in this session");
  }
  KVC_RETURN_IF_ERROR(FinishPrompt());
  KVC_RETURN_IF_ERROR(FeedWhatHasRoom());
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Result<std::unique_ptr<KvCache>> masked = cache_->Fork();
  if (!masked.ok()) return masked.status();
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i] != 0 || compressor_->slides(static_cast<int32_t>(i) / c.n_kv_heads)) continue;
    KVC_RETURN_IF_ERROR(
        masked.value()->KeepNewest(lease.value()->stream.get(), static_cast<int32_t>(i), window));
  }
  cache_ = std::move(masked.value());
  attention_len_.clear();
  changed_at_ = n_tokens_;
  return {};
}

}  // namespace kvc

// Steps that check a draft. Every token of it is a row of one pass over the weights; from the rows tokens are
// chosen as plain steps choose them, one after the other, as long as the draft foresaw them. Rows behind the
// first wrong one are taken back, so a draft costs time at most: rows are computed alike however many there
// are (DeviceInfo::batch_invariant), and a draw is numbered by its place in the answer.
#include <algorithm>
#include <array>
#include <new>

#include "lib/engine/step_batch.h"

namespace kvc {
namespace {

// Brings a session's cache and its newest residual to the tokens that it counts as fed, also where something
// was thrown on the way.
class KeptRows {
 public:
  KeptRows(KvCache* cache, const int32_t* n_tokens, bool* torn, Device* device, Stream* stream,
           DevicePtr<float> rows, DeviceBuffer<float>* hidden)
      : cache_(cache),
        n_tokens_(n_tokens),
        torn_(torn),
        device_(device),
        stream_(stream),
        rows_(rows),
        hidden_(hidden),
        begin_(*n_tokens) {}
  ~KeptRows() {
    if (!settled_ && !TakeBack().ok()) *torn_ = true;
  }
  KeptRows(const KeptRows&) = delete;
  KeptRows& operator=(const KeptRows&) = delete;
  // n_rows: that the pass had, of which the first n_fed counted as fed at its end.
  void SetRows(int32_t n_rows, int32_t n_fed) { n_rows_ = n_rows, begin_ = *n_tokens_ - n_fed; }

  // On failure rows that nobody wanted are in the cache for good, and calling again cures nothing.
  Status Settle() {
    settled_ = true;
    const Status status = TakeBack();
    if (status.ok()) return {};
    *torn_ = true;
    return Error(Code::kDevice, "%s", status.message().c_str());
  }

 private:
  Status TakeBack() {
    const int32_t kept = *n_tokens_ - begin_;
    if (kept > 0) {
      const PageCopy copy{hidden_->raw(), (rows_ + int64_t{kept - 1} * hidden_->size()).As<uint8_t>(),
                          4 * hidden_->size()};
      KVC_RETURN_IF_ERROR(device_->Copy(stream_, {&copy, 1}));
    }
    return kept < n_rows_ ? cache_->TakeBack(stream_, *n_tokens_, n_rows_ - kept) : Status();
  }

  KvCache* const cache_;
  const int32_t* const n_tokens_;
  bool* const torn_;
  Device* const device_;
  Stream* const stream_;
  const DevicePtr<float> rows_;
  DeviceBuffer<float>* const hidden_;
  int32_t begin_, n_rows_ = 0;
  bool settled_ = false;
};

}  // namespace

// Rows [first, first + n) as steps would choose from them, had the draft foreseen the tokens in front of
// each: of those for which it did not nobody asks.
Status StepRunner::SampleDrafted(const StepWish& wish, int32_t first, int32_t n, int32_t* tokens) {
  Workspace& w = *workspace_;
  const Session& s = *wish.session;
  const int32_t vocab = executor_->network().config->vocab_size;
  const size_t behind = wish.tokens.size() - static_cast<size_t>(wish.n_drafted - first);
  SampleRow rows[Session::kMostDrafted + 1];
  w.repeated.clear();
  for (int32_t k = 0; k < n; ++k)
    rows[k] = s.sampler_.RowOf(w.step.logits() + int64_t{first + k} * vocab, int64_t{s.n_answer_} + k,
                               wish.tokens.subspan(behind, static_cast<size_t>(k)), &w.repeated);
  return Sample({rows, static_cast<size_t>(n)}, tokens);
}

Status StepRunner::ChooseDrafted(StepWish* wish) {
  Workspace& w = *workspace_;
  Session& s = *wish->session;
  const ModelConfig& c = *executor_->network().config;
  const int32_t n_rows = static_cast<int32_t>(wish->tokens.size()), n_drafted = wish->n_drafted,
                waited = n_rows - n_drafted;  // 1: the token of the step before was the first row
  KeptRows kept(s.cache_.get(), &s.n_tokens_, &s.torn_, executor_->device(), w.stream.get(), w.step.x(),
                &s.hidden_);
  kept.SetRows(n_rows, waited);
  DevicePtr<float> x[Session::kMostDrafted + 1];
  for (int32_t i = 0; i <= n_drafted; ++i)
    x[i] = i + waited == 0 ? s.hidden_.at() : w.step.x() + int64_t{i + waited - 1} * c.hidden_size;
  KVC_RETURN_IF_ERROR(Heads(executor_->network(), w.stream.get(), x, n_drafted + 1, &w.step));
  int32_t tokens[Session::kMostDrafted + 1];
  for (int32_t i = 0, n_sampled = 0; i <= n_drafted; ++i) {
    Status status;
    if (i == n_sampled) {
      const int32_t n = std::min(executor_->device()->info().sample_rows, n_drafted + 1 - i);
      status = SampleDrafted(*wish, i, n, tokens + i);
      n_sampled += n;
    }
    if (status.ok()) status = CheckChosen(tokens[i]);
    if (!status.ok()) {
      if (i == 0) wish->status = status;  // else the next step says so, after the tokens there are
      break;
    }
    int32_t token = tokens[i];
    s.Took(&token);
    if (token == StepWish::kNone) break;  // behind tokens: as if the step that finds the end had been, too
    wish->chosen[(*wish->n_chosen)++] = token;
    if (i == n_drafted || token != wish->tokens[static_cast<size_t>(waited + i)]) break;
    s.Fed(wish->tokens.subspan(static_cast<size_t>(waited + i), 1), false);
  }
  const Status settled = kept.Settle();
  if (!settled.ok()) *wish->n_chosen = 0;
  return settled;
}

// The rows of a draft, if there is one to check. *n 0 and fine: there was not, or no memory for it.
Status Session::CheckDraft(Span<const int32_t> draft, int32_t* tokens, int32_t* n) {
  StepWish row;
  row.session = this;
  int64_t no_chunks = 0;
  KVC_RETURN_IF_ERROR(PrepareRow(&row, &no_chunks));
  if (row.rests) return {};
  std::array<int32_t, kMostDrafted + 1> fed;
  const size_t waited = row.tokens.size();
  fed[0] = pending_;
  std::copy(draft.begin(), draft.end(), fed.begin() + waited);
  row.tokens = {fed.data(), waited + draft.size()};
  row.n_drafted = static_cast<int32_t>(draft.size()), row.chosen = tokens, row.n_chosen = n;
  const Status run = StepRunner(executor()).Run({&row, 1}, /*all=*/false);
  const Status& status = run.ok() ? row.status : run;
  return status.code() == Code::kMemory && *n == 0 ? Status() : status;
}

Status Session::StepDraft(Span<const int32_t> draft, int32_t* tokens, int32_t cap, int32_t* n) {
  *n = 0;
  if (cap < 1) return Error(Code::kInvalid, "room for %d tokens: a step gives one or more", cap);
  KVC_RETURN_IF_ERROR(CheckTokenIds(draft));
  KVC_RETURN_IF_ERROR(FinishPrompt());
  // Rows of a pass see the pages that its first row sees: none leaves a window on the way, as with steps,
  // whose sums are made page by page.
  const int32_t waits = pending_ >= 0 ? 1 : 0,
                room = std::min(params_.max_tokens - n_tokens_, cache_->TokensBeforePageLeaves()) - waits,
                most = std::min({cap - 1, kMostDrafted, room}),
                n_drafted = static_cast<int32_t>(std::min<int64_t>(static_cast<int64_t>(draft.size()), most));
  if (n_drafted > 0 && TakesDrafts()) {
    try {
      KVC_RETURN_IF_ERROR(CheckDraft(draft.subspan(0, static_cast<size_t>(n_drafted)), tokens, n));
    } catch (const std::bad_alloc&) {
      if (*n == 0) throw;  // else the next step says so, after the tokens there are
    }
    if (*n > 0) return {};
  }
  int32_t token = StepWish::kNone;
  KVC_RETURN_IF_ERROR(Step(&token));
  if (token != StepWish::kNone) tokens[(*n)++] = token;
  return {};
}

}  // namespace kvc

// Prompts of a session: queued, read a part at a time, taken in whole or not at all.
#include <algorithm>

#include "lib/base/clock.h"
#include "lib/engine/session.h"

namespace kvc {
namespace {

constexpr int32_t kFullChunk = 256;  // tokens of a prompt that are read before others leave, past max_tokens

// Of spans, all before the one in which `reached`, where every rewind ends, lies.
template <typename T>
void ForgetSpans(int32_t reached, std::vector<T>* spans) {
  const auto behind =
      std::find_if(spans->begin(), spans->end(), [&](const T& span) { return span.from > reached; });
  if (behind - spans->begin() > 1) spans->erase(spans->begin(), behind - 1);
}

}  // namespace

// A job that is still there does not go on.
Session::WaitingPrompt::~WaitingPrompt() {
  if (job != nullptr) job->executor()->FreeIdlePromptBuffers();
}

double Session::WaitingPrompt::Progress() const {
  const double part = job == nullptr ? 0 : job->progress() * n_part;
  return (at + part) / static_cast<double>(tokens.size());
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

Status Session::Prefill(Span<const int32_t> tokens, bool compress) {
  KVC_RETURN_IF_ERROR(Enqueue(tokens, compress));
  return FinishPrompt();
}

// A few tokens behind what is there cost a step, not a pass over the layer at full length, where a step does
// to the cache what reading them would.
bool Session::FitsAsRows(int32_t n, bool compress) const {
  const StoragePlan& plan = compressor_->plan();
  const bool appends = !compress || plan.policy().keeps_all();
  const bool plain = plan.n_aux() == 0 && !plan.codebook() && !plan.reobserves() &&
                     (!plan.evicts_at_steps() || plan.policy().keeps_all());
  // One part, which nothing has to undo: none that goes across max_tokens.
  const bool room =
      held() + n <= params_.max_tokens || (compressor_->keeps_lengths() && held() >= params_.max_tokens);
  // A prompt's tokens see each other as they are, those of steps as they are stored.
  const bool raw = !plan.policy().quantises() || n < Residual(plan.policy());
  return appends && plain && raw && room && n_tokens_ > 0 && n <= kPromptRows;
}

Status Session::Enqueue(Span<const int32_t> tokens, bool compress) {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  KVC_RETURN_IF_ERROR(CheckTokens(tokens));
  KVC_RETURN_IF_ERROR(CheckCancel("prefill"));
  compress = compress && !(compressor_->policy().compresses_once() && n_compactions_ > 0);
  const int32_t given = static_cast<int32_t>(tokens.size()), n = held() + given;
  auto prompt = std::make_unique<WaitingPrompt>();
  prompt->tokens.assign(tokens.begin(), tokens.end());
  prompt->compress = compress;
  prompt->prefill_seconds = prefill_seconds_, prompt->compress_seconds = compress_seconds_,
  prompt->decode_seconds = decode_seconds_;
  prompt->first = given, prompt->step = kFullChunk;
  ReserveTurn();
  prompt->behind = AnswerEndHere();
  prompt->turn = turn() == Turn::kAnswer ? Turn::kAnswer : Turn::kNobodys;
  bool several = n > params_.max_tokens;  // past max_tokens as many entries leave as come, a part at a time
  if (FitsAsRows(given, compress)) {
    prompt->by_rows = true, prompt->first = 0, prompt->step = kPromptRows;
    several = false;
  } else if (compress) {
    const StoragePlan& plan = compressor_->plan();
    const int32_t first = plan.TokensAtOnce(held(), given);
    if (first < given) {
      const int32_t chunk = plan.ChunkFor(held(), given);
      prompt->by_rows = chunk == 0;
      prompt->first = first, prompt->step = prompt->by_rows ? kPromptRows : chunk;
      several = true;
    }
  }
  KVC_RETURN_IF_ERROR(CheckSlots(*prompt));
  if (several) {
    Result<std::unique_ptr<Session>> before = Fork();
    if (!before.ok()) return before.status();
    prompt->before = std::move(before.value());
  }
  waiting_ = std::move(prompt);
  return {};
}

// Whether its first part and its last one can have the slots they ask for, as BeginPart will.
Status Session::CheckSlots(const WaitingPrompt& p) const {
  const StoragePlan& plan = compressor_->plan();
  if (!p.compress || plan.policy().keeps_all()) return {};
  const int32_t last = held() + static_cast<int32_t>(p.tokens.size()),
                first = p.by_rows ? last : held() + NextPart(p);
  std::vector<int32_t> slots;
  KVC_RETURN_IF_ERROR(plan.PlanSlots(first, &slots));
  return first < last ? plan.PlanSlots(last, &slots) : Status();
}

Status Session::SetTurnMarks(Role role, const char* prefix, const char* suffix) {
  auto marks = marks_ == nullptr ? std::make_unique<TurnMarks>() : std::make_unique<TurnMarks>(*marks_);
  KVC_RETURN_IF_ERROR(marks->Set(role, prefix, suffix));
  marks_ = std::move(marks);
  return {};
}

Status Session::Say(Role role, Span<const uint8_t> text, bool answer, bool queue) {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  TurnPlace place;
  place.first = held() == 0, place.after_answer = turn() == Turn::kAnswer && held() > 0;
  place.answer = answer, place.after_system = turn() == Turn::kAfterSystem && held() > 0;
  place.newest_token = NewestToken();
  std::vector<int32_t> tokens;
  const TurnMarks none;
  KVC_RETURN_IF_ERROR(EncodeTurn(model_->tokenizer(), model_->file().turn_format(),
                                 marks_ == nullptr ? none : *marks_, role, text, place, &tokens));
  const Turn next = answer ? Turn::kAnswer : role == Role::kSystem ? Turn::kAfterSystem : Turn::kNobodys;
  if (tokens.empty() && held() > 0) {  // an empty message between marks that are empty: the model speaks on
    if (answer) KVC_RETURN_IF_ERROR(CanGoOn("an answer to nothing"));
    KVC_RETURN_IF_ERROR(CheckCancel("prefill"));
    ReserveTurn();
    SetTurn(next);
    if (finished_) {
      text_.DropWaiting();
      NoteText(held());
    }
    finished_ = false;
    stop_token_ = -1;
    return {};
  }
  KVC_RETURN_IF_ERROR(Enqueue(tokens, /*compress=*/answer));
  waiting_->turn = next;
  return queue ? Status() : FinishPrompt();
}

Status Session::FinishPrompt() {
  int64_t chunks = kAllChunks;
  return ReadOn(&chunks);
}

Status Session::ReadOn(int64_t* chunks) {
  if (torn_)
    return Error(Code::kDevice, "the device failed in the middle of a step: reset or close the session");
  if (waiting_ == nullptr) return {};
  call_.SetProgress(waiting_->Progress());
  struct Undo {  // also when memory ends
    Session* session;
    ~Undo() {
      if (session != nullptr) session->DropPrompt();
    }
  } undo{this};
  const int32_t n = static_cast<int32_t>(waiting_->tokens.size());
  while (waiting_->at < n) {
    KVC_RETURN_IF_ERROR(CheckCancel("prefill"));
    if (*chunks <= 0) break;
    const bool rows = waiting_->by_rows && waiting_->at >= waiting_->first;
    const Status status = rows ? ReadRows(chunks) : ReadPart(chunks);
    if (!status.ok()) return NameTheChoice(status);
    call_.SetProgress(waiting_->Progress());
  }
  undo.session = nullptr;
  if (waiting_->at < n) return {};
  if (waiting_->by_rows) {  // steps take more than the prompt needs
    cache_->LeaveWindows();
    cache_->Trim();
  }
  if (waiting_->behind.at > 0) answer_ends_.push_back(waiting_->behind);
  ForgetAnswerEnds();
  SetTurn(waiting_->turn);
  waiting_.reset();
  return {};
}

void Session::ReserveTurn() {
  if (turns_.size() == turns_.capacity()) turns_.reserve(2 * turns_.size() + 4);
  if (answer_ends_.size() == answer_ends_.capacity()) answer_ends_.reserve(2 * answer_ends_.size() + 4);
  ReserveTexts(2);  // for the first piece behind it as well
}

// Behind a prompt, for which ReserveTurn made room: one turn at a place. What no rewind reaches is forgotten.
void Session::SetTurn(Turn now) {
  if (!turns_.empty() && turns_.back().from == held()) turns_.pop_back();
  if (now != turn()) turns_.push_back({held(), now});
  ForgetSpans(changed_at_, &turns_);
}

void Session::ReserveTexts(size_t more) {
  if (texts_.capacity() - texts_.size() < more) texts_.reserve(2 * texts_.size() + 4);
}

// Whether a text is at its start may have changed with the token that made `from` of them, or behind it.
void Session::NoteText(int32_t from) {
  if (!texts_.empty() && texts_.back().from == from) texts_.pop_back();
  const bool known = texts_.empty() || texts_.back().at_start;
  if (text_.at_start() != known) texts_.push_back({from, text_.at_start()});
  ForgetSpans(changed_at_, &texts_);
}

// Behind n_given tokens of a prompt, all of which are fed.
void Session::BeginText(int32_t n_given) {
  text_.DropWaiting();
  NoteText(n_tokens_ - n_given + 1);
}

// Tokens are remembered for a while only, turns as long as there is a way back to them.
Session::AnswerEnd Session::AnswerEndHere() const {
  const int32_t newest = NewestToken();
  const bool ended = turn() == Turn::kAnswer && newest >= 0 && model_->tokenizer().IsStop(newest) &&
                     (answer_ends_.empty() || answer_ends_.back().at < held());
  return ended ? AnswerEnd{held(), newest} : AnswerEnd{0, -1};
}

void Session::ForgetAnswerEnds() {
  answer_ends_.erase(answer_ends_.begin(),
                     std::find_if(answer_ends_.begin(), answer_ends_.end(),
                                  [this](const AnswerEnd& end) { return end.at >= changed_at_; }));
}

int32_t Session::NewestToken() const {
  if (pending_ >= 0) return pending_;
  if (sampler_.newest() >= 0) return sampler_.newest();
  return !answer_ends_.empty() && answer_ends_.back().at == held() ? answer_ends_.back().token : -1;
}

// The prompt was not read to its end: what was before comes back.
void Session::DropPrompt() {
  const std::unique_ptr<WaitingPrompt> prompt = std::move(waiting_);
  if (prompt == nullptr) return;
  if (prompt->before != nullptr) TakeStateOf(*prompt->before);
  prefill_seconds_ = prompt->prefill_seconds, compress_seconds_ = prompt->compress_seconds,
  decode_seconds_ = prompt->decode_seconds;
}

// Tokens of the next part: none goes across max_tokens.
int32_t Session::NextPart(const WaitingPrompt& p) const {
  const int32_t part = std::min(p.at == 0 && p.first > 0 ? p.first : p.step,
                                static_cast<int32_t>(p.tokens.size()) - p.at),
                room = params_.max_tokens - held();
  if (part <= room) return part;
  return room > 0 ? room : std::min(part, kFullChunk);
}

Status Session::ReadRows(int64_t* chunks) {
  const double begin = Seconds(), decoded = decode_seconds_;
  if (held() == params_.max_tokens) KVC_RETURN_IF_ERROR(FeedPending());  // the next token makes another leave
  WaitingPrompt& p = *waiting_;
  const int32_t part = NextPart(p);
  std::vector<int32_t> rows;
  if (pending_ >= 0) rows.push_back(pending_);
  rows.insert(rows.end(), p.tokens.begin() + p.at, p.tokens.begin() + p.at + part);
  // Of rows behind rows, those the windows are through with leave before there is room for more: whoever
  // reads by parts has a fork to go back to.
  if (p.before != nullptr) cache_->LeaveWindows();
  KVC_RETURN_IF_ERROR(FeedRows({rows.data(), rows.size()}));
  p.at += part;
  Count(&n_prompt_, part);
  BeginText(part);
  stop_token_ = -1;
  finished_ = false;
  *chunks -= std::min<int64_t>(*chunks, model_->config().n_layers);
  decode_seconds_ = decoded;
  prefill_seconds_ += Seconds() - begin;
  return {};
}

Status Session::ReadPart(int64_t* chunks) {
  const double begin = Seconds();
  // The token of the last step makes nobody leave; those behind it do.
  if (waiting_->job == nullptr && held() == params_.max_tokens) KVC_RETURN_IF_ERROR(FeedPending());
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Workspace& workspace = *lease.value();
  PromptUse use(&workspace);
  WaitingPrompt& p = *waiting_;
  if (p.job == nullptr) {
    // What others left may be needed before the prompt is through.
    if (model_->meter()->limit() > 0) executor()->FreeIdle();
    KVC_RETURN_IF_ERROR(BeginPart(&workspace));
  }
  for (; !p.job->done() && *chunks > 0; --*chunks) {
    KVC_RETURN_IF_ERROR(CheckCancel("prefill"));
    KVC_RETURN_IF_ERROR(p.job->Advance(&workspace));
    call_.SetProgress(p.Progress());
  }
  prefill_seconds_ += Seconds() - begin;
  if (!p.job->done()) {
    use.Pause();
    return {};
  }
  const std::unique_ptr<PromptJob> job = std::move(p.job);
  DeviceBuffer<float> newest;  // the session's own stays as it is until nothing can fail any more
  KVC_RETURN_IF_ERROR(newest.Reserve(executor()->memory(), hidden_.size(), "the newest token"));
  KVC_RETURN_IF_ERROR(job->CopyLastRow(&workspace, newest.raw()));
  job->FreeBuffers();
  KVC_RETURN_IF_ERROR(
      EndWholePrompt(&workspace, n_tokens_ + static_cast<int32_t>(job->tokens().size()), &job->takers()[0]));
  hidden_ = std::move(newest);
  p.at += p.n_part;
  TakePart(job.get(), 0, p.n_part);
  return {};
}

// Of a prompt that does not fit at once: whether it would part by part, which keeps other entries, so that
// the caller has to choose (methods.md 1.9). Other failures, and where that would not help, as they are.
Status Session::NameTheChoice(Status failed) const {
  Policy policy = compressor_->policy();
  if (failed.code() != Code::kMemory || !waiting_->compress || waiting_->by_rows ||
      waiting_->before != nullptr || policy.keeps_all() || policy.compresses_once() ||
      policy.Flag(OptionId::kChunkCompress))
    return failed;
  const int32_t n = held() + static_cast<int32_t>(waiting_->tokens.size());
  const auto at_once = Plan(model_, &policy, params_, n);
  policy.options[static_cast<int>(OptionId::kChunkCompress)] = 1;
  const auto by_parts = Plan(model_, &policy, params_, n);
  if (!at_once.ok() || !by_parts.ok()) return failed;
  const int64_t limit = model_->meter()->limit(), bytes = by_parts.value().total_bytes_peak;
  if (bytes >= at_once.value().total_bytes_peak || (limit > 0 && bytes > limit)) return failed;
  return Error(
      Code::kMemory,
      "%s; compressed after every %d tokens, which is not the same as at once, the prompt takes %lld "
      "bytes in all: choose compress_per_chunk=1",
      failed.message().c_str(), StoragePlan::kChunk, static_cast<long long>(bytes));
}

// A job for the next part, on copies of the records: the session stays as it is until the part has been read.
Status Session::BeginPart(Workspace* workspace) {
  WaitingPrompt& p = *waiting_;
  p.job.reset();
  workspace->FreeStepBuffers();
  p.n_part = NextPart(p);
  std::vector<int32_t> tokens;  // the token of the last step comes first
  if (pending_ >= 0) tokens.push_back(pending_);
  tokens.insert(tokens.end(), p.tokens.begin() + p.at, p.tokens.begin() + p.at + p.n_part);
  std::vector<PromptJob::Taker> takers(1);
  KVC_RETURN_IF_ERROR(
      MakeTaker(workspace->stream.get(), static_cast<int32_t>(tokens.size()), p.compress, &takers[0]));
  // What is read by rows behind this part shares its budget.
  if (p.by_rows) takers[0].n_behind = static_cast<int32_t>(p.tokens.size()) - p.at - p.n_part;
  auto job =
      std::make_unique<PromptJob>(*model_, executor(), std::move(tokens), n_tokens_, std::move(takers));
  KVC_RETURN_IF_ERROR(job->Begin(executor()->memory(), workspace));
  p.job = std::move(job);
  return {};
}

// Where layers share one budget the prompt is there in full, and is reduced now.
Status Session::EndWholePrompt(Workspace* workspace, int32_t n_tokens, PromptJob::Taker* taker) {
  if (!taker->compress || !taker->compressor->waits_for_all_layers()) return {};
  const double begin = Seconds();
  taker->peak_bytes = std::max(taker->peak_bytes, taker->cache->bytes());
  KVC_RETURN_IF_ERROR(ReduceBySideValues(workspace, n_tokens + taker->n_behind, taker));
  taker->compress_seconds += Seconds() - begin;
  return {};
}

// What the session brings to a prompt of n_new tokens, and the room for what it takes from it.
Status Session::MakeTaker(Stream* stream, int32_t n_new, bool compress, PromptJob::Taker* taker) {
  Result<std::unique_ptr<KvCache>> cache = cache_->Fork();
  if (!cache.ok()) return cache.status();
  Result<std::unique_ptr<Compressor>> compressor = compressor_->Fork(stream);
  if (!compressor.ok()) return compressor.status();
  taker->cache = std::move(cache.value()), taker->compressor = std::move(compressor.value());
  taker->compress = compress;
  ReserveTokens(static_cast<size_t>(n_new));
  KVC_RETURN_IF_ERROR(ReserveHidden());
  if (n_tokens_ + n_new <= params_.max_tokens || taker->compressor->keeps_lengths()) return {};
  return taker->compressor->KeepLengths(executor()->device(), stream, *taker->cache,
                                        params_.on_full == OnFull::kSlide, n_tokens_);
}

// The prompt went well: the session becomes what the job holds for it. n_given: tokens of the caller among
// those read.
void Session::TakePart(PromptJob* job, size_t taker, int32_t n_given) {
  const std::vector<int32_t>& tokens = job->tokens();
  n_tokens_ += static_cast<int32_t>(tokens.size());
  Count(&n_prompt_, n_given);
  BeginText(n_given);
  pending_ = stop_token_ = -1;
  finished_ = rewound_ = false;
  Commit(&job->takers()[taker]);
  NotePeaks(cache_->bytes(), job->workspace_peak());
  if (!CanTakeBack()) changed_at_ = n_tokens_;
  Remember({tokens.data(), tokens.size()});
  FreeTokenRoom();
}

void Session::Commit(PromptJob::Taker* taker) {
  cache_ = std::move(taker->cache);
  compressor_ = std::move(taker->compressor);
  attention_len_.clear();
  // From a compressed prompt on, heads hold what it left them.
  if (taker->compress && compressor_->keeps_lengths()) compressor_->HoldLengths(*cache_);
  if (compressor_->TakeChanged()) {
    Count(&n_compactions_, 1);
    changed_at_ = n_tokens_;
  }
  compress_seconds_ += taker->compress_seconds;
  NotePeaks(std::max(taker->peak_bytes, cache_->bytes()), 0);
}

// Sessions whose policies read a prompt in parts read it alone, and each kind of second reading has a pass of
// its own. What sessions hold goes again when another fails: all were empty.
Status Session::PrefillTogether(Span<Session* const> sessions, Span<const int32_t> tokens) {
  const int32_t n = static_cast<int32_t>(tokens.size());
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i]->model_ != sessions[0]->model_)
      return Error(Code::kInvalid, "session %zu has another model", i);
    KVC_RETURN_IF_ERROR(sessions[i]->CheckFirst(i, tokens));
  }
  struct Group {
    SecondReading reading;
    std::vector<Session*> sessions;
  };
  std::vector<Group> together;
  std::vector<Session*> alone;
  for (Session* s : sessions) {
    const Policy& policy = s->compressor_->policy();
    if (s->compressor_->plan().TokensAtOnce(s->held(), n) < n) {
      alone.push_back(s);
      continue;
    }
    const SecondReading reading = policy.keeps_all() || policy.scorer->reading == nullptr
                                      ? SecondReading()
                                      : policy.scorer->reading(policy);
    size_t at = 0;
    for (; at < together.size() && reading.wanted; ++at) {
      SecondReading& other = together[at].reading;
      if (!other.wanted) other = reading;
      if (other == reading) break;
    }
    if (at == together.size()) together.push_back({reading, {}});
    together[at].sessions.push_back(s);
  }
  struct Undo {  // also when memory ends
    Span<Session* const> sessions;
    ~Undo() {
      for (Session* s : sessions) s->Reset();
    }
  } undo{sessions};
  for (Session* s : alone) KVC_RETURN_IF_ERROR(s->Prefill(tokens, true));
  for (const Group& group : together)
    KVC_RETURN_IF_ERROR(ReadTogether({group.sessions.data(), group.sessions.size()}, tokens));
  undo.sessions = {};
  return {};
}

Status Session::CheckFirst(size_t number, Span<const int32_t> tokens) const {
  if (held() != 0 || reads_prompt()) return Error(Code::kInvalid, "session %zu is not empty", number);
  KVC_RETURN_IF_ERROR(CheckTokens(tokens));
  if (static_cast<int64_t>(tokens.size()) <= params_.max_tokens) return {};
  return Error(Code::kContextFull, "session %zu: %zu tokens do not fit in max_tokens=%d", number,
               tokens.size(), params_.max_tokens);
}

Status Session::ReadTogether(Span<Session* const> sessions, Span<const int32_t> tokens) {
  if (sessions.empty()) return {};
  const double begin = Seconds();
  Session& first = *sessions[0];
  Executor* executor = first.executor();
  Result<Executor::Lease> lease = executor->Acquire();
  if (!lease.ok()) return lease.status();
  Workspace& workspace = *lease.value();
  const PromptUse use(&workspace);
  const int32_t n = static_cast<int32_t>(tokens.size());
  std::vector<PromptJob::Taker> takers(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i) {
    Session& s = *sessions[i];
    KVC_RETURN_IF_ERROR(s.MakeTaker(workspace.stream.get(), n, true, &takers[i]));
  }
  PromptJob job(*first.model_, executor, std::vector<int32_t>(tokens.begin(), tokens.end()), 0,
                std::move(takers));
  KVC_RETURN_IF_ERROR(job.Begin(executor->memory(), &workspace));
  while (!job.done()) {
    for (const Session* s : sessions) KVC_RETURN_IF_ERROR(s->CheckCancel("prefill"));
    KVC_RETURN_IF_ERROR(job.Advance(&workspace));
  }
  for (Session* s : sessions) KVC_RETURN_IF_ERROR(job.CopyLastRow(&workspace, s->hidden_.raw()));
  job.FreeBuffers();
  for (size_t i = 0; i < sessions.size(); ++i)
    KVC_RETURN_IF_ERROR(sessions[i]->EndWholePrompt(&workspace, n, &job.takers()[i]));
  // What a session of its own would have taken: the network, what its scorer asked for, its compression.
  double network = Seconds() - begin - job.extras().column_sums - job.extras().reread;
  for (const PromptJob::Taker& t : job.takers()) network -= t.compress_seconds;
  for (size_t i = 0; i < sessions.size(); ++i) {
    const PromptJob::Taker& t = job.takers()[i];
    sessions[i]->prefill_seconds_ += network + (t.needs.column_sums ? job.extras().column_sums : 0) +
                                     (t.needs.reading.wanted ? job.extras().reread : 0) + t.compress_seconds;
    sessions[i]->TakePart(&job, i, n);
  }
  return {};
}

}  // namespace kvc

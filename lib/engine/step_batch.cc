#include "lib/engine/step_batch.h"

#include <algorithm>

#include "lib/base/clock.h"

namespace kvc {
namespace {

constexpr int32_t kHeadroom = 256;  // steps whose scratch is taken at once, so that most take none

int32_t RoundUp(int32_t n) { return (n + kHeadroom - 1) / kHeadroom * kHeadroom; }

bool Works(const StepWish& wish) { return wish.status.ok() && !wish.rests; }

int32_t Rows(const StepWish& wish) { return Works(wish) ? static_cast<int32_t>(wish.tokens.size()) : 0; }

bool Chooses(const StepWish& wish) { return Works(wish) && (wish.chooses || wish.logits != nullptr); }

// What the newest of n tokens looks at: what those before it left, and itself.
int32_t SeenByLast(const StepPlan& plan, int32_t head, const KvCache& cache, int32_t n) {
  const StepPlan& own = plan.Of(head / cache.layout().n_kv_heads);
  int32_t len = cache.Len(head);
  for (int32_t row = 1; row < n; ++row) len = own.LengthAfter(head, len + 1);
  return len + 1;
}

}  // namespace

Status StepRunner::Run(Span<StepWish> wishes, bool all) {
  Result<Executor::Lease> lease = executor_->Acquire();
  if (!lease.ok()) return lease.status();
  workspace_ = std::move(lease.value());
  struct Undo {  // of steps that did not come, also when memory ends
    Span<StepWish> wishes;
    ~Undo() {
      for (const StepWish& wish : wishes) wish.session->LeaveRoom();
    }
  } undo{wishes};
  for (StepWish& wish : wishes) {
    if (Rows(wish) > 0) wish.status = wish.session->MakeRoom(workspace_->stream.get());
  }
  KVC_RETURN_IF_ERROR(Reserve(wishes));
  for (const StepWish& wish : wishes) {
    if (all && !wish.status.ok()) return wish.status;
  }
  for (Span<StepWish> left = wishes; !left.empty();) {
    const Span<StepWish> group = NextGroup(left);
    KVC_RETURN_IF_ERROR(Feed(group));
    left = left.subspan(group.size(), left.size() - group.size());
  }
  return wishes.size() == 1 && wishes[0].n_drafted > 0 && Works(wishes[0]) ? ChooseDrafted(&wishes[0])
                                                                           : Choose(wishes);
}

// ---- before anything changes ----

Status ReserveTurns(Executor* executor, const DeviceMemory& memory, int32_t reach, Workspace* w) {
  return executor->ReserveAngles(w, RoundUp(reach + kHeadroom), memory);
}

Status ReserveSteps(Executor* executor, const DeviceMemory& memory, const Compressor& compressor,
                    int32_t longest, int32_t ring_slots, int32_t n_tokens, Workspace* w) {
  const ModelConfig& c = *executor->network().config;
  if (compressor.turns_keys())
    KVC_RETURN_IF_ERROR(ReserveTurns(executor, memory, compressor.in_cache() ? longest : n_tokens, w));
  if (!compressor.ends_later()) return {};
  const int32_t entries = RoundUp(longest + kHeadroom);
  const int32_t rows = compressor.policy().Int(OptionId::kWindow);
  KVC_RETURN_IF_ERROR(compressor.ReserveChoice(memory, int64_t{entries} + ring_slots, rows, &w->choice));
  KVC_RETURN_IF_ERROR(
      w->layer.Reserve(memory, c.n_kv_heads, c.head_dim, entries, entries, compressor.plan().n_aux(), false));
  return w->observed.Reserve(memory, c.n_heads, c.n_kv_heads, c.head_dim, entries, rows, false, false);
}

void GrowShape(const Executor& executor, const CacheLayout& layout, const StepPlan& plan, int32_t longest,
               int32_t ring_slots, StepShape* shape) {
  const ModelConfig& c = *executor.network().config;
  shape->n_heads = c.n_heads, shape->n_kv_heads = c.n_kv_heads, shape->head_dim = c.head_dim;
  shape->page_slots = std::max(shape->page_slots, layout.page_slots);
  shape->ring_slots = std::max(shape->ring_slots, ring_slots);
  shape->longest = std::max<int64_t>(shape->longest, RoundUp(longest + ring_slots) + kHeadroom);
  shape->append_bytes = std::max(shape->append_bytes, executor.device()->AppendScratchBytes(layout));
  shape->any_attention = shape->any_attention || plan.needs_attention;
  shape->any_update = shape->any_update || plan.Updates();
  shape->any_choice = shape->any_choice || plan.reads > 0;
}

// Where there is no room for all, some go without, and the others have theirs as if those were not there: a
// buffer that could not grow is gone, and what grew for one takes the room of another.
Status StepRunner::Reserve(Span<StepWish> wishes) {
  for (bool freed = false;;) {
    StepWish* newest = nullptr;
    Status status = ReserveAll(wishes, &newest);
    if (status.ok()) return {};
    if (status.code() == Code::kMemory && !freed) {
      executor_->FreeIdle();  // what idle workspaces hold, or a prompt left in this one, may be enough
      workspace_->FreePromptBuffers();
      freed = true;
      continue;
    }
    if (newest == nullptr) return status;
    newest->status = std::move(status);
    newest->session->cache_->Trim();
    workspace_->FreePromptBuffers();
    workspace_->FreeStepBuffers();
    executor_->FreeIdle();  // tables that were made for it
  }
}

// *newest: the last wish that anything was taken for.
Status StepRunner::ReserveAll(Span<StepWish> wishes, StepWish** newest) {
  for (StepWish& wish : wishes) {
    if (!Works(wish)) continue;
    *newest = &wish;
    Status status = ReserveSession(wish);
    if (!status.ok() && status.code() != Code::kInvalid) return status;
    wish.status = std::move(status);  // what is wrong with a wish is found before anything is taken for it
  }
  return ReserveShared(wishes);
}

// Everything a session may need is taken here: from the first operation on nothing fails for want of memory.
// Its own pages come last: of a session that finds no room for the rest none stay.
Status StepRunner::ReserveSession(const StepWish& wish) {
  Session& s = *wish.session;
  Workspace& w = *workspace_;
  const DeviceMemory memory = executor_->memory();
  const ModelConfig& c = s.model_->config();
  if (wish.chooses) KVC_RETURN_IF_ERROR(s.sampler_.CheckLeft());
  if (wish.tokens.empty()) return {};
  const int32_t n = static_cast<int32_t>(wish.tokens.size());
  Compressor& compressor = *s.compressor_;
  s.ReserveTokens(wish.tokens.size());
  KVC_RETURN_IF_ERROR(s.ReserveHidden());
  KVC_RETURN_IF_ERROR(ReserveSteps(executor_, memory, compressor, compressor.LongestHead(*s.cache_) + n,
                                   s.cache_->ring_slots(), s.n_tokens_ + n, &w));
  if (s.observe_) {
    const int64_t stride = RoundUp(s.cache_->MaxLen() + n);
    if (stride > s.attention_stride_ || s.attention_.size() == 0) {
      s.attention_stride_ = 0;
      s.attention_len_.clear();
      KVC_RETURN_IF_ERROR(
          s.attention_.Reserve(memory, int64_t{c.n_layers} * c.n_heads * stride, "observed attention"));
      s.attention_stride_ = stride;
    }
    s.attention_len_.resize(static_cast<size_t>(c.n_layers * c.n_kv_heads));
  }
  return s.cache_->EnsureSteps(w.stream.get(), n, compressor.writes_all());
}

Status StepRunner::ReserveChoices(Span<const StepWish> wishes) {
  Workspace& w = *workspace_;
  const Network& network = executor_->network();
  const DeviceMemory memory = executor_->memory();
  int32_t choices = 0, draws = 0;
  size_t penalized = 0;
  for (const StepWish& wish : wishes) {
    if (!Chooses(wish)) continue;
    const int32_t n = 1 + wish.n_drafted;
    const Sampler& sampler = wish.session->sampler_;
    choices += n, draws += wish.chooses && sampler.draws() ? n : 0;
    penalized = std::max(penalized, sampler.penalized());
  }
  if (choices == 0) return {};
  choices = std::min(choices, kMostHeads);
  w.repeated.reserve(static_cast<size_t>(choices) * penalized);
  KVC_RETURN_IF_ERROR(w.step.ReserveHeads(network, choices, memory));
  draws = std::min({draws, choices, executor_->device()->info().sample_rows});
  if (draws == 0) return {};
  return w.sample_weights.Reserve(memory, int64_t{draws} * network.config->vocab_size, "sampling");
}

Status StepRunner::ReserveShared(Span<StepWish> wishes) {
  Workspace& w = *workspace_;
  const Network& network = executor_->network();
  const DeviceMemory memory = executor_->memory();
  KVC_RETURN_IF_ERROR(ReserveChoices(wishes));
  for (Span<StepWish> left = wishes; !left.empty();) {
    const Span<StepWish> group = NextGroup(left);
    const StepShape shape = ShapeOf(group);
    if (shape.n_rows > 0) {
      KVC_RETURN_IF_ERROR(w.step.Reserve(network, shape.n_rows, memory));
      KVC_RETURN_IF_ERROR(w.step.ReserveAttention(shape, memory));
      w.rows.reserve(static_cast<size_t>(shape.n_rows));
      w.tokens.reserve(static_cast<size_t>(shape.n_rows));
      w.rows.clear();
      for (const StepWish& wish : group) {
        for (int32_t t = 0; t < Rows(wish); ++t)
          w.rows.push_back({&wish.session->cache_->view(), nullptr, wish.session->n_tokens_ + t, nullptr});
      }
      KVC_RETURN_IF_ERROR(
          executor_->device()->ReserveStep(w.stream.get(), {w.rows.data(), w.rows.size()}, shape));
    }
    left = left.subspan(group.size(), left.size() - group.size());
  }
  return {};
}

// ---- feeding ----

// The first wishes that fit into one pass.
Span<StepWish> StepRunner::NextGroup(Span<StepWish> wishes) const {
  size_t n = 0;
  for (int32_t rows = 0; n < wishes.size(); ++n) {
    rows += Rows(wishes[n]);
    if (n > 0 && rows > kMostRows) break;
  }
  return wishes.subspan(0, n);
}

StepShape StepRunner::ShapeOf(Span<const StepWish> group) const {
  StepShape shape{};
  for (const StepWish& wish : group) {
    const int32_t n = Rows(wish);
    if (n == 0) continue;
    const Session& s = *wish.session;
    shape.n_rows += n;
    GrowShape(*executor_, s.cache_->layout(), s.compressor_->step_plan(), s.cache_->MaxLen() + n,
              s.cache_->ring_slots(), &shape);
    shape.any_attention = shape.any_attention || s.observe_;
  }
  return shape;
}

Status StepRunner::Feed(Span<StepWish> group) {
  Workspace& w = *workspace_;
  const double begin = Seconds();
  w.rows.clear(), w.tokens.clear();
  group_ = group;
  bool ends_later = false;
  for (size_t i = 0; i < group.size(); ++i) {
    const int32_t n = Rows(group[i]);
    if (n == 0) continue;
    Session& s = *group[i].session;
    ends_later = ends_later || s.compressor_->ends_later();
    dropped_[i].store(false, std::memory_order_relaxed);
    s.cache_->LeaveWindows();
    const StepPlan& plan =
        s.compressor_->StepPlanWith(s.observe_ ? s.attention_.at() : DevicePtr<float>(), s.attention_stride_);
    for (int32_t t = 0; t < n; ++t) {
      w.rows.push_back({&s.cache_->view(), &plan, s.n_tokens_ + t, &dropped_[i]});
      w.tokens.push_back(group[i].tokens[static_cast<size_t>(t)]);
    }
    for (size_t h = 0; s.observe_ && h < s.attention_len_.size(); ++h)
      s.attention_len_[h] = SeenByLast(plan, static_cast<int32_t>(h), *s.cache_, n);
  }
  if (w.rows.empty()) return {};
  // Until the end some layers have the new tokens and others not.
  for (const StepWish& wish : group) wish.session->torn_ = wish.session->torn_ || Rows(wish) > 0;
  const Status ran = RunSteps(executor_->network(), w.stream.get(), w.tokens.data(), w.rows.data(),
                              static_cast<int32_t>(w.rows.size()), ShapeOf(group), w.angles.data(),
                              ends_later ? this : nullptr, &w.step);
  // What a device lacks in the middle of a step is not cured by calling again, as kMemory promises.
  if (ran.code() == Code::kMemory) return Error(Code::kDevice, "%s", ran.message().c_str());
  KVC_RETURN_IF_ERROR(ran);
  // The residual of a session's last row becomes its own.
  const int64_t width = executor_->network().config->hidden_size;
  PageCopy copies[kMostRows];
  size_t n_copies = 0;
  int64_t row = 0;
  for (const StepWish& wish : group) {
    if (Rows(wish) == 0 || wish.n_drafted > 0) continue;
    row += Rows(wish);
    copies[n_copies++] = {wish.session->hidden_.raw(), (w.step.x() + (row - 1) * width).As<uint8_t>(),
                          4 * width};
  }
  if (n_copies > 0) KVC_RETURN_IF_ERROR(executor_->device()->Copy(w.stream.get(), {copies, n_copies}));
  const double seconds = Seconds() - begin;
  for (size_t i = 0; i < group.size(); ++i) {
    if (Rows(group[i]) == 0) continue;
    Session& s = *group[i].session;
    // By the device, or by a method that scored again.
    const bool changed = s.compressor_->TakeChanged(),
               dropped = dropped_[i].load(std::memory_order_relaxed) || changed;
    s.torn_ = false;
    s.decode_seconds_ += seconds;
    const int64_t held = s.cache_->bytes();  // with pages that go now
    s.cache_->Stepped(Rows(group[i]), dropped, dropped && s.compressor_->drops_several());
    s.Fed(group[i].tokens.subspan(0, group[i].tokens.size() - static_cast<size_t>(group[i].n_drafted)),
          dropped);
    s.NotePeaks(held, w.bytes());
  }
  return {};
}

Status StepRunner::AfterAttention(int layer, const StepArgs& args) {
  Workspace& w = *workspace_;
  const LayerWork work = executor_->WorkOf(&w);
  for (const StepWish& wish : group_) {
    Compressor& compressor = *wish.session->compressor_;
    KvCache* cache = wish.session->cache_.get();
    if (Rows(wish) == 0 || !compressor.ends_later() || !compressor.IsOver(layer, *cache)) continue;
    // The room is there, for the largest of the group: each session lies in it as in its own.
    KVC_RETURN_IF_ERROR(ReserveSteps(executor_, executor_->memory(), compressor,
                                     compressor.LongestHead(*cache), cache->ring_slots(),
                                     wish.session->n_tokens_, &w));
    KVC_RETURN_IF_ERROR(compressor.Reobserve(work, layer, &w.layer, &w.observed, cache));
  }
  return executor_->device()->EndStep(w.stream.get(), args);
}

// ---- choosing ----

Status StepRunner::Sample(Span<const SampleRow> rows, int32_t* tokens) {
  Workspace& w = *workspace_;
  const size_t at_once = static_cast<size_t>(executor_->device()->info().sample_rows);
  for (size_t first = 0; first < rows.size();) {
    const size_t n = std::min(at_once, rows.size() - first);
    KVC_RETURN_IF_ERROR(executor_->device()->Sample(
        w.stream.get(), {rows.subspan(first, n), executor_->network().config->vocab_size,
                         w.sample_weights.at(), tokens + first}));
    first += n;
  }
  return {};
}

Status StepRunner::Choose(Span<StepWish> wishes) {
  StepWish* some[kMostHeads];
  int32_t n = 0;
  for (StepWish& wish : wishes) {
    if (Chooses(wish)) some[n++] = &wish;
    if (n < kMostHeads) continue;
    KVC_RETURN_IF_ERROR(ChooseSome(some, n));
    n = 0;
  }
  return n > 0 ? ChooseSome(some, n) : Status();
}

Status StepRunner::ChooseSome(StepWish* const* some, int32_t n) {
  Workspace& w = *workspace_;
  const double begin = Seconds();
  const int32_t vocab = executor_->network().config->vocab_size;
  DevicePtr<float> x[kMostHeads];
  for (int32_t i = 0; i < n; ++i) x[i] = some[i]->session->hidden_.at();
  KVC_RETURN_IF_ERROR(Heads(executor_->network(), w.stream.get(), x, n, &w.step));
  StepWish* choosing[kMostHeads];
  SampleRow rows[kMostHeads];
  int32_t tokens[kMostHeads];
  size_t n_rows = 0;
  w.repeated.clear();
  for (int32_t i = 0; i < n; ++i) {
    StepWish& wish = *some[i];
    const DevicePtr<float> logits = w.step.logits() + int64_t{i} * vocab;
    if (wish.logits != nullptr)
      KVC_RETURN_IF_ERROR(
          executor_->device()->Read(w.stream.get(), logits.As<uint8_t>(), wish.logits, 4 * int64_t{vocab}));
    if (!wish.chooses) continue;
    choosing[n_rows] = &wish;
    rows[n_rows++] = wish.session->sampler_.RowOf(logits, wish.session->n_answer_, {}, &w.repeated);
  }
  KVC_RETURN_IF_ERROR(Sample({rows, n_rows}, tokens));
  for (size_t i = 0; i < n_rows; ++i)
    choosing[i]->token = tokens[i], choosing[i]->status = CheckChosen(tokens[i]);
  for (int32_t i = 0; i < n; ++i) some[i]->session->decode_seconds_ += Seconds() - begin;
  return {};
}

}  // namespace kvc

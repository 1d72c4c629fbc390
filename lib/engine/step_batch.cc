#include "lib/engine/step_batch.h"

#include <algorithm>
#include <chrono>

namespace kvc {
namespace {

constexpr int32_t kHeadroom = 64;  // steps whose scratch is taken at once, so that most take none

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t RoundUp(int64_t n) { return (n + kHeadroom - 1) / kHeadroom * kHeadroom; }

}  // namespace

// Everything a session may need is taken here: from the first operation on nothing fails for want of memory.
Status StepRunner::ReserveSession(const Feed& feed) {
  Session& s = *feed.session;
  Workspace& w = *workspace_;
  const DeviceMemory memory = executor_->memory();
  const int32_t n = static_cast<int32_t>(feed.tokens.size());
  Compressor& compressor = *s.compressor_;
  if (s.keeps_tokens_ && s.tokens_.capacity() < s.tokens_.size() + feed.tokens.size())
    s.tokens_.reserve(2 * s.tokens_.size() + feed.tokens.size() + 1024);
  KVC_RETURN_IF_ERROR(s.ReserveLogits());
  KVC_RETURN_IF_ERROR(s.cache_->EnsureSteps(w.stream.get(), n, compressor.writes_all()));
  const int32_t longest = s.cache_->MaxLen() + n;
  if (compressor.in_cache() || compressor.plan().codebook()) {
    const int64_t reach = compressor.in_cache() ? longest : int64_t{s.n_tokens_} + n;
    KVC_RETURN_IF_ERROR(executor_->ReserveAngles(&w, static_cast<int32_t>(RoundUp(reach + kHeadroom)), memory));
  }
  if (compressor.ends_later()) {
    const ModelConfig& c = s.model_->config();
    const int64_t entries = RoundUp(longest + kHeadroom);
    ends_later_ = true;
    KVC_RETURN_IF_ERROR(w.choice.Reserve(memory, compressor.plan(), entries + s.cache_->ring_slots()));
    KVC_RETURN_IF_ERROR(w.layer.Reserve(memory, c.n_kv_heads, c.head_dim, entries, entries, 0, false));
    KVC_RETURN_IF_ERROR(w.observed.Reserve(memory, c.n_heads, c.n_kv_heads, c.head_dim, entries,
                                           s.compressor_->policy().Int(OptionId::kWindow), false, false));
  }
  if (!s.observe_) return {};
  const ModelConfig& c = s.model_->config();
  const int64_t stride = RoundUp(s.cache_->MaxSlots() + n);
  if (stride > s.attention_stride_ || s.attention_.size() == 0) {
    s.attention_stride_ = 0;
    KVC_RETURN_IF_ERROR(s.attention_.Reserve(memory, int64_t{c.n_layers} * c.n_heads * stride, "observed attention"));
    s.attention_stride_ = stride;
  }
  s.attention_len_.resize(static_cast<size_t>(c.n_layers * c.n_kv_heads));
  return {};
}

void StepRunner::Shape(StepShape* shape) const {
  const ModelConfig& c = *executor_->network().config;
  shape->n_heads = c.n_heads, shape->n_kv_heads = c.n_kv_heads, shape->head_dim = c.head_dim;
  shape->n_rows = 0, shape->page_slots = shape->ring_slots = 0, shape->longest = 0, shape->append_bytes = 0;
  shape->any_attention = false;
  for (const Feed& feed : feeds_) {
    const KvCache& cache = *feed.session->cache_;
    const int32_t n = static_cast<int32_t>(feed.tokens.size());
    shape->n_rows += n;
    shape->page_slots = std::max(shape->page_slots, cache.layout().page_slots);
    shape->ring_slots = std::max(shape->ring_slots, cache.ring_slots());
    shape->longest = std::max<int64_t>(shape->longest, RoundUp(cache.MaxSlots() + n) + kHeadroom);
    shape->append_bytes = std::max(shape->append_bytes, executor_->device()->AppendScratchBytes(cache.layout()));
    shape->any_attention = shape->any_attention || feed.session->observe_ ||
                           feed.session->compressor_->step_plan().needs_attention;
  }
}

Status StepRunner::Reserve() {
  Workspace& w = *workspace_;
  w.rows.clear(), w.tokens.clear();
  for (const Feed& feed : feeds_) KVC_RETURN_IF_ERROR(ReserveSession(feed));
  Shape(&shape_);
  KVC_RETURN_IF_ERROR(w.step.Reserve(executor_->network(), shape_.n_rows, executor_->memory()));
  return w.step.ReserveAttention(executor_->network(), shape_, executor_->memory());
}

Status StepRunner::Run() {
  Result<Executor::Lease> lease = executor_->Acquire();
  if (!lease.ok()) return lease.status();
  workspace_ = std::move(lease.value());
  Workspace& w = *workspace_;
  const double begin = Seconds();
  Status status = Reserve();
  if (!status.ok() && status.code() == Code::kMemory) {  // what idle workspaces hold may be enough
    executor_->FreeIdle();
    status = Reserve();
  }
  KVC_RETURN_IF_ERROR(status);
  std::atomic<bool> dropped[kMostFeeds];
  for (size_t i = 0; i < feeds_.size(); ++i) {
    Session& s = *feeds_[i].session;
    dropped[i].store(false, std::memory_order_relaxed);
    StepPlan& plan = s.compressor_->mutable_step_plan();
    plan.attention = s.observe_ ? s.attention_.at() : DevicePtr<float>();
    plan.attention_stride = s.attention_stride_;
    const int32_t n = static_cast<int32_t>(feeds_[i].tokens.size());
    for (int32_t t = 0; t < n; ++t) {
      const int32_t position = s.n_tokens_ + t;
      w.rows.push_back({&s.cache_->view(), &plan, position, &dropped[i]});
      w.tokens.push_back({feeds_[i].tokens[static_cast<size_t>(t)], position, t + 1 == n});
    }
    // What the newest token looks at is over what is there before anything leaves.
    for (size_t h = 0; s.observe_ && h < s.attention_len_.size(); ++h)
      s.attention_len_[h] = s.cache_->Len(static_cast<int32_t>(h)) + n;
  }
  KVC_RETURN_IF_ERROR(RunSteps(executor_->network(), w.stream.get(), w.tokens.data(), w.rows.data(), shape_.n_rows, shape_,
                               w.angles.data(), ends_later_ ? this : nullptr, &w.step));
  KVC_RETURN_IF_ERROR(KeepLogits());
  const double seconds = Seconds() - begin;
  for (size_t i = 0; i < feeds_.size(); ++i) {
    Session& s = *feeds_[i].session;
    s.decode_seconds_ += seconds;
    s.cache_->Stepped(static_cast<int32_t>(feeds_[i].tokens.size()), dropped[i].load(std::memory_order_relaxed));
    s.Fed(feeds_[i].tokens, dropped[i].load(std::memory_order_relaxed));
    s.NotePeaks(w, s.cache_->bytes(), w.bytes());
  }
  return {};
}

// The logits of a session's last row become its own.
Status StepRunner::KeepLogits() {
  const int64_t vocab = executor_->network().config->vocab_size;
  PageCopy copies[kMostFeeds];
  for (size_t i = 0; i < feeds_.size(); ++i) {
    Session& s = *feeds_[i].session;
    copies[i] = {s.logits_.raw(), (workspace_->step.logits() + static_cast<int64_t>(i) * vocab).As<uint8_t>(), 4 * vocab};
    s.host_logits_fresh_ = false;
  }
  return executor_->device()->Copy(workspace_->stream.get(), {copies, feeds_.size()});
}

Status StepRunner::AfterAttention(int layer, const StepArgs& args) {
  Workspace& w = *workspace_;
  const LayerWork work = executor_->WorkOf(&w);
  for (const Feed& feed : feeds_) {
    Compressor& compressor = *feed.session->compressor_;
    if (compressor.ends_later())
      KVC_RETURN_IF_ERROR(compressor.Reobserve(work, layer, &w.layer, &w.observed, feed.session->cache_.get()));
  }
  return executor_->device()->EndStep(w.stream.get(), args);
}

}  // namespace kvc

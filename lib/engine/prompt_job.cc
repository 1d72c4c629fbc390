#include "lib/engine/prompt_job.h"

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/engine/model.h"
#include "lib/engine/reread.h"

namespace kvc {
PromptJob::PromptJob(const Model& model, Executor* executor, std::vector<int32_t> tokens,
                     int32_t first_position, std::vector<Taker> takers)
    : model_(model),
      executor_(executor),
      tokens_(std::move(tokens)),
      first_position_(first_position),
      takers_(std::move(takers)) {}

Status PromptJob::Begin(const DeviceMemory& memory, Workspace* workspace) {
  const int32_t n = static_cast<int32_t>(tokens_.size());
  PromptRequest& request = request_;
  request = {};
  request.tokens = tokens_.data(), request.n = n, request.first_position = first_position_,
  request.sink = this;
  SecondReading reading;
  int32_t n_aux = 0;
  const Network& network = executor_->network();
  request.layer_type = network.LayerType(takers_[0].cache->layout());
  slides_ = takers_[0].compressor->sliding_layers();
  for (Taker& t : takers_) {
    for (size_t i = 0; i < slides_.size(); ++i)
      slides_[i] = slides_[i] != 0 && t.compressor->slides(static_cast<int32_t>(i)) ? 1 : 0;
    KVC_RETURN_IF_ERROR(t.compressor->BeginPrompt(first_position_ + n + t.n_behind, &t.needs, t.compress,
                                                  t.cache.get(), n + t.n_behind));
    request.window_rows = std::max(request.window_rows, t.needs.window_rows);
    request.column_sums = request.column_sums || t.needs.column_sums;
    if (t.needs.reading.wanted) reading = t.needs.reading;
    n_aux = std::max(n_aux, t.compressor->plan().n_aux());
    request.positions_in_cache = t.compressor->in_cache();
    request.max_cached = std::max(request.max_cached, t.cache->MaxLen());
    if (network.LayerType(t.cache->layout()) == KvType::kF32) request.layer_type = KvType::kF32;
    request.seen_masks = request.seen_masks || (t.cache->layout().seen_masks && request.max_cached > 0);
  }
  if (!slides_.empty()) request.slides = slides_.data();
  if (reading.wanted) {
    KVC_RETURN_IF_ERROR(MakeReread(model_, reading, tokens_, first_position_ + n, &reread_));
    request.reread = &reread_;
  }
  for (const Taker& t : takers_) {
    if (t.compress)
      KVC_RETURN_IF_ERROR(t.compressor->ReserveWaiting(memory.meter, int64_t{request.max_cached} + n));
  }
  const bool several = takers_.size() > 1;
  if (several) request.positions_in_cache = false;  // before the first dropped entry slots are positions
  request.n_aux = several ? 0 : n_aux;
  KVC_RETURN_IF_ERROR(workspace->chunk.Reserve(network, request, memory));
  KVC_RETURN_IF_ERROR(run_.Begin(network, request, memory));
  if (!several) return {};
  const ModelConfig& c = *network.config;
  const int64_t entries = n + reread_.Behind();
  KVC_RETURN_IF_ERROR(
      copy_.Reserve(memory, c.n_kv_heads, c.head_dim, entries, 0, n_aux, false, request.layer_type));
  return copied_.Reserve(memory, c.n_heads, c.n_kv_heads, c.head_dim, entries,
                         std::min(request.window_rows, n), request.column_sums, reading.wanted);
}

Status PromptJob::Advance(Workspace* workspace) {
  workspace_ = workspace;
  KVC_RETURN_IF_ERROR(workspace->chunk.Reserve(executor_->network(), request_, executor_->memory()));
  return run_.Advance(workspace->stream.get(), workspace->side.get(), &workspace->chunk);
}

Status PromptJob::CopyLastRow(Workspace* workspace, DeviceBytes to) {
  const PageCopy copy{to, run_.last_row().As<uint8_t>(), 4 * int64_t{model_.config().hidden_size}};
  return executor_->device()->Copy(workspace->stream.get(), {&copy, 1});
}

Status PromptJob::BeginLayer(int layer, LayerBuffers* kv) {
  if (takers_.size() > 1) {
    n_before_.assign(kv->len().size(), 0);
    std::fill(kv->view().len, kv->view().len + n_before_.size(), 0);
    return {};
  }
  Taker& t = takers_[0];
  const LayerWork work = executor_->WorkOf(workspace_);
  KVC_RETURN_IF_ERROR(
      t.compressor->LoadLayer(work, layer, static_cast<int32_t>(tokens_.size()), *t.cache, kv));
  n_before_ = kv->len();
  return {};
}

// A taker's own copy of what it may change.
Status PromptJob::CopyFor(const Taker& taker, const LayerBuffers& kv, const ObservedBuffers& observed) {
  Device* device = executor_->device();
  Stream* stream = workspace_->stream.get();
  KVC_RETURN_IF_ERROR(copy_.CopyFrom(stream, device, kv));
  const ModelConfig& c = *executor_->network().config;
  const int32_t rows = std::min(taker.needs.window_rows, observed.n_rows);
  const int64_t width = int64_t{c.n_heads} * c.head_dim, entries = int64_t{c.n_kv_heads} * kv.view().capacity;
  std::vector<PageCopy> copies;
  if (rows > 0) {
    copies.push_back({copied_.queries().As<uint8_t>(),
                      (observed.queries() + (observed.n_rows - rows) * width).As<uint8_t>(),
                      4 * int64_t{rows} * width});
  }
  if (observed.sums())
    copies.push_back({copied_.sums().As<uint8_t>(), observed.sums().As<uint8_t>(), 4 * entries});
  if (observed.maxima())
    copies.push_back({copied_.maxima().As<uint8_t>(), observed.maxima().As<uint8_t>(), 4 * entries});
  copied_.n_rows = rows, copied_.n_new = observed.n_new;
  return device->Copy(stream, {copies.data(), copies.size()});
}

Status PromptJob::EndLayer(int layer, LayerBuffers* kv, ObservedBuffers* observed) {
  const LayerWork work = executor_->WorkOf(workspace_);
  for (Taker& t : takers_) {
    const bool several = takers_.size() > 1;
    if (several) KVC_RETURN_IF_ERROR(CopyFor(t, *kv, *observed));
    const double begin = Seconds();
    KVC_RETURN_IF_ERROR(t.compressor->StoreLayer(work, layer, several ? copy_ : *kv,
                                                 several ? copied_ : *observed, t.compress, n_before_,
                                                 t.cache.get()));
    t.compress_seconds += Seconds() - begin;
    t.peak_bytes = std::max(t.peak_bytes, t.cache->bytes() + kv->bytes());
  }
  workspace_peak_ = std::max(workspace_peak_, workspace_->bytes() + bytes() - layer_bytes());
  return {};
}

}  // namespace kvc

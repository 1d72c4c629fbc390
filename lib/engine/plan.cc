// What a session would take. The buffers are laid out by the code that will take them, with a meter that only
// counts.
#include <algorithm>

#include "lib/engine/session.h"

namespace kvc {

CacheConfig Session::FullCacheConfig(const Model& model, const Policy& policy) {
  CacheConfig config;
  const ModelConfig& c = model.config();
  config.n_layers = c.n_layers, config.n_kv_heads = c.n_kv_heads, config.group = c.n_heads / c.n_kv_heads,
  config.head_dim = c.head_dim;
  config.page_slots = 64;
  config.raw = {static_cast<KvType>(std::min(policy.Int(OptionId::kKv), 2)), c.head_dim, 0};
  if (policy.Int(OptionId::kKv) > 2) config.raw.type = KvType::kF16;
  HeadFormat format;
  format.stored = config.raw;
  config.formats.assign(1, format);
  return config;
}

namespace {

// Bytes of the cache when head i holds slots[i] entries and, with one more, what a step takes.
int64_t CacheBytes(const CacheConfig& config, const std::vector<int32_t>& slots, int32_t extra) {
  int64_t bytes = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const HeadFormat& format = config.formats[i];
    const int32_t tail = std::max(format.tail_slots - 1, 0), main = std::max(slots[i] + extra - tail, 0);
    bytes += (main + config.page_slots - 1) / config.page_slots * KvCache::PageBytes(config, format);
    if (format.tail_slots > 0) bytes += KvCache::TailBytes(config, format);
  }
  return bytes;
}

}  // namespace

Result<SessionPlan> Session::Plan(const std::shared_ptr<const Model>& model, const Policy* policy,
                                  const SessionParams& params, int32_t n_prompt) {
  Result<std::unique_ptr<Session>> made = Create(model, policy, params);
  if (!made.ok()) return made.status();
  Session& s = *made.value();
  if (n_prompt < 1 || n_prompt > s.params_.max_tokens) {
    return Error(Code::kInvalid, "the prompt to plan for has %d tokens; it may have 1 to max_tokens=%d",
                 n_prompt, s.params_.max_tokens);
  }
  const ModelConfig& c = model->config();
  MemoryMeter counter(0, /*counting=*/true);
  SessionPlan plan;
  PromptNeeds needs;
  KVC_RETURN_IF_ERROR(s.compressor_->BeginPrompt(n_prompt, &needs));
  KVC_RETURN_IF_ERROR(s.compressor_->PlanSlots(n_prompt, &plan.slots));
  plan.weight_bytes = model->file().weight_bytes();

  // The prompt's buffers, beside one full layer.
  PrefillRequest request;
  request.n = n_prompt, request.window_rows = needs.window_rows, request.column_sums = needs.column_sums,
  request.n_aux = s.compressor_->n_aux();
  ForwardWorkspace forward;
  KVC_RETURN_IF_ERROR(forward.ReserveDecode(c, 1, &counter));
  KVC_RETURN_IF_ERROR(forward.ReservePrefill(c, request, &counter));
  const int64_t layer_bytes = ForwardWorkspace::LayerKvBytes(c, n_prompt, request.n_aux);
  const int64_t prefill_workspace = counter.used() - layer_bytes + s.logits_.bytes() + s.rotated_q_.bytes() +
                                    s.compressor_->ScoringBytes(n_prompt);
  forward.FreePrefill();

  const CacheConfig& config = s.cache_->config();
  plan.cache_bytes_prompt = CacheBytes(config, plan.slots, 0);
  plan.cache_bytes_peak = plan.cache_bytes_prompt + layer_bytes;
  // At the end heads that grow have all tokens of the answer, the others their budget and the entry of the
  // step.
  const int32_t longest_answer = s.params_.max_tokens == kMaxContext ? 0 : s.params_.max_tokens - n_prompt;
  const Policy& p = s.compressor_->policy();
  const bool grows = p.keeps_all() || p.decode == DecodeMode::kGrow;
  std::vector<int32_t> end = plan.slots;
  if (!grows) KVC_RETURN_IF_ERROR(s.compressor_->PlanSlots(s.params_.max_tokens, &end));
  plan.cache_bytes_end = CacheBytes(config, end, grows ? longest_answer : 1);
  const int32_t longest = *std::max_element(end.begin(), end.end()) + (grows ? longest_answer : 1);
  AttendWorkspace attend;
  KVC_RETURN_IF_ERROR(attend.Reserve(config, longest + 64, model->ops().pool->n_threads(), &counter));
  const int64_t decode_workspace =
      counter.used() + s.logits_.bytes() + s.rotated_q_.bytes() + s.compressor_->ScoringBytes(n_prompt);
  plan.workspace_bytes = std::max(prefill_workspace, decode_workspace);
  const CacheConfig full = FullCacheConfig(*model, p);
  const int64_t tokens = n_prompt + longest_answer, pages = (tokens + full.page_slots - 1) / full.page_slots;
  plan.cache_bytes_full =
      int64_t{c.n_layers} * c.n_kv_heads * pages * KvCache::PageBytes(full, full.formats[0]);
  plan.total_bytes_peak = plan.weight_bytes + std::max(prefill_workspace + plan.cache_bytes_peak,
                                                       decode_workspace + plan.cache_bytes_end);
  return plan;
}

}  // namespace kvc

#include "lib/engine/cache_plan.h"

#include <algorithm>

namespace kvc {

Status CachePlanner::Create(const Policy& policy, HeadScores scores, const AttentionRule& rule) {
  KVC_RETURN_IF_ERROR(Session::CheckParams(params_));
  no_end_named_ = params_.max_tokens == 0 && policy.endless();
  params_.max_tokens = Session::EffectiveMaxTokens(config_, policy, params_);
  if (n_prompt_ < 1 || n_prompt_ > params_.max_tokens) {
    return Error(Code::kInvalid, "the prompt to plan for has %d tokens; it may have 1 to max_tokens=%d",
                 n_prompt_, params_.max_tokens);
  }
  Result<std::unique_ptr<Compressor>> compressor =
      Compressor::Create(policy, Session::ShapeOf(config_, policy, params_), std::move(scores),
                         params_.on_full == OnFull::kSlide, rule, memory_);
  if (!compressor.ok()) return compressor.status();
  compressor_ = std::move(compressor.value());
  Result<CacheLayout> layout = Session::LayoutOf(compressor_->plan(), params_);
  if (!layout.ok()) return layout.status();
  layout_ = std::move(layout.value());
  return {};
}

Status CachePlanner::BeginPrompt(PromptNeeds* needs, std::vector<int32_t>* slots) {
  const StoragePlan& plan = compressor_->plan();
  KVC_RETURN_IF_ERROR(compressor_->BeginPrompt(n_prompt_, needs));
  KVC_RETURN_IF_ERROR(plan.PlanSlots(n_prompt_, slots));
  for (size_t i = 0; i < slots->size(); ++i) {
    const int32_t layer = static_cast<int32_t>(i) / config_.n_kv_heads;
    int32_t& s = (*slots)[i];
    if (!plan.slides(layer)) {
      s = plan.StoredSlots(n_prompt_, compressor_->n_protected(), s);
    } else if (plan.policy().reads_by_steps()) {
      s = layout_.MostHeldOf(layer, n_prompt_);
    }
  }
  return {};
}

// Of a head that shares the budget.
int32_t CachePlanner::LeastSlots(const std::vector<int32_t>& slots) const {
  int32_t least = n_prompt_;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (layout_.window(static_cast<int32_t>(i) / layout_.n_kv_heads) == 0) least = std::min(least, slots[i]);
  }
  return least;
}

Growth CachePlanner::GrowthFrom(const std::vector<int32_t>& slots) const {
  const Policy& p = compressor_->policy();
  Growth growth;
  growth.slots = slots;
  growth.n_steps = params_.max_tokens - n_prompt_;
  // Beyond max_tokens a token attends before an older one leaves.
  if (params_.on_full != OnFull::kError) ++growth.n_steps;
  growth.spread = p.allocator != nullptr && p.allocator->dynamic && LeastSlots(slots) < n_prompt_;
  const bool grows = p.keeps_all() || p.decode == DecodeMode::kGrow;
  growth.caps = compressor_->caps();
  const int32_t slack = p.decode == DecodeMode::kReobserve ? p.Int(OptionId::kSlack) : 0;
  for (size_t i = 0; i < growth.caps.size(); ++i) {
    // A page leaves a window when it is filled beyond what the window holds.
    const int32_t layer = static_cast<int32_t>(i) / layout_.n_kv_heads;
    growth.caps[i] = layout_.window(layer) > 0 ? layout_.MostHeldOf(layer, kMaxContext)
                     : grows                   ? kMaxContext
                                               : growth.caps[i] + slack;
  }
  growth.layer_limit = compressor_->plan().LayerLimit();
  growth.n_least = std::min(compressor_->n_protected(), n_prompt_);
  if (growth.spread && compressor_->plan().fills_bytes()) growth.filled = static_cast<int64_t>(p.budget);
  return growth;
}

int64_t CachePlanner::FullBytes() const {
  const int32_t n = no_end_named_ ? n_prompt_ : params_.max_tokens;
  return FullCacheBytes(layout_, compressor_->policy(), n);
}

Result<int64_t> CacheBytesAfterPrompt(const ModelConfig& config, const char* policy, int32_t n_prompt) {
  const Result<Policy> parsed = ParsePolicy(policy);
  if (!parsed.ok()) return parsed.status();
  MemoryMeter counter(0, /*counting=*/true);  // and no device: only records are made
  SessionParams params;
  params.max_tokens = n_prompt + 1;
  CachePlanner planner(config, params, n_prompt, {nullptr, &counter});
  PromptNeeds needs;
  std::vector<int32_t> slots;
  KVC_RETURN_IF_ERROR(planner.Create(parsed.value(), {}, {}));
  KVC_RETURN_IF_ERROR(planner.BeginPrompt(&needs, &slots));
  return planner.PagesFrom(slots).PromptBytes();
}

}  // namespace kvc

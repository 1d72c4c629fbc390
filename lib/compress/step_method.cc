// The step side of a method: its rules as a device wants them, and scoring again (methods.md 1.6).
#include <algorithm>

#include "lib/compress/compressor.h"

namespace kvc {

const StepPlan& Compressor::StepPlanWith(DevicePtr<float> attention, int64_t stride) {
  if (step_stale_) MakeStepPlan();
  for (StepPlan* plan : {&step_, &sliding_step_})
    plan->attention = attention, plan->attention_stride = stride;
  return step_;
}

void Compressor::MakeStepPlan() {
  step_stale_ = false;
  step_ = sliding_step_ = {};
  if (!slides_.empty()) step_.slides = slides_.data(), step_.of_sliding = &sliding_step_;
  step_.in_cache = in_cache_;
  step_.merge = MergeRuleNow();
  if (keep_lengths_) step_.held = held_.data(), step_.n_sinks = kSinks;
  if (policy().method->reads_pages) {
    step_.reads = policy().Int(OptionId::kRead), step_.reads_from = policy().Int(OptionId::kReadSkip);
    step_.reads_group = static_cast<GroupKind>(policy().Int(OptionId::kGqaAgg));
  }
  if (policy().keeps_all()) return;
  const Scorer& scorer = *policy().scorer;
  StepScoring scoring;
  if (scorer.step != nullptr) scorer.step(policy(), &scoring);
  for (int32_t i = 0; i < scoring.n_instrs; ++i) step_.instrs[step_.n_instrs++] = scoring.instrs[i];
  // What merging needs and the scorer itself does not keep.
  if (plan_.merge_sums() >= plan_.scorer_aux())
    step_.instrs[step_.n_instrs++] = {StepOp::kAddAttention, static_cast<int8_t>(plan_.merge_sums())};
  if (plan_.merge_counts() >= plan_.scorer_aux())
    step_.instrs[step_.n_instrs++] = {StepOp::kAddOne, static_cast<int8_t>(plan_.merge_counts())};
  if (scorer.history != nullptr) scorer.history(policy(), &step_.history);
  if (scoring.gain) step_.gain_length = std::max(budget_, 1);
  step_.gain_scaled = scoring.gain_scaled, step_.gain_floor = scoring.gain_floor;
  step_.needs_attention = scoring.needs_attention || plan_.merge_sums() >= 0;
  step_.evicts = plan_.evicts_at_steps();
  step_.one_set = plan_.one_set() && step_.needs_attention;
  step_.rank = scoring.rank;
  step_.select = SelectRuleNow();
  step_.n_cleared = scorer.clear_after_reduce ? plan_.scorer_aux() : 0;
  for (size_t i = 0; i < caps_.size(); ++i) step_caps_[i] = Cap(i);
  step_.caps = step_caps_.data();
  // A budget beyond the context is that of the context: what is derived from it protects no more.
  if (keep_lengths_)
    step_.select.protect =
        plan_.ProtectFor(std::min(budget_, *std::max_element(step_caps_.begin(), step_caps_.end())));
  if (!plan_.reobserves()) return;
  step_.ring = ring_.at();
  step_.ring_rows = policy().Int(OptionId::kWindow);
  step_.ring_places = plan_.places().data();
  step_.ring_start = ring_start_.data(), step_.ring_len = ring_len_.data();
  step_.ends_later = true;
}

bool Compressor::IsOver(int32_t layer, int32_t head, const KvCache& cache) const {
  return cache.Len(layer * plan_.shape().n_kv_heads + head) >
         Cap(At(layer, head)) + policy().Int(OptionId::kSlack);
}

bool Compressor::IsOver(int32_t layer, const KvCache& cache) const {
  bool any = false;
  for (int32_t i = 0; !slides(layer) && !any && i < plan_.shape().n_kv_heads; ++i)
    any = IsOver(layer, i, cache);
  return any;
}

// Window scores of the entries there are, with the stored rows; heads above budget + slack go back to their
// budget.
Status Compressor::Reobserve(const LayerWork& work, int32_t layer, LayerBuffers* kv,
                             ObservedBuffers* observed, KvCache* cache) {
  if (!IsOver(layer, *cache)) return {};
  const ModelShape& shape = plan_.shape();
  const int32_t g = shape.n_kv_heads;
  bool over[1024];
  for (int32_t i = 0; i < g; ++i) over[i] = IsOver(layer, i, *cache);
  const size_t at = static_cast<size_t>(layer);
  KVC_RETURN_IF_ERROR(LoadLayer(work, layer, kNothingComes, *cache, kv));
  // The newest rows, as they stand before the entries there are.
  QueryRingArgs ring{};
  ring.kind = QueryRingArgs::kView;
  ring.ring_rows = policy().Int(OptionId::kWindow);
  ring.ring = RingAt(layer);
  ring.start = ring_start_[at], ring.len = ring_len_[at];
  ring.rows = observed->queries();
  ring.n = std::min({ring.len, ring.ring_rows, *std::min_element(kv->len().begin(), kv->len().end())});
  ring.n_heads = shape.n_heads, ring.n_kv_heads = g, ring.head_dim = shape.head_dim;
  ring.turning = turning(layer);
  layer_slots_ = kv->len();
  for (int32_t& slot : layer_slots_) --slot;
  ring.slots = layer_slots_.data();
  KVC_RETURN_IF_ERROR(work.device->QueryRing(work.stream, ring));
  observed->n_rows = ring.n, observed->n_new = 0;
  KVC_RETURN_IF_ERROR(Score({work, layer, *kv, *observed, layer_counts_, layer_kept_, layer_all_see_}));
  std::vector<int32_t>& counts = layer_counts_;
  std::fill(counts.begin(), counts.end(), kUnbounded - n_protected());
  for (int32_t i = 0; i < g; ++i) {
    if (over[i]) counts[static_cast<size_t>(i)] = std::max(Cap(At(layer, i)) - n_protected(), 0);
  }
  const ChoiceBuffers& b = *work.choice;
  KVC_RETURN_IF_ERROR(
      work.device->Select(work.stream, {SelectRuleNow(), kv->view(), layer, counts.data(), b.scores.at(),
                                        b.marks.at(), b.stride, b.scratch.raw()}));
  KVC_RETURN_IF_ERROR(work.device->Evict(
      work.stream, {&cache->view(), layer, b.marks.at(), b.stride, over, turning(layer), b.scratch.raw()}));
  changed_ = true;
  return {};
}

}  // namespace kvc

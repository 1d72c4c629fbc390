#include "lib/compress/compressor.h"

#include <algorithm>

namespace kvc {

// ---- buffers ----

Status ChoiceBuffers::Reserve(const DeviceMemory& memory, const StoragePlan& plan,
                              const ScoreProgram& program, int64_t longest, int32_t n_rows) {
  const ModelShape& shape = plan.shape();
  const int64_t wanted = (std::max<int64_t>(longest, shape.head_dim) + 15) / 16 * 16, g = shape.n_kv_heads;
  const bool wants_seen = plan.query_heads_see_their_own();
  const int64_t n = wanted;  // buffers stay as large as they were: every session lies in them as in its own
  const Device& device = *memory.device;
  const int64_t bytes = std::max(
      {device.ScoreScratchBytes({&program, shape.n_heads, shape.n_kv_heads, shape.head_dim, n_rows, n}),
       device.SelectScratchBytes(shape.n_kv_heads, n), device.EvictScratchBytes(shape.n_kv_heads, n)});
  if (n == stride && scratch.size() >= bytes && (!wants_seen || seen.size() >= g * n)) return {};
  stride = 0;  // until everything is there
  KVC_RETURN_IF_ERROR(scores.Reserve(memory, g * n, "token scores"));
  KVC_RETURN_IF_ERROR(per_head.Reserve(memory, shape.n_heads * n, "token scores"));
  KVC_RETURN_IF_ERROR(marks.Reserve(memory, g * n, "token scores"));
  if (wants_seen) KVC_RETURN_IF_ERROR(seen.Reserve(memory, g * n, "token scores"));
  KVC_RETURN_IF_ERROR(scratch.Reserve(memory, bytes, "token scores"));
  stride = n;
  return {};
}

void ChoiceBuffers::Free() {
  scores.Free(), per_head.Free(), marks.Free(), seen.Free(), scratch.Free(), codes.Free();
  stride = 0;
}

int64_t ChoiceBuffers::bytes() const {
  return scores.bytes() + per_head.bytes() + marks.bytes() + seen.bytes() + scratch.bytes() + codes.bytes();
}

// ---- life ----

Compressor::Compressor(StoragePlan plan, const AttentionRule& rule) : plan_(std::move(plan)), rule_(rule) {
  const size_t n = static_cast<size_t>(plan_.shape().n_kv_heads_total()),
               layers = static_cast<size_t>(plan_.shape().n_layers);
  counts_.assign(n, 0);
  caps_.assign(n, kUnbounded);
  held_.assign(n, kUnbounded);
  step_caps_.assign(n, kUnbounded);
  loaded_rotated_.assign(static_cast<size_t>(plan_.shape().n_kv_heads), 1);
  layer_all_see_.assign(loaded_rotated_.size(), 0);
  for (std::vector<int32_t>* v : {&layer_counts_, &layer_kept_, &layer_slots_, &layer_drop_})
    v->assign(static_cast<size_t>(plan_.shape().n_kv_heads), 0);
  in_cache_ = policy().positions == PositionMode::kInCache;
  if (plan_.sharing_layers().size() < layers) {
    for (size_t i = 0; i < layers; ++i) slides_.push_back(plan_.slides(static_cast<int32_t>(i)) ? 1 : 0);
  }
  if (!plan_.reobserves()) return;
  ring_start_.assign(layers, 0);
  ring_len_.assign(layers, 0);
}

Result<std::unique_ptr<Compressor>> Compressor::Make(StoragePlan plan, const AttentionRule& rule,
                                                     const DeviceMemory& memory) {
  std::unique_ptr<Compressor> c(new Compressor(std::move(plan), rule));
  if (!c->plan_.reobserves()) return c;
  const ModelShape& shape = c->plan_.shape();
  KVC_RETURN_IF_ERROR(c->ring_.Allocate(memory,
                                        static_cast<int64_t>(c->plan_.sharing_layers().size()) *
                                            c->policy().Int(OptionId::kWindow) * shape.n_heads *
                                            shape.head_dim,
                                        "window queries"));
  return c;
}

Result<std::unique_ptr<Compressor>> Compressor::Create(const Policy& policy, const ModelShape& shape,
                                                       HeadScores scores, bool slides,
                                                       const AttentionRule& rule,
                                                       const DeviceMemory& memory) {
  Result<StoragePlan> plan = StoragePlan::Create(policy, shape, std::move(scores), slides);
  if (!plan.ok()) return plan.status();
  return Make(std::move(plan.value()), rule, memory);
}

Result<std::unique_ptr<Compressor>> Compressor::Fork(Stream* stream) const {
  const DeviceMemory memory = ring_.memory();
  Result<std::unique_ptr<Compressor>> made = Make(plan_, rule_, memory);
  if (!made.ok()) return made;
  Compressor& fork = *made.value();
  fork.budget_ = budget_, fork.protect_ = protect_;
  fork.counts_ = counts_, fork.caps_ = caps_, fork.held_ = held_;
  fork.in_cache_ = in_cache_, fork.keep_lengths_ = keep_lengths_;
  fork.ring_start_ = ring_start_, fork.ring_len_ = ring_len_;
  if (ring_.size() == 0 || (memory.meter != nullptr && memory.meter->counting())) return made;
  const PageCopy copy{fork.ring_.raw(), ring_.raw(), 4 * ring_.size()};
  KVC_RETURN_IF_ERROR(memory.device->Copy(stream, {&copy, 1}));
  return made;
}

void Compressor::Reset() {
  step_stale_ = true;
  std::fill(ring_start_.begin(), ring_start_.end(), 0);
  std::fill(ring_len_.begin(), ring_len_.end(), 0);
  keep_lengths_ = false;
  in_cache_ = policy().positions == PositionMode::kInCache;
  std::fill(caps_.begin(), caps_.end(), kUnbounded);
  std::fill(held_.begin(), held_.end(), kUnbounded);
  changed_ = false;
}

void Compressor::Rewind(int32_t n) {
  for (int32_t& len : ring_len_) len = std::max(len - n, 0);
}

// ---- the end of the context ----

Status Compressor::KeepLengths(Device* device, Stream* stream, const KvCache& cache, bool in_cache,
                               int32_t n_tokens) {
  const ModelShape& shape = plan_.shape();
  const bool turns = in_cache && !in_cache_ && plan_.reobserves();
  for (int32_t layer = 0; turns && layer < shape.n_layers; ++layer) {
    if (slides(layer)) continue;
    QueryRingArgs args{};
    args.kind = QueryRingArgs::kDropRotation;
    args.ring_rows = policy().Int(OptionId::kWindow);
    args.ring = RingAt(layer);
    args.start = ring_start_[static_cast<size_t>(layer)], args.len = ring_len_[static_cast<size_t>(layer)];
    args.n_heads = shape.n_heads, args.n_kv_heads = shape.n_kv_heads, args.head_dim = shape.head_dim;
    args.turning = turning(layer), args.newest = n_tokens - 1;
    KVC_RETURN_IF_ERROR(device->QueryRing(stream, args));
  }
  keep_lengths_ = true;
  in_cache_ = in_cache_ || in_cache;
  HoldLengths(cache);
  return {};
}

void Compressor::ForgetLengths() {
  const bool in_cache = policy().positions == PositionMode::kInCache;
  if (in_cache_ != in_cache && plan_.reobserves()) return;
  keep_lengths_ = false, in_cache_ = in_cache;
  std::fill(held_.begin(), held_.end(), kUnbounded);
  step_stale_ = true;
}

void Compressor::HoldLengths(const KvCache& cache) {
  step_stale_ = true;
  for (size_t i = 0; i < held_.size(); ++i) held_[i] = std::max(2, cache.Len(static_cast<int32_t>(i)));
}

DevicePtr<float> Compressor::RingAt(int32_t layer) const {
  const ModelShape& shape = plan_.shape();
  return ring_.at() +
         int64_t{plan_.PlaceOf(layer)} * policy().Int(OptionId::kWindow) * shape.n_heads * shape.head_dim;
}

int32_t Compressor::LongestHead(const KvCache& cache) const {
  int32_t longest = 0;
  for (const int32_t layer : plan_.sharing_layers()) {
    for (int32_t g = 0; g < plan_.shape().n_kv_heads; ++g)
      longest = std::max(longest, cache.Len(layer * plan_.shape().n_kv_heads + g));
  }
  return longest;
}

// ---- rules of the moment ----

SelectRule Compressor::SelectRuleNow() const {
  SelectRule rule;
  if (policy().keeps_all()) return rule;
  if (policy().scorer->select != nullptr) policy().scorer->select(policy(), &rule);
  rule.protect = protect_;
  return rule;
}

MergeRule Compressor::MergeRuleNow() const {
  if (policy().keeps_all() || policy().reducer->kind == MergeKind::kNone) return {};
  MergeRule rule = policy().merge_rule();
  rule.sums = plan_.merge_sums(), rule.counts = plan_.merge_counts();
  return rule;
}

// The scorer's program, behind the accumulation of what merging needs and the scorer itself does not keep.
ScoreProgram Compressor::PromptProgram() const {
  ScoreProgram program;
  if (policy().keeps_all()) return program;
  if (plan_.merge_sums() >= plan_.scorer_aux()) {
    program.Add(ScoreOp::kSums, 1);
    program.Add(ScoreOp::kLoad, 2, plan_.merge_sums());
    program.Add(ScoreOp::kAdd, 2, 1);
    program.Add(ScoreOp::kStore, plan_.merge_sums(), 2);
  }
  if (plan_.merge_counts() >= plan_.scorer_aux()) {
    program.Add(ScoreOp::kAge, 1);
    program.Add(ScoreOp::kStore, plan_.merge_counts(), 1);
  }
  const Scorer& scorer = *policy().scorer;
  if (scorer.history != nullptr) scorer.history(policy(), &program.history);
  scorer.program(policy(), budget_, &program);
  if (policy().n_rest() > 0) program.Add(ScoreOp::kRestLast, 0);
  return program;
}

}  // namespace kvc

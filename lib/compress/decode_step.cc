// Steps 3 and 4 of methods.md 1.6: side values are updated with the step's probabilities, then heads above
// their budget are reduced.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "lib/compress/compressor.h"
#include "lib/compress/merge_dropped.h"

namespace kvc {
namespace {

enum Line { kProbability = 0, kScratch = 1, kScores = 2, kSelect = 3, kFirstAux = 4 };

// Values of one head inside the cache. Two vectors of scratch: the dropped value and the one it goes into.
struct CachedValues {
  KvCache* cache;
  int layer;
  int32_t head;
  float *gone, *next;
  int32_t d;
  const KernelTable* kernels;
  const float* Get(int32_t i) {
    cache->ReadValue(layer, head, i, gone);
    return gone;
  }
  void Add(int32_t i, float factor, const float* v) {
    cache->ReadValue(layer, head, i, next);
    kernels->axpy(factor, v, d, next);
    cache->WriteValue(layer, head, i, next);
  }
  void Mix(int32_t i, float a_gone, const float* v_gone, float a_next) {
    cache->ReadValue(layer, head, i, next);
    WeightedMerge(a_gone, v_gone, a_next, d, next);
    cache->WriteValue(layer, head, i, next);
  }
};

}  // namespace

Status Compressor::ReserveStep(int32_t max_len) {
  if (Reobserves() && max_len > reobserved_.capacity) {
    const int64_t capacity = max_len + policy_.Int(OptionId::kSlack) + 1, g = shape_.n_kv_heads;
    reobserved_.n_kv_heads = shape_.n_kv_heads, reobserved_.head_dim = shape_.head_dim, reobserved_.n_aux = 0;
    reobserved_.len.assign(static_cast<size_t>(g), 0);
    reobserved_.capacity = 0;
    KVC_RETURN_IF_ERROR(
        reobserved_.keys.Allocate(meter_, g * capacity * shape_.head_dim, "one layer, to score it again"));
    KVC_RETURN_IF_ERROR(
        reobserved_.values.Allocate(meter_, g * capacity * shape_.head_dim, "one layer, to score it again"));
    KVC_RETURN_IF_ERROR(reobserved_.positions.Allocate(meter_, g * capacity, "one layer, to score it again"));
    KVC_RETURN_IF_ERROR(ReserveScoring(static_cast<int32_t>(capacity)));
    reobserved_.capacity = capacity;
  }
  if (!keep_lengths_ &&
      (policy_.keeps_all() || (!wants_probabilities_ && policy_.decode == DecodeMode::kGrow)))
    return {};
  if (max_len <= decode_stride_) return {};
  const int64_t stride =
      (std::max<int64_t>(max_len, decode_stride_ + decode_stride_ / 4) + 2 * shape_.head_dim + 15) / 16 * 16;
  decode_stride_ = 0;
  KVC_RETURN_IF_ERROR(decode_.Allocate(meter_, (kFirstAux + n_aux_) * stride, "decode side values"));
  KVC_RETURN_IF_ERROR(positions_.Allocate(meter_, stride, "decode side values"));
  KVC_RETURN_IF_ERROR(ReserveScoring(static_cast<int32_t>(stride)));
  decode_stride_ = stride;
  return {};
}

void Compressor::DropRotation(int layer, KvCache* cache) {
  if (!in_cache_ || !KeysRotated(layer)) return;
  // Keys carry their original position: in-cache sessions drop it with the first entry, sessions that slide
  // have dropped entries before.
  cache->RewriteKeys(layer, [&](int32_t position, float* k) { Unrotate(position, k, 1); });
  keys_rotated_[static_cast<size_t>(layer)] = 0;
}

// Marks what a head of n entries keeps when it goes back to its budget.
void Compressor::MarkBest(int layer, int32_t g, int32_t n, const float* scores, const int32_t* positions,
                          float* line) {
  const int32_t count = std::max(Cap(layer, g) - protect_.n_sink - protect_.n_recent, 0);
  const Status status = MarkKept({policy_, scores, layer, g, shape_.n_kv_heads, n, count, protect_, positions,
                                  keys_.data(), line, marks_.data()});
  assert(status.ok());
  (void)status;
}

void Compressor::RemoveUnmarked(int layer, int32_t g, KvCache* cache) {
  for (int32_t r = cache->Len(layer, g) - 1; r >= 0; --r) {
    if (marks_[r] == 0) cache->Remove(layer, g, r);
  }
  changed_ = true;
}

void Compressor::ReduceHead(int layer, int32_t g, float* const* aux, const int32_t* positions,
                            const float* scores, KvCache* cache) {
  const int32_t n = cache->Len(layer, g), d = shape_.head_dim;
  MarkBest(layer, g, n, scores, positions, RankLine(kSelect));
  DropRotation(layer, cache);
  if (accumulated_ >= 0) {
    CachedValues values{cache,
                        layer,
                        g,
                        RankLine(kScratch) + decode_stride_ - 2 * d,
                        RankLine(kScratch) + decode_stride_ - d,
                        d,
                        ops_.kernels};
    MergeDropped(policy_.reducer->kind,
                 {policy_, marks_.data(), aux[accumulated_],
                  accumulated_count_ < 0 ? nullptr : aux[accumulated_count_], positions, n,
                  static_cast<uint32_t>(layer * shape_.n_kv_heads + g), links_.data(), RankLine(kSelect)},
                 values);
  }
  RemoveUnmarked(layer, g, cache);
  if (policy_.scorer->clear_after_reduce) {
    const int32_t left = cache->Len(layer, g);
    std::fill(RankLine(kScratch), RankLine(kScratch) + left, 0.0f);
    for (int32_t a = 0; a < scorer_aux_; ++a) cache->SetAux(layer, g, a, RankLine(kScratch));
  }
}

int32_t Compressor::ReplayRows(int32_t n_tokens) const {
  if (policy_.keeps_all() || policy_.scorer->window_rows == nullptr) return 0;
  return policy_.scorer->window_rows(policy_, n_tokens, BudgetFor(n_tokens));
}

Status Compressor::SetBudget(int32_t slots, int32_t n_tokens) {
  if (policy_.keeps_all())
    return Error(Code::kUnsupported, "policy %s keeps everything: it has no rule to drop entries by",
                 policy_.method->name);
  Policy changed = policy_;
  changed.budget_kind = BudgetKind::kSlots;
  changed.budget = slots;
  KVC_RETURN_IF_ERROR(ValidatePolicy(changed));
  if (policy_.budget_kind != BudgetKind::kBytes) {
    policy_ = std::move(changed);
    return {};
  }
  const CacheConfig config = FormatsFor(PageSlotsForBytes());
  std::swap(policy_, changed);  // changed: what was
  std::vector<int32_t> planned;
  const Status status = PlanSlots(n_tokens, &planned);
  const bool more = status.ok() && static_cast<double>(BytesOf(config, AllocationFor(slots, n_tokens),
                                                               planned)) > changed.budget;
  if (!status.ok() || more) std::swap(policy_, changed);
  return status;
}

void Compressor::AfterAttend(int layer, const float* q, const float* new_values, AttendWorkspace* attended,
                             KvCache* cache) {
  if (Reobserves()) {
    PushStepQueries(layer, q, *cache);
    Reobserve(layer, cache);
  }
  const int32_t group = shape_.n_heads / shape_.n_kv_heads;
  const bool evicts = !policy_.keeps_all() && policy_.decode == DecodeMode::kStep;
  const bool shared =
      !policy_.keeps_all() && policy_.scorer->one_set_per_layer && policy_.Int(OptionId::kTovaScope) == 0;
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    const int32_t n = cache->Len(layer, g);
    if (evicts || wants_probabilities_) {
      float *p = RankLine(kProbability), *line = RankLine(kScratch);
      if (wants_probabilities_ &&
          (!shared || g == 0)) {  // one set: all heads are read before the first is reduced
        const int32_t first = shared ? 0 : g * group, end = shared ? shape_.n_heads : first + group;
        std::fill(p, p + n, 0.0f);
        for (int32_t h = first; h < end; ++h) {
          cache->ToRankOrder(layer, h / group, attended->Probabilities(h), line);
          ops_.kernels->add(line, n, p);
        }
        for (int32_t t = 0; t < n; ++t) p[t] /= static_cast<float>(end - first);
      }
      float* aux[kMaxAux];
      for (int32_t a = 0; a < n_aux_; ++a) {
        aux[a] = RankLine(kFirstAux + a);
        cache->GetAux(layer, g, a, aux[a]);
      }
      for (int32_t r = 0; r < n; ++r) positions_[r] = cache->PositionAt(layer, g, r);
      const DecodeInput in{
          policy_,         p,      aux, positions_.data(), new_values + int64_t{g} * shape_.head_dim, n,
          shape_.head_dim, budget_};
      if (policy_.scorer->observe != nullptr) policy_.scorer->observe(in);
      if (accumulated_ >= scorer_aux_) ops_.kernels->add(p, n, aux[accumulated_]);
      if (accumulated_count_ >= scorer_aux_) {
        for (int32_t t = 0; t < n; ++t) aux[accumulated_count_][t] += 1.0f;
      }
      for (int32_t a = 0; a < n_aux_; ++a) cache->SetAux(layer, g, a, aux[a]);
      if (evicts && n > Cap(layer, g)) {
        policy_.scorer->rank(in, RankLine(kScores));
        ReduceHead(layer, g, aux, positions_.data(), RankLine(kScores), cache);
      }
    }
    if (keep_lengths_ && cache->Len(layer, g) > Held(layer, g)) EvictOldest(layer, g, cache);
    cache->Settle(layer, g);
  }
}

void Compressor::Reset() {
  std::fill(keys_rotated_.begin(), keys_rotated_.end(), codebook_ ? uint8_t{0} : uint8_t{1});
  std::fill(ring_count_.begin(), ring_count_.end(), 0);
  keep_lengths_ = false;
  in_cache_ = policy_.positions == PositionMode::kInCache;
  std::fill(caps_.begin(), caps_.end(), kUnbounded);
  std::fill(held_.begin(), held_.end(), kUnbounded);
  changed_ = false;
}

Result<std::unique_ptr<Compressor>> Compressor::Fork() const {
  Result<std::unique_ptr<Compressor>> made = Build(policy_, shape_, head_scores_, ops_, meter_);
  if (!made.ok()) return made.status();
  Compressor& fork = *made.value();
  fork.budget_ = budget_, fork.protect_ = protect_;
  fork.counts_ = counts_, fork.caps_ = caps_, fork.held_ = held_, fork.keys_rotated_ = keys_rotated_;
  fork.in_cache_ = in_cache_, fork.keep_lengths_ = keep_lengths_;
  fork.ring_count_ = ring_count_;
  if (fork.ring_.data() != nullptr)
    std::memcpy(fork.ring_.data(), ring_.data(), static_cast<size_t>(ring_.size()) * sizeof(float));
  return made;
}

int64_t Compressor::bytes() const {
  return scores_.bytes() + per_head_.bytes() + rows_.bytes() + lines_.bytes() + keys_.bytes() +
         marks_.bytes() + seen_.bytes() + decode_.bytes() + positions_.bytes() + links_.bytes() +
         ring_.bytes() + ring_view_.queries.bytes() + reobserved_.keys.bytes() + reobserved_.values.bytes() +
         reobserved_.positions.bytes();
}

}  // namespace kvc

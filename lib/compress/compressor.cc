#include "lib/compress/compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/base/limits.h"
#include "lib/compress/budget.h"
#include "lib/compress/merge_dropped.h"
#include "lib/compress/method_table.h"
#include "lib/compress/scorers.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

// Values of one head while its layer is full length.
struct PromptValues {
  LayerKv* kv;
  int32_t head;
  const KernelTable* kernels;
  const float* Get(int32_t i) const { return kv->Values(head) + int64_t{i} * kv->head_dim; }
  void Add(int32_t i, float factor, const float* v) {
    kernels->axpy(factor, v, kv->head_dim, kv->Values(head) + int64_t{i} * kv->head_dim);
  }
  void Mix(int32_t i, float a_gone, const float* v_gone, float a_next) {
    WeightedMerge(a_gone, v_gone, a_next, kv->head_dim, kv->Values(head) + int64_t{i} * kv->head_dim);
  }
};

// The first method that scores, reduces and decodes in the same way, and whose budgets need no head scores.
const Method* NearestWithoutScores(const Policy& policy) {
  for (const Method* m : Methods()) {
    const bool same =
        m->scorer == policy.scorer && m->reducer == policy.reducer && m->decode == policy.decode;
    if (same && m->allocator != nullptr && (m->allocator->needs & (kNeedsHeadScores | kNeedsTable)) == 0)
      return m;
  }
  return nullptr;
}

}  // namespace

// ---- creation ----

Compressor::Compressor(const Policy& policy, const CompressorShape& shape, HeadScores scores,
                       const OpContext& ops, MemoryMeter* meter)
    : policy_(policy), shape_(shape), head_scores_(std::move(scores)), ops_(ops), meter_(meter) {}

Result<std::unique_ptr<Compressor>> Compressor::Create(const Policy& policy, const CompressorShape& shape,
                                                       HeadScores scores, const OpContext& ops,
                                                       MemoryMeter* meter) {
  Result<std::unique_ptr<Compressor>> made = Build(policy, shape, std::move(scores), ops, meter);
  if (made.ok()) KVC_RETURN_IF_ERROR(made.value()->Validate());
  return made;
}

Result<std::unique_ptr<Compressor>> Compressor::Build(const Policy& policy, const CompressorShape& shape,
                                                      HeadScores scores, const OpContext& ops,
                                                      MemoryMeter* meter) {
  std::unique_ptr<Compressor> c(new Compressor(policy, shape, std::move(scores), ops, meter));
  const size_t n_heads = static_cast<size_t>(shape.n_layers * shape.n_kv_heads);
  if (policy.scorer != nullptr) {
    const Scorer& scorer = *policy.scorer;
    c->scorer_aux_ = c->n_aux_ = scorer.n_aux == nullptr ? 0 : scorer.n_aux(policy);
    const ReduceKind kind = policy.reducer->kind;
    if (kind == ReduceKind::kCam || kind == ReduceKind::kWeighted) {
      const bool has_sum =
          &scorer == &kScorerH2o || &scorer == &kScorerH2oCount || &scorer == &kScorerAvgAccum;
      c->accumulated_ = has_sum ? 0 : c->n_aux_++;
      if (kind == ReduceKind::kWeighted)
        c->accumulated_count_ = &scorer == &kScorerAvgAccum ? 1 : c->n_aux_++;
    }
    c->wants_probabilities_ = scorer.observe != nullptr || c->accumulated_ >= 0 || &scorer == &kScorerLastRow;
  }
  c->counts_.assign(n_heads, 0);
  c->caps_.assign(n_heads, kUnbounded);
  c->held_.assign(n_heads, kUnbounded);
  c->codebook_ = policy.reducer != nullptr && policy.reducer->kind == ReduceKind::kCodebook;
  c->in_cache_ = policy.positions == PositionMode::kInCache;
  c->keys_rotated_.assign(static_cast<size_t>(shape.n_layers), c->codebook_ ? 0 : 1);
  if (c->Reobserves()) {
    const int64_t rows = policy.Int(OptionId::kWindow), width = int64_t{shape.n_heads} * shape.head_dim;
    c->ring_count_.assign(static_cast<size_t>(shape.n_layers), 0);
    KVC_RETURN_IF_ERROR(c->ring_.Allocate(meter, shape.n_layers * rows * width, "window queries"));
    KVC_RETURN_IF_ERROR(c->ring_view_.queries.Allocate(meter, rows * width, "window queries"));
  }
  return c;
}

Status Compressor::Validate() {
  const int32_t kv = policy_.Int(OptionId::kKv), group = policy_.Int(OptionId::kQuantGroup);
  if (policy_.quantises() && shape_.head_dim % group != 0) {
    return Error(Code::kInvalid, "quant_group=%d does not divide the head size %d of this model", group,
                 shape_.head_dim);
  }
  if (policy_.keeps_all()) return {};
  const uint32_t needs = policy_.scorer->needs | policy_.allocator->needs | policy_.reducer->needs;
  const size_t per_kv_head = static_cast<size_t>(shape_.n_layers * shape_.n_kv_heads),
               per_head = static_cast<size_t>(shape_.n_layers * shape_.n_heads);
  if ((needs & kNeedsHeadScores) != 0 || kv == 5) {
    const size_t n = head_scores_.values.size();
    if (n == 0) {
      const Method* nearest = NearestWithoutScores(policy_);
      return Error(
          Code::kNotFound,
          "%s needs head scores, and the model file has none%s%s; convert with --head-scores, give them to "
          "the policy%s%s",
          policy_.method->name, policy_.scores_name.empty() ? "" : " named ", policy_.scores_name.c_str(),
          nearest == nullptr ? "" : ", or use a method that needs none: the nearest is ",
          nearest == nullptr ? "" : nearest->name);
    }
    if (n != per_kv_head && n != per_head) {
      return Error(Code::kInvalid,
                   "the score table has %zu numbers; this model has %d layers x %d KV heads (%d query heads)",
                   n, shape_.n_layers, shape_.n_kv_heads, shape_.n_heads);
    }
  }
  if (codebook_ && shape_.n_heads / shape_.n_kv_heads > 32)
    return Error(Code::kUnsupported, "codebooks have room for 32 query heads per KV head");
  if ((needs & kNeedsTable) != 0 && policy_.table.size() != per_kv_head) {
    return Error(Code::kInvalid, "method table needs %d x %d slots (layers x KV heads), it got %zu",
                 shape_.n_layers, shape_.n_kv_heads, policy_.table.size());
  }
  // Budgets that no prompt can make legal are refused now and not at the first prefill.
  std::vector<int32_t> slots;
  return PlanSlots(kUnbounded, &slots);
}

// ---- prompt ----

Status Compressor::BeginPrompt(int32_t n_tokens, PromptNeeds* needs) {
  *needs = {};
  if (policy_.keeps_all()) return {};
  const AllocateInput in = AllocationFor(BudgetFor(n_tokens), n_tokens);
  std::vector<int32_t> slots;
  KVC_RETURN_IF_ERROR(PlanSlots(n_tokens, &slots));
  budget_ = in.budget;
  protect_ = ProtectFor(in.budget);
  for (size_t i = 0; i < slots.size(); ++i) counts_[i] = std::max(slots[i] - in.n_protected, 0);
  // At decode a head may grow to what its budget is without the prompt's length as a limit.
  if (n_tokens <= in.budget) KVC_RETURN_IF_ERROR(PlanSlots(kUnbounded, &slots));
  caps_ = slots;
  const Scorer& scorer = *policy_.scorer;
  needs->column_sums = (scorer.needs & kNeedsColumnSums) != 0 || accumulated_ >= 0;
  needs->reread = (scorer.needs & kNeedsReread) != 0;
  if (scorer.window_rows != nullptr) needs->window_rows = scorer.window_rows(policy_, n_tokens, budget_);
  return {};
}

Status Compressor::ReserveScoring(int32_t longest) {
  if (longest <= scratch_stride_) return {};
  const int64_t stride = (int64_t{longest} + 15) / 16 * 16, threads = ops_.pool->n_threads(),
                g = shape_.n_kv_heads;
  scratch_stride_ = 0;
  KVC_RETURN_IF_ERROR(scores_.Allocate(meter_, g * stride, "token scores"));
  KVC_RETURN_IF_ERROR(per_head_.Allocate(meter_, shape_.n_heads * stride, "token scores"));
  KVC_RETURN_IF_ERROR(rows_.Allocate(meter_, threads * ScoreScratch::kRowTile * stride, "token scores"));
  KVC_RETURN_IF_ERROR(lines_.Allocate(meter_, threads * 2 * stride, "token scores"));
  KVC_RETURN_IF_ERROR(keys_.Allocate(meter_, threads * 2 * stride, "token scores"));
  KVC_RETURN_IF_ERROR(marks_.Allocate(meter_, g * stride, "token scores"));
  KVC_RETURN_IF_ERROR(links_.Allocate(meter_, 3 * stride, "token scores"));
  scratch_stride_ = stride;
  scratch_.stride = stride;
  scratch_.per_head = per_head_.data(), scratch_.rows = rows_.data(), scratch_.lines = lines_.data();
  return {};
}

Status Compressor::ReservePrompt(int32_t longest) {
  if (policy_.keeps_all() && !keep_lengths_) return {};
  KVC_RETURN_IF_ERROR(ReserveScoring(std::max(longest, shape_.head_dim)));
  if (!QueryHeadsSeeTheirOwn()) return {};
  return seen_.Reserve(meter_, shape_.n_kv_heads * scratch_stride_, "token scores");
}

Status Compressor::ChooseCounts(int layer, const LayerKv& kv, int32_t* counts) {
  const int32_t g = shape_.n_kv_heads, protected_total = protect_.n_sink + protect_.n_recent;
  for (int32_t i = 0; i < g; ++i) counts[i] = counts_[static_cast<size_t>(layer * g + i)];
  if (!policy_.allocator->dynamic || layer < policy_.Int(OptionId::kAdaSkip)) return {};
  // Candidates lie behind the sinks; heads that are shorter than the longest have none at the end.
  const int32_t longest = *std::max_element(kv.len.begin(), kv.len.end()), m = longest - protected_total;
  if (m <= 0) return {};
  for (int32_t i = 0; i < g; ++i) {
    float* s = scores_.data() + i * scratch_stride_ + protect_.n_sink;
    for (int32_t t = std::max(kv.len[static_cast<size_t>(i)] - protected_total, 0); t < m; ++t)
      s[t] = -std::numeric_limits<float>::infinity();
  }
  AdaOptions options;
  options.floor = policy_.Real(OptionId::kAdaFloor);
  options.safeguard = policy_.Int(OptionId::kAdaMode) == 1;
  options.normalize = policy_.Flag(OptionId::kAdaNormalize);
  options.locked = policy_.Int(OptionId::kAdaLocked);
  AdaCounts(scores_.data() + protect_.n_sink, scratch_stride_, g, m, counts[0], options, counts);
  for (int32_t i = 0; i < g; ++i) caps_[static_cast<size_t>(layer * g + i)] = counts[i] + protected_total;
  return {};
}

// The protected part and the best `count` candidates, or what the scorer itself selects.
Status Compressor::MarkKept(const SelectInput& in) const {
  if (policy_.scorer->select != nullptr) return policy_.scorer->select(in);
  std::fill(in.mark, in.mark + in.n, uint8_t{1});
  MarkTop(in.scores + in.protect.n_sink, in.n - in.protect.n_sink - in.protect.n_recent, in.count, in.keys,
          in.mark + in.protect.n_sink);
  return {};
}

Status Compressor::MarkHead(int layer, int32_t g, const LayerKv& kv, int32_t count, int thread) {
  const int32_t n = kv.len[static_cast<size_t>(g)], protected_total = protect_.n_sink + protect_.n_recent;
  uint8_t* mark = marks_.data() + g * scratch_stride_;
  if (n <= protected_total + count) {
    std::fill(mark, mark + n, uint8_t{1});
    return {};
  }
  return MarkKept({policy_, scores_.data() + g * scratch_stride_, layer, g, shape_.n_kv_heads, n, count,
                   protect_, kv.Positions(g), keys_.data() + thread * 2 * scratch_stride_,
                   lines_.data() + thread * 2 * scratch_stride_, mark});
}

// SpindleKV (c): every query head has its own set; what any of them keeps is stored once, with a mask of
// those who see it. What a head gave up before does not come back to it.
void Compressor::MarkQueryHeads(int32_t g, const LayerKv& kv, int32_t count) {
  const int32_t n = kv.len[static_cast<size_t>(g)], m = std::max(n - protect_.n_recent, 0),
                group = shape_.n_heads / shape_.n_kv_heads;
  uint8_t* mark = marks_.data() + g * scratch_stride_;
  uint32_t* seen = seen_.data() + g * scratch_stride_;
  uint8_t* own = reinterpret_cast<uint8_t*>(keys_.data() + scratch_stride_);
  const uint32_t* before = kv.Seen(g);
  std::fill(mark, mark + n, uint8_t{0});
  std::fill(seen, seen + n, 0u);
  for (int32_t j = 0; j < group; ++j) {
    const auto sees = [&](int32_t t) { return before == nullptr || (before[t] >> j & 1) != 0; };
    std::fill(own, own + n, uint8_t{1});
    if (count < m) {
      float* scores = per_head_.data() + (int64_t{g} * group + j) * scratch_stride_;
      for (int32_t t = 0; t < m; ++t)
        if (!sees(t)) scores[t] = -std::numeric_limits<float>::infinity();
      MarkTop(scores, m, count, keys_.data(), own);
    }
    for (int32_t t = 0; t < n; ++t) {
      const bool kept = own[t] != 0 && sees(t);
      mark[t] |= static_cast<uint8_t>(kept);
      seen[t] |= static_cast<uint32_t>(kept) << j;
    }
  }
}

// Turns n vectors to a position.
void Compressor::Rotate(int64_t position, float* x, int32_t n) const {
  const int32_t d = shape_.head_dim;
  float angles[kMaxHeadDim];
  shape_.rope->Angles(position, angles, angles + d / 2);
  for (int32_t i = 0; i < n; ++i)
    ops_.kernels->rope(x + int64_t{i} * d, angles, angles + d / 2, d, shape_.pairing);
}

void Compressor::Unrotate(int32_t position, float* x, int32_t n) const {
  const float inverse =
      static_cast<float>(1.0 / (shape_.rope->attention_factor() * shape_.rope->attention_factor()));
  Rotate(-int64_t{position}, x, n);
  for (int64_t i = 0; i < int64_t{n} * shape_.head_dim; ++i) x[i] *= inverse;
}

// Takes the rotation of their position, or of their slot where that counts, off the keys of entries
// [first[g], len); marked: only those to be stored.
void Compressor::UnrotateKeys(LayerKv* kv, const std::vector<int32_t>& first, bool marked) {
  ops_.pool->ParallelFor(shape_.n_kv_heads, [&](int64_t head, int) {
    const int32_t g = static_cast<int32_t>(head);
    for (int32_t i = first[static_cast<size_t>(g)]; i < kv->len[static_cast<size_t>(g)]; ++i) {
      if (marked && marks_[g * scratch_stride_ + i] == 0) continue;
      Unrotate(in_cache_ ? i : kv->Positions(g)[i], kv->Keys(g) + int64_t{i} * shape_.head_dim, 1);
    }
  });
}

void Compressor::RotateLoaded(int layer, LayerKv* kv) const {
  if (KeysRotated(layer)) return;
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    for (int32_t i = 0; i < kv->len[static_cast<size_t>(g)]; ++i)
      Rotate(in_cache_ ? i : kv->Positions(g)[i], kv->Keys(g) + int64_t{i} * shape_.head_dim, 1);
  }
}

void Compressor::MergeInPrompt(int layer, LayerKv* kv) {
  if (accumulated_ < 0) return;
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    PromptValues values{kv, g, ops_.kernels};
    MergeDropped(policy_.reducer->kind,
                 {policy_, marks_.data() + g * scratch_stride_, kv->Aux(accumulated_, g),
                  accumulated_count_ < 0 ? nullptr : kv->Aux(accumulated_count_, g), kv->Positions(g),
                  kv->len[static_cast<size_t>(g)], static_cast<uint32_t>(layer * shape_.n_kv_heads + g),
                  links_.data(), lines_.data()},
                 values);
  }
}

Status Compressor::AppendLayer(int layer, LayerKv* kv, const Observation& observed,
                               const std::vector<int32_t>& first, KvCache* cache) {
  PushPromptQueries(layer, *kv, observed);
  if (!KeysRotated(layer)) UnrotateKeys(kv, first, false);
  return cache->AppendFrom(layer, *kv, first.data());
}

// Merging needs the summed attention also where the scorer itself does not.
void Compressor::AddColumnSums(const Observation& observed, LayerKv* kv) {
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    const int32_t n = kv->len[static_cast<size_t>(g)];
    if (accumulated_ >= scorer_aux_)
      ops_.kernels->add(observed.sums.data() + g * kv->capacity, n, kv->Aux(accumulated_, g));
    if (accumulated_count_ < scorer_aux_) continue;
    const int32_t total = kv->Positions(g)[n - 1] + 1;
    for (int32_t t = 0; t < n; ++t)
      kv->Aux(accumulated_count_, g)[t] = static_cast<float>(total - kv->Positions(g)[t]);
  }
}

// Marks what every head keeps: the protected part and counts[g] candidates. *dropped: whether anything goes.
Status Compressor::MarkLayer(int layer, const std::vector<int32_t>& counts, bool query_heads, LayerKv* kv,
                             bool* dropped) {
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    const int32_t n = kv->len[static_cast<size_t>(g)], count = counts[static_cast<size_t>(g)];
    if (query_heads) {
      MarkQueryHeads(g, *kv, count);
    } else {
      KVC_RETURN_IF_ERROR(MarkHead(layer, g, *kv, count, 0));
    }
    const bool head_dropped =
        std::memchr(marks_.data() + g * scratch_stride_, 0, static_cast<size_t>(n)) != nullptr;
    *dropped = *dropped || head_dropped;
    if (head_dropped && policy_.scorer->clear_after_reduce) {
      for (int32_t a = 0; a < scorer_aux_; ++a) std::fill(kv->Aux(a, g), kv->Aux(a, g) + n, 0.0f);
    }
  }
  if (keep_lengths_ && UnmarkOldest(layer, *kv)) *dropped = true;
  return {};
}

// How far vectors share directions is known only when they are coded. A layer that is too large is coded
// again with fewer candidates: bisection over sixteenths of its counts, so four rounds (methods.md 2.16 g).
// The part that is always kept stays.
Status Compressor::FitLayer(int layer, std::vector<int32_t> counts, LayerKv* kv, KvCache* cache) {
  const int64_t limit = LayerLimit();
  if (cache->LayerBytes(layer) <= limit) return {};
  for (size_t g = 0; g < counts.size(); ++g)
    counts[g] = std::clamp(kv->len[g] - protect_.n_sink - protect_.n_recent, 0, counts[g]);
  const bool seen = cache->config().seen_masks;
  const auto store = [&](int32_t sixteenths) {
    std::vector<int32_t> fewer(counts);
    for (int32_t& count : fewer) count = static_cast<int32_t>(int64_t{count} * sixteenths / 16);
    bool dropped = false;
    KVC_RETURN_IF_ERROR(MarkLayer(layer, fewer, seen, kv, &dropped));
    changed_ = changed_ || dropped;
    return cache->Store(layer, *kv, marks_.data(), scratch_stride_, seen ? seen_.data() : nullptr);
  };
  int32_t low = 0, high = 16, stored = high;
  while (high - low > 1) {
    stored = (low + high) / 2;
    KVC_RETURN_IF_ERROR(store(stored));
    (cache->LayerBytes(layer) <= limit ? low : high) = stored;
  }
  return stored == low ? Status() : store(low);
}

Status Compressor::CompressLayer(int layer, LayerKv* kv, Observation* observed, bool compress,
                                 KvCache* cache) {
  if (policy_.keeps_all() && !keep_lengths_) return cache->Store(layer, *kv, nullptr, 0, nullptr);
  const int32_t n_heads = shape_.n_kv_heads, longest = *std::max_element(kv->len.begin(), kv->len.end()),
                protected_total = protect_.n_sink + protect_.n_recent;
  KVC_RETURN_IF_ERROR(ReservePrompt(longest));
  AddColumnSums(*observed, kv);
  std::vector<int32_t> counts(static_cast<size_t>(n_heads), kUnbounded - protected_total);
  const bool fits = longest <= protected_total ||
                    *std::min_element(counts_.begin() + layer * n_heads,
                                      counts_.begin() + (layer + 1) * n_heads) >= longest - protected_total;
  const bool drop = compress && !fits && !policy_.keeps_all(),
             limited = compress && LayerLimit() > 0 && longest > protected_total;
  scored_ = drop || limited || n_aux_ > 0;
  if (scored_) {
    ScoreInput in{policy_, ops_,           *kv,     *observed, scratch_,
                  layer,   shape_.n_heads, budget_, protect_,  shape_.scale};
    ScoreOutput out{scores_.data(), scratch_stride_, kv};
    KVC_RETURN_IF_ERROR(policy_.scorer->score(in, out));
  }
  if (drop) KVC_RETURN_IF_ERROR(ChooseCounts(layer, *kv, counts.data()));
  bool dropped = false;
  const bool seen = cache->config().seen_masks;
  KVC_RETURN_IF_ERROR(MarkLayer(layer, counts, seen, kv, &dropped));
  if (dropped) {
    MergeInPrompt(layer, kv);
    changed_ = true;
  }
  PushPromptQueries(layer, *kv, *observed);
  if (codebook_ || (in_cache_ && (dropped || !KeysRotated(layer)))) {
    // Where fewer may be marked later, others may be too: a draw is not a part of a larger one.
    UnrotateKeys(kv, std::vector<int32_t>(kv->len.size(), 0), !limited);
    keys_rotated_[static_cast<size_t>(layer)] = 0;
  }
  KVC_RETURN_IF_ERROR(
      cache->Store(layer, *kv, marks_.data(), scratch_stride_, seen ? seen_.data() : nullptr));
  return limited ? FitLayer(layer, std::move(counts), kv, cache) : Status();
}

}  // namespace kvc

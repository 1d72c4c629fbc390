// The prompt side of a method: score, allocate, select, merge, compact, a layer at a time (methods.md 1.5).
#include <algorithm>

#include "lib/compress/budget.h"
#include "lib/compress/compressor.h"

namespace kvc {

// Whether the scores of a prompt have split what heads share: they have equal parts before.
bool Compressor::SplitByScores() const {
  if (!policy().allocator->dynamic) return false;
  const std::vector<int32_t>& layers = plan_.sharing_layers();
  for (const int32_t layer : layers) {
    const int32_t first = caps_[At(policy().allocator->across_layers ? layers[0] : layer, 0)];
    for (int32_t g = 0; g < plan_.shape().n_kv_heads; ++g) {
      if (caps_[At(layer, g)] != first) return true;
    }
  }
  return false;
}

Status Compressor::PlanBudgets(int32_t n_tokens, const KvCache* cache, int32_t n_new) {
  const int32_t budget = plan_.BudgetFor(n_tokens), g = plan_.shape().n_kv_heads;
  const Protected part = plan_.ProtectFor(budget);
  // A head that dropped something before cannot take what all tokens would be.
  std::vector<int32_t> slots, room;
  for (const int32_t layer : plan_.sharing_layers()) {
    for (int32_t head = layer * g; cache != nullptr && head < (layer + 1) * g; ++head) {
      room.push_back(std::max(cache->Len(head) + n_new - part.n_sink - part.n_recent - policy().n_rest(), 0));
    }
  }
  KVC_RETURN_IF_ERROR(plan_.PlanSlots(n_tokens, &slots, room));
  budget_ = budget, n_tokens_ = n_tokens;
  protect_ = part;
  for (size_t i = 0; i < slots.size(); ++i) {
    const bool slide = slides(static_cast<int32_t>(i) / plan_.shape().n_kv_heads);
    counts_[i] = slide ? 0 : std::max(slots[i] - n_protected(), 0);
  }
  // At decode a head may grow to what its budget is without the prompt's length as a limit.
  if (n_tokens <= budget) KVC_RETURN_IF_ERROR(plan_.PlanCaps(budget, &slots));
  caps_ = slots;
  for (size_t i = 0; policy().allocator->whole_heads_grow && n_tokens > budget && i < caps_.size(); ++i) {
    if (caps_[i] >= n_tokens) caps_[i] = kUnbounded;
  }
  return {};
}

Status Compressor::BeginPrompt(int32_t n_tokens, PromptNeeds* needs, bool compress, const KvCache* cache,
                               int32_t n_new) {
  *needs = {};
  step_stale_ = true;
  if (policy().keeps_all()) return {};
  // Such budgets are frozen until the next prompt that is compressed (methods.md 2.11).
  if (compress || !SplitByScores()) KVC_RETURN_IF_ERROR(PlanBudgets(n_tokens, cache, n_new));
  const Scorer& scorer = *policy().scorer;
  needs->column_sums = (scorer.needs & kNeedsColumnSums) != 0 || plan_.merge_sums() >= 0;
  if (scorer.reading != nullptr) needs->reading = scorer.reading(policy());
  if (scorer.window_rows != nullptr) needs->window_rows = scorer.window_rows(policy(), n_tokens);
  return {};
}

Status Compressor::ReservePrompt(const DeviceMemory& memory, int32_t longest, int32_t n_rows,
                                 ChoiceBuffers* choice) const {
  return policy().keeps_all() && !keep_lengths_ ? Status() : ReserveChoice(memory, longest, n_rows, choice);
}

Status Compressor::ReserveChoice(const DeviceMemory& memory, int64_t longest, int32_t n_rows,
                                 ChoiceBuffers* choice) const {
  return choice->Reserve(memory, plan_, PromptProgram(), longest, n_rows);
}

Status Compressor::LoadLayer(const LayerWork& work, int32_t layer, int32_t n_new, const KvCache& cache,
                             LayerBuffers* kv) {
  const int32_t g = plan_.shape().n_kv_heads;
  std::vector<int32_t>& drop = layer_drop_;
  std::fill(drop.begin(), drop.end(), 0);
  LoadArgs args{};
  args.cache = &cache.view(), args.layer = layer, args.to = kv->view(), args.turning = turning(layer);
  args.scratch = kv->order(), args.scratch_entries = kv->max_cached();
  for (int32_t i = 0; i < g; ++i) {
    const int32_t head = layer * g + i, len = cache.Len(head);
    loaded_rotated_[static_cast<size_t>(i)] = cache.rotated(head);
    if (!keep_lengths_ || slides(layer)) continue;
    // Sessions that slide count in slots from now on: keys lose the rotation of their position.
    args.turns_rotated = in_cache_;
    if (in_cache_) loaded_rotated_[static_cast<size_t>(i)] = 0;
    if (n_new == kNothingComes) continue;
    drop[static_cast<size_t>(i)] = std::max(std::min(len + n_new - held_[At(layer, i)], len - kSinks), 0);
    changed_ = changed_ || drop[static_cast<size_t>(i)] > 0;
  }
  args.drop = drop.data(), args.n_sink = kSinks;
  return work.device->LoadLayer(work.stream, args);
}

Status Compressor::Score(const LayerChoice& c) const {
  if (keeps_scores_waiting() && HasScores(c.layer)) return TakeWaiting(c);
  const ScoreProgram program = PromptProgram();
  const ChoiceBuffers& b = *c.work.choice;
  return c.work.device->Score(
      c.work.stream, {&program, c.kv.view(), c.observed.view(), plan_.shape().n_heads, rule_.scale,
                      b.scores.at(), b.per_head.at(), b.stride, b.scratch.raw(), rule_.cap, turning(c.layer),
                      rule_.sinks == nullptr ? DevicePtr<const float>() : rule_.sinks[c.layer]});
}

// Candidates of every head of the layer, where scores decide (methods.md 2.11).
Status Compressor::ChooseCounts(LayerChoice* c) {
  const size_t g = static_cast<size_t>(plan_.shape().n_kv_heads);
  for (size_t i = 0; i < g; ++i) c->counts[i] = counts_[At(c->layer, static_cast<int32_t>(i))];
  if (waits_for_all_layers()) return {};
  if (!policy().allocator->dynamic || plan_.PlaceOf(c->layer) < policy().Int(OptionId::kAdaSkip)) return {};
  std::vector<int32_t> candidates(g);
  for (size_t i = 0; i < g; ++i) candidates[i] = std::max(c->kv.len()[i] - n_protected(), 0);
  if (*std::max_element(candidates.begin(), candidates.end()) == 0) return {};
  AdaOptions options;
  options.floor = policy().Real(OptionId::kAdaFloor);
  options.safeguard = policy().Int(OptionId::kAdaMode) == 1;
  options.normalize = policy().Flag(OptionId::kAdaNormalize);
  options.locked = policy().Int(OptionId::kAdaLocked);
  AdaQuestion question;
  const int32_t average = c->counts[0];
  if (AdaAsks(options, average, candidates, &question, c->counts)) {
    const ChoiceBuffers& b = *c->work.choice;
    std::vector<int64_t> best(g);
    KVC_RETURN_IF_ERROR(c->work.device->CountBest(
        c->work.stream, {c->kv.view(), protect_, b.scores.at(), b.stride, question.total, question.locked,
                         average, options.normalize, best.data(), b.scratch.raw()}));
    AdaCounts(options, average, candidates, best, c->counts);
  }
  for (size_t i = 0; i < g; ++i) caps_[At(c->layer, static_cast<int32_t>(i))] = c->counts[i] + n_protected();
  return {};
}

// Marks what every head of the layer keeps. Side values of heads that drop something start again where the
// scorer wants that.
Status Compressor::Mark(LayerChoice* c, const std::vector<int32_t>& wanted) {
  const ChoiceBuffers& b = *c->work.choice;
  const LayerView& kv = c->kv.view();
  Device* device = c->work.device;
  const SelectRule rule = SelectRuleNow();
  const int32_t g = kv.n_kv_heads;
  std::vector<int32_t> counts(wanted);
  // Who drops one entry alone keeps it instead of one that stands for it.
  for (int32_t i = 0; policy().n_rest() > 0 && i < g; ++i) {
    int32_t& count = counts[static_cast<size_t>(i)];
    count += kv.len[i] <= n_protected() + count ? 1 : 0;
  }
  c->marked = true;
  if (plan_.query_heads_see_their_own()) {
    KVC_RETURN_IF_ERROR(device->SelectByQueryHead(
        c->work.stream, {kv, plan_.shape().n_heads, protect_.n_recent, counts.data(), b.per_head.at(),
                         b.marks.at(), b.seen.at(), b.stride, b.scratch.raw(), c->kept.data()}));
    for (int32_t i = 0; i < g; ++i) {
      const size_t at = static_cast<size_t>(i);
      c->all_see[at] = counts[at] >= kv.len[i] - protect_.n_recent;
    }
  } else {
    for (int32_t i = 0; i < g; ++i) {
      int32_t& kept = c->kept[static_cast<size_t>(i)];
      kept = KeptCount(rule, kv.len[i], counts[static_cast<size_t>(i)]);
      kept += kept < kv.len[i] ? policy().n_rest() : 0;
    }
    KVC_RETURN_IF_ERROR(device->Select(c->work.stream, {rule, kv, c->layer, counts.data(), b.scores.at(),
                                                        b.marks.at(), b.stride, b.scratch.raw()}));
  }
  for (int32_t i = 0; i < g; ++i) {
    if (c->kept[static_cast<size_t>(i)] == kv.len[i]) continue;
    c->dropped = true;
    for (int32_t a = 0;
         !policy().keeps_all() && policy().scorer->clear_after_reduce && a < plan_.scorer_aux(); ++a) {
      const DevicePtr<float> line = kv.aux + (int64_t{a} * g + i) * kv.capacity;
      KVC_RETURN_IF_ERROR(device->Zero(c->work.stream, line.As<uint8_t>(), 4 * int64_t{kv.len[i]}));
    }
  }
  if (!keep_lengths_) return {};
  const int32_t* held = held_.data() + At(c->layer, 0);
  KVC_RETURN_IF_ERROR(device->Unmark(c->work.stream, {kv, held, kSinks, b.marks.at(), b.stride}));
  for (int32_t i = 0; i < g; ++i) {
    c->dropped = c->dropped || c->kept[static_cast<size_t>(i)] > held[i];
    c->kept[static_cast<size_t>(i)] = std::min(c->kept[static_cast<size_t>(i)], held[i]);
  }
  return {};
}

Status Compressor::PushPromptQueries(const LayerChoice& c) {
  if (!plan_.reobserves()) return {};
  const ModelShape& shape = plan_.shape();
  const size_t layer = static_cast<size_t>(c.layer);
  QueryRingArgs args{};
  args.kind = QueryRingArgs::kPush;
  args.ring_rows = policy().Int(OptionId::kWindow);
  args.ring = RingAt(c.layer);
  args.start = ring_start_[layer], args.len = ring_len_[layer];
  args.n = std::min(c.observed.n_rows, args.ring_rows);
  args.rows = c.observed.queries() + int64_t{c.observed.n_rows - args.n} * shape.n_heads * shape.head_dim;
  args.n_heads = shape.n_heads, args.n_kv_heads = shape.n_kv_heads, args.head_dim = shape.head_dim;
  args.turning = turning(c.layer);
  std::vector<int32_t> slots(c.kv.len());
  for (int32_t& slot : slots) --slot;
  args.slots = slots.data();
  KVC_RETURN_IF_ERROR(c.work.device->QueryRing(c.work.stream, args));
  const int32_t over = std::max(args.len + args.n - args.ring_rows, 0);
  ring_start_[layer] = (args.start + over) % args.ring_rows;
  ring_len_[layer] = args.len + args.n - over;
  return {};
}

Status Compressor::StoreMarked(const LayerChoice& c, KvCache* cache) {
  const ChoiceBuffers& b = *c.work.choice;
  std::vector<uint8_t> rotated(loaded_rotated_);
  for (uint8_t& r : rotated) {
    if (plan_.codebook() || (in_cache_ && (c.dropped || r == 0))) r = 0;
  }
  // Who saw not all of what was there does not see it now.
  for (size_t i = 0; i < c.all_see.size(); ++i) {
    const int32_t head = c.layer * static_cast<int32_t>(c.all_see.size()) + static_cast<int32_t>(i);
    if (cache->Len(head) > 0 && cache->stored(head) != kStoredPlainAll) c.all_see[i] = 0;
  }
  KvCache::StoreSpec spec{};
  spec.layer = c.layer, spec.from = c.kv.view(), spec.turning = turning(c.layer),
  spec.rotated = rotated.data();
  spec.kept = c.kept.data(), spec.stride = b.stride, spec.all_see = c.all_see.data();
  if (c.marked) spec.marks = b.marks.at();
  if (c.marked && plan_.query_heads_see_their_own()) spec.seen = b.seen.at();
  return cache->Store(c.work.stream, spec, &c.work.choice->codes);
}

// How far vectors share directions is known only when they are coded. A layer that is too large is coded
// again with fewer candidates: bisection over sixteenths of its counts, so four rounds (methods.md 2.16 g).
// The part that is always kept stays.
Status Compressor::FitLayer(LayerChoice* c, KvCache* cache) {
  const int64_t limit = plan_.LayerLimit();
  if (cache->LayerBytes(c->layer) <= limit) return {};
  std::vector<int32_t> counts(c->counts);
  for (size_t g = 0; g < counts.size(); ++g)
    counts[g] = std::clamp(c->kv.len()[g] - n_protected(), 0, counts[g]);
  const auto store = [&](int32_t sixteenths) {
    std::vector<int32_t> fewer(counts);
    for (int32_t& count : fewer) count = static_cast<int32_t>(int64_t{count} * sixteenths / 16);
    KVC_RETURN_IF_ERROR(Mark(c, fewer));
    changed_ = changed_ || c->dropped;
    return StoreMarked(*c, cache);
  };
  int32_t low = 0, high = 16, stored = high;
  while (high - low > 1) {
    stored = (low + high) / 2;
    KVC_RETURN_IF_ERROR(store(stored));
    (cache->LayerBytes(c->layer) <= limit ? low : high) = stored;
  }
  return stored == low ? Status() : store(low);
}

Status Compressor::StoreLayer(const LayerWork& work, int32_t layer, const LayerBuffers& kv,
                              const ObservedBuffers& observed, bool compress,
                              const std::vector<int32_t>& n_before, KvCache* cache) {
  scored_ = false;
  if (slides(layer)) return StoreWindow(work, layer, kv, compress, n_before, cache);
  const size_t g = static_cast<size_t>(plan_.shape().n_kv_heads);
  const bool scores_wait = compress && keeps_scores_waiting() && !reduces_all_;
  compress = compress && (reduces_all_ || !waits_for_all_layers());
  const bool keeps_all = policy().keeps_all(),
             had_entries = *std::max_element(n_before.begin(), n_before.end()) > 0;
  std::fill(layer_counts_.begin(), layer_counts_.end(), kUnbounded - n_protected());
  layer_kept_ = kv.len();
  std::fill(layer_all_see_.begin(), layer_all_see_.end(), uint8_t{1});
  LayerChoice c{work, layer, kv, observed, layer_counts_, layer_kept_, layer_all_see_};
  if (scores_wait) KVC_RETURN_IF_ERROR(LetWait(c));
  // What was there stays as it is: only the new entries are written.
  if (had_entries && plan_.n_aux() == 0 && !plan_.codebook() && !keep_lengths_ && (!compress || keeps_all)) {
    KVC_RETURN_IF_ERROR(PushPromptQueries(c));
    return cache->AppendFrom(work.stream, layer, kv.view(), turning(layer), n_before.data(),
                             &work.choice->codes);
  }
  const int32_t longest = kv.Longest();
  KVC_RETURN_IF_ERROR(ReservePrompt(work.memory(), longest, observed.n_rows, work.choice));
  if (keeps_all && !keep_lengths_) return StoreMarked(c, cache);
  const auto least = std::min_element(counts_.begin() + static_cast<std::ptrdiff_t>(At(layer, 0)),
                                      counts_.begin() + static_cast<std::ptrdiff_t>(At(layer, 0) + g));
  const bool fits = longest <= n_protected() || *least >= longest - n_protected(),
             drop = compress && !keeps_all && !fits,
             limited = compress && plan_.LayerLimit() > 0 && longest > n_protected();
  scored_ = drop || limited || plan_.n_aux() > 0;
  if (scored_) KVC_RETURN_IF_ERROR(Score(c));
  if (drop) KVC_RETURN_IF_ERROR(ChooseCounts(&c));
  KVC_RETURN_IF_ERROR(Mark(&c, c.counts));
  if (c.dropped) {
    const MergeRule merge = MergeRuleNow();
    if (merge.kind != MergeKind::kNone) {
      KVC_RETURN_IF_ERROR(work.device->Merge(work.stream, {merge, kv.view(), layer, work.choice->marks.at(),
                                                           work.choice->stride, work.choice->scratch.raw()}));
    }
    changed_ = true;
  }
  KVC_RETURN_IF_ERROR(PushPromptQueries(c));
  KVC_RETURN_IF_ERROR(StoreMarked(c, cache));
  return limited ? FitLayer(&c, cache) : Status();
}

// A layer with a window takes the newest tokens as they are: what leaves the window was the last to be of use
// there, and says nothing about what stays. What is cached and stays is not written again, for that would
// round it again. Late rings are empty while the document may still come, for no budget has them; of what
// comes behind it the newest are there.
Status Compressor::StoreWindow(const LayerWork& work, int32_t layer, const LayerBuffers& kv, bool compress,
                               const std::vector<int32_t>& n_before, KvCache* cache) {
  const CacheLayout& layout = cache->layout();
  const int32_t n = kv.len()[0], n_new = n - n_before[0], held = layout.HeldOf(layer, n);
  const bool adds = n_before[0] > 0 && !(layout.late_rings && compress);
  const auto append = [&](const std::vector<int32_t>& first) {
    return cache->AppendFrom(work.stream, layer, kv.view(), turning(layer), first.data(),
                             &work.choice->codes);
  };
  if (adds && n_new < held) return append(n_before);
  const int32_t head = layer * layout.n_kv_heads,
                raw = layout.ring_slots(head) - layout.heads[static_cast<size_t>(head)].settle,
                late = adds && layout.late_rings ? std::clamp(raw, 0, held) : 0, stored = held - late;
  std::fill(layer_kept_.begin(), layer_kept_.end(), stored);
  KvCache::StoreSpec spec{};
  spec.layer = layer, spec.turning = turning(layer);
  spec.from = kv.view();
  spec.from.keys = spec.from.keys + int64_t{n - held} * spec.from.vector_bytes();
  spec.from.values = spec.from.values + int64_t{n - held} * spec.from.vector_bytes();
  spec.from.positions = spec.from.positions + int64_t{n - held};
  spec.from.aux = {}, spec.from.seen = {};
  spec.from.n_aux = 0, spec.from.has_seen = false;
  spec.from.len = layer_kept_.data();
  const std::vector<uint8_t> rotated(layer_kept_.size(), 1);
  spec.rotated = rotated.data(), spec.kept = layer_kept_.data();
  KVC_RETURN_IF_ERROR(cache->Store(work.stream, spec, &work.choice->codes));
  return late == 0 ? Status() : append(std::vector<int32_t>(layer_kept_.size(), n - late));
}

}  // namespace kvc

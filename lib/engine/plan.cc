// What a session would take. The buffers are laid out by the code that will take them, with a meter that only
// counts.
#include <algorithm>

#include "lib/engine/cache_plan.h"
#include "lib/engine/reread.h"
#include "lib/engine/session.h"
#include "lib/engine/step_batch.h"

namespace kvc {

int64_t Session::FullCacheBytes(int64_t n) const {
  return kvc::FullCacheBytes(cache_->layout(), compressor_->policy(), n);
}

// Lays a session out as it would be, on a meter that only counts.
class Planner : private CachePlanner {
 public:
  // counter: only counts.
  Planner(const Model& model, const SessionParams& params, int32_t n_prompt,
          const std::shared_ptr<MemoryMeter>& counter)
      : CachePlanner(model.config(), params, n_prompt, {model.executor()->device(), counter.get()}),
        model_(model),
        counter_(counter) {}

  Result<SessionPlan> Plan(const Policy& policy) {
    KVC_RETURN_IF_ERROR(Create(policy));
    SessionPlan plan;
    plan.weight_bytes = model_.file().weight_bytes();
    int64_t prompt_workspace = 0, layer_bytes = 0, step_workspace = 0;
    KVC_RETURN_IF_ERROR(PlanPrompt(&plan.slots, &prompt_workspace, &layer_bytes));
    const Growth growth = GrowthFrom(plan.slots);
    const PageCount pages = CountPages(layout_, growth);
    plan.cache_bytes_prompt = pages.PromptBytes();
    plan.cache_bytes_peak = plan.cache_bytes_prompt + layer_bytes + pages.FittingBytes();
    plan.cache_bytes_end = CountPages(layout_, AtShares(growth)).EndBytes();
    const Growth crowded = BeforeSteps(growth);
    int64_t in_steps = CountPages(layout_, crowded).EndBytes();
    const int32_t behind = n_prompt_ - compressor_->plan().TokensAtOnce(0, n_prompt_),
                  rows = by_chunks() ? 0 : std::min(behind, Session::kPromptRows);
    if (rows > 0) {  // the pages of all rows are there before the first of them comes
      Growth wide = growth;
      for (int32_t& slots : wide.slots) slots += rows;
      const int64_t bytes = CountPages(layout_, wide).PromptBytes();
      plan.cache_bytes_peak = std::max(plan.cache_bytes_peak, bytes);
      in_steps = std::max(in_steps, bytes + prompt_records_);
    }
    int64_t reducing = 0;
    if (compressor_->waits_for_all_layers()) {
      // Every layer in full, and one of them a second time while it is reduced.
      Growth whole = growth;
      whole.spread = false, whole.layer_limit = 0;  // which holds for what is left
      for (size_t i = 0; i < whole.slots.size(); ++i)
        whole.slots[i] = layout_.HeldOf(static_cast<int32_t>(i) / layout_.n_kv_heads, at_once_);
      const int64_t bytes = CountPages(layout_, whole).PromptBytes();
      const int64_t twice = std::min(LargestLayer(whole.slots), plan.cache_bytes_prompt);
      reducing = bytes + twice + reduction_layer_ + reduction_;
      plan.cache_bytes_peak = bytes + std::max(layer_bytes, twice);
    }
    KVC_RETURN_IF_ERROR(PlanSteps(crowded, rows, &step_workspace));
    plan.workspace_bytes = std::max({prompt_workspace, reduction_, step_workspace});
    plan.cache_bytes_full = FullBytes();
    // Of a prompt by chunks the last one is taken when all of it has been stored: until then there is both.
    const int64_t before = by_chunks() ? plan.cache_bytes_prompt + prompt_records_ : 0;
    // Arenas take their memory in whole granules; where a layer is replaced, its pages begin and end within
    // one.
    const int64_t granules = 2 * pages.n_arenas() * executor()->device()->info().granule;
    const int64_t session = std::max({prompt_workspace + prompt_records_ + before + plan.cache_bytes_peak,
                                      prompt_records_ + before + reducing, step_workspace + in_steps});
    const int64_t total = plan.weight_bytes + model_.overhead_bytes() + session_bytes_ + granules +
                          ListBytes(crowded, rows) + session;
    plan.total_bytes_peak = std::max(total, model_.opening_bytes());
    return plan;
  }

 private:
  Executor* executor() const { return model_.executor(); }
  int32_t chunk() const { return compressor_->plan().ChunkFor(0, n_prompt_); }
  bool by_chunks() const { return chunk() > 0; }

  // The session itself: records, and the residual of its newest token.
  Status Create(const Policy& policy) {
    Result<HeadScores> scores = model_.ScoresFor(policy);
    if (!scores.ok()) return scores.status();
    KVC_RETURN_IF_ERROR(CachePlanner::Create(policy, std::move(scores.value()), model_.attention_rule()));
    arenas_ = std::make_unique<PageArenas>(executor()->device(), counter_);
    Result<std::unique_ptr<KvCache>> cache =
        KvCache::Create(std::make_shared<const CacheLayout>(layout_), arenas_.get());
    if (!cache.ok()) return cache.status();
    cache_ = std::move(cache.value());
    KVC_RETURN_IF_ERROR(hidden_.Reserve(memory_, config_.hidden_size, "the newest token"));
    session_bytes_ = counter_->used();
    return {};
  }

  // What is behind a window goes when a step cannot fail any more: by then the entry of that step has its
  // place.
  Growth BeforeSteps(Growth growth) const {
    for (size_t i = 0; i < growth.caps.size(); ++i)
      growth.caps[i] += layout_.window(static_cast<int32_t>(i) / layout_.n_kv_heads) > 0 ? 1 : 0;
    return growth;
  }

  // Behind a prompt that was kept whole, the first step takes heads down to their shares.
  Growth AtShares(Growth growth) const {
    for (size_t i = 0; growth.n_steps > 0 && i < growth.slots.size(); ++i) {
      if (layout_.window(static_cast<int32_t>(i) / layout_.n_kv_heads) == 0)
        growth.slots[i] = std::min(growth.slots[i], growth.caps[i]);
    }
    return growth;
  }

  // The lists of pages, which have one length for all heads. They grow by halves, and the old ones are there
  // while the new ones are filled.
  int64_t ListBytes(const Growth& growth, int32_t rows) const {
    const auto pages = [&](int64_t n) { return (n + layout_.page_slots - 1) / layout_.page_slots; };
    int64_t begin = 0, end = 0;
    for (size_t i = 0; i < growth.slots.size(); ++i) {
      begin = std::max(begin, pages(compressor_->waits_for_all_layers() ? at_once_ : growth.slots[i]));
      end = std::max(end, pages(std::max(growth.slots[i] + rows, growth.Last(i) + 1)));
    }
    const int64_t most = end > begin ? end + end * 3 / 2 : begin;
    return most * layout_.n_heads_total() * static_cast<int64_t>(sizeof(int32_t));
  }

  // As a PromptJob does.
  Status PlanPrompt(std::vector<int32_t>* slots, int64_t* workspace, int64_t* layer_bytes) {
    Result<std::unique_ptr<Compressor>> fork = compressor_->Fork(nullptr);
    if (!fork.ok()) return fork.status();
    Result<std::unique_ptr<KvCache>> cache = cache_->Fork();
    if (!cache.ok()) return cache.status();
    prompt_records_ = counter_->used() - session_bytes_;
    std::swap(compressor_, fork.value());
    PromptNeeds needs;
    KVC_RETURN_IF_ERROR(BeginPrompt(&needs, slots));
    PromptRequest request;
    request.n = compressor_->plan().TokensAtOnce(0, n_prompt_), request.window_rows = needs.window_rows,
    request.column_sums = needs.column_sums;
    if (by_chunks()) {
      request.max_cached = MostLeft(*slots);
      at_once_ = std::min(n_prompt_, request.max_cached + request.n);
    }
    request.n_aux = compressor_->plan().n_aux(),
    request.layer_type = executor()->network().LayerType(layout_);
    Reread reread;
    if (needs.reading.wanted) {
      KVC_RETURN_IF_ERROR(PlanReread(model_, needs.reading, request.n, n_prompt_, &reread));
      request.reread = &reread;
    }
    Workspace w;
    PromptRun run;
    KVC_RETURN_IF_ERROR(w.chunk.Reserve(executor()->network(), request, memory_));
    KVC_RETURN_IF_ERROR(run.Begin(executor()->network(), request, memory_));
    const int32_t rows = std::min(request.window_rows, request.n);
    KVC_RETURN_IF_ERROR(compressor_->ReservePrompt(memory_, at_once_ + reread.Behind(), rows, &w.choice));
    const int64_t codes = executor()->device()->StoreScratchBytes(layout_, at_once_, MostCodes(*slots));
    KVC_RETURN_IF_ERROR(w.choice.codes.Reserve(memory_, codes, "codes of one layer"));
    KVC_RETURN_IF_ERROR(compressor_->ReserveWaiting(memory_.meter, at_once_));
    *layer_bytes = run.layer_bytes();
    *workspace = w.bytes() + run.bytes() - run.layer_bytes() + compressor_->waiting_bytes();
    if (!compressor_->waits_for_all_layers()) return {};
    KVC_RETURN_IF_ERROR(compressor_->ReserveComparison(memory_.meter, at_once_));
    KVC_RETURN_IF_ERROR(w.ReserveReduction(memory_, config_, at_once_, request.n_aux, layout_.seen_masks,
                                           needs.reading.wanted));
    reduction_layer_ = w.layer.bytes();
    reduction_ = w.bytes() - reduction_layer_ + compressor_->waiting_bytes();
    return {};
  }

  // What a chunk finds in a head that shares the budget, at most: where scores part the slots, all of them.
  int32_t MostLeft(const std::vector<int32_t>& slots) const {
    const Allocator& allocator = *compressor_->policy().allocator;
    const size_t g = static_cast<size_t>(config_.n_kv_heads), group = allocator.across_layers ? slots.size()
                                                                      : allocator.dynamic     ? g
                                                                                              : 1;
    int64_t most = 0, sum = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i % group == 0) sum = 0;
      sum += compressor_->slides(static_cast<int32_t>(i / g)) ? 0 : slots[i];
      most = std::max(most, group > 1 ? sum : int64_t{slots[i]});
    }
    return static_cast<int32_t>(std::min<int64_t>(most, n_prompt_ - chunk()));
  }

  // Entries that are stored at once and may share scales or directions. Layers that wait for all others are
  // stored whole before.
  int64_t MostCodes(const std::vector<int32_t>& slots) const {
    int64_t most = 0;
    const size_t g = static_cast<size_t>(config_.n_kv_heads);
    for (size_t first = 0; first < slots.size(); first += g) {
      int64_t sum = 0;
      if (compressor_->slides(static_cast<int32_t>(first / g))) continue;
      for (size_t i = first; i < first + g; ++i) {
        const int32_t stored = compressor_->waits_for_all_layers() ? at_once_ : slots[i];
        sum += stored;
        most = std::max<int64_t>(most, stored);
      }
      if (layout_.layer_books) most = std::max(most, sum);
    }
    return most;
  }

  int64_t LargestLayer(const std::vector<int32_t>& slots) const {
    int64_t largest = 0;
    for (int32_t layer = 0; layer < layout_.n_layers; ++layer) {
      int64_t bytes = 0;
      for (int32_t i = layer * layout_.n_kv_heads; i < (layer + 1) * layout_.n_kv_heads; ++i)
        bytes += HeadBytes(layout_, i, slots[static_cast<size_t>(i)]);
      largest = std::max(largest, bytes);
    }
    return largest;
  }

  // As a StepRunner does. Angles grow with the sequence, and two tables are there while they do. rows: of the
  // prompt, at once; 0: it is read in one part.
  Status PlanSteps(const Growth& growth, int32_t rows, int64_t* workspace) {
    MemoryMeter counter(0, /*counting=*/true);
    const DeviceMemory memory{executor()->device(), &counter};
    Workspace w;
    w.angle_sets.resize(executor()->n_ropes());
    w.angles.resize(static_cast<size_t>(config_.n_layers));
    const Network& network = executor()->network();
    KVC_RETURN_IF_ERROR(w.step.ReserveHeads(network, 1, memory));
    if (Sampler(params_.sampler).draws())
      KVC_RETURN_IF_ERROR(w.sample_weights.Reserve(memory, config_.vocab_size, "sampling"));
    if (growth.n_steps > 0 || rows > 0) {
      int32_t longest = 0, ring_slots = 0, begin = 0,
              shared = 0;  // the last two: of layers that do not slide
      for (size_t i = 0; i < growth.slots.size(); ++i) {
        longest = std::max({longest, growth.Last(i) + 1, growth.slots[i] + rows});
        if (layout_.window(static_cast<int32_t>(i) / layout_.n_kv_heads) == 0)
          begin = std::max(begin, growth.slots[i]), shared = std::max(shared, growth.Last(i) + 1);
        ring_slots = std::max(ring_slots, layout_.ring_slots(static_cast<int32_t>(i)));
      }
      StepShape shape{};
      shape.n_rows = std::max(rows, 1);
      GrowShape(*executor(), layout_, compressor_->step_plan(), longest, ring_slots, &shape);
      KVC_RETURN_IF_ERROR(w.step.Reserve(network, shape.n_rows, memory));
      KVC_RETURN_IF_ERROR(w.step.ReserveAttention(shape, memory));
      // Of a prompt by steps the rows of each part come on top of what the budget leaves.
      const int64_t end = std::min<int64_t>(int64_t{n_prompt_} + growth.n_steps, kMaxPosition),
                    first = rows > 0 ? compressor_->plan().TokensAtOnce(0, n_prompt_) + rows : n_prompt_ + 1;
      for (int64_t fed = first, more = 0; fed <= end; fed += std::max<int64_t>(more, 1)) {
        const int64_t at =
            fed <= n_prompt_ ? begin + rows : std::min<int64_t>(begin + fed - n_prompt_, shared);
        KVC_RETURN_IF_ERROR(ReserveSteps(executor(), memory, *compressor_, static_cast<int32_t>(at),
                                         ring_slots, static_cast<int32_t>(fed), &w));
        const int64_t until = fed < n_prompt_ ? n_prompt_ : end;
        more = std::min(until - fed, std::max<int64_t>(64, fed / 64));
      }
      const bool slides = params_.on_full == OnFull::kSlide && growth.n_steps > 0;
      if (slides && !compressor_->in_cache())
        KVC_RETURN_IF_ERROR(ReserveTurns(executor(), memory, shared, &w));
    }
    *workspace = counter.peak();
    return {};
  }

  const Model& model_;
  const std::shared_ptr<MemoryMeter> counter_;
  std::unique_ptr<PageArenas> arenas_;
  std::unique_ptr<KvCache> cache_;
  DeviceBuffer<float> hidden_;
  int64_t session_bytes_ = 0, prompt_records_ = 0;
  int64_t reduction_layer_ = 0, reduction_ = 0;  // a layer that is loaded again, and what it is reduced in
  int32_t at_once_ = n_prompt_;                  // entries of a head while the prompt is read
};

Result<SessionPlan> Session::Plan(const std::shared_ptr<const Model>& model, const Policy* policy,
                                  const SessionParams& params, int32_t n_prompt) {
  const auto counter = std::make_shared<MemoryMeter>(0, /*counting=*/true);
  return Planner(*model, params, n_prompt, counter).Plan(ChosenPolicy(policy));
}

}  // namespace kvc

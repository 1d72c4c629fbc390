// What a session would take. The buffers are laid out by the code that will take them, with a meter that only
// counts.
#include <algorithm>
#include <cmath>
#include <map>

#include "lib/engine/reread.h"
#include "lib/engine/session.h"
#include "lib/engine/step_batch.h"

namespace kvc {
namespace {

// How long the heads are, and for how many steps they grow.
struct Growth {
  std::vector<int32_t> slots;  // [L * G] after the prompt
  std::vector<int32_t> caps;   // [L * G] before a step
  int32_t n_steps = 0;
  bool spread = false;      // the slots are averages: heads end anywhere in their last page
  int64_t layer_limit = 0;  // bytes of a layer after the prompt, 0: none
  int32_t n_least = 0;      // entries a head keeps whatever the limit

  // Entries before the last step.
  int32_t Last(size_t head) const {
    const int64_t longest = int64_t{slots[head]} + n_steps - 1;
    return static_cast<int32_t>(std::min<int64_t>(longest, std::max(caps[head], slots[head])));
  }
};

// Pages by size, as arenas hold them.
class PageCount {
 public:
  void Add(int64_t page_bytes, double at_prompt, double at_end) {
    Arena& arena = arenas_[page_bytes];
    arena.at_prompt += at_prompt;
    arena.at_end += std::max(at_end, at_prompt);
  }
  // A layer that a limit makes smaller: of what it keeps only the bytes are known. While it is fitted two
  // versions of it are there, each at most as large as without the limit.
  void AddLimited(int64_t kept, int64_t unlimited) {
    limited_ += kept;
    fitting_ = std::max(fitting_, 2 * unlimited - kept);
  }
  int64_t FittingBytes() const { return fitting_; }
  int64_t n_arenas() const { return static_cast<int64_t>(arenas_.size()); }
  int64_t PromptBytes() const { return Bytes(&Arena::at_prompt); }
  int64_t EndBytes() const { return Bytes(&Arena::at_end); }

 private:
  struct Arena {
    double at_prompt = 0, at_end = 0;
  };
  int64_t Bytes(double Arena::*when) const {
    double bytes = static_cast<double>(limited_);
    for (const auto& [page_bytes, arena] : arenas_)
      bytes += std::ceil(arena.*when) * static_cast<double>(page_bytes);
    return static_cast<int64_t>(bytes);
  }
  std::map<int64_t, Arena> arenas_;
  int64_t limited_ = 0, fitting_ = 0;
};

// Entries of a head in main when it holds n, in a cache that began with `slots`.
int32_t InMain(const CacheLayout& layout, int32_t head, int32_t slots, int32_t n) {
  if (layout.main(head).coding != EntryCoding::kCodebook) return MainAfterStore(layout, head, n);
  const int32_t late = n - slots, ring = layout.ring_slots(head),
                settle = layout.heads[static_cast<size_t>(head)].settle;
  return slots + (late < ring ? 0 : ((late - ring) / settle + 1) * settle);
}

// Pages of n entries, before they are whole ones.
double PagesOf(const CacheLayout& layout, const Growth& growth, size_t head, int32_t n) {
  const double page = layout.page_slots;
  const bool spread = growth.spread && layout.window(static_cast<int32_t>(head) / layout.n_kv_heads) == 0;
  return spread && n > 0 ? n / page + (page - 1) / (2 * page) : std::ceil(n / page);
}

// limited: the prompt's pages are counted already.
void CountHead(const CacheLayout& layout, const Growth& growth, size_t i, bool limited, PageCount* count) {
  const int32_t head = static_cast<int32_t>(i), slots = growth.slots[i];
  const int32_t now = InMain(layout, head, slots, slots);
  // The page of an entry is there before it comes, and entries leave behind it.
  const int32_t end = growth.n_steps <= 0 ? now : InMain(layout, head, slots, growth.Last(i) + 1);
  double at_prompt = PagesOf(layout, growth, i, now), at_end = PagesOf(layout, growth, i, end);
  // Where the last page ends is not known either.
  if (limited) at_prompt = 0, at_end = std::ceil((end - now) / static_cast<double>(layout.page_slots));
  const HeadFormat& format = layout.heads[i];
  const int32_t last = growth.n_steps <= 0 ? slots : growth.Last(i) + 1;
  // Behind what the limit left either codes or vectors come.
  if (format.plain >= 0 && limited)
    count->Add(layout.formats[static_cast<size_t>(format.plain)].bytes, 0,
               std::ceil((last - slots) / static_cast<double>(layout.page_slots)));
  if (format.plain >= 0 && !limited) {
    // Codes are there only where they take less than vectors do; their arenas may be.
    count->Add(layout.formats[static_cast<size_t>(format.plain)].bytes, PagesOf(layout, growth, i, slots),
               PagesOf(layout, growth, i, last));
    count->Add(PageBytes(layout, head), 0, 0), count->Add(RingBytes(layout, head), 0, 0);
    return count->Add(DirectionBytes(layout), 0, 0);
  }
  count->Add(PageBytes(layout, head), at_prompt, at_end);
  if (RingBytes(layout, head) > 0 && !limited) count->Add(RingBytes(layout, head), 1, 1);
  // Codebooks: as if no two vectors shared a direction.
  if (layout.main(head).coding == EntryCoding::kCodebook)
    count->Add(DirectionBytes(layout), 2 * at_prompt, 2 * at_end);
}

// Whether the limit makes the layer of heads [first, first + G) smaller than its slots. Counts what is left
// of it.
bool CountLimited(const CacheLayout& layout, const Growth& growth, size_t first, PageCount* count) {
  if (growth.layer_limit <= 0 || layout.window(static_cast<int32_t>(first) / layout.n_kv_heads) > 0)
    return false;
  double planned = 0;
  int64_t least = 0;
  for (size_t i = first; i < first + static_cast<size_t>(layout.n_kv_heads); ++i) {
    const int32_t head = static_cast<int32_t>(i);
    const int64_t beside = HeadBytes(layout, head, 0);
    const int64_t page = HeadBytes(layout, head, layout.page_slots) - beside;
    planned +=
        PagesOf(layout, growth, i, growth.slots[i]) * static_cast<double>(page) + static_cast<double>(beside);
    least += HeadBytes(layout, head, growth.n_least);
  }
  const int64_t unlimited = static_cast<int64_t>(std::ceil(planned)),
                most = std::max(growth.layer_limit, least);
  if (unlimited <= most) return false;
  count->AddLimited(most, unlimited);
  return true;
}

PageCount CountPages(const CacheLayout& layout, const Growth& growth) {
  PageCount count;
  const size_t group = static_cast<size_t>(layout.n_kv_heads);
  for (size_t first = 0; first < growth.slots.size(); first += group) {
    const bool limited = CountLimited(layout, growth, first, &count);
    for (size_t i = first; i < first + group; ++i) CountHead(layout, growth, i, limited, &count);
  }
  return count;
}

int64_t FullBytes(const CacheLayout& layout, const Policy& policy, int64_t n) {
  const int32_t kv = policy.Int(OptionId::kKv);
  PageFormat format;
  format.type = kv <= static_cast<int32_t>(KvType::kBf16) ? static_cast<KvType>(kv) : KvType::kF16;
  format.d = layout.head_dim, format.slots = layout.page_slots;
  format.Lay();
  int64_t pages = 0;
  for (int32_t layer = 0; layer < layout.n_layers; ++layer) {
    const int64_t held = layout.window(layer) == 0 ? n : layout.HeldOf(layer, static_cast<int32_t>(n));
    pages += layout.n_kv_heads * ((held + format.slots - 1) / format.slots);
  }
  return pages * format.bytes;
}

}  // namespace

int64_t Session::FullCacheBytes(int64_t n) const {
  return FullBytes(cache_->layout(), compressor_->policy(), n);
}

// Lays a session out as it would be, on a meter that only counts.
class Planner {
 public:
  Planner(const Model& model, const SessionParams& params, int32_t n_prompt)
      : model_(model),
        params_(params),
        n_prompt_(n_prompt),
        counter_(std::make_shared<MemoryMeter>(0, /*counting=*/true)),
        memory_{model.executor()->device(), counter_.get()} {}

  Result<SessionPlan> Plan(const Policy& policy) {
    KVC_RETURN_IF_ERROR(Create(policy));
    SessionPlan plan;
    plan.weight_bytes = model_.file().weight_bytes();
    int64_t prompt_workspace = 0, layer_bytes = 0, step_workspace = 0;
    KVC_RETURN_IF_ERROR(PlanPrompt(&plan.slots, &prompt_workspace, &layer_bytes));
    const Growth growth = GrowthOf(plan.slots);
    const PageCount pages = CountPages(layout_, growth);
    plan.cache_bytes_prompt = pages.PromptBytes();
    plan.cache_bytes_peak = plan.cache_bytes_prompt + layer_bytes + pages.FittingBytes();
    plan.cache_bytes_end = pages.EndBytes();
    if (compressor_->waits_for_all_layers()) {
      // Every layer in full, and one of them a second time while it is reduced.
      Growth whole = growth;
      whole.spread = false;
      for (size_t i = 0; i < whole.slots.size(); ++i)
        whole.slots[i] = layout_.HeldOf(static_cast<int32_t>(i) / layout_.n_kv_heads, n_prompt_);
      const int64_t bytes = CountPages(layout_, whole).PromptBytes();
      plan.cache_bytes_peak =
          bytes + std::max(layer_bytes, std::min(LargestLayer(whole.slots), plan.cache_bytes_prompt));
    }
    KVC_RETURN_IF_ERROR(PlanSteps(growth, &step_workspace));
    plan.workspace_bytes = std::max(prompt_workspace, step_workspace);
    plan.cache_bytes_full =
        FullBytes(layout_, policy, params_.max_tokens == kMaxContext ? n_prompt_ : params_.max_tokens);
    // Arenas take their memory in whole granules; where a layer is replaced, its pages begin and end within
    // one.
    const int64_t granules = 2 * pages.n_arenas() * executor()->device()->info().granule;
    plan.total_bytes_peak = plan.weight_bytes + model_.overhead_bytes() + session_bytes_ + granules +
                            std::max(prompt_workspace + prompt_records_ + plan.cache_bytes_peak,
                                     step_workspace + plan.cache_bytes_end);
    return plan;
  }

 private:
  const ModelConfig& config() const { return model_.config(); }
  Executor* executor() const { return model_.executor(); }

  // The session itself: records, and the residual of its newest token.
  Status Create(const Policy& policy) {
    KVC_RETURN_IF_ERROR(Session::CheckParams(params_));
    params_.max_tokens = Session::EffectiveMaxTokens(model_, policy, params_);
    if (n_prompt_ < 1 || n_prompt_ > params_.max_tokens) {
      return Error(Code::kInvalid, "the prompt to plan for has %d tokens; it may have 1 to max_tokens=%d",
                   n_prompt_, params_.max_tokens);
    }
    Result<HeadScores> scores = model_.ScoresFor(policy);
    if (!scores.ok()) return scores.status();
    Result<std::unique_ptr<Compressor>> compressor =
        Compressor::Create(policy, Session::ShapeOf(model_, policy, params_), std::move(scores.value()),
                           params_.on_full == OnFull::kSlide, model_.attention_rule(), memory_);
    if (!compressor.ok()) return compressor.status();
    compressor_ = std::move(compressor.value());
    Result<CacheLayout> layout = Session::LayoutOf(compressor_->plan(), params_, /*page_slots=*/0);
    if (!layout.ok()) return layout.status();
    layout_ = std::move(layout.value());
    arenas_ = std::make_unique<PageArenas>(executor()->device(), counter_);
    Result<std::unique_ptr<KvCache>> cache =
        KvCache::Create(std::make_shared<const CacheLayout>(layout_), arenas_.get());
    if (!cache.ok()) return cache.status();
    cache_ = std::move(cache.value());
    KVC_RETURN_IF_ERROR(hidden_.Reserve(memory_, config().hidden_size, "the newest token"));
    session_bytes_ = counter_->used();
    return {};
  }

  // As a PromptJob does.
  Status PlanPrompt(std::vector<int32_t>* slots, int64_t* workspace, int64_t* layer_bytes) {
    Result<std::unique_ptr<Compressor>> fork = compressor_->Fork(nullptr);
    if (!fork.ok()) return fork.status();
    Result<std::unique_ptr<KvCache>> cache = cache_->Fork();
    if (!cache.ok()) return cache.status();
    prompt_records_ = counter_->used() - session_bytes_;
    Compressor& compressor = *fork.value();
    const StoragePlan& plan = compressor.plan();
    PromptNeeds needs;
    KVC_RETURN_IF_ERROR(compressor.BeginPrompt(n_prompt_, &needs));
    KVC_RETURN_IF_ERROR(plan.PlanSlots(n_prompt_, slots));
    const Policy& policy = plan.policy();
    const bool by_steps =
        !policy.keeps_all() && policy.reducer->by_steps != nullptr && policy.reducer->by_steps(policy);
    for (size_t i = 0; i < slots->size(); ++i) {
      const int32_t layer = static_cast<int32_t>(i) / config().n_kv_heads;
      int32_t& s = (*slots)[i];
      if (!plan.slides(layer)) {
        s = plan.StoredSlots(n_prompt_, compressor.n_protected(), s);
      } else if (by_steps) {
        s = layout_.MostHeldOf(layer, n_prompt_);
      }
    }
    PromptRequest request;
    request.n = n_prompt_, request.window_rows = needs.window_rows, request.column_sums = needs.column_sums;
    request.n_aux = plan.n_aux();
    Reread reread;
    if (needs.reading.wanted) {
      KVC_RETURN_IF_ERROR(MakeReread(
          model_, needs.reading, std::vector<int32_t>(static_cast<size_t>(n_prompt_)), n_prompt_, &reread));
      request.reread = &reread;
    }
    Workspace w;
    PromptRun run;
    KVC_RETURN_IF_ERROR(w.chunk.Reserve(executor()->network(), request, memory_));
    KVC_RETURN_IF_ERROR(run.Begin(executor()->network(), request, memory_));
    KVC_RETURN_IF_ERROR(compressor.ReservePrompt(memory_, n_prompt_ + reread.Behind(), &w.choice));
    const int64_t codes = executor()->device()->StoreScratchBytes(layout_, n_prompt_, MostCodes(*slots));
    KVC_RETURN_IF_ERROR(w.choice.codes.Reserve(memory_, codes, "codes of one layer"));
    *layer_bytes = run.layer_bytes();
    *workspace = w.bytes() + run.bytes() - run.layer_bytes();
    compressor_ = std::move(fork.value());
    return {};
  }

  // Entries that are stored at once and may share scales or directions.
  int64_t MostCodes(const std::vector<int32_t>& slots) const {
    int64_t most = 0;
    const size_t g = static_cast<size_t>(config().n_kv_heads);
    for (size_t first = 0; first < slots.size(); first += g) {
      int64_t sum = 0;
      if (compressor_->slides(static_cast<int32_t>(first / g))) continue;
      for (size_t i = first; i < first + g; ++i) {
        sum += slots[i];
        most = std::max<int64_t>(most, slots[i]);
      }
      if (layout_.layer_books) most = std::max(most, sum);
    }
    return most;
  }

  // Of a head that shares the budget.
  int32_t LeastSlots(const std::vector<int32_t>& slots) const {
    int32_t least = n_prompt_;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (layout_.window(static_cast<int32_t>(i) / layout_.n_kv_heads) == 0)
        least = std::min(least, slots[i]);
    }
    return least;
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

  Growth GrowthOf(const std::vector<int32_t>& slots) const {
    const Policy& p = compressor_->policy();
    Growth growth;
    growth.slots = slots;
    growth.n_steps = params_.max_tokens - n_prompt_;
    growth.spread = p.allocator != nullptr && p.allocator->dynamic && LeastSlots(slots) < n_prompt_;
    const bool grows = p.keeps_all() || p.decode == DecodeMode::kGrow;
    if (grows && params_.max_tokens == kMaxContext) growth.n_steps = 0;  // no end was named
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
    return growth;
  }

  // As a StepRunner does. Angles grow with the sequence, and two tables are there while they do.
  Status PlanSteps(const Growth& growth, int64_t* workspace) {
    MemoryMeter counter(0, /*counting=*/true);
    const DeviceMemory memory{executor()->device(), &counter};
    Workspace w;
    w.angle_sets.resize(executor()->n_ropes());
    w.angles.resize(static_cast<size_t>(config().n_layers));
    const Network& network = executor()->network();
    KVC_RETURN_IF_ERROR(w.step.ReserveHeads(network, 1, memory));
    KVC_RETURN_IF_ERROR(Sampler(params_.sampler).Reserve(memory, config().vocab_size, &w.sample_weights));
    if (growth.n_steps > 0) {
      int32_t longest = 0, ring_slots = 0, begin = 0,
              shared = 0;  // the last two: of layers that do not slide
      for (size_t i = 0; i < growth.slots.size(); ++i) {
        longest = std::max(longest, growth.Last(i) + 1);
        if (layout_.window(static_cast<int32_t>(i) / layout_.n_kv_heads) == 0)
          begin = std::max(begin, growth.slots[i]), shared = std::max(shared, growth.Last(i) + 1);
        ring_slots = std::max(ring_slots, layout_.ring_slots(static_cast<int32_t>(i)));
      }
      StepShape shape{};
      shape.n_rows = 1;
      GrowShape(*executor(), layout_, compressor_->step_plan(), longest, ring_slots, &shape);
      KVC_RETURN_IF_ERROR(w.step.Reserve(network, 1, memory));
      KVC_RETURN_IF_ERROR(w.step.ReserveAttention(network, shape, memory));
      const int64_t end = std::min<int64_t>(int64_t{n_prompt_} + growth.n_steps, kMaxPosition);
      for (int64_t fed = n_prompt_ + 1, more = 0; fed <= end; fed += std::max<int64_t>(more, 1)) {
        const int64_t at = std::min<int64_t>(begin + fed - n_prompt_, shared);
        KVC_RETURN_IF_ERROR(ReserveSteps(executor(), memory, *compressor_, static_cast<int32_t>(at),
                                         ring_slots, static_cast<int32_t>(fed), &w));
        more = std::min(end - fed, std::max<int64_t>(64, fed / 64));
      }
    }
    *workspace = counter.peak();
    return {};
  }

  const Model& model_;
  SessionParams params_;
  const int32_t n_prompt_;
  const std::shared_ptr<MemoryMeter> counter_;
  const DeviceMemory memory_;
  std::unique_ptr<PageArenas> arenas_;
  std::unique_ptr<Compressor> compressor_;
  CacheLayout layout_;
  std::unique_ptr<KvCache> cache_;
  DeviceBuffer<float> hidden_;
  int64_t session_bytes_ = 0, prompt_records_ = 0;
};

Result<SessionPlan> Session::Plan(const std::shared_ptr<const Model>& model, const Policy* policy,
                                  const SessionParams& params, int32_t n_prompt) {
  return Planner(*model, params, n_prompt).Plan(ChosenPolicy(policy));
}

}  // namespace kvc

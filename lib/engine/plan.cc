// What a session would take. The buffers are laid out by the code that will take them, with a meter that only
// counts.
#include <algorithm>
#include <cmath>
#include <map>

#include "lib/engine/reread.h"
#include "lib/engine/session.h"

namespace kvc {

// Pages as this session has them: what is compared is what was dropped, not how much of a page is empty.
CacheConfig Session::FullCacheConfig(const Model& model, const Policy& policy, int32_t page_slots) {
  CacheConfig config;
  const ModelConfig& c = model.config();
  config.n_layers = c.n_layers, config.n_kv_heads = c.n_kv_heads, config.group = c.n_heads / c.n_kv_heads,
  config.head_dim = c.head_dim;
  config.page_slots = page_slots;
  config.raw = {static_cast<KvType>(std::min(policy.Int(OptionId::kKv), 2)), c.head_dim, 0};
  if (policy.Int(OptionId::kKv) > 2) config.raw.type = KvType::kF16;
  HeadFormat format;
  format.stored = config.raw;
  config.formats.assign(1, format);
  return config;
}

namespace {

// How long the heads are, and for how many steps they grow.
struct Growth {
  std::vector<int32_t> slots;  // [L * G] after the prompt
  std::vector<int32_t> caps;   // [L * G] before a step
  int32_t n_steps = 0;
  bool spread = false;      // the slots are averages: heads end anywhere in their last page
  int64_t layer_limit = 0;  // bytes of a layer after the prompt, 0: none
  int32_t n_least = 0;      // entries a head keeps whatever the limit
};

// Pages by size, as the cache pools them.
class PageCount {
 public:
  // The cache takes pages for a step a row at a time: one page for every head that uses the pool
  // (KvCache::ReserveStep).
  void Add(int64_t page_bytes, double at_prompt, double at_end, int32_t heads) {
    Pool& pool = pools_[page_bytes];
    pool.at_prompt += at_prompt;
    pool.at_end += std::max(at_end, at_prompt);
    pool.heads += heads;
  }
  // A layer that a limit makes smaller: of what it keeps only the bytes are known. While it is fitted two
  // versions of it are there, each at most as large as without the limit.
  void AddLimited(int64_t kept, int64_t unlimited) {
    limited_ += kept;
    fitting_ = std::max(fitting_, 2 * unlimited - kept);
  }
  int64_t FittingBytes() const { return fitting_; }
  int64_t PromptBytes() const {
    double bytes = static_cast<double>(limited_);
    for (const auto& [page_bytes, pool] : pools_)
      bytes += std::ceil(pool.at_prompt) * static_cast<double>(page_bytes);
    return static_cast<int64_t>(bytes);
  }
  int64_t EndBytes() const {
    double bytes = static_cast<double>(limited_);
    for (const auto& [page_bytes, pool] : pools_) {
      const double row = std::max(pool.heads, 1), rows = std::ceil((pool.at_end - pool.at_prompt) / row);
      bytes += std::ceil(pool.at_prompt + rows * row) * static_cast<double>(page_bytes);
    }
    return static_cast<int64_t>(bytes);
  }

 private:
  struct Pool {
    double at_prompt = 0, at_end = 0;
    int32_t heads = 0;
  };
  std::map<int64_t, Pool> pools_;
  int64_t limited_ = 0, fitting_ = 0;
};

// Entries of a head that left its tail when it holds n, in a cache that began with `slots`.
int32_t InMain(const HeadFormat& format, int32_t slots, int32_t n) {
  if (!format.codebook) return KvCache::MainAfterStore(format, n);
  const int32_t late = n - slots;
  return slots +
         (late < format.tail_slots ? 0 : ((late - format.tail_slots) / format.settle + 1) * format.settle);
}

// Pages of n entries, before they are whole ones.
double PagesOf(const CacheConfig& config, const Growth& growth, int32_t n) {
  const double page = config.page_slots;
  return growth.spread && n > 0 ? n / page + (page - 1) / (2 * page) : std::ceil(n / page);
}

// limited: the prompt's pages are counted already.
void CountHead(const CacheConfig& config, const Growth& growth, size_t i, bool limited, PageCount* count) {
  const HeadFormat& format = config.formats[i];
  const int32_t slots = growth.slots[i];
  const int64_t longest = int64_t{slots} + growth.n_steps - 1;  // before the last step
  const int32_t last = static_cast<int32_t>(std::min<int64_t>(longest, std::max(growth.caps[i], slots)));
  const int32_t now = InMain(format, slots, slots);
  // Pages of key channels are taken when one is filled, others before the entries they hold come.
  const int32_t end = growth.n_steps <= 0   ? now
                      : format.key_channels ? InMain(format, slots, last + 1)
                                            : InMain(format, slots, last) + format.settle;
  double at_prompt = PagesOf(config, growth, now), at_end = PagesOf(config, growth, end);
  // Where the last page ends is not known either.
  if (limited) at_prompt = 0, at_end = std::ceil((end - now) / static_cast<double>(config.page_slots));
  count->Add(KvCache::PageBytes(config, format), at_prompt, at_end, 1);
  if (format.tail_slots > 0 && !limited) count->Add(KvCache::TailBytes(config, format), 1, 1, 0);
  // Codebooks: as if no two vectors shared a direction.
  if (format.codebook) count->Add(KvCache::BookPageBytes(config), 2 * at_prompt, 2 * at_end, 0);
}

// Whether the limit makes the layer of heads [first, first + G) smaller than its slots. Counts what is left
// of it.
bool CountLimited(const CacheConfig& config, const Growth& growth, size_t first, PageCount* count) {
  if (growth.layer_limit <= 0) return false;
  double planned = 0;
  int64_t least = 0;
  for (size_t i = first; i < first + static_cast<size_t>(config.n_kv_heads); ++i) {
    const HeadFormat& format = config.formats[i];
    const int64_t beside = KvCache::HeadBytes(config, format, 0);
    const int64_t page = KvCache::HeadBytes(config, format, config.page_slots) - beside;
    planned +=
        PagesOf(config, growth, growth.slots[i]) * static_cast<double>(page) + static_cast<double>(beside);
    least += KvCache::HeadBytes(config, format, growth.n_least);
  }
  const int64_t unlimited = static_cast<int64_t>(std::ceil(planned)),
                most = std::max(growth.layer_limit, least);
  if (unlimited <= most) return false;
  count->AddLimited(most, unlimited);
  return true;
}

PageCount CountPages(const CacheConfig& config, const Growth& growth) {
  PageCount count;
  const size_t group = static_cast<size_t>(config.n_kv_heads);
  for (size_t first = 0; first < growth.slots.size(); first += group) {
    const bool limited = CountLimited(config, growth, first, &count);
    for (size_t i = first; i < first + group; ++i) CountHead(config, growth, i, limited, &count);
  }
  return count;
}

}  // namespace

Result<SessionPlan> Session::Plan(const std::shared_ptr<const Model>& model, const Policy* policy,
                                  const SessionParams& params, int32_t n_prompt) {
  auto counter = std::make_shared<MemoryMeter>(0, /*counting=*/true);
  Result<std::unique_ptr<Session>> made = CreateOn(model, policy, params, counter);
  if (!made.ok()) return made.status();
  Session& s = *made.value();
  if (n_prompt < 1 || n_prompt > s.params_.max_tokens) {
    return Error(Code::kInvalid, "the prompt to plan for has %d tokens; it may have 1 to max_tokens=%d",
                 n_prompt, s.params_.max_tokens);
  }
  SessionPlan plan;
  plan.weight_bytes = model->file().weight_bytes();
  int64_t prompt_workspace = 0, layer_bytes = 0;
  KVC_RETURN_IF_ERROR(s.PlanPrompt(n_prompt, &plan.slots, &prompt_workspace, &layer_bytes));

  const Policy& p = s.compressor_->policy();
  const CacheConfig& config = s.cache_->config();
  Growth growth;
  growth.slots = plan.slots;
  growth.n_steps = s.params_.max_tokens - n_prompt;
  growth.spread = p.allocator != nullptr && p.allocator->dynamic &&
                  *std::min_element(plan.slots.begin(), plan.slots.end()) < n_prompt;
  const bool grows = p.keeps_all() || p.decode == DecodeMode::kGrow;
  if (grows && s.params_.max_tokens == kMaxContext) growth.n_steps = 0;  // no end was named
  growth.caps = s.compressor_->caps();
  const int32_t slack = p.decode == DecodeMode::kReobserve ? p.Int(OptionId::kSlack) : 0;
  for (int32_t& cap : growth.caps) cap = grows ? kMaxContext : cap + slack;
  growth.layer_limit = s.compressor_->LayerLimit();
  growth.n_least = std::min(s.compressor_->n_protected(), n_prompt);
  const PageCount pages = CountPages(config, growth);
  plan.cache_bytes_prompt = pages.PromptBytes();
  plan.cache_bytes_peak = plan.cache_bytes_prompt + layer_bytes + pages.FittingBytes();
  plan.cache_bytes_end = pages.EndBytes();

  int32_t longest = 0;
  for (size_t i = 0; i < growth.slots.size(); ++i) {
    const int64_t end = int64_t{growth.slots[i]} + growth.n_steps;
    longest = std::max(longest, static_cast<int32_t>(std::min<int64_t>(
                                    end, int64_t{std::max(growth.caps[i], growth.slots[i])} + 1)));
  }
  int64_t step_workspace = counter->used();
  KVC_RETURN_IF_ERROR(s.PlanSteps(growth.slots, longest, n_prompt, growth.n_steps, &step_workspace));
  plan.workspace_bytes = std::max(prompt_workspace, step_workspace);
  const CacheConfig full = FullCacheConfig(*model, p, config.page_slots);
  const int64_t answer = s.params_.max_tokens == kMaxContext ? 0 : s.params_.max_tokens - n_prompt;
  const int64_t full_pages = (n_prompt + answer + full.page_slots - 1) / full.page_slots;
  plan.cache_bytes_full =
      static_cast<int64_t>(growth.slots.size()) * full_pages * KvCache::PageBytes(full, full.formats[0]);
  plan.total_bytes_peak =
      plan.weight_bytes + model->overhead_bytes() +
      std::max(prompt_workspace + plan.cache_bytes_peak, step_workspace + plan.cache_bytes_end);
  return plan;
}

// Lays out a prompt of n tokens as RunPrompt does, on a session that only counts.
Status Session::PlanPrompt(int32_t n, std::vector<int32_t>* slots, int64_t* workspace, int64_t* layer_bytes) {
  const ModelConfig& c = model_->config();
  MemoryMeter* counter = compressor_->meter();
  Result<std::unique_ptr<Compressor>> forked = compressor_->Fork();
  if (!forked.ok()) return forked.status();
  Compressor& compressor = *forked.value();
  PromptNeeds needs;
  KVC_RETURN_IF_ERROR(compressor.BeginPrompt(n, &needs));
  KVC_RETURN_IF_ERROR(compressor.PlanSlots(n, slots));
  for (int32_t& s : *slots) s = compressor.StoredSlots(n, compressor.n_protected(), s);
  PrefillRequest request;
  request.n = n, request.window_rows = needs.window_rows, request.column_sums = needs.column_sums;
  request.n_aux = compressor.n_aux();
  Reread reread;
  if (needs.reread) {
    KVC_RETURN_IF_ERROR(MakeReread(*model_, std::vector<int32_t>(static_cast<size_t>(n)), n, &reread));
    request.reread = &reread;
  }
  KVC_RETURN_IF_ERROR(forward_.ReservePrefill(c, request, counter));
  KVC_RETURN_IF_ERROR(compressor.ReservePrompt(n));
  *layer_bytes = forward_.layer_bytes();
  *workspace = counter->used() - *layer_bytes;
  forward_.FreePrefill();
  compressor_ = std::move(forked.value());
  return {};
}

// Lays out the scratch of the steps that bring the longest head to `longest`.
Status Session::PlanSteps(const std::vector<int32_t>& slots, int32_t longest, int32_t n_prompt,
                          int32_t n_steps, int64_t* workspace) {
  if (n_steps <= 0) return {};
  MemoryMeter* counter = compressor_->meter();
  const int32_t page = cache_->config().page_slots, begin = *std::max_element(slots.begin(), slots.end());
  const auto whole_pages = [&](int32_t n) { return (n + page - 1) / page * page; };
  for (int32_t at = whole_pages(begin + 1); at <= whole_pages(longest); at += page) {
    const int64_t fed =
        std::min<int64_t>(int64_t{n_prompt} + std::max(at - begin, 1), int64_t{n_prompt} + n_steps);
    KVC_RETURN_IF_ERROR(ReserveScratch(at, static_cast<int32_t>(fed), counter));
    *workspace = std::max(*workspace, counter->used());
  }
  if (n_steps < kMaxContext / 2)
    KVC_RETURN_IF_ERROR(ReserveScratch(whole_pages(longest), n_prompt + n_steps, counter));
  *workspace = std::max(*workspace, counter->used());
  return {};
}

}  // namespace kvc

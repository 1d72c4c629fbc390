// How a policy becomes storage: formats of the heads, slots of the heads, and the bytes they take.
#include <algorithm>
#include <cmath>

#include "lib/compress/budget.h"
#include "lib/compress/compressor.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr int32_t kDefaultResidual = 32;
constexpr int32_t kLeastBlock = 32;    // tokens over which a channel shares a scale (methods.md 4.3)
constexpr int32_t kSmallBudget = 256;  // below it pages have 16 slots (design.md 3)

// The largest x in [0, most] for which fits(x) holds, when it holds for every smaller one too; 0 at least.
template <typename F>
int64_t LargestThat(int64_t most, F&& fits) {
  int64_t low = 0, high = most + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

// [L, G]; a table per query head is averaged over the groups (methods.md 2.10).
std::vector<double> Compressor::ScoresPerKvHead() const {
  const size_t n = static_cast<size_t>(shape_.n_layers * shape_.n_kv_heads),
               group = head_scores_.values.size() / n;
  std::vector<double> scores(n, 0.0);
  for (size_t i = 0; i < n * group; ++i)
    scores[i / group] += head_scores_.values[i] / static_cast<double>(group);
  return scores;
}

// kv=mixed, [L, G].
std::vector<int32_t> Compressor::BitsOfHeads() const {
  const std::vector<double> scores = ScoresPerKvHead();
  if (!policy_.levels.empty()) return BitsByLevels(scores, policy_.levels);
  const std::vector<bool> high = HighPrecisionHeads(scores, policy_.Int(OptionId::kMedianMode) == 1);
  std::vector<int32_t> bits(scores.size());
  for (size_t i = 0; i < bits.size(); ++i)
    bits[i] = policy_.Int(high[i] ? OptionId::kHighBits : OptionId::kLowBits);
  return bits;
}

CacheConfig Compressor::MakeCacheConfig(int32_t expected_tokens) const {
  return FormatsFor(policy_.budget_kind == BudgetKind::kBytes   ? PageSlotsForBytes()
                    : BudgetFor(expected_tokens) < kSmallBudget ? 16
                                                                : 64);
}

CacheConfig Compressor::FormatsFor(int32_t page_slots) const {
  CacheConfig config;
  config.n_layers = shape_.n_layers, config.n_kv_heads = shape_.n_kv_heads, config.head_dim = shape_.head_dim;
  config.group = shape_.n_heads / shape_.n_kv_heads;
  config.n_aux = n_aux_;
  const bool key_channels = policy_.Int(OptionId::kKv) >= 3 && policy_.Int(OptionId::kKeyAxis) == 1;
  config.page_slots = key_channels ? std::max(page_slots, kLeastBlock) : page_slots;
  config.ordered = !policy_.keeps_all() && policy_.decode != DecodeMode::kGrow;
  const int32_t kv = policy_.Int(OptionId::kKv);
  const auto format_of_bits = [&](int32_t bits) {
    HeadFormat format;
    format.stored = {bits == 16  ? KvType::kF16
                     : bits == 8 ? KvType::kInt8
                                 : KvType::kInt4,
                     shape_.head_dim, bits == 16 ? 0 : policy_.Int(OptionId::kQuantGroup)};
    const int32_t residual = policy_.Int(OptionId::kResidual);
    if (bits < 16 && key_channels) format.key_channels = true, format.settle = config.page_slots;
    if (bits < 16)
      format.tail_slots = format.settle + (residual >= 0                      ? residual
                                           : policy_.scorer == &kScorerWindow ? policy_.Int(OptionId::kWindow)
                                                                              : kDefaultResidual);
    return format;
  };
  HeadFormat format;
  format.stored = {static_cast<KvType>(std::min(kv, 2)), shape_.head_dim, 0};
  if (kv == 3) format = format_of_bits(8);
  if (kv == 4) format = format_of_bits(4);
  if (codebook_) {
    const int32_t tail =
        policy_.Int(OptionId::kTail) < 0 ? policy_.Int(OptionId::kWindow) : policy_.Int(OptionId::kTail);
    format = HeadFormat();
    format.codebook = true;
    format.theta_key = static_cast<float>(policy_.Real(OptionId::kThetaK)),
    format.theta_value = static_cast<float>(policy_.Real(OptionId::kThetaV));
    format.tail_slots = std::max(2 * tail, 1), format.settle = std::max(tail, 1);
    config.seen_masks = QueryHeadsSeeTheirOwn();
    config.layer_books = policy_.Int(OptionId::kSpindleScope) == 1;
  }
  config.formats.assign(static_cast<size_t>(shape_.n_layers * shape_.n_kv_heads), format);
  config.raw = {kv <= 2 ? static_cast<KvType>(kv) : KvType::kF16, shape_.head_dim, 0};
  if (kv == 5) {
    const std::vector<int32_t> bits = BitsOfHeads();
    for (size_t i = 0; i < config.formats.size(); ++i) config.formats[i] = format_of_bits(bits[i]);
  }
  return config;
}

// Whether an entry may be kept for some query heads of a group only (SpindleKV).
bool Compressor::QueryHeadsSeeTheirOwn() const {
  return codebook_ && policy_.scorer == &kScorerWindowQhead && policy_.Int(OptionId::kSpindleGqa) == 0 &&
         shape_.n_heads > shape_.n_kv_heads;
}

// ---- budgets ----

Protected Compressor::ProtectFor(int32_t budget) const { return policy_.scorer->protect(policy_, budget); }

int32_t Compressor::BudgetFor(int32_t n_tokens) const {
  if (policy_.keeps_all()) return n_tokens;
  switch (policy_.budget_kind) {
    case BudgetKind::kSlots:
      return static_cast<int32_t>(policy_.budget);
    case BudgetKind::kRatio: {  // methods.md 1.1: C = max(w + 1, floor(rho n))
      int32_t budget = std::max(1, static_cast<int32_t>(std::floor(policy_.budget * n_tokens)));
      const Protected p = ProtectFor(budget);
      return std::max(budget, p.n_sink + p.n_recent + 1);
    }
    case BudgetKind::kBytes:
      return SlotsForBytes(FormatsFor(PageSlotsForBytes()), n_tokens);
    case BudgetKind::kNone:
      break;
  }
  if (policy_.table.empty() || policy_.allocator->needs != kNeedsTable) return n_tokens;
  int64_t sum = 0;
  for (int32_t slots : policy_.table) sum += slots;
  return static_cast<int32_t>(sum / static_cast<int64_t>(policy_.table.size()));
}

AllocateInput Compressor::AllocationFor(int32_t budget, int32_t n_tokens) const {
  const Protected p = ProtectFor(budget);
  return {policy_, shape_.n_layers,       shape_.n_heads,      shape_.n_kv_heads, n_tokens,
          budget,  p.n_sink + p.n_recent, head_scores_.values, head_scores_.alpha};
}

Status Compressor::PlanSlots(int32_t n_tokens, std::vector<int32_t>* slots) const {
  const size_t n_heads = static_cast<size_t>(shape_.n_layers * shape_.n_kv_heads);
  slots->assign(n_heads, n_tokens);
  if (policy_.keeps_all()) return {};
  const AllocateInput in = AllocationFor(BudgetFor(n_tokens), n_tokens);
  if (n_tokens <= in.n_protected) return {};
  if (policy_.budget_kind != BudgetKind::kBytes) {
    KVC_RETURN_IF_ERROR(ValidateSlots(policy_, in.budget));
    return PlanFor(in, slots);
  }
  const Status status = ValidateSlots(policy_, in.budget);
  if (!status.ok()) {
    return Error(Code::kInvalid, "budget_bytes = %.0f is %d slots per KV head of this model: %s",
                 policy_.budget, in.budget, status.message().c_str());
  }
  const CacheConfig config = FormatsFor(PageSlotsForBytes());
  KVC_RETURN_IF_ERROR(policy_.allocator->shares_bytes ? PlanBytes(config, in, slots) : PlanFor(in, slots));
  const double bytes = static_cast<double>(BytesOf(config, in, *slots));
  if (bytes <= policy_.budget) return {};
  return Error(Code::kInvalid, "budget_bytes = %.0f, but the slots of allocator %s take %.0f bytes",
               policy_.budget, policy_.allocator->name, bytes);
}

Status Compressor::PlanFor(const AllocateInput& in, std::vector<int32_t>* slots) const {
  KVC_RETURN_IF_ERROR(policy_.allocator->plan(in, slots->data()));
  for (int32_t& s : *slots) s = std::min(s + in.n_protected, in.n);
  return {};
}

// ---- bytes ----

int32_t Compressor::StoredSlots(int32_t n_tokens, int32_t n_protected, int32_t slots) const {
  if (!QueryHeadsSeeTheirOwn()) return slots;
  const int64_t group = shape_.n_heads / shape_.n_kv_heads, shared = std::min(slots, n_protected);
  return static_cast<int32_t>(std::min<int64_t>(n_tokens, group * (slots - shared) + shared));
}

// At most what the cache holds after a prompt whose heads keep `slots`, whole pages counted. Where scores
// split the slots of a layer no one knows whose last page is full: each head loses as much as it can.
int64_t Compressor::BytesOf(const CacheConfig& config, const AllocateInput& in,
                            const std::vector<int32_t>& slots) const {
  const auto bytes_of = [&](size_t head, int32_t n) {
    return KvCache::HeadBytes(config, config.formats[head], StoredSlots(in.n, in.n_protected, n));
  };
  const size_t group = static_cast<size_t>(shape_.n_kv_heads);
  int64_t bytes = 0;
  for (size_t first = 0; first < slots.size(); first += group) {
    int64_t planned = 0, everything = 0, main = 0, tails = 0, page = 0;
    for (size_t i = first; i < first + group; ++i) {
      const HeadFormat& format = config.formats[i];
      planned += bytes_of(i, slots[i]);
      everything += bytes_of(i, in.n);
      // The part that is always kept fills the tail first; the rest of the slots may go to any head.
      const int32_t late = format.codebook ? 0 : std::max(format.tail_slots - format.settle, 0);
      main += slots[i] - std::min({late, in.n_protected, slots[i]});
      tails += bytes_of(i, 0);
      page = std::max(page, KvCache::PageBytes(config, format) +
                                (format.codebook ? 2 * KvCache::BookPageBytes(config) : 0));
    }
    const int64_t waste = shape_.n_kv_heads * int64_t{config.page_slots - 1};
    bytes += policy_.allocator->dynamic
                 ? std::min(everything, tails + (main + waste) / config.page_slots * page)
                 : planned;
  }
  return bytes;
}

// Small pages where equal shares of the bytes are few slots; the same for every prompt of a session.
int32_t Compressor::PageSlotsForBytes() const {
  const CacheConfig config = FormatsFor(16);
  double bytes = 0;
  for (const HeadFormat& format : config.formats)
    bytes += static_cast<double>(KvCache::HeadBytes(config, format, kSmallBudget));
  return bytes > policy_.budget ? 16 : 64;
}

// The largest average budget whose slots fit the bytes. Where bytes are shared: the largest equal share.
int32_t Compressor::SlotsForBytes(const CacheConfig& config, int32_t n_tokens) const {
  std::vector<int32_t> slots(config.formats.size());
  const auto fits = [&](int32_t budget, int32_t n) {
    const AllocateInput in = AllocationFor(budget, n);
    const bool equal = policy_.allocator->shares_bytes || budget <= in.n_protected || n <= in.n_protected;
    if (equal || !PlanFor(in, &slots).ok()) std::fill(slots.begin(), slots.end(), std::min(budget, n));
    return static_cast<double>(BytesOf(config, in, slots)) <= policy_.budget;
  };
  if (!fits(n_tokens, n_tokens))
    return static_cast<int32_t>(
        LargestThat(n_tokens, [&](int64_t c) { return fits(static_cast<int32_t>(c), n_tokens); }));
  const int64_t any =
      LargestThat(kUnbounded, [&](int64_t budget) { return fits(static_cast<int32_t>(budget), kUnbounded); });
  return std::max(static_cast<int32_t>(any), n_tokens);
}

// methods.md 4.4 (b): bytes are shared by weight, an entry costs what its head stores. The part that is
// always kept comes first, at its own precision. Pages are whole, so the bytes shared are the most whose
// pages fit.
Status Compressor::PlanBytes(const CacheConfig& config, AllocateInput in, std::vector<int32_t>* slots) const {
  const int64_t total = static_cast<int64_t>(std::min(policy_.budget, 35184372088831.0));  // 2^45 - 1
  std::fill(slots->begin(), slots->end(), in.n);
  if (BytesOf(config, in, *slots) <= total) return {};
  std::vector<int64_t> cost(config.formats.size());
  for (size_t i = 0; i < cost.size(); ++i)
    cost[i] = KvCache::PageBytes(config, config.formats[i]) / config.page_slots;
  in.entry_bytes = cost;
  in.candidate_bytes = LargestThat(total, [&](int64_t bytes) {
    in.candidate_bytes = bytes;
    return !PlanFor(in, slots).ok() || BytesOf(config, in, *slots) <= total;
  });
  return PlanFor(in, slots);
}

}  // namespace kvc

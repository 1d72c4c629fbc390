// How a policy becomes storage: formats of the heads, slots of the heads, and the bytes they take.
#include <algorithm>
#include <cmath>

#include "lib/compress/budget.h"
#include "lib/compress/method_table.h"
#include "lib/compress/storage_plan.h"
#include "lib/ops/step_ops.h"

namespace kvc {
namespace {

constexpr int32_t kDefaultResidual = 32;
constexpr int32_t kLeastBlock = 32;  // tokens over which a channel shares a scale (methods.md 4.3)
// Average budgets below which pages have 4 and 16 slots (design.md 3 has the second): at 12 slots a head,
// pages of 16 would cost a third more than what was promised, and heads of their own length up to two thirds.
constexpr int32_t kTinyBudget = 128, kSmallBudget = 256, kTinyPage = 4;
// Of budget_bytes, what the newest entries may take that wait for their codes, where a policy leaves that
// open.
constexpr double kResidualShare = 1.0 / 8;

bool KeysByChannel(const Policy& policy) {
  return policy.Int(OptionId::kKv) >= kStoreInt8 && policy.Int(OptionId::kKeyAxis) == 1;
}

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

StoragePlan::StoragePlan(const Policy& policy, const ModelShape& shape, HeadScores scores, bool slides)
    : policy_(policy),
      shape_(shape),
      head_scores_(std::move(scores)),
      ranks_(slides || policy.positions == PositionMode::kInCache) {
  const size_t n_scores = head_scores_.values.size() / static_cast<size_t>(std::max(shape_.n_layers, 1));
  for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
    places_.push_back(static_cast<int32_t>(sharing_.size()));
    if (this->slides(layer)) continue;
    sharing_.push_back(layer);
    const auto row = head_scores_.values.begin() + static_cast<std::ptrdiff_t>(n_scores) * layer;
    sharing_scores_.insert(sharing_scores_.end(), row, row + static_cast<std::ptrdiff_t>(n_scores));
  }
  if (sharing_.size() < places_.size()) {
    // Who scores by all rows of a text reads all of it again, from its first token.
    const int32_t rows = ReplayRows(shape_.max_tokens);
    window_slack_ = kTakenBack + (rows < shape_.max_tokens ? rows : 0);
  }
  if (policy.keeps_all()) return;
  const Scorer& scorer = *policy.scorer;
  scorer_aux_ = n_aux_ = scorer.n_aux == nullptr ? 0 : scorer.n_aux(policy);
  if (policy.reducer->kind == MergeKind::kNone || policy.n_rest() > 0) return;
  const Accumulates has = scorer.accumulates == nullptr ? Accumulates::kNothing : scorer.accumulates(policy);
  merge_sums_ = has != Accumulates::kNothing ? 0 : n_aux_++;
  if (policy.reducer->kind == MergeKind::kIntoNext)
    merge_counts_ = has == Accumulates::kSumAndCount ? 1 : n_aux_++;
}

Result<StoragePlan> StoragePlan::Create(const Policy& policy, const ModelShape& shape, HeadScores scores,
                                        bool slides) {
  StoragePlan plan(policy, shape, std::move(scores), slides);
  plan.SettleResidual();
  const Status status = plan.Validate();
  if (status.ok()) return plan;
  const double enough = policy.budget_kind == BudgetKind::kBytes ? plan.EnoughBytes(slides) : 0;
  if (enough == 0) return status;
  return Error(status.code(), "%s; budget_bytes=%.0fKiB would do with these options",
               status.message().c_str(), enough / 1024);
}

// A budget of bytes that this policy could have, whole KiB, larger than the least one by hardly more than the
// pages of a slot of every head. 0: the bytes are not what it lacks.
double StoragePlan::EnoughBytes(bool slides) const {
  constexpr double kMost = 1099511627776.0;
  const auto does = [&](int64_t kib) {
    StoragePlan plan(policy_, shape_, head_scores_, slides);
    plan.policy_.budget = static_cast<double>(kib) * 1024;
    return plan.Validate().ok();
  };
  int64_t low = std::max<int64_t>(static_cast<int64_t>(policy_.budget) / 1024, 1), high = low;
  while (!does(high)) {
    if (static_cast<double>(high) * 1024 > kMost) return 0;
    low = high, high *= 2;
  }
  while (high - low > std::max<int64_t>(high / 64, 1)) {
    const int64_t middle = low + (high - low) / 2;
    (does(middle) ? high : low) = middle;
  }
  return static_cast<double>(high) * 1024;
}

int32_t Residual(const Policy& policy) {
  const int32_t given = policy.Int(OptionId::kResidual);
  if (given >= 0) return given;
  const bool own = policy.scorer != nullptr && policy.scorer->residual != nullptr;
  return own ? policy.scorer->residual(policy) : kDefaultResidual;
}

// Pages of keys that are coded by channel are whole, so what is no page stays as it is.
bool StoragePlan::HasLateRings() const {
  return policy_.compresses_once() && policy_.quantises() && !KeysByChannel(policy_);
}

// methods.md 4.3. A number from here on, which outlives a change of the budget.
void StoragePlan::SettleResidual() {
  double& residual = policy_.options[static_cast<int>(OptionId::kResidual)];
  if (residual >= 0 || policy_.budget_kind != BudgetKind::kBytes || !policy_.quantises()) return;
  if (HasLateRings()) return;  // they come behind the budget
  const double entry = 2.0 * shape_.head_dim * sizeof(uint16_t) * shape_.n_kv_heads_total(),
               afforded = std::floor(kResidualShare * policy_.budget / entry);
  residual = std::min(afforded, static_cast<double>(Residual(policy_)));
}

Status StoragePlan::Validate() const {
  if (shape_.page_slots > 0 && shape_.page_slots < LeastPageSlots())
    return Error(Code::kInvalid, "pages of %d slots; this policy has %d at least", shape_.page_slots,
                 LeastPageSlots());
  const int32_t group = policy_.Int(OptionId::kQuantGroup);
  if (policy_.quantises() && shape_.head_dim % group != 0) {
    int32_t fits = std::min(group, shape_.head_dim) / 4 * 4;  // head sizes are multiples of 8
    while (fits > 4 && shape_.head_dim % fits != 0) fits -= 4;
    return Error(Code::kInvalid, "quant_group=%d does not divide the head size %d of this model; %d does",
                 group, shape_.head_dim, fits);
  }
  if (policy_.keeps_all()) return CheckHeadScores(policy_, shape_, head_scores_);
  if (ranks_ && policy_.Int(OptionId::kRereadPart) > 0)  // pos_mode=incache was refused with the policy
    return Error(
        Code::kUnsupported,
        "reread_part moves queries behind their part, and on_full=slide counts entries of a head: use "
        "on_full=evict or reread_part=0");
  if (sharing_.empty()) {
    return Error(
        Code::kUnsupported,
        "every layer of this model attends to its newest %d tokens only and holds no more than those: there "
        "is nothing that %s could compress (use policy full, or max_tokens up to %d)",
        *std::max_element(shape_.windows.begin(), shape_.windows.end()), policy_.method->name,
        *std::min_element(shape_.windows.begin(), shape_.windows.end()));
  }
  KVC_RETURN_IF_ERROR(CheckHeadScores(policy_, shape_, head_scores_));
  // What the heads of a layer drop together they hold in the same places.
  if (one_set() && evicts_at_steps() && policy_.Int(OptionId::kKv) == kStoreMixed) {
    const std::vector<int32_t> bits = BitsOfHeads();
    const size_t n_raw = static_cast<size_t>(std::count(bits.begin(), bits.end(), 16));
    if (n_raw > 0 && n_raw < bits.size())
      return Error(Code::kInvalid,
                   "scorer %s drops one set of tokens for a whole layer, and heads of 16 bits keep theirs in "
                   "other places than heads of fewer: use bits of 8 and 4 only, or decode=grow",
                   policy_.scorer->name);
  }
  if (codebook() && shape_.n_heads / shape_.n_kv_heads > 32)
    return Error(Code::kUnsupported, "codebooks have room for 32 query heads per KV head");
  const size_t n_heads = static_cast<size_t>(shape_.n_kv_heads_total());
  if ((policy_.allocator->needs & kNeedsTable) != 0 && policy_.table.size() != n_heads) {
    return Error(Code::kInvalid, "method table needs %d x %d slots (layers x KV heads), it got %zu",
                 shape_.n_layers, shape_.n_kv_heads, policy_.table.size());
  }
  // Budgets that no prompt can make legal are refused now and not at the first prefill.
  std::vector<int32_t> slots;
  return PlanSlots(kUnbounded, &slots);
}

// Of the layers that share the budget, [., G]; a table per query head is averaged over the groups
// (methods.md 2.10).
std::vector<double> StoragePlan::ScoresPerKvHead() const {
  const size_t n = sharing_.size() * static_cast<size_t>(shape_.n_kv_heads),
               group = n == 0 ? 0 : sharing_scores_.size() / n;
  std::vector<double> scores(n, 0.0);
  for (size_t i = 0; i < n * group; ++i) scores[i / group] += sharing_scores_[i] / static_cast<double>(group);
  return scores;
}

// kv=mixed, of the same heads.
std::vector<int32_t> StoragePlan::BitsOfHeads() const {
  const std::vector<double> scores = ScoresPerKvHead();
  if (scores.empty()) return {};
  if (!policy_.levels.empty()) return BitsByLevels(scores, policy_.levels);
  const std::vector<bool> high = HighPrecisionHeads(scores, policy_.Int(OptionId::kMedianMode) == 1);
  std::vector<int32_t> bits(scores.size());
  for (size_t i = 0; i < bits.size(); ++i)
    bits[i] = policy_.Int(high[i] ? OptionId::kHighBits : OptionId::kLowBits);
  return bits;
}

int32_t StoragePlan::LeastPageSlots() const {
  return KeysByChannel(policy_) ? kLeastBlock : policy_.method->reads_pages ? kLeastReadPage : kTinyPage;
}

int32_t StoragePlan::PageSlots(int32_t expected_tokens) const {
  if (shape_.page_slots > 0) return shape_.page_slots;
  const bool by_bytes = policy_.budget_kind == BudgetKind::kBytes;
  const int32_t average = by_bytes ? 0 : BudgetFor(expected_tokens);
  const auto below = [&](int32_t budget, int32_t slots) {
    return by_bytes ? !BytesHold(budget, slots) : average < budget;
  };
  const int32_t slots = policy_.method->reads_pages                             ? kLeastReadPage
                        : !policy_.keeps_all() && below(kTinyBudget, kTinyPage) ? kTinyPage
                        : below(kSmallBudget, 16)                               ? 16
                                                                                : 64;
  return std::max(slots, LeastPageSlots());
}

namespace {

// The layout while it is made: formats are added when they are new.
class Layouter {
 public:
  Layouter(const StoragePlan& plan, int32_t page_slots, bool ranks) : policy_(plan.policy()) {
    layout_.n_layers = plan.shape().n_layers, layout_.n_kv_heads = plan.shape().n_kv_heads;
    layout_.head_dim = plan.shape().head_dim, layout_.group = plan.shape().group();
    layout_.n_aux = plan.n_aux();
    layout_.page_slots = page_slots;
    layout_.seen_masks = plan.query_heads_see_their_own();
    layout_.has_rest = policy_.n_rest() > 0;
    layout_.late_rings = plan.HasLateRings();
    entry_.d = layout_.head_dim, entry_.n_aux = layout_.n_aux, entry_.seen_masks = layout_.seen_masks,
    entry_.ranks = ranks;
    entry_.slots = page_slots, entry_.packed = page_slots == kTinyPage;
    entry_.key_bounds = policy_.method->reads_pages;
    const int32_t kv = policy_.Int(OptionId::kKv);
    raw_ = entry_;
    raw_.type = kv <= kStoreBf16 ? static_cast<KvType>(kv) : KvType::kF16;
  }

  // held: what the head holds whatever comes, where it has a window.
  HeadFormat OfBits(int32_t bits, int32_t held = INT32_MAX) {
    HeadFormat head;
    PageFormat f = entry_;
    f.type = bits == 16 ? KvType::kF16 : bits == 8 ? KvType::kInt8 : KvType::kInt4;
    if (bits == 16) return head.main = Format(f), head;
    f.group = policy_.Int(OptionId::kQuantGroup);
    const int32_t values = policy_.Int(OptionId::kKvValues);
    if (values != kValuesSame) f.value_bits = values == kValuesInt8 ? 8 : values == kValuesInt4 ? 4 : 2;
    if (f.value_bits == bits) f.value_bits = 0;
    if (KeysByChannel(policy_)) f.coding = EntryCoding::kKeyChannels, head.settle = layout_.page_slots;
    head.main = Format(f);
    head.ring = Ring(head.settle + std::min(Residual(policy_), held));
    return head;
  }

  HeadFormat Plain() {
    HeadFormat head;
    head.main = Format(raw_);
    return head;
  }

  HeadFormat Codebook() {
    const int32_t tail =
        policy_.Int(OptionId::kTail) < 0 ? policy_.Int(OptionId::kWindow) : policy_.Int(OptionId::kTail);
    HeadFormat head;
    head.theta_key = static_cast<float>(policy_.Real(OptionId::kThetaK)),
    head.theta_value = static_cast<float>(policy_.Real(OptionId::kThetaV));
    head.magnitudes = policy_.Flag(OptionId::kSpindleMagnitude);
    head.settle = std::max(tail, 1);
    PageFormat f = entry_;
    f.coding = EntryCoding::kCodebook;
    head.main = Format(f);
    head.ring = Ring(std::max(2 * tail, 1));
    PageFormat directions;
    directions.coding = EntryCoding::kDirections, directions.type = KvType::kF32;
    directions.d = layout_.head_dim, directions.slots = layout_.page_slots;
    layout_.directions = Format(directions);
    layout_.layer_books = policy_.Int(OptionId::kSpindleScope) == 1;
    if (policy_.Int(OptionId::kSpindleCode) == 1) return head;
    PageFormat plain = raw_;
    head.plain = Format(plain);
    plain.seen_masks = false;
    head.plain_all = Format(plain);
    return head;
  }

  // Heads of layers with windows: nobody chooses from what they hold, so an entry is its key, value and
  // position. Mixed precisions are a question of worth, which these heads are not asked: they get the best
  // there is. Entries leave what is coded: no more than `held`, the window and its slack, stay as they came.
  HeadFormat OfWindow(int32_t held) {
    for (PageFormat* f : {&entry_, &raw_}) f->n_aux = 0, f->seen_masks = f->ranks = f->key_bounds = false;
    const int32_t kv = policy_.Int(OptionId::kKv);
    if (kv == kStoreInt8 || kv == kStoreInt4) return OfBits(kv == kStoreInt8 ? 8 : 4, held);
    if (kv != kStoreMixed) return Plain();
    int32_t bits = policy_.levels.empty() ? policy_.Int(OptionId::kHighBits) : 4;
    for (const BitsLevel& level : policy_.levels) bits = std::max(bits, level.bits);
    return OfBits(bits, held);
  }

  CacheLayout Finish(std::vector<HeadFormat> heads) {
    layout_.heads = std::move(heads);
    return std::move(layout_);
  }

 private:
  int32_t Format(PageFormat f) {
    for (size_t i = 0; i < layout_.formats.size(); ++i) {
      if (layout_.formats[i] == f) return static_cast<int32_t>(i);
    }
    f.Lay();
    layout_.formats.push_back(f);
    return static_cast<int32_t>(layout_.formats.size()) - 1;
  }
  int32_t Ring(int32_t slots) {
    PageFormat f = raw_;
    f.slots = slots, f.key_bounds = false;
    return Format(f);
  }
  const Policy& policy_;
  CacheLayout layout_;
  PageFormat entry_, raw_;
};

}  // namespace

CacheLayout StoragePlan::LayoutFor(int32_t page_slots) const {
  Layouter make(*this, page_slots, ranks_);
  const size_t g = static_cast<size_t>(shape_.n_kv_heads), n = sharing_.size() * g;
  const int32_t kv = policy_.Int(OptionId::kKv);
  std::vector<HeadFormat> heads;
  if (codebook()) {
    heads.assign(n, make.Codebook());
  } else if (kv == kStoreMixed) {
    for (int32_t bits : BitsOfHeads()) heads.push_back(make.OfBits(bits));
  } else {
    heads.assign(n, kv == kStoreInt8 ? make.OfBits(8) : kv == kStoreInt4 ? make.OfBits(4) : make.Plain());
  }
  if (sharing_.size() == places_.size()) return make.Finish(std::move(heads));
  std::vector<HeadFormat> all;
  for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
    const auto first = heads.begin() + static_cast<std::ptrdiff_t>(g) * PlaceOf(layer);
    if (slides(layer)) {
      all.insert(all.end(), g, make.OfWindow(HeldInWindow(layer)));
    } else {
      all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(g));
    }
  }
  CacheLayout layout = make.Finish(std::move(all));
  layout.windows = shape_.windows, layout.window_slack = window_slack_;
  return layout;
}

bool StoragePlan::query_heads_see_their_own() const {
  return codebook() && policy_.scorer->per_query_head && policy_.Int(OptionId::kSpindleGqa) == 0 &&
         shape_.n_heads > shape_.n_kv_heads;
}

// ---- budgets ----

int32_t StoragePlan::BudgetFor(int32_t n_tokens) const {
  if (policy_.keeps_all()) return n_tokens;
  switch (policy_.budget_kind) {
    case BudgetKind::kSlots:
      return static_cast<int32_t>(policy_.budget);
    case BudgetKind::kRatio: {  // methods.md 1.1: C = max(w + 1, floor(rho n))
      // 29 % of 100 are 29, and 28.999999999999996 in doubles.
      const double share = policy_.budget * n_tokens * (1 + 1e-12);
      int32_t budget = std::max(1, static_cast<int32_t>(std::floor(share)));
      for (;;) {  // what is always kept may grow with the budget, by half of it at most
        const Protected p = ProtectFor(budget);
        const int32_t kept = p.n_sink + p.n_recent + policy_.n_rest();
        if (budget > kept) return budget;
        budget = kept + 1;
      }
    }
    case BudgetKind::kBytes:
      return SlotsForBytes(LayoutFor(PageSlots(n_tokens)), n_tokens);
    case BudgetKind::kNone:
      break;
  }
  if (policy_.table.empty() || policy_.allocator->needs != kNeedsTable) return n_tokens;
  int64_t sum = 0;
  for (size_t i = 0; i < policy_.table.size(); ++i)
    sum += slides(static_cast<int32_t>(i) / shape_.n_kv_heads) ? 0 : policy_.table[i];
  return static_cast<int32_t>(sum / (static_cast<int64_t>(sharing_.size()) * shape_.n_kv_heads));
}

AllocateInput StoragePlan::AllocationFor(int32_t budget, int32_t n_tokens) const {
  const Protected p = ProtectFor(budget);
  const int32_t n_protected = p.n_sink + p.n_recent + policy_.n_rest();
  AllocateInput in{policy_,           static_cast<int32_t>(sharing_.size()),
                   shape_.n_heads,    shape_.n_kv_heads,
                   n_tokens,          budget,
                   n_protected,       sharing_scores_,
                   head_scores_.alpha};
  if (sharing_.size() < places_.size()) in.layers = sharing_;
  return in;
}

// What heads of layers with windows hold of n tokens.
void StoragePlan::FillWindows(int32_t n_tokens, std::vector<int32_t>* slots) const {
  for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
    if (!slides(layer)) continue;
    std::fill_n(slots->begin() + std::ptrdiff_t{layer} * shape_.n_kv_heads, shape_.n_kv_heads,
                std::min(n_tokens, HeldInWindow(layer)));
  }
}

Status StoragePlan::PlanSlots(int32_t n_tokens, std::vector<int32_t>* slots, Span<const int32_t> room) const {
  slots->assign(static_cast<size_t>(shape_.n_kv_heads_total()), n_tokens);
  FillWindows(n_tokens, slots);
  if (policy_.keeps_all()) return {};
  AllocateInput in = AllocationFor(BudgetFor(n_tokens), n_tokens);
  if (n_tokens <= in.n_protected) return {};
  if (policy_.budget_kind != BudgetKind::kBytes) {
    in.room = room;
    KVC_RETURN_IF_ERROR(ValidateSlots(policy_, in.budget));
    return PlanFor(in, slots);
  }
  const Status status = ValidateSlots(policy_, in.budget);
  const CacheLayout layout = LayoutFor(PageSlots(n_tokens));
  if (!status.ok() && sharing_.size() < places_.size()) {
    return Error(Code::kInvalid,
                 "budget_bytes = %.0f is %d slots per KV head of the %zu layers that see all tokens, for the "
                 "windows of "
                 "the other %zu take %lld bytes: %s",
                 policy_.budget, in.budget, sharing_.size(), places_.size() - sharing_.size(),
                 static_cast<long long>(WindowBytes(layout, n_tokens)), status.message().c_str());
  }
  if (!status.ok()) {
    return Error(Code::kInvalid, "budget_bytes = %.0f is %d slots per KV head of this model: %s",
                 policy_.budget, in.budget, status.message().c_str());
  }
  KVC_RETURN_IF_ERROR(policy_.allocator->shares_bytes ? PlanBytes(layout, in, slots) : PlanFor(in, slots));
  const double bytes = static_cast<double>(BytesOf(layout, in, *slots));
  if (bytes <= policy_.budget) return {};
  return Error(Code::kInvalid, "budget_bytes = %.0f, but the slots of allocator %s take %.0f bytes",
               policy_.budget, policy_.allocator->name, bytes);
}

Status StoragePlan::PlanCaps(int32_t budget, std::vector<int32_t>* slots) const {
  if (policy_.budget_kind != BudgetKind::kRatio) return PlanSlots(kUnbounded, slots);
  slots->assign(static_cast<size_t>(shape_.n_kv_heads_total()), 0);
  return PlanFor(AllocationFor(budget, kUnbounded), slots);
}

Status StoragePlan::PlanFor(const AllocateInput& in, std::vector<int32_t>* slots) const {
  const size_t g = static_cast<size_t>(shape_.n_kv_heads);
  std::vector<int32_t> counts(sharing_.size() * g);
  KVC_RETURN_IF_ERROR(policy_.allocator->plan(in, counts.data()));
  FillWindows(in.n, slots);
  for (size_t i = 0; i < counts.size(); ++i)
    (*slots)[static_cast<size_t>(sharing_[i / g]) * g + i % g] = std::min(counts[i] + in.n_protected, in.n);
  return {};
}

Status StoragePlan::SetBudget(int32_t slots, int32_t n_tokens) {
  if (policy_.keeps_all())
    return Error(Code::kUnsupported, "policy %s keeps everything: it has no rule to drop entries by",
                 policy_.method->name);
  if ((policy_.allocator->needs & kNeedsTable) != 0)
    return Error(Code::kUnsupported,
                 "policy %s has slots of its own for every head, and no average to change",
                 policy_.method->name);
  const double bytes = policy_.budget_kind == BudgetKind::kBytes ? policy_.budget : replaced_bytes_;
  StoragePlan by_slots = *this, by_bytes = *this;
  by_slots.policy_.budget_kind = BudgetKind::kSlots, by_slots.policy_.budget = slots;
  by_bytes.policy_.budget_kind = BudgetKind::kBytes, by_bytes.policy_.budget = bytes;
  KVC_RETURN_IF_ERROR(ValidatePolicy(by_slots.policy_));
  bool more = false;
  if (bytes > 0) {
    // For every length there may be: that of now may fit both.
    std::vector<int32_t> planned;
    KVC_RETURN_IF_ERROR(by_slots.PlanSlots(kUnbounded, &planned));
    const CacheLayout layout = by_bytes.LayoutFor(by_bytes.PageSlots(n_tokens));
    const AllocateInput in = by_slots.AllocationFor(slots, kUnbounded);
    more = static_cast<double>(by_slots.BytesOf(layout, in, planned)) > bytes;
  }
  policy_ = std::move((more ? by_bytes : by_slots).policy_);
  replaced_bytes_ = more ? 0 : bytes;
  return {};
}

Status StoragePlan::SetReplacedBytes(double bytes) {
  const bool good = bytes == 0 || (policy_.budget_kind == BudgetKind::kSlots && !policy_.keeps_all() &&
                                   bytes >= 1 && bytes <= kMaxBudgetBytes && bytes == std::floor(bytes));
  if (!good) return Error(Code::kBadModel, "damaged: a budget of bytes beside one of slots");
  replaced_bytes_ = bytes;
  return {};
}

// ---- bytes ----

int32_t StoragePlan::StoredSlots(int32_t n_tokens, int32_t n_protected, int32_t slots) const {
  if (!query_heads_see_their_own()) return slots;
  const int64_t group = shape_.n_heads / shape_.n_kv_heads, shared = std::min(slots, n_protected);
  return static_cast<int32_t>(std::min<int64_t>(n_tokens, group * (slots - shared) + shared));
}

// At most what the cache holds after a prompt whose heads keep `slots`, whole pages counted. Where scores
// split the slots of a layer no one knows whose last page is full: each head loses as much as it can.
int64_t StoragePlan::BytesOf(const CacheLayout& layout, const AllocateInput& in,
                             const std::vector<int32_t>& slots) const {
  const auto bytes_of = [&](size_t head, int32_t n) {
    return HeadBytes(layout, static_cast<int32_t>(head), StoredSlots(in.n, in.n_protected, n));
  };
  // Heads among which the slots may go to any.
  const size_t g = static_cast<size_t>(shape_.n_kv_heads), n_heads = sharing_.size() * g,
               group = policy_.allocator->across_layers ? n_heads : g;
  int64_t bytes = WindowBytes(layout, in.n);
  for (size_t first = 0; first < n_heads; first += group) {
    int64_t planned = 0, everything = 0, main = 0, tails = 0, page = 0;
    for (size_t at = first; at < first + group; ++at) {
      const size_t i = static_cast<size_t>(sharing_[at / g]) * g + at % g;
      const int32_t head = static_cast<int32_t>(i);
      planned += bytes_of(i, slots[i]);
      everything += bytes_of(i, in.n);
      // The part that is always kept fills the tail first; the rest of the slots may go to any head.
      const bool raw = !codebook() && !layout.late_rings;  // whether the tail is there already
      const int32_t late = raw ? std::max(layout.ring_slots(head) - layout.heads[i].settle, 0) : 0;
      main += slots[i] - std::min({late, in.n_protected, slots[i]});
      tails += bytes_of(i, 0);
      page = std::max(page, PageBytes(layout, head) + 2 * DirectionBytes(layout));
    }
    const int64_t waste = static_cast<int64_t>(group) * (layout.page_slots - 1);
    bytes += policy_.allocator->dynamic
                 ? std::min(everything, tails + (main + waste) / layout.page_slots * page)
                 : planned;
  }
  return bytes;
}

int64_t StoragePlan::WindowBytes(const CacheLayout& layout, int32_t n_tokens) const {
  int64_t bytes = 0;
  for (int32_t head = 0; head < layout.n_heads_total(); ++head) {
    const int32_t layer = head / shape_.n_kv_heads;
    if (slides(layer)) bytes += HeadBytes(layout, head, layout.MostHeldOf(layer, n_tokens));
  }
  return bytes;
}

// Whether the bytes are as many slots for every head, in pages of that size; the same for every prompt of a
// session.
bool StoragePlan::BytesHold(int32_t budget, int32_t page_slots) const {
  const CacheLayout layout =
      LayoutFor(KeysByChannel(policy_) ? std::max(page_slots, kLeastBlock) : page_slots);
  double bytes = static_cast<double>(WindowBytes(layout, kUnbounded));
  for (int32_t i = 0; i < shape_.n_kv_heads_total(); ++i) {
    if (!slides(i / shape_.n_kv_heads)) bytes += static_cast<double>(HeadBytes(layout, i, budget));
  }
  return bytes <= policy_.budget;
}

// The largest average budget whose slots fit the bytes. Where bytes are shared: the largest equal share.
int32_t StoragePlan::SlotsForBytes(const CacheLayout& layout, int32_t n_tokens) const {
  std::vector<int32_t> slots(layout.heads.size());
  const auto fits = [&](int32_t budget, int32_t n) {
    const AllocateInput in = AllocationFor(budget, n);
    const bool equal = policy_.allocator->shares_bytes || budget <= in.n_protected || n <= in.n_protected;
    if (equal || !PlanFor(in, &slots).ok()) {
      std::fill(slots.begin(), slots.end(), std::min(budget, n));
      FillWindows(n, &slots);
    }
    return static_cast<double>(BytesOf(layout, in, slots)) <= policy_.budget;
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
Status StoragePlan::PlanBytes(const CacheLayout& layout, AllocateInput in,
                              std::vector<int32_t>* slots) const {
  const int64_t total = static_cast<int64_t>(std::min(policy_.budget, 35184372088831.0));  // 2^45 - 1
  std::fill(slots->begin(), slots->end(), in.n);
  FillWindows(in.n, slots);
  if (BytesOf(layout, in, *slots) <= total) return {};
  std::vector<int64_t> cost;
  for (const int32_t layer : sharing_) {
    for (int32_t g = 0; g < shape_.n_kv_heads; ++g)
      cost.push_back(PageBytes(layout, layer * shape_.n_kv_heads + g) / layout.page_slots);
  }
  in.entry_bytes = cost;
  in.candidate_bytes = LargestThat(total, [&](int64_t bytes) {
    in.candidate_bytes = bytes;
    return !PlanFor(in, slots).ok() || BytesOf(layout, in, *slots) <= total;
  });
  return PlanFor(in, slots);
}

}  // namespace kvc

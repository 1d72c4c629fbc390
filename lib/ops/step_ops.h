// One token of many sessions in one layer: append, attend over the pages of every head, and what the
// session's method does with the attention it saw (methods.md 1.6). One operation, so that no length is
// looked at between.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "lib/ops/score_ops.h"

namespace kvc {

// What a step adds to the side values of every entry, p being the step's attention.
enum class StepOp : uint8_t {
  kAddAttention,  // side value dst += p
  kAddOne,        // side value dst += 1
  kHistory,       // side values 0 ..: whether p was below average (HistoryRule)
  kAddPrior       // side value 0 += p * prior, by |v|^2 of the entries (side values 1, 2; methods.md 2.14)
};
struct StepInstr {
  StepOp op;
  int8_t dst = 0;
};

// By what entries are compared at a step; higher stays.
enum class RankBy : uint8_t { kAux, kNegatedAux, kRatio, kAttention, kPosition };  // kRatio: side value 0 / 1

constexpr int kMaxStepInstrs = 4;

// A session's method at steps.
struct StepPlan {
  int32_t n_instrs = 0;
  StepInstr instrs[kMaxStepInstrs];
  HistoryRule history;
  bool needs_attention = false;  // p of every entry is wanted: the mean over the query heads of a group
  bool one_set = false;          // p is the mean over all query heads of the layer, and so is what it drops
  // p, but not `attention`, is of a softmax with RowGain's factor, the row being the newest of position + 1
  // tokens; 0: it is not.
  int32_t gain_length = 0;
  bool gain_scaled = false, gain_floor = false;

  bool evicts = false;
  RankBy rank = RankBy::kAux;
  SelectRule select;
  MergeRule merge;
  int32_t n_cleared = 0;          // side values that restart at 0 after a reduction
  const int32_t* caps = nullptr;  // [L * G]: a head with more entries is reduced to so many

  const int32_t* held =
      nullptr;  // [L * G] or null: beyond so many the oldest behind the first n_sinks leaves
  int32_t n_sinks = 0;
  bool in_cache = false;  // positions are counted in slots from the first dropped entry on

  DevicePtr<float> ring;  // [layers, ring_rows, H, D]: the newest queries, null: not kept
  int32_t ring_rows = 0;
  const int32_t* ring_places = nullptr;  // [L] which of the ring's layers is a layer's; null: its own number
  int32_t *ring_start = nullptr, *ring_len = nullptr;  // [L] of the oldest row kept; rows kept
  bool ends_later = false;                             // the limit `held` and settling wait for EndStep

  DevicePtr<float> attention;  // [L, H, attention_stride]: the attention of the newest token, by ascending
                               // position; or null
  int64_t attention_stride = 0;

  // Of main a head's attention reads at most so many entries, by whole pages: the newest page and those whose
  // bounds (PageFormat) allow the greatest logits, reduced over the group's query heads; 0: all of them.
  // Pages of heads that turn keys when they are read are all read.
  int32_t reads = 0;
  int32_t reads_from = 0;  // layers before it read all
  GroupKind reads_group = GroupKind::kMean;

  // Layers that only take entries (CacheLayout::windows) have a plan of their own.
  const uint8_t* slides = nullptr;  // [L] or null: none
  const StepPlan* of_sliding = nullptr;

  // Whether it does more with a step's attention than look at it.
  bool Updates() const {
    return n_instrs > 0 || evicts || held != nullptr || ends_later ||
           (of_sliding != nullptr && of_sliding->Updates());
  }
  // What a layer's heads go by.
  const StepPlan& Of(int32_t layer) const {
    return slides != nullptr && slides[layer] != 0 ? *of_sliding : *this;
  }
  // Candidates that stay in a head which is reduced, beside its protected part.
  int32_t CountOf(int32_t head) const {
    return std::max(CapOf(head) - select.protect.n_sink - select.protect.n_recent, 0);
  }
  int32_t CapOf(int32_t head) const { return caps == nullptr ? 0 : caps[head]; }
  bool Reduces(int32_t head, int32_t n) const { return evicts && n > CapOf(head); }
  // Entries of a head of n after the reduction.
  int32_t KeptOf(int32_t head, int32_t n) const {
    return Reduces(head, n) ? std::min(n, KeptCount(select, n, CountOf(head))) : n;
  }
  // What `held` leaves of n.
  int32_t HeldOf(int32_t head, int32_t n) const { return held == nullptr ? n : std::min(n, held[head]); }
  // Entries of a head behind a step, with whose own it has n. Of a plan that ends later: behind EndStep.
  int32_t LengthAfter(int32_t head, int32_t n) const { return HeldOf(head, KeptOf(head, n)); }
  int32_t ReadsOf(int32_t layer) const { return layer < reads_from ? 0 : reads; }
  int32_t RingPlace(int32_t layer) const { return ring_places == nullptr ? layer : ring_places[layer]; }
};

struct StepRow {
  // Lengths are updated when the operation returns; where its stream gathers (device.h), some of them when it
  // has issued. What comes between Step and EndStep of a plan that ends later finds them, and so does the
  // cache's next row in the layer.
  const CacheView* cache = nullptr;
  const StepPlan* plan = nullptr;
  int32_t position = 0;  // of the token in its sequence
  // Set, never cleared, when an entry was dropped or merged.
  std::atomic<bool>* dropped = nullptr;
};

// What a row's session wants of a layer.
inline const StepPlan& PlanOf(const StepRow& row, int32_t layer) { return row.plan->Of(layer); }

// Slots of pages that are chosen from, at least.
constexpr int32_t kLeastReadPage = 16;
// How many pages of a head with `len` entries in main a row's attention reads; 0: all of them.
inline int32_t PagesRead(const StepRow& row, int32_t layer, int32_t head, int32_t len) {
  const int32_t reads = PlanOf(row, layer).ReadsOf(layer);
  if (reads == 0) return 0;
  const CacheView& c = *row.cache;
  const PageFormat& f = c.layout->formats[static_cast<size_t>(MainFormat(c, head))];
  if (!f.key_bounds || c.rotated[head] == 0) return 0;
  const int32_t most = std::max(reads / f.slots, 1);
  return (len + f.slots - 1) / f.slots <= most ? 0 : most;
}
// The entries in so many of its pages, the last one among them.
inline int32_t EntriesRead(int32_t n_pages, int32_t slots, int32_t len) {
  return n_pages == 0 ? len : (n_pages - 1) * slots + (len - 1) % slots + 1;
}

// What an operation that turns keys at every step looks up: cos and sin of positions [D], cos first, of 0 ..
// kFineAngles and of the multiples of kFineAngles (those without the rope's factor).
constexpr int32_t kFineAngles = 1024;
struct AngleTable {
  DevicePtr<const float> fine, coarse;
};
// Rows i of [n, D]: cos and sin of position (first + i) * every.
struct AngleArgs {
  const Rope* rope;
  int64_t first, every;
  int32_t n;
  bool unit;  // without the rope's factor
  DevicePtr<float> out;
};

// What the scratch of a step depends on; lengths may be larger than they turn out.
struct StepShape {
  int32_t n_rows, n_heads, n_kv_heads, head_dim;
  int32_t page_slots, ring_slots;  // the largest of any row's cache
  int64_t longest;                 // entries of main of the longest head beside the slots of its ring
  int64_t append_bytes;            // AppendScratchBytes, the largest
  bool any_attention;              // whether some plan needs or keeps it
  bool any_update;                 // whether some plan Updates()
  bool any_choice = false;         // whether some plan reads a part only
};

// Rows of one session follow each other; every row sees what the ones before it left.
struct StepArgs {
  int32_t layer;
  const StepRow* rows;
  int32_t n_rows, n_heads;
  float scale;     // of the attention logits
  int32_t window;  // the layer's attention window in tokens, 0: none
  const Rope* rope;
  bool same_angles = false;  // the step before with this scratch, of these rows, turned by the same rope
  RopePairing pairing;
  AngleTable angles;      // where some plan turns keys at every step
  DevicePtr<float> q, k;  // [rows, H, D], [rows, G, D]: without rotation; turned here
  DevicePtr<const float> v;
  DevicePtr<float> out;  // [rows, H, D], apart from the others
  StepShape shape;
  DeviceBytes scratch;  // StepScratchBytes(shape)
  float cap = 0;        // scaled logits z become cap * tanh(z / cap); 0: they stay
  // [H] logits that join every softmax, times the row's factor where it has one; null: none.
  DevicePtr<const float> sinks = {};
};

// Whether a row's entry comes and none leaves, for good or for its codes: what most methods have behind the
// prompt.
inline bool OnlyGrows(const StepRow& row, int32_t layer) {
  const StepPlan& plan = PlanOf(row, layer);
  return !plan.evicts && plan.held == nullptr && row.cache->ring == nullptr;
}
// Whether it leaves nothing else behind either, so that the next one of its session sees what was there and
// that.
inline bool OnlyAppends(const StepRow& row, int32_t layer) {
  const StepPlan& plan = PlanOf(row, layer);
  return OnlyGrows(row, layer) && plan.n_instrs == 0 && !plan.needs_attention && !plan.ring &&
         !plan.ends_later && !plan.attention;
}

// The rows from `first` to here can be worked on together: they have caches of their own, but for those that
// join(row) others of their session.
template <typename Join>
int32_t EndOfWave(const StepArgs& a, int32_t first, Join&& join) {
  int32_t end = first + 1;
  while (end < a.n_rows && (a.rows[end].cache != a.rows[end - 1].cache || join(a.rows[end]))) ++end;
  return end;
}

// The newest queries of one layer, in a ring of rows [H, D]. Sessions that count positions in slots keep them
// without rotation: their slot changes with every dropped entry.
struct QueryRingArgs {
  enum Kind {
    kPush,         // rows [n] go in, newest last
    kView,         // the newest n rows come out into rows, oldest first
    kDropRotation  // every row loses the rotation of its position
  } kind;
  DevicePtr<float> ring;
  int32_t ring_rows, start, len;  // before the operation
  DevicePtr<float> rows;
  int32_t n, n_heads, n_kv_heads, head_dim;
  KeyTurning turning;
  const int32_t* slots;  // [G] in_cache: where the newest of the n rows stands in each head
  int32_t newest;        // kDropRotation: position of the newest row
};

// Entries of heads [0, G) of one layer that are not marked leave; marks [G, stride], by ascending position.
struct EvictArgs {
  const CacheView* cache;
  int32_t layer;
  DevicePtr<const uint8_t> marks;
  int64_t stride;
  const bool* heads;  // [G] which heads, on the host
  KeyTurning turning;
  DeviceBytes scratch;  // EvictScratchBytes; stride: slots of the longest head, its ring's included
};

}  // namespace kvc

// What a method does to one head after a step's attention. Passes over the head's entries where they lie;
// sorting is for reductions by more than one entry.
#include <algorithm>
#include <cstring>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/line_ops.h"
#include "lib/ops/cpu/merge_entries.h"
#include "lib/ops/cpu/select.h"
#include "lib/ops/cpu/step.h"

namespace kvc::cpu {
namespace {

// Values of one head in its pages, by ascending position. Two vectors of scratch: the value that goes, and
// the one it goes into.
struct PageValues {
  const HeadPages& pages;
  const KernelTable& kernels;
  const int32_t* order;
  float *gone, *next;
  int32_t d;
  const float* Get(int32_t i) {
    pages.ReadValues(pages.At(order[i]), 1, gone);
    return gone;
  }
  void Add(int32_t i, float factor, const float* v) {
    const Slot s = pages.At(order[i]);
    pages.ReadValues(s, 1, next);
    kernels.axpy(factor, v, d, next);
    pages.WriteValue(s, next);
  }
  void Mix(int32_t i, float a_gone, const float* v_gone, float a_next) {
    const Slot s = pages.At(order[i]);
    pages.ReadValues(s, 1, next);
    MixInto(a_gone, v_gone, a_next, d, next);
    pages.WriteValue(s, next);
  }
};

// Removes the entries whose flag, by physical index, is set. The ring first: its indices start at main's
// length.
void RemoveFlagged(const HeadPages& pages, const uint8_t* gone) {
  const int32_t main = pages.main_len();
  for (int32_t i = pages.ring_len() - 1; i >= 0; --i) {
    const int32_t slot = (pages.ring_start() + i) % pages.ring_slots();
    if (gone[main + slot] != 0) pages.Remove(main + slot);
  }
  for (int32_t slot = main - 1; slot >= 0; --slot) {
    if (gone[slot] != 0) pages.Remove(slot);
  }
}

}  // namespace

void SortByPosition(const HeadPages& pages, uint64_t* keys, int32_t* order) {
  int32_t n = 0;
  pages.ForRuns([&](int32_t first, int32_t count, const Slot& s) {
    const int32_t* positions = &s.position();
    for (int32_t i = 0; i < count; ++i) keys[n++] = OrderKey(positions[i], first + i);
  });
  std::sort(keys, keys + n);
  for (int32_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(keys[i] & 0xffffffffu);
}

void HeadUpdate::Run() const {
  Observe();
  if (plan.Reduces(head(), pages.len())) Reduce();
  if (!plan.ends_later) End();
}

void HeadUpdate::End() const {
  if (plan.held != nullptr && pages.len() > plan.held[head()]) HoldLength();
  pages.Settle(lines.settle);
}

void HeadUpdate::Observe() const {
  for (int32_t i = 0; i < plan.n_instrs; ++i) {
    const StepInstr& instr = plan.instrs[i];
    const float average = 1.0f / static_cast<float>(pages.len());
    switch (instr.op) {
      case StepOp::kAddPrior:
        AddPrior();
        break;
      case StepOp::kAddAttention:
        pages.ForRuns(
            [&](int32_t first, int32_t n, const Slot& s) { kernels.add(p + first, n, &s.aux(instr.dst)); });
        break;
      case StepOp::kAddOne:
        pages.ForRuns([&](int32_t, int32_t n, const Slot& s) {
          float* aux = &s.aux(instr.dst);
          for (int32_t t = 0; t < n; ++t) aux[t] += 1.0f;
        });
        break;
      case StepOp::kHistory:
        pages.ForRuns([&](int32_t first, int32_t n, const Slot& s) {
          float* all[kMaxAux];
          for (int a = 0; a < 1 + plan.history.words(); ++a) all[a] = &s.aux(a);
          PushHistory(plan.history, all, p + first, n, average);
        });
        break;
    }
  }
}

// methods.md 2.14: the prior of an entry is the squared norm of its value over the largest when it came. Side
// values: the sum, the prior, that largest norm; it only grows, so the newest has the largest.
void HeadUpdate::AddPrior() const {
  const int32_t d = row.cache->layout->head_dim;
  float norm = 0, most = 0;
  for (int32_t x = 0; x < d; ++x) norm += new_value[x] * new_value[x];
  pages.ForRuns([&](int32_t, int32_t n, const Slot& s) {
    const float* largest = &s.aux(2);
    for (int32_t t = 0; t < n; ++t)
      most = std::max(most, (&s.position())[t] == row.position ? norm : largest[t]);
  });
  pages.ForRuns([&](int32_t first, int32_t n, const Slot& s) {
    float *sum = &s.aux(0), *prior = &s.aux(1), *largest = &s.aux(2);
    for (int32_t t = 0; t < n; ++t) {
      if ((&s.position())[t] == row.position) prior[t] = most > 0 ? norm / most : 0.0f, largest[t] = most;
      sum[t] += p[first + t] * prior[t];
    }
  });
}

float HeadUpdate::Rank(const Slot& s, int32_t physical) const {
  switch (plan.rank) {
    case RankBy::kAux:
      return s.aux(0);
    case RankBy::kNegatedAux:
      return -1.0f * s.aux(0);
    case RankBy::kRatio:
      return s.aux(0) / s.aux(1);
    case RankBy::kAttention:
      return p[physical];
    case RankBy::kPosition:
      return static_cast<float>(s.position() - row.position);  // exact however long the sequence is
  }
  return 0;
}

void HeadUpdate::Reduce() const {
  Dropped();
  if (plan.in_cache) pages.DropRotation(*args.rope, args.pairing, lines.vectors);
  if (!ReduceByOne()) ReduceMany();
  if (plan.n_cleared == 0) return;
  pages.ForRuns([&](int32_t, int32_t n, const Slot& s) {
    for (int a = 0; a < plan.n_cleared; ++a) std::fill_n(&s.aux(a), n, 0.0f);
  });
}

// The usual case in one pass: one entry too many, and the newest n_recent are just the last tokens. The
// oldest n_sink lie in the first slots, which no victim leaves. False: the general way.
bool HeadUpdate::ReduceByOne() const {
  const Protected& part = plan.select.protect;
  const int32_t n = pages.len(), count = plan.CountOf(head());
  const bool spreads = plan.merge.kind == MergeKind::kSpread,
             sinks_move = plan.held != nullptr && part.n_sink > plan.n_sinks;
  if (plan.select.kind != SelectKind::kTop || KeptCount(plan.select, n, count) != n - 1 || spreads ||
      sinks_move)
    return false;
  const int32_t oldest_recent = row.position - part.n_recent + 1;
  int32_t n_recent = 0, victim = -1, at_position = -1;
  uint32_t lowest = 0;
  const bool sinks_known = pages.main_len() >= part.n_sink;
  pages.ForRuns([&](int32_t first, int32_t run, Slot s) {
    for (int32_t i = 0; i < run; ++i, ++s.index) {
      const int32_t physical = first + i, position = s.position();
      if (position >= oldest_recent) {
        ++n_recent;
        continue;
      }
      if (physical < part.n_sink) continue;
      const uint32_t bits = OrderedBits(Rank(s, physical));
      if (victim >= 0 && (bits > lowest || (bits == lowest && position < at_position))) continue;
      victim = physical, lowest = bits, at_position = position;
    }
  });
  if (!sinks_known || n_recent != part.n_recent || victim < 0) return false;
  if (plan.merge.kind == MergeKind::kIntoNext) MergeOne(victim);
  pages.Remove(victim);
  return true;
}

// WeightedKV: the value goes into that of the next token that is still there.
void HeadUpdate::MergeOne(int32_t victim) const {
  const Slot gone = pages.At(victim);
  int32_t next = -1, next_position = 0;
  pages.ForRuns([&](int32_t first, int32_t n, const Slot& s) {
    const int32_t* positions = &s.position();
    for (int32_t i = 0; i < n; ++i) {
      if (positions[i] <= gone.position() || (next >= 0 && positions[i] > next_position)) continue;
      next = first + i, next_position = positions[i];
    }
  });
  if (next < 0) return;
  const auto average = [&](const Slot& s) { return s.aux(plan.merge.sums) / s.aux(plan.merge.counts); };
  const int32_t order[] = {victim, next}, d = row.cache->layout->head_dim;
  PageValues values{pages, kernels, order, lines.vectors, lines.vectors + d, d};
  values.Mix(1, average(gone), values.Get(0), average(pages.At(next)));
}

void HeadUpdate::ReduceMany() const {
  const int32_t n = pages.len(), d = row.cache->layout->head_dim, count = plan.CountOf(head());
  SortByPosition(pages, lines.keys, lines.order);
  for (int32_t i = 0; i < n; ++i) {
    const Slot s = pages.At(lines.order[i]);
    lines.scores[i] = Rank(s, lines.order[i]);
  }
  // Draws are for prompts: positions are not needed to choose.
  SelectEntries({plan.select, lines.scores, nullptr, n, count, static_cast<uint32_t>(head()), lines.keys,
                 lines.line, lines.marks});
  if (plan.merge.kind != MergeKind::kNone) {
    float *sums = lines.scores, *counts = reinterpret_cast<float*>(lines.keys);
    int32_t* positions = reinterpret_cast<int32_t*>(lines.keys) + n;
    for (int32_t i = 0; i < n; ++i) {
      const Slot s = pages.At(lines.order[i]);
      sums[i] = s.aux(plan.merge.sums);
      counts[i] = plan.merge.counts < 0 ? 0.0f : s.aux(plan.merge.counts);
      positions[i] = s.position();
    }
    PageValues values{pages, kernels, lines.order, lines.vectors, lines.vectors + d, d};
    MergeDropped({plan.merge, lines.marks, sums, counts, positions, n, static_cast<uint32_t>(head()),
                  lines.links, lines.line},
                 values);
  }
  uint8_t* gone = reinterpret_cast<uint8_t*>(lines.keys);
  std::fill_n(gone, pages.main_len() + pages.ring_slots(), uint8_t{0});
  for (int32_t i = 0; i < n; ++i) gone[lines.order[i]] = lines.marks[i] == 0;
  RemoveFlagged(pages, gone);
}

// At the end of the context: the oldest entry behind the first ones leaves (methods.md 2.2).
void HeadUpdate::HoldLength() const {
  Dropped();
  if (plan.in_cache) pages.DropRotation(*args.rope, args.pairing, lines.vectors);
  const int32_t n = pages.len(), over = n - plan.held[head()];
  // Where nothing but this removes entries the first ones are in the first slots.
  const bool first_known = (!plan.evicts || plan.select.protect.n_sink >= plan.n_sinks) && !plan.ring;
  if (over == 1 && first_known && n - 2 >= plan.n_sinks && pages.main_len() > plan.n_sinks) {
    int32_t oldest = plan.n_sinks, position = pages.Main(oldest).position();
    pages.ForRuns([&](int32_t first, int32_t run, const Slot& s) {
      const int32_t* positions = &s.position();
      for (int32_t i = std::max(plan.n_sinks - first, 0); i < run; ++i) {
        if (positions[i] < position) oldest = first + i, position = positions[i];
      }
    });
    pages.Remove(oldest);
    return;
  }
  SortByPosition(pages, lines.keys, lines.order);
  uint8_t* gone = lines.marks;
  std::fill_n(gone, pages.main_len() + pages.ring_slots(), uint8_t{0});
  for (int32_t i = 0; i < over; ++i)  // with few left, the one before the newest goes
    gone[lines.order[n - i - 2 < plan.n_sinks ? n - i - 2 : plan.n_sinks + i]] = 1;
  RemoveFlagged(pages, gone);
}

Status CpuDevice::EndStep(Stream*, const StepArgs& a) {
  const StepScratch scratch(a.shape, pool_->n_threads(), Raw(a.scratch));
  for (int32_t r = 0; r < a.n_rows; ++r) {
    const CacheLayout& layout = *a.rows[r].cache->layout;
    const StepPlan& plan = PlanOf(a.rows[r], a.layer);
    for (int32_t g = 0; plan.ends_later && g < layout.n_kv_heads; ++g) {
      const HeadUpdate update{
          kernels_,  plan,    a,
          a.rows[r], g,       HeadPages(kernels_, *a.rows[r].cache, a.layer * layout.n_kv_heads + g),
          nullptr,   nullptr, scratch.Lines(0, layout.head_dim)};
      update.End();
    }
  }
  return {};
}

Status CpuDevice::QueryRing(Stream*, const QueryRingArgs& a) {
  const int32_t d = a.head_dim, group = a.n_heads / a.n_kv_heads;
  const int64_t width = int64_t{a.n_heads} * d;
  const auto at = [&](int32_t i) {
    return Raw(a.ring) + (a.start + i) % a.ring_rows * width;
  };                                                        // i-th oldest
  const auto turn = [&](float* row, int32_t i, auto&& f) {  // row i of n, at its slot of every head
    for (int32_t g = 0; a.turning.in_cache && g < a.n_kv_heads; ++g)
      f(kernels_, *a.turning.rope, a.turning.pairing, a.slots[g] - (a.n - 1 - i), d,
        row + int64_t{g} * group * d, group);
  };
  if (a.kind == QueryRingArgs::kDropRotation) {
    for (int32_t i = 0; i < a.len; ++i)
      Unrotate(kernels_, *a.turning.rope, a.turning.pairing, a.newest - (a.len - 1 - i), d, at(i), a.n_heads);
    return {};
  }
  for (int32_t i = 0; i < a.n; ++i) {
    float* row = Raw(a.rows) + i * width;
    if (a.kind == QueryRingArgs::kPush) {
      std::copy_n(row, width, at(a.len + i));
      turn(at(a.len + i), i, Unrotate);
    } else {
      std::copy_n(at(a.len - a.n + i), width, row);
      turn(row, i, Rotate);
    }
  }
  return {};
}

int64_t CpuDevice::EvictScratchBytes(int32_t n_kv_heads, int64_t stride) const {
  return 16 * n_kv_heads * stride;
}

Status CpuDevice::Evict(Stream*, const EvictArgs& a) {
  const int32_t n_heads = a.cache->layout->n_kv_heads;
  pool_->ParallelFor(n_heads, [&](int64_t g, int) {
    if (!a.heads[g]) return;
    const HeadPages pages(kernels_, *a.cache, a.layer * n_heads + static_cast<int32_t>(g));
    uint8_t* scratch = Raw(a.scratch) + EvictScratchBytes(1, a.stride) * g;
    uint64_t* keys = reinterpret_cast<uint64_t*>(scratch);
    int32_t* order = reinterpret_cast<int32_t*>(scratch + 8 * a.stride);
    uint8_t* gone = scratch + 12 * a.stride;
    const uint8_t* marks = Raw(a.marks) + g * a.stride;
    float vector[kMaxHeadSize];
    if (a.turning.in_cache) pages.DropRotation(*a.turning.rope, a.turning.pairing, vector);
    SortByPosition(pages, keys, order);
    std::fill_n(gone, pages.main_len() + pages.ring_slots(), uint8_t{0});
    for (int32_t i = 0; i < pages.len(); ++i) gone[order[i]] = marks[i] == 0;
    RemoveFlagged(pages, gone);
  });
  return {};
}

}  // namespace kvc::cpu

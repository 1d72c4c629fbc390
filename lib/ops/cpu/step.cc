// One token of every row in one layer. Byte model: every entry's key and value are read once for all query
// heads of its group: len * (key + value bytes) a head; flops 4 * D * group an entry, far below what the
// bytes cost.
//
// Rows of different sessions are worked on together; rows of one session follow each other, since each sees
// what the one before left (a wave has one row of each session, or a run of rows that only append: those
// attend one segment after the other, so that it is read once for all of them). A head is cut into segments
// of 256 entries, whatever the number of threads; whoever ends the last segment of a head joins them in
// order, and does to the head what the method asks.
#include "lib/ops/cpu/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/read_pages.h"

namespace kvc::cpu {
namespace {

constexpr int64_t kSerialWork = 2048;  // vectors below which appending is not worth the threads

int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

// ---- scratch ----

StepScratch::Sizes::Sizes(const StepShape& s) {
  const int64_t g = s.n_kv_heads, group = s.n_heads / s.n_kv_heads, d = s.head_dim;
  stride = (s.longest + 15) / 16 * 16;
  items = s.n_rows * g * (stride / kSegment + 3);
  partial = items * group * (d + 2);
  attention = s.any_attention ? s.n_rows * s.n_heads * stride : 0;
  const int32_t run = std::max({s.page_slots, s.ring_slots, kTile});
  tile = 2 * int64_t{run} * d;
  seen = group * run;
  // Lines of a method: sort keys, order, scores, one to spare, marks, links; two vectors; what settling
  // needs.
  lines = 9 * stride + 2 * d + (s.append_bytes / 4 + g - 1) / g;
  parts = s.any_choice ? 2 * group * d : 0;
  chosen = s.any_choice ? stride / kLeastReadPage + 1 : 0;
}

int64_t StepScratch::Bytes(const StepShape& s, int64_t threads) {
  const Sizes z(s);
  return Align(static_cast<int64_t>(sizeof(Item)) * z.items) + Align(4 * z.partial) + Align(4 * z.attention) +
         threads * (Align(4 * z.tile) + Align(z.seen) + Align(4 * z.lines) + Align(4 * z.parts)) +
         Align(4 * s.n_rows * s.n_kv_heads * z.chosen) +
         Align(static_cast<int64_t>(sizeof(HeadTask)) * s.n_rows * s.n_kv_heads) + Align(4 * s.n_rows) +
         Align(4 * int64_t{s.n_rows} * s.head_dim);
}

StepScratch::StepScratch(const StepShape& s, int64_t n_threads, uint8_t* at) : z(s) {
  const auto take = [&at](int64_t bytes) {
    uint8_t* begin = at;
    at += Align(bytes);
    return begin;
  };
  items = reinterpret_cast<Item*>(take(static_cast<int64_t>(sizeof(Item)) * z.items));
  partial = reinterpret_cast<float*>(take(4 * z.partial));
  attention = reinterpret_cast<float*>(take(4 * z.attention));
  tiles = take(n_threads * Align(4 * z.tile));
  seen = take(n_threads * Align(z.seen));
  lines = take(n_threads * Align(4 * z.lines));
  parts = take(n_threads * Align(4 * z.parts));
  chosen = reinterpret_cast<int32_t*>(take(4 * s.n_rows * s.n_kv_heads * z.chosen));
  heads = reinterpret_cast<HeadTask*>(take(static_cast<int64_t>(sizeof(HeadTask)) * s.n_rows * s.n_kv_heads));
  row_open = reinterpret_cast<std::atomic<int32_t>*>(take(4 * s.n_rows));
  angles = reinterpret_cast<float*>(take(4 * int64_t{s.n_rows} * s.head_dim));
}

float* StepScratch::Tile(int thread) const {
  return reinterpret_cast<float*>(tiles + thread * Align(4 * z.tile));
}
float* StepScratch::Parts(int thread) const {
  return reinterpret_cast<float*>(parts + thread * Align(4 * z.parts));
}
uint8_t* StepScratch::Seen(int thread) const { return seen + thread * Align(z.seen); }
StepLines StepScratch::Lines(int thread, int32_t d) const {
  float* at = reinterpret_cast<float*>(lines + thread * Align(4 * z.lines));
  StepLines l;
  l.keys = reinterpret_cast<uint64_t*>(at);
  l.order = reinterpret_cast<int32_t*>(at + 2 * z.stride);
  l.scores = at + 3 * z.stride;
  l.line = at + 4 * z.stride;
  l.marks = reinterpret_cast<uint8_t*>(at + 5 * z.stride);
  l.links = reinterpret_cast<int32_t*>(at + 6 * z.stride);
  l.vectors = at + 9 * z.stride;
  l.settle = l.vectors + 2 * d;
  return l;
}

namespace {

// n entries from a physical index on, of which `first` is the first; chosen pages are a run each.
struct Entries {
  const HeadPages& pages;
  int32_t physical;
  const Slot& first;
  int32_t n;

  bool in_one_page() const { return n <= first.f->slots - first.index; }
  // Calls f(Slot, first entry, entries) for what lies together.
  template <typename F>
  void ForPages(F&& f) const {
    for (int32_t i = 0; i < n;) {
      const Slot s = i == 0 ? first : pages.At(physical + i);
      const int32_t m = std::min(n - i, s.f->slots - s.index);
      f(s, i, m);
      i += m;
    }
  }
};

// cos and sin of a position from the tables.
class Angles {
 public:
  Angles(const AngleTable& table, int32_t d) : fine_(Raw(table.fine)), coarse_(Raw(table.coarse)), d_(d) {}

  void Turn(const KernelTable& kernels, RopePairing pairing, int32_t position, float* x, int32_t n) const {
    float both[kMaxHeadSize];
    const float* at = fine_ + int64_t{position % kFineAngles} * d_;
    if (position >= kFineAngles) {
      const float* far = coarse_ + int64_t{position / kFineAngles} * d_;
      const int32_t half = d_ / 2;
      for (int32_t j = 0; j < half; ++j) {  // cos(a + b), sin(a + b)
        both[j] = far[j] * at[j] - far[half + j] * at[half + j];
        both[half + j] = far[half + j] * at[j] + far[j] * at[half + j];
      }
      at = both;
    }
    for (int32_t i = 0; i < n; ++i) kernels.rope(x + int64_t{i} * d_, at, at + d_ / 2, d_, pairing);
  }

 private:
  const float *fine_, *coarse_;
  const int32_t d_;
};

class Wave {
 public:
  Wave(const KernelTable& kernels, ThreadPool* pool, const StepArgs& a, const StepScratch& scratch,
       int32_t first, int32_t end)
      : kernels_(kernels),
        pool_(pool),
        a_(a),
        s_(scratch),
        first_(first),
        end_(end),
        g_(a.rows[first].cache->layout->n_kv_heads),
        d_(a.rows[first].cache->layout->head_dim),
        group_(a.n_heads / g_),
        angles_(a.angles, d_) {}

  void Run() {
    const int64_t n_heads = int64_t{end_ - first_} * g_;
    const auto append = [&](int64_t i, int thread) {
      const int32_t r = first_ + static_cast<int32_t>(i / g_), g = static_cast<int32_t>(i % g_);
      if (r > first_ && SameSession(r - 1, r)) return;  // the first of a run does all of it, in order
      for (int32_t row = r; row < EndOfRun(r); ++row) {
        Append(row, g);
        ChoosePages(row, g, thread);
      }
    };
    for (int32_t r = first_; r < end_; ++r) PrepareRow(r);
    if (a_.shape.any_choice || n_heads * (group_ + 2) * d_ > kSerialWork * 16) {
      pool_->ParallelFor(n_heads, append);
    } else {
      for (int64_t i = 0; i < n_heads; ++i) append(i, 0);
    }
    CutHeads();
    pool_->ParallelFor(n_items_, [&](int64_t item, int thread) {
      const StepScratch::Item& it = s_.items[item];
      if (EndOfRun(it.row) > it.row + 1) return;  // the last row of a run, the longest, does all of it
      const int64_t segment = item - Task(it.row, it.head).first_item;
      for (int32_t row = FirstOfRun(it.row); row <= it.row; ++row) {
        StepScratch::HeadTask& head = Task(row, it.head);
        if (segment >= head.n_items) continue;
        Attend(head.first_item + segment, thread);
        if (head.open.fetch_sub(1, std::memory_order_acq_rel) == 1) EndHead(row, it.head, thread);
      }
    });
  }

 private:
  bool SameSession(int32_t a, int32_t b) const { return a_.rows[a].cache == a_.rows[b].cache; }
  int32_t FirstOfRun(int32_t row) const {
    while (row > first_ && SameSession(row - 1, row)) --row;
    return row;
  }
  int32_t EndOfRun(int32_t row) const {
    for (++row; row < end_ && SameSession(row - 1, row);) ++row;
    return row;
  }
  StepScratch::HeadTask& Task(int32_t row, int32_t g) const { return s_.heads[int64_t{row} * g_ + g]; }
  HeadPages Pages(int32_t row, int32_t g) const { return {kernels_, *a_.rows[row].cache, a_.layer * g_ + g}; }
  const StepPlan& Plan(int32_t row) const { return PlanOf(a_.rows[row], a_.layer); }
  float* Query(int32_t row, int32_t g) const {
    return Raw(a_.q) + (int64_t{row} * a_.n_heads + g * group_) * d_;
  }
  float* Partial(int64_t item) const { return s_.partial + item * group_ * (d_ + 2); }
  float* Attention(int32_t row, int32_t h) const {
    return s_.attention + (int64_t{row} * a_.n_heads + h) * s_.z.stride;
  }
  bool WantsAttention(int32_t row) const { return Plan(row).needs_attention || Plan(row).attention; }
  // Whether keys of a head are turned when they are read.
  bool Turns(const HeadPages& pages) const { return !pages.rotated(); }

  void PrepareRow(int32_t r) {
    const StepRow& row = a_.rows[r];
    float* cos = s_.angles + int64_t{r} * d_;
    if (!a_.same_angles) a_.rope->Angles(row.position, cos, cos + d_ / 2);
    new (&s_.row_open[r]) std::atomic<int32_t>(g_);
    const StepPlan& plan = Plan(r);
    if (!plan.ring) return;
    // Sessions that count in slots keep queries without rotation: their slot changes with every dropped
    // entry.
    int32_t &start = plan.ring_start[a_.layer], &n = plan.ring_len[a_.layer];
    float* to =
        Raw(plan.ring) +
        (int64_t{plan.RingPlace(a_.layer)} * plan.ring_rows + (start + n) % plan.ring_rows) * a_.n_heads * d_;
    std::memcpy(to, Query(r, 0), static_cast<size_t>(a_.n_heads) * static_cast<size_t>(d_) * sizeof(float));
    for (int32_t h = 0; !plan.in_cache && h < a_.n_heads; ++h)
      kernels_.rope(to + int64_t{h} * d_, cos, cos + d_ / 2, d_, a_.pairing);
    n < plan.ring_rows ? ++n : start = (start + 1) % plan.ring_rows;
  }

  // The new entry of a head, and its queries turned to where it stands.
  void Append(int32_t r, int32_t g) {
    const HeadPages pages = Pages(r, g);
    const StepRow& row = a_.rows[r];
    float* k = Raw(a_.k) + (int64_t{r} * g_ + g) * d_;
    const float *v = Raw(a_.v) + (int64_t{r} * g_ + g) * d_, *cos = s_.angles + int64_t{r} * d_;
    float* q = Query(r, g);
    if (Turns(pages)) {
      pages.Append(k, v, row.position);
      angles_.Turn(kernels_, a_.pairing, Plan(r).in_cache ? pages.len() - 1 : row.position, q, group_);
      return;
    }
    for (int32_t j = 0; j < group_; ++j)
      kernels_.rope(q + int64_t{j} * d_, cos, cos + d_ / 2, d_, a_.pairing);
    kernels_.rope(k, cos, cos + d_ / 2, d_, a_.pairing);
    pages.Append(k, v, row.position);
  }

  // Behind an entry of its row: later rows of a run see other pages.
  void ChoosePages(int32_t r, int32_t g, int thread) {
    StepScratch::HeadTask& task = Task(r, g);
    const HeadPages pages = Pages(r, g);
    task.n_pages = PagesRead(a_.rows[r], a_.layer, a_.layer * g_ + g, pages.main_len());
    if (task.n_pages == 0) return;
    const PageChoice choice{
        kernels_, pages, Plan(r).reads_group, Query(r, g), group_, s_.Parts(thread), s_.Lines(thread, d_)};
    choice.Choose(task.n_pages, s_.Chosen(int64_t{r} * g_ + g));
    if (!WantsAttention(r)) return;
    for (int32_t h = g * group_; h < (g + 1) * group_; ++h)
      std::fill_n(Attention(r, h), pages.main_len(), -std::numeric_limits<float>::infinity());
  }

  // Of an item's index.
  int32_t Physical(int32_t r, int32_t g, const HeadPages& pages, int32_t at) const {
    if (Task(r, g).n_pages == 0 || at >= pages.main_len()) return at;
    const int32_t slots = pages.format().slots;
    return s_.Chosen(int64_t{r} * g_ + g)[at / slots] * slots + at % slots;
  }

  void CutHeads() {
    n_items_ = 0;
    for (int32_t r = first_; r < end_; ++r) {
      for (int32_t g = 0; g < g_; ++g) {
        const HeadPages pages = Pages(r, g);
        StepScratch::HeadTask& task = Task(r, g);
        task.first_item = n_items_;
        const auto cut = [&](int32_t first, int32_t end) {
          for (int32_t b = first; b < end; b += StepScratch::kSegment)
            s_.items[n_items_++] = {r, g, b, std::min(b + StepScratch::kSegment, end),
                                    pages.At(Physical(r, g, pages, b))};
        };
        const int32_t to_come = EndOfRun(r) - 1 - r;  // entries of later rows, which only append
        cut(0, EntriesRead(task.n_pages, pages.format().slots, pages.main_len() - to_come));
        const int32_t main = pages.main_len(), slots = pages.ring_slots(),
                      end = pages.ring_len() == 0 ? 0 : pages.ring_start() + pages.ring_len();
        if (end > slots) cut(main, main + end - slots);
        if (end > 0) cut(main + pages.ring_start(), main + std::min(end, slots));
        task.n_items = static_cast<int32_t>(n_items_ - task.first_item);
        new (&task.open) std::atomic<int32_t>(task.n_items);
      }
    }
  }

  // Entries of one page, or of several small ones, as attend_tile wants them.
  void Attend(int64_t item, int thread) {
    const StepScratch::Item& it = s_.items[item];
    const HeadPages pages = Pages(it.row, it.head);
    float *m = Partial(item), *l = m + group_, *acc = l + group_;
    std::fill(m, m + group_, -std::numeric_limits<float>::infinity());
    std::fill(l, l + int64_t{group_} * (d_ + 1), 0.0f);
    const int32_t slots = pages.format().slots, main = pages.main_len();
    for (int32_t at = it.begin; at < it.end;) {
      const int32_t physical = Physical(it.row, it.head, pages, at);
      const Slot s = at == it.begin ? it.first : pages.At(physical);
      const int32_t run = at >= main                   ? pages.ring_slots()
                          : slots < StepScratch::kTile ? StepScratch::kTile - at % StepScratch::kTile
                                                       : slots - s.index,
                    n = std::min(it.end - at, run);
      AttendTileArgs t{};
      const bool want = WantsAttention(it.row);
      t.q = Query(it.row, it.head);
      const Entries entries{pages, physical, s, n};
      Vectors(entries, it.row, s_.Tile(thread), &t);
      t.visible = Visible(entries, a_.rows[it.row].position, s_.Seen(thread));
      t.visible_stride = n;
      t.logits = want ? Attention(it.row, it.head * group_) + physical : nullptr;
      t.logits_stride = s_.z.stride;
      t.m = m, t.l = l, t.acc = acc;
      t.n = n, t.g = group_, t.d = d_, t.scale = a_.scale, t.cap = a_.cap;
      t.first_logit = at == 0 ? RestLogit(s.position()) : 0;
      at += n;
      if (at < it.end) {
        AskFor(pages.At(Physical(it.row, it.head, pages, at)), it.end - at, &t);
      } else if (item + 1 < n_items_) {
        const StepScratch::Item& next = s_.items[item + 1];
        AskFor(next.first, next.end - next.begin, &t);
      }
      kernels_.attend_tile(t);
    }
  }

  // What lies together from a slot on, of `count` entries at most.
  static void AskFor(const Slot& s, int32_t count, AttendTileArgs* t) {
    const int64_t n = std::min(count, s.f->slots - s.index);
    t->next_keys = {s.key(), n * s.f->key_bytes};
    // The scales of both lie behind the values.
    const uint8_t* end = s.f->scale_bytes > 0
                             ? reinterpret_cast<uint8_t*>(s.value_scales()) + n * s.f->scale_bytes
                             : s.value() + n * s.f->value_bytes;
    t->next_values = {s.value(), end - s.value()};
  }

  // Keys and values where they lie or brought together; those that the kernel does not take as they are
  // decoded and turned in scratch.
  void Vectors(const Entries& run, int32_t row, float* tile, AttendTileArgs* t) const {
    const PageFormat& f = *run.first.f;
    const bool turns = Turns(run.pages),
               codes_fit = f.group >= kLeastTileGroup && (f.group & (f.group - 1)) == 0;
    if (f.coding == EntryCoding::kVectors && !turns && (!f.coded() || codes_fit))
      return AsTheyAre(run, tile, t);
    t->type = KvType::kF32;
    float *keys = tile, *values = tile + int64_t{run.n} * d_;
    t->k = keys, t->v = values;
    run.ForPages([&](const Slot& s, int32_t first, int32_t n) {
      float* x = keys + int64_t{first} * d_;
      run.pages.ReadKeys(s, n, x);
      run.pages.ReadValues(s, n, values + int64_t{first} * d_);
      const int32_t* at = Plan(row).in_cache ? &s.rank() : &s.position();
      for (int32_t i = 0; turns && i < n; ++i)
        angles_.Turn(kernels_, a_.pairing, at[i], x + int64_t{i} * d_, 1);
    });
  }

  void AsTheyAre(const Entries& run, float* tile, AttendTileArgs* t) const {
    const PageFormat& f = *run.first.f;
    t->type = f.type, t->value_type = f.value_type(), t->group = f.coded() ? f.group : 0;
    if (run.in_one_page()) {
      t->k = run.first.key(), t->v = run.first.value();
      t->k_scales = run.first.key_scales(), t->v_scales = run.first.value_scales();
      return;
    }
    uint8_t *keys = reinterpret_cast<uint8_t*>(tile), *values = keys + run.n * f.key_bytes,
            *key_scales = values + run.n * f.value_bytes, *value_scales = key_scales + run.n * f.scale_bytes;
    run.ForPages([&](const Slot& s, int32_t first, int32_t n) {
      const auto copy = [first, n](uint8_t* to, const void* from, int64_t bytes) {
        if (bytes > 0) std::memcpy(to + first * bytes, from, static_cast<size_t>(n * bytes));
      };
      copy(keys, s.key(), f.key_bytes), copy(values, s.value(), f.value_bytes);
      copy(key_scales, s.key_scales(), f.scale_bytes), copy(value_scales, s.value_scales(), f.scale_bytes);
    });
    t->k = keys, t->v = values;
    t->k_scales = reinterpret_cast<uint16_t*>(key_scales);
    t->v_scales = reinterpret_cast<uint16_t*>(value_scales);
  }

  // Bytes [group, n] for entries that some query heads do not see, or that the layer's window has left; null:
  // all seen.
  const uint8_t* Visible(const Entries& run, int32_t newest, uint8_t* bytes) const {
    const auto left = [&](int32_t position) { return a_.window > 0 && position <= newest - a_.window; };
    const bool by_head = run.first.f->seen_masks;
    bool hidden = by_head;
    if (!hidden && a_.window > 0) {
      run.ForPages([&](const Slot& s, int32_t, int32_t n) {
        hidden = hidden || std::any_of(&s.position(), &s.position() + n, left);
      });
    }
    if (!hidden) return nullptr;
    run.ForPages([&](const Slot& s, int32_t first, int32_t n) {
      const int32_t* positions = &s.position();
      const uint32_t* masks = by_head ? &s.seen() : nullptr;
      for (int32_t j = 0; j < group_; ++j) {
        uint8_t* out = bytes + int64_t{j} * run.n + first;
        for (int32_t i = 0; i < n; ++i)
          out[i] = (masks == nullptr || (masks[i] >> j & 1) != 0) && !left(positions[i]);
      }
    });
    return bytes;
  }

  // Of a query head's attention, its segments and its sink together.
  struct Joined {
    float m, inverse;  // the greatest logit, 1 over the sum of exponentials, 0 where nothing is seen
    float nobodys;     // what the sink has of it
  };
  // add(part, e): of every segment in which something is seen, in order; e is its share before `inverse`.
  template <typename F>
  Joined JoinedOf(int32_t r, int32_t g, int32_t j, F&& add) const {
    const StepScratch::HeadTask& task = Task(r, g);
    const float none = -std::numeric_limits<float>::infinity(),
                sink = a_.sinks ? Raw(a_.sinks)[g * group_ + j] : none;
    float m = sink;
    for (int32_t i = 0; i < task.n_items; ++i) m = std::max(m, Partial(task.first_item + i)[j]);
    const float of_sink = a_.sinks ? std::exp(sink - m) : 0.0f;
    float l = of_sink;
    for (int32_t i = 0; i < task.n_items; ++i) {
      const float* part = Partial(task.first_item + i);
      if (part[group_ + j] == 0.0f) continue;
      const float e = std::exp(part[j] - m);
      l += e * part[group_ + j];
      add(part, e);
    }
    const float inverse = l > 0 ? 1.0f / l : 0.0f;
    return {l > 0 ? m : 0, inverse, of_sink * inverse};
  }

  // Joins the segments of one head in order and turns logits into probabilities.
  void Join(int32_t r, int32_t g) const {
    const HeadPages pages = Pages(r, g);
    for (int32_t j = 0; j < group_; ++j) {
      float* out = Raw(a_.out) + (int64_t{r} * a_.n_heads + g * group_ + j) * d_;
      std::fill(out, out + d_, 0.0f);
      const Joined all = JoinedOf(r, g, j, [&](const float* part, float e) {
        kernels_.axpy(e, part + 2 * group_ + int64_t{j} * d_, d_, out);
      });
      for (int32_t x = 0; x < d_; ++x) out[x] *= all.inverse;
      if (!WantsAttention(r)) continue;
      float* p = Attention(r, g * group_ + j);
      pages.ForSpans([&](int32_t first, int32_t n) { kernels_.weights(all.m, all.inverse, n, p + first); });
    }
  }

  // softmax(gain z) from softmax(z): its power, normalised together with that of what a sink has.
  void Sharpen(int32_t r, int32_t g) const {
    const StepPlan& plan = Plan(r);
    const float gain =
        LengthGain(a_.rows[r].position + 1, plan.gain_length, plan.gain_scaled, plan.gain_floor, d_);
    if (gain == 1.0f) return;
    const HeadPages pages = Pages(r, g);
    for (int32_t j = 0; j < group_; ++j) {
      float* p = Attention(r, g * group_ + j);
      const float nobodys = JoinedOf(r, g, j, [](const float*, float) {}).nobodys;
      double sum = nobodys > 0 ? static_cast<double>(std::pow(nobodys, gain)) : 0;
      pages.ForSpans([&](int32_t first, int32_t n) {
        for (int32_t i = first; i < first + n; ++i)
          p[i] = std::pow(p[i], gain), sum += static_cast<double>(p[i]);
      });
      const float inverse = sum > 0 ? static_cast<float>(1 / sum) : 0.0f;
      pages.ForSpans([&](int32_t first, int32_t n) {
        for (int32_t i = first; i < first + n; ++i) p[i] *= inverse;
      });
    }
  }

  void EndHead(int32_t r, int32_t g, int thread) {
    Join(r, g);
    const StepPlan& plan = Plan(r);
    if (plan.attention) KeepAttention(r, g, thread);
    if (plan.needs_attention && plan.gain_length > 0) Sharpen(r, g);
    const auto update = [&](int32_t h) { Update(r, h, h * group_, (h + 1) * group_, thread); };
    if (!plan.one_set && !a_.rows[r].cache->layout->layer_books) return update(g);
    // All heads are looked at before the first is reduced, and they add to shared codebooks in order.
    if (s_.row_open[r].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (!plan.one_set) {
      for (int32_t h = 0; h < g_; ++h) update(h);
      return;
    }
    float* mean = Attention(r, 0);
    GroupMean(r, 0, 0, a_.n_heads, mean);
    for (int32_t h = 1; h < g_; ++h) {
      float* own = Attention(r, h * group_);
      Pages(r, 0).ForSpans([&](int32_t at, int32_t n) { std::copy_n(mean + at, n, own + at); });
    }
    for (int32_t h = 0; h < g_; ++h) Update(r, h, -1, -1, thread);
  }

  // By ascending position. Entries of main are out of order only where some left one by one.
  void KeepAttention(int32_t r, int32_t g, int thread) const {
    const StepPlan& plan = Plan(r);
    const HeadPages pages = Pages(r, g);
    const int32_t main = pages.main_len(), len = pages.len();
    const auto physical = [&](int32_t i) {
      return i < main ? i : main + (pages.ring_start() + i - main) % pages.ring_slots();
    };
    const auto position = [&](int32_t i) { return pages.At(physical(i)).position(); };
    bool ascending = true;
    for (int32_t i = 1; i < len && ascending; ++i) ascending = position(i) > position(i - 1);
    const StepLines lines = s_.Lines(thread, d_);
    if (!ascending) SortByPosition(pages, lines.keys, lines.order);
    for (int32_t i = 0; i < len; ++i) {
      const int32_t from = ascending ? physical(i) : lines.order[i];
      for (int32_t h = g * group_; h < (g + 1) * group_; ++h)
        Raw(plan.attention)[(int64_t{a_.layer} * a_.n_heads + h) * plan.attention_stride + i] =
            Attention(r, h)[from];
    }
  }

  // The mean attention of query heads [first, end) into `out`, which may be the line of the first.
  void GroupMean(int32_t r, int32_t g, int32_t first, int32_t end, float* out) const {
    const float count = static_cast<float>(end - first);
    Pages(r, g).ForSpans([&](int32_t at, int32_t n) {
      for (int32_t h = first + 1; h < end; ++h)
        kernels_.add(Attention(r, h) + at, n, Attention(r, first) + at);
      const float* sum = Attention(r, first) + at;
      for (int32_t i = 0; i < n; ++i) out[at + i] = sum[i] / count;
    });
  }

  void Update(int32_t r, int32_t g, int32_t first, int32_t end, int thread) const {
    const StepPlan& plan = Plan(r);
    float* p = plan.needs_attention ? Attention(r, g * group_) : nullptr;
    if (p != nullptr && first >= 0) GroupMean(r, g, first, end, p);
    const HeadUpdate update{kernels_,
                            plan,
                            a_,
                            a_.rows[r],
                            g,
                            Pages(r, g),
                            p,
                            Raw(a_.v) + (int64_t{r} * g_ + g) * d_,
                            s_.Lines(thread, d_)};
    update.Run();
  }

  const KernelTable& kernels_;
  ThreadPool* pool_;
  const StepArgs& a_;
  const StepScratch& s_;
  const int32_t first_, end_, g_, d_, group_;
  const Angles angles_;
  int64_t n_items_ = 0;
};

}  // namespace

int64_t CpuDevice::StepScratchBytes(const StepShape& shape) const {
  return StepScratch::Bytes(shape, pool_->n_threads());
}

Status CpuDevice::FillAngles(Stream*, const AngleArgs& a) {
  const int32_t d = a.rope->head_dim();
  for (int64_t i = 0; i < a.n; ++i) {
    float* row = Raw(a.out) + i * d;
    a.rope->Angles((a.first + i) * a.every, row, row + d / 2, a.unit ? 0 : 1);
  }
  return {};
}

Status CpuDevice::Step(Stream*, const StepArgs& a) {
  const StepScratch scratch(a.shape, pool_->n_threads(), Raw(a.scratch));
  for (int32_t first = 0; first < a.n_rows;) {
    const int32_t end = EndOfWave(a, first, [&](const StepRow& row) { return OnlyAppends(row, a.layer); });
    Wave(kernels_, pool_.get(), a, scratch, first, end).Run();
    first = end;
  }
  return {};
}

}  // namespace kvc::cpu

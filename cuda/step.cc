// One token of every row in one layer: the new entries, the attention of every head over its pages, and what
// the methods ask for. Byte model: every entry's key and value are read once for all query heads of its
// group.
//
// A head is cut into segments by what there is in all, whatever the device, so that sums are in the same
// order in every run; a block reads one segment (attend_step.cu and those beside it), the last of a head
// joins them. What becomes of a head's entries then is one block's work (step_update.cu). Records of the host
// follow by the rules that the kernels follow, without asking the device, unless an entry's place decides
// where one is missing (rings).
#include <algorithm>
#include <cmath>

#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

// What becomes of the records of one head when the step is done there; false: only the device knows.
class HostRecords {
 public:
  HostRecords(const StepRow& row, int32_t layer)
      : row_(row), c_(*row.cache), plan_(PlanOf(row, layer)), layer_(layer) {}

  void Append() {
    for (int32_t g = 0; g < heads(); ++g) {
      if (ring(g) >= 0) {
        ++c_.ring[head(g) * kRingFields + kRingLen];
      } else {
        ++c_.len[head(g)];
      }
    }
  }
  int32_t Kept(int32_t g) const {  // after the reduction
    return plan_.KeptOf(head(g), HeadLen(c_, head(g)));
  }
  bool Reduces(int32_t g) const { return plan_.Reduces(head(g), HeadLen(c_, head(g))); }
  bool Holds(int32_t g, int32_t n) const { return plan_.held != nullptr && n > plan_.held[head(g)]; }
  // Whether entries may settle once so many are in the ring.
  bool Settles(int32_t g) const {
    return ring(g) >= 0 && c_.ring[head(g) * kRingFields + kRingLen] >= c_.layout->ring_slots(head(g));
  }
  // Something is to be done to heads after the attention.
  bool HasUpdate() const {
    if (plan_.n_instrs > 0) return true;
    for (int32_t g = 0; g < heads(); ++g) {
      if (Reduces(g) || (!plan_.ends_later && (Holds(g, Kept(g)) || Settles(g)))) return true;
    }
    return false;
  }
  bool HasEnd() const {
    for (int32_t g = 0; g < heads(); ++g) {
      if (Holds(g, HeadLen(c_, head(g))) || Settles(g)) return true;
    }
    return false;
  }
  // The lengths after the update, where they follow from the numbers.
  bool Follow(bool end_only) {
    bool known = true;
    for (int32_t g = 0; g < heads(); ++g) {
      const bool reduces = !end_only && Reduces(g);
      const int32_t kept = reduces ? Kept(g) : HeadLen(c_, head(g));
      const bool holds = (end_only || !plan_.ends_later) && Holds(g, kept);
      if ((reduces || holds) && row_.dropped != nullptr) row_.dropped->store(true, std::memory_order_relaxed);
      if (ring(g) >= 0) {
        known = known && !reduces && !holds && !Settles(g);
        continue;
      }
      c_.len[head(g)] = holds ? plan_.held[head(g)] : kept;
      if ((reduces || holds) && plan_.in_cache) c_.rotated[head(g)] = 0;
    }
    return known;
  }

 private:
  int32_t heads() const { return c_.layout->n_kv_heads; }
  int32_t head(int32_t g) const { return layer_ * heads() + g; }
  int32_t ring(int32_t g) const { return c_.ring == nullptr ? -1 : RingFormat(c_, head(g)); }
  const StepRow& row_;
  const CacheView& c_;
  const StepPlan& plan_;
  const int32_t layer_;
};

// What the kernels of a wave leave for each other.
struct StepBytes {
  int64_t heads, group, d, items, stride, settle;  // heads: of all rows
  bool attention, mean, updates;
  int64_t pages;  // that a head chooses from; 0: none does

  int64_t sort_stride() const { return PowerOfTwoFrom(stride); }
  int64_t update() const { return (UpdateBytes(stride, sort_stride(), settle) + 255) / 256 * 256; }
  int64_t choice() const {
    return 2 * Packet::Size<int32_t>(heads * pages) + Packet::Size<float>(heads * pages) +
           Packet::Size<uint8_t>(heads * pages);
  }
  int64_t all() const {
    return Packet::Size<float>(heads * group * d) + Packet::Size<float>(items * group * (d + 2)) +
           (attention ? Packet::Size<float>(heads * group * stride) : 0) +
           (mean ? Packet::Size<float>(heads * stride) : 0) +
           (updates ? Packet::Size<uint8_t>(heads * update()) : 0) + choice();
  }
};

// Of a wave's packet, beside the records of its caches.
int64_t WaveBytes(int64_t n_rows, int32_t n_heads, int32_t n_kv_heads, int32_t d, int64_t n_items) {
  return Packet::Size<RowParams>(n_rows) + n_rows * Packet::Size<float>(d) + Packet::Size<double>(d / 2) +
         Packet::Size<Segment>(n_items) + Packet::Size<HeadSegments>(n_rows * n_kv_heads) +
         Packet::Size<int32_t>(n_rows * n_heads) + 3 * n_rows * Packet::Size<int32_t>(n_kv_heads) +
         n_rows * Packet::Size<Head>(n_kv_heads);
}

// Of a step. Where something is left beside the rest of a layer, the next one has room of its own, as long as
// that is little: what is left takes microseconds then, about as long as an attention.
struct StepRoom {
  int64_t bytes;  // of a layer
  int slots;      // layers
  // What there has to be for this shape and every smaller one, which may need more: two layers have room
  // then.
  int64_t reserved;
};
StepRoom RoomOf(const StepShape& s, const Tuning& tuning) {
  constexpr int64_t kMostOfTwo = 16 << 20;  // of a layer
  StepBytes bytes{};
  bytes.heads = int64_t{s.n_rows} * s.n_kv_heads, bytes.group = s.n_heads / s.n_kv_heads,
  bytes.d = s.head_dim;
  const int64_t longest = s.longest + s.ring_slots;
  bytes.items = MostSegments(bytes.heads * longest, bytes.heads, tuning);
  bytes.stride = (longest + 3) / 4 * 4;
  bytes.attention = bytes.mean = s.any_attention;
  bytes.updates = s.any_update || s.ring_slots > 0;
  bytes.settle = s.append_bytes / s.n_kv_heads;
  bytes.pages = s.any_choice ? longest / kLeastReadPage + 1 : 0;
  const int64_t all = bytes.all();
  if (!bytes.attention && !bytes.updates) return {all, 1, all};
  return {all, all <= kMostOfTwo ? LaunchOrder::kSlots : 1,
          std::max(all, LaunchOrder::kSlots * std::min(all, kMostOfTwo))};
}

// Whether the update looks at what the step brings, which the next layer's products overwrite.
bool ReadsValues(const StepPlan& plan) {
  return std::any_of(plan.instrs, plan.instrs + plan.n_instrs,
                     [](const StepInstr& i) { return i.op == StepOp::kAddPrior; });
}

class Wave {
 public:
  Wave(Stream* s, const StepArgs& a, int32_t first, int32_t end, bool end_only)
      : s_(s), a_(a), first_(first), n_(end - first), end_only_(end_only) {}

  Status Run() {
    const StepRow* rows = a_.rows + first_;
    const int32_t g = layout(0).n_kv_heads, d = layout(0).head_dim, group = a_.n_heads / g;
    bool observed = false, mean = false, updates = false, one = false, reads_values = false;
    int64_t stride = 1, settle = 0, pages = 0;
    for (int32_t r = 0; r < n_; ++r) {
      // The kernels find the new entry counted, and ids for those that leave a ring.
      if (!end_only_) HostRecords(rows[r], a_.layer).Append();
      const HostRecords host(rows[r], a_.layer);
      updates = updates || (end_only_ ? Plan(r).ends_later && host.HasEnd() : host.HasUpdate());
      observed = observed || Plan(r).attention;
      mean = mean || Plan(r).needs_attention;
      reads_values = reads_values || ReadsValues(Plan(r));
      one = one || layout(r).layer_books;
      settle = std::max(settle, SettleBytes(layout(r)));
      for (int32_t h = 0; h < g; ++h) {
        const int32_t head = a_.layer * g + h;
        stride = std::max<int64_t>(stride, rows[r].cache->len[head] + layout(r).ring_slots(head));
        if (ReadPages(r, h) > 0)
          pages = std::max<int64_t>(pages, rows[r].cache->len[head] / layout(r).main(head).slots + 1);
      }
    }
    if (end_only_ && !updates) return {};
    stride = (stride + 3) / 4 * 4;
    // Nobody else looks at it.
    observed = observed && !end_only_, mean = mean && updates && !end_only_;
    const bool attention = observed || mean;
    const int64_t heads = int64_t{n_} * g;
    int64_t n_items = 0;
    if (!end_only_) Cut([&](int32_t, int32_t, const Segment&) { ++n_items; });
    int64_t bytes = WaveBytes(n_, a_.n_heads, g, d, n_items);
    for (int32_t r = 0; r < n_; ++r) bytes += Records(r).Bytes();
    const StepBytes own{heads, group, d, n_items, stride, settle, attention, mean, updates, pages};
    // Of the room that a step has for two layers this one has a half, and comes behind what the last layer in
    // it left beside; of what the layer between left, nothing is touched here.
    CudaStream& stream = StreamOf(s_);
    const StepRoom room = RoomOf(a_.shape, stream.traits().tuning);
    const auto slot = static_cast<uint8_t>(a_.layer % room.slots),
               own_slot = static_cast<uint8_t>(1u << slot);
    const bool first = first_ == 0 && !end_only_;  // of the layer
    const InOrder in_line(stream, {false, 0, first ? own_slot : LaunchOrder::kAllSlots});
    Scratch scratch(At(a_.scratch) + slot * room.bytes, room.bytes);
    Packet packet;
    KVC_RETURN_IF_ERROR(packet.Begin(s_, bytes));
    StepParams p{};
    p.n_rows = n_, p.n_heads = a_.n_heads, p.n_kv_heads = g, p.d = d, p.window = a_.window,
    p.scale = a_.scale, p.cap = a_.cap, p.sinks = At(a_.sinks);
    p.turn = TurnOf(a_.rope, a_.pairing, false, &packet);
    p.q = At(a_.q) + int64_t{first_} * a_.n_heads * d, p.k = At(a_.k) + int64_t{first_} * g * d;
    p.v = At(a_.v) + int64_t{first_} * g * d, p.out = At(a_.out) + int64_t{first_} * a_.n_heads * d;
    p.stride = attention || updates ? stride : 0;  // a launch that stays as it was is not sent anew
    p.choice = {scratch.Take<int32_t>(heads * pages), scratch.Take<int32_t>(heads * pages),
                scratch.Take<float>(heads * pages), scratch.Take<uint8_t>(heads * pages), pages};
    RowParams* to = packet.Add<RowParams>(n_, &p.rows);
    for (int32_t r = 0; r < n_; ++r) KVC_RETURN_IF_ERROR(WriteRow(r, p.choice, &packet, to + r));
    if (!end_only_) WriteSegments(n_items, heads, &packet, &p);
    const PageFormat* form = end_only_ ? nullptr : FormForTensorCores();
    // Nobody else reads the new entry or the queries.
    if (form == nullptr || pages > 0 || group > kHeads) p.turned = scratch.Take<float>(heads * group * d);
    // Earlier waves of the layer append to the same sessions. Nothing else writes a layer's entries between
    // the first of the stream's kept launches, in front of which there is a copy, and its attention.
    p.entries_lie = first && p.turned == nullptr;
    p.partial = scratch.Take<float>(n_items * group * (d + 2));
    if (attention) p.logits = scratch.Take<float>(heads * group * stride);
    if (mean) p.mean = scratch.Take<float>(heads * stride);
    if (updates)
      p.update = {scratch.Take<uint8_t>(heads * own.update()), own.update(), stride, own.sort_stride()};
    KVC_RETURN_IF_ERROR(scratch.Check());
    KVC_RETURN_IF_ERROR(packet.Send());
    if (!end_only_) KVC_RETURN_IF_ERROR(Attend(p, form, static_cast<int32_t>(n_items)));
    const bool beside = !end_only_ && !reads_values;
    const InOrder behind(stream, beside ? LaunchOrder{true, slot, 0} : stream.order());
    if (observed) KVC_RETURN_IF_ERROR(Check(ObserveAttention(p, stream), "a step"));
    if (updates) KVC_RETURN_IF_ERROR(Check(UpdateHeads(p, end_only_, one, stream), "a step"));
    for (int32_t r = 0; r < n_; ++r) {
      if (HostRecords(rows[r], a_.layer).Follow(end_only_)) continue;
      KVC_RETURN_IF_ERROR(Records(r).ReadBack(&packet.stream(), to[r].cache.heads));
    }
    return {};
  }

 private:
  const CacheLayout& layout(int32_t r) const { return *a_.rows[first_ + r].cache->layout; }
  const StepPlan& Plan(int32_t r) const { return PlanOf(a_.rows[first_ + r], a_.layer); }
  CacheRecords Records(int32_t r) const {
    const int32_t g = layout(r).n_kv_heads;
    return {*a_.rows[first_ + r].cache, a_.layer * g, g, RingSlots(layout(r))};
  }

  // Of main, by the attention of a row.
  int32_t ReadPages(int32_t r, int32_t g) const {
    const StepRow& row = a_.rows[first_ + r];
    const int32_t head = a_.layer * row.cache->layout->n_kv_heads + g;
    return end_only_ ? 0 : PagesRead(row, a_.layer, head, row.cache->len[head]);
  }
  int32_t ReadEntries(int32_t r, int32_t g) const {
    const CacheView& c = *a_.rows[first_ + r].cache;
    const int32_t head = a_.layer * c.layout->n_kv_heads + g;
    return EntriesRead(ReadPages(r, g), c.layout->page_slots, c.len[head]);
  }

  // form: FormForTensorCores.
  Status Attend(const StepParams& p, const PageFormat* form, int32_t n_items) const {
    CudaStream& stream = StreamOf(s_);
    if (p.turned != nullptr) KVC_RETURN_IF_ERROR(Check(AppendToHeads(p, stream), "a step"));
    if (p.choice.stride > 0) KVC_RETURN_IF_ERROR(Check(ChoosePages(p, stream), "a step"));
    const auto attend = form == nullptr ? AttendSegments(p, n_items, stream)
                        : form->coded() ? AttendSegmentsCodes(p, *form, n_items, stream)
                                        : AttendSegmentsMma(p, *form, n_items, stream);
    return Check(attend, "a step");
  }

  // Of everything that is read, where it is for the tensor cores; null: it is not.
  const PageFormat* FormForTensorCores() const {
    const PageFormat* form = CommonForm();
    return form != nullptr && (IsForMma(*form) || IsForCodes(*form)) ? form : nullptr;
  }
  // How all heads are stored, but for what lies beside keys and values and how many are in a page; null: in
  // several forms, with rings that are not for the tensor cores beside such codes, or with keys that do not
  // lie turned.
  const PageFormat* CommonForm() const {
    const PageFormat* first = nullptr;
    for (int32_t r = 0; r < n_; ++r) {
      const CacheView& c = *a_.rows[first_ + r].cache;
      const int32_t g = c.layout->n_kv_heads;
      for (int32_t head = a_.layer * g; head < (a_.layer + 1) * g; ++head) {
        const PageFormat& f = c.layout->formats[static_cast<size_t>(MainFormat(c, head))];
        if (first == nullptr) first = &f;
        if (f.coding != first->coding || f.type != first->type || f.value_type() != first->value_type() ||
            f.group != first->group || c.rotated[head] == 0)
          return nullptr;
        const int32_t ring = RingFormat(c, head);
        if (ring >= 0 && !(f.coded() && IsForRings(c.layout->formats[static_cast<size_t>(ring)])))
          return nullptr;
      }
    }
    return first;
  }

  // f(row, KV head, segment) for the segments of every head, its new entry included, in order.
  template <typename F>
  void Cut(F&& f) const {
    const int32_t g = layout(0).n_kv_heads;
    int64_t entries = 0;
    for (int32_t r = 0; r < n_; ++r) {
      for (int32_t h = 0; h < g; ++h)
        entries += ReadEntries(r, h) + RingLen(*a_.rows[first_ + r].cache, a_.layer * g + h);
    }
    const int32_t segment = SegmentOf(entries, StreamOf(s_).traits().tuning);
    for (int32_t r = 0; r < n_; ++r) {
      const CacheView& c = *a_.rows[first_ + r].cache;
      for (int32_t h = 0; h < g; ++h) {
        const int32_t head = a_.layer * g + h, main = ReadEntries(r, h);
        const auto cut = [&](int32_t first, int32_t end) {
          for (int32_t b = first; b < end; b += segment)
            f(r, h, Segment{r, h, b, std::min(b + segment, end)});
        };
        cut(0, main);
        if (RingFormat(c, head) < 0 || RingLen(c, head) <= 0) continue;
        const int32_t slots = c.layout->ring_slots(head), start = c.ring[head * kRingFields + kRingStart],
                      end = start + RingLen(c, head);
        if (end > slots) cut(main, main + end - slots);
        cut(main + start, main + std::min(end, slots));
      }
    }
  }

  void WriteSegments(int64_t n_items, int64_t n_heads, Packet* packet, StepParams* p) const {
    Segment* items = packet->Add<Segment>(n_items, &p->items);
    HeadSegments* heads = packet->Add<HeadSegments>(n_heads, &p->heads);
    for (int64_t i = 0; i < n_heads; ++i) heads[i] = {};
    const int64_t n = int64_t{n_} * a_.n_heads;
    std::fill_n(packet->Add<int32_t>(n, &p->arrived), n, 0);
    int32_t at = 0;
    Cut([&](int32_t r, int32_t h, const Segment& segment) {
      HeadSegments& of_head = heads[r * p->n_kv_heads + h];
      if (of_head.n++ == 0) of_head.first = at;
      items[at++] = segment;
    });
  }

  // What attention reads of a row, the pages that will be chosen counted.
  void WriteRead(int32_t r, const ChoiceRoom& room, const Head* heads, Packet* packet, RowParams* to) const {
    to->read = to->cache;
    const int32_t g = layout(r).n_kv_heads;
    bool any = false;
    for (int32_t h = 0; h < g; ++h) any = any || ReadPages(r, h) > 0;
    if (!any) return;
    to->reads_group = Plan(r).reads_group;
    int32_t* n_pages = packet->Add<int32_t>(g, &to->n_pages);
    const Head* on_device = nullptr;
    Head* read = packet->Add<Head>(g, &on_device);
    to->read.heads = const_cast<Head*>(on_device);
    for (int32_t h = 0; h < g; ++h) {
      n_pages[h] = ReadPages(r, h), read[h] = heads[h];
      if (n_pages[h] > 0) read[h].len = ReadEntries(r, h), read[h].ids = room.ids + (r * g + h) * room.stride;
    }
  }

  Status WriteRow(int32_t r, const ChoiceRoom& room, Packet* packet, RowParams* to) {
    const StepRow& row = a_.rows[first_ + r];
    const StepPlan& plan = Plan(r);
    const int32_t g = layout(r).n_kv_heads, d = layout(r).head_dim;
    *to = {};
    const Head* heads = nullptr;
    to->cache = Records(r).Write(packet, &heads);
    WriteRead(r, room, heads, packet, to);
    to->position = row.position;
    float* angles = packet->Add<float>(d, &to->angles);
    a_.rope->Angles(row.position, angles, angles + d / 2);
    to->n_instrs = plan.n_instrs;
    std::copy(plan.instrs, plan.instrs + kMaxStepInstrs, to->instrs);
    to->history = plan.history;
    to->needs_attention = plan.needs_attention, to->one_set = plan.one_set, to->evicts = plan.evicts;
    to->gain = plan.gain_length <= 0
                   ? 1.0f
                   : LengthGain(row.position + 1, plan.gain_length, plan.gain_scaled, plan.gain_floor, d);
    to->in_cache = plan.in_cache, to->ends_later = plan.ends_later, to->rank = plan.rank;
    to->select = plan.select, to->merge = plan.merge;
    to->n_cleared = plan.n_cleared, to->n_sinks = plan.n_sinks;
    if (plan.caps != nullptr) to->caps = packet->Copy(plan.caps + int64_t{a_.layer} * g, g);
    if (plan.held != nullptr) to->held = packet->Copy(plan.held + int64_t{a_.layer} * g, g);
    to->attention_stride = plan.attention_stride;
    if (plan.attention)
      to->attention = At(plan.attention) + int64_t{a_.layer} * a_.n_heads * plan.attention_stride;
    if (!plan.ring || end_only_) return {};
    int32_t &start = plan.ring_start[a_.layer], &n = plan.ring_len[a_.layer];
    to->query_ring =
        At(plan.ring) +
        (int64_t{plan.RingPlace(a_.layer)} * plan.ring_rows + (start + n) % plan.ring_rows) * a_.n_heads * d;
    n < plan.ring_rows ? ++n : start = (start + 1) % plan.ring_rows;
    return {};
  }

  Stream* s_;
  const StepArgs& a_;
  const int32_t first_, n_;
  const bool end_only_;
};

}  // namespace

// Kernels make the angles they need themselves; the table is for the parts of a step that other backends look
// up.
Status CudaDevice::FillAngles(Stream* s, const AngleArgs& a) {
  KVC_ENTER();
  const int32_t d = a.rope->head_dim();
  KVC_RETURN_IF_ERROR(CheckHeadSize(d));
  constexpr int32_t kAtOnce = 16;
  float rows[kAtOnce * kMostHeadSize];
  for (int64_t first = 0; first < a.n; first += kAtOnce) {
    const int64_t n = std::min<int64_t>(kAtOnce, a.n - first);
    for (int64_t i = 0; i < n; ++i) {
      float* row = rows + i * d;
      a.rope->Angles((a.first + first + i) * a.every, row, row + d / 2, a.unit ? 0 : 1);
    }
    KVC_RETURN_IF_ERROR(Write(s, (a.out + first * d).As<uint8_t>(), rows, 4 * n * d));
  }
  return {};
}

int64_t CudaDevice::StepScratchBytes(const StepShape& s) const { return RoomOf(s, traits_.tuning).reserved; }
// Rows of one session go one after the other, so that a wave has one of each at most.
Status CudaDevice::ReserveStep(Stream* s, Span<const StepRow> rows, const StepShape& shape) {
  KVC_ENTER();
  const int32_t g = shape.n_kv_heads;
  const int64_t heads = int64_t{shape.n_rows} * g, longest = shape.longest + shape.ring_slots;
  int64_t bytes = WaveBytes(shape.n_rows, shape.n_heads, g, shape.head_dim,
                            MostSegments(heads * longest, heads, traits_.tuning));
  for (size_t first = 0; first < rows.size();) {
    const CacheView& cache = *rows[first].cache;
    size_t end = first + 1;
    while (end < rows.size() && rows[end].cache == &cache) ++end;
    const int32_t more = RingSlots(*cache.layout) + static_cast<int32_t>(end - first);
    int64_t records = 0;
    for (int32_t layer = 0; layer < cache.layout->n_layers; ++layer)
      records = std::max(records, CacheRecords(cache, layer * g, g, more).Bytes());
    bytes += records;
    first = end;
  }
  return StreamOf(s).Reserve(bytes);
}

Status CudaDevice::Step(Stream* s, const StepArgs& a) {
  KVC_ENTER();
  KVC_RETURN_IF_ERROR(CheckHeadSize(a.rope->head_dim()));
  for (int32_t first = 0; first < a.n_rows;) {
    const int32_t end = EndOfWave(a, first, /*appending=*/false);
    KVC_RETURN_IF_ERROR(Wave(s, a, first, end, false).Run());
    first = end;
  }
  return {};
}

Status CudaDevice::EndStep(Stream* s, const StepArgs& a) {
  KVC_ENTER();
  for (int32_t r = 0; r < a.n_rows; ++r) {
    if (PlanOf(a.rows[r], a.layer).ends_later) KVC_RETURN_IF_ERROR(Wave(s, a, r, r + 1, true).Run());
  }
  return {};
}

}  // namespace kvc::cuda

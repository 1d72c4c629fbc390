// One token of every row in one layer: the new entries, the attention of every head over its pages, and what
// the methods ask for. Byte model: every entry's key and value are read once for all query heads of its
// group.
//
// A head is cut into segments by what there is in all and how many blocks the device is to have (tuning.cc:
// by its multiprocessors), so that on one device sums are in the same order in every run; a block reads one
// segment (attend_step.cu and those beside it), the last of a head joins them. What becomes of a head's
// entries then is one block's work (step_update.cu). Records of the host follow by the rules that the kernels
// follow (host_records.h); what those do not say comes back once for all layers, when the step has been
// issued (step_state.h).
#include <algorithm>

#include "cuda/host_records.h"
#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

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

// Of a packet with the rotations of a step's rows.
int64_t AngleBytes(int64_t n_rows, int32_t d) {
  return Packet::Size<double>(d / 2) + Packet::Size<float>(n_rows * d);
}
// Of a wave's packet, beside those and the records of its caches.
int64_t WaveBytes(int64_t n_rows, int32_t n_heads, int32_t n_kv_heads, int64_t n_items) {
  return Packet::Size<RowParams>(n_rows) + Packet::Size<Segment>(n_items) +
         Packet::Size<HeadSegments>(n_rows * n_kv_heads) + Packet::Size<int32_t>(n_rows * n_heads) +
         3 * n_rows * Packet::Size<int32_t>(n_kv_heads) + n_rows * Packet::Size<Head>(n_kv_heads);
}

// Of the records of all caches in a layer; of_cache(cache, its rows): without the heads that all rows but its
// first have of their own.
template <typename F>
int64_t RecordBytes(Span<const StepRow> rows, int32_t g, F&& of_cache) {
  int64_t bytes = 0;
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    const CacheView& cache = *rows[first].cache;
    while (end < rows.size() && rows[end].cache == &cache) ++end;
    const auto n = static_cast<int32_t>(end - first);
    bytes += of_cache(cache, n) + (n - 1) * Packet::Size<Head>(g);
  }
  return bytes;
}
// As its heads are now, of the layer that has most.
int64_t RecordBytesNow(const CacheView& cache, int32_t g, int32_t n_rows) {
  const int32_t more = RingSlots(*cache.layout, cache.layout->heads) + n_rows;
  int64_t most = 0;
  for (int32_t layer = 0; layer < cache.layout->n_layers; ++layer)
    most = std::max(most, CacheRecords(cache, layer * g, g, more).Bytes());
  return most;
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

// Whether rows of a session append at once, each to a slot of its own. Bounds of a page are made of all that
// it has by the block that fills it.
bool JoinsOthers(const StepRow& row, int32_t layer) {
  for (const PageFormat& f : row.cache->layout->formats) {
    if (f.key_bounds) return false;
  }
  return OnlyAppends(row, layer);
}

class Wave {
 public:
  Wave(Stream* s, const StepArgs& a, int32_t first, int32_t end, bool end_only)
      : s_(s),
        stream_(StreamOf(s)),
        a_(a),
        first_(first),
        n_(end - first),
        end_only_(end_only),
        behind_(stream_.behind()) {
    behind_.Count({a.rows + first, static_cast<size_t>(n_)});
    for (int32_t r = 0; r < n_; ++r) reads_part_ = reads_part_ || (!end_only && Plan(r).ReadsOf(a.layer) > 0);
  }

  Status Run() {
    KVC_RETURN_IF_ERROR(TakeReports());
    const int32_t g = layout(0).n_kv_heads, d = layout(0).head_dim, group = a_.n_heads / g;
    const Wants wants = Look();
    if (end_only_ && !wants.updates) return {};
    // Nobody else looks at it.
    const bool mean = wants.mean && wants.updates, attention = wants.observed || mean;
    const int64_t heads = int64_t{n_} * g, stride = wants.stride, pages = wants.pages;
    int64_t n_items = 0;
    if (!end_only_) Cut([&](int32_t, int32_t, const Segment&) { ++n_items; });
    HeadLengths* reports = nullptr;
    if (wants.asking > 0)
      KVC_RETURN_IF_ERROR(stream_.reports().Begin(&stream_, int64_t{wants.asking} * g, &reports));
    const StepBytes own{heads,        group,     d,    n_items,       stride,
                        wants.settle, attention, mean, wants.updates, pages};
    // Of the room that a step has for two layers this one has a half, and comes behind what the last layer in
    // it left beside; of what the layer between left, nothing is touched here.
    const StepRoom room = RoomOf(a_.shape, stream_.traits().tuning);
    const auto slot = static_cast<uint8_t>(a_.layer % room.slots),
               own_slot = static_cast<uint8_t>(1u << slot);
    const bool first = first_ == 0 && !end_only_;  // of the layer
    const InOrder in_line(stream_, {false, 0, first ? own_slot : LaunchOrder::kAllSlots});
    Scratch scratch(At(a_.scratch) + slot * room.bytes, room.bytes);
    Packet packet;
    RowAngles angles;
    KVC_RETURN_IF_ERROR(BeginPacket(n_items, &packet, &angles));
    StepParams p{};
    p.n_rows = n_, p.n_heads = a_.n_heads, p.n_kv_heads = g, p.d = d, p.window = a_.window,
    p.scale = a_.scale, p.cap = a_.cap, p.sinks = At(a_.sinks);
    p.turn = {angles.frequencies, a_.rope->attention_factor(), a_.rope->n_turning(), a_.pairing, false};
    p.angles = {At(a_.angles.fine), At(a_.angles.coarse)};
    p.q = At(a_.q) + int64_t{first_} * a_.n_heads * d, p.k = At(a_.k) + int64_t{first_} * g * d;
    p.v = At(a_.v) + int64_t{first_} * g * d, p.out = At(a_.out) + int64_t{first_} * a_.n_heads * d;
    p.stride = attention || wants.updates ? stride : 0;  // a launch that stays as it was is not sent anew
    p.choice = {scratch.Take<int32_t>(heads * pages), scratch.Take<int32_t>(heads * pages),
                scratch.Take<float>(heads * pages), scratch.Take<uint8_t>(heads * pages), pages};
    RowParams* to = packet.Add<RowParams>(n_, &p.rows);
    Head* heads_of_row = nullptr;
    for (int32_t r = 0; r < n_; ++r) {
      WriteHeads(r, &heads_of_row, &packet, to + r);
      WriteRow(r, angles, p.choice, heads_of_row, &reports, &packet, to + r);
    }
    if (!end_only_) WriteSegments(n_items, heads, &packet, &p);
    const PageFormat* form = end_only_ ? nullptr : FormForTensorCores();
    // Else nobody else reads the new entry or the queries.
    if (form == nullptr || pages > 0 || group > kHeads || behind_.any())
      p.turned = scratch.Take<float>(heads * group * d);
    // Earlier waves of the layer append to the same sessions. Nothing else writes a layer's entries between
    // the first of the stream's kept launches, in front of which there is a copy, and its attention.
    p.entries_lie = first && p.turned == nullptr;
    p.partial = scratch.Take<float>(n_items * group * (d + 2));
    if (attention) p.logits = scratch.Take<float>(heads * group * stride);
    if (mean) p.mean = scratch.Take<float>(heads * stride);
    if (wants.updates)
      p.update = {scratch.Take<uint8_t>(heads * own.update()), own.update(), stride, own.sort_stride()};
    KVC_RETURN_IF_ERROR(scratch.Check());
    KVC_RETURN_IF_ERROR(packet.Send());
    if (!end_only_) KVC_RETURN_IF_ERROR(Attend(p, form, static_cast<int32_t>(n_items)));
    const InOrder behind(stream_, wants.beside ? LaunchOrder{true, slot, 0} : stream_.order());
    if (wants.observed) KVC_RETURN_IF_ERROR(Check(ObserveAttention(p, stream_), "a step"));
    if (wants.updates) KVC_RETURN_IF_ERROR(Check(UpdateHeads(p, end_only_, wants.one, stream_), "a step"));
    Follow(to);
    return stream_.gathers() ? Status() : stream_.reports().Collect(&stream_);
  }

 private:
  // Of all rows.
  struct Wants {
    bool observed = false, mean = false, updates = false, one = false;
    bool beside = false;  // what is done behind the attention: the next layer need not wait for it
    int32_t asking = 0;   // rows whose lengths only the device will know
    int64_t stride = 1, settle = 0, pages = 0;
  };

  // What an earlier row left of the layer.
  Status TakeReports() const {
    bool expects = false;
    for (int32_t r = 0; r < n_; ++r) {
      const CacheView& c = *a_.rows[first_ + r].cache;
      expects = expects || stream_.reports().Expects(c, a_.layer * c.layout->n_kv_heads);
    }
    return expects ? stream_.reports().Collect(&stream_) : Status();
  }

  // Counts the new entries on the way.
  Wants Look() const {
    Wants w;
    w.beside = !end_only_;
    for (int32_t r = 0; r < n_ && !end_only_; ++r) HostRecords(a_.rows[first_ + r], a_.layer).Append();
    for (int32_t r = 0; r < n_; ++r) {
      const StepRow& row = a_.rows[first_ + r];
      const HostRecords host(row, a_.layer);
      w.updates = w.updates || (end_only_ ? Plan(r).ends_later && host.HasEnd() : host.HasUpdate());
      w.observed = w.observed || (Plan(r).attention && !end_only_);
      w.mean = w.mean || (Plan(r).needs_attention && !end_only_);
      w.one = w.one || layout(r).layer_books;
      w.asking += host.Known(end_only_) ? 0 : 1;
      w.settle = std::max(w.settle, SettleBytes(layout(r), Heads(r)));
      if (ReadsValues(Plan(r))) w.beside = false;
      for (int32_t g = 0; g < layout(r).n_kv_heads; ++g) {
        const int32_t head = a_.layer * layout(r).n_kv_heads + g;
        // The next layer's new entry goes where this one's is taken from.
        if (layout(r).shares_ring(head)) w.beside = false;
        // Ids for those that leave a ring.
        w.stride = std::max<int64_t>(w.stride, row.cache->len[head] + layout(r).ring_slots(head));
        if (ReadPages(r, g) > 0)
          w.pages = std::max<int64_t>(w.pages, row.cache->len[head] / layout(r).main(head).slots + 1);
      }
    }
    w.stride = (w.stride + 3) / 4 * 4;
    return w;
  }

  // Of the wave, with the rotations of all rows of the step where no layer in front has brought them.
  Status BeginPacket(int64_t n_items, Packet* packet, RowAngles* angles) const {
    const int32_t d = layout(0).head_dim;
    int64_t bytes = WaveBytes(n_, a_.n_heads, layout(0).n_kv_heads, n_items);
    for (int32_t r = 0; r < n_; ++r)
      bytes += Joins(r) ? Packet::Size<Head>(layout(r).n_kv_heads) : Records(r).Bytes();
    // What has been brought is there until the packets start over.
    const RowAngles* known = stream_.Fits(bytes) ? stream_.angles().Find(a_) : nullptr;
    if (known != nullptr) *angles = *known;
    KVC_RETURN_IF_ERROR(packet->Begin(s_, bytes + (known == nullptr ? AngleBytes(a_.n_rows, d) : 0)));
    if (known != nullptr) return {};
    const std::vector<double>& frequencies = a_.rope->frequencies();
    angles->frequencies = packet->Copy(frequencies.data(), static_cast<int64_t>(frequencies.size()));
    float* row = packet->Add<float>(int64_t{a_.n_rows} * d, &angles->angles);
    for (int32_t r = 0; r < a_.n_rows; ++r, row += d) a_.rope->Angles(a_.rows[r].position, row, row + d / 2);
    if (stream_.gathers()) stream_.angles().Note(a_, *angles);
    return {};
  }

  // The records of the host, now that nothing of the layer has failed.
  void Follow(const RowParams* sent) const {
    for (int32_t r = 0; r < n_; ++r) {
      const StepRow& row = a_.rows[first_ + r];
      HostRecords(row, a_.layer).Follow(end_only_);
      const int32_t g = layout(r).n_kv_heads;
      if (sent[r].report != nullptr) stream_.reports().Expect(*row.cache, a_.layer * g, g, sent[r].report);
    }
  }

  const CacheLayout& layout(int32_t r) const { return *a_.rows[first_ + r].cache->layout; }
  // Of the layer.
  Span<const HeadFormat> Heads(int32_t r) const {
    const auto g = static_cast<size_t>(layout(r).n_kv_heads);
    return {layout(r).heads.data() + static_cast<size_t>(a_.layer) * g, g};
  }
  const StepPlan& Plan(int32_t r) const { return PlanOf(a_.rows[first_ + r], a_.layer); }
  CacheRecords Records(int32_t r) const {
    const int32_t g = layout(r).n_kv_heads;
    return {*a_.rows[first_ + r].cache, a_.layer * g, g, RingSlots(layout(r), Heads(r))};
  }

  // Row r is of the session of the row in front of it.
  bool Joins(int32_t r) const { return r > 0 && behind_[r - 1] > 0; }
  // Of main, behind the row's own entry.
  int32_t Len(int32_t r, int32_t head) const { return a_.rows[first_ + r].cache->len[head] - behind_[r]; }
  // Of main, by the attention of a row.
  int32_t ReadPages(int32_t r, int32_t g) const {
    if (!reads_part_) return 0;
    const StepRow& row = a_.rows[first_ + r];
    const int32_t head = a_.layer * row.cache->layout->n_kv_heads + g;
    return PagesRead(row, a_.layer, head, Len(r, head));
  }
  int32_t ReadEntries(int32_t r, int32_t g) const {
    const CacheView& c = *a_.rows[first_ + r].cache;
    const int32_t head = a_.layer * c.layout->n_kv_heads + g;
    return EntriesRead(ReadPages(r, g), c.layout->page_slots, Len(r, head));
  }

  // form: FormForTensorCores.
  Status Attend(const StepParams& p, const PageFormat* form, int32_t n_items) const {
    if (p.turned != nullptr) KVC_RETURN_IF_ERROR(Check(AppendToHeads(p, stream_), "a step"));
    if (p.choice.stride > 0) KVC_RETURN_IF_ERROR(Check(ChoosePages(p, stream_), "a step"));
    const auto attend = form == nullptr ? AttendSegments(p, n_items, stream_)
                        : form->coded() ? AttendSegmentsCodes(p, *form, n_items, stream_)
                                        : AttendSegmentsMma(p, *form, n_items, stream_);
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
    const int32_t segment = SegmentOf(entries, stream_.traits().tuning);
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

  // *heads: as they were sent for the row in front of it, and for this one.
  void WriteHeads(int32_t r, Head** heads, Packet* packet, RowParams* to) const {
    const int32_t g = layout(r).n_kv_heads;
    *to = {};
    if (Joins(r)) {
      to->cache = Records(r).WriteAgain(to[-1].cache, packet, heads);
      for (int32_t h = 0; h < g; ++h) ++(*heads)[h].len;
    } else {
      to->cache = Records(r).Write(packet, heads);
      for (int32_t h = 0; h < g; ++h) (*heads)[h].len -= behind_[r];
    }
  }

  // *reports: where the next row that asks has its report; null: none asks.
  void WriteRow(int32_t r, const RowAngles& angles, const ChoiceRoom& room, const Head* heads,
                HeadLengths** reports, Packet* packet, RowParams* to) const {
    const StepRow& row = a_.rows[first_ + r];
    const StepPlan& plan = Plan(r);
    const int32_t g = layout(r).n_kv_heads, d = layout(r).head_dim;
    WriteRead(r, room, heads, packet, to);
    if (*reports != nullptr && !HostRecords(row, a_.layer).Known(end_only_))
      to->report = *reports, *reports += g;
    to->position = row.position;
    to->angles = angles.angles + int64_t{first_ + r} * d;
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
    if (!plan.ring || end_only_) return;
    int32_t &start = plan.ring_start[a_.layer], &n = plan.ring_len[a_.layer];
    to->query_ring =
        At(plan.ring) +
        (int64_t{plan.RingPlace(a_.layer)} * plan.ring_rows + (start + n) % plan.ring_rows) * a_.n_heads * d;
    n < plan.ring_rows ? ++n : start = (start + 1) % plan.ring_rows;
  }

  Stream* const s_;
  CudaStream& stream_;
  const StepArgs& a_;
  const int32_t first_, n_;
  const bool end_only_;
  bool reads_part_ = false;  // the attention of some row, of its heads
  RowsBehind& behind_;
};

}  // namespace

// Of positions that a step looks up for every entry; elsewhere kernels make their angles themselves.
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
// As if all rows were of one wave.
Status CudaDevice::ReserveStep(Stream* s, Span<const StepRow> rows, const StepShape& shape) {
  KVC_ENTER();
  const int32_t g = shape.n_kv_heads;
  const int64_t heads = int64_t{shape.n_rows} * g, longest = shape.longest + shape.ring_slots;
  const int64_t beside =
      AngleBytes(shape.n_rows, shape.head_dim) +
      WaveBytes(shape.n_rows, shape.n_heads, g, MostSegments(heads * longest, heads, traits_.tuning));
  int64_t reported = 0;
  for (const StepRow& row : rows)
    reported += row.cache->ring == nullptr ? 0 : row.cache->layout->n_heads_total();
  CudaStream& stream = StreamOf(s);
  stream.angles().Reserve(shape.n_rows);
  stream.behind().Reserve(shape.n_rows);
  KVC_RETURN_IF_ERROR(stream.reports().Reserve(reported));
  // Heads are counted one by one only where there is no room for whatever they hold: the GPU waits meanwhile.
  const auto most = [g](const CacheView& c, int32_t) { return CacheRecords(c, 0, g, 0).MostBytes(); };
  const auto now = [g](const CacheView& c, int32_t n) { return RecordBytesNow(c, g, n); };
  if (stream.HasRoom(beside + RecordBytes(rows, g, most))) return {};
  return stream.Reserve(beside + RecordBytes(rows, g, now));
}

Status CudaDevice::Step(Stream* s, const StepArgs& a) {
  KVC_ENTER();
  KVC_RETURN_IF_ERROR(CheckHeadSize(a.rope->head_dim()));
  for (int32_t first = 0; first < a.n_rows;) {
    const int32_t end = EndOfWave(a, first, [&](const StepRow& row) { return JoinsOthers(row, a.layer); });
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

// Whole layers in and out of the cache: what compaction after a prompt and a second prompt need.
#include <algorithm>

#include "lib/cache/kv_cache.h"

namespace kvc {
namespace {

// Pages that nobody owns yet: what is left of them is given back, whatever happens.
class TakenPages {
 public:
  explicit TakenPages(PageArena* arena) : arena_(arena) {}
  TakenPages(TakenPages&& o) noexcept : arena_(o.arena_), ids_(std::move(o.ids_)), used_(o.used_) {
    o.ids_.clear();
  }
  ~TakenPages() {
    if (used_ < ids_.size()) arena_->Release(ids_.data() + used_, ids_.size() - used_);
  }
  Status Take(int32_t n) { return arena_->Take(n, &ids_); }
  int32_t Next() { return ids_[used_++]; }

 private:
  PageArena* arena_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

// The records of one head, while they are being replaced.
struct HeadRecords {
  std::vector<int32_t> pages, books[2];
  int32_t formats[4];
  int32_t len, ring[kRingFields], book_len[2];
  uint8_t rotated, stored;
};

}  // namespace

// What one layer's heads held, put back unless the new content holds.
class KvCache::Replacement {
 public:
  Replacement(KvCache* cache, int32_t layer) : c_(cache), first_(layer * cache->layout_->n_kv_heads) {
    for (int32_t i = first_; i < end(); ++i) {
      HeadRecords r{};
      r.len = c_->view_.len[i], r.rotated = c_->view_.rotated[i], r.stored = c_->view_.stored[i];
      for (int kind = 0; kind < kKinds; ++kind) r.formats[kind] = c_->FormatOf(i, kind);
      r.pages.assign(c_->List(i, 0).ids, c_->List(i, 0).ids + *c_->List(i, 0).n);
      if (c_->view_.ring != nullptr) std::copy_n(c_->view_.ring + i * kRingFields, kRingFields, r.ring);
      for (int which = 0; c_->view_.books != nullptr && which < 2; ++which) {
        const PageList list = c_->List(i, 2 + which);
        r.books[which].assign(list.ids, list.ids + *list.n);
        r.book_len[which] = c_->view_.book_len[2 * i + which];
      }
      old_.push_back(std::move(r));
    }
  }
  ~Replacement() {
    if (kept_) return;
    // The new pages go, with their bytes, and the old ones come back, whose bytes were counted all the time.
    for (int32_t i = first_; i < end(); ++i) {
      c_->ReleaseHead(i);
      const HeadRecords& r = old_[static_cast<size_t>(i - first_)];
      c_->view_.len[i] = r.len, c_->view_.rotated[i] = r.rotated, c_->view_.stored[i] = r.stored;
      std::copy(r.pages.begin(), r.pages.end(), c_->List(i, 0).ids);
      *c_->List(i, 0).n = static_cast<int32_t>(r.pages.size());
      if (c_->view_.ring != nullptr) std::copy_n(r.ring, kRingFields, c_->view_.ring + i * kRingFields);
      for (int which = 0; c_->view_.books != nullptr && which < 2; ++which) {
        std::copy(r.books[which].begin(), r.books[which].end(), c_->List(i, 2 + which).ids);
        *c_->List(i, 2 + which).n = static_cast<int32_t>(r.books[which].size());
        c_->view_.book_len[2 * i + which] = r.book_len[which];
      }
    }
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  // The old pages go. Takes no memory: nothing undoes half of it.
  void Keep() {
    kept_ = true;
    for (int32_t i = first_; i < end(); ++i) {
      const HeadRecords& r = old_[static_cast<size_t>(i - first_)];
      Release(r.formats[0], r.pages.data(), r.pages.size());
      if (r.formats[1] >= 0 && r.ring[kRingPage] >= 0) Release(r.formats[1], &r.ring[kRingPage], 1);
      for (int which = 0; which < 2; ++which)
        Release(r.formats[2 + which], r.books[which].data(), r.books[which].size());
    }
  }

 private:
  int32_t end() const { return first_ + c_->layout_->n_kv_heads; }
  void Release(int32_t format, const int32_t* ids, size_t n) {
    if (n == 0) return;
    PageArena& arena = c_->Arena(format);
    arena.Release(ids, n);
    c_->bytes_ -= static_cast<int64_t>(n) * arena.page_bytes();
  }
  KvCache* c_;
  const int32_t first_;
  std::vector<HeadRecords> old_;
  bool kept_ = false;
};

// Which heads of a layer keep vectors, because their codes would take more. They have no directions then.
void KvCache::ChoosePlain(const StoreSpec& spec, std::vector<int32_t>* directions,
                          std::vector<uint8_t>* stored) const {
  const int32_t g = layout_->n_kv_heads, together = Deciding();
  for (int32_t begin = 0; IsCoded(spec.layer * g) && begin < g; begin += together) {
    int64_t codes = 0, plain = 0;
    for (int32_t i = begin; i < begin + together; ++i) {
      const int32_t head = spec.layer * g + i, pages = PagesFor(spec.kept[i]);
      const HeadFormat& h = layout_->heads[static_cast<size_t>(head)];
      if (h.plain < 0) return;
      codes += pages * Arena(h.main).page_bytes() + RingBytes(*layout_, head);
      for (size_t which = 0; which < 2; ++which)
        codes += PagesFor((*directions)[2 * static_cast<size_t>(i) + which]) * DirectionBytes(*layout_);
      plain += pages * Arena(h.plain_all).page_bytes();
    }
    if (codes <= plain) continue;
    for (int32_t i = begin; i < begin + together; ++i) {
      const bool all_see = spec.all_see != nullptr && spec.all_see[i] != 0;
      (*stored)[static_cast<size_t>(i)] = all_see ? kStoredPlainAll : kStoredPlain;
      (*directions)[2 * static_cast<size_t>(i)] = (*directions)[2 * static_cast<size_t>(i) + 1] = 0;
    }
  }
}

Status KvCache::Store(Stream* stream, const StoreSpec& spec, DeviceBuffer<uint8_t>* scratch) {
  Device* device = arenas_->device();
  const DeviceMemory memory{device, meter()};
  const int32_t g = layout_->n_kv_heads, first = spec.layer * g;
  const LayerView& from = spec.from;
  const bool coded = IsCoded(first);
  int64_t n_codes = 0;  // of scratch and operation alike: other layers of the model may have codes
  for (int32_t i = 0; coded && i < g; ++i)
    n_codes = layout_->layer_books ? n_codes + spec.kept[i] : std::max<int64_t>(n_codes, spec.kept[i]);
  // Keys that share scales take room by the page, whatever n_codes.
  const int64_t longest = *std::max_element(from.len, from.len + g);
  KVC_RETURN_IF_ERROR(
      scratch->Reserve(memory, device->StoreScratchBytes(*layout_, longest, n_codes), "codes of one layer"));
  std::vector<int32_t> directions(2 * static_cast<size_t>(g), 0);
  if (coded) {
    KVC_RETURN_IF_ERROR(device->CodeLayer(stream, {layout_.get(), spec.layer, from, spec.turning, spec.marks,
                                                   spec.stride, scratch->raw(), n_codes, directions.data()}));
  }
  std::vector<uint8_t> stored(static_cast<size_t>(g), kStoredMain);
  ChoosePlain(spec, &directions, &stored);
  const auto format_of = [&](int32_t i, int kind) {
    return FormatAs(stored[static_cast<size_t>(i)], first + i, kind);
  };
  const auto in_main = [&](int32_t i) {
    return stored[static_cast<size_t>(i)] != kStoredMain ? spec.kept[i]
                                                         : MainAfterStore(*layout_, first + i, spec.kept[i]);
  };
  // Pages of the new content, before anything changes.
  std::vector<TakenPages> taken;
  for (const auto& arena : arenas_of_) taken.emplace_back(arena.get());
  std::vector<int32_t> wanted(arenas_of_.size(), 0);
  int32_t widest = 0, widest_book = 0;
  for (int32_t i = 0; i < g; ++i) {
    const int32_t pages = PagesFor(in_main(i));
    wanted[static_cast<size_t>(format_of(i, 0))] += pages;
    widest = std::max(widest, pages);
    if (format_of(i, 1) >= 0 && !layout_->late_rings) ++wanted[static_cast<size_t>(format_of(i, 1))];
    for (size_t which = 0; format_of(i, 2) >= 0 && which < 2; ++which) {
      const int32_t n = PagesFor(directions[2 * static_cast<size_t>(i) + which]);
      wanted[static_cast<size_t>(layout_->directions)] += n;
      widest_book = std::max(widest_book, n);
    }
  }
  for (size_t f = 0; f < taken.size(); ++f) KVC_RETURN_IF_ERROR(taken[f].Take(wanted[f]));
  KVC_RETURN_IF_ERROR(Widen(widest, widest_book));
  Replacement replacement(this, spec.layer);
  for (int32_t i = 0; i < g; ++i) {
    const int32_t head = first + i;
    Reset(head);
    view_.rotated[head] = spec.rotated[i], view_.stored[head] = stored[static_cast<size_t>(i)];
    const auto fill = [&](int kind, int32_t n) {
      const int32_t format = FormatOf(head, kind);
      const PageList list = List(head, kind);
      for (*list.n = 0; *list.n < n; ++*list.n) list.ids[*list.n] = taken[static_cast<size_t>(format)].Next();
      bytes_ += n * Arena(format).page_bytes();
    };
    view_.len[head] = in_main(i);
    fill(0, PagesFor(view_.len[head]));
    if (FormatOf(head, 1) >= 0 && !layout_->late_rings) {
      int32_t* ring = view_.ring + head * kRingFields;
      ring[kRingPage] = taken[static_cast<size_t>(FormatOf(head, 1))].Next();
      ring[kRingStart] = 0, ring[kRingLen] = spec.kept[i] - view_.len[head];
      bytes_ += Arena(FormatOf(head, 1)).page_bytes();
    }
    for (int which = 0; FormatOf(head, 2) >= 0 && which < 2; ++which) {
      view_.book_len[2 * head + which] = directions[static_cast<size_t>(2 * i + which)];
      fill(2 + which, PagesFor(view_.book_len[2 * head + which]));
    }
  }
  KVC_RETURN_IF_ERROR(device->StoreLayer(stream, {&view_, spec.layer, from, spec.turning, spec.marks,
                                                  spec.seen, spec.stride, scratch->raw(), n_codes}));
  replacement.Keep();
  ready_ = 0;
  return {};
}

Status KvCache::AppendFrom(Stream* stream, int32_t layer, const LayerView& kv, const KeyTurning& turning,
                           const int32_t* first, DeviceBuffer<uint8_t>* scratch) {
  Device* device = arenas_->device();
  const int32_t g = layout_->n_kv_heads;
  int32_t n_new = 0;
  for (int32_t i = 0; i < g; ++i) n_new = std::max(n_new, kv.len[i] - first[i]);
  KVC_RETURN_IF_ERROR(scratch->Reserve({device, meter()}, device->AppendScratchBytes(*layout_),
                                       "entries that leave the residual"));
  KVC_RETURN_IF_ERROR(EnsureHeads(stream, layer * g, (layer + 1) * g, n_new, false));
  KVC_RETURN_IF_ERROR(device->AppendLayer(stream, {&view_, layer, kv, turning, first, scratch->raw()}));
  for (int32_t i = 0; i < g; ++i) TrimHead(layer * g + i, NeedsNow(layer * g + i));
  LeaveWindow(layer);
  ready_ = 0;
  return {};
}

}  // namespace kvc

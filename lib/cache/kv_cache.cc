#include "lib/cache/kv_cache.h"

#include <algorithm>

namespace kvc {
namespace {

constexpr int32_t kFirstPages = 2;  // room in a head's list of pages at first

// Entries that leave the ring before n more are in it, `settle` at a time, of which the first fill a block
// that has `filled` already.
int32_t Leaving(int32_t ring_len, int32_t ring_slots, int32_t settle, int32_t filled, int32_t n) {
  const int32_t over = ring_len + n - ring_slots;
  return over < 0 ? 0 : ((over + filled) / settle + 1) * settle - filled;
}

}  // namespace

// ---- bytes ----

int64_t PageBytes(const CacheLayout& layout, int32_t head) { return layout.main(head).bytes; }

int64_t RingBytes(const CacheLayout& layout, int32_t head) {
  const int32_t ring = layout.heads[static_cast<size_t>(head)].ring;
  return ring < 0 || layout.ring_owner(head) != head ? 0 : layout.formats[static_cast<size_t>(ring)].bytes;
}

int64_t DirectionBytes(const CacheLayout& layout) {
  return layout.directions < 0 ? 0 : layout.formats[static_cast<size_t>(layout.directions)].bytes;
}

int32_t MainAfterStore(const CacheLayout& layout, int32_t head, int32_t n) {
  const HeadFormat& h = layout.heads[static_cast<size_t>(head)];
  if (h.ring < 0 || layout.late_rings || layout.main(head).coding == EntryCoding::kCodebook) return n;
  return std::max(n - (layout.ring_slots(head) - h.settle), 0) / h.settle * h.settle;
}

int64_t HeadBytes(const CacheLayout& layout, int32_t head, int32_t n) {
  const int64_t slots = layout.page_slots,
                pages = (int64_t{MainAfterStore(layout, head, n)} + slots - 1) / slots;
  int64_t bytes = pages * PageBytes(layout, head) + (layout.late_rings ? 0 : RingBytes(layout, head));
  if (layout.main(head).coding == EntryCoding::kCodebook) bytes += 2 * pages * DirectionBytes(layout);
  const int32_t plain = layout.heads[static_cast<size_t>(head)].plain;
  return plain < 0 ? bytes : std::min(bytes, pages * layout.formats[static_cast<size_t>(plain)].bytes);
}

// ---- life ----

KvCache::KvCache(std::shared_ptr<const CacheLayout> layout, PageArenas* arenas)
    : layout_(std::move(layout)), arenas_(arenas) {
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) {
    ring_slots_ = std::max(ring_slots_, layout_->ring_slots(i));
    ring_owners_.push_back(layout_->ring_owner(i));
  }
  taken_.resize(layout_->formats.size());
  wanted_.resize(layout_->formats.size());
}

Result<std::unique_ptr<KvCache>> KvCache::Create(std::shared_ptr<const CacheLayout> layout,
                                                 PageArenas* arenas) {
  std::unique_ptr<KvCache> cache(new KvCache(std::move(layout), arenas));
  for (const PageFormat& f : cache->layout_->formats) {
    Result<std::shared_ptr<PageArena>> arena = arenas->Of(f.bytes);
    if (!arena.ok()) return arena.status();
    cache->bases_.push_back(arena.value()->base());
    cache->arenas_of_.push_back(std::move(arena.value()));
  }
  const int64_t heads = cache->layout_->n_heads_total();
  KVC_RETURN_IF_ERROR(cache->lengths_.Allocate(cache->meter(), heads * (1 + kRingFields + 2 + 1 + 2),
                                               "records of the KV cache"));
  KVC_RETURN_IF_ERROR(cache->flags_.Allocate(cache->meter(), 2 * heads, "records of the KV cache"));
  KVC_RETURN_IF_ERROR(cache->Widen(kFirstPages, cache->layout_->directions >= 0 ? kFirstPages : 0));
  if (cache->meter()->counting()) return cache;
  for (int32_t i = 0; i < heads; ++i) cache->Reset(i);
  return cache;
}

KvCache::~KvCache() {
  if (view_.len != nullptr) Clear();
}

// The arrays behind the view.
void KvCache::Point() {
  const int64_t heads = layout_->n_heads_total();
  view_.layout = layout_.get();
  view_.bases = bases_.data();
  view_.pages = pages_.data(), view_.rotated = flags_.data();
  if (flags_.data() != nullptr) view_.stored = flags_.data() + heads;
  int32_t* at = lengths_.data();
  if (at == nullptr) return;
  view_.len = at, at += heads;
  view_.ring = ring_slots_ > 0 ? at : nullptr, at += heads * kRingFields;
  view_.book_len = layout_->directions >= 0 ? at : nullptr, at += heads * 2;
  n_pages_ = at, at += heads;
  n_books_ = at;
  view_.books = layout_->directions >= 0 ? books_.data() : nullptr;
}

// Room for so many pages in the lists of every head.
Status KvCache::Widen(int32_t pages, int32_t books) {
  const int64_t heads = layout_->n_heads_total();
  const auto widen = [&](Buffer<int32_t>& list, int64_t rows, int32_t* stride, int32_t wanted) -> Status {
    if (wanted <= *stride) return {};
    const int32_t wider = *stride == 0 ? wanted : std::max(wanted, *stride + *stride / 2);
    Buffer<int32_t> fresh;
    KVC_RETURN_IF_ERROR(fresh.Allocate(meter(), rows * wider, "records of the KV cache"));
    for (int64_t r = 0; list.data() != nullptr && r < rows; ++r)
      std::copy_n(list.data() + r * *stride, *stride, fresh.data() + r * wider);
    list = std::move(fresh);
    *stride = wider;
    if (view_.len != nullptr) Point();  // also where the other list cannot grow; a new cache waits for both
    return {};
  };
  KVC_RETURN_IF_ERROR(widen(pages_, heads, &view_.page_stride, pages));
  KVC_RETURN_IF_ERROR(widen(books_, 2 * heads, &view_.book_stride, books));
  Point();
  return {};
}

void KvCache::Reset(int32_t head) {
  view_.len[head] = 0, n_pages_[head] = 0;
  if (view_.ring != nullptr) {
    int32_t* ring = view_.ring + head * kRingFields;
    ring[kRingPage] = -1, ring[kRingStart] = ring[kRingLen] = 0;
  }
  n_books_[2 * head] = n_books_[2 * head + 1] = 0;
  if (view_.book_len != nullptr) view_.book_len[2 * head] = view_.book_len[2 * head + 1] = 0;
  view_.rotated[head] = layout_->main(head).coding != EntryCoding::kCodebook;
  view_.stored[head] = kStoredMain;
}

int32_t KvCache::FormatAs(uint8_t stored, int32_t head, int kind) const {
  const HeadFormat& h = layout_->heads[static_cast<size_t>(head)];
  if (kind == 0) return MainFormat(h, stored);
  if (kind == 1) return RingOwner(head) == head ? RingFormat(h, stored) : -1;
  return stored == kStoredMain && IsCoded(head) ? layout_->directions : -1;
}

// The ring's list has one place; its count is whether there is a page.
KvCache::PageList KvCache::List(int32_t head, int kind) const {
  if (kind == 0) return {view_.pages + int64_t{head} * view_.page_stride, n_pages_ + head};
  return {view_.books + (int64_t{head} * 2 + kind - 2) * view_.book_stride, n_books_ + 2 * head + kind - 2};
}

void KvCache::ReleaseHead(int32_t head) {
  for (int kind = 0; kind < kKinds; ++kind) {
    const int32_t format = FormatOf(head, kind);
    if (format < 0) continue;
    if (kind == 1) {
      const int32_t page = view_.ring[head * kRingFields + kRingPage];
      if (page >= 0) Arena(format).Release(page), bytes_ -= Arena(format).page_bytes();
      continue;
    }
    const PageList list = List(head, kind);
    Arena(format).Release(list.ids, static_cast<size_t>(*list.n));
    bytes_ -= *list.n * Arena(format).page_bytes();
  }
  Reset(head);
}

void KvCache::Clear() {
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) ReleaseHead(i);
  ready_ = 0;
  scattered_ = false;
}

Result<std::unique_ptr<KvCache>> KvCache::Fork() {
  Result<std::unique_ptr<KvCache>> made = Create(layout_, arenas_);
  if (!made.ok()) return made;
  KvCache& fork = *made.value();
  KVC_RETURN_IF_ERROR(fork.Widen(view_.page_stride, view_.book_stride));
  if (meter()->counting()) return made;
  std::copy_n(lengths_.data(), lengths_.size(), fork.lengths_.data());
  std::copy_n(flags_.data(), flags_.size(), fork.flags_.data());
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) {
    for (int kind = 0; kind < kKinds; ++kind) {
      const int32_t format = FormatOf(i, kind);
      if (format < 0) continue;
      if (kind == 1) {
        const int32_t page = view_.ring[i * kRingFields + kRingPage];
        if (page >= 0) Arena(format).AddReference(page);
        continue;
      }
      const PageList from = List(i, kind), to = fork.List(i, kind);
      std::copy_n(from.ids, *from.n, to.ids);
      for (int32_t p = 0; p < *from.n; ++p) Arena(format).AddReference(from.ids[p]);
    }
  }
  fork.bytes_ = bytes_, fork.scattered_ = scattered_;
  ready_ = 0;  // what was this cache's own is shared now
  return made;
}

// ---- numbers ----

int64_t KvCache::TotalEntries() const {
  int64_t n = 0;
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) n += Len(i);
  return n;
}

int32_t KvCache::MaxLen() const {
  int32_t n = 0;
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) n = std::max(n, Len(i));
  return n;
}

int64_t KvCache::LayerBytes(int32_t layer) const {
  int64_t bytes = 0;
  for (int32_t i = layer * layout_->n_kv_heads; i < (layer + 1) * layout_->n_kv_heads; ++i) {
    for (int kind = 0; kind < kKinds; ++kind) {
      const int32_t format = FormatOf(i, kind);
      if (format < 0) continue;
      const int32_t n = kind == 1 ? view_.ring[i * kRingFields + kRingPage] >= 0 : *List(i, kind).n;
      bytes += n * Arena(format).page_bytes();
    }
  }
  return bytes;
}

CodeRatios KvCache::Ratios(int32_t n_tokens) const {
  CodeRatios sum;
  if (layout_->directions < 0 || n_tokens <= 0) return sum;
  const double extra = 2.0 / layout_->head_dim, all = 2.0 * layout_->n_kv_heads * n_tokens;
  int32_t n_layers = 0;
  for (int32_t layer = 0; layer < layout_->n_layers; ++layer) {
    double coded = 0, plain = 0, directions = 0;
    if (!IsCoded(layer * layout_->n_kv_heads)) continue;
    ++n_layers;
    for (int32_t i = layer * layout_->n_kv_heads; i < (layer + 1) * layout_->n_kv_heads; ++i) {
      const bool codes = stored(i) == kStoredMain;
      coded += codes ? 2.0 * view_.len[i] : 0;
      plain += 2.0 * (codes ? RingLen(view_, i) : view_.len[i]);
      directions += view_.book_len[2 * i] + view_.book_len[2 * i + 1];
    }
    sum.paper += (directions * (1 + extra) + plain) / all;
    sum.exact += (directions + coded * extra + plain) / all;
  }
  sum.paper /= std::max(n_layers, 1), sum.exact /= std::max(n_layers, 1);
  return sum;
}

int64_t KvCache::record_bytes() const {
  return pages_.bytes() + books_.bytes() + lengths_.bytes() + flags_.bytes();
}

// ---- room ----

KvCache::Needs KvCache::NeedsNow(int32_t head) const {
  Needs needs{};
  needs.pages[0] = PagesFor(view_.len[head]);
  needs.pages[1] = RingLen(view_, head) > 0;
  for (int which = 0; view_.book_len != nullptr && which < 2; ++which)
    needs.pages[2 + which] = PagesFor(view_.book_len[2 * head + which]);
  return needs;
}

int32_t KvCache::LeavesRing(int32_t head, int32_t n) const {
  if (RingFormat(view_, head) < 0) return n;
  const int32_t settle = layout_->heads[static_cast<size_t>(head)].settle;
  // Blocks of keys are filled up: after a rewind main may end within one.
  const bool blocks = layout_->main(head).coding == EntryCoding::kKeyChannels;
  return Leaving(RingLen(view_, head), layout_->ring_slots(head), settle,
                 blocks ? view_.len[head] % settle : 0, n);
}

KvCache::Needs KvCache::NeedsOf(int32_t head, int32_t n, bool writes_all) const {
  const int32_t main = view_.len[head], leaving = LeavesRing(head, n);
  Needs needs{};
  needs.pages[0] = PagesFor(main + leaving);
  // Where entries will be stored next, though perhaps not by these n: whoever has room for more steps looks
  // no further.
  const bool slides = layout_->window(head / layout_->n_kv_heads) > 0;  // those heads only take entries
  needs.first_written[0] = writes_all && !slides ? 0 : main / layout_->page_slots;
  needs.pages[1] = RingFormat(view_, head) >= 0;
  if (FormatOf(head, 2) < 0) return needs;
  // Every vector that settles may bring a direction of its own. Where the layer's heads share books, those of
  // all of them: what a head holds decides when it settles.
  int32_t coming = leaving;
  if (layout_->layer_books) {
    coming = 0;
    for (int32_t i = head; layout_->book_owner(head) == head && i < head + layout_->n_kv_heads; ++i)
      coming += LeavesRing(i, n);
  }
  for (int which = 0; which < 2; ++which) {
    const int32_t len = view_.book_len[2 * head + which];
    needs.pages[2 + which] = PagesFor(len + coming);
    needs.first_written[2 + which] = len / layout_->page_slots;
  }
  return needs;
}

int64_t KvCache::BytesOf(int32_t head, const Needs& needs) const {
  int64_t bytes = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    const int32_t format = FormatOf(head, kind);
    if (format >= 0) bytes += needs.pages[kind] * Arena(format).page_bytes();
  }
  return bytes;
}

// Tokens until the ring of a head that stores codes is full, and some of it is coded.
int32_t KvCache::StepsToSettle(int32_t head) const {
  return layout_->ring_slots(head) - RingLen(view_, head);
}

// A head whose next codes may take it beyond what its vectors would take holds vectors from then on. That is
// looked at whenever entries are about to be coded, so it depends on nothing but what the head holds. Heads
// that share books do so together; where memory ended between two of them the others follow.
Status KvCache::EnsureCodesPay(Stream* stream, int32_t n) {
  if (layout_->directions < 0) return {};
  const int32_t together = Deciding();
  for (int32_t first = 0; first < layout_->n_heads_total(); first += together) {
    int64_t codes = 0, plain = 0;
    bool settles = false, begun = false;
    for (int32_t i = first; i < first + together; ++i) {
      const int32_t format = layout_->heads[static_cast<size_t>(i)].plain_all;
      begun = begun || (format >= 0 && stored(i) != kStoredMain);
      if (format < 0 || stored(i) != kStoredMain) continue;
      settles = settles || StepsToSettle(i) <= n;
      codes += BytesOf(i, NeedsOf(i, n, false));
      plain += PagesFor(Len(i) + n) * Arena(format).page_bytes();
    }
    if (!begun && (!settles || codes <= plain)) continue;
    for (int32_t i = first + together - 1; i >= first; --i) {  // who holds the books comes last
      if (stored(i) == kStoredMain) KVC_RETURN_IF_ERROR(MakePlain(stream, i));
    }
  }
  return {};
}

// Strong, and what the head holds is what was read from it before.
Status KvCache::MakePlain(Stream* stream, int32_t head) {
  const int32_t format = layout_->heads[static_cast<size_t>(head)].plain, n = Len(head);
  std::vector<int32_t> fresh;
  PageArena& arena = Arena(format);
  KVC_RETURN_IF_ERROR(arena.Take(PagesFor(n), &fresh));
  struct Untake {  // also when memory ends
    PageArena* arena;
    std::vector<int32_t>* ids;
    ~Untake() { arena->Release(ids->data(), ids->size()); }
  } untake{&arena, &fresh};
  KVC_RETURN_IF_ERROR(Widen(PagesFor(n), 0));
  KVC_RETURN_IF_ERROR(arenas_->device()->StorePlain(stream, {&view_, head, format, fresh.data()}));
  const bool was_rotated = rotated(head);
  ReleaseHead(head);
  std::copy(fresh.begin(), fresh.end(), List(head, 0).ids);
  n_pages_[head] = static_cast<int32_t>(fresh.size());
  bytes_ += n_pages_[head] * arena.page_bytes();
  fresh.clear();
  view_.len[head] = n, view_.stored[head] = kStoredPlain;
  set_rotated(head, was_rotated);
  return {};
}

int32_t& KvCache::PageAt(const PageSlot& s) const {
  if (s.kind == 1) return view_.ring[s.head * kRingFields + kRingPage];
  return List(s.head, s.kind).ids[s.index];
}

// Pages for the heads [first, end): what is missing is taken, what is shared and will be written is copied.
// Strong.
Status KvCache::EnsureHeads(Stream* stream, int32_t first, int32_t end, int32_t n, bool writes_all) {
  int32_t widest = 0, widest_book = 0;
  work_.clear(), copies_.clear();
  std::fill(wanted_.begin(), wanted_.end(), 0);
  for (int32_t i = first; i < end; ++i) {
    const Needs needs = NeedsOf(i, n, writes_all);
    widest = std::max(widest, needs.pages[0]);
    widest_book = std::max({widest_book, needs.pages[2], needs.pages[3]});
    for (int kind = 0; kind < kKinds; ++kind) {
      const int32_t holder = kind == 1 ? RingOwner(i) : i, format = FormatOf(holder, kind);
      if (format < 0 || (holder < i && holder >= first)) continue;
      const auto add = [&](int32_t index, bool copied) {
        work_.push_back({holder, kind, index, format, copied});
        ++wanted_[static_cast<size_t>(format)];
      };
      const int32_t held = kind == 1 ? view_.ring[holder * kRingFields + kRingPage] >= 0 : *List(i, kind).n;
      for (int32_t p = kind == 1 ? 0 : needs.first_written[kind]; p < held; ++p)
        if (Arena(format).Shared(PageAt({holder, kind, p, format, true}))) add(p, true);
      for (int32_t p = held; p < needs.pages[kind]; ++p) add(p, false);
    }
  }
  if (work_.empty()) return LendRings(), Status();
  struct Untake {  // also when memory ends
    KvCache* cache;
    ~Untake() {
      for (size_t f = 0; f < cache->taken_.size(); ++f) {
        std::vector<int32_t>& ids = cache->taken_[f];
        cache->Arena(static_cast<int32_t>(f)).Release(ids.data(), ids.size());
        ids.clear();
      }
    }
  } untake{this};
  Status status;
  for (size_t f = 0; f < taken_.size() && status.ok(); ++f) {
    status = Arena(static_cast<int32_t>(f)).Take(wanted_[f], &taken_[f]);
    wanted_[f] = 0;
  }
  if (status.ok()) status = Widen(widest, widest_book);
  copies_.reserve(status.ok() ? work_.capacity() : 0);
  for (size_t i = 0; i < work_.size() && status.ok(); ++i) {
    const PageSlot& slot = work_[i];
    const size_t format = static_cast<size_t>(slot.format);
    const int32_t fresh = taken_[format][static_cast<size_t>(wanted_[format]++)];
    if (slot.copied)
      copies_.push_back({Arena(slot.format).At(fresh), Arena(slot.format).At(PageAt(slot)),
                         Arena(slot.format).page_bytes()});
  }
  if (status.ok()) status = arenas_->device()->Copy(stream, {copies_.data(), copies_.size()});
  KVC_RETURN_IF_ERROR(status);
  // Nothing fails from here on.
  std::fill(wanted_.begin(), wanted_.end(), 0);
  for (const PageSlot& slot : work_) {
    const size_t format = static_cast<size_t>(slot.format);
    if (slot.copied) Arena(slot.format).Release(PageAt(slot));
    PageAt(slot) = taken_[format][static_cast<size_t>(wanted_[format]++)];
    if (slot.copied) continue;
    bytes_ += Arena(slot.format).page_bytes();
    if (slot.kind != 1) ++*List(slot.head, slot.kind).n;
  }
  for (std::vector<int32_t>& ids : taken_) ids.clear();
  LendRings();
  return {};
}

// To the heads that hold no page for their ring: that of its owner.
void KvCache::LendRings() {
  for (int32_t i = 0; view_.ring != nullptr && i < layout_->n_heads_total(); ++i)
    view_.ring[i * kRingFields + kRingPage] = view_.ring[RingOwner(i) * kRingFields + kRingPage];
}

Status KvCache::EnsureSteps(Stream* stream, int32_t n, bool writes_all) {
  if (ready_ >= n && (ready_all_ || !writes_all)) return {};
  KVC_RETURN_IF_ERROR(EnsureCodesPay(stream, n));
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) TrimHead(i, NeedsOf(i, n, false));
  KVC_RETURN_IF_ERROR(EnsureHeads(stream, 0, layout_->n_heads_total(), n, writes_all));
  // For how many steps there is room: until some head begins a page, or its ring is full.
  int32_t room = layout_->page_slots;
  for (int32_t i = 0; i < layout_->n_heads_total() && room > n; ++i) {
    if (IsCoded(i) && stored(i) == kStoredMain) room = std::max(std::min(room, StepsToSettle(i) - 1), n);
    while (room > n) {
      const Needs needs = NeedsOf(i, room, false);
      if (needs.pages[0] <= n_pages_[i] && needs.pages[2] <= n_books_[2 * i] &&
          needs.pages[3] <= n_books_[2 * i + 1])
        break;
      --room;
    }
  }
  ready_ = std::max(room, n), ready_all_ = writes_all;
  return {};
}

void KvCache::Stepped(int32_t n, bool scattered, bool several) {
  ready_ = std::max(ready_ - n, 0);
  scattered_ = scattered_ || scattered;
  // Also where one leaves for each that comes: the first step takes heads down that were above their share.
  for (int32_t i = 0; scattered && !several && i < layout_->n_heads_total(); ++i)
    several = n_pages_[i] > NeedsOf(i, 1, false).pages[0];
  if (several) Trim();
}

void KvCache::TrimHead(int32_t head, const Needs& needs) {
  for (int kind = 0; kind < kKinds; ++kind) {
    const int32_t format = FormatOf(head, kind);
    if (format < 0 || kind == 1) continue;
    const PageList list = List(head, kind);
    const int32_t more = *list.n - needs.pages[kind];
    if (more <= 0) continue;
    Arena(format).Release(list.ids + needs.pages[kind], static_cast<size_t>(more));
    bytes_ -= more * Arena(format).page_bytes();
    *list.n = needs.pages[kind];
  }
}

void KvCache::Trim() {
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) TrimHead(i, NeedsNow(i));
  ready_ = 0;
}

// ---- windows ----

// Whole pages of what is older than the window and its slack go, oldest first: the others keep their order
// and their places in their pages.
void KvCache::LeaveWindow(int32_t layer) {
  const int32_t window = layout_->window(layer), slots = layout_->page_slots,
                together = layout_->leave_together();
  if (window == 0) return;
  for (int32_t i = layer * layout_->n_kv_heads; i < (layer + 1) * layout_->n_kv_heads; ++i) {
    const int32_t beyond = Len(i) - window - layout_->window_slack,
                  n = std::min(std::max(beyond, 0), view_.len[i]) / together * (together / slots);
    if (n == 0) continue;
    const PageList list = List(i, 0);
    PageArena& arena = Arena(FormatOf(i, 0));
    arena.Release(list.ids, static_cast<size_t>(n));
    std::copy(list.ids + n, list.ids + *list.n, list.ids);
    *list.n -= n;
    view_.len[i] -= n * slots;
    bytes_ -= n * arena.page_bytes();
  }
}

void KvCache::LeaveWindows() {
  for (size_t layer = 0; layer < layout_->windows.size(); ++layer) LeaveWindow(static_cast<int32_t>(layer));
}

int32_t KvCache::TokensBeforePageLeaves() const {
  int32_t least = INT32_MAX;
  for (size_t layer = 0; layer < layout_->windows.size(); ++layer) {
    if (layout_->windows[layer] == 0) continue;
    const int32_t len = Len(static_cast<int32_t>(layer) * layout_->n_kv_heads),
                  beyond = len - layout_->windows[layer] - layout_->window_slack,
                  together = layout_->leave_together();
    least = std::min(least, together - (beyond > 0 ? beyond % together : beyond));
  }
  return least;
}

int32_t KvCache::LeastTokens(int32_t n_tokens) const {
  int32_t least = 0;
  for (size_t layer = 0; layer < layout_->windows.size(); ++layer) {
    const int32_t first = n_tokens - Len(static_cast<int32_t>(layer) * layout_->n_kv_heads);
    // The next token sees as many before it as the window holds beside itself.
    if (layout_->windows[layer] > 0 && first > 0)
      least = std::max(least, first + layout_->windows[layer] - 1);
  }
  return least;
}

// ---- fewer entries ----

Status KvCache::RewindTo(Stream* stream, int32_t n_tokens) {
  if (n_tokens == 0 && layout_->has_rest) {  // the rest has no place among them
    Clear();
    return {};
  }
  // Where slots are out of order, entries that stay take the place of those that go: they are written.
  if (scattered_) KVC_RETURN_IF_ERROR(EnsureHeads(stream, 0, layout_->n_heads_total(), 0, true));
  Device* const device = arenas_->device();
  const int32_t heads = layout_->n_kv_heads;
  const int64_t stride = std::max(MaxSlots(), 1);
  DeviceBuffer<uint8_t> scratch;
  KVC_RETURN_IF_ERROR(
      scratch.Allocate({device, meter()}, device->RewindScratchBytes(heads, stride), "taking entries back"));
  for (int32_t layer = 0; layer < layout_->n_layers; ++layer)
    KVC_RETURN_IF_ERROR(device->Rewind(stream, {&view_, layer, n_tokens, scratch.raw(), stride}));
  Trim();
  return {};
}

// The entries are the last ones of slots that are in order: lengths are all there is to do, and nothing
// fails.
Status KvCache::TakeBack(Stream* stream, int32_t n_tokens, int32_t n) {
  if (HasRings() || scattered_) return RewindTo(stream, n_tokens);
  // Layers with windows may hold fewer, where all go.
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i) view_.len[i] = std::max(view_.len[i] - n, 0);
  Trim();
  return {};
}

Status KvCache::KeepNewest(Stream* stream, int32_t head, int32_t n) {
  if (HasRings() || scattered_ || layout_->directions >= 0)
    return Error(Code::kUnsupported, "this cache stores entries late or evicts them one by one");
  if (view_.len[head] <= n) return {};
  std::vector<int32_t> fresh;
  PageArena& arena = Arena(FormatOf(head, 0));
  KVC_RETURN_IF_ERROR(arena.Take(PagesFor(n), &fresh));
  const Status status = arenas_->device()->KeepNewest(stream, {&view_, head, n, fresh.data()});
  if (!status.ok()) return arena.Release(fresh.data(), fresh.size()), status;
  const bool was_rotated = rotated(head);
  ReleaseHead(head);
  std::copy(fresh.begin(), fresh.end(), List(head, 0).ids);
  n_pages_[head] = static_cast<int32_t>(fresh.size());
  view_.len[head] = n;
  set_rotated(head, was_rotated);
  bytes_ += n_pages_[head] * arena.page_bytes();
  ready_ = 0;
  return {};
}

Status KvCache::NewestOfAll(Stream* stream, int32_t n_tokens, int32_t most, int32_t* n) const {
  *n = most;
  std::vector<int32_t> positions;
  for (int32_t head = 0; head < layout_->n_heads_total(); ++head) {
    if (layout_->window(head / layout_->n_kv_heads) > 0) continue;
    KVC_RETURN_IF_ERROR(Positions(stream, head, &positions));
    int32_t held = 0;
    for (auto at = positions.rbegin(); at != positions.rend() && *at == n_tokens - 1 - held; ++at) ++held;
    *n = std::min(*n, held);
  }
  return {};
}

Status KvCache::Positions(Stream* stream, int32_t head, std::vector<int32_t>* positions) const {
  positions->resize(static_cast<size_t>(Len(head)));
  return arenas_->device()->Positions(stream, {&view_, head, positions->data()});
}

}  // namespace kvc

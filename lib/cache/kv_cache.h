// The compressed KV cache of one session: every KV head of every layer has its own entries, in pages of its
// own. What lives here are records (lib/ops/cache_ops.h): page numbers and lengths. Nothing is masked: what
// is dropped is overwritten, or its page is given back.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/cache/layer_kv.h"
#include "lib/cache/page_arena.h"

namespace kvc {

class ArchiveReader;
class ArchiveWriter;

// Bytes of storage, before any is taken.
int64_t PageBytes(const CacheLayout& layout, int32_t head);  // of one page of main
int64_t RingBytes(const CacheLayout& layout, int32_t head);  // that the head holds; 0: none
int64_t DirectionBytes(const CacheLayout& layout);           // of one page of directions, 0: no codebooks
// Of n entries that Store wrote, how many are in main; and what they take then, codebooks as if no two
// vectors shared a direction, or vectors where that is less.
int32_t MainAfterStore(const CacheLayout& layout, int32_t head, int32_t n);
int64_t HeadBytes(const CacheLayout& layout, int32_t head, int32_t n);

// What codes leave of a cache, as shares of the vectors of all tokens, mean over the layers (methods.md 2.16
// g): by the formula of SpindleKV's paper (its equation 15), which counts a reference and a magnitude for
// every direction, and with one for every coded vector. A reference and a magnitude are an element each.
// Vectors that are not coded count as themselves.
struct CodeRatios {
  double paper = 0, exact = 0;
};

class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> Create(std::shared_ptr<const CacheLayout> layout,
                                                 PageArenas* arenas);
  ~KvCache();
  // The same entries; pages are shared until one of the caches writes.
  Result<std::unique_ptr<KvCache>> Fork();
  void Clear();

  const CacheLayout& layout() const { return *layout_; }
  // Valid until the cache takes pages again.
  const CacheView& view() const { return view_; }
  int32_t Len(int32_t head) const { return HeadLen(view_, head); }
  int64_t TotalEntries() const;
  int32_t MaxLen() const;
  int32_t MaxSlots() const { return MaxLen() + ring_slots_; }  // physical indices of a head end below
  int32_t ring_slots() const { return ring_slots_; }           // of the largest ring
  bool HasRings() const { return ring_slots_ > 0; }
  int64_t bytes() const { return bytes_; }  // of the pages this cache refers to, shared ones included
  int64_t LayerBytes(int32_t layer) const;
  int64_t record_bytes() const;  // of the records themselves
  CodeRatios Ratios(int32_t n_tokens) const;
  bool rotated(int32_t head) const { return view_.rotated[head] != 0; }
  void set_rotated(int32_t head, bool on) { view_.rotated[head] = on ? 1 : 0; }
  StoredAs stored(int32_t head) const { return static_cast<StoredAs>(view_.stored[head]); }

  // ---- steps ----
  // Makes sure that n more tokens can be appended to every head without failing: pages are there and nobody
  // else's. writes_all: a step may write every entry (side values, evictions), not only the newest. Costs
  // nothing for as many steps as pages have room.
  Status EnsureSteps(Stream* stream, int32_t n, bool writes_all);
  // n tokens were appended. scattered: entries were removed, so slots are out of order; several: more of them
  // than came, so that pages may have become free.
  void Stepped(int32_t n, bool scattered, bool several);
  // Before tokens come, when nothing can fail any more: gives back what layers with windows do not need for
  // them.
  void LeaveWindows();
  // Removes the entries of positions >= n_tokens; of 0, what stands for dropped ones, too. kMemory: nothing
  // changed; kDevice: only a fork from before is of use.
  Status RewindTo(Stream* stream, int32_t n_tokens);
  // The same, of a cache of n_tokens + n tokens in which every head has the entries of the newest n.
  Status TakeBack(Stream* stream, int32_t n_tokens, int32_t n);
  // Drops all but the newest n entries of one head. Only caches without rings, codebooks and removals.
  Status KeepNewest(Stream* stream, int32_t head, int32_t n);
  // Gives back pages without entries.
  void Trim();
  // The fewest tokens a sequence of n_tokens can be taken back to, beside none at all: what left a window
  // does not come back.
  int32_t LeastTokens(int32_t n_tokens) const;
  // So many tokens can follow before LeaveWindows gives a page back, behind what it would give back now; at
  // least 1, INT32_MAX without windows.
  int32_t TokensBeforePageLeaves() const;
  Status Positions(Stream* stream, int32_t head, std::vector<int32_t>* positions) const;
  // Of the newest tokens, so many, at most `most`, without a gap are held by every head, but for windows.
  Status NewestOfAll(Stream* stream, int32_t n_tokens, int32_t most, int32_t* n) const;

  // ---- whole layers ----
  // Replaces a layer by the marked entries of kv. Strong: on failure nothing changed.
  struct StoreSpec {
    int32_t layer;
    LayerView from;
    KeyTurning turning;
    const uint8_t* rotated;          // [G] of the new records
    DevicePtr<const uint8_t> marks;  // [G, stride], null: all
    DevicePtr<const uint32_t> seen;  // null: all see all
    int64_t stride;
    const int32_t* kept;               // [G] how many are marked
    const uint8_t* all_see = nullptr;  // [G] whether every query head sees all that is marked; null: unknown
  };
  Status Store(Stream* stream, const StoreSpec& spec, DeviceBuffer<uint8_t>* scratch);
  // Appends the entries [first[g], len) of every head.
  Status AppendFrom(Stream* stream, int32_t layer, const LayerView& kv, const KeyTurning& turning,
                    const int32_t* first, DeviceBuffer<uint8_t>* scratch);

  // The whole cache as bytes. RestoreFrom trusts nothing: kBadModel when the parts do not fit together, this
  // cache's layout, or a sequence of n_tokens of which every head has all from `changed_at` on.
  Status SaveTo(ArchiveWriter& archive, Stream* stream);
  // turns_keys: keys may be without rotation. one_set: the heads of a layer hold the same entries.
  Status RestoreFrom(ArchiveReader& archive, Stream* stream, int32_t n_tokens, int32_t changed_at,
                     bool turns_keys, bool one_set);

 private:
  KvCache(std::shared_ptr<const CacheLayout> layout, PageArenas* arenas);
  class Replacement;
  // One list of pages of a head: main (kind 0), ring (1), of heads that are its owner, directions of keys and
  // of values (2, 3).
  static constexpr int kKinds = 4;
  struct PageList {
    int32_t* ids;
    int32_t* n;
  };
  PageList List(int32_t head, int kind) const;
  int32_t FormatOf(int32_t head, int kind) const { return FormatAs(view_.stored[head], head, kind); }
  int32_t FormatAs(uint8_t stored, int32_t head, int kind) const;
  PageArena& Arena(int32_t format) const { return *arenas_of_[static_cast<size_t>(format)]; }
  int32_t PagesFor(int32_t entries) const {
    return (entries + layout_->page_slots - 1) / layout_->page_slots;
  }
  // A place in one of the lists; copied: there is a page, which is shared.
  struct PageSlot {
    int32_t head;
    int kind;
    int32_t index, format;
    bool copied;
  };
  int32_t& PageAt(const PageSlot& slot) const;
  // Entries of a head that go from its ring to its pages before n more are there.
  int32_t LeavesRing(int32_t head, int32_t n) const;
  // Pages a head needs before n more entries come, [kind]; of those it has, which will be written: from
  // first[kind] on.
  struct Needs {
    int32_t pages[kKinds];
    int32_t first_written[kKinds];
  };
  int64_t BytesOf(int32_t head, const Needs& needs) const;
  // Heads that decide together whether codes pay: those that share books.
  int32_t Deciding() const { return layout_->layer_books ? layout_->n_kv_heads : 1; }
  void ChoosePlain(const StoreSpec& spec, std::vector<int32_t>* directions,
                   std::vector<uint8_t>* stored) const;
  Status EnsureCodesPay(Stream* stream, int32_t n);
  Status MakePlain(Stream* stream, int32_t head);
  int32_t StepsToSettle(int32_t head) const;
  Needs NeedsOf(int32_t head, int32_t n, bool writes_all) const;
  Needs NeedsNow(int32_t head) const;
  Status EnsureHeads(Stream* stream, int32_t first, int32_t end, int32_t n, bool writes_all);
  int32_t RingOwner(int32_t head) const { return ring_owners_[static_cast<size_t>(head)]; }
  void LendRings();
  Status Widen(int32_t pages, int32_t books);
  void Point();
  void TrimHead(int32_t head, const Needs& needs);
  void LeaveWindow(int32_t layer);
  bool IsCoded(int32_t head) const { return layout_->main(head).coding == EntryCoding::kCodebook; }
  void ReleaseHead(int32_t head);
  void Reset(int32_t head);
  template <typename Archive>
  Status ArchiveHead(Archive& archive, Stream* stream, int32_t head, bool turns_keys);
  template <typename Archive>
  Status ArchivePages(Archive& archive, Stream* stream, int32_t head, int kind);
  Status CheckLengths(int32_t head, bool turns_keys) const;
  Status CheckLayers(bool one_set) const;
  Status CheckHead(Stream* stream, int32_t head, int32_t n_tokens, int32_t changed_at);
  MemoryMeter* meter() const { return arenas_->meter().get(); }

  const std::shared_ptr<const CacheLayout> layout_;
  PageArenas* const arenas_;
  std::vector<std::shared_ptr<PageArena>> arenas_of_;  // [formats]
  std::vector<DeviceBytes> bases_;                     // [formats]
  std::vector<int32_t> ring_owners_;                   // [L * G]
  Buffer<int32_t> pages_, books_,
      lengths_;            // the arrays of the view; lengths_: len, ring, book_len, and page counts
  Buffer<uint8_t> flags_;  // rotated and stored of the view
  int32_t *n_pages_ = nullptr, *n_books_ = nullptr;  // [L * G]; [L * G, 2]
  CacheView view_;
  int32_t ring_slots_ = 0;
  int64_t bytes_ = 0;
  int32_t ready_ = 0;  // steps that EnsureSteps need not look at
  bool ready_all_ = false, scattered_ = false;
  // Scratch of EnsureHeads: pages to be had, per format.
  std::vector<std::vector<int32_t>> taken_;
  std::vector<int32_t> wanted_;
  std::vector<PageSlot> work_;
  std::vector<PageCopy> copies_;
};

}  // namespace kvc

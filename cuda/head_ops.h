// Entries of one head that come, settle and leave, by one block. Records in device memory are changed by
// thread 0; every function ends with the block together. As lib/ops/cpu/pages.cc.
#pragma once
#include "cuda/block.h"
#include "cuda/codebook.h"
#include "cuda/pages.h"
#include "cuda/turning.h"
#include "lib/base/span.h"

namespace kvc::cuda {

// Scratch of one head.
struct HeadRoom {
  int32_t *holes, *movers;  // [entries]
  int32_t* gone_ranks;      // [entries]
  float* vectors;           // [2, D]
  uint8_t* settle;          // SettleBytes
};

// Of one of these heads of a cache, all of it or of a layer: steps ask for every layer of every session.
inline int64_t SettleBytes(const CacheLayout& layout, Span<const HeadFormat> heads) {
  const auto settles = [](const PageFormat& f) {
    return f.coding == EntryCoding::kKeyChannels || f.coding == EntryCoding::kCodebook;
  };
  if (std::none_of(layout.formats.begin(), layout.formats.end(), settles)) return 0;
  int64_t bytes = 0;
  for (const HeadFormat& h : heads) {
    const int64_t n = h.settle, d = layout.head_dim;
    const EntryCoding coding = layout.formats[static_cast<size_t>(h.main)].coding;
    int64_t need = 0;
    if (coding == EntryCoding::kKeyChannels) need = 4 * layout.formats[static_cast<size_t>(h.main)].slots * d;
    if (coding == EntryCoding::kCodebook)
      need =
          4 * n * d + 2 * n * static_cast<int64_t>(sizeof(CodedVector)) + CodeRoomBytes(n, layout.head_dim);
    bytes = bytes < need ? need : bytes;
  }
  return (bytes + 255) / 256 * 256;
}

// Entries of the longest ring of these heads.
inline int32_t RingSlots(const CacheLayout& layout, Span<const HeadFormat> heads) {
  int32_t slots = 0;
  for (const HeadFormat& h : heads) {
    if (h.ring >= 0) slots = std::max(slots, layout.formats[static_cast<size_t>(h.ring)].slots);
  }
  return slots;
}

KVC_DEVICE void ReadVector(const Pages& pages, const Slot& s, int which, float* x) {
  for (int32_t j = ThreadOfBlock(); j < s.f->d; j += BlockThreads()) x[j] = pages.Element(s, which, j);
  __syncthreads();
}

KVC_DEVICE void WriteMeta(const Slot& s, int32_t position, int32_t rank, const float* aux, int64_t aux_stride,
                          uint32_t seen) {
  s.position() = position;
  if (s.f->ranks) s.rank() = rank;
  if (s.f->seen_masks) s.seen() = seen;
  for (int a = 0; a < s.f->n_aux; ++a) s.aux(a) = aux == nullptr ? 0.0f : aux[a * aux_stride];
}

// Number i of a page's bounds: the greatest of its keys in every channel, then the least, as
// PageFormat::bound_format() has them.
KVC_DEVICE void PutBound(const PageFormat& f, uint8_t* page, int32_t i, float x) {
  uint8_t* at = page + f.bounds;
  if (f.type == KvType::kF16) {
    reinterpret_cast<uint16_t*>(at)[i] = ToHalfBits(x);
  } else if (f.type == KvType::kBf16) {
    reinterpret_cast<uint16_t*>(at)[i] = ToBfBits(x);
  } else {
    reinterpret_cast<float*>(at)[i] = x;
  }
}
KVC_DEVICE float BoundOf(const PageFormat& f, const uint8_t* page, int32_t i) {
  const uint8_t* at = page + f.bounds;
  if (f.type == KvType::kF16) return HalfBits(reinterpret_cast<const uint16_t*>(at)[i]);
  if (f.type == KvType::kBf16) return BfBits(reinterpret_cast<const uint16_t*>(at)[i]);
  return reinterpret_cast<const float*>(at)[i];
}
// Where the page of a slot is full by what was written there, it takes the bounds of its keys.
KVC_DEVICE void BlockNoteBounds(const Pages& pages, const Slot& written) {
  const PageFormat& f = *written.f;
  if (!f.key_bounds || written.index + 1 < f.slots) return;
  __syncthreads();
  for (int32_t j = ThreadOfBlock(); j < f.d; j += BlockThreads()) {
    Slot s{written.page, written.f, 0};
    float greatest = pages.Element(s, 0, j), least = greatest;
    for (s.index = 1; s.index < f.slots; ++s.index) {
      const float x = pages.Element(s, 0, j);
      greatest = greatest < x ? x : greatest, least = x < least ? x : least;
    }
    PutBound(f, written.page, j, greatest);
    PutBound(f, written.page, f.d + j, least);
  }
  __syncthreads();
}

// The newest entry, which the lengths count already: at the end of the ring, or of main where there is none.
// k, v: for all threads to read.
KVC_DEVICE void BlockWriteNewest(const Pages& pages, const float* k, const float* v, int32_t position) {
  const Slot s = pages.head().ring >= 0 ? pages.Ring(pages.ring_len() - 1) : pages.Main(pages.main_len() - 1);
  WriteKey(s, k, ThreadOfBlock(), BlockThreads());
  WriteValue(s, v, ThreadOfBlock(), BlockThreads());
  if (ThreadOfBlock() == 0) WriteMeta(s, position, pages.len() - 1, nullptr, 0, ~0u);
  __syncthreads();
  BlockNoteBounds(pages, s);
}

KVC_DEVICE void LeaveRing(const Pages& pages, int32_t n) {
  __syncthreads();
  if (ThreadOfBlock() == 0) {
    Head& h = pages.head();
    h.len += n;
    h.ring_start = (h.ring_start + n) % pages.ring_slots();
    h.ring_len -= n;
  }
  __syncthreads();
}

// Fills a page from the ring and codes its keys anew.
KVC_DEVICE void SettleBlock(const Pages& pages, const HeadRoom& room) {
  const PageFormat& f = pages.format();
  const int32_t d = f.d, slots = f.slots, old = pages.main_len() % slots, n = slots - old;
  float* keys = reinterpret_cast<float*>(room.settle);
  const Slot first = pages.Main(pages.main_len() - old);
  for (int32_t i = 0; i < old; ++i) {
    const Slot s{first.page, first.f, first.index + i};
    ReadVector(pages, s, 0, keys + static_cast<int64_t>(i) * d);
  }
  for (int32_t i = 0; i < n; ++i) {
    const Slot from = pages.Ring(i), to = pages.Main(pages.main_len() + i);
    ReadVector(pages, from, 0, keys + static_cast<int64_t>(old + i) * d);
    ReadVector(pages, from, 1, room.vectors);
    WriteValue(to, room.vectors, ThreadOfBlock(), BlockThreads());
    if (ThreadOfBlock() == 0) CopyMeta(from, to);
    __syncthreads();
  }
  WriteKeyBlock(
      first, [&](int32_t i, int32_t c) { return keys[static_cast<int64_t>(i) * d + c]; }, slots,
      ThreadOfBlock(), BlockThreads());
  LeaveRing(pages, n);
  BlockNoteBounds(pages, {first.page, first.f, slots - 1});
}

// Codes the oldest `settle` entries of a full ring.
KVC_DEVICE void SettleCodes(const Pages& pages, const HeadRoom& room, BlockSpace* s) {
  const int32_t n = pages.head().settle, d = pages.format().d;
  float* x = reinterpret_cast<float*>(room.settle);
  CodedVector* codes = reinterpret_cast<CodedVector*>(x + static_cast<int64_t>(n) * d);  // [2, n]
  const CodeRoom space = CodeRoomAt(reinterpret_cast<uint8_t*>(codes + 2 * n), n, d);
  for (int which = 0; which < 2; ++which) {
    for (int32_t i = 0; i < n; ++i) ReadVector(pages, pages.Ring(i), which, x + static_cast<int64_t>(i) * d);
    const int32_t n_existing = pages.book_len(which);
    const int32_t n_added = BlockCodeVectors(
        x, n, d, pages.head().theta[which], pages.head().magnitudes != 0, n_existing,
        [&](int32_t e) -> const float* { return pages.Direction(which, e); }, codes + which * n,
        [&](int32_t e) { return pages.Direction(which, n_existing + e); }, space, s);
    __syncthreads();
    if (ThreadOfBlock() == 0) pages.book_len(which) += n_added;
    __syncthreads();
  }
  const int32_t main = pages.main_len();
  for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) {
    const Slot from = pages.Ring(i), to = pages.Main(main + i);
    to.code(0) = codes[i], to.code(1) = codes[n + i];
    CopyMeta(from, to);
  }
  LeaveRing(pages, n);
}

KVC_DEVICE void BlockSettle(const Pages& pages, const HeadRoom& room, BlockSpace* s) {
  if (pages.head().ring < 0) return;
  const EntryCoding coding = pages.format().coding;
  if (coding == EntryCoding::kCodebook) {
    if (pages.ring_len() == pages.ring_slots()) SettleCodes(pages, room, s);
    return;
  }
  if (coding == EntryCoding::kKeyChannels) {
    if (pages.ring_len() == pages.ring_slots()) SettleBlock(pages, room);
    return;
  }
  while (pages.ring_len() == pages.ring_slots()) {
    const Slot from = pages.Ring(0), to = pages.Main(pages.main_len());
    ReadVector(pages, from, 0, room.vectors);
    ReadVector(pages, from, 1, room.vectors + pages.format().d);
    WriteKey(to, room.vectors, ThreadOfBlock(), BlockThreads());
    WriteValue(to, room.vectors + pages.format().d, ThreadOfBlock(), BlockThreads());
    if (ThreadOfBlock() == 0) CopyMeta(from, to);
    LeaveRing(pages, 1);
    BlockNoteBounds(pages, to);
  }
}

// Takes the entries out for which gone(physical) says so; in main the last ones take their places.
template <typename Gone>
KVC_DEVICE void BlockRemove(const Pages& pages, Gone gone, const HeadRoom& room, BlockSpace* s) {
  const int32_t main = pages.main_len(), len = pages.len();
  if (pages.format().ranks) {
    const int32_t n_gone = BlockCompact(
        len, s, [&](int32_t i) { return gone(pages.Physical(i)); },
        [&](int32_t i, int32_t place) { room.gone_ranks[place] = pages.At(pages.Physical(i)).rank(); });
    // Entries that stay only: the pages of those that go may be a fork's as well.
    for (int32_t i = ThreadOfBlock(); i < len; i += BlockThreads()) {
      if (gone(pages.Physical(i))) continue;
      const Slot e = pages.At(pages.Physical(i));
      int32_t lower = 0;
      for (int32_t x = 0; x < n_gone; ++x) lower += room.gone_ranks[x] < e.rank() ? 1 : 0;
      if (lower > 0) e.rank() -= lower;
    }
    __syncthreads();
  }
  // The ring: gaps are closed from the newer side, by one thread; it is short.
  const int32_t ring = pages.ring_len();
  int32_t ring_kept = 0;
  for (int32_t i = 0; i < ring; ++i) {
    if (gone(pages.Physical(main + i))) continue;
    if (ring_kept != i) CopyEntry(pages.Ring(i), pages.Ring(ring_kept), ThreadOfBlock(), BlockThreads());
    ++ring_kept;
    __syncthreads();
  }
  const int32_t kept = main - BlockCompact(
                                  main, s, [&](int32_t i) { return gone(i); },
                                  [&](int32_t i, int32_t place) { room.holes[place] = i; });
  BlockCompact(
      main - kept, s, [&](int32_t i) { return !gone(kept + i); },
      [&](int32_t i, int32_t place) { room.movers[place] = kept + i; });
  // The i-th hole below the new length takes the i-th entry above it: as many of the one as of the other.
  const int32_t lanes = kWarp, warps = BlockThreads() / kWarp;
  for (int32_t i = WarpOfBlock(); i < main - kept; i += warps) {
    if (room.holes[i] >= kept) break;
    CopyEntry(pages.Main(room.movers[i]), pages.Main(room.holes[i]), Lane(), lanes);
  }
  __syncthreads();
  if (ThreadOfBlock() == 0) {
    pages.head().len = kept;
    if (pages.head().ring >= 0) pages.head().ring_len = ring_kept;
  }
  __syncthreads();
  const int32_t slots = pages.format().slots;
  for (int32_t i = 0, done = 0; pages.format().key_bounds && i < main - kept && room.holes[i] < kept; ++i) {
    const int32_t end = (room.holes[i] / slots + 1) * slots;
    if (end == done || end > kept) continue;
    BlockNoteBounds(pages, pages.Main(end - 1));
    done = end;
  }
}

// Keys lose the rotation of their original position.
KVC_DEVICE void BlockDropRotation(const Pages& pages, const Turn& turn, float* vector) {
  const bool rotated = pages.head().rotated != 0;
  __syncthreads();  // all have read it, also of a head without entries
  if (!rotated) return;
  const int32_t len = pages.len();
  for (int32_t i = 0; i < len; ++i) {
    const Slot e = pages.At(pages.Physical(i));
    ReadVector(pages, e, 0, vector);
    for (int32_t j = ThreadOfBlock(); j < e.f->d / 2; j += BlockThreads())
      UnturnPairAt(turn, e.position(), e.f->d, j, vector);
    __syncthreads();
    WriteKey(e, vector, ThreadOfBlock(), BlockThreads());
    __syncthreads();
  }
  if (ThreadOfBlock() == 0) pages.head().rotated = 0;
  __syncthreads();
}

// Physical indices by ascending position: the lower half of keys [next power of two of len].
KVC_DEVICE void BlockOrder(const Pages& pages, uint64_t* keys, BlockSpace* s) {
  const int32_t len = pages.len();
  const auto key_of = [&](int32_t i) {
    const int32_t physical = pages.Physical(i);
    return OrderKey(pages.At(physical).position(), physical);
  };
  EachOfFew<8>(ThreadOfBlock(), len, BlockThreads(), key_of, [&](int32_t i, uint64_t key) { keys[i] = key; });
  __syncthreads();
  // Where no entry took the place of another they are in order.
  int32_t falls = 0;
  EachOfFew<8>(
      ThreadOfBlock(), len - 1, BlockThreads(), [&](int32_t i) { return keys[i] > keys[i + 1]; },
      [&](int32_t, bool fall) { falls += fall ? 1 : 0; });
  if (BlockSum(falls, s->ints) > 0) BlockSort(keys, len);
}

}  // namespace kvc::cuda

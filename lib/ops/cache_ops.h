// What the cache of a session is to a device: records (plain integers, on the host and copied as they are)
// that say in which pages of which arena the entries of every KV head lie. address = base of the format's
// arena + page id * bytes. L layers, G KV heads a layer; head i = layer * G + kv_head.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/ops/device_memory.h"
#include "lib/ops/page_format.h"
#include "lib/ops/rope.h"

namespace kvc {

constexpr int kMaxAux = 64;  // side values an entry can have

// The first entry of a head may stand for n tokens that were dropped (methods.md 2.25): its position is -n,
// and its logit gains log n in every attention. All other positions are 0 and more.
constexpr int32_t TokensOf(int32_t position) { return position < 0 ? -position : 1; }
// Sorts entries by position: the key of the one at a physical index, which is its lower half.
constexpr uint64_t OrderKey(int32_t position, int32_t index) {
  return uint64_t{static_cast<uint32_t>(position) ^ 0x80000000u} << 32 | static_cast<uint32_t>(index);
}
inline float RestLogit(int32_t position) {
  return position < 0 ? std::log(static_cast<float>(-position)) : 0.0f;
}

// A head has two parts, older entries first: `main` in the stored format, in pages of its own, and where
// entries are stored late a ring of raw ones, in one page. A ring of one entry is empty when the layer's step
// is done.
struct HeadFormat {
  int32_t main = 0, ring = -1;           // indices into CacheLayout::formats; -1: no ring
  int32_t settle = 1;                    // entries that leave a full ring together
  float theta_key = 0, theta_value = 0;  // of codebooks
  // Where codes would take more than the vectors do, main is in one of these formats, without a ring and
  // without codebooks; plain_all where all query heads see every entry. -1: always in codes.
  int32_t plain = -1, plain_all = -1;
  bool magnitudes = true;  // false: a vector takes the length of the one its direction came from
};

// What never changes in the life of a cache and its forks.
struct CacheLayout {
  int32_t n_layers = 0, n_kv_heads = 0, group = 1, head_dim = 0;  // group: query heads per KV head
  int32_t page_slots = 64, n_aux = 0;
  bool seen_masks = false;   // an entry is seen by some query heads of its group only (SpindleKV)
  bool has_rest = false;     // the first entry of a head may stand for others
  bool late_rings = false;   // what a layer stores whole is coded, all of it: rings take what comes behind it
  bool layer_books = false;  // the heads of a layer share a pair of codebooks, held by the first
  int32_t directions = -1;   // format of codebook pages, -1: there are none
  // Heads of a layer with a window hold its newest entries, in order, as vectors: window_slack more than the
  // window, and of what is older fewer than leave together. 0: its heads are as their method wants them.
  std::vector<int32_t> windows;  // [L] tokens, or empty: none has one
  int32_t window_slack = 0;
  std::vector<PageFormat> formats;
  std::vector<HeadFormat> heads;  // [L * G]

  int32_t window(int32_t layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  // Entries that leave a window together: whole pages, and of small ones several, so that a draft of some
  // tokens can be taken back.
  int32_t leave_together() const { return std::max(page_slots, 16); }
  // What a head of a layer with a window holds of n entries after a prompt, and at most as tokens come.
  int32_t HeldOf(int32_t layer, int32_t n) const {
    return window(layer) == 0 ? n : std::min(n, window(layer) + window_slack);
  }
  int32_t MostHeldOf(int32_t layer, int32_t n) const {
    return window(layer) == 0 ? n : std::min(n, window(layer) + window_slack + leave_together() - 1);
  }

  const PageFormat& main(int32_t head) const {
    return formats[static_cast<size_t>(heads[static_cast<size_t>(head)].main)];
  }
  int32_t ring_slots(int32_t head) const {
    const int32_t ring = heads[static_cast<size_t>(head)].ring;
    return ring < 0 ? 0 : formats[static_cast<size_t>(ring)].slots;
  }
  int32_t n_heads_total() const { return n_layers * n_kv_heads; }
  // Whether the ring of head i has one place, in a page that the layers use one after the other.
  bool shares_ring(int32_t head) const { return ring_slots(head) == 1 && main(head).coded(); }
  // The head that holds the ring's page of head i.
  int32_t ring_owner(int32_t head) const {
    if (!shares_ring(head)) return head;
    const int32_t ring = heads[static_cast<size_t>(head)].ring;
    int32_t first = head % n_kv_heads;
    while (first < head && (heads[static_cast<size_t>(first)].ring != ring || !main(first).coded()))
      first += n_kv_heads;
    return first;
  }
  // The head that holds the codebooks of head i.
  int32_t book_owner(int32_t head) const { return layer_books ? head - head % n_kv_heads : head; }
};

// The records of one cache. Operations that append, remove or settle entries update them as they work; every
// page such an operation writes is there beforehand, and no other cache's.
struct CacheView {
  const CacheLayout* layout = nullptr;
  const DeviceBytes* bases = nullptr;  // [formats]
  int32_t* pages = nullptr;            // [L * G, page_stride]; unused ones undefined
  int32_t page_stride = 0;
  int32_t* len = nullptr;    // [L * G] entries in main
  int32_t* ring = nullptr;   // [L * G, 3]: page, first slot, entries. Null: no head has one
  int32_t* books = nullptr;  // [L * G, 2, book_stride] pages of directions: keys, values. Null: no codebooks
  int32_t book_stride = 0;
  int32_t* book_len = nullptr;  // [L * G, 2] directions
  uint8_t* rotated = nullptr;   // [L * G] whether stored keys carry the rotation of their original position
  uint8_t* stored = nullptr;    // [L * G] StoredAs; null: every head as its HeadFormat's main says
};

enum StoredAs : uint8_t { kStoredMain = 0, kStoredPlain = 1, kStoredPlainAll = 2 };

// Formats of the parts of a head that is stored as `stored` says, or as it is now; -1: no ring.
inline int32_t MainFormat(const HeadFormat& h, uint8_t stored) {
  if (stored == kStoredMain) return h.main;
  return stored == kStoredPlain ? h.plain : h.plain_all;
}
inline int32_t RingFormat(const HeadFormat& h, uint8_t stored) { return stored == kStoredMain ? h.ring : -1; }
inline uint8_t StoredNow(const CacheView& c, int32_t head) {
  return c.stored == nullptr ? static_cast<uint8_t>(kStoredMain) : c.stored[head];
}
inline int32_t MainFormat(const CacheView& c, int32_t head) {
  return MainFormat(c.layout->heads[static_cast<size_t>(head)], StoredNow(c, head));
}
inline int32_t RingFormat(const CacheView& c, int32_t head) {
  return RingFormat(c.layout->heads[static_cast<size_t>(head)], StoredNow(c, head));
}

enum RingField : int32_t { kRingPage = 0, kRingStart = 1, kRingLen = 2, kRingFields = 3 };

inline int32_t RingLen(const CacheView& c, int32_t head) {
  return c.ring == nullptr ? 0 : c.ring[head * kRingFields + kRingLen];
}
inline int32_t HeadLen(const CacheView& c, int32_t head) { return c.len[head] + RingLen(c, head); }

// How keys carry positions. Kept: as stored, original ones. Otherwise keys whose head is not `rotated` are
// turned when they are read: to their original position, or (in_cache) to their place among the entries of
// their head.
struct KeyTurning {
  const Rope* rope = nullptr;
  RopePairing pairing = RopePairing::kHalf;
  bool in_cache = false;
};

// One layer at full length while its prompt is worked on, f32: entries in ascending position, cached ones
// first.
struct LayerView {
  int32_t n_kv_heads = 0, head_dim = 0, n_aux = 0;
  bool has_seen = false;
  KvType type = KvType::kF32;    // of keys and values: kF32; kF16 where DeviceInfo::half_layers
  int64_t capacity = 0;          // entries a head has room for
  DeviceBytes keys, values;      // [G, capacity, D]; keys turned as attention needs them
  DevicePtr<int32_t> positions;  // [G, capacity]
  DevicePtr<float> aux;          // [n_aux, G, capacity]
  DevicePtr<uint32_t> seen;      // [G, capacity] when has_seen
  int32_t* len = nullptr;        // [G], on the host

  int64_t vector_bytes() const { return int64_t{head_dim} * (type == KvType::kF16 ? 2 : 4); }
};

// Fills `to` with everything cached of a layer, ascending, and sets its lengths. drop[g]: so many entries
// behind the first `n_sink` are left out.
struct LoadArgs {
  const CacheView* cache;
  int32_t layer;
  LayerView to;
  KeyTurning turning;
  bool turns_rotated = false;     // in_cache: keys that still have their original rotation are turned too
  const int32_t* drop = nullptr;  // [G] or null
  int32_t n_sink = 0;
  DeviceBytes scratch;  // LoadScratchBytes(G, most entries of a head)
  int64_t scratch_entries;
};

// Marked entries of a layer into the pages that the records of the layer name, from slot 0 on, in order; the
// records say how many go to main and how many to the ring. Keys of heads that are not `rotated` lose the
// rotation `from` has.
struct StoreArgs {
  const CacheView* cache;
  int32_t layer;
  LayerView from;
  KeyTurning turning;
  DevicePtr<const uint8_t> marks;  // [G, stride]; null: all
  DevicePtr<const uint32_t> seen;  // [G, stride]; null: all see all
  int64_t stride;
  DeviceBytes codes;  // StoreScratchBytes: what CodeLayer left, where heads have codebooks; and scratch
  int64_t n_codes;    // as in CodeArgs
};

// Appends the entries [first[g], len[g]) of a layer behind what is cached, as steps would.
struct AppendArgs {
  const CacheView* cache;
  int32_t layer;
  LayerView from;
  KeyTurning turning;
  const int32_t* first;  // [G]
  DeviceBytes scratch;
};

// Codes the marked entries of the heads of a layer into codebooks of their own (methods.md 2.16 d):
// directions and references stay in `codes` for StoreLayer. n_directions [G, 2]: how many each head (the
// first, where a layer shares) will need.
struct CodeArgs {
  const CacheLayout* layout;
  int32_t layer;
  LayerView from;
  KeyTurning turning;
  DevicePtr<const uint8_t> marks;
  int64_t stride;
  DeviceBytes codes;  // StoreScratchBytes
  int64_t n_codes;    // entries that are marked at most, of a head or of those that share books
  int32_t* n_directions;
};

// Removes the entries of positions >= n_tokens from the heads of a layer; the records say what is left.
struct RewindArgs {
  const CacheView* cache;
  int32_t layer, n_tokens;
  DeviceBytes scratch;  // RewindScratchBytes; stride: slots of the layer's longest head, its ring's included
  int64_t stride;
};

// Positions of one head's entries into host memory, ascending.
struct PositionsArgs {
  const CacheView* cache;
  int32_t head;
  int32_t* positions;  // [HeadLen]
};

// Copies the newest n entries of a head without a ring, whose slots are in order, into other pages from slot
// 0 on. The records stay as they are.
struct KeepNewestArgs {
  const CacheView* cache;
  int32_t head, n;
  const int32_t* pages;  // ids, in the arena of the head's main format
};

// Copies all entries of a head, decoded, main before ring, into pages of another format without codes. The
// records stay as they are.
struct StorePlainArgs {
  const CacheView* cache;
  int32_t head;
  int32_t format;        // index into CacheLayout::formats
  const int32_t* pages;  // ids, in the arena of that format
};

struct PageCopy {
  DeviceBytes to, from;
  int64_t bytes;
};

}  // namespace kvc

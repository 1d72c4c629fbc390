// The compressed KV cache: every KV head of every layer has its own entries, in pages of its own. Nothing is
// masked: what is dropped is overwritten or its page is given back.
//
// A head has two parts, older entries first:
//   main  pages of page_slots entries in the head's stored format (f32, f16, bf16, int8, int4, codebook
//   references)
//   tail  a ring of raw entries, only where entries are stored late (quantised formats with a residual, keys
//   whose channels share a scale over a page, codebooks)
// Entries have a physical slot; `order` lists main's slots by ascending position where decode removes entries
// (else slots are in order). A page holds K [slots], V [slots], then positions int32 [slots], side values f32
// [n_aux, slots], seen masks uint32 [slots] if any, scales of key channels f16 [D] if any.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lib/cache/codebook.h"
#include "lib/cache/layer_kv.h"
#include "lib/cache/page_pool.h"
#include "lib/ops/ops.h"

namespace kvc {

class ArchiveReader;
class ArchiveWriter;

constexpr int kMaxAux = 64;  // side values an entry can have

struct HeadFormat {
  VectorFormat stored;    // of main
  bool codebook = false;  // main holds CodedVectors into the head's codebooks; `stored` is not used
  float theta_key = 0, theta_value = 0;  // of codebooks
  bool key_channels = false;  // keys of main have one scale per channel and page; settle is page_slots
  int32_t tail_slots = 0;     // 0: entries go to main at once
  int32_t settle = 1;         // entries that leave a full tail together
};

struct CacheConfig {
  int32_t n_layers = 0, n_kv_heads = 0, group = 1, head_dim = 0;  // group: query heads per KV head
  int32_t page_slots = 64;
  int32_t n_aux = 0;
  VectorFormat raw;                 // of tails
  bool layer_books = false;         // the heads of a layer share a pair of codebooks, held by the first
  bool ordered = false;             // entries may be removed one by one
  bool seen_masks = false;          // an entry is seen by some query heads only (SpindleKV)
  std::vector<HeadFormat> formats;  // [L * G]
};

class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> Create(const CacheConfig& config, const KernelTable* kernels,
                                                 std::shared_ptr<MemoryMeter> meter);
  ~KvCache();
  // The same entries; pages are shared until one of the caches writes.
  Result<std::unique_ptr<KvCache>> Fork();
  void Clear();

  const CacheConfig& config() const { return config_; }
  int32_t Len(int layer, int head) const { return At(layer, head).main_len + At(layer, head).tail_len; }
  int32_t MainLen(int layer, int head) const { return At(layer, head).main_len; }
  int64_t TotalEntries() const;
  int32_t MaxLen() const;
  bool HasTails() const;                // some head stores entries late
  int64_t bytes() const;                // what the allocator holds for this cache and its forks
  int64_t LayerBytes(int layer) const;  // of the pages of one layer
  static int64_t PageBytes(const CacheConfig& config, const HeadFormat& format);  // of one main page
  static int64_t BookPageBytes(const CacheConfig& config) {                       // of a page of directions
    return (int64_t{config.page_slots} * config.head_dim * static_cast<int64_t>(sizeof(float)) + 63) / 64 *
           64;
  }
  static int64_t TailBytes(const CacheConfig& config, const HeadFormat& format);
  // Of n entries that Store wrote, how many are in main; and what they take, codebooks as if no two vectors
  // shared a direction.
  static int32_t MainAfterStore(const HeadFormat& format, int32_t n) {
    if (format.codebook || format.tail_slots == 0) return n;
    return std::max(n - (format.tail_slots - format.settle), 0) / format.settle * format.settle;
  }
  static int64_t HeadBytes(const CacheConfig& config, const HeadFormat& format, int32_t n);

  // ---- one token ----
  // Makes sure that one more entry can be appended to every head, and every entry written, without failing.
  Status ReserveStep();
  // k (rotated as the session stores it), v [D].
  void Append(int layer, int head, const float* k, const float* v, int32_t position);
  // Stores entries that left the residual (methods.md 4.3, step 4 of 1.6). ReserveStep came before.
  void Settle(int layer, int head);
  // Removes the entry of rank `rank` (ascending position). Only with config.ordered.
  void Remove(int layer, int head, int32_t rank);
  // Drops all but the newest n entries of one head and gives their pages back. Only caches without tails,
  // order and codebooks.
  Status KeepNewest(int layer, int head, int32_t n);
  // Removes the entries of positions >= n_tokens. Strong: on failure nothing changed. Takes memory only where
  // entries were removed one by one before and pages are shared with a fork.
  Status RewindTo(int32_t n_tokens);

  // ---- entries by rank (ascending position) ----
  int32_t PositionAt(int layer, int head, int32_t rank) const;
  void ReadKey(int layer, int head, int32_t rank, float* k) const { ReadVector(layer, head, rank, 0, k); }
  void ReadValue(int layer, int head, int32_t rank, float* v) const { ReadVector(layer, head, rank, 1, v); }
  void WriteKey(int layer, int head, int32_t rank, const float* k) { WriteVector(layer, head, rank, 0, k); }
  void WriteValue(int layer, int head, int32_t rank, const float* v) { WriteVector(layer, head, rank, 1, v); }
  // f(position, k [D]) may change every key of the layer; ReserveStep came before.
  template <typename F>
  void RewriteKeys(int layer, F&& f) {
    for (int head = 0; head < config_.n_kv_heads; ++head) {
      for (int32_t r = 0; r < Len(layer, head); ++r) {
        ReadKey(layer, head, r, scratch_.data());
        f(PositionAt(layer, head, r), scratch_.data());
        WriteKey(layer, head, r, scratch_.data());
      }
    }
  }
  // Side values of all entries in rank order, [Len]; SetAux writes them back.
  void GetAux(int layer, int head, int a, float* out) const;
  void SetAux(int layer, int head, int a, const float* in);
  // Turns values in physical order (as Attend gives them) into rank order.
  void ToRankOrder(int layer, int head, const float* physical, float* ranked) const;

  // ---- whole layers ----
  // Fills kv (allocated for at least Len entries) with everything cached; keys come as stored.
  void Load(int layer, LayerKv* kv) const;
  // Replaces the layer by the marked entries of kv (mark [G, mark_stride], null = all). Strong: on failure
  // nothing changed. seen: uint32 masks [G, mark_stride] or null.
  Status Store(int layer, const LayerKv& kv, const uint8_t* mark, int64_t mark_stride, const uint32_t* seen);
  // Appends the entries [first[h], kv.len[h]) of every head.
  Status AppendFrom(int layer, const LayerKv& kv, const int32_t* first);
  // Gives back pages that were reserved and not used.
  void ReleaseSpare();
  // The same entries in exactly the pages they need. Steps leave more: those reserved, the one of the next
  // append, free ones between those in use. On failure some layers are packed.
  Status Pack();

  // Directions in the codebooks of a head: which 0 keys, 1 values; and an entry's code, by rank in main.
  int32_t BookLen(int layer, int head, int which) const { return BookOwner(At(layer, head)).book_len[which]; }
  const float* Direction(int layer, int head, int which, int32_t i) const {
    return DirectionOf({this, &BookOwner(At(layer, head)), which}, i);
  }
  CodedVector CodeAt(int layer, int head, int which, int32_t rank) const;
  uint32_t SeenAt(int layer, int head, int32_t rank) const;

  // The whole cache as bytes. RestoreFrom trusts nothing: kBadModel when the parts do not fit together, this
  // cache's config, or a sequence of n_tokens of which every head has all from `changed_at` on.
  Status SaveTo(ArchiveWriter& archive);
  Status RestoreFrom(ArchiveReader& archive, int32_t n_tokens, int32_t changed_at);

  // ---- for attention: runs of physically adjacent entries ----
  struct Run {
    const uint8_t* k;  // stored form, or f32 when decoded into scratch
    const uint8_t* v;
    KvType type;           // f32, f16, bf16: ready for attend_tile
    int32_t first, n;      // physical index of the first entry, number
    const uint32_t* seen;  // masks or null
    const int32_t* positions;
  };
  // Entries [first, ...) of one head up to the end of a page or of the ring's occupied part, decoded into
  // scratch (2 * page_slots * D floats) when needed. Physical indices of the tail are main_len + ring slot.
  Run GetRun(int layer, int head, int32_t first, float* scratch) const;
  // Calls f(first, n) for the ranges of physical indices that hold entries, ascending; at most three.
  template <typename F>
  void ForOccupied(int layer, int head, F&& f) const {
    const Head& h = At(layer, head);
    if (h.main_len > 0) f(0, h.main_len);
    const int32_t slots = FormatAt(layer, head).tail_slots, end = h.tail_start + h.tail_len;
    if (h.tail_len > 0 && end > slots) f(h.main_len, end - slots);
    if (h.tail_len > 0) f(h.main_len + h.tail_start, std::min(end, slots) - h.tail_start);
  }
  // Calls f(i, physical) for the i-th oldest entry of the tail.
  template <typename F>
  void TailSlots(int layer, int head, F&& f) const {
    const Head& h = At(layer, head);
    const int32_t slots = FormatAt(layer, head).tail_slots;
    for (int32_t i = 0; i < h.tail_len; ++i) f(i, h.main_len + (h.tail_start + i) % slots);
  }
  // rank -> physical slot of main, or null when slots are in order.
  const int32_t* Order(int layer, int head) const {
    return config_.ordered ? At(layer, head).order.data() : nullptr;
  }

 private:
  struct Head {
    std::vector<int32_t> pages;
    std::vector<int32_t> order;  // rank -> slot, main only
    int32_t main_len = 0, tail_page = -1, tail_start = 0, tail_len = 0;
    int32_t main_pool = 0, tail_pool = -1;
    int64_t key_bytes = 0, value_bytes = 0;  // of one stored vector
    std::vector<int32_t> book_pages[2];      // directions of keys and of values, page_slots a page
    int32_t book_len[2] = {0, 0};
  };
  struct Book {
    const KvCache* cache;
    const Head* head;
    int which;
  };
  // One head's entries coded for storage, before any page is taken.
  struct HeadCodes {
    std::vector<CodedVector> codes[2];
    std::vector<float> added[2];
  };
  void ReadVector(int layer, int head, int32_t rank, int which, float* x) const;  // which: 0 key, 1 value
  void WriteVector(int layer, int head, int32_t rank, int which, const float* x);
  struct Slot {
    uint8_t* page;
    int32_t index, slots;
    bool raw;
  };
  KvCache() = default;
  Head& At(int layer, int head) { return heads_[static_cast<size_t>(layer * config_.n_kv_heads + head)]; }
  const Head& At(int layer, int head) const {
    return heads_[static_cast<size_t>(layer * config_.n_kv_heads + head)];
  }
  // The head that holds the codebooks of h.
  const Head& BookOwner(const Head& h) const {
    const std::ptrdiff_t index = &h - heads_.data();
    return config_.layer_books ? heads_[static_cast<size_t>(index - index % config_.n_kv_heads)] : h;
  }
  Head& BookOwner(Head& h) { return const_cast<Head&>(std::as_const(*this).BookOwner(h)); }
  const HeadFormat& FormatAt(int layer, int head) const {
    return config_.formats[static_cast<size_t>(layer * config_.n_kv_heads + head)];
  }
  static int64_t KeyBytes(const HeadFormat& format);  // of one stored key, of one value
  static int64_t ValueBytes(const HeadFormat& format);
  static int64_t SlotBytes(const CacheConfig& config, int64_t key_bytes, int64_t value_bytes);
  Slot MainSlot(const Head& h, int32_t slot) const;
  Slot TailSlot(const Head& h, int32_t i) const;  // i-th oldest of the tail
  Slot SlotOfRank(const Head& h, int32_t rank) const;
  int32_t* Positions(const Head& h, const Slot& s) const;
  float* Aux(const Head& h, const Slot& s, int a) const;
  uint32_t* Seen(const Head& h, const Slot& s) const;
  uint16_t* KeyScales(const Head& h, const Slot& s) const;
  uint8_t* Stored(const Head& h, const Slot& s, int which) const;
  void DecodeStored(const Head& h, const HeadFormat& format, const Slot& s, int32_t n, int which,
                    float* x) const;
  int64_t MetaOffset(const Head& h, const Slot& s) const;
  void MakeWritable(Head& h, int32_t page_index);  // page_index -1: the tail
  void Encode(const Head& h, const VectorFormat& format, const Slot& s, const float* k, const float* v);
  void CopySlot(const Head& h, const Slot& from, const Slot& to);
  bool NewestLast(const Head& h, int32_t n) const;
  int32_t CountFrom(const Head& h, int32_t position) const;
  void DropNewestMain(Head& h, int32_t n);
  void RemoveMain(Head& h, int32_t rank);
  void PushMain(Head& h, const VectorFormat& format, const float* k, const float* v, int32_t position,
                const float* aux, uint32_t seen);
  template <typename Archive>
  Status ArchivePages(Archive& archive, int pool_index, std::vector<int32_t>* ids);
  template <typename Archive>
  Status ArchiveHead(Archive& archive, Head& h);
  Status CheckHead(const Head& h, const HeadFormat& format, int32_t n_tokens, int32_t changed_at) const;
  int32_t PagesFor(int32_t entries) const { return (entries + config_.page_slots - 1) / config_.page_slots; }
  void ReleaseHead(Head* h);
  const float* DirectionOf(const Book& book, int32_t i) const;
  DirectionSource Directions(const Book& book) const;
  void AddDirections(Head& h, int which, const std::vector<float>& added);
  void DecodeCodes(const Head& h, const Slot& s, int32_t n, float* k, float* v) const;
  void SettleCodes(Head& h, const HeadFormat& format);
  void SettleBlock(Head& h, const HeadFormat& format);
  void CodeHeads(const HeadFormat& format, const LayerKv& kv, int first, int n_heads, const uint8_t* mark,
                 int64_t mark_stride, HeadCodes* out) const;
  void FillHead(Head* fresh, int layer, int head, const LayerKv& kv, const uint8_t* mark,
                const uint32_t* seen, int32_t kept, const HeadCodes& codes);
  int32_t TakeSpare(int pool);
  void ReserveLists();
  void ReserveCodes();

  CacheConfig config_;
  const KernelTable* kernels_ = nullptr;
  std::vector<std::shared_ptr<PagePool>> pools_;
  std::vector<std::vector<int32_t>> spare_;  // pages taken by ReserveStep and not yet used, per pool
  std::vector<int32_t> need_;                // scratch of ReserveStep
  std::vector<Head> heads_;
  int32_t book_pool_ = -1;    // pages of directions, [page_slots, D] f32
  CodeScratch code_scratch_;  // of SettleCodes
  HeadCodes settled_;
  Buffer<float> scratch_;  // 2 * D floats, for settling; with codebooks 2 * settle * D
};

}  // namespace kvc

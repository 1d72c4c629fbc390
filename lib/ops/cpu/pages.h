// Entries of the cache in this processor's memory: where each part of an entry lies, moving one, coding one.
#pragma once
#include <algorithm>
#include <cstring>

#include "lib/ops/cache_ops.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {

// One slot of a page.
struct Slot {
  uint8_t* page = nullptr;
  const PageFormat* f = nullptr;
  int32_t index = 0;

  uint8_t* key() const { return page + f->keys + f->key_bytes * index; }
  uint8_t* value() const { return page + f->values + f->value_bytes * index; }
  uint16_t* key_scales() const {
    return reinterpret_cast<uint16_t*>(page + f->key_scales + f->scale_bytes * index);
  }
  uint16_t* value_scales() const {
    return reinterpret_cast<uint16_t*>(page + f->value_scales + f->scale_bytes * index);
  }
  uint16_t* channel_scales() const { return reinterpret_cast<uint16_t*>(page + f->channel_scales); }
  int32_t& position() const { return reinterpret_cast<int32_t*>(page + f->positions)[index]; }
  int32_t& rank() const { return reinterpret_cast<int32_t*>(page + f->rank)[index]; }
  uint32_t& seen() const { return reinterpret_cast<uint32_t*>(page + f->seen)[index]; }
  float& aux(int a) const { return reinterpret_cast<float*>(page + f->aux)[int64_t{a} * f->slots + index]; }
  CodedVector& key_code() const { return reinterpret_cast<CodedVector*>(page + f->keys)[index]; }
  CodedVector& value_code() const { return reinterpret_cast<CodedVector*>(page + f->values)[index]; }
};

// The entries of one head. Physical index: slot of main, or main length + slot of the ring.
class HeadPages {
 public:
  HeadPages(const KernelTable& kernels, const CacheView& cache, int32_t head)
      : kernels_(&kernels), c_(&cache), head_(head), main_format_(MainFormat(cache, head)) {
    f_ = &cache.layout->formats[static_cast<size_t>(main_format_)];
    const int32_t ring = RingFormat(cache, head);
    if (ring >= 0) ring_f_ = &cache.layout->formats[static_cast<size_t>(ring)];
  }

  const PageFormat& format() const { return *f_; }
  const HeadFormat& head_format() const { return c_->layout->heads[static_cast<size_t>(head_)]; }
  int32_t main_len() const { return c_->len[head_]; }
  int32_t& main_len_ref() const { return c_->len[head_]; }
  bool has_ring() const { return ring_f_ != nullptr; }
  int32_t ring_slots() const { return ring_f_ == nullptr ? 0 : ring_f_->slots; }
  int32_t& ring_start() const { return c_->ring[head_ * kRingFields + kRingStart]; }
  int32_t& ring_len_ref() const { return c_->ring[head_ * kRingFields + kRingLen]; }
  int32_t ring_len() const { return has_ring() ? ring_len_ref() : 0; }
  int32_t len() const { return main_len() + ring_len(); }
  bool rotated() const { return c_->rotated[head_] != 0; }
  void set_rotated(bool on) const { c_->rotated[head_] = on ? 1 : 0; }

  Slot Main(int32_t slot) const {
    const int32_t id = c_->pages[int64_t{head_} * c_->page_stride + slot / f_->slots];
    return {Page(main_format_, id), f_, slot % f_->slots};
  }
  Slot RingSlot(int32_t slot) const {
    return {Page(head_format().ring, c_->ring[head_ * kRingFields + kRingPage]), ring_f_, slot};
  }
  Slot Ring(int32_t i) const { return RingSlot((ring_start() + i) % ring_f_->slots); }  // i-th oldest
  Slot At(int32_t physical) const {
    return physical < main_len() ? Main(physical) : RingSlot(physical - main_len());
  }
  // Calls f(first, n, Slot of first) for runs of physically adjacent entries, by ascending physical index; at
  // most a page each. Together: every entry once.
  template <typename F>
  void ForRuns(F&& f) const {
    for (int32_t at = 0; at < main_len(); at += f_->slots)
      f(at, std::min(f_->slots, main_len() - at), Main(at));
    ForRing([&](int32_t first, int32_t n) { f(first, n, RingSlot(first - main_len())); });
  }
  // The same for who looks at indices only: f(first, n) for adjacent ones, whatever pages they lie in.
  template <typename F>
  void ForSpans(F&& f) const {
    if (main_len() > 0) f(0, main_len());
    ForRing(f);
  }

  // ---- vectors ----
  void ReadKeys(const Slot& s, int32_t n, float* x) const { Decode(s, n, 0, x); }  // n adjacent ones
  void ReadValues(const Slot& s, int32_t n, float* x) const { Decode(s, n, 1, x); }
  void WriteKey(const Slot& s, const float* k) const {
    kernels_->encode_vectors(s.f->key_vectors(), k, 1, s.key(), s.key_scales());
  }
  void WriteValue(const Slot& s, const float* v) const {
    kernels_->encode_vectors(s.f->value_vectors(), v, 1, s.value(), s.value_scales());
  }
  const float* Direction(int which, int32_t i) const {
    const PageFormat& f = c_->layout->formats[static_cast<size_t>(c_->layout->directions)];
    const int32_t owner = c_->layout->book_owner(head_),
                  id = c_->books[(int64_t{owner} * 2 + which) * c_->book_stride + i / f.slots];
    return reinterpret_cast<const float*>(Page(c_->layout->directions, id)) + int64_t{i % f.slots} * f.d;
  }
  float* MutableDirection(int which, int32_t i) const { return const_cast<float*>(Direction(which, i)); }
  int32_t& book_len(int which) const { return c_->book_len[c_->layout->book_owner(head_) * 2 + which]; }

  // ---- entries ----
  // Everything but key and value.
  void WriteMeta(const Slot& s, int32_t position, int32_t rank, const float* aux, int64_t aux_stride,
                 uint32_t seen) const {
    s.position() = position;
    if (s.f->ranks) s.rank() = rank;
    if (s.f->seen_masks) s.seen() = seen;
    for (int a = 0; a < s.f->n_aux; ++a) s.aux(a) = aux == nullptr ? 0.0f : aux[a * aux_stride];
  }
  void CopyMeta(const Slot& from, const Slot& to) const;
  // Codes and all, between slots of one format.
  void CopyEntry(const Slot& from, const Slot& to) const;
  // Behind a write to a slot of main: where its page is full by it, the page takes the bounds of its keys.
  void NoteBounds(const Slot& s) const {
    if (s.f->key_bounds && s.index + 1 == s.f->slots) TakeBounds(s);
  }
  // A new entry at the end of the ring, or of main where there is none.
  void Append(const float* k, const float* v, int32_t position) const;
  // Stores entries that left a full ring (methods.md 4.3). scratch: SettleFloats.
  void Settle(float* scratch) const;
  static int64_t SettleFloats(const CacheLayout& layout);
  // Takes one entry out: another takes its slot.
  void Remove(int32_t physical) const;
  // All entries, decoded, in their order into pages of a format without codes.
  void WritePlain(int32_t format, const int32_t* pages, float* scratch) const;  // scratch: [D]
  // Keys lose the rotation of their original position.
  void DropRotation(const Rope& rope, RopePairing pairing, float* scratch) const;

 private:
  template <typename F>
  void ForRing(F&& f) const {
    const int32_t slots = ring_slots(), end = ring_len() == 0 ? 0 : ring_start() + ring_len();
    if (end > slots) f(main_len(), end - slots);
    if (end > 0) f(main_len() + ring_start(), std::min(end, slots) - ring_start());
  }
  uint8_t* Page(int32_t format, int32_t id) const {
    return Raw(c_->bases[format]) + int64_t{id} * c_->layout->formats[static_cast<size_t>(format)].bytes;
  }
  void Decode(const Slot& s, int32_t n, int which, float* x) const;
  void TakeBounds(Slot s) const;
  void PushMain(const float* k, const float* v, const Slot& meta) const;
  void SettleBlock(float* scratch) const;
  void SettleCodes(float* scratch) const;
  void AddDirection(int which, const float* x) const;

  const KernelTable* kernels_;
  const CacheView* c_;
  int32_t head_, main_format_;
  const PageFormat *f_ = nullptr, *ring_f_ = nullptr;
};

// n vectors [n, D] turned to a position, or back.
void Rotate(const KernelTable& kernels, const Rope& rope, RopePairing pairing, int64_t position, int32_t d,
            float* x, int32_t n);
void Unrotate(const KernelTable& kernels, const Rope& rope, RopePairing pairing, int64_t position, int32_t d,
              float* x, int32_t n);

}  // namespace kvc::cpu

// How entries lie in a page of the cache: every part of all slots together, codes first, then scales, then
// what is known of each entry. Plain numbers, the same on every device.
#pragma once
#include <cstdint>

#include "lib/ops/tensor.h"

namespace kvc {

// What an entry's key and value become.
enum class EntryCoding : uint8_t {
  kVectors = 0,      // each vector by itself, in its type; codes with an f16 scale per group (methods.md 4.3)
  kKeyChannels = 1,  // keys of a page share one scale a channel; values as above
  kCodebook = 2,     // references into the head's directions, and magnitudes (methods.md 2.16)
  kDirections = 3    // a page of directions, f32: no entries
};

struct PageFormat {
  EntryCoding coding = EntryCoding::kVectors;
  KvType type = KvType::kF16;  // of keys, and of values unless value_bits says
  int32_t value_bits = 0;      // 8, 4 or 2: of the codes of values, where keys have codes too; 0: as keys
  int32_t d = 0, group = 0, slots = 0;  // group: of codes
  int32_t n_aux = 0;                    // f32 side values of an entry
  bool seen_masks = false, ranks = false;
  // Whether a page that is full knows the greatest and the least number of its keys in every channel.
  bool key_bounds = false;
  // Whether pages end at a multiple of 16 bytes and not of 64, and their scales, positions and side values
  // begin at multiples of 4 and not of 16, which would be much of a small page. Other pages of saved sessions
  // lie as they always did.
  bool packed = false;

  // Of one slot, and where each part begins in the page.
  int64_t key_bytes = 0, value_bytes = 0;  // codes of one key, of one value
  int64_t scale_bytes = 0;                 // of one vector, 0: none
  int64_t keys = 0, values = 0, key_scales = 0, value_scales = 0, channel_scales = 0;
  int64_t positions = 0, rank = 0, seen = 0, aux = 0;  // int32, int32, uint32 [slots], f32 [n_aux, slots]
  int64_t bounds = 0;                                  // [2, D] as bound_format(): the greatest, the least
  int64_t bytes = 0;                                   // a multiple of 16

  // Fills in the lower half from the upper.
  void Lay();
  constexpr KvType value_type() const {
    return value_bits == 0   ? type
           : value_bits == 8 ? KvType::kInt8
           : value_bits == 4 ? KvType::kInt4
                             : KvType::kInt2;
  }
  constexpr VectorFormat key_vectors() const { return {type, d, group}; }
  constexpr VectorFormat value_vectors() const { return {value_type(), d, group}; }
  bool coded() const { return type == KvType::kInt8 || type == KvType::kInt4; }
  // Bounds are numbers that keys have as they are read, so nothing is rounded.
  VectorFormat bound_format() const { return {coded() ? KvType::kF32 : type, d, 0}; }
  bool operator==(const PageFormat& o) const {
    return coding == o.coding && type == o.type && value_bits == o.value_bits && d == o.d &&
           group == o.group && slots == o.slots && n_aux == o.n_aux && seen_masks == o.seen_masks &&
           ranks == o.ranks && key_bounds == o.key_bounds && packed == o.packed;
  }
};

// Zeroes what of a page belongs to none of the n slots from `first` on, round its end: entries that are gone
// and the gaps between its parts. Bounds stay where the page is full, scales of channels always: the codes
// there are were made with them.
void ClearOthers(const PageFormat& f, int32_t first, int32_t n, uint8_t* page);

// A vector of a codebook's head is magnitude * direction[ref].
struct CodedVector {
  uint32_t ref;
  float magnitude;
};

}  // namespace kvc

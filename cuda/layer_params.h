// Host structures as kernels take them: packets of records, layers at full length, rotations.
#pragma once
#include <algorithm>

#include "cuda/block.h"
#include "cuda/cuda_device.h"
#include "cuda/records.h"
#include "cuda/split_tiles.h"
#include "cuda/turning.h"

namespace kvc::cuda {

// Numbers of keys or values of a layer, from one of them on: of f32, or of f16.
class LayerNumbers {
 public:
  KVC_DEVICE LayerNumbers(uint8_t* at, bool half) : at_(at), half_(half) {}
  KVC_DEVICE float operator[](int64_t i) const {
    return half_ ? HalfBits(reinterpret_cast<const uint16_t*>(at_)[i])
                 : reinterpret_cast<const float*>(at_)[i];
  }
  // f16: no further from zero than its largest.
  KVC_DEVICE void Set(int64_t i, float x) const {
    if (half_) {
      reinterpret_cast<uint16_t*>(at_)[i] = ToFiniteHalfBits(x);
    } else {
      reinterpret_cast<float*>(at_)[i] = x;
    }
  }
  KVC_DEVICE LayerNumbers operator+(int64_t n) const { return {at_ + n * (half_ ? 2 : 4), half_}; }
  KVC_DEVICE const void* at() const { return at_; }

 private:
  uint8_t* at_;
  bool half_;
};

// A layer at full length (LayerView) with its lengths on the device.
struct LayerParams {
  int32_t n_heads, d, n_aux;
  bool has_seen, half;
  int64_t capacity;
  uint8_t *keys, *values;
  int32_t* positions;
  float* aux;
  uint32_t* seen;
  const int32_t* len;  // [G]

  // Of an entry of all heads' [G, capacity]: [D], and those behind it.
  KVC_DEVICE LayerNumbers Key(int64_t entry) const { return LayerNumbers(keys, half) + entry * d; }
  KVC_DEVICE LayerNumbers Value(int64_t entry) const { return LayerNumbers(values, half) + entry * d; }
  // Whether query head `bit` sees an entry.
  KVC_DEVICE bool Sees(int64_t entry, uint32_t bit) const { return !has_seen || (seen[entry] & bit) != 0; }
};
// Vectors of n entries for the tensor cores, and what becomes of rows of f32 beside them: those are rounded
// to f16 where the layer is of f16.
template <bool kHalf>
struct LayerRows;
template <>
struct LayerRows<false> {
  using Beside = FloatRows;
  KVC_DEVICE static FloatRows Of(const LayerNumbers& first, int32_t n, int32_t d) {
    return {static_cast<const float*>(first.at()), d, n, d};
  }
};
template <>
struct LayerRows<true> {
  using Beside = RoundedRows;
  KVC_DEVICE static HalfRows Of(const LayerNumbers& first, int32_t n, int32_t d) {
    return {static_cast<const uint16_t*>(first.at()), d, n, d};
  }
};
// Of query head h in masks of a group of so many; masks have 32.
KVC_DEVICE uint32_t SeenBit(int32_t h, int32_t group) {
  const int32_t j = h % group;
  return j < 32 ? 1u << j : 0u;
}

inline int64_t LayerBytes(const LayerView& v) { return Packet::Size<int32_t>(v.n_kv_heads); }
inline LayerParams LayerOf(const LayerView& v, Packet* packet) {
  return {v.n_kv_heads,
          v.head_dim,
          v.n_aux,
          v.has_seen,
          v.type == KvType::kF16,
          v.capacity,
          At(v.keys),
          At(v.values),
          At(v.positions),
          At(v.aux),
          v.has_seen ? At(v.seen) : nullptr,
          packet->Copy(v.len, v.n_kv_heads)};
}

inline int32_t LongestOf(const LayerView& v) { return *std::max_element(v.len, v.len + v.n_kv_heads); }
// A block for each head's line.
inline dim3 BlockOf(const LayerView& v) { return dim3(LineThreads(LongestOf(v))); }

inline int64_t TurnBytes(const Rope* rope) {
  return rope == nullptr ? 0 : Packet::Size<double>(static_cast<int64_t>(rope->frequencies().size()));
}
inline Turn TurnOf(const Rope* rope, RopePairing pairing, bool in_cache, Packet* packet) {
  if (rope == nullptr) return {nullptr, 1, 0, pairing, in_cache};
  return {packet->Copy(rope->frequencies().data(), static_cast<int64_t>(rope->frequencies().size())),
          rope->attention_factor(), rope->n_turning(), pairing, in_cache};
}
inline Turn TurnOf(const KeyTurning& t, Packet* packet) {
  return TurnOf(t.rope, t.pairing, t.in_cache, packet);
}

// The records of heads [first, first + n) of a cache, with room in their tables for `more` entries of main,
// and for as many directions of every head that a book is shared by.
class CacheRecords {
 public:
  CacheRecords(const CacheView& cache, int32_t first, int32_t n, int32_t more)
      : c_(cache), first_(first), n_(n), more_(more) {}
  int64_t Bytes() const;
  // The same if every head held what its tables have room for.
  int64_t MostBytes() const;
  // heads of it: where kernels find, and may change, the records; *host: what is sent there.
  CacheLayer Write(Packet* packet, Head** host = nullptr) const;
  // For another row of the same session: heads of its own, as *host, with everything else that `front` has.
  CacheLayer WriteAgain(const CacheLayer& front, Packet* packet, Head** host) const;
  // Lengths as kernels left them in what Write gave, into the records of the host. Waits.
  Status ReadBack(CudaStream* stream, const Head* heads) const;
  // Those of head i of them.
  void Accept(int32_t i, const HeadLengths& from) const;

 private:
  int64_t BytesBeside() const;  // the tables of pages
  int32_t Ids(int32_t head) const;
  int32_t BookIds(int32_t head, int which) const;
  bool has_books() const { return c_.books != nullptr && c_.layout->directions >= 0; }

  const CacheView& c_;
  const int32_t first_, n_, more_;
};

}  // namespace kvc::cuda

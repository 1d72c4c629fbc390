// Host structures as kernels take them: packets of records, layers at full length, rotations.
#pragma once
#include <algorithm>

#include "cuda/cuda_device.h"
#include "cuda/records.h"
#include "cuda/turning.h"

namespace kvc::cuda {

// A layer at full length (LayerView) with its lengths on the device.
struct LayerParams {
  int32_t n_heads, d, n_aux;
  bool has_seen;
  int64_t capacity;
  float *keys, *values;
  int32_t* positions;
  float* aux;
  uint32_t* seen;
  const int32_t* len;  // [G]

  // Whether query head `bit` sees an entry.
  KVC_DEVICE bool Sees(int64_t entry, uint32_t bit) const { return !has_seen || (seen[entry] & bit) != 0; }
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
          v.capacity,
          At(v.keys),
          At(v.values),
          At(v.positions),
          At(v.aux),
          v.has_seen ? At(v.seen) : nullptr,
          packet->Copy(v.len, v.n_kv_heads)};
}

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
  // heads of it: where kernels find, and may change, the records; *host: what is sent there.
  CacheLayer Write(Packet* packet, const Head** host = nullptr);
  // Lengths as kernels left them in what Write gave, into the records of the host. Waits.
  Status ReadBack(CudaStream* stream, const Head* heads) const;

 private:
  int32_t Ids(int32_t head) const;
  int32_t BookIds(int32_t head, int which) const;
  bool has_books() const { return c_.books != nullptr && c_.layout->directions >= 0; }

  const CacheView& c_;
  const int32_t first_, n_, more_;
};

}  // namespace kvc::cuda

// The attention to a segment of numbers of 16 bits, in pages or a ring, with the fragments of tensor cores:
// what a block does (attend_step_mma.cu says how, attend_step_codes.cu does it with rings).
#pragma once
#include <type_traits>

#include "cuda/attend_warps.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {

constexpr int kHalvesEntries = 16;  // of the cache, of a product

KVC_DEVICE uint32_t WordOf(const uint4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// What a lane has of 16 entries: dimensions 32 b + 8 v .. + 7 of the keys of entries u and u + 8; dimensions
// 64 c + 8 u .. + 7 of the values of the entries of its logits.
template <int kDims>
using HalfKeys = uint4[2][kDims / 32];
template <int kDims>
using HalfValues = uint4[4][kDims / 64];

// The queries of a chunk as left factors, in shared memory: registers are for entries. Product (b, s) has of
// lane (u, v) the dimensions 32 b + 8 v + 4 s and the three behind it. Two numbers of bf16 are no whole
// query: logits, which may be large, show it. The third has rows of its own, eight of them empty.
template <typename Halves, int kDims>
struct HalfQueries {
  static constexpr bool kThirds = std::is_same_v<Halves, Bf16Halves>;
  uint4 left[kDims / 32][2][kWarp];
  uint2 thirds[kThirds ? kDims / 32 : 1][2][kWarp];

  // By the warps of a block.
  KVC_DEVICE void Load(const Queries<kDims>& queries) {
    KVC_UNROLL
    for (int i = 0; i < kDims / 16 / kAttendWarps; ++i) {
      const int b = (WarpOfBlock() + i * kAttendWarps) / 2, s = WarpOfBlock() % 2;
      const float4 x = queries.Four(RowOfLane(), 32 * b + 8 * QuadOfLane() + 4 * s);
      uint4 halves;
      SplitPair<typename Halves::Finite>(x.x, x.y, &halves.x, &halves.y);
      SplitPair<typename Halves::Finite>(x.z, x.w, &halves.z, &halves.w);
      left[b][s][Lane()] = halves;
      if constexpr (kThirds)
        thirds[b][s][Lane()] = {Third(x.x, x.y, halves.x, halves.y), Third(x.z, x.w, halves.z, halves.w)};
    }
  }
  // z: of the lane's entries, the products of query head u with their keys.
  KVC_DEVICE void Times(const HalfKeys<kDims>& keys, float (&z)[4]) const {
    float c[2][4] = {}, third[2][4] = {};
    KVC_UNROLL
    for (int b = 0; b < kDims / 32; ++b) {
      KVC_UNROLL
      for (int s = 0; s < 2; ++s) {
        const uint4 a = left[b][s][Lane()];
        const uint2 rest = kThirds ? thirds[kThirds ? b : 0][s][Lane()] : uint2{0, 0};
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          const uint32_t k[2] = {WordOf(keys[i][b], 2 * s), WordOf(keys[i][b], 2 * s + 1)};
          Halves::Mma(c[i], {a.x, a.y, a.z, a.w}, k);
          if constexpr (kThirds) Halves::Mma(third[i], {rest.x, 0, rest.y, 0}, k);
        }
      }
    }
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      KVC_UNROLL
      for (int j = 0; j < 2; ++j) z[2 * i + j] = c[i][j] + (c[i][j + 2] + third[i][j]);
    }
  }

 private:
  KVC_DEVICE static uint32_t Third(float a, float b, uint32_t high, uint32_t low) {
    return Halves::Pair(a - Halves::First(high) - Halves::First(low),
                        b - Halves::Second(high) - Halves::Second(low));
  }
};

// Entries that lie in pages of one form, the first of them with this physical index: main's, or the ring's.
struct HalvesRun {
  const PageFormat* f;
  uint8_t* base;
  const int32_t* ids;
  int32_t first;

  KVC_DEVICE static HalvesRun Main(const Pages& pages) {
    return {&pages.format(), pages.Base(), pages.head().ids, 0};
  }
  KVC_DEVICE static HalvesRun Ring(const Pages& pages) {
    return {&pages.ring().f, pages.ring().base, &pages.head().ring_page, pages.main_len()};
  }
};

// A run's entries as a warp reads them, 16 at a time: lane i finds entry i % 16, in two steps, so that
// nobody waits for the number of a page. Behind the last entry comes itself, so that every lane has something
// to read.
template <int kDims>
class EntryReader {
 public:
  // end: of the run.
  KVC_DEVICE EntryReader(const HalvesRun& run, int32_t end)
      : f_(run.f),
        keys_(run.base + f_->keys),
        ids_(run.ids),
        page_bytes_(static_cast<int32_t>(f_->bytes)),
        to_value_(static_cast<uint32_t>(f_->values - f_->keys)),
        slots_(static_cast<uint32_t>(f_->slots)),
        of_slots_(~0u / slots_),
        end_(end) {}

  KVC_DEVICE void LookUp(int32_t at) {
    const auto entry = static_cast<uint32_t>(min(at + Lane() % kHalvesEntries, end_ - 1)),
               page = PageOf(entry, slots_, of_slots_);
    id_ = ids_[page], index_ = static_cast<int32_t>(entry - page * slots_);
  }
  // Of the entries that have been looked up.
  KVC_DEVICE void FetchKeys(HalfKeys<kDims>& keys) const {
    const unsigned long long mine = MyKey();
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint4* key = KeyOf(RowOfLane() + 8 * i, mine) + QuadOfLane();
      KVC_UNROLL
      for (int b = 0; b < kDims / 32; ++b) keys[i][b] = __ldcs(key + 4 * b);
    }
  }
  KVC_DEVICE void FetchValues(HalfValues<kDims>& values) const {
    const unsigned long long mine = MyKey();
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint4* value = KeyOf(EntryOfLogit(i), mine + to_value_) + RowOfLane();
      KVC_UNROLL
      for (int c = 0; c < kDims / 64; ++c) values[i][c] = __ldcs(value + 8 * c);
    }
  }
  // Of the lane's.
  KVC_DEVICE int32_t Position() const { return Mine().position(); }
  KVC_DEVICE uint32_t Seen() const { return Mine().seen(); }

 private:
  KVC_DEVICE unsigned long long MyKey() const {
    return reinterpret_cast<unsigned long long>(keys_ + static_cast<int64_t>(id_) * page_bytes_ +
                                                index_ * 2 * kDims);
  }
  KVC_DEVICE static const uint4* KeyOf(int entry, unsigned long long mine) {
    return reinterpret_cast<const uint4*>(__shfl_sync(kAllLanes, mine, entry));
  }
  KVC_DEVICE Slot Mine() const {
    return {keys_ - f_->keys + static_cast<int64_t>(id_) * page_bytes_, f_, index_};
  }

  const PageFormat* f_;
  uint8_t* keys_;  // of page 0
  const int32_t* ids_;
  int32_t page_bytes_;
  uint32_t to_value_, slots_, of_slots_;  // of_slots_: of 2^32
  int32_t end_, id_ = 0, index_ = 0;
};

// Of a lane's sums [kDims / 16][4], of query head u: the first of four dimensions, which AddHalves adds.
KVC_DEVICE int FirstOfHalfSums(int r) { return r / 4 * 64 + 16 * QuadOfLane() + r % 2 * 8 + r / 2 % 2 * 4; }

// sums = keep * sums + exponentials * values.
template <typename Halves, int kDims>
KVC_DEVICE void AddHalves(const float (&e)[4], float keep, const HalfValues<kDims>& values,
                          float (&sums)[kDims / 16][4]) {
  uint32_t left[4];
  KVC_UNROLL
  for (int i = 0; i < 4; i += 2)
    SplitPair<Halves>(Halves::kShare * e[i], Halves::kShare * e[i + 1], &left[i], &left[i + 1]);
  KVC_UNROLL
  for (int c = 0; c < kDims / 64; ++c) {
    KVC_UNROLL
    for (int word = 0; word < 4; ++word) {
      uint32_t v[4];
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = WordOf(values[i][c], word);
      float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
      Halves::Mma(even, left, {LowHalves(v[0], v[1]), LowHalves(v[2], v[3])});
      Halves::Mma(odd, left, {HighHalves(v[0], v[1]), HighHalves(v[2], v[3])});
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        float* to = sums[4 * c + word / 2 * 2 + i] + word % 2 * 2;
        to[0] = to[0] * keep + (even[i] + even[i + 2]);
        to[1] = to[1] * keep + (odd[i] + odd[i + 2]);
      }
    }
  }
}

// A block's shared memory: what its warps read, and what they leave for each other in the end.
template <typename Halves, int kDims>
struct HalvesShared {
  HalfQueries<Halves, kDims> queries;
  WarpParts<kDims> parts;
};

// The attention of a block's item, whose entries are a part of the run and lie there. kAhead: more of them is
// on its way, in more registers. waited: for what is in front of the kernel (WaitForEntries).
template <bool kAhead, typename Halves, int kDims>
KVC_DEVICE void AttendHalves(const StepParams& p, const HalvesRun& run, bool waited,
                             HalvesShared<Halves, kDims>* shared) {
  constexpr int32_t kStep = kAttendWarps * kHalvesEntries;
  const Work work(p);
  const int32_t end = work.item.end;
  EntryReader<kDims> reader(run, end - run.first);
  int32_t at = work.item.begin + WarpOfBlock() * kHalvesEntries;
  reader.LookUp(at - run.first);
  Sight sight(run.f->seen_masks, p.window, p.rows[work.item.row].position);
  WarpSoftmax softmax;
  float sums[kDims / 16][4] = {};
  HalfKeys<kDims> keys;
  HalfValues<kDims> values;
  constexpr bool kValuesToo = kAhead && kBeginsEarly;  // while it waits
  reader.FetchKeys(keys);
  if (kValuesToo) reader.FetchValues(values);
  if (!waited) WaitForEarlier();
  shared->queries.Load(Queries<kDims>(p, work));
  __syncthreads();
  for (bool first = true; at < end; at += kStep, first = false) {
    if (kAhead && !(kValuesToo && first)) reader.FetchValues(values);
    sight.Fetch(p, reader, at);
    if (kAhead) reader.LookUp(at + kStep - run.first);
    float z[4];
    shared->queries.Times(keys, z);
    kAhead ? reader.FetchKeys(keys) : reader.FetchValues(values);
    sight.Logits(p, p.scale, at, end - at, z);
    if (p.logits != nullptr) WriteLogits(p, at, z);
    const float keep = softmax.Add(z);
    AddHalves<Halves, kDims>(z, keep, values, sums);
    if (kAhead) continue;
    reader.LookUp(at + kStep - run.first);
    reader.FetchKeys(keys);
  }
  JoinWarps<kDims>(p, softmax, sums, 1 / Halves::kShare, FirstOfHalfSums, &shared->parts);
}

}  // namespace kvc::cuda

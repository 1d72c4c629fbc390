// Tiles of entries of a head as f32 in shared memory, by the 128 threads of a block. Where a page's form has
// whole vectors of 16 bytes (of 8 where codes have two bits, or a vector would be longer than most groups), a
// lane reads one of them at a time and a warp eight at once, so that enough bytes are on their way: 4 KiB a
// warp. They can be fetched while the tile before is worked on, and put in place after.
#pragma once
#include "cuda/pages.h"
#include "cuda/turning.h"
#include "cuda/weights.h"

namespace kvc::cuda {

constexpr int kTile = 32, kTileWarps = 4, kTileThreads = kTileWarps * kWarp;

// Rows of a tile start at multiples of 16 bytes, and four banks apart.
constexpr int32_t TileStride(int32_t d) { return (d + 3) / 4 * 4 + 4; }

// What a lane has read of a tile: a batch of vectors, and the scale of each where it has one.
constexpr int kBatch = 8;
struct FetchedBatch {
  uint4 bytes[kBatch];
  uint16_t scale[kBatch];
};

// How a warp reads its entries of a tile, eight beside each other: in passes of 32 vectors, of several
// entries together where they are short, in several rounds where they are long.
class TileReader {
 public:
  KVC_DEVICE TileReader(const Pages& pages, float* keys, float* values)
      : pages_(pages), f_(pages.format()), keys_(keys), values_(values), stride_(TileStride(f_.d)) {
    key_columns_ = ColumnsOf(f_.type), value_columns_ = ColumnsOf(f_.value_type());
    vectors_ = f_.coding != EntryCoding::kCodebook && Whole(key_columns_) && Whole(value_columns_);
    of_key_ = vectors_ ? f_.d / key_columns_ : 1;
    of_entry_ = of_key_ + (vectors_ ? f_.d / value_columns_ : 1);
    rounds_ = (of_entry_ + kWarp - 1) / kWarp;
    together_ = min(of_entry_ < kWarp ? kWarp / of_entry_ : 1, kMine);
    entry_ = rounds_ > 1 ? 0 : Lane() / of_entry_;
    vector_ = rounds_ > 1 ? Lane() : Lane() % of_entry_;
  }

  // Whether the tile of n entries is read by whole vectors.
  KVC_DEVICE bool HasVectors(int32_t at, int32_t n) const { return vectors_ && at + n <= pages_.main_len(); }
  KVC_DEVICE int32_t Batches() const {
    return ((kMine + together_ - 1) / together_ * rounds_ + kBatch - 1) / kBatch;
  }
  KVC_DEVICE void Fetch(int32_t at, int32_t n, int32_t batch, FetchedBatch* fetched) const {
    // Every lane finds one entry of the tile.
    Slot mine{nullptr, &f_, 0};
    if (Lane() < n) mine = pages_.Main(at + Lane());
    KVC_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const Place p = PlaceOf(batch * kBatch + i);
      const int32_t index = __shfl_sync(kAllLanes, mine.index, p.entry);
      const auto page = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(mine.page), p.entry);
      if (!p.there || p.entry >= n) continue;
      const Slot s{reinterpret_cast<uint8_t*>(page), &f_, index};
      const uint8_t* vectors = p.is_key ? s.key() : s.value();
      if (!p.is_key && f_.value_type() == KvType::kInt2) {
        const uint2 half = __ldcs(reinterpret_cast<const uint2*>(vectors) + p.vector);
        fetched->bytes[i].x = half.x, fetched->bytes[i].y = half.y;
      } else {
        fetched->bytes[i] = __ldcs(reinterpret_cast<const uint4*>(vectors) + p.vector);
      }
      if (!HasScales() || (p.is_key && f_.coding == EntryCoding::kKeyChannels)) continue;
      const uint16_t* scales = p.is_key ? s.key_scales() : s.value_scales();
      fetched->scale[i] = scales[p.vector * ColumnsOf(p) / f_.group];
    }
  }
  KVC_DEVICE void Put(int32_t at, int32_t n, int32_t batch, const FetchedBatch& fetched) const {
    KVC_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const Place p = PlaceOf(batch * kBatch + i);
      if (!p.there || p.entry >= n) continue;
      const int32_t c = p.vector * ColumnsOf(p);
      float* to = (p.is_key ? keys_ : values_) + p.entry * stride_ + c;
      const uint16_t* channels = p.is_key && f_.coding == EntryCoding::kKeyChannels
                                     ? pages_.Main(at + p.entry).channel_scales() + c
                                     : nullptr;
      const float scale = HasScales() && channels == nullptr ? HalfBits(fetched.scale[i]) : 1.0f;
      switch (p.is_key ? f_.type : f_.value_type()) {
        case KvType::kF32:
          Decode<WeightType::kF32>(fetched.bytes[i], scale, nullptr, to);
          break;
        case KvType::kF16:
          Decode<WeightType::kF16>(fetched.bytes[i], scale, nullptr, to);
          break;
        case KvType::kBf16:
          Decode<WeightType::kBf16>(fetched.bytes[i], scale, nullptr, to);
          break;
        case KvType::kInt8:
          Decode<WeightType::kInt8>(fetched.bytes[i], scale, channels, to);
          break;
        case KvType::kInt4:
          Decode<WeightType::kInt4>(fetched.bytes[i], scale, channels, to);
          break;
        case KvType::kInt2:
          DecodeTwoBits(fetched.bytes[i], scale, to);
          break;
      }
    }
  }
  // Number by number: rings, codebooks, and what is no whole vectors.
  KVC_DEVICE void PutElements(int32_t at, int32_t n) const {
    for (int32_t t = WarpOfBlock() * kMine; t < min(n, (WarpOfBlock() + 1) * kMine); ++t) {
      const Slot s = pages_.At(at + t);
      for (int32_t j = Lane(); j < f_.d; j += kWarp) {
        keys_[t * stride_ + j] = pages_.Element(s, 0, j);
        values_[t * stride_ + j] = pages_.Element(s, 1, j);
      }
    }
  }
  // The warp turns the keys that it has put there, to positions or ranks.
  KVC_DEVICE void TurnKeys(int32_t at, int32_t n, const AngleLines& angles, RopePairing pairing,
                           bool in_cache) const {
    __syncwarp();
    for (int32_t t = WarpOfBlock() * kMine; t < min(n, (WarpOfBlock() + 1) * kMine); ++t) {
      const Slot s = pages_.At(at + t);
      const int32_t position = in_cache ? s.rank() : s.position();
      float* key = keys_ + t * stride_;
      for (int32_t j = Lane(); j < f_.d / 2; j += kWarp) {
        float cos, sin;
        angles.Find(position, f_.d, j, &cos, &sin);
        TurnPair(key, f_.d, j, pairing, cos, sin, key);
      }
    }
  }

 private:
  static constexpr int32_t kMine = kTile / kTileWarps;
  struct Place {
    int32_t entry, vector;  // of the tile; of the key or the value
    bool is_key, there;
  };

  KVC_DEVICE static int32_t ColumnsOf(KvType type) {
    return type == KvType::kF32 ? 4 : type == KvType::kInt8 ? 16 : type >= KvType::kInt4 ? 32 : 8;
  }
  KVC_DEVICE int32_t ColumnsOf(const Place& p) const { return p.is_key ? key_columns_ : value_columns_; }
  // Whether so many columns of a vector end where a vector does, and its groups.
  KVC_DEVICE bool Whole(int32_t columns) const {
    return f_.d % columns == 0 && (!HasScales() || f_.group % columns == 0);
  }
  KVC_DEVICE bool HasScales() const { return f_.type == KvType::kInt8 || f_.type == KvType::kInt4; }
  KVC_DEVICE Place PlaceOf(int32_t pass) const {
    const int32_t group = rounds_ > 1 ? pass / rounds_ : pass, e = group * together_ + entry_;
    const int32_t vector = vector_ + (rounds_ > 1 ? pass % rounds_ * kWarp : 0);
    const bool is_key = vector < of_key_;
    return {min(WarpOfBlock() * kMine + e, kTile - 1), is_key ? vector : vector - of_key_, is_key,
            e < kMine && entry_ < together_ && vector < of_entry_};
  }
  // channels: a scale for every column, null: `scale` for all.
  template <WeightType T>
  KVC_DEVICE static void Decode(const uint4& bytes, float scale, const uint16_t* channels, float* to) {
    KVC_UNROLL
    for (int i = 0; i < VectorOf<T>::kColumns / 4; ++i) {
      float x[4];
      UnpackFour<T>(bytes, i, x);
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) x[j] *= channels != nullptr ? HalfBits(channels[4 * i + j]) : scale;
      reinterpret_cast<float4*>(to)[i] = {x[0], x[1], x[2], x[3]};
    }
  }
  KVC_DEVICE static void DecodeTwoBits(const uint4& bytes, float scale, float* to) {
    KVC_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint8_t byte = static_cast<uint8_t>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8));
      float x[4];
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) x[j] = static_cast<float>(TwoBitCode(byte, j)) * scale;
      reinterpret_cast<float4*>(to)[i] = {x[0], x[1], x[2], x[3]};
    }
  }

  const Pages& pages_;
  const PageFormat& f_;
  float *keys_, *values_;
  int32_t stride_;
  bool vectors_;
  int32_t key_columns_, value_columns_;  // of a vector
  int32_t of_key_, of_entry_;            // vectors of a key, of both
  int32_t rounds_, together_, entry_, vector_;
};

}  // namespace kvc::cuda

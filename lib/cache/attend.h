// Decode attention of one token over the pages of every head (design.md 3). Ragged: each head has its own
// length.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/cache/kv_cache.h"
#include "lib/ops/rope.h"

namespace kvc {

// cos and sin of positions 0 .. n-1, for caches whose keys are stored before RoPE.
class AngleTable {
 public:
  // Keeps what is there; grows to n rows.
  Status Grow(const Rope& rope, int32_t n, MemoryMeter* meter);
  const float* Cos(int32_t i) const { return table_.data() + int64_t{i} * d_; }
  const float* Sin(int32_t i) const { return Cos(i) + d_ / 2; }
  int32_t rows() const { return rows_; }
  int64_t bytes() const { return table_.bytes(); }

 private:
  Buffer<float> table_;  // [rows, D]: cos [D/2], sin [D/2]
  int32_t rows_ = 0, d_ = 0;
};

// How stored keys get their rotation at read.
enum class KeyRotation : uint8_t { kStored, kByRank, kByPosition };

// Scratch of one session's decode attention; grown outside the step's hot part.
class AttendWorkspace {
 public:
  // For heads of at most max_len entries beside rings of any fill. What must grow, grows for `headroom` more.
  Status Reserve(const CacheConfig& config, int32_t max_len, int32_t headroom, int n_threads,
                 MemoryMeter* meter);
  int64_t bytes() const;
  // [H, stride] probabilities of the last Attend that wanted them, physical order.
  const float* Probabilities(int query_head) const { return probabilities_.data() + query_head * stride_; }
  float* MutableProbabilities(int query_head) { return probabilities_.data() + query_head * stride_; }

 private:
  friend class AttendJob;
  int64_t stride_ = 0;
  Buffer<float> partial_;        // [items, g, 2 + D]: m, l, acc
  Buffer<float> probabilities_;  // [H, stride]
  Buffer<float> thread_;         // per thread: decoded K, V of a page, logits
  Buffer<uint8_t> seen_;         // per thread: [g, page_slots]
  Buffer<int32_t> rank_;         // [G, stride]
  struct Item {
    int32_t head, begin, end;
  };
  std::vector<Item> items_;
  int64_t thread_floats_ = 0, seen_bytes_ = 0;
};

struct AttendArgs {
  const OpContext& ops;
  const KvCache& cache;
  int layer;
  const float* q;  // [H, D]; rotated when rotation is kStored, else turned here
  float* out;      // [H, D]
  float scale;
  int32_t window;  // sliding window of the model in tokens, 0 = none
  bool want_probabilities;
  KeyRotation rotation;
  const AngleTable* angles;  // when rotation is not kStored
  RopePairing pairing;
  float* rotated_q;  // [H, D] scratch when not kStored
};

// The new token's entry is already appended. Splits are fixed (256 entries), so results do not depend on the
// number of threads.
void Attend(const AttendArgs& args, AttendWorkspace* workspace);

}  // namespace kvc

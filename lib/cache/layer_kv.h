// One layer while its prompt is worked on, at full length in f32 or f16, before compression. Only one layer
// has this at a time.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/ops/device_buffer.h"

namespace kvc {

// Per KV head: entries [0, len) in ascending position; first the ones that were cached, then the new tokens.
class LayerBuffers {
 public:
  // For heads of at most `capacity` entries, of which at most max_cached come from a cache; keeps larger
  // blocks it has. type: of keys and values (LayerView).
  Status Reserve(const DeviceMemory& memory, int32_t n_kv_heads, int32_t head_dim, int64_t capacity,
                 int64_t max_cached, int32_t n_aux, bool has_seen, KvType type = KvType::kF32);
  void Free();
  int64_t bytes() const {
    return keys_.bytes() + values_.bytes() + positions_.bytes() + aux_.bytes() + seen_.bytes() +
           order_.bytes();
  }
  const LayerView& view() const { return view_; }
  DeviceBytes order() const { return order_.raw(); }  // scratch of loading
  int64_t max_cached() const { return max_cached_; }
  const std::vector<int32_t>& len() const { return len_; }
  int32_t Longest() const;
  // A copy of another's entries, lengths included, side values 0.
  Status CopyFrom(Stream* stream, Device* device, const LayerBuffers& from);

 private:
  DeviceBuffer<float> aux_;
  DeviceBuffer<int32_t> positions_;
  DeviceBuffer<uint32_t> seen_;
  DeviceBuffer<uint8_t> keys_, values_, order_;
  std::vector<int32_t> len_;
  LayerView view_;
  int64_t max_cached_ = 0;
};

// What the forward pass records of one layer for the scorer, and only that.
class ObservedBuffers {
 public:
  Status Reserve(const DeviceMemory& memory, int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                 int64_t capacity, int32_t n_rows, bool sums, bool maxima);
  void Free();
  int64_t bytes() const { return queries_.bytes() + sums_.bytes() + maxima_.bytes(); }
  // Column sums and maxima start at zero.
  Status Clear(Stream* stream, Device* device);

  ObservedView view() const {
    ObservedView v;
    v.n_rows = n_rows, v.n_new = n_new, v.queries = queries_.at(), v.sums = sums_.at(),
    v.maxima = maxima_.at();
    return v;
  }
  DevicePtr<float> queries() const { return queries_.at(); }
  DevicePtr<float> sums() const { return sums_.at(); }
  DevicePtr<float> maxima() const { return maxima_.at(); }
  int32_t n_rows = 0, n_new = 0;

 private:
  DeviceBuffer<float> queries_, sums_, maxima_;
};

}  // namespace kvc

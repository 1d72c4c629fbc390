// A layer of the shape that single operations are measured on: as a prompt leaves it, full length.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bench/device_bench.h"
#include "lib/base/half.h"
#include "lib/cache/layer_kv.h"

namespace kvc::bench {

constexpr float kScale = 0.125f;  // of attention logits

inline NetworkShape ShapeOf(const DeviceBench& bench) {
  NetworkShape s;
  s.hidden = 2048, s.ffn = 8192, s.n_heads = 32, s.n_kv_heads = 8, s.head_dim = 64, s.vocab = 128256;
  if (bench.small()) s.hidden = 256, s.ffn = 512, s.n_heads = 4, s.n_kv_heads = 2, s.vocab = 512;
  return s;
}

// Of the 8B shape, for what needs no matrices.
inline NetworkShape HeadsOf8B() {
  NetworkShape s;
  s.n_heads = 32, s.n_kv_heads = 8, s.head_dim = 128;
  return s;
}

// So many of something of `bytes` that all of them lie in no cache, and three at least: a pass of a model
// comes by each once.
inline int32_t Copies(const DeviceBench& bench, double bytes) {
  constexpr double kBeyondCaches = 256 << 20;
  return bench.small() ? 2 : std::max(3, static_cast<int32_t>(kBeyondCaches / bytes) + 1);
}

// A layer at full length as a prompt leaves it: keys, values, positions of `n` tokens. Of f16 where the
// device has such layers, as those of models with weights of 16 bits or fewer are.
class Layer {
 public:
  Layer(DeviceBench* bench, int32_t n) : Layer(bench, ShapeOf(*bench), n) {}
  // n_aux: side values of an entry, 0.
  Layer(DeviceBench* bench, const NetworkShape& shape, int32_t n, int32_t n_aux = 0) : shape_(shape) {
    Check(buffers_.Reserve(bench->memory(), shape_.n_kv_heads, shape_.head_dim, n, n, n_aux, false,
                           bench->device()->info().half_layers ? KvType::kF16 : KvType::kF32));
    const int64_t entries = int64_t{n} * shape_.n_kv_heads;
    Device* device = bench->device();
    const std::vector<float> x = bench->Floats(entries * shape_.head_dim);
    std::vector<int32_t> positions(static_cast<size_t>(entries));
    for (size_t i = 0; i < positions.size(); ++i)
      positions[i] = static_cast<int32_t>(i % static_cast<size_t>(n));
    const auto write = [&](DeviceBytes to, const void* from, int64_t bytes) {
      Check(device->Write(bench->stream(), to, from, bytes));
    };
    std::vector<uint16_t> halves(x.size());
    std::transform(x.begin(), x.end(), halves.begin(), FloatToF16);
    const void* numbers = view().type == KvType::kF16 ? static_cast<const void*>(halves.data()) : x.data();
    write(view().keys, numbers, entries * view().vector_bytes());
    write(view().values, numbers, entries * view().vector_bytes());
    write(view().positions.As<uint8_t>(), positions.data(), 4 * entries);
    if (n_aux > 0) Check(device->Zero(bench->stream(), view().aux.As<uint8_t>(), 4 * entries * n_aux));
    std::fill_n(view().len, shape_.n_kv_heads, n);
  }
  const LayerView& view() const { return buffers_.view(); }
  // Keys and values.
  double bytes(int32_t n) const {
    return 2.0 * n * shape_.n_kv_heads * static_cast<double>(view().vector_bytes());
  }

 private:
  const NetworkShape shape_;
  LayerBuffers buffers_;
};

}  // namespace kvc::bench

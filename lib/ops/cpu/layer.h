// A layer at full length in this processor's memory: its keys and values are f32.
#pragma once
#include "lib/ops/cache_ops.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {

// Of KV head g: [capacity, D].
inline float* KeysOf(const LayerView& v, int32_t g) {
  return Raw(v.keys.As<float>()) + g * v.capacity * v.head_dim;
}
inline float* ValuesOf(const LayerView& v, int32_t g) {
  return Raw(v.values.As<float>()) + g * v.capacity * v.head_dim;
}

}  // namespace kvc::cpu

// How a session chooses its tokens.
#pragma once
#include <cstdint>

#include "lib/ops/device_buffer.h"

namespace kvc {

struct SamplerParams {
  float temperature = 0;  // 0: greedy, the lowest id among equals
  float top_p = 0;        // 0: off
  int32_t top_k = 0;      // 0: off
  int64_t seed = 0;
};

// kInvalid with the range when a parameter is out of it.
Status CheckSampling(const SamplerParams& params);
// Takes what Sample needs for n logits: before anything is changed.
Status ReserveSampling(const SamplerParams& params, const DeviceMemory& memory, int32_t n,
                       DeviceBuffer<float>* weights);
// draw: number of the draw in its session. kBadModel when no logit is a finite number.
Status Sample(const SamplerParams& params, Device* device, Stream* stream, DevicePtr<const float> logits,
              int32_t n, int64_t draw, const DeviceBuffer<float>& weights, int32_t* token);

}  // namespace kvc

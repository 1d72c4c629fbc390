// How a session chooses its tokens.
#pragma once
#include <cstdint>

#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/ops/kernel_table.h"

namespace kvc {

struct SamplerParams {
  float temperature = 0;  // 0: greedy, the lowest id among equals
  float top_p = 0;        // 0: off
  int32_t top_k = 0;      // 0: off
  int64_t seed = 0;
};

class Sampler {
 public:
  // kInvalid with the range when a parameter is out of it.
  static Status Check(const SamplerParams& params);
  explicit Sampler(const SamplerParams& params) : params_(params) {}
  const SamplerParams& params() const { return params_; }
  void set_params(const SamplerParams& params) { params_ = params; }
  // Takes what Pick needs for n logits, once: a step does so before it changes anything.
  Status Reserve(int32_t n, MemoryMeter* meter) {
    return params_.temperature > 0 ? weights_.Reserve(meter, n, "sampling") : Status();
  }
  // draw: number of the draw in this session. Allocates nothing. kBadModel when no logit is a finite number.
  Status Pick(const KernelTable& kernels, Span<const float> logits, int64_t draw, int32_t* token);
  int64_t bytes() const { return weights_.bytes(); }

 private:
  SamplerParams params_;
  Buffer<float> weights_;
};

}  // namespace kvc

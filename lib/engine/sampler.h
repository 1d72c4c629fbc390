// Picks a token from logits. Equal input, seed and draw number give the same token, on any number of threads.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/status.h"

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
  Sampler(const SamplerParams& params, int32_t vocab_size);
  // draw: number of the draw in this session. Allocates nothing. NaN logits are never picked; if all are, 0
  // is.
  int32_t Pick(const float* logits, int64_t draw);
  const SamplerParams& params() const { return params_; }

 private:
  SamplerParams params_;
  int32_t vocab_size_;
  std::vector<int32_t> ids_;  // scratch, only when not greedy
  std::vector<float> weights_;
};

}  // namespace kvc

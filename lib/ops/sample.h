// One token from logits.
#pragma once
#include <cstdint>

#include "lib/ops/kernel_table.h"

namespace kvc {

struct SampleArgs {
  const float* logits = nullptr;  // [n]
  int32_t n = 0;
  float temperature = 0;  // 0: greedy, the lowest id among equals
  float top_p = 0;        // of the likeliest tokens, as few as reach this share; 0 or 1: all
  int32_t top_k = 0;      // only so many of the likeliest; 0: all
  uint64_t seed = 0;
  int64_t draw = 0;          // number of the draw: same logits, seed and number, same token
  float* weights = nullptr;  // scratch [n]; not needed for greedy
};

// The token, or -1 when no logit is a finite number. Logits that are not finite are never picked; of equal
// logits the lower id is the likelier. Work is linear in n whatever the distribution: nothing is sorted.
int32_t Sample(const KernelTable& kernels, const SampleArgs& args);

}  // namespace kvc

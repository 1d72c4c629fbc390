// What becomes of the values of dropped entries: CaM (methods.md 2.9) and WeightedKV (2.15). Pure arithmetic
// on one head.
#pragma once
#include <cstdint>

#include "lib/compress/policy.h"

namespace kvc {

// CaM's decision for one dropped entry with accumulated attention a against its n_targets followers: the
// factor on its value that is added to each of them; 0: nothing. draw: counter (sequence, head, position).
// methods.md 2.9.
float CamFactor(const Policy& policy, float a, const float* target_sums, int32_t n_targets, uint32_t head,
                int32_t position);

// WeightedKV: v_next = (a_gone * v_gone + a_next * v_next) / (a_gone + a_next); unchanged when both are 0.
void WeightedMerge(float a_gone, const float* v_gone, float a_next, int32_t d, float* v_next);

}  // namespace kvc

// Lines of scores: their order, the best of one, pooling (methods.md 1.7, 1.10).
#pragma once
#include <cstdint>

#include "lib/base/ordered_bits.h"
#include "lib/ops/score_ops.h"

namespace kvc::cpu {

// The order of TOP as one unsigned key: higher score first, equal scores lower index first, NaN = -inf.
// Larger key = better.
inline uint64_t SelectionKey(float score, uint32_t index) {
  return uint64_t{OrderedBits(score)} << 32 | (0xFFFFFFFFu - index);
}

// Marks the `count` best of scores [n]: mark[i] = 1 for the chosen, 0 for the others. keys: scratch of at
// least n.
void MarkTop(const float* scores, int32_t n, int32_t count, uint64_t* keys, uint8_t* mark);

// y must not be x. kernel odd, 1 .. kMaxPoolKernel. O(n). A NaN counts as -inf for max; an average over one
// is NaN.
void Pool(const float* x, int32_t n, const Pooling& pooling, float* y);

// Pushes one row of attention p [visible] into a history: aux[a] + t * step is side value a of entry t.
void PushHistory(const HistoryRule& rule, float* const* aux, const float* p, int32_t visible, float average);

}  // namespace kvc::cpu

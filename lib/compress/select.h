// Deterministic selection and pooling (methods.md 1.7, 1.10).
#pragma once
#include <cstdint>

#include "lib/base/ordered_bits.h"

namespace kvc {

// The order of TOP as one unsigned key: higher score first, equal scores lower index first, NaN = -inf.
// Larger key = better.
uint64_t SelectionKey(float score, uint32_t index);

// Marks the `count` best of scores [n]: mark[i] = 1 for the chosen, 0 for the others. keys: scratch of at
// least n.
void MarkTop(const float* scores, int32_t n, int32_t count, uint64_t* keys, uint8_t* mark);
enum class PoolKind : uint8_t { kMax = 0, kAvg = 1 };
constexpr int32_t kMaxPoolKernel = 255;
// y[t] over x[u], |u - t| <= (kernel - 1) / 2, inside [0, n). Avg divides by kernel, or by the number of
// terms with shrink_edges. kernel: odd, 1 .. kMaxPoolKernel. y must not be x. O(n) for both kinds. A NaN
// counts as -inf for max; an average over one is NaN.
void Pool(const float* x, int32_t n, int32_t kernel, PoolKind kind, bool shrink_edges, float* y);

}  // namespace kvc

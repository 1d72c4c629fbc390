// Deterministic selection and pooling (methods.md 1.7, 1.10).
#pragma once
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/base/span.h"

namespace kvc {

// A score as an unsigned number with the same order. NaN = -inf; -0 = +0.
inline uint32_t OrderedBits(float score) {
  if (std::isnan(score)) score = -INFINITY;
  score += 0.0f;  // -0 becomes +0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The order of TOP as one unsigned key: higher score first, equal scores lower index first, NaN = -inf.
// Larger key = better.
uint64_t SelectionKey(float score, uint32_t index);

// The indices of the `count` best of scores [n], ascending, appended to out. keys: scratch of at least n.
void SelectTop(const float* scores, int32_t n, int32_t count, uint64_t* keys, int32_t* out);
// Marks instead of lists: mark[i] = 1 for the chosen, 0 for the others.
void MarkTop(const float* scores, int32_t n, int32_t count, uint64_t* keys, uint8_t* mark);
// The last in the order: among equal minima the newest. n >= 1.
int32_t Victim(const float* scores, int32_t n);

enum class PoolKind : uint8_t { kMax = 0, kAvg = 1 };
constexpr int32_t kMaxPoolKernel = 255;
// y[t] over x[u], |u - t| <= (kernel - 1) / 2, inside [0, n). Avg divides by kernel, or by the number of
// terms with shrink_edges. kernel: odd, 1 .. kMaxPoolKernel. y must not be x. O(n) for both kinds. A NaN
// counts as -inf for max; an average over one is NaN.
void Pool(const float* x, int32_t n, int32_t kernel, PoolKind kind, bool shrink_edges, float* y);

}  // namespace kvc

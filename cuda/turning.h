// Rotations by position inside kernels: angles in double, as lib/ops/rope.h has them, cos and sin in f32.
#pragma once
#include "cuda/gpu.h"
#include "lib/ops/cache_ops.h"

namespace kvc::cuda {

struct Turn {
  const double* frequency;  // [D/2]
  double factor;            // attention factor
  RopePairing pairing;
  bool in_cache;
};

KVC_DEVICE void AngleOf(const Turn& t, int64_t position, int32_t j, float* c, float* s) {
  const double angle = static_cast<double>(position) * t.frequency[j];
  *c = static_cast<float>(cos(angle) * t.factor);
  *s = static_cast<float>(sin(angle) * t.factor);
}
// Pair j of x [D] turned to a position; by = 1 / factor^2 and the negative position: turned back.
KVC_DEVICE void TurnPairAt(const Turn& t, int64_t position, int32_t d, int32_t j, float* x) {
  const int32_t a = t.pairing == RopePairing::kHalf ? j : 2 * j, b = t.pairing == RopePairing::kHalf ? j + d / 2 : 2 * j + 1;
  float c, s;
  AngleOf(t, position, j, &c, &s);
  const float u = x[a], v = x[b];
  x[a] = u * c - v * s;
  x[b] = v * c + u * s;
}
KVC_DEVICE void UnturnPairAt(const Turn& t, int64_t position, int32_t d, int32_t j, float* x) {
  const int32_t a = t.pairing == RopePairing::kHalf ? j : 2 * j, b = t.pairing == RopePairing::kHalf ? j + d / 2 : 2 * j + 1;
  const float inverse = static_cast<float>(1.0 / (t.factor * t.factor));
  TurnPairAt(t, -position, d, j, x);
  x[a] *= inverse;
  x[b] *= inverse;
}

}  // namespace kvc::cuda

// Rotations by position inside kernels: angles in double, as lib/ops/rope.h has them, cos and sin in f32.
#pragma once
#include "cuda/gpu.h"
#include "lib/ops/cache_ops.h"
#include "lib/ops/step_ops.h"

namespace kvc::cuda {

struct Turn {
  const double* frequency;  // [D/2]
  double factor;            // attention factor
  int32_t n_turning;        // pairs; the others stay
  RopePairing pairing;
  bool in_cache;
};

// factor: t.factor to turn, its inverse (with the position's sign changed) to turn back.
KVC_DEVICE void AngleOf(const Turn& t, int64_t position, int32_t j, double factor, float* c, float* s) {
  if (j >= t.n_turning) {
    *c = 1, *s = 0;
    return;
  }
  const double angle = static_cast<double>(position) * t.frequency[j];
  *c = static_cast<float>(cos(angle) * factor);
  *s = static_cast<float>(sin(angle) * factor);
}
// Where the two numbers of pair j are.
KVC_DEVICE int32_t FirstOfPair(int32_t j, RopePairing pairing) {
  return pairing == RopePairing::kHalf ? j : 2 * j;
}
KVC_DEVICE int32_t SecondOfPair(int32_t d, int32_t j, RopePairing pairing) {
  return pairing == RopePairing::kHalf ? j + d / 2 : 2 * j + 1;
}
// A number of a pair beside the other one, which is negative where the number is the pair's first. Wherever
// it is compiled the same bits: those of a processor.
KVC_DEVICE float Turned(float x, float other, float c, float s) {
  return __fadd_rn(__fmul_rn(x, c), __fmul_rn(other, s));
}
// Pair j of `from` [D] by an angle into `to`, which may be `from`.
KVC_DEVICE void TurnPair(const float* from, int32_t d, int32_t j, RopePairing pairing, float c, float s,
                         float* to) {
  const int32_t a = FirstOfPair(j, pairing), b = SecondOfPair(d, j, pairing);
  const float u = from[a], v = from[b];
  to[a] = Turned(u, -v, c, s);
  to[b] = Turned(v, u, c, s);
}
// An AngleTable's lines.
struct AngleLines {
  const float *fine, *coarse;

  // As the processor makes them of the two: the same bits.
  KVC_DEVICE void Find(int32_t position, int32_t d, int32_t j, float* c, float* s) const {
    const float* near = fine + static_cast<int64_t>(position % kFineAngles) * d + j;
    const float near_c = near[0], near_s = near[d / 2];
    *c = near_c, *s = near_s;
    if (position < kFineAngles) return;
    const float* far = coarse + static_cast<int64_t>(position / kFineAngles) * d + j;
    const float far_c = far[0], far_s = far[d / 2];
    *c = __fsub_rn(__fmul_rn(far_c, near_c), __fmul_rn(far_s, near_s));
    *s = __fadd_rn(__fmul_rn(far_s, near_c), __fmul_rn(far_c, near_s));
  }
};
// Pair j of x [D].
KVC_DEVICE void TurnPairBy(const Turn& t, int64_t position, int32_t d, int32_t j, double factor, float* x) {
  float c, s;
  AngleOf(t, position, j, factor, &c, &s);
  TurnPair(x, d, j, t.pairing, c, s, x);
}
// To a position, and back from it.
KVC_DEVICE void TurnPairAt(const Turn& t, int64_t position, int32_t d, int32_t j, float* x) {
  TurnPairBy(t, position, d, j, t.factor, x);
}
KVC_DEVICE void UnturnPairAt(const Turn& t, int64_t position, int32_t d, int32_t j, float* x) {
  TurnPairBy(t, -position, d, j, 1 / t.factor, x);
}

}  // namespace kvc::cuda

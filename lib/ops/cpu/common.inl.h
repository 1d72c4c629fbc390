// What several kernels share: stored number types, exp, small helpers. Needs a simd_*.h before it. No
// function of the standard library's headers and no inline function of lib/ is called in files compiled for
// one instruction set: the linker might keep that copy for everybody.
#pragma once

inline int32_t Least(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t Most(int32_t a, int32_t b) { return a > b ? a : b; }

struct TypeF32 {
  using T = float;
  static F Wide(const T* p) { return Load(p); }
  static F WideN(const T* p, int n) { return LoadN(p, n); }
};
struct TypeF16 {
  using T = uint16_t;
  static F Wide(const T* p) { return LoadF16(p); }
  static F WideN(const T* p, int n) { return LoadF16N(p, n); }
};
struct TypeBf16 {
  using T = uint16_t;
  static F Wide(const T* p) { return LoadBf16(p); }
  static F WideN(const T* p, int n) { return LoadBf16N(p, n); }
};

constexpr float kInfinity = __builtin_inff(), kNoNumber = __builtin_nanf("");

// e^x within 2 ulp; exactly 1 at 0; 0 below -87.3 (the result would be subnormal), e^88.37 above 88.37; NaN
// stays NaN. Cephes: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial of degree 7 for e^r. About 14 operations a
// vector.
inline F Exp(F x) {
  const F low = Set(-87.33654f);
  const F y = Max(low, Min(Set(88.37f), x));
  const F n = Round(Mul(y, Set(1.44269504088896341f)));
  const F r = Fma(n, Set(2.12194440e-4f), Fma(n, Set(-0.693359375f), y));
  F p = Fma(Set(1.9875691500e-4f), r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Add(Fma(p, Mul(r, r), r), Set(1.0f));
  return ZeroWhereBelow(x, low, TimesPow2(p, n));
}

// To all of every four lanes.
inline F MaxOfFours(F a) {
  a = Max(a, SwapNeighbours(a));
  return Max(a, SwapPairs(a));
}
inline F SumOfFours(F a) {
  a = Add(a, SwapNeighbours(a));
  return Add(a, SwapPairs(a));
}

inline float ExpOf(float x) {
  float lanes[kWidth];
  Store(lanes, Exp(Set(x)));
  return lanes[0];
}

// Norm, rotation, activation, sums, softmax, and the quantisation of activations. All are bound by memory:
// they read and write each element once (softmax three times, from the first-level cache), 1 to 20 operations
// an element.
#pragma once

inline float Dot(const float* a, const float* b, int32_t n) {
  F s0 = Zero(), s1 = Zero(), s2 = Zero(), s3 = Zero();
  int32_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    s0 = Fma(Load(a + i), Load(b + i), s0);
    s1 = Fma(Load(a + i + kWidth), Load(b + i + kWidth), s1);
    s2 = Fma(Load(a + i + 2 * kWidth), Load(b + i + 2 * kWidth), s2);
    s3 = Fma(Load(a + i + 3 * kWidth), Load(b + i + 3 * kWidth), s3);
  }
  for (; i + kWidth <= n; i += kWidth) s0 = Fma(Load(a + i), Load(b + i), s0);
  if (i < n) s1 = Fma(LoadN(a + i, n - i), LoadN(b + i, n - i), s1);
  return Sum(Add(Add(s0, s1), Add(s2, s3)));
}

inline void Axpy(float a, const float* x, int32_t n, float* y) {
  const F factor = Set(a);
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, Fma(factor, Load(x + i), Load(y + i)));
  if (i < n) StoreN(y + i, n - i, Fma(factor, LoadN(x + i, n - i), LoadN(y + i, n - i)));
}

inline void AddTo(const float* x, int32_t n, float* y) {
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, Add(Load(x + i), Load(y + i)));
  if (i < n) StoreN(y + i, n - i, Add(LoadN(x + i, n - i), LoadN(y + i, n - i)));
}

inline void RmsNorm(const float* x, const float* weight, float eps, int32_t n, float* y) {
  const F scale = Set(1.0f / __builtin_sqrtf(Dot(x, x, n) / static_cast<float>(n) + eps));
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, Mul(Mul(Load(x + i), scale), Load(weight + i)));
  if (i < n) StoreN(y + i, n - i, Mul(Mul(LoadN(x + i, n - i), scale), LoadN(weight + i, n - i)));
}

inline float SumOf(const float* x, int32_t n) {
  F s0 = Zero(), s1 = Zero();
  int32_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) s0 = Add(s0, Load(x + i)), s1 = Add(s1, Load(x + i + kWidth));
  for (; i + kWidth <= n; i += kWidth) s0 = Add(s0, Load(x + i));
  if (i < n) s1 = Add(s1, LoadN(x + i, n - i));
  return Sum(Add(s0, s1));
}

// Squares of what is left once the mean is taken off; lanes beyond the end are 0 and would not be.
inline float SquaresAbout(float mean, const float* x, int32_t n) {
  const F middle = Set(mean);
  F s0 = Zero();
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const F off = Sub(Load(x + i), middle);
    s0 = Fma(off, off, s0);
  }
  float squares = Sum(s0);
  for (; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return squares;
}

inline void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int32_t n,
                      float* y) {
  const float size = static_cast<float>(n), mean = SumOf(x, n) / size;
  const F middle = Set(mean), scale = Set(1.0f / __builtin_sqrtf(SquaresAbout(mean, x, n) / size + eps));
  for (int32_t i = 0; i < n; i += kWidth) {
    const int m = Least(kWidth, n - i);
    const F normed = Mul(Mul(Sub(LoadN(x + i, m), middle), scale), LoadN(weight + i, m));
    StoreN(y + i, m, bias == nullptr ? normed : Add(normed, LoadN(bias + i, m)));
  }
}

// The interleaved pairing is that of few models and not worth shuffles.
inline void ApplyRope(float* x, const float* cos, const float* sin, int32_t d, RopePairing pairing) {
  const int32_t half = d / 2;
  int32_t j = 0;
  if (pairing == RopePairing::kHalf) {
    for (; j + kWidth <= half; j += kWidth) {
      const F a = Load(x + j), b = Load(x + half + j), c = Load(cos + j), s = Load(sin + j);
      Store(x + j, Sub(Mul(a, c), Mul(b, s)));
      Store(x + half + j, Add(Mul(b, c), Mul(a, s)));
    }
    if (const int n = half - j; n > 0) {
      const F a = LoadN(x + j, n), b = LoadN(x + half + j, n), c = LoadN(cos + j, n), s = LoadN(sin + j, n);
      StoreN(x + j, n, Sub(Mul(a, c), Mul(b, s)));
      StoreN(x + half + j, n, Add(Mul(b, c), Mul(a, s)));
    }
    return;
  }
  for (; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = b * cos[j] + a * sin[j];
  }
}

// Where Exp has reached its end the result is 0.
inline F Silu(F gate, F up) {
  const F y = Div(gate, Add(Set(1.0f), Exp(Sub(Zero(), gate))));
  return Mul(ZeroWhereBelow(gate, Set(-88.0f), y), up);
}

inline void SiluMul(const float* gate, const float* up, int32_t n, float* y) {
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, Silu(Load(gate + i), Load(up + i)));
  if (i < n) StoreN(y + i, n - i, Silu(LoadN(gate + i, n - i), LoadN(up + i, n - i)));
}

// gelu(x) = x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
inline F Gelu(F gate, F up) {
  const F cube = Mul(Mul(gate, gate), gate);
  const F inner = Mul(Set(1.5957691f), Fma(Set(0.044715f), cube, gate));
  const F y = Div(gate, Add(Set(1.0f), Exp(Sub(Zero(), inner))));
  return Mul(ZeroWhereBelow(inner, Set(-88.0f), y), up);
}

inline void GeluMul(const float* gate, const float* up, int32_t n, float* y) {
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, Gelu(Load(gate + i), Load(up + i)));
  if (i < n) StoreN(y + i, n - i, Gelu(LoadN(gate + i, n - i), LoadN(up + i, n - i)));
}

// cap * tanh(z / cap); -infinity, an entry that is not seen, stays. tanh(x) = 1 - 2 / (1 + exp(2 x)) loses
// digits near zero: there it is the series up to x^11, below f32's resolution at 0.3.
inline F Capped(F z, float cap) {
  const float kNear = 0.3f, kBelowNear = 0.29999998f;  // neighbours
  const F x = Div(z, Set(cap)), magnitude = Max(x, Sub(Zero(), x)), square = Mul(x, x);
  const F wide = Max(Set(-10.0f), Min(Set(10.0f), x));
  const F far = Sub(Set(1.0f), Div(Set(2.0f), Add(Set(1.0f), Exp(Add(wide, wide)))));
  F p = Fma(square, Set(-0.00886323553f), Set(0.0218694885f));
  p = Fma(square, p, Set(-0.0539682540f));
  p = Fma(square, p, Set(0.133333333f));
  p = Fma(square, p, Set(-0.333333333f));
  const F near = Fma(Mul(square, p), x, x);
  const F t = Add(ZeroWhereBelow(magnitude, Set(kNear), far),
                  ZeroWhereBelow(Sub(Zero(), magnitude), Set(-kBelowNear), near));
  const F hidden = ZeroWhereBelow(Sub(Zero(), z), Set(3e38f), Set(-kInfinity));
  return Add(Mul(t, Set(cap)), hidden);
}

inline void SoftCap(float cap, int32_t n, float* x) {
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(x + i, Capped(Load(x + i), cap));
  if (i < n) StoreN(x + i, n - i, Capped(LoadN(x + i, n - i), cap));
}

// The clamp keeps the argument of Exp from its upper end; below it the result is 0.
inline F Clamped(F gate, F up, float gain, float limit) {
  const F most = Set(limit), g = Min(most, gate), u = Max(Sub(Zero(), most), Min(most, up));
  const F scaled = Mul(Set(gain), g);
  const F y = Div(g, Add(Set(1.0f), Exp(Sub(Zero(), scaled))));
  return Mul(Add(u, Set(1.0f)), ZeroWhereBelow(scaled, Set(-88.0f), y));
}

inline void ClampedMul(const float* gate, const float* up, float gain, float limit, int32_t n, float* y) {
  for (int32_t i = 0; i < n; i += kWidth) {
    const int m = Least(kWidth, n - i);
    StoreN(y + i, m, Clamped(LoadN(gate + i, m), LoadN(up + i, m), gain, limit));
  }
}

inline float Largest(const float* x, int32_t n) {
  F top = Set(-kInfinity);
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) top = Max(Load(x + i), top);
  float result = MaxOf(top);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// x - x is 0 for numbers alone, and what is not one spoils the sum.
inline float LargestNumber(const float* x, int32_t n) {
  F top = Set(-kInfinity), off = Zero();
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const F v = Load(x + i);
    top = Max(v, top), off = Add(off, Sub(v, v));
  }
  float result = MaxOf(top), spoilt = Sum(off);
  for (; i < n; ++i) {
    result = x[i] > result ? x[i] : result;
    spoilt += x[i] - x[i];
  }
  return result + spoilt;
}

// With one more logit, where there is a sink, whose share is left out.
inline void SoftmaxBeside(const float* sink, float* x, int32_t n) {
  float top = Largest(x, n);
  if (sink != nullptr && *sink > top) top = *sink;
  if (top == -kInfinity) {
    for (int32_t i = 0; i < n; ++i) x[i] = 0;
    return;
  }
  const F shift = Set(top);
  F sums = Zero();
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const F e = Exp(Sub(Load(x + i), shift));
    sums = Add(sums, e);
    Store(x + i, e);
  }
  float sum = Sum(sums);
  if (i < n) {
    StoreN(x + i, n - i, Exp(Sub(LoadN(x + i, n - i), shift)));
    for (int32_t j = i; j < n; ++j) sum += x[j];
  }
  if (sink != nullptr) sum += ExpOf(*sink - top);
  const F total = Set(sum);
  for (i = 0; i + kWidth <= n; i += kWidth) Store(x + i, Div(Load(x + i), total));
  if (i < n) StoreN(x + i, n - i, Div(LoadN(x + i, n - i), total));
}

inline void Softmax(float* x, int32_t n) { SoftmaxBeside(nullptr, x, n); }

inline void Weights(float most, float factor, int32_t n, float* x) {
  const F shift = Set(most), times = Set(factor);
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(x + i, Mul(Exp(Sub(Load(x + i), shift)), times));
  if (i < n) StoreN(x + i, n - i, Mul(Exp(Sub(LoadN(x + i, n - i), shift)), times));
}

inline void Raise(const float* x, float shift, int32_t n, float* y) {
  const F less = Set(shift);
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, Max(Sub(Load(x + i), less), Load(y + i)));
  if (i < n) StoreN(y + i, n - i, Max(Sub(LoadN(x + i, n - i), less), LoadN(y + i, n - i)));
}

inline void AddSquares(const float* z, float lse, int32_t n, float* y) {
  const F shift = Set(lse);
  const auto squared = [shift](F logit, F sum) {
    const F p = Exp(Sub(logit, shift));
    return Fma(p, p, sum);
  };
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) Store(y + i, squared(Load(z + i), Load(y + i)));
  if (i < n) StoreN(y + i, n - i, squared(LoadN(z + i, n - i), LoadN(y + i, n - i)));
}

// A NaN where one of them is no number, as of LargestNumber.
inline float LargestAbs(const float* x, int32_t n) {
  F top = Zero(), off = Zero();
  const auto add = [&](F v) { top = Max(Abs(v), top), off = Add(off, Sub(v, v)); };
  int32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) add(Load(x + i));
  if (i < n) add(LoadN(x + i, n - i));
  return MaxOf(top) + Sum(off);
}

// Of numbers: round half even(x / scale), limited to [-q_max, q_max].
inline F Codes(F x, F scale, F q_max) { return Min(Max(Round(Div(x, scale)), Sub(Zero(), q_max)), q_max); }

// Sums of codes are whole numbers below 2^24: exact in f32, in any order. A group in which something is no
// number has codes of 0 and a scale that is a NaN.
inline void QuantizeRow(const float* x, int32_t cols, int32_t group, int8_t* codes, float* scales,
                        int32_t* sums) {
  for (int32_t g = 0; g * group < cols; ++g) {
    const float* in = x + g * group;
    const float scale = LargestAbs(in, group) / 127.0f;
    if (scale != scale) {
      scales[g] = kNoNumber, sums[g] = 0;
      __builtin_memset(codes + g * group, 0, static_cast<uint64_t>(group));
      continue;
    }
    scales[g] = scale == 0 ? 1 : scale;
    F sum = Zero();
    for (int32_t i = 0; i < group; i += kWidth) {
      const int n = Least(kWidth, group - i);
      const F code = Codes(LoadN(in + i, n), Set(scales[g]), Set(127.0f));
      sum = Add(sum, code);
      StoreI8N(codes + g * group + i, n, code);
    }
    sums[g] = static_cast<int32_t>(Sum(sum));
  }
}

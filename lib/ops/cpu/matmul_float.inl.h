// y = x w^T with f32, f16 or bf16 weights: 16-bit weights are widened to f32 and multiplied by fused
// multiply-adds.
//
// A sum runs along the columns in the lanes of one vector: lane j takes columns j, j + W, ...; the last,
// partial vector is padded with zeros; the lanes are added by Sum4. One vector a sum, in every tile shape:
// bit-equal for any n. Model, per row of the weight: cols * 2 * n flops, cols * bytes of a weight once per
// block of tokens. n = 1 reads every weight once and is bound by memory. A tile of 4 rows x T tokens does 4 T
// fused operations on 4 + T loads.
#pragma once

constexpr int kTileOut = 4;  // rows of a tile; clamped pointers repeat the last row
constexpr int32_t kTokenBlock =
    48;  // tokens whose activations stay in the second-level cache while rows pass by

// sums[t][i] = dot(x[t], w[i]) for R rows (a multiple of 4) and T tokens.
template <typename Type, int R, int T>
inline void FloatTile(const typename Type::T* const* w, const float* x, int64_t x_stride, int32_t cols,
                      float (*sums)[R]) {
  F acc[T][R];
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < R; ++i) acc[t][i] = Zero();
  }
  int32_t k = 0;
  for (; k + kWidth <= cols; k += kWidth) {
    F xs[T];
    for (int t = 0; t < T; ++t) xs[t] = Load(x + t * x_stride + k);
    for (int i = 0; i < R; ++i) {
      const F wide = Type::Wide(w[i] + k);
      for (int t = 0; t < T; ++t) acc[t][i] = Fma(xs[t], wide, acc[t][i]);
    }
  }
  if (k < cols) {
    const int n = cols - k;
    F xs[T];
    for (int t = 0; t < T; ++t) xs[t] = LoadN(x + t * x_stride + k, n);
    for (int i = 0; i < R; ++i) {
      const F wide = Type::WideN(w[i] + k, n);
      for (int t = 0; t < T; ++t) acc[t][i] = Fma(xs[t], wide, acc[t][i]);
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < R; i += 4) Sum4(acc[t][i], acc[t][i + 1], acc[t][i + 2], acc[t][i + 3], &sums[t][i]);
  }
}

template <typename Type, int R, int T>
inline void FloatTileAt(const MatMulArgs& a, int32_t t, int32_t r) {
  const typename Type::T* data = static_cast<const typename Type::T*>(a.w->data);
  const typename Type::T* w[R];
  for (int i = 0; i < R; ++i) w[i] = data + static_cast<int64_t>(Least(r + i, a.row_end - 1)) * a.w->cols;
  float sums[T][R];
  FloatTile<Type, R, T>(w, a.x + t * a.x_stride, a.x_stride, a.w->cols, sums);
  const int rows = Least(R, a.row_end - r);
  for (int j = 0; j < T; ++j) {
    float* y = a.y + (t + j) * a.y_stride + r;
    for (int i = 0; i < rows; ++i) y[i] = a.bias != nullptr ? sums[j][i] + a.bias[r + i] : sums[j][i];
  }
}

// The last tokens of a block: fewer than a whole tile.
template <typename Type, int T>
inline void FloatRest(const MatMulArgs& a, int32_t t, int32_t n, int32_t r) {
  if constexpr (T > 0) {
    if (n == T) return FloatTileAt<Type, kTileOut, T>(a, t, r);
    FloatRest<Type, T - 1>(a, t, n, r);
  }
}

template <typename Type>
inline void FloatMatMul(const MatMulArgs& a) {
  if (a.n == 1) {
    for (int32_t r = a.row_begin; r < a.row_end; r += 8) FloatTileAt<Type, 8, 1>(a, 0, r);
    return;
  }
  for (int32_t block = 0; block < a.n; block += kTokenBlock) {
    const int32_t end = Least(block + kTokenBlock, a.n);
    for (int32_t r = a.row_begin; r < a.row_end; r += kTileOut) {
      int32_t t = block;
      for (; t + kTileTokens <= end; t += kTileTokens) FloatTileAt<Type, kTileOut, kTileTokens>(a, t, r);
      FloatRest<Type, kTileTokens - 1>(a, t, end - t, r);
    }
  }
}

inline void MatMulFloat(const MatMulArgs& a) {
  switch (a.w->type) {
    case WeightType::kF32:
      return FloatMatMul<TypeF32>(a);
    case WeightType::kF16:
      return FloatMatMul<TypeF16>(a);
    case WeightType::kBf16:
      return FloatMatMul<TypeBf16>(a);
    case WeightType::kInt8:
    case WeightType::kInt4:
    case WeightType::kQ4K:
    case WeightType::kQ6K:
      return;  // codes: matmul_codes.inl.h
  }
}

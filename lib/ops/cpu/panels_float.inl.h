// Panels of f32, f16 or bf16 weights times f32 activations by fused multiply-adds; 16-bit weights are widened
// first. bf16 weights times activations in bf16: panels_pairs.inl.h.
#pragma once

constexpr int32_t kSumBlock = 256;  // columns of a partial sum: errors grow with it, not with all columns

template <typename Type>
struct WidenedColumns {
  using Element = typename Type::T;
  static constexpr int64_t kColumnBytes = kLanes * sizeof(Element);

  // Adds the products of columns [begin, end) to acc.
  template <int T, int P, typename Reading>
  static void Multiply(const MatMulArgs& a, const Element* const* data, int32_t token, int32_t begin,
                       int32_t end, F (*acc)[P * kVectors]) {
    const float* x = a.x + token * a.x_stride;
    const int64_t panel_bytes = int64_t{a.w->cols} * kColumnBytes;
    for (int32_t k = begin; k < end; ++k) {
      const int64_t ahead = AheadOf<P, Reading>(k * kColumnBytes, panel_bytes);
      F w[P * kVectors];
      for (int v = 0; v < P * kVectors; ++v) {
        const Element* at = data[v / kVectors] + int64_t{k} * kLanes;
        if (v % kVectors == 0) AskBeyond<T, 1, Reading>(at, ahead);
        w[v] = Type::Wide(at + v % kVectors * kWidth);
      }
      for (int t = 0; t < T; ++t) {
        const F one = Set(x[t * a.x_stride + k]);
        for (int v = 0; v < P * kVectors; ++v) acc[t][v] = Fma(one, w[v], acc[t][v]);
      }
    }
  }
};

template <typename Columns>
struct FloatPanels {
  using Element = typename Columns::Element;
  static constexpr int kTokens = kFloatTileTokens;
  template <typename Reading>
  static constexpr int kPanels = Reading::kPanels;

  // Adds columns [begin, end) to the sums of T tokens.
  template <int T, int P, typename Reading>
  static void Block(const MatMulArgs& a, const Element* const* data, int32_t token, int32_t begin,
                    int32_t end, F (*sums)[P * kVectors]) {
    F acc[T][P * kVectors];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < P * kVectors; ++v) acc[t][v] = Zero();
    }
    Columns::template Multiply<T, P, Reading>(a, data, token, begin, end, acc);
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < P * kVectors; ++v) sums[t][v] = Add(sums[t][v], acc[t][v]);
    }
  }

  template <int T, int P, typename Reading>
  static void Tile(const MatMulArgs& a, int32_t token, int32_t row) {
    const TilePanels<P> at(a, row);
    const Element* data[P];
    for (int p = 0; p < P; ++p)
      data[p] = static_cast<const Element*>(a.w->data) + at.panel[p] * a.w->cols * kLanes;
    F sums[T][P * kVectors];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < P * kVectors; ++v) sums[t][v] = Zero();
    }
    for (int32_t begin = 0; begin < a.w->cols; begin += kSumBlock)
      Block<T, P, Reading>(a, data, token, begin, Least(begin + kSumBlock, a.w->cols), sums);
    for (int t = 0; t < T; ++t) StoreTile<P>(a, token + t, row, sums[t]);
  }
};

template <typename Columns>
inline void FloatPanelsOf(const MatMulArgs& a) {
  PanelTokens<FloatPanels<Columns>, FloatPanels<Columns>::kTokens>(a, 0);
}

inline void FloatPanelMatMul(const MatMulArgs& a) {
  switch (a.w->type) {
    case WeightType::kF32:
      return FloatPanelsOf<WidenedColumns<TypeF32>>(a);
    case WeightType::kF16:
      return FloatPanelsOf<WidenedColumns<TypeF16>>(a);
    case WeightType::kBf16:
      return FloatPanelsOf<WidenedColumns<TypeBf16>>(a);
    case WeightType::kInt8:
    case WeightType::kInt4:
    case WeightType::kQ4K:
    case WeightType::kQ6K:
      return;  // MatMulCodePanels
  }
}

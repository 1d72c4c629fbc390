// Panels of f32, f16 or bf16 weights times f32 activations by fused multiply-adds; 16-bit weights are widened
// first. bf16 products of the processor (vdpbf16ps) round the activations too and flush small numbers: other
// numbers than every other machine's, so they are not used.
#pragma once

constexpr int32_t kSumBlock = 256;  // columns of a partial sum: errors grow with it, not with all columns

template <typename Type>
struct FloatPanels {
  static constexpr int kTokens = kFloatTileTokens;

  // Adds columns [begin, end) to the sums of T tokens.
  template <int T>
  static void Block(const MatMulArgs& a, const typename Type::T* const* data, const float* x, int32_t begin,
                    int32_t end, F (*sums)[kTileVectors16]) {
    F acc[T][kTileVectors16];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < kTileVectors16; ++v) acc[t][v] = Zero();
    }
    for (int32_t k = begin; k < end; ++k) {
      F w[kTileVectors16];
      for (int v = 0; v < kTileVectors16; ++v) {
        const typename Type::T* at = data[v / kVectors] + int64_t{k} * kLanes;
        if (v % kVectors == 0) AskAhead<T, 1>(at);
        w[v] = Type::Wide(at + v % kVectors * kWidth);
      }
      for (int t = 0; t < T; ++t) {
        const F one = Set(x[t * a.x_stride + k]);
        for (int v = 0; v < kTileVectors16; ++v) acc[t][v] = Fma(one, w[v], acc[t][v]);
      }
    }
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < kTileVectors16; ++v) sums[t][v] = Add(sums[t][v], acc[t][v]);
    }
  }

  template <int T>
  static void Tile(const MatMulArgs& a, int32_t token, int32_t row) {
    const TilePanels at(a, row);
    const typename Type::T* data[kTilePanels];
    for (int p = 0; p < kTilePanels; ++p)
      data[p] = static_cast<const typename Type::T*>(a.w->data) + at.panel[p] * a.w->cols * kLanes;
    F sums[T][kTileVectors16];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < kTileVectors16; ++v) sums[t][v] = Zero();
    }
    for (int32_t begin = 0; begin < a.w->cols; begin += kSumBlock)
      Block<T>(a, data, a.x + token * a.x_stride, begin, Least(begin + kSumBlock, a.w->cols), sums);
    for (int t = 0; t < T; ++t) StoreTile(a, token + t, row, sums[t]);
  }
};

inline void FloatPanelMatMul(const MatMulArgs& a) {
  switch (a.w->type) {
    case WeightType::kF32:
      return PanelTokens<FloatPanels<TypeF32>, FloatPanels<TypeF32>::kTokens>(a, 0);
    case WeightType::kF16:
      return PanelTokens<FloatPanels<TypeF16>, FloatPanels<TypeF16>::kTokens>(a, 0);
    default:
      return PanelTokens<FloatPanels<TypeBf16>, FloatPanels<TypeBf16>::kTokens>(a, 0);
  }
}

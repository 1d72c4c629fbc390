// Panels of q4_k and q6_k (lib/ops/weight_blocks.h) times int8 activations. Codes are small and not negative,
// so that instruction sets without dot products of bytes add pairs of products in 16 bits. A group's sum is
// exact, and so is the scale made of that of the block and the group's; product and sum in f32 are rounded
// once, in the order of the reference: bit-equal to it. What a group costs stands in weight_blocks.h.
#pragma once

// A unit is some lines of a panel: kWords times four columns of 16 rows, bytes up to kMost.
struct Q4KPanels {
  static constexpr int kLines = 1, kWords = 2, kMost = 15, kExcess = 0, kGroup = 32;
  static constexpr bool kHasLeast = true;
  static void Load(const uint8_t* at, I* words) {
    const I bytes = LoadI(reinterpret_cast<const int32_t*>(at)), low = SetI(0x0f0f0f0f);
    words[0] = And(bytes, low);
    words[1] = And(HighNibbles(bytes), low);
  }
};

struct Q6KPanels {
  static constexpr int kLines = 3, kWords = 4, kMost = 63, kExcess = 32, kGroup = 16;
  static constexpr bool kHasLeast = false;
  static void Load(const uint8_t* at, I* words) {
    const I low = SetI(0x0f0f0f0f), high = SetI(0x30303030);
    I line[kLines];
    for (int i = 0; i < kLines; ++i) line[i] = LoadI(reinterpret_cast<const int32_t*>(at + 64 * i));
    words[0] = Or(And(line[0], low), And(BitsUp<4>(line[2]), high));
    words[1] = Or(And(HighNibbles(line[0]), low), And(BitsUp<2>(line[2]), high));
    words[2] = Or(And(line[1], low), And(line[2], high));
    words[3] = Or(And(HighNibbles(line[1]), low), And(BitsDown<2>(line[2]), high));
  }
};

template <typename Codes>
struct BlockPanels {
  template <typename Reading>
  static constexpr int kPanels = Reading::kBlockPanels;                         // of one token's tile
  static constexpr int32_t kColumns = 256, kGroups = kColumns / Codes::kGroup;  // of a block
  static constexpr int32_t kUnits = Codes::kGroup / (4 * Codes::kWords);        // of a group
  static constexpr int32_t kScales = 64, kLeast = kScales + kGroups * kLanes;  // bytes, in a block of 16 rows
  static constexpr int32_t kCodes = Codes::kHasLeast ? kLeast + kGroups * kLanes : kLeast;
  static constexpr int32_t kGroupBytes = 64 * Codes::kLines * kUnits;
  static constexpr int32_t kBytes = kCodes + kGroups * kGroupBytes;

  template <int T, int P, typename Reading>
  static void GroupInPairs(const int8_t* x, int64_t stride, const uint8_t* const* block, int32_t g,
                           int64_t ahead, I (*dot)[P * kVectors]) {
    PairSums<T, P> sums;
    for (int32_t u = 0; u < kUnits; ++u) {
      I w[P * kVectors][Codes::kWords];
      for (int v = 0; v < P * kVectors; ++v) {
        const uint8_t* at = block[v / kVectors] + kCodes + g * kGroupBytes + u * 64 * Codes::kLines;
        if (v % kVectors == 0) AskBeyond<T, Codes::kLines, Reading>(at, ahead);
        Codes::Load(at + v % kVectors * 4 * kWidth, w[v]);
      }
      const int8_t* columns = x + g * Codes::kGroup + 4 * u * Codes::kWords;
      for (int word = 0; word < Codes::kWords; word += 2)
        sums.Add(columns + 4 * word, stride, [&](int v, int i) { return w[v][word + i]; });
    }
    sums.AddTo(dot);
  }

  // Adds the products of group g of a block to dot. x: of the block's first column; that of the next token is
  // stride further. Where sums have 16 bits they hold so many words, then go to dot.
  template <int T, int P, typename Reading>
  static void Group(const int8_t* x, int64_t stride, const uint8_t* const* block, int32_t g, int64_t ahead,
                    I (*dot)[P * kVectors]) {
    if constexpr (kInPairs<T>) return GroupInPairs<T, P, Reading>(x, stride, block, g, ahead, dot);
    constexpr int kHeld = 32767 / (2 * 127 * Codes::kMost);
    I narrow[T][P * kVectors];
#pragma GCC unroll 4
    for (int32_t u = 0; u < kUnits; ++u) {
      I w[P * kVectors][Codes::kWords];
#pragma GCC unroll 4
      for (int v = 0; v < P * kVectors; ++v) {
        const uint8_t* at = block[v / kVectors] + kCodes + g * kGroupBytes + u * 64 * Codes::kLines;
        if (v % kVectors == 0) AskBeyond<T, Codes::kLines, Reading>(at, ahead);
        Codes::Load(at + v % kVectors * 4 * kWidth, w[v]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < Codes::kWords; ++i) {
        const int32_t word = u * Codes::kWords + i;
        for (int t = 0; t < T; ++t) {
          int32_t four;
          __builtin_memcpy(&four, x + t * stride + g * Codes::kGroup + 4 * word, 4);
          const I token = SetI(four);
          for (int v = 0; v < P * kVectors; ++v) {
            if constexpr (kNarrowSums) {
              const I products = PairProducts(w[v][i], token);
              narrow[t][v] = word % kHeld == 0 ? products : AddNarrow(narrow[t][v], products);
              if ((word + 1) % kHeld == 0) dot[t][v] = AddPairs(dot[t][v], narrow[t][v]);
            } else {
              dot[t][v] = DotWords(dot[t][v], token, w[v][i]);
            }
          }
        }
      }
    }
  }

  // Adds what the groups of a block give. x: rows of activations from the block's columns on; xs, xsums: of
  // its first group. Those of the next token are cols and groups further.
  template <int T, int P, typename Reading>
  static void Block(const MatMulArgs& a, const uint8_t* const* block, const int8_t* x, const float* xs,
                    const int32_t* xsums, int64_t ahead, F (*sums)[P * kVectors]) {
    const int32_t groups = a.w->cols / Codes::kGroup;
    for (int p = 0; p < P; ++p) AskBeyond<T, kCodes / 64, Reading>(block[p], ahead);
    AskForInput<kColumns, Reading>(x);
    AskForInput<4 * kGroups, Reading>(xs);
    AskForInput<4 * kGroups, Reading>(xsums);
    F d[P * kVectors], least[P * kVectors];
    for (int v = 0; v < P * kVectors; ++v) {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(block[v / kVectors]) + v % kVectors * kWidth;
      d[v] = LoadF16(halves);
      if (Codes::kHasLeast) least[v] = LoadF16(halves + kLanes);
    }
    for (int32_t g = 0; g < kGroups; ++g) {
      I dot[T][P * kVectors];
      for (int t = 0; t < T; ++t) {
        const I start = Codes::kExcess == 0 ? SetI(0) : SetI(-Codes::kExcess * xsums[t * groups + g]);
        for (int v = 0; v < P * kVectors; ++v) dot[t][v] = start;
      }
      Group<T, P, Reading>(x, a.w->cols, block, g, ahead, dot);
      F scale[P * kVectors], low[P * kVectors];
      for (int v = 0; v < P * kVectors; ++v) {
        const uint8_t* at = block[v / kVectors] + kScales + g * kLanes + v % kVectors * kWidth;
        scale[v] = Mul(d[v], LoadI8(at));
        if (Codes::kHasLeast) low[v] = Mul(least[v], LoadI8(at + (kLeast - kScales)));
      }
      for (int t = 0; t < T; ++t) {
        const F factor = Set(xs[t * groups + g]);
        for (int v = 0; v < P * kVectors; ++v)
          sums[t][v] = Fma(ToFloat(dot[t][v]), Mul(factor, scale[v]), sums[t][v]);
        if (!Codes::kHasLeast) continue;
        const F taken = Set(static_cast<float>(xsums[t * groups + g]) * xs[t * groups + g]);
        for (int v = 0; v < P * kVectors; ++v) sums[t][v] = NegFma(taken, low[v], sums[t][v]);
      }
    }
  }

  template <int T, int P, typename Reading>
  static void Tile(const MatMulArgs& a, int32_t token, int32_t row) {
    const TilePanels<P> at(a, row);
    const int32_t cols = a.w->cols, groups = cols / Codes::kGroup, blocks = cols / kColumns;
    const uint8_t* block[P];
    for (int p = 0; p < P; ++p)
      block[p] = static_cast<const uint8_t*>(a.w->data) + at.panel[p] * blocks * kBytes;
    F sums[T][P * kVectors];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < P * kVectors; ++v) sums[t][v] = Zero();
    }
    const int64_t group = int64_t{token} * groups;
    for (int32_t b = 0; b < blocks; ++b) {
      Block<T, P, Reading>(a, block, a.xq + int64_t{token} * cols + b * kColumns, a.xs + group + b * kGroups,
                           a.sums + group + b * kGroups,
                           AheadOf<P, Reading>(int64_t{b} * kBytes, int64_t{blocks} * kBytes), sums);
      for (int p = 0; p < P; ++p) block[p] += kBytes;
    }
    for (int t = 0; t < T; ++t) StoreTile<P>(a, token + t, row, sums[t]);
  }
};

inline bool IsBlocks(const Weight& w) { return w.type == WeightType::kQ4K || w.type == WeightType::kQ6K; }

// Panels of any codes.
inline void MatMulCodePanels(const MatMulArgs& a) {
  switch (a.w->type) {
    case WeightType::kInt8:
    case WeightType::kInt4:
      return CodePanelMatMul(a);
    case WeightType::kQ4K:
      return PanelTokens<BlockPanels<Q4KPanels>, kCodeTileTokens>(a, 0);
    case WeightType::kQ6K:
      return PanelTokens<BlockPanels<Q6KPanels>, kCodeTileTokens>(a, 0);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
      return;  // FloatPanelMatMul
  }
}

// Panels of int8 and int4 codes times int8 activations. Sums of a group are exact; the excess of unsigned
// codes, kExcess times the sum of the group's activations, is what they start from. The groups are added in
// f32 in order, product and sum rounded once: bit-equal to the reference. What four columns cost without
// products of four bytes stands in docs/performance.md, "Instruction sets".
#pragma once

struct Int8Panels {
  using Word = CodeWord;            // of four columns
  static constexpr int kWords = 1;  // in a line of 64 bytes
  static constexpr int kExcess = kUnsignedCodes ? 128 : 0;
  static constexpr int kHeld = 0;  // words whose products fit in 16 bits, added up: not even two
  static void Load(const uint8_t* at, Word* words) {
    const I bytes = LoadI(reinterpret_cast<const int32_t*>(at));
    words[0] = CodeWordOf(kUnsignedCodes ? bytes : FlipSigns(bytes));
  }
};

struct Int4Panels {
  using Word = I;
  static constexpr int kWords = 2;
  static constexpr int kExcess = 8;
  static constexpr int kHeld = kNarrowSums ? 32767 / (2 * 127 * 15) : 0;
  static void Load(const uint8_t* at, Word* words) {
    const I bytes = LoadI(reinterpret_cast<const int32_t*>(at)), low = SetI(0x0f0f0f0f);
    words[0] = And(bytes, low);
    words[1] = And(HighNibbles(bytes), low);
  }
};

// Four activations of a token.
inline I TokenWord(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return SetI(four);
}

template <typename Codes>
struct CodePanels {
  template <typename Reading>
  static constexpr int kPanels = Reading::kPanels;
  static constexpr int32_t kColumns = 4 * Codes::kWords;  // of a line

  // A line of every panel of the tile; ahead: from there to the one to be asked for.
  template <int T, int P, typename Reading>
  static void Load(const uint8_t* const* codes, int64_t line, int64_t ahead,
                   typename Codes::Word (*w)[Codes::kWords]) {
    for (int v = 0; v < P * kVectors; ++v) {
      const uint8_t* at = codes[v / kVectors] + 64 * line;
      if (v % kVectors == 0) AskBeyond<T, 1, Reading>(at, ahead);
      Codes::Load(at + v % kVectors * 4 * kWidth, w[v]);
    }
  }

  // The products of a group by pairs of tokens: a step is as many lines as have two words.
  template <int T, int P, typename Reading>
  static void GroupInPairs(const int8_t* x, int64_t stride, const uint8_t* const* codes, int32_t lines,
                           int64_t ahead, I (*dot)[P * kVectors]) {
    constexpr int kLines = 2 / Codes::kWords;
    PairSums<T, P> sums;
    for (int32_t line = 0; line < lines; line += kLines) {
      typename Codes::Word w[kLines][P * kVectors][Codes::kWords];
      for (int i = 0; i < kLines; ++i) Load<T, P, Reading>(codes, line + i, ahead, w[i]);
      sums.Add(x + kColumns * line, stride,
               [&](int v, int i) { return w[i / Codes::kWords][v][i % Codes::kWords]; });
    }
    sums.AddTo(dot);
  }

  // Those of so many lines added up in 16 bits, then in dot.
  template <int T, int P, int kLines, typename Reading>
  static void NarrowLines(const int8_t* x, int64_t stride, const uint8_t* const* codes, int32_t line,
                          int64_t ahead, I (*dot)[P * kVectors]) {
    I narrow[T][P * kVectors];
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) {
      typename Codes::Word w[P * kVectors][Codes::kWords];
      Load<T, P, Reading>(codes, line + l, ahead, w);
#pragma GCC unroll 2
      for (int i = 0; i < Codes::kWords; ++i) {
        for (int t = 0; t < T; ++t) {
          const I token = TokenWord(x + t * stride + kColumns * (line + l) + 4 * i);
          for (int v = 0; v < P * kVectors; ++v) {
            const I products = PairProducts(w[v][i], token);
            narrow[t][v] = l + i == 0 ? products : AddNarrow(narrow[t][v], products);
          }
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < P * kVectors; ++v) dot[t][v] = AddPairs(dot[t][v], narrow[t][v]);
    }
  }

  // Adds the products of a group, in lines of 64 bytes of every panel. x: its activations of the first token;
  // those of the next are stride further.
  template <int T, int P, typename Reading>
  static void Group(const int8_t* x, int64_t stride, const uint8_t* const* codes, int32_t lines,
                    int64_t ahead, I (*dot)[P * kVectors]) {
    if constexpr (kInPairs<T>) {
      if (lines * Codes::kWords % 2 == 0)
        return GroupInPairs<T, P, Reading>(x, stride, codes, lines, ahead, dot);
    }
    int32_t line = 0;
    if constexpr (Codes::kHeld > 0) {
      constexpr int kLines = Codes::kHeld / Codes::kWords;
      for (; line + kLines <= lines; line += kLines)
        NarrowLines<T, P, kLines, Reading>(x, stride, codes, line, ahead, dot);
      for (; line < lines; ++line) NarrowLines<T, P, 1, Reading>(x, stride, codes, line, ahead, dot);
    } else {
      do {
        typename Codes::Word w[P * kVectors][Codes::kWords];
        Load<T, P, Reading>(codes, line, ahead, w);
        for (int i = 0; i < Codes::kWords; ++i) {
          for (int t = 0; t < T; ++t) {
            const I token = TokenWord(x + t * stride + kColumns * line + 4 * i);
            for (int v = 0; v < P * kVectors; ++v) dot[t][v] = AddProducts(dot[t][v], w[v][i], token);
          }
        }
      } while (++line < lines);
    }
  }

  template <int T, int P, typename Reading>
  static void Tile(const MatMulArgs& a, int32_t token, int32_t row) {
    const TilePanels<P> at(a, row);
    const int32_t cols = a.w->cols, group = a.w->group, groups = cols / group;
    const int64_t panel_bytes = int64_t{cols / kColumns} * 64;
    const uint8_t* codes[P];
    const uint16_t* scales[P];
    for (int p = 0; p < P; ++p) {
      codes[p] = static_cast<const uint8_t*>(a.w->data) + at.panel[p] * panel_bytes;
      scales[p] = a.w->scales + at.panel[p] * groups * kLanes;
    }
    const int8_t* x = a.xq + int64_t{token} * cols;
    F sums[T][P * kVectors];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < P * kVectors; ++v) sums[t][v] = Zero();
    }
    for (int32_t g = 0; g < groups; ++g) {
      I dot[T][P * kVectors];
      for (int t = 0; t < T; ++t) {
        const I start =
            Codes::kExcess == 0 ? SetI(0) : SetI(-Codes::kExcess * a.sums[int64_t{token + t} * groups + g]);
        for (int v = 0; v < P * kVectors; ++v) dot[t][v] = start;
      }
      const int32_t lines = group / kColumns;
      AskForInput<1, Reading>(x + g * group);
      Group<T, P, Reading>(x + g * group, cols, codes, lines,
                           AheadOf<P, Reading>(int64_t{g} * lines * 64, panel_bytes), dot);
      for (int p = 0; p < P; ++p) codes[p] += 64 * int64_t{lines};
      if (T == 1 && Reading::kScales > 0 && g % 2 == 0) {  // of two groups in a line
        for (int p = 0; p < P; ++p)
          __builtin_prefetch(scales[p] + int64_t{g} * kLanes + Reading::kScales / 2, 0, 3);
      }
      F scale[P * kVectors];
      for (int v = 0; v < P * kVectors; ++v)
        scale[v] = LoadF16(scales[v / kVectors] + int64_t{g} * kLanes + v % kVectors * kWidth);
      for (int t = 0; t < T; ++t) {
        const F xs = Set(a.xs[int64_t{token + t} * groups + g]);
        for (int v = 0; v < P * kVectors; ++v)
          sums[t][v] = Fma(ToFloat(dot[t][v]), Mul(xs, scale[v]), sums[t][v]);
      }
    }
    for (int t = 0; t < T; ++t) StoreTile<P>(a, token + t, row, sums[t]);
  }
};

inline void CodePanelMatMul(const MatMulArgs& a) {
  a.w->type == WeightType::kInt8 ? PanelTokens<CodePanels<Int8Panels>, kCodeTileTokens>(a, 0)
                                 : PanelTokens<CodePanels<Int4Panels>, kCodeTileTokens>(a, 0);
}

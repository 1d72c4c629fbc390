// Panels of int8 and int4 codes times int8 activations. Sums of a group are exact; the excess of unsigned
// codes, kExcess times the sum of the group's activations, is what they start from. The groups are added in
// f32 in order, product and sum rounded apart: bit-equal to the reference.
#pragma once

// Four columns of 16 rows as the products take them: with products of bytes as they are, with products of 16
// bits the even and the odd columns apart.
struct PanelWords {
  I part[4 / kUnit];
};

inline PanelWords WordsOf(I bytes) {
  PanelWords words;
  words.part[4 / kUnit - 1] = HighBytes(bytes);
  words.part[0] = kUnit == 4 ? bytes : And(bytes, SetI(0x00ff00ff));
  return words;
}

// DotWords takes its unsigned operand, where it has one, last.
inline I AddProducts(I sum, const PanelWords& codes, const PanelWords& x) {
  for (int i = 0; i < 4 / kUnit; ++i) sum = DotWords(sum, x.part[i], codes.part[i]);
  return sum;
}

struct Int8Panels {
  static constexpr int kWords = 1;  // of four columns in a line of 64 bytes
  static constexpr int kExcess = kUnsignedCodes ? 128 : 0;
  static void Load(const uint8_t* at, PanelWords* words) {
    const I bytes = LoadI(reinterpret_cast<const int32_t*>(at));
    words[0] = WordsOf(kUnsignedCodes ? bytes : FlipSigns(bytes));
  }
};

struct Int4Panels {
  static constexpr int kWords = 2;
  static constexpr int kExcess = 8;
  static void Load(const uint8_t* at, PanelWords* words) {
    const I bytes = LoadI(reinterpret_cast<const int32_t*>(at)), low = SetI(0x0f0f0f0f);
    words[0] = WordsOf(And(bytes, low));
    words[1] = WordsOf(And(HighNibbles(bytes), low));
  }
};

// The activations of T tokens, a piece of a group at a time, as words to broadcast.
template <int T>
class TokenWords {
 public:
  static constexpr int32_t kPiece = kUnit == 4 ? 1 << 30 : 512;  // columns
  void Stage(const int8_t* x, int32_t stride, int32_t columns) {
    if constexpr (kUnit == 4) {
      x_ = x, stride_ = stride;
    } else {
      for (int t = 0; t < T; ++t) {
        for (int32_t c = 0; c < columns; c += 4 * kWidth) {
          int8_t rest[4 * kWidth] = {};
          const int8_t* from = x + int64_t{t} * stride + c;
          if (columns - c < 4 * kWidth) {
            for (int32_t i = 0; i < columns - c; ++i) rest[i] = from[i];
            from = rest;
          }
          const I bytes = LoadI(reinterpret_cast<const int32_t*>(from));
          StoreI(&words_[t][0][c / 4], EvenCodes(bytes));
          StoreI(&words_[t][1][c / 4], OddCodes(bytes));
        }
      }
    }
  }
  PanelWords At(int t, int32_t word) const {
    PanelWords words;
    if constexpr (kUnit == 4) {
      int32_t four;
      __builtin_memcpy(&four, x_ + int64_t{t} * stride_ + 4 * word, 4);
      words.part[0] = SetI(four);
    } else {
      for (int i = 0; i < 2; ++i) words.part[i] = SetI(words_[t][i][word]);
    }
    return words;
  }
  const int8_t* Columns(int32_t word) const { return x_ + 4 * word; }  // of the first token; kUnit 4
  int64_t stride() const { return stride_; }

 private:
  const int8_t* x_ = nullptr;
  int64_t stride_ = 0;
  int32_t words_[kUnit == 4 ? 1 : T][2][kUnit == 4 ? 1 : kPiece / 4];
};

template <typename Codes>
struct CodePanels {
  static constexpr int kTokens = kCodeTileTokens;

  // The same by pairs of tokens: a step is as many lines as have two words.
  template <int T>
  static void PieceInPairs(const TokenWords<T>& x, const uint8_t* const* codes, int32_t lines,
                           I (*dot)[kTileVectors16]) {
    constexpr int kLines = 2 / Codes::kWords;
    PairSums<T> sums;
    for (int32_t line = 0; line < lines; line += kLines) {
      PanelWords w[kTileVectors16][2];
      for (int v = 0; v < kTileVectors16; ++v) {
        for (int i = 0; i < kLines; ++i) {
          const uint8_t* at = codes[v / kVectors] + 64 * int64_t{line + i};
          if (v % kVectors == 0) AskAhead<T, 1>(at);
          Codes::Load(at + v % kVectors * 4 * kWidth, &w[v][i]);
        }
      }
      sums.Add(x.Columns(line * Codes::kWords), x.stride(), [&](int v, int i) { return w[v][i].part[0]; });
    }
    sums.AddTo(dot);
  }

  // Adds the products of a piece of a group, in lines of 64 bytes of every panel.
  template <int T>
  static void Piece(const TokenWords<T>& x, const uint8_t* const* codes, int32_t lines,
                    I (*dot)[kTileVectors16]) {
    if constexpr (kInPairs<T>) {
      if (lines * Codes::kWords % 2 == 0) return PieceInPairs<T>(x, codes, lines, dot);
    }
    int32_t line = 0;
    do {
      PanelWords w[kTileVectors16][Codes::kWords];
      for (int v = 0; v < kTileVectors16; ++v) {
        const uint8_t* at = codes[v / kVectors] + 64 * int64_t{line};
        if (v % kVectors == 0) AskAhead<T, 1>(at);
        Codes::Load(at + v % kVectors * 4 * kWidth, w[v]);
      }
      for (int i = 0; i < Codes::kWords; ++i) {
        for (int t = 0; t < T; ++t) {
          const PanelWords token = x.At(t, line * Codes::kWords + i);
          for (int v = 0; v < kTileVectors16; ++v) dot[t][v] = AddProducts(dot[t][v], w[v][i], token);
        }
      }
    } while (++line < lines);
  }

  template <int T>
  static void Tile(const MatMulArgs& a, int32_t token, int32_t row) {
    constexpr int32_t kColumns = 4 * Codes::kWords;  // of a line
    const TilePanels at(a, row);
    const int32_t cols = a.w->cols, group = a.w->group, groups = cols / group;
    const uint8_t* codes[kTilePanels];
    const uint16_t* scales[kTilePanels];
    for (int p = 0; p < kTilePanels; ++p) {
      codes[p] = static_cast<const uint8_t*>(a.w->data) + at.panel[p] * (cols / kColumns) * 64;
      scales[p] = a.w->scales + at.panel[p] * groups * kLanes;
    }
    const int8_t* x = a.xq + int64_t{token} * cols;
    F sums[T][kTileVectors16];
    for (int t = 0; t < T; ++t) {
      for (int v = 0; v < kTileVectors16; ++v) sums[t][v] = Zero();
    }
    TokenWords<T> words;
    for (int32_t g = 0; g < groups; ++g) {
      I dot[T][kTileVectors16];
      for (int t = 0; t < T; ++t) {
        const I start =
            Codes::kExcess == 0 ? SetI(0) : SetI(-Codes::kExcess * a.sums[int64_t{token + t} * groups + g]);
        for (int v = 0; v < kTileVectors16; ++v) dot[t][v] = start;
      }
      int32_t left = group;
      do {
        const int32_t n = kUnit == 4 ? group : Least(left, TokenWords<T>::kPiece), lines = n / kColumns;
        words.Stage(x, cols, n);
        Piece<T>(words, codes, lines, dot);
        x += n;
        for (int p = 0; p < kTilePanels; ++p) codes[p] += 64 * int64_t{lines};
        left -= n;
      } while (kUnit != 4 && left > 0);
      F scale[kTileVectors16];
      for (int v = 0; v < kTileVectors16; ++v)
        scale[v] = LoadF16(scales[v / kVectors] + int64_t{g} * kLanes + v % kVectors * kWidth);
      for (int t = 0; t < T; ++t) {
        const F xs = Set(a.xs[int64_t{token + t} * groups + g]);
        for (int v = 0; v < kTileVectors16; ++v)
          sums[t][v] = Add(sums[t][v], Mul(ToFloat(dot[t][v]), Mul(xs, scale[v])));
      }
    }
    for (int t = 0; t < T; ++t) StoreTile(a, token + t, row, sums[t]);
  }
};

inline void CodePanelMatMul(const MatMulArgs& a) {
  a.w->type == WeightType::kInt8 ? PanelTokens<CodePanels<Int8Panels>, kCodeTileTokens>(a, 0)
                                 : PanelTokens<CodePanels<Int4Panels>, kCodeTileTokens>(a, 0);
}

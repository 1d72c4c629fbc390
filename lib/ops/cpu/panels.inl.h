// y = x w^T with weights in panels (lib/ops/weight_panels.h): 16 rows are the lanes of kVectors vectors, and
// every column of a row of activations is broadcast to them. No sum is taken across lanes, and the order in
// which an output adds its columns knows nothing of the tile it is part of: bit-equal for any n and any split
// of the rows.
//
// Bytes: every weight once per call and block of tokens, 1 or 1/2 a code and 2 / group more. n = 1 is bound
// by memory: a line of 64 bytes of codes needs one product of integers, so a processor that reads 10 bytes a
// clock waits for them. Flops: 2 rows * cols * n. A tile of T tokens by kTilePanels panels does T *
// kTileVectors products on kTileVectors loads of weights and T broadcasts, with its sums in registers; a
// group of c columns then costs 3 operations per vector of sums (to float, the product of both scales, the
// sum with its product) and one per token (what it starts from) beside c / 4 products per vector. With 8
// tokens by 2 vectors and the 4 operations that widen scales that leaves 68 % of the peak at c = 32, 90 % at
// 128.
#pragma once

constexpr int kLanes = 16, kVectors = kLanes / kWidth;

// One token's products wait for memory. How most of it comes is a matter of the processor
// (docs/performance.md, "How weights are read"): panels side by side or one after the other, and lines asked
// for kFar bytes before they are worked on, to be in cache 4 - kFarLevel then. Processors do not ask by
// themselves beyond the end of a page. Up to eight tokens wait alike; products of a prompt, whose tiles are
// as large, lose nothing without it.
struct SideBySide {
  static constexpr int kBlockPanels = kBlockStreams, kPanels = kStreams, kFar = kAheadBytes,
                       kFarLevel = kAheadLevel, kNear = 0, kInput = 0, kScales = 0;
};
// Streams::kOne: a line comes to the second cache first, then to the nearest.
struct InTurn {
  static constexpr int kBlockPanels = 1, kPanels = 1, kFar = 768, kFarLevel = 2, kNear = 128, kInput = 256,
                       kScales = 0;
};
// Streams::kOneFar. Scales that lie apart from their codes are asked for as well.
struct InTurnFar {
  static constexpr int kBlockPanels = 1, kPanels = 1, kFar = 6144, kFarLevel = 3, kNear = 0, kInput = 256,
                       kScales = 1024;
};

// Asks for what follows the lines at `line`: `ahead` bytes on (AheadOf).
template <int T, int lines, typename Reading>
inline void AskBeyond(const void* line, int64_t ahead) {
  for (int i = 0; T <= 8 && i < lines; ++i) {
    const uint8_t* at = static_cast<const uint8_t*>(line) + 64 * i;
    __builtin_prefetch(at + ahead, 0, Reading::kFarLevel);
    if (Reading::kNear > 0) __builtin_prefetch(at + Reading::kNear, 0, 3);
  }
}

// Asks for the activations that are worked on soon, `bytes` at a time: a panel that streams past pushes those
// of wide matrices out of the nearest cache before the next one needs them.
template <int bytes, typename Reading>
inline void AskForInput(const void* x) {
  for (int i = 0; Reading::kInput > 0 && i < bytes; i += 64)
    __builtin_prefetch(static_cast<const uint8_t*>(x) + Reading::kInput + i, 0, 3);
}

// From byte `at` of a panel to what is to be asked for then. Behind the end of one lies the next of the same
// tile of P, which was read beside it: what comes is the panel that the next tile has in its place.
template <int P, typename Reading>
inline int64_t AheadOf(int64_t at, int64_t panel_bytes) {
  return at + Reading::kFar < panel_bytes ? Reading::kFar : Reading::kFar + (P - 1) * panel_bytes;
}

// Where the P panels of a tile lie. Panels beyond the last row repeat the last one; nothing of them is
// stored.
template <int P>
struct TilePanels {
  int64_t panel[P];
  TilePanels(const MatMulArgs& a, int32_t row) {
    for (int p = 0; p < P; ++p) panel[p] = Least(row / kLanes + p, (a.row_end - 1) / kLanes);
  }
};

template <int P>
inline void StoreTile(const MatMulArgs& a, int32_t token, int32_t row, const F* sums) {
  float* y = a.y + token * a.y_stride + row;
  for (int v = 0; v < P * kVectors; ++v) {
    const int n = Least(kWidth, a.row_end - row - v * kWidth);
    if (n <= 0) break;
    F sum = sums[v];
    if (a.bias != nullptr) sum = Add(sum, LoadN(a.bias + row + v * kWidth, n));
    n == kWidth ? Store(y + v * kWidth, sum) : StoreN(y + v * kWidth, n, sum);
  }
}

// The last token of an odd number has none to be paired with: it is left out.
constexpr int kLeastTokens = kPairProducts ? 2 : 1;

// The rows of T tokens, kPanels at a time and then as many as a tile of a prompt has.
template <typename Panels, int T, int kPanels, typename Reading>
inline void PanelRows(const MatMulArgs& a, int32_t token) {
  int32_t row = a.row_begin;
  for (; row + kPanels * kLanes <= a.row_end; row += kPanels * kLanes)
    Panels::template Tile<T, kPanels, Reading>(a, token, row);
  for (; row < a.row_end; row += kTilePanels * kLanes)
    Panels::template Tile<T, kTilePanels, Reading>(a, token, row);
}

// Tiles of T tokens from `token` on, then of fewer.
template <typename Panels, int T>
inline void PanelTokens(const MatMulArgs& a, int32_t token) {
  for (; token + T <= a.n; token += T) {
    if constexpr (T > 1) {
      PanelRows<Panels, T, kTilePanels, SideBySide>(a, token);
    } else if (kMayReadInTurn && a.streams == Streams::kOne) {
      PanelRows<Panels, T, Panels::template kPanels<InTurn>, InTurn>(a, token);
    } else if (kMayReadInTurn && a.streams == Streams::kOneFar) {
      PanelRows<Panels, T, Panels::template kPanels<InTurnFar>, InTurnFar>(a, token);
    } else {
      PanelRows<Panels, T, Panels::template kPanels<SideBySide>, SideBySide>(a, token);
    }
  }
  if constexpr (T > kLeastTokens) PanelTokens<Panels, (T > 8 ? 8 : T > 4 ? 4 : T / 2)>(a, token);
}

// Where products come two tokens by two rows (smmla): half as many of them, for even numbers of tokens. A
// group's sum is the same integer.
template <int T>
constexpr bool kInPairs = kPairProducts&& T % 2 == 0;

// The sums of T tokens, two by two, over columns that PairSums::Add is given eight at a time.
template <int T, int P>
class PairSums {
 public:
  PairSums() {
    for (auto& token : sums_) {
      for (auto& vector : token) vector[0] = vector[1] = SetI(0);
    }
  }
  // words(v, i): the i-th of the two words of vector v. x: eight columns of the first token.
  template <typename Words>
  void Add(const int8_t* x, int64_t stride, const Words& words) {
    for (int pair = 0; pair < T / 2; ++pair) {
      const int8_t* token = x + 2 * pair * stride;
      for (int v = 0; v < P * kVectors; ++v)
        AddPairProducts(sums_[pair][v], words(v, 0), words(v, 1), token, token + stride);
    }
  }
  void AddTo(I (*dot)[P * kVectors]) const {
    for (int pair = 0; pair < T / 2; ++pair) {
      for (int v = 0; v < P * kVectors; ++v) {
        dot[2 * pair][v] = AddI(dot[2 * pair][v], OfFirst(sums_[pair][v]));
        dot[2 * pair + 1][v] = AddI(dot[2 * pair + 1][v], OfSecond(sums_[pair][v]));
      }
    }
  }

 private:
  I sums_[T / 2][P * kVectors][2];
};

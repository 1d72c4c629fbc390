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

// One token's products wait for memory. What gets most of it is tuned for each instruction set: panels read
// side by side (kBlockStreams, kStreams), and lines asked for kAheadBytes before they are worked on, to be in
// cache 4 - kAheadLevel then. Processors do not ask by themselves beyond the end of a page. Up to eight
// tokens wait alike; products of a prompt, whose tiles are as large, lose nothing without it.
template <int T, int lines>
inline void AskFor(const void* at) {
  for (int i = 0; T <= 8 && i < lines; ++i)
    __builtin_prefetch(static_cast<const uint8_t*>(at) + 64 * i, 0, kAheadLevel);
}

// From byte `at` of a panel to what is to be asked for then. Behind the end of one lies the next of the same
// tile of P, which was read beside it: what comes is the panel that the next tile has in its place.
template <int P>
inline int64_t AheadOf(int64_t at, int64_t panel_bytes) {
  return at + kAheadBytes < panel_bytes ? kAheadBytes : kAheadBytes + (P - 1) * panel_bytes;
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

// Tiles of T tokens from `token` on, then of fewer.
template <typename Panels, int T>
inline void PanelTokens(const MatMulArgs& a, int32_t token) {
  for (; token + T <= a.n; token += T) {
    int32_t row = a.row_begin;
    constexpr int kPanels = T == 1 ? Panels::kPanels : kTilePanels;
    for (; row + kPanels * kLanes <= a.row_end; row += kPanels * kLanes)
      Panels::template Tile<T, kPanels>(a, token, row);
    for (; row < a.row_end; row += kTilePanels * kLanes) Panels::template Tile<T, kTilePanels>(a, token, row);
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

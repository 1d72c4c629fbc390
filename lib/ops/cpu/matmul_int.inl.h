// y = x w^T with int8 or int4 weights and int8 activations.
//
// Rows are lanes: a panel of kPanelRows rows is turned, a chunk of columns at a time, into words [chunk /
// kUnit][rows] on the stack, so that one vector multiplies kUnit codes of every row by the same codes of one
// token. A group's integer sum is exact; the sums of the groups are added in f32 in order, product and sum
// rounded once: bit-equal to the reference. One or two tokens do without turning: four rows at a time, codes
// in lanes, the same integers and the same f32 sums. Model, per panel: rows * cols * 2 * n integer
// operations; rows * cols * (1 or 1/2) bytes + 2 / group of a byte a code, read once; turning a panel costs
// about as much as multiplying it by 4 tokens.
#pragma once

constexpr int kPanelRows = kPanelVectors * kWidth;
constexpr int32_t kChunk = 512;  // columns of a panel at a time: its words fill half a first-level cache
constexpr int32_t kSmallestGroup = 16;     // smaller ones, and larger than a chunk, go one by one
constexpr int32_t kStep = kWidth * kUnit;  // codes of one LoadWords

struct Panel {
  alignas(64) int32_t words[kChunk / kUnit][kPanelRows];
  alignas(64) int32_t start[kChunk / kSmallestGroup][kPanelRows];  // what the sum of each group starts from
  alignas(64) float scales[kChunk / kSmallestGroup][kPanelRows];
};

// Codes [begin, end) of a row, at most kChunk, then zeros to a whole step. begin is even. Asks for the next
// chunk of the row ahead of time: no prefetcher follows the rows of a panel by itself.
inline void StageRow(const Weight& w, int64_t row, int32_t begin, int32_t end, int8_t* codes) {
  const bool wide = w.type == WeightType::kInt8;
  const int64_t row_bytes = wide ? w.cols : (w.cols + 1) / 2;
  const int8_t* in = static_cast<const int8_t*>(w.data) + row * row_bytes + (wide ? begin : begin / 2);
  const int32_t n = end - begin, bytes = wide ? n : (n + 1) / 2;
  for (int32_t i = 0; i < bytes; i += 64) __builtin_prefetch(in + bytes + i, 0, 2);
  if (wide) {
    __builtin_memcpy(codes, in, static_cast<uint32_t>(n));
  } else {
    int32_t i = 0;
    for (; i + 16 <= bytes; i += 16) ExpandNibbles(in + i, codes + 2 * i);
    if (i < bytes) {
      int8_t rest[16] = {};
      for (int32_t j = i; j < bytes; ++j) rest[j - i] = in[j];
      ExpandNibbles(rest, codes + 2 * i);
    }
  }
  for (int32_t i = n; i % kStep != 0; ++i) codes[i] = 0;
}

// Fills the panel with rows [row, row + kPanelRows) (the last row repeats) and columns [begin, end).
inline void FillPanel(const MatMulArgs& a, int32_t row, int32_t begin, int32_t end, Panel* panel) {
  const Weight& w = *a.w;
  alignas(64) int8_t stage[kWidth][kChunk];
  for (int v = 0; v < kPanelVectors; ++v) {
    for (int i = 0; i < kWidth; ++i)
      StageRow(w, Least(row + v * kWidth + i, a.row_end - 1), begin, end, stage[i]);
    for (int32_t c = 0; c < end - begin; c += kStep) {
      F block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = AsF(LoadWords(&stage[i][c]));
      Transpose(block);
      for (int i = 0; i < kWidth; ++i) StoreI(&panel->words[c / kUnit + i][v * kWidth], AsI(block[i]));
    }
  }
  const int32_t groups = w.cols / w.group, units = w.group / kUnit;
  for (int32_t g = 0; g * w.group < end - begin; ++g) {
    alignas(64) uint16_t halves[kPanelRows];
    for (int i = 0; i < kPanelRows; ++i) {
      const int64_t r = Least(row + i, a.row_end - 1);
      halves[i] = w.scales[r * groups + begin / w.group + g];
    }
    for (int v = 0; v < kPanelVectors; ++v) {
      Store(&panel->scales[g][v * kWidth], LoadF16(halves + v * kWidth));
      I start = SetI(0);
      if (kBiased) {
        for (int32_t u = g * units; u < (g + 1) * units; ++u) {  // 0x80 is +128 as an activation byte
          start =
              DotWords(start, LoadI(&panel->words[u][v * kWidth]), SetI(static_cast<int32_t>(0x80808080u)));
        }
        start = Negative(start);
      }
      StoreI(&panel->start[g][v * kWidth], start);
    }
  }
}

// Adds the panel's columns [begin, end) to T tokens from t. The first chunk starts the sums, the last adds
// the bias.
template <int T>
inline void MultiplyPanel(const MatMulArgs& a, const Panel& panel, int32_t t, int32_t row, int32_t begin,
                          int32_t end) {
  const Weight& w = *a.w;
  const int32_t groups = w.cols / w.group, units = w.group / kUnit;
  alignas(64) int32_t x[T][kChunk / kUnit];
  for (int j = 0; j < T; ++j) {
    const int8_t* in = a.xq + static_cast<int64_t>(t + j) * w.cols + begin;
    int32_t c = 0;
    for (; c + kStep <= end - begin; c += kStep) StoreActivations(in + c, &x[j][c / kUnit]);
    if (c < end - begin) {
      int8_t rest[kStep] = {};
      for (int i = 0; i < end - begin - c; ++i) rest[i] = in[c + i];
      StoreActivations(rest, &x[j][c / kUnit]);
    }
  }
  F sum[T][kPanelVectors];
  const int rows = Least(kPanelRows, a.row_end - row);
  for (int j = 0; j < T; ++j) {
    const float* y = a.y + (t + j) * a.y_stride + row;
    for (int v = 0; v < kPanelVectors; ++v) {
      const int n = Least(kWidth, Most(0, rows - v * kWidth));
      sum[j][v] = begin == 0 || n == 0 ? Zero() : LoadN(y + v * kWidth, n);
    }
  }
  for (int32_t g = 0; g * w.group < end - begin; ++g) {
    I dot[T][kPanelVectors];
    for (int j = 0; j < T; ++j) {
      for (int v = 0; v < kPanelVectors; ++v) dot[j][v] = LoadI(&panel.start[g][v * kWidth]);
    }
    for (int32_t u = g * units; u < (g + 1) * units; ++u) {
      I codes[kPanelVectors];
      for (int v = 0; v < kPanelVectors; ++v) codes[v] = LoadI(&panel.words[u][v * kWidth]);
      for (int j = 0; j < T; ++j) {
        const I token = SetI(x[j][u]);
        for (int v = 0; v < kPanelVectors; ++v) dot[j][v] = DotWords(dot[j][v], codes[v], token);
      }
    }
    for (int j = 0; j < T; ++j) {
      const F scale = Set(a.xs[static_cast<int64_t>(t + j) * groups + begin / w.group + g]);
      for (int v = 0; v < kPanelVectors; ++v) {
        const F both = Mul(scale, Load(&panel.scales[g][v * kWidth]));
        sum[j][v] = Fma(ToFloat(dot[j][v]), both, sum[j][v]);
      }
    }
  }
  for (int j = 0; j < T; ++j) {
    float* y = a.y + (t + j) * a.y_stride + row;
    for (int v = 0; v < kPanelVectors; ++v) {
      const int n = Least(kWidth, rows - v * kWidth);
      if (n <= 0) break;
      const bool biased = end == w.cols && a.bias != nullptr;
      StoreN(y + v * kWidth, n, biased ? Add(sum[j][v], LoadN(a.bias + row + v * kWidth, n)) : sum[j][v]);
    }
  }
}

template <int T>
inline void MultiplyRest(const MatMulArgs& a, const Panel& panel, int32_t t, int32_t row, int32_t begin,
                         int32_t end) {
  if constexpr (T > 0) {
    if (a.n - t == T) return MultiplyPanel<T>(a, panel, t, row, begin, end);
    MultiplyRest<T - 1>(a, panel, t, row, begin, end);
  }
}

// Groups that do not fit a panel: code by code. No format in use has them.
inline void MatMulIntPlain(const MatMulArgs& a) {
  const Weight& w = *a.w;
  const int32_t groups = w.cols / w.group;
  for (int32_t r = a.row_begin; r < a.row_end; ++r) {
    for (int32_t t = 0; t < a.n; ++t) {
      const int8_t* x = a.xq + static_cast<int64_t>(t) * w.cols;
      float sum = 0;
      for (int32_t g = 0; g < groups; ++g) {
        int32_t dot = 0;
        for (int32_t c = g * w.group; c < (g + 1) * w.group; c += kChunk) {
          int8_t codes[kChunk];
          const int32_t end = Least(c + kChunk, (g + 1) * w.group);
          StageRow(w, r, c, end, codes);
          for (int32_t i = c; i < end; ++i) dot += codes[i - c] * x[i];
        }
        float scale[kWidth];
        Store(scale, LoadF16N(w.scales + static_cast<int64_t>(r) * groups + g, 1));
        const float both = a.xs[static_cast<int64_t>(t) * groups + g] * scale[0];
        sum = __builtin_fmaf(static_cast<float>(dot), both, sum);
      }
      a.y[t * a.y_stride + r] = a.bias != nullptr ? sum + a.bias[r] : sum;
    }
  }
}

constexpr int32_t kDirectGroups = 512, kDirectTokens = 2;

// Four rows from `row` (the last one repeats) times token t. start[g]: what the sum of group g starts from.
inline void FourRows(const MatMulArgs& a, int32_t t, int32_t row, const int32_t* start) {
  const Weight& w = *a.w;
  const int32_t groups = w.cols / w.group;
  const bool wide = w.type == WeightType::kInt8;
  const int64_t row_bytes = wide ? w.cols : w.cols / 2, group_bytes = row_bytes / groups;
  const int8_t* x = a.xq + static_cast<int64_t>(t) * w.cols;
  const float* xs = a.xs + static_cast<int64_t>(t) * groups;
  const int8_t* data[4];
  float scales[kDirectGroups][4];
  for (int i = 0; i < 4; ++i) {
    const int64_t r = Least(row + i, a.row_end - 1);
    data[i] = static_cast<const int8_t*>(w.data) + r * row_bytes;
    for (int32_t g = 0; g < groups; g += kWidth) {
      const int n = Least(kWidth, groups - g);
      float lanes[kWidth];
      Store(lanes, n == kWidth ? LoadF16(w.scales + r * groups + g) : LoadF16N(w.scales + r * groups + g, n));
      for (int j = 0; j < n; ++j) scales[g + j][i] = lanes[j];
    }
  }
  float sum[4] = {};
  for (int32_t g = 0; g < groups; ++g) {
    alignas(64) int8_t stage[4][kChunk];
    const int8_t* codes[4];
    for (int i = 0; i < 4; ++i) {
      codes[i] = data[i] + g * group_bytes;
      if (wide) continue;
      for (int32_t j = 0; j < group_bytes; j += 16) ExpandNibbles(codes[i] + j, &stage[i][2 * j]);
      codes[i] = stage[i];
    }
    AddRows4(codes, x + static_cast<int64_t>(g) * w.group, w.group, start[g], xs[g], scales[g], sum);
  }
  float* y = a.y + t * a.y_stride + row;
  for (int i = 0; i < Least(4, a.row_end - row); ++i)
    y[i] = a.bias != nullptr ? sum[i] + a.bias[row + i] : sum[i];
}

inline void MatMulIntFew(const MatMulArgs& a) {
  const Weight& w = *a.w;
  int32_t start[kDirectGroups] = {};
  for (int32_t t = 0; t < a.n; ++t) {
    for (int32_t g = 0; kShiftedDot && g < w.cols / w.group; ++g) {
      const int8_t* x = a.xq + static_cast<int64_t>(t) * w.cols + static_cast<int64_t>(g) * w.group;
      int32_t sum = 0;
      for (int32_t j = 0; j < w.group; ++j) sum += x[j];
      start[g] = -128 * sum;
    }
    for (int32_t r = a.row_begin; r < a.row_end; r += 4) FourRows(a, t, r, start);
  }
}

inline void MatMulInt(const MatMulArgs& a) {
  const int32_t group = a.w->group;
  if (group < kSmallestGroup || group > kChunk || group % 4 != 0) return MatMulIntPlain(a);
  if (a.n <= kDirectTokens && group % 32 == 0 && a.w->cols / group <= kDirectGroups) return MatMulIntFew(a);
  Panel panel;
  const int32_t chunk = kChunk / group * group;
  for (int32_t row = a.row_begin; row < a.row_end; row += kPanelRows) {
    for (int32_t begin = 0; begin < a.w->cols; begin += chunk) {
      const int32_t end = Least(begin + chunk, a.w->cols);
      FillPanel(a, row, begin, end, &panel);
      int32_t t = 0;
      for (; t + kPanelTokens <= a.n; t += kPanelTokens)
        MultiplyPanel<kPanelTokens>(a, panel, t, row, begin, end);
      MultiplyRest<kPanelTokens - 1>(a, panel, t, row, begin, end);
    }
  }
}

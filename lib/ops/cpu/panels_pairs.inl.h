// Panels of bf16 weights times activations that were rounded to bf16: products of the processor take two
// columns at a time and add them in f32 (vdpbf16ps). Twice the products of a fused multiply-add where they
// are as fast as that one, which a table that uses them measures (KernelTable::pays): on Zen 4 and 5 they
// are, on Intel's processors so far not.
//
// Numbers: a product of two bf16 is exact in f32, sums are rounded there once a column, subnormal numbers
// count as 0. Activations lose 16 of their 24 bits, a relative 2^-9 at most, as int8 weights cost them more;
// every sum, and all between two products, stays f32. Results are other ones than those of the widened
// weights, within that.
//
// Bytes: a line of 64 is two columns of 16 rows, brought in order by one shuffle that a tile of T tokens uses
// T times. Flops: 4 a lane and product; T * P products on P lines and T broadcasts, from memory.
#pragma once

struct PairedBf16 {
  using Element = uint16_t;
  static constexpr int64_t kColumnBytes = kLanes * sizeof(Element);

  // Products of columns k and k + 1, `lines` bringing both of a panel.
  template <int T, int P, typename Lines>
  static void Pair(const uint16_t* x, int64_t stride, const Lines& lines, F (*acc)[P]) {
    I w[P];
    for (int p = 0; p < P; ++p) w[p] = PairColumns(lines(p));
    for (int t = 0; t < T; ++t) {
      int32_t two;
      __builtin_memcpy(&two, x + t * stride, 4);
      const I token = SetI(two);
      for (int p = 0; p < P; ++p) acc[t][p] = DotPairs(acc[t][p], w[p], token);
    }
  }

  // begin is even, and end where columns follow: only the last column of all may have none beside it.
  template <int T, int P, typename Reading>
  static void Multiply(const MatMulArgs& a, const uint16_t* const* data, int32_t token, int32_t begin,
                       int32_t end, F (*acc)[P]) {
    const int64_t stride = PairedColumns(a.w->cols), panel_bytes = int64_t{a.w->cols} * kColumnBytes;
    const uint16_t* x = a.xb + token * stride;
    int32_t k = begin;
    for (; k + 2 <= end; k += 2) {
      const int64_t ahead = AheadOf<P, Reading>(k * kColumnBytes, panel_bytes);
      const auto line = [&](int p) {
        const uint16_t* at = data[p] + int64_t{k} * kLanes;
        AskBeyond<T, 1, Reading>(at, ahead);
        return LoadI(reinterpret_cast<const int32_t*>(at));
      };
      Pair<T, P>(x + k, stride, line, acc);
    }
    if (k < end)
      Pair<T, P>(
          x + k, stride, [&](int p) { return LoadColumn(data[p] + int64_t{k} * kLanes); }, acc);
  }
};

void RoundRow(const float* x, int32_t cols, uint16_t* out) {
  for (int32_t k = 0; k < cols; k += kWidth) {
    const int n = Least(kWidth, cols - k);
    StoreBf16N(out + k, n, LoadN(x + k, n));
  }
  if (cols % 2 != 0) out[cols] = 0;
}

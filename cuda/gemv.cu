// Products with a few rows of activations. A warp takes a few rows of the matrix, a lane 16 bytes of each at
// a time, so that what is read of x serves all of them: 16 bytes of int4 meet 128 bytes of x, which would
// make the first-level cache the limit with one row. Every output adds its columns in the same order whatever
// the other rows are.
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kWarps = 4, kRows = 4;

template <WeightType T, int N>
KVC_DEVICE void RowsByVectors(const Product& p, const Part& w, int32_t r0, int32_t n_rows, const float* x,
                              float (&sum)[kRows][N]) {
  constexpr int kColumns = VectorOf<T>::kColumns;
  const int64_t row_vectors = p.cols / kColumns;
  const uint4* rows = reinterpret_cast<const uint4*>(w.data);
  for (int32_t c = Lane() * kColumns; c < p.cols; c += kWarp * kColumns) {
    uint4 v[kRows];
    for (int r = 0; r < kRows; ++r)
      v[r] = __ldcs(rows + (r0 + min(r, n_rows - 1)) * row_vectors + c / kColumns);
    for (int r = 0; r < kRows; ++r) {
      float a[kColumns];
      Unpack<T>(v[r], a);
      float factor = 1;
      if (T == WeightType::kInt8 || T == WeightType::kInt4) {
        const uint16_t* scales =
            w.scales + static_cast<int64_t>(r0 + min(r, n_rows - 1)) * (p.cols / w.group);
        if (w.group % kColumns == 0) {
          factor = HalfBits(scales[c / w.group]);
        } else {
          for (int i = 0; i < kColumns; ++i) a[i] *= HalfBits(scales[(c + i) / w.group]);
        }
      }
      for (int t = 0; t < N; ++t) {
        float part = 0;
        const float4* at = reinterpret_cast<const float4*>(x + static_cast<int64_t>(t) * p.cols + c);
        for (int i = 0; i < kColumns / 4; ++i) {
          const float4 y = at[i];
          part += a[4 * i] * y.x + a[4 * i + 1] * y.y + a[4 * i + 2] * y.z + a[4 * i + 3] * y.w;
        }
        sum[r][t] += part * factor;
      }
    }
  }
}

template <WeightType T, int N>
KVC_DEVICE void RowsOf(const Product& p, const Part& w, int32_t r0, int32_t first_token) {
  const int32_t n_rows = min(kRows, w.rows - r0);
  const float* x = p.x + static_cast<int64_t>(first_token) * p.cols;
  float sum[kRows][N] = {};
  if (p.cols % VectorOf<T>::kColumns == 0) {
    RowsByVectors<T, N>(p, w, r0, n_rows, x, sum);
  } else {
    for (int32_t c = Lane(); c < p.cols; c += kWarp) {
      for (int r = 0; r < kRows; ++r) {
        const float v = WeightElement(w, p.cols, r0 + min(r, n_rows - 1), c);
        for (int t = 0; t < N; ++t) sum[r][t] += v * x[static_cast<int64_t>(t) * p.cols + c];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < N; ++t) {
      const float y = WarpSum(sum[r][t]);
      if (Lane() == 0 && r < n_rows) StoreOutput(p, w, w.first + r0 + r, first_token + t, y);
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kWarps* kWarp) gemv(const Product p, int32_t first_token) {
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  const int32_t row = ((static_cast<int32_t>(blockIdx.x) - w.first_block) * kWarps + WarpOfBlock()) * kRows;
  if (row >= w.rows) return;
  switch (w.type) {
    case WeightType::kF32:
      return RowsOf<WeightType::kF32, N>(p, w, row, first_token);
    case WeightType::kF16:
      return RowsOf<WeightType::kF16, N>(p, w, row, first_token);
    case WeightType::kBf16:
      return RowsOf<WeightType::kBf16, N>(p, w, row, first_token);
    case WeightType::kInt8:
      return RowsOf<WeightType::kInt8, N>(p, w, row, first_token);
    case WeightType::kInt4:
      return RowsOf<WeightType::kInt4, N>(p, w, row, first_token);
    case WeightType::kQ4K:
    case WeightType::kQ6K:
      return;  // prepare.cc makes int8 of them
  }
}

}  // namespace

cudaError_t Gemv(Product p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(NumberBlocks(&p, kWarps * kRows))), block(kWarps * kWarp);
  for (int32_t t = 0; t < p.n;) {
    const int32_t left = p.n - t;
    cudaError_t e;
    if (left >= 4) {
      e = KVC_LAUNCH(gemv<4>, grid, block, 0, stream, p, t);
      t += 4;
    } else if (left >= 2) {
      e = KVC_LAUNCH(gemv<2>, grid, block, 0, stream, p, t);
      t += 2;
    } else {
      e = KVC_LAUNCH(gemv<1>, grid, block, 0, stream, p, t);
      t += 1;
    }
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace kvc::cuda

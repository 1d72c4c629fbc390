// Products with a few rows of activations. A warp takes a row of the matrix, a lane 16 bytes of it at a time; rows of x
// come from the caches. Every output adds its columns in the same order whatever the other rows are.
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kWarps = 4;

template <WeightType T, int N>
KVC_DEVICE void RowByVectors(const Product& p, const Part& w, int32_t r, const float* const* x, float* sum) {
  constexpr int kColumns = VectorOf<T>::kColumns;
  const int64_t row_bytes = T == WeightType::kInt4 ? p.cols / 2 : static_cast<int64_t>(p.cols) * 16 / kColumns;
  const uint4* row = reinterpret_cast<const uint4*>(w.data + r * row_bytes);
  const uint16_t* scales = w.scales + (w.group > 0 ? static_cast<int64_t>(r) * (p.cols / w.group) : 0);
  for (int32_t c = Lane() * kColumns; c < p.cols; c += kWarp * kColumns) {
    float v[kColumns];
    Unpack<T>(__ldcs(row + c / kColumns), v);
    float factor = 1;
    if (T == WeightType::kInt8 || T == WeightType::kInt4) {
      if (w.group % kColumns == 0) {
        factor = HalfBits(scales[c / w.group]);
      } else {
        for (int i = 0; i < kColumns; ++i) v[i] *= HalfBits(scales[(c + i) / w.group]);
      }
    }
    for (int t = 0; t < N; ++t) {
      float part = 0;
      const float4* at = reinterpret_cast<const float4*>(x[t] + c);
      for (int i = 0; i < kColumns / 4; ++i) {
        const float4 a = at[i];
        part += v[4 * i] * a.x + v[4 * i + 1] * a.y + v[4 * i + 2] * a.z + v[4 * i + 3] * a.w;
      }
      sum[t] += part * factor;
    }
  }
}

template <WeightType T, int N>
KVC_DEVICE void RowOf(const Product& p, const Part& w, int32_t row, int32_t first_token) {
  const float* x[N];
  float sum[N];
  const int32_t r = row - w.first;
  for (int t = 0; t < N; ++t) x[t] = p.x + static_cast<int64_t>(first_token + t) * p.cols, sum[t] = 0;
  if (p.cols % VectorOf<T>::kColumns == 0) {
    RowByVectors<T, N>(p, w, r, x, sum);
  } else {
    for (int32_t c = Lane(); c < p.cols; c += kWarp) {
      const float v = WeightElement(w, p.cols, r, c);
      for (int t = 0; t < N; ++t) sum[t] += v * x[t][c];
    }
  }
  for (int t = 0; t < N; ++t) {
    const float y = WarpSum(sum[t]);
    if (Lane() == 0) StoreOutput(p, w, row, first_token + t, y);
  }
}

template <int N>
__global__ void __launch_bounds__(kWarps * kWarp) gemv(const Product p, int32_t first_token) {
  const int32_t row = static_cast<int32_t>(blockIdx.x) * kWarps + WarpOfBlock();
  if (row >= p.rows) return;
  const Part& w = PartAt(p, row);
  switch (w.type) {
    case WeightType::kF32:
      return RowOf<WeightType::kF32, N>(p, w, row, first_token);
    case WeightType::kF16:
      return RowOf<WeightType::kF16, N>(p, w, row, first_token);
    case WeightType::kBf16:
      return RowOf<WeightType::kBf16, N>(p, w, row, first_token);
    case WeightType::kInt8:
      return RowOf<WeightType::kInt8, N>(p, w, row, first_token);
    case WeightType::kInt4:
      return RowOf<WeightType::kInt4, N>(p, w, row, first_token);
  }
}

}  // namespace

cudaError_t Gemv(const Product& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.rows + kWarps - 1) / kWarps)), block(kWarps * kWarp);
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

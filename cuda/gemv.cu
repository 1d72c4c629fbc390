// Products with a few rows of activations. A warp takes a few rows of the matrix, a lane 16 bytes of each at
// a time, so that what is read of x serves all of them: 16 bytes of int4 meet 128 bytes of x, which would
// make the first-level cache the limit with one row. Every output adds its columns in the same order whatever
// the other rows are.
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/vector_products.h"

namespace kvc::cuda {
namespace {

constexpr int kWarps = 4, kRows = 4;

// The rows of x that a warp multiplies, N beside each other, and where the results go.
struct Neighbours {
  const float* x;
  int32_t cols, first;
  KVC_DEVICE const float* Row(int t) const { return x + static_cast<int64_t>(t) * cols; }
  KVC_DEVICE int32_t FirstRow(const Part&) const { return 0; }
  KVC_DEVICE bool Has(int) const { return true; }
  static constexpr bool kMeetsOffsets = true;  // weights of q4_k
};
// Those of one expert; where they are fewer the last one takes the place of the others.
template <int N>
struct Gathered {
  const float* x[N];
  int32_t expert, n, first;
  KVC_DEVICE const float* Row(int t) const { return x[t]; }
  KVC_DEVICE int32_t FirstRow(const Part& w) const { return expert * w.rows; }
  KVC_DEVICE bool Has(int t) const { return t < n; }
  static constexpr bool kMeetsOffsets = false;  // prepare.cc makes int8 of them
};

// r0: among the rows of all matrices of the part. Four columns at a time are taken to all rows and tokens, so
// that no more of x than those stays in registers.
template <WeightType T, int N, typename X>
KVC_DEVICE void RowsByVectors(const Product& p, const Part& w, int32_t r0, int32_t n_rows, const X& x,
                              float (&sum)[kRows][N]) {
  constexpr int kColumns = VectorOf<T>::kColumns;
  constexpr bool kScales = IsScaled(T);
  const int64_t row_vectors = p.cols / kColumns, row_scales = kScales ? p.cols / w.group : 0;
  const uint4* rows = reinterpret_cast<const uint4*>(w.data);
  for (int32_t c = Lane() * kColumns; c < p.cols; c += kWarp * kColumns) {
    uint4 v[kRows];
    float part[kRows][N], all[N];
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r)
      v[r] = __ldcs(rows + (r0 + min(r, n_rows - 1)) * row_vectors + c / kColumns);
    MultiplyVectors<T>(
        v, [&](int t, int i) { return reinterpret_cast<const float4*>(x.Row(t) + c)[i]; }, part, all);
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) {
      GroupBits<T> bits = 0;
      if (kScales) bits = BitsOfGroup<T>(w, (r0 + min(r, n_rows - 1)) * row_scales + c / w.group);
      KVC_UNROLL
      for (int t = 0; t < N; ++t) sum[r][t] += kScales ? SumOfGroup<T>(bits, part[r][t], all[t]) : part[r][t];
    }
  }
}

template <WeightType T, int N, typename X>
KVC_DEVICE void RowsOf(const Product& p, const Part& w, int32_t r0, const X& x) {
  const int32_t n_rows = min(kRows, w.rows - r0), first = x.FirstRow(w) + r0;
  float sum[kRows][N] = {};
  if (p.cols % VectorOf<T>::kColumns == 0 && (!IsScaled(T) || w.group % VectorOf<T>::kColumns == 0)) {
    RowsByVectors<T, N>(p, w, first, n_rows, x, sum);
  } else {
    for (int32_t c = Lane(); c < p.cols; c += kWarp) {
      KVC_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float v = WeightElement(w, p.cols, first + min(r, n_rows - 1), c);
        KVC_UNROLL
        for (int t = 0; t < N; ++t) sum[r][t] += v * x.Row(t)[c];
      }
    }
  }
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_UNROLL
    for (int t = 0; t < N; ++t) {
      const float y = WarpSum(sum[r][t]);
      if (Lane() == 0 && r < n_rows && x.Has(t))
        StoreOutput(p, w, x.FirstRow(w), w.first + r0 + r, x.first + t, y);
    }
  }
}

template <int N, typename X>
KVC_DEVICE void RowsOfBlock(const Product& p, const X& x) {
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  const int32_t row = ((static_cast<int32_t>(blockIdx.x) - w.first_block) * kWarps + WarpOfBlock()) * kRows;
  if (row >= w.rows) return;
  switch (w.type) {
    case WeightType::kF32:
      return RowsOf<WeightType::kF32, N>(p, w, row, x);
    case WeightType::kF16:
      return RowsOf<WeightType::kF16, N>(p, w, row, x);
    case WeightType::kInt8:
      return RowsOf<WeightType::kInt8, N>(p, w, row, x);
    case WeightType::kInt4:
      return RowsOf<WeightType::kInt4, N>(p, w, row, x);
    case WeightType::kQ4K:
      if constexpr (X::kMeetsOffsets) RowsOf<WeightType::kQ4K, N>(p, w, row, x);
      return;
    case WeightType::kBf16:
    case WeightType::kQ6K:
      return;  // prepare.cc makes others of them
  }
}

// ptxas would leave a thread fewer registers than rows of x need, or one or two less than it then takes.
template <int N, bool kExperts>
constexpr int kBlocks = N == 4     ? 2
                        : N == 1   ? 5
                        : kExperts ? 3
                                   : 4;

template <int N>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks<N, false>)
    gemv(const Product p, int32_t first_token) {
  LetNextBegin();
  WaitForEarlier();
  RowsOfBlock<N>(p, Neighbours{p.x + static_cast<int64_t>(first_token) * p.cols, p.cols, first_token});
}

// Block (rows, tile): up to N rows of x by rows of the matrices of the tile's expert.
template <int N>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks<N, true>) gemv_experts(const Product p) {
  LetNextBegin();
  WaitForEarlier();
  const ExpertTile tile = p.tiles[blockIdx.y];
  if (tile.n == 0) return;
  Gathered<N> x;
  x.expert = tile.expert, x.n = tile.n, x.first = tile.first;
  KVC_UNROLL
  for (int t = 0; t < N; ++t) {
    const int32_t pair = tile.first + min(t, tile.n - 1);
    x.x[t] = p.x + static_cast<int64_t>(p.tokens != nullptr ? p.tokens[pair] : pair) * p.cols;
  }
  RowsOfBlock<N>(p, x);
}

}  // namespace

// Those of one row are of steps: where shared memory has all it can, 28 KiB of first-level cache are left, a
// row of 7,168 columns. More rows find x in that cache or come to their limit at the second one (four rows of
// int4: 16 KiB of x for 2 KiB of weights), and keep what it has otherwise.
void AddGemvKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, gemv<1>, 0);
  KVC_ADD(loader, gemv<2>, 0);
  KVC_ADD(loader, gemv<4>, 0);
  KVC_ADD_STEP(loader, gemv_experts<1>, 0);
  KVC_ADD(loader, gemv_experts<2>, 0);
  KVC_ADD(loader, gemv_experts<4>, 0);
}

cudaError_t GemvExperts(Product p, int32_t tile, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(NumberBlocks(&p, kWarps * kRows)), static_cast<unsigned>(p.n_tiles)),
      block(kWarps * kWarp);
  if (tile == 1) return KVC_LAUNCH_EARLY(gemv_experts<1>, grid, block, 0, stream, p);
  if (tile == 2) return KVC_LAUNCH_EARLY(gemv_experts<2>, grid, block, 0, stream, p);
  return KVC_LAUNCH_EARLY(gemv_experts<4>, grid, block, 0, stream, p);
}

cudaError_t Gemv(Product p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(NumberBlocks(&p, kWarps * kRows))), block(kWarps * kWarp);
  for (int32_t t = 0; t < p.n;) {
    const int32_t left = p.n - t;
    cudaError_t e;
    if (left >= 4) {
      e = KVC_LAUNCH_EARLY(gemv<4>, grid, block, 0, stream, p, t);
      t += 4;
    } else if (left >= 2) {
      e = KVC_LAUNCH_EARLY(gemv<2>, grid, block, 0, stream, p, t);
      t += 2;
    } else {
      e = KVC_LAUNCH_EARLY(gemv<1>, grid, block, 0, stream, p, t);
      t += 1;
    }
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace kvc::cuda

// Products with many rows of activations on the tensor cores. A block makes 128 outputs of 64 tokens, 32
// columns at a time, each of its four warps 64 x 32 of them. There are two stages in shared memory: what the
// next one holds is read from global memory before the products of the current one are begun, and put there
// after them.
//
// The tensor cores multiply bf16. Activations are split in two (split_tiles.h); codes of eight and four bits
// and bf16 weights are one, f16 weights two. Scales of groups are taken to the sums of 32 columns; where a
// scale changes within 32 columns, or rows are no whole vectors of 16 bytes, weights are decoded one by one
// and split. Flops: 2 * n * rows * cols, twice (three times) on the tensor cores. Bytes: weights once for 64
// tokens, activations once for 128 outputs.
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRows = 128, kTokens = 64, kDepth = 32;
constexpr int kMine = 4;  // 16-byte vectors of a stage that a thread reads of either, at most

struct Stage {
  SplitTile<Bf16Halves, kRows, kDepth> w;
  SplitTile<Bf16Halves, kTokens, kDepth> x;
  float scale[kRows];
};

// What a thread has read for a stage.
struct Fetched {
  uint4 w[kMine];
  float4 x[kMine];
  uint16_t scale;
};

// How a kernel reads weights: as one of these types in whole vectors of 16 bytes, codes with one scale a row
// of a stage; or as kF32, any type, decoded one by one.
WeightType FormOf(const Part& w, int32_t cols) {
  const bool codes = IsScaled(w.type);
  const bool vectors = cols % (codes ? kDepth : VectorOf<WeightType::kBf16>::kColumns) == 0;
  return vectors && (!codes || w.group % kDepth == 0) ? w.type : WeightType::kF32;
}

// The matrix and the tokens of a block.
template <WeightType T>
struct Operands {
  static constexpr bool kVectors = T != WeightType::kF32;
  static constexpr bool kScaled = IsScaled(T);                         // sums have scales
  static constexpr bool kHalves = !kVectors || T == WeightType::kF16;  // a weight is two of bf16
  const Product& p;
  const Part& w;
  TokenTile tokens;
  int32_t row0, first;   // of the part; of the stack that the part may be
  int32_t x_row[kMine];  // of the vectors that the thread reads; -1: none

  KVC_DEVICE void FindRows() {
    KVC_UNROLL
    for (int i = 0; i < kMine; ++i) {
      const int t = (ThreadOfBlock() + i * kThreads) / (kDepth / 4);
      x_row[i] = t < tokens.n ? static_cast<int32_t>(tokens.RowOfX(t)) : -1;
    }
  }

  KVC_DEVICE int64_t Row(int r) const { return static_cast<int64_t>(first) + row0 + r; }
  KVC_DEVICE bool Has(int r, int32_t c) const { return row0 + r < w.rows && c < p.cols; }
};

// f(which, row, column): of the thread's vectors of a stage.
template <WeightType T, typename F>
KVC_DEVICE void EachVector(F&& f) {
  constexpr int kColumns = VectorOf<T>::kColumns, kVectors = kRows * kDepth / kColumns;
  KVC_UNROLL
  for (int i = 0; i < kVectors / kThreads; ++i) {
    const int at = ThreadOfBlock() + i * kThreads;
    f(i, at / (kDepth / kColumns), at % (kDepth / kColumns) * kColumns);
  }
}

template <WeightType T>
KVC_DEVICE void Fetch(const Operands<T>& o, int32_t k0, Fetched* fetched) {
  if constexpr (Operands<T>::kVectors) {
    constexpr int kColumns = VectorOf<T>::kColumns;
    const uint4* rows = reinterpret_cast<const uint4*>(o.w.data);
    EachVector<T>([&](int i, int r, int c) {
      fetched->w[i] =
          o.Has(r, k0 + c) ? rows[o.Row(r) * (o.p.cols / kColumns) + (k0 + c) / kColumns] : uint4{0, 0, 0, 0};
    });
  }
  KVC_UNROLL
  for (int i = 0; i < kMine; ++i) {
    const int32_t c = k0 + (ThreadOfBlock() + i * kThreads) % (kDepth / 4) * 4;
    const bool there = o.x_row[i] >= 0 && c < o.p.cols;
    const float* x = o.p.x + (there ? static_cast<int64_t>(o.x_row[i]) * o.p.cols + c : 0);
    if constexpr (Operands<T>::kVectors) {
      fetched->x[i] = there ? *reinterpret_cast<const float4*>(x) : float4{0, 0, 0, 0};
    } else {
      fetched->x[i] = FloatRows{x, 0, there ? 1 : 0, o.p.cols - c}.Four(0, 0);
    }
  }
  static_assert(kThreads == kRows);
  const int r = ThreadOfBlock();
  if (Operands<T>::kScaled)
    fetched->scale =
        o.Has(r, k0) ? o.w.scales[o.Row(r) * (o.p.cols / o.w.group) + k0 / o.w.group] : uint16_t{0};
}

template <WeightType T>
KVC_DEVICE void PutVectors(const Fetched& fetched, Stage* s) {
  EachVector<T>([&](int i, int r, int c) {
    const uint4& v = fetched.w[i];
    if constexpr (T == WeightType::kBf16) {
      StoreFour(&s->w.high[r][c], {v.x, v.y});
      StoreFour(&s->w.high[r][c + 4], {v.z, v.w});
    } else {
      KVC_UNROLL
      for (int j = 0; j < VectorOf<T>::kColumns / 4; ++j) {
        float w[4];
        UnpackFour<T>(v, j, w);
        if (T == WeightType::kF16) {
          s->w.Put(r, c + 4 * j, {w[0], w[1], w[2], w[3]});
        } else {
          StoreFour(&s->w.high[r][c + 4 * j], {ToBfPair(w[0], w[1]), ToBfPair(w[2], w[3])});
        }
      }
    }
  });
}

KVC_DEVICE void PutElements(const Operands<WeightType::kF32>& o, int32_t k0, Stage* s) {
  for (int i = ThreadOfBlock(); i < kRows * kDepth / 4; i += kThreads) {
    const int r = i / (kDepth / 4), c = i % (kDepth / 4) * 4;
    float w[4];
    KVC_UNROLL
    for (int j = 0; j < 4; ++j)
      w[j] = o.Has(r, k0 + c + j) ? WeightElement(o.w, o.p.cols, static_cast<int32_t>(o.Row(r)), k0 + c + j)
                                  : 0.0f;
    s->w.Put(r, c, {w[0], w[1], w[2], w[3]});
  }
}

template <WeightType T>
KVC_DEVICE void Put(const Operands<T>& o, int32_t k0, const Fetched& fetched, Stage* s) {
  if constexpr (Operands<T>::kVectors) {
    PutVectors<T>(fetched, s);
  } else {
    PutElements(o, k0, s);
  }
  KVC_UNROLL
  for (int i = 0; i < kMine; ++i) {
    const int at = ThreadOfBlock() + i * kThreads;
    s->x.Put(at / (kDepth / 4), at % (kDepth / 4) * 4, fetched.x[i]);
  }
  if (Operands<T>::kScaled) s->scale[ThreadOfBlock()] = HalfBits(fetched.scale);
}

// sum += 64 x 32 outputs at (row, token) of a stage, without scales.
template <WeightType T>
KVC_DEVICE void MultiplyUnscaled(const Stage& s, int row, int token, float (&sum)[4][4][4]) {
  KVC_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    SplitRight x[2][2];
    s.x.RowsRight(token, k, x[0]);
    s.x.RowsRight(token + 16, k, x[1]);
    KVC_UNROLL
    for (int m = 0; m < 4; ++m) {
      SplitLeft w;
      s.w.RowsLeft(row + 16 * m, k, Operands<T>::kHalves, &w);
      KVC_UNROLL
      for (int n = 0; n < 4; ++n) {
        if (Operands<T>::kHalves) MmaBf16(sum[m][n], w.low, x[n / 2][n % 2].high);
        MmaBf16(sum[m][n], w.high, x[n / 2][n % 2].low);
        MmaBf16(sum[m][n], w.high, x[n / 2][n % 2].high);
      }
    }
  }
}

template <WeightType T>
KVC_DEVICE void Multiply(const Stage& s, int row, int token, float (&sum)[4][4][4]) {
  if constexpr (!Operands<T>::kScaled) {
    MultiplyUnscaled<T>(s, row, token, sum);
  } else {
    float tile[4][4][4] = {};
    MultiplyUnscaled<T>(s, row, token, tile);
    KVC_UNROLL
    for (int m = 0; m < 4; ++m) {
      const int r = row + 16 * m + Lane() / 4;
      const float low = s.scale[r], high = s.scale[r + 8];
      KVC_UNROLL
      for (int n = 0; n < 4; ++n) {
        KVC_UNROLL
        for (int i = 0; i < 4; ++i) sum[m][n][i] += tile[m][n][i] * (i < 2 ? low : high);
      }
    }
  }
}

template <bool kExperts, WeightType T>
__global__ void __launch_bounds__(kThreads, 2) gemm_mma(const Product p) {
  KVC_SHARED(Stage, stages);
  const TokenTile mine = TileOf<kExperts>(p, static_cast<int32_t>(blockIdx.y), kTokens);
  if (kExperts && mine.n <= 0) return;
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  Operands<T> o{
      p, w, mine, (static_cast<int32_t>(blockIdx.x) - w.first_block) * kRows, kExperts ? mine.FirstRow(w) : 0,
      {}};
  o.FindRows();
  const int my_row = WarpOfBlock() % 2 * 64, my_token = WarpOfBlock() / 2 * 32;
  const bool works = o.row0 + my_row < w.rows && my_token < mine.n;
  float sum[4][4][4] = {};
  Fetched next;
  Fetch(o, 0, &next);
  Put(o, 0, next, stages);
  __syncthreads();
  for (int32_t k0 = 0; k0 < p.cols; k0 += kDepth) {
    const int now = k0 / kDepth % 2;
    const bool more = k0 + kDepth < p.cols;
    if (more) Fetch(o, k0 + kDepth, &next);
    if (works) Multiply<T>(stages[now], my_row, my_token, sum);
    if (more) Put(o, k0 + kDepth, next, stages + 1 - now);
    __syncthreads();
  }
  KVC_UNROLL
  for (int m = 0; m < 4; ++m) {
    KVC_UNROLL
    for (int n = 0; n < 4; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int32_t row = o.row0 + my_row + 16 * m + Lane() / 4 + i / 2 * 8,
                      token = my_token + 8 * n + Lane() % 4 * 2 + i % 2;
        if (row < w.rows && token < mine.n)
          StoreOutput(p, w, o.first, w.first + row, mine.first + token, sum[m][n][i]);
      }
    }
  }
}

template <WeightType T>
void AddForms(KernelLoader* loader) {
  KVC_ADD(loader, (gemm_mma<true, T>), 2 * sizeof(Stage));
  KVC_ADD(loader, (gemm_mma<false, T>), 2 * sizeof(Stage));
}

template <WeightType T>
cudaError_t LaunchMma(Product p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(NumberBlocks(&p, kRows)),
                  static_cast<unsigned>(TileBlocks(p, kTokens)));
  if (p.tiles != nullptr)
    return KVC_LAUNCH((gemm_mma<true, T>), grid, dim3(kThreads), 2 * sizeof(Stage), stream, p);
  return KVC_LAUNCH((gemm_mma<false, T>), grid, dim3(kThreads), 2 * sizeof(Stage), stream, p);
}

// Parts of different forms, one after the other.
cudaError_t EachPart(const Product& p, CudaStream& stream) {
  cudaError_t e = cudaSuccess;
  for (int i = 0; i < p.n_parts && e == cudaSuccess; ++i) {
    Product one = p;
    one.parts[0] = p.parts[i], one.n_parts = 1;
    e = GemmMma(one, stream);
  }
  return e;
}

}  // namespace

void AddGemmMmaKernels(KernelLoader* loader) {
  AddForms<WeightType::kInt8>(loader);
  AddForms<WeightType::kInt4>(loader);
  AddForms<WeightType::kBf16>(loader);
  AddForms<WeightType::kF16>(loader);
  AddForms<WeightType::kF32>(loader);
}

cudaError_t GemmMma(Product p, CudaStream& stream) {
  const WeightType form = FormOf(p.parts[0], p.cols);
  for (int i = 1; i < p.n_parts; ++i) {
    if (FormOf(p.parts[i], p.cols) != form) return EachPart(p, stream);
  }
  switch (form) {
    case WeightType::kInt8:
      return LaunchMma<WeightType::kInt8>(p, stream);
    case WeightType::kInt4:
      return LaunchMma<WeightType::kInt4>(p, stream);
    case WeightType::kBf16:
      return LaunchMma<WeightType::kBf16>(p, stream);
    case WeightType::kF16:
      return LaunchMma<WeightType::kF16>(p, stream);
    default:
      return LaunchMma<WeightType::kF32>(p, stream);
  }
}

cudaError_t Gemm(const Product& p, CudaStream& stream) {
  for (int i = 0; i < p.n_parts; ++i) {
    if (p.parts[i].type == WeightType::kF32) return GemmF32(p, stream);
  }
  return GemmMma(p, stream);
}

}  // namespace kvc::cuda

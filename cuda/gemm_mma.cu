// Products with many rows of activations on the tensor cores: from 256 on, and fewer where gemm_few.cu has
// none or would take longer. A block makes 128 outputs of 64 or 128 tokens, 32 columns at a time, each of its
// four warps a quarter of them. There are two stages in shared memory: what the next one holds is read from
// global memory before the products of the current one are begun, and put there after them.
//
// The tensor cores multiply f16. Weights are numbers of it, codes of eight and four bits too, and so are
// activations, one or two for each (round_rows.cu). Scales of groups are taken to the sums of 32 columns;
// where a scale changes within 32 columns, or rows are no whole vectors of 16 bytes, numbers are read one by
// one and weights are two. Flops: 2 * n * rows * cols, once where both are one number, else twice (three
// times) on the tensor cores. Bytes: weights once for the tokens of a block, activations once for 128
// outputs.
//
// Tiles, by what an A100 does in a clock: 1024 multiply-adds, 128 bytes of shared memory, 47 of the cache
// behind it. Clocks of a block for 32 columns of f16 weights:
//   activations, tokens   multiply-adds   shared memory   cache
//   two, 64                         512             384     349
//   one, 64                         256             288     261
//   one, 128                        512             384     349
// With half of the multiply-adds and the same tile nothing else is halved: fragments of weights serve as few
// tokens as before. So the room of the low halves is that of 64 more tokens: a warp makes 64 x 64 outputs
// from 8 fragments in 16 columns, not 64 x 32 from 6. Sums take 128 registers of a thread, two blocks the
// registers of a multiprocessor; both stages are 40 KiB. Codes stay with 64 tokens: to take scales in, a warp
// holds the fragments of all 32 columns, 16 registers more than there are. So do few rows, which give not
// every multiprocessor a block of 128, and tiles of experts.
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRows = 128, kDepth = kScaledColumns;
constexpr int kFewTokens = 64, kManyTokens = 128;

// How a kernel reads weights: as one of these types in whole vectors of 16 bytes, codes with one scale a row
// of a stage; or as kF32, any type, decoded one by one.
WeightType FormOf(const Part& w, int32_t cols) {
  const int32_t columns = IsScaled(w.type) ? kDepth : VectorOf<WeightType::kF16>::kColumns;
  return cols % columns == 0 && !HasFineCodes(w.type, w.group) ? w.type : WeightType::kF32;
}

// What a kernel is made for.
template <WeightType kType, bool kRounded, bool kOfExperts, int kN>
struct Form {
  static constexpr WeightType T = kType;
  static constexpr bool kRounds = kRounded;  // an activation is one of f16, else two
  static constexpr bool kExperts = kOfExperts;
  static constexpr bool kVectors = T != WeightType::kF32;
  static constexpr bool kScaled = IsScaled(T);  // sums have scales
  static constexpr int kTokens = kN,
                       kTiles = kTokens / 16;  // 8 columns each, of a warp's half
  // Vectors of 16 bytes of a stage that a thread reads.
  static constexpr int kVectorColumns = VectorOf<T>::kColumns;
  static constexpr int kMineOfW = kVectors ? kRows * kDepth / kVectorColumns / kThreads : 0;
  static constexpr int kColumnsOfX = 8, kMineOfX = kTokens * kDepth / kColumnsOfX / kThreads;

  // A vector of activations. Where rows are no whole ones, so many numbers of it are there.
  KVC_DEVICE static uint4 Read(const uint16_t* x, int left) {
    if constexpr (kVectors) {
      return *reinterpret_cast<const uint4*>(x);
    } else {
      uint32_t n[8];
      KVC_UNROLL
      for (int j = 0; j < 8; ++j) n[j] = j < left ? x[j] : 0u;
      return {n[0] | n[1] << 16, n[2] | n[3] << 16, n[4] | n[5] << 16, n[6] | n[7] << 16};
    }
  }

  using TileOfW = SplitTile<F16Halves, kRows, kDepth, !kVectors>;
  using TileOfX = SplitTile<F16Halves, kTokens, kDepth, !kRounds>;
};

template <typename F>
struct Stage {
  typename F::TileOfW w;
  typename F::TileOfX x;
  float scale[F::kScaled ? kRows : 4];
};

// What a thread has read for a stage.
template <typename F>
struct Fetched {
  uint4 w[F::kVectors ? F::kMineOfW : 1];
  uint4 x[F::kMineOfX], x_low[F::kRounds ? 1 : F::kMineOfX];
  uint16_t scale;
};

// Where a thread's first vector has its place in a stage, of so many columns each: eight threads that follow
// each other write to as many rows, which meet no bank twice (split_tiles.h).
template <int kColumns>
KVC_DEVICE int RowOf() {
  return ThreadOfBlock() / (8 * kDepth / kColumns) * 8 + ThreadOfBlock() % 8;
}
template <int kColumns>
KVC_DEVICE int ColumnOf() {
  static_assert(kThreads % (8 * kDepth / kColumns) == 0);
  return ThreadOfBlock() / 8 % (kDepth / kColumns) * kColumns;
}

// The matrix and the tokens of a block, and what the thread reads of them next. Rows beyond the last are
// another one again, whose outputs nobody stores: what is read has no conditions but the last columns of
// products that are no whole stages. Addresses are counted on from stage to stage: as sums of what stays the
// same they would take the registers that sums need.
template <typename F>
struct Operands {
  static constexpr int kRowsOfW = kThreads * F::kVectorColumns / kDepth;  // from one vector to the next
  static constexpr int kRowsOfX = kThreads * F::kColumnsOfX / kDepth;
  const Product& p;
  const Part& w;
  TokenTile tokens;
  int32_t row0, first;  // of the part; of the stack that the part may be
  const uint4* w_at = nullptr;
  const uint16_t* x_at = nullptr;
  int32_t w_left = 0, x_left = 0, columns = 0;         // rows and columns from there on
  uint32_t x_row[F::kExperts ? F::kMineOfX : 1] = {};  // of experts: numbers behind x_at
  const uint16_t* scale_at = nullptr;
  int32_t group_left = 0;  // columns of the scale's group

  KVC_DEVICE void Begin() {
    columns = p.cols;
    if constexpr (F::kVectors) {
      const int r = min(RowOf<F::kVectorColumns>(), w.rows - 1 - row0);
      w_left = w.rows - row0 - r;
      w_at = reinterpret_cast<const uint4*>(w.data) + Row(r) * (p.cols / F::kVectorColumns) +
             ColumnOf<F::kVectorColumns>() / F::kVectorColumns;
    }
    static_assert(kThreads == kRows);
    if constexpr (F::kScaled) {
      scale_at = w.scales + Row(min(ThreadOfBlock(), w.rows - 1 - row0)) * (p.cols / w.group);
      group_left = w.group;
    }
    const int t = min(RowOf<F::kColumnsOfX>(), tokens.n - 1);
    x_left = tokens.n - t;
    x_at = p.halves.high + ColumnOf<F::kColumnsOfX>();
    if (!F::kExperts) x_at += tokens.RowOfX(t) * p.cols;
    KVC_UNROLL
    for (int i = 0; F::kExperts && i < F::kMineOfX; ++i)
      x_row[F::kExperts ? i : 0] =
          static_cast<uint32_t>(tokens.RowOfX(min(t + i * kRowsOfX, tokens.n - 1)) * p.cols);
  }
  KVC_DEVICE void Advance() {
    if constexpr (F::kVectors) w_at += kDepth / F::kVectorColumns;
    x_at += kDepth, columns -= kDepth;
    if constexpr (F::kScaled) {
      if ((group_left -= kDepth) == 0) ++scale_at, group_left = w.group;
    }
  }
  KVC_DEVICE uint4 Weights(int i) const {
    if (!F::kScaled && columns <= ColumnOf<F::kVectorColumns>()) return {0, 0, 0, 0};
    return w_at[i * kRowsOfW < w_left ? i * kRowsOfW * (p.cols / F::kVectorColumns) : 0];
  }
  // low: of their low halves.
  template <bool kLow>
  KVC_DEVICE uint4 Activations(int i) const {
    const int left = columns - ColumnOf<F::kColumnsOfX>();
    if (!F::kScaled && left <= 0) return {0, 0, 0, 0};
    const uint16_t* x = kLow ? x_at + (p.halves.low - p.halves.high) : x_at;
    if constexpr (F::kExperts) {
      x += x_row[i];
    } else {
      x += i * kRowsOfX < x_left ? i * kRowsOfX * p.cols : 0;
    }
    return F::Read(x, left);
  }
  KVC_DEVICE int64_t Row(int r) const { return static_cast<int64_t>(first) + row0 + r; }
};

// Reads the next stage.
template <typename F>
KVC_DEVICE void Fetch(Operands<F>* o, Fetched<F>* fetched) {
  KVC_UNROLL
  for (int i = 0; i < F::kMineOfW; ++i) fetched->w[i] = o->Weights(i);
  KVC_UNROLL
  for (int i = 0; i < F::kMineOfX; ++i) {
    fetched->x[i] = o->template Activations<false>(i);
    if constexpr (!F::kRounds) fetched->x_low[i] = o->template Activations<true>(i);
  }
  if (F::kScaled) fetched->scale = *o->scale_at;
  o->Advance();
}

template <typename F>
KVC_DEVICE void PutVectors(const Fetched<F>& fetched, Stage<F>* s) {
  KVC_UNROLL
  for (int i = 0; i < F::kMineOfW; ++i) {
    const uint4& v = fetched.w[i];
    const int r = RowOf<F::kVectorColumns>() + i * Operands<F>::kRowsOfW, c = ColumnOf<F::kVectorColumns>();
    if constexpr (F::T == WeightType::kF16) {
      StoreEight(&s->w.high[r][c], v);
    } else if constexpr (F::kScaled) {
      KVC_UNROLL
      for (int j = 0; j < F::kVectorColumns; j += 8) {
        const uint2 a = UnpackFourHalves<F::T>(v, j / 4), b = UnpackFourHalves<F::T>(v, j / 4 + 1);
        StoreEight(&s->w.high[r][c + j], {a.x, a.y, b.x, b.y});
      }
    }
  }
}

template <typename F>
KVC_DEVICE void PutElements(const Operands<F>& o, int32_t k0, Stage<F>* s) {
  for (int i = ThreadOfBlock(); i < kRows * kDepth / 4; i += kThreads) {
    const int r = i / (kDepth / 4), c = i % (kDepth / 4) * 4;
    float w[4];
    KVC_UNROLL
    for (int j = 0; j < 4; ++j)
      w[j] = o.row0 + r < o.w.rows && k0 + c + j < o.p.cols
                 ? WeightElement(o.w, o.p.cols, static_cast<int32_t>(o.Row(r)), k0 + c + j)
                 : 0.0f;
    s->w.Put(r, c, {w[0], w[1], w[2], w[3]});
  }
}

template <typename F>
KVC_DEVICE void Put(const Operands<F>& o, int32_t k0, const Fetched<F>& fetched, Stage<F>* s) {
  if constexpr (F::kVectors) {
    PutVectors<F>(fetched, s);
  } else {
    PutElements<F>(o, k0, s);
  }
  KVC_UNROLL
  for (int i = 0; i < F::kMineOfX; ++i) {
    const int r = RowOf<F::kColumnsOfX>() + i * Operands<F>::kRowsOfX, c = ColumnOf<F::kColumnsOfX>();
    StoreEight(&s->x.high[r][c], fetched.x[i]);
    if constexpr (!F::kRounds) StoreEight(&s->x.low[r][c], fetched.x_low[i]);
  }
  if (F::kScaled) s->scale[ThreadOfBlock()] = HalfBits(fetched.scale);
}

// Where a lane reads its parts of a warp's factors, in numbers from where a tile begins: one register for
// each.
struct Places {
  int w, x, scale;
};

// Factors of a warp's tokens in 16 columns.
template <typename F>
KVC_DEVICE void ReadTokens(const Stage<F>& s, int place, typename F::TileOfX::Right (&x)[F::kTiles / 2][2]) {
  KVC_UNROLL
  for (int n = 0; n < F::kTiles / 2; ++n) s.x.RightAt(place + 16 * n * F::TileOfX::kWidth, x[n]);
}

// sum += 64 outputs of the warp's tokens.
template <typename F>
KVC_DEVICE void MultiplyUnscaled(const Stage<F>& s, const Places& at, float (&sum)[4][F::kTiles][4]) {
  KVC_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    typename F::TileOfX::Right x[F::kTiles / 2][2];
    ReadTokens<F>(s, at.x + k, x);
    KVC_UNROLL
    for (int m = 0; m < 4; ++m) {
      typename F::TileOfW::Left w;
      s.w.LeftAt(at.w + 16 * m * F::TileOfW::kWidth + k, &w);
      KVC_UNROLL
      for (int n = 0; n < F::kTiles; ++n) MmaSplit<F16Halves>(sum[m][n], w, x[n / 2][n % 2]);
    }
  }
}

// The same with scales: the sums of 32 columns first, of 16 rows at a time.
template <typename F>
KVC_DEVICE void MultiplyScaled(const Stage<F>& s, const Places& at, float (&sum)[4][F::kTiles][4]) {
  typename F::TileOfX::Right x[kDepth / 16][F::kTiles / 2][2];
  KVC_UNROLL
  for (int k = 0; k < kDepth / 16; ++k) ReadTokens<F>(s, at.x + 16 * k, x[k]);
  KVC_UNROLL
  for (int m = 0; m < 4; ++m) {
    const float low = s.scale[at.scale + 16 * m], high = s.scale[at.scale + 16 * m + 8];
    float tile[F::kTiles][4] = {};
    KVC_UNROLL
    for (int k = 0; k < kDepth / 16; ++k) {
      typename F::TileOfW::Left w;
      s.w.LeftAt(at.w + 16 * m * F::TileOfW::kWidth + 16 * k, &w);
      KVC_UNROLL
      for (int n = 0; n < F::kTiles; ++n) MmaSplit<F16Halves>(tile[n], w, x[k][n / 2][n % 2]);
    }
    KVC_UNROLL
    for (int n = 0; n < F::kTiles; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) sum[m][n][i] += tile[n][i] * (i < 2 ? low : high);
    }
  }
}

template <typename F>
__global__ void __launch_bounds__(kThreads, 2) gemm_mma(const Product p) {
  KVC_SHARED(Stage<F>, stages);
  const TokenTile mine = TileOf<F::kExperts>(p, static_cast<int32_t>(blockIdx.y), F::kTokens);
  if (F::kExperts && mine.n <= 0) return;
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  Operands<F> o{p, w, mine, (static_cast<int32_t>(blockIdx.x) - w.first_block) * kRows,
                F::kExperts ? mine.FirstRow(w) : 0};
  o.Begin();
  const int my_row = WarpOfBlock() % 2 * 64, my_token = WarpOfBlock() / 2 * (F::kTokens / 2);
  const bool works = o.row0 + my_row < w.rows && my_token < mine.n;
  const Places at{F::TileOfW::PlaceOfLeft(my_row, 0), F::TileOfX::PlaceOfRight(my_token, 0),
                  my_row + Lane() / 4};
  float sum[4][F::kTiles][4] = {};
  Fetched<F> next;
  Fetch(&o, &next);
  Put(o, 0, next, stages);
  __syncthreads();
  for (int32_t k0 = 0; k0 < p.cols; k0 += kDepth) {
    const int now = k0 / kDepth % 2;
    const bool more = k0 + kDepth < p.cols;
    if (more) Fetch(&o, &next);
    if (works) {
      if constexpr (F::kScaled) {
        MultiplyScaled<F>(stages[now], at, sum);
      } else {
        MultiplyUnscaled<F>(stages[now], at, sum);
      }
    }
    if (more) Put(o, k0 + kDepth, next, stages + 1 - now);
    __syncthreads();
  }
  KVC_UNROLL
  for (int m = 0; m < 4; ++m) {
    KVC_UNROLL
    for (int n = 0; n < F::kTiles; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int32_t row = o.row0 + my_row + 16 * m + Lane() / 4 + i / 2 * 8,
                      token = my_token + ColumnOfProduct(n, i);
        if (row < w.rows && token < mine.n)
          StoreOutput(p, w, o.first, w.first + row, mine.first + token,
                      sum[m][n][i] * p.halves.factors[mine.RowOfX(token)]);
      }
    }
  }
}

template <typename F>
constexpr size_t kSharedOf = 2 * sizeof(Stage<F>);

// Kernels for many tokens: codes have none, whose fragments of all 32 columns are 16 registers more than
// there are.
template <WeightType T, bool kRounds>
constexpr bool kHasMany = kRounds&& T == WeightType::kF16;

template <typename F>
void AddForm(KernelLoader* loader) {
  KVC_ADD(loader, gemm_mma<F>, kSharedOf<F>);
}
template <WeightType T, bool kRounds>
void AddForms(KernelLoader* loader) {
  AddForm<Form<T, kRounds, true, kFewTokens>>(loader);
  AddForm<Form<T, kRounds, false, kFewTokens>>(loader);
  if constexpr (kHasMany<T, kRounds>) AddForm<Form<T, kRounds, false, kManyTokens>>(loader);
}

template <typename F>
cudaError_t LaunchForm(const Product& p, int32_t blocks, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(TileBlocks(p, F::kTokens)));
  return KVC_LAUNCH(gemm_mma<F>, grid, dim3(kThreads), kSharedOf<F>, stream, p);
}
// Whether every multiprocessor has a block of 128 tokens, which moves less through shared memory than two
// of 64.
bool FillsWithMany(const Product& p, int32_t blocks, CudaStream& stream) {
  return int64_t{blocks} * TileBlocks(p, kManyTokens) >= stream.traits().multiprocessors;
}
template <WeightType T, bool kRounds>
cudaError_t LaunchMma(Product p, CudaStream& stream) {
  const int32_t blocks = NumberBlocks(&p, kRows);
  if (p.tiles != nullptr) return LaunchForm<Form<T, kRounds, true, kFewTokens>>(p, blocks, stream);
  if constexpr (kHasMany<T, kRounds>) {
    if (FillsWithMany(p, blocks, stream))
      return LaunchForm<Form<T, kRounds, false, kManyTokens>>(p, blocks, stream);
  }
  return LaunchForm<Form<T, kRounds, false, kFewTokens>>(p, blocks, stream);
}
template <WeightType T>
cudaError_t LaunchType(const Product& p, CudaStream& stream) {
  return p.halves.low == nullptr ? LaunchMma<T, true>(p, stream) : LaunchMma<T, false>(p, stream);
}

// Of what gemm_few has too: f16, and more rows than its block has.
bool HasMany(Product p, WeightType form, CudaStream& stream) {
  return form == WeightType::kF16 && p.halves.low == nullptr && p.tiles == nullptr && p.n > kFewTokens &&
         FillsWithMany(p, NumberBlocks(&p, kRows), stream);
}

}  // namespace

void AddGemmMmaKernels(KernelLoader* loader) {
  AddForms<WeightType::kInt8, true>(loader), AddForms<WeightType::kInt8, false>(loader);
  AddForms<WeightType::kInt4, true>(loader), AddForms<WeightType::kInt4, false>(loader);
  AddForms<WeightType::kF16, true>(loader), AddForms<WeightType::kF16, false>(loader);
  AddForms<WeightType::kF32, true>(loader), AddForms<WeightType::kF32, false>(loader);
}

cudaError_t GemmMma(Product p, const ProductRoom& room, CudaStream& stream) {
  const WeightType form = FormOf(p.parts[0], p.cols);
  for (int i = 1; i < p.n_parts; ++i) {
    if (FormOf(p.parts[i], p.cols) != form)
      return EachPart(p, [&](const Product& one) { return GemmMma(one, room, stream); });
  }
  if (HasGemmFew(p, p.halves.low == nullptr) && !HasMany(p, form, stream)) return GemmFew(p, room, stream);
  switch (form) {
    case WeightType::kInt8:
      return LaunchType<WeightType::kInt8>(p, stream);
    case WeightType::kInt4:
      return LaunchType<WeightType::kInt4>(p, stream);
    case WeightType::kF16:
      return LaunchType<WeightType::kF16>(p, stream);
    case WeightType::kF32:
      return LaunchType<WeightType::kF32>(p, stream);
    case WeightType::kBf16:
    case WeightType::kQ4K:
    case WeightType::kQ6K:
      break;  // no forms: FormOf
  }
  return cudaErrorInvalidValue;
}

cudaError_t Gemm(const Product& p, const ProductRoom& room, CudaStream& stream) {
  for (int i = 0; i < p.n_parts; ++i) {
    if (p.parts[i].type == WeightType::kF32) return GemmF32(p, stream);
  }
  return GemmMma(p, room, stream);
}

}  // namespace kvc::cuda

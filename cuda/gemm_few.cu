// Products of few rows of activations on the tensor cores, up to 255: batches, drafts, short prompts. What
// they take is what their weights take to come, so that weights are on their way all the time, to every
// multiprocessor, and pass through shared memory once. Up to eight rows (from Tuning::few_rows on) have two
// numbers of f16 for each activation, as much work as sixteen of one.
//
// A block makes 128 outputs of 16, 32 or 64 tokens, 64 columns at a time, each of its four warps 32 of the
// outputs. Three stages and more (two of 64 rows with two numbers an activation) are in shared memory, 81 KiB
// in two blocks of an A100 or later each, and come by asynchronous copies: weights as they lie. Those of 16
// bits leave it by ldmatrix. Codes do so too: of the 16 bytes of a row that one gives to four lanes, each
// gets four, which are four codes of eight bits or eight of four. So a lane has other columns than a fragment
// of the tensor cores has them, and takes the same ones of the activations, 8 or 16 bytes of a row at once;
// which is which in a sum is the same to it. Codes of eight bits may have a scale for 16 columns, those of
// four an offset beside it (Q4_K), whose share is that of the sum of activations: the tensor cores make it by
// ones, half as much again for two rows of fragments.
//
// Bytes: outputs * cols weights for every 64 tokens, of which all but the first come from the cache behind;
// of activations tokens * cols for every 128 outputs, from there too. Flops: 2 * outputs * tokens * cols.
// What a multiprocessor does for 16 columns of 128 outputs and 64 tokens of f16: it gets 4 KiB of weights,
// 198 clocks of an H200's memory, multiplies for 99 (by 2650 flops a clock), and moves 4 + 2 KiB into and 4 +
// 8 KiB out of shared memory, 144 clocks. Codes of eight bits: 99, 99 and 112 clocks; of four 50, 99 and 96:
// there, of more than 32 tokens memory is not the limit.
//
// 128 outputs for a block are too few blocks: 4096 outputs are 32, on 132 multiprocessors. So columns are cut
// too, in up to as many parts as make two blocks for each (CutOf): of the 8B shape's down 8 of 28 stages.
// Sums of parts are f32, of 64 tokens 32 KiB for a block, which it writes once and join_few reads once, in
// the order of the parts: the same bits whichever block came first. Who is cut, and how, follows from the
// product and the number of multiprocessors alone.
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRows = kFewOutputs, kRowsOfWarp = 32, kDepth = 64, kLeastStages = 4;
constexpr int kCodesAtOnce = 32;  // columns of two fragments
// Two blocks of 82,944 bytes are what an A100's multiprocessor has; one is what that of a GPU for desktops
// has.
constexpr int kMostShared = 82944;

// Of what a product's columns are cut into: parts of so many stages.
struct Cut {
  int32_t n_parts, stages;
  float* sums;  // [parts, tiles of tokens and outputs, sums of a thread / 4, threads, 4]; n_parts 1: none
};

// What a kernel is made for. kColumns: of one scale.
template <WeightType kType, int kColumns, bool kRounded, bool kOfExperts, int kN>
struct FewForm {
  static constexpr WeightType T = kType;
  static constexpr bool kRounds = kRounded, kExperts = kOfExperts, kCodes = IsScaled(T);
  static constexpr bool kOffsets = HasOffsets(T);
  static constexpr int kGroup = kColumns, kNumbers = kOffsets ? 2 : kCodes ? 1 : 0;  // a group has
  static constexpr int kTokens = kN, kTiles = kN / 8;                                // of 8 tokens
  // Rows in shared memory, in bytes, so that those that are read at once meet no bank twice.
  static constexpr int kWeightBytes = kDepth * 16 / VectorOf<T>::kColumns, kWeightStride = kWeightBytes + 16;
  static constexpr int kPad = T == WeightType::kF16 ? 8 : T == WeightType::kInt8 ? 16 : 32;
  static constexpr int kWidth = kDepth + kPad;
  static constexpr int kScales = kDepth / kGroup;
};

template <int kNumbers, int kScales>
struct FewGroups {
  float of_group[kNumbers][kScales][kRows];  // scales, offsets
};
template <int kScales>
struct FewGroups<0, kScales> {};
template <typename F>
struct FewStage : FewGroups<F::kNumbers, F::kScales> {
  alignas(16) uint8_t w[kRows][F::kWeightStride];
  alignas(16) uint16_t x[F::kRounds ? 1 : 2][F::kTokens][F::kWidth];  // high, low
};

template <typename F>
constexpr int kStages = kMostShared / static_cast<int>(sizeof(FewStage<F>)) < 8
                            ? kMostShared / static_cast<int>(sizeof(FewStage<F>))
                            : 8;

// Where a block's numbers come from.
template <typename F>
struct FewOperands {
  static constexpr int kVectors = F::kWeightBytes / 16;  // of a row
  static constexpr int kRowsAtOnce = kThreads / kVectors, kTokensAtOnce = kThreads / 8;
  const Product& p;
  const Part& w;
  TokenTile tokens;
  int32_t row0, first;                             // of the part; of the stack that the part may be
  int32_t x_row[F::kTokens / kTokensAtOnce] = {};  // numbers of x in front of the thread's rows

  KVC_DEVICE void Begin() {
    KVC_UNROLL
    for (int i = 0; i < F::kTokens / kTokensAtOnce; ++i) {
      const int t = ThreadOfBlock() / 8 + i * kTokensAtOnce;
      x_row[i] = t < tokens.n ? static_cast<int32_t>(tokens.RowOfX(t)) * p.cols : -1;
    }
  }
  KVC_DEVICE int64_t Row(int r) const { return static_cast<int64_t>(first) + row0 + r; }

  // Begins to copy columns from k0 on. What is beyond the last row or column is zero.
  KVC_DEVICE void CopyWeights(int32_t k0, FewStage<F>* s) const {
    const int r = ThreadOfBlock() / kVectors, v = ThreadOfBlock() % kVectors;
    const int64_t row_bytes = static_cast<int64_t>(p.cols) * 16 / VectorOf<F::T>::kColumns;
    const int32_t at = k0 / VectorOf<F::T>::kColumns + v;
    const bool in_row = at * VectorOf<F::T>::kColumns < p.cols;
    const uint8_t* from = w.data + Row(0) * row_bytes + (in_row ? at : 0) * 16;
    KVC_UNROLL
    for (int i = 0; i < kRows; i += kRowsAtOnce) {
      const bool there = in_row && row0 + r + i < w.rows;
      CopyLater<16>(&s->w[r + i][v * 16], from + (there ? r + i : 0) * row_bytes, there);
    }
  }
  KVC_DEVICE void CopyTokens(int32_t k0, FewStage<F>* s) const {
    const int t = ThreadOfBlock() / 8, c = ThreadOfBlock() % 8 * 8;
    const bool in_x = k0 + c < p.cols;
    KVC_UNROLL
    for (int i = 0; i < F::kTokens; i += kTokensAtOnce) {
      const int32_t row = x_row[i / kTokensAtOnce];
      const bool there = in_x && row >= 0;
      const int32_t x = there ? row + k0 + c : 0;
      CopyLater<16>(&s->x[0][t + i][c], p.halves.high + x, there);
      if constexpr (!F::kRounds) CopyLater<16>(&s->x[1][t + i][c], p.halves.low + x, there);
    }
  }
  // What groups of a thread's row have beside their codes, from column k0 on.
  using Scales = GroupBits<F::T>[F::kScales];
  KVC_DEVICE void ReadScales(int32_t k0, Scales& scale) const {
    static_assert(kThreads == kRows);
    const int r = min(ThreadOfBlock(), w.rows - 1 - row0);
    const int64_t from = Row(r) * (p.cols / w.group);
    KVC_UNROLL
    for (int i = 0; i < F::kScales; ++i)
      scale[i] = BitsOfGroup<F::T>(w, from + min(k0 + i * F::kGroup, p.cols - 1) / w.group);
  }
  KVC_DEVICE void PutScales(const Scales& scale, FewStage<F>* s) const {
    KVC_UNROLL
    for (int i = 0; i < F::kScales; ++i) {
      KVC_UNROLL
      for (int x = 0; x < F::kNumbers; ++x)
        s->of_group[x][i][ThreadOfBlock()] = HalfBits(static_cast<uint16_t>(scale[i] >> 16 * x & 0xffffu));
    }
  }
};

template <typename F>
using FewSums = float[2][F::kTiles][4];

// sum += outputs of the warp's rows, weights of 16 bits.
template <typename F>
KVC_DEVICE void MultiplyHalves(const FewStage<F>& s, FewSums<F>& sum) {
  const int r = WarpOfBlock() * kRowsOfWarp + Lane() % 16;
  const int t = Lane() % 8 + Lane() / 16 * 8;
  KVC_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    LeftFactor<false> w[2];
    KVC_UNROLL
    for (int m = 0; m < 2; ++m)
      LoadMatrices<false>(w[m].high,
                          reinterpret_cast<const uint16_t*>(&s.w[r + 16 * m][2 * (k + Lane() / 16 * 8)]));
    KVC_UNROLL
    for (int n = 0; n < F::kTiles; n += 2) {
      uint32_t x[F::kRounds ? 1 : 2][4];
      KVC_UNROLL
      for (int h = 0; h < (F::kRounds ? 1 : 2); ++h)
        LoadMatrices<false>(x[h], &s.x[h][t + 8 * n][k + Lane() / 8 % 2 * 8]);
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        RightFactor<!F::kRounds> right;
        KVC_UNROLL
        for (int i = 0; i < 2; ++i) {
          right.high[i] = x[0][j / 2 * 2 + i];
          if constexpr (!F::kRounds) right.low[i] = x[1][j / 2 * 2 + i];
        }
        MmaSplit<F16Halves>(sum[j % 2][n + j / 2], w[j % 2], right);
      }
    }
  }
}

// The columns of a lane, of 32 from column k on: of eight bits 4 l .. 4 l + 3 of each 16, l its place among
// four, of four bits 8 l .. 8 l + 7. Two fragments of the tensor cores have them.
template <typename F>
KVC_DEVICE void ReadColumns(const uint16_t* row, int k, uint32_t (&first)[2], uint32_t (&second)[2]) {
  if constexpr (F::T == WeightType::kInt8) {
    const uint2 a = *reinterpret_cast<const uint2*>(row + k + Lane() % 4 * 4),
                b = *reinterpret_cast<const uint2*>(row + k + 16 + Lane() % 4 * 4);
    first[0] = a.x, first[1] = a.y, second[0] = b.x, second[1] = b.y;
  } else {
    const uint4 v = *reinterpret_cast<const uint4*>(row + k + Lane() % 4 * 8);
    first[0] = v.x, first[1] = v.y, second[0] = v.z, second[1] = v.w;
  }
}
template <typename F>
KVC_DEVICE void ReadTokens(const FewStage<F>& s, int k, RightFactor<!F::kRounds> (&x)[F::kTiles][2]) {
  KVC_UNROLL
  for (int n = 0; n < F::kTiles; ++n) {
    const int token = 8 * n + Lane() / 4;
    ReadColumns<F>(s.x[0][token], k, x[n][0].high, x[n][1].high);
    if constexpr (!F::kRounds) ReadColumns<F>(s.x[1][token], k, x[n][0].low, x[n][1].low);
  }
}

// The codes of 32 columns from column k on, of the warp's two times 16 rows. A matrix of ldmatrix has eight
// rows and, of eight bits, 16 of the columns, so that four are 16 rows; of four bits 32, and four all rows.
template <typename F>
KVC_DEVICE void ReadCodes(const FewStage<F>& s, int k, LeftFactor<false> (&w)[2][2]) {
  constexpr bool kBytes = F::T == WeightType::kInt8;
  const int row0 = WarpOfBlock() * kRowsOfWarp;
  uint32_t codes[kBytes ? 2 : 1][4];
  KVC_UNROLL
  for (int m = 0; m < (kBytes ? 2 : 1); ++m) {
    const uint8_t* at =
        kBytes ? &s.w[row0 + 16 * m + Lane() % 16][k + Lane() / 16 * 16] : &s.w[row0 + Lane()][k / 2];
    LoadMatrices<false>(codes[m], reinterpret_cast<const uint16_t*>(at));
  }
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int j = 0; j < 2; ++j) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {  // rows, and rows eight further on
        const uint32_t word = kBytes ? codes[kBytes ? m : 0][2 * j + i] : codes[0][2 * m + i];
        const uint2 halves = UnpackFourHalves<F::T>({word, word, word, word}, kBytes ? 0 : j);
        w[m][j].high[i] = halves.x, w[m][j].high[2 + i] = halves.y;
      }
    }
  }
}

// Sums of 32 columns of a lane's two tokens.
template <typename F>
KVC_DEVICE float2 SumTokens(const RightFactor<!F::kRounds> (&x)[2]) {
  constexpr uint32_t kOnes = 0x3c003c00u;  // of f16
  LeftFactor<false> ones;
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) ones.high[i] = kOnes;
  float tile[4] = {};
  KVC_UNROLL
  for (int j = 0; j < 2; ++j) MmaSplit<F16Halves>(tile, ones, x[j]);
  return {tile[0], tile[1]};
}

// What groups of the warp's rows have beside their codes, and of a lane's rows, and rows eight further on.
template <typename F>
struct LaneScales {
  static constexpr int kGroups = kCodesAtOnce / F::kGroup;
  float2 scale[2][kGroups], offset[2];
  KVC_DEVICE LaneScales(const FewStage<F>& s, int k) {
    const int row = WarpOfBlock() * kRowsOfWarp + Lane() / 4;
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      KVC_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const float* at = s.of_group[0][k / F::kGroup + g] + row + 16 * m;
        scale[m][g] = {at[0], at[8]};
      }
      if constexpr (F::kOffsets) {
        const float* at = s.of_group[1][k / F::kGroup] + row + 16 * m;
        offset[m] = {at[0], at[8]};
      }
    }
  }
};

// sum += outputs of 16 rows and eight tokens over 32 columns: sums of a group's columns first, which its
// scale is taken to. Where a scale is that of 16 columns, each of the two fragments has one.
template <typename F>
KVC_DEVICE void AddCodes(const LeftFactor<false> (&w)[2], const RightFactor<!F::kRounds> (&x)[2],
                         const float2 (&scale)[LaneScales<F>::kGroups], float (&sum)[4]) {
  constexpr int kFragments = 2 / LaneScales<F>::kGroups;  // of a group
  KVC_UNROLL
  for (int g = 0; g < LaneScales<F>::kGroups; ++g) {
    float tile[4] = {};
    KVC_UNROLL
    for (int j = 0; j < kFragments; ++j)
      MmaSplit<F16Halves>(tile, w[g * kFragments + j], x[g * kFragments + j]);
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) sum[i] += tile[i] * (i < 2 ? scale[g].x : scale[g].y);
  }
}

// The same as MultiplyHalves, of codes.
template <typename F>
KVC_DEVICE void MultiplyCodes(const FewStage<F>& s, FewSums<F>& sum) {
  KVC_UNROLL
  for (int k = 0; k < kDepth; k += kCodesAtOnce) {
    RightFactor<!F::kRounds> x[F::kTiles][2];
    ReadTokens<F>(s, k, x);
    LeftFactor<false> w[2][2];
    ReadCodes<F>(s, k, w);
    const LaneScales<F> of(s, k);
    KVC_UNROLL
    for (int n = 0; n < F::kTiles; ++n) {
      float2 all = {};
      if constexpr (F::kOffsets) all = SumTokens<F>(x[n]);
      KVC_UNROLL
      for (int m = 0; m < 2; ++m) {
        AddCodes<F>(w[m], x[n], of.scale[m], sum[m][n]);
        KVC_UNROLL
        for (int i = 0; F::kOffsets && i < 4; ++i)
          sum[m][n][i] += (i % 2 == 0 ? all.x : all.y) * (i < 2 ? of.offset[m].x : of.offset[m].y);
      }
    }
  }
}

// Outputs of a thread, at their rows and tokens.
template <typename F>
KVC_DEVICE void StoreSums(const FewOperands<F>& o, const FewSums<F>& sum) {
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int n = 0; n < F::kTiles; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int32_t row = o.row0 + WarpOfBlock() * kRowsOfWarp + 16 * m + Lane() / 4 + i / 2 * 8,
                      token = ColumnOfProduct(n, i);
        if (row < o.w.rows && token < o.tokens.n)
          StoreOutput(o.p, o.w, o.first, o.w.first + row, o.tokens.first + token,
                      sum[m][n][i] * o.p.halves.factors[o.tokens.RowOfX(token)]);
      }
    }
  }
}

// Four sums of a thread of a tile, of one part.
template <int kTokens>
KVC_DEVICE float4* SumsAt(const Cut& cut, int32_t part) {
  const int64_t tiles = static_cast<int64_t>(gridDim.x) * gridDim.y;
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  return reinterpret_cast<float4*>(cut.sums) + (part * tiles + tile) * (kTokens / 4) * kThreads +
         ThreadOfBlock();
}

template <typename F>
KVC_DEVICE void PutSums(const Cut& cut, const FewSums<F>& sum) {
  float4* to = SumsAt<F::kTokens>(cut, static_cast<int32_t>(blockIdx.z));
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int n = 0; n < F::kTiles; ++n)
      to[(m * F::kTiles + n) * kThreads] = {sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]};
  }
}

template <typename F>
__global__ void __launch_bounds__(kThreads, 2) gemm_few(const Product p, const Cut cut) {
  KVC_SHARED(FewStage<F>, stages);
  constexpr int kAhead = kStages<F> - 1;
  static_assert(kAhead > 0);
  // The first weights are on their way before what lies in front has ended. Where nothing begins early each
  // stage is whole as soon as it can be. Which experts there are the kernel in front says.
  constexpr bool kWeightsFirst = kBeginsEarly && !F::kExperts;
  LetNextBegin();
  if constexpr (!kWeightsFirst) WaitForEarlier();
  const TokenTile mine = TileOf<F::kExperts>(p, static_cast<int32_t>(blockIdx.y), F::kTokens);
  if (F::kExperts && mine.n <= 0) return;
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  FewOperands<F> o{p, w, mine, (static_cast<int32_t>(blockIdx.x) - w.first_block) * kRows,
                   F::kExperts ? mine.FirstRow(w) : 0};
  o.Begin();
  const int32_t begin = static_cast<int32_t>(blockIdx.z) * cut.stages,
                n = min(cut.stages, (p.cols + kDepth - 1) / kDepth - begin);
  typename FewOperands<F>::Scales scale = {};
  const auto begin_weights = [&](int i) {
    o.CopyWeights((begin + i) * kDepth, stages + i);
    if constexpr (F::kCodes) {
      o.ReadScales((begin + i) * kDepth, scale);
      o.PutScales(scale, stages + i);
    }
  };
  if constexpr (kWeightsFirst) {
    KVC_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (i < n) begin_weights(i);
    }
    WaitForEarlier();
  }
  KVC_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    if (i < n) {
      if constexpr (!kWeightsFirst) begin_weights(i);
      o.CopyTokens((begin + i) * kDepth, stages + i);
    }
    CloseCopies();
  }
  FewSums<F> sum = {};
  int now = 0, next = kAhead;  // of the stages in shared memory
  for (int32_t i = 0; i < n; ++i) {
    WaitForCopies<kAhead - 1>();
    __syncthreads();
    const bool more = i + kAhead < n;
    if (more) {
      o.CopyWeights((begin + i + kAhead) * kDepth, stages + next);
      o.CopyTokens((begin + i + kAhead) * kDepth, stages + next);
      if constexpr (F::kCodes) o.ReadScales((begin + i + kAhead) * kDepth, scale);
    }
    CloseCopies();
    if constexpr (F::kCodes) {
      MultiplyCodes<F>(stages[now], sum);
      if (more) o.PutScales(scale, stages + next);
    } else {
      MultiplyHalves<F>(stages[now], sum);
    }
    now = now + 1 == kStages<F> ? 0 : now + 1;
    next = next + 1 == kStages<F> ? 0 : next + 1;
  }
  if (cut.n_parts > 1) {
    PutSums<F>(cut, sum);
  } else {
    StoreSums<F>(o, sum);
  }
}

// Sums of a tile's parts, in their order, of 16 outputs of a warp and eight tokens. The grid is that of
// gemm_few but for its parts, in whose place are these.
template <int kTokens>
__global__ void __launch_bounds__(kThreads) join_few(const Product p, const Cut cut) {
  LetNextBegin();
  WaitForEarlier();
  const TokenTile mine = TileOf<false>(p, static_cast<int32_t>(blockIdx.y), kTokens);
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  const int z = static_cast<int>(blockIdx.z), m = z / (kTokens / 8), n = z % (kTokens / 8);
  float sum[4] = {};
  KVC_UNROLL_BY(8)
  for (int32_t part = 0; part < cut.n_parts; ++part) {
    const float4 v = SumsAt<kTokens>(cut, part)[z * kThreads];
    sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
  }
  const int32_t row0 = (static_cast<int32_t>(blockIdx.x) - w.first_block) * kRows +
                       WarpOfBlock() * kRowsOfWarp + 16 * m + Lane() / 4;
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int32_t row = row0 + i / 2 * 8, token = ColumnOfProduct(n, i);
    if (row < w.rows && token < mine.n)
      StoreOutput(p, w, 0, w.first + row, mine.first + token, sum[i] * p.halves.factors[mine.RowOfX(token)]);
  }
}

template <typename F>
constexpr size_t kSharedOf = kStages<F> * sizeof(FewStage<F>);

template <typename F>
void AddForm(KernelLoader* loader) {
  KVC_ADD_STEP(loader, gemm_few<F>, kSharedOf<F>);
}
template <WeightType T, int kGroup, bool kRounds, bool kExperts>
void AddForms(KernelLoader* loader) {
  AddForm<FewForm<T, kGroup, kRounds, kExperts, 16>>(loader);
  AddForm<FewForm<T, kGroup, kRounds, kExperts, 32>>(loader);
  if constexpr (!HasOffsets(T)) AddForm<FewForm<T, kGroup, kRounds, kExperts, 64>>(loader);
}

// Parts of a product of so many tiles, in stages: what a block does one after the other is to be the least,
// its stages and, in stages too, its start and, of parts, what is written and read of sums. All blocks of
// parts run at once.
Cut CutOf(int32_t tiles, int32_t stages, int tokens, const ProductRoom& room, int32_t multiprocessors) {
  constexpr int32_t kStart = 2;
  const int32_t at_once = kFewBlocks * multiprocessors, joins = tokens / 16;
  Cut best{1, stages, room.sums};
  int32_t least = (tiles + at_once - 1) / at_once * (stages + kStart);
  for (int32_t n = 2; n * tiles <= at_once && n * kLeastStages <= stages; ++n) {
    const int32_t of_part = (stages + n - 1) / n;
    const bool fits = int64_t{n} * tiles * kRows * tokens <= room.n_sums;
    if (!fits || of_part + kStart + joins >= least) continue;
    least = of_part + kStart + joins, best.stages = of_part;
    best.n_parts = (stages + of_part - 1) / of_part;  // none is empty
  }
  return best;
}

template <typename F>
cudaError_t LaunchForm(Product p, const ProductRoom& room, CudaStream& stream) {
  const int32_t blocks = NumberBlocks(&p, kRows), tiles = TileBlocks(p, F::kTokens),
                stages = (p.cols + kDepth - 1) / kDepth;
  Cut cut{1, stages, nullptr};
  if (!F::kExperts) cut = CutOf(blocks * tiles, stages, F::kTokens, room, stream.traits().multiprocessors);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles),
                  static_cast<unsigned>(cut.n_parts));
  // What DecodeWeights makes in front is not there before it has ended.
  const bool lies = std::none_of(p.parts, p.parts + p.n_parts, [&](const Part& w) {
    return w.data == reinterpret_cast<const uint8_t*>(room.decoded);
  });
  const cudaError_t e =
      lies ? KVC_LAUNCH_EARLY(gemm_few<F>, grid, dim3(kThreads), kSharedOf<F>, stream, p, cut)
           : KVC_LAUNCH(gemm_few<F>, grid, dim3(kThreads), kSharedOf<F>, stream, p, cut);
  if constexpr (!F::kExperts) {
    if (e == cudaSuccess && cut.n_parts > 1)
      return KVC_LAUNCH_EARLY(join_few<F::kTokens>, dim3(grid.x, grid.y, 2 * F::kTiles), dim3(kThreads), 0,
                              stream, p, cut);
  }
  return e;
}

template <WeightType T, int kGroup, bool kRounds, bool kExperts>
cudaError_t LaunchFew(const Product& p, const ProductRoom& room, CudaStream& stream) {
  const int32_t tokens = FewTokens(p.n);
  if (tokens == 16) return LaunchForm<FewForm<T, kGroup, kRounds, kExperts, 16>>(p, room, stream);
  // With offsets there are no registers for 64 tokens.
  if constexpr (!HasOffsets(T)) {
    if (tokens == 64) return LaunchForm<FewForm<T, kGroup, kRounds, kExperts, 64>>(p, room, stream);
  }
  return LaunchForm<FewForm<T, kGroup, kRounds, kExperts, 32>>(p, room, stream);
}

// Weights as kernels are made for: a type, and the columns of its scale; kF32: they are for none.
struct FewKind {
  WeightType type;
  int32_t group;
  bool operator==(const FewKind& o) const { return type == o.type && group == o.group; }
};
FewKind KindOf(const Part& w, int32_t cols) {
  constexpr FewKind kNone{WeightType::kF32, 0};
  switch (w.type) {
    case WeightType::kF16:
      return cols % VectorOf<WeightType::kF16>::kColumns == 0 ? FewKind{w.type, 32} : kNone;
    case WeightType::kInt8:
      if (cols % 32 == 0 && w.group % 32 == 0) return {w.type, 32};
      return cols % 16 == 0 && w.group % 16 == 0 ? FewKind{w.type, 16} : kNone;
    case WeightType::kInt4:
    case WeightType::kQ4K:
      return cols % 32 == 0 && w.group % 32 == 0 ? FewKind{w.type, 32} : kNone;
    default:
      return kNone;  // HasGemmFew says no
  }
}

// No kernels: of fine codes for more than 16 rows of two numbers, of Q4_K for experts (prepare.cc).
template <WeightType T, int kGroup>
cudaError_t LaunchKind(const Product& p, const ProductRoom& room, CudaStream& stream) {
  if constexpr (!HasOffsets(T)) {
    if (p.tiles != nullptr) return LaunchFew<T, kGroup, true, true>(p, room, stream);
  }
  if (p.halves.low == nullptr) return LaunchFew<T, kGroup, true, false>(p, room, stream);
  if constexpr (HasFineCodes(T, kGroup)) {
    return LaunchForm<FewForm<T, kGroup, false, false, 16>>(p, room, stream);
  } else {
    return LaunchFew<T, kGroup, false, false>(p, room, stream);
  }
}
// Those that LaunchKind names. Of two numbers: up to eight rows, routers, and all with KVC_CUDA_ROUND=0 but
// experts.
template <WeightType T, int kGroup>
void AddKind(KernelLoader* loader) {
  AddForms<T, kGroup, true, false>(loader);
  if constexpr (!HasOffsets(T)) AddForms<T, kGroup, true, true>(loader);
  if constexpr (HasFineCodes(T, kGroup)) {
    AddForm<FewForm<T, kGroup, false, false, 16>>(loader);
  } else {
    AddForms<T, kGroup, false, false>(loader);
  }
}

}  // namespace

void AddGemmFewKernels(KernelLoader* loader) {
  AddKind<WeightType::kF16, 32>(loader), AddKind<WeightType::kInt8, 32>(loader);
  AddKind<WeightType::kInt4, 32>(loader), AddKind<WeightType::kInt8, 16>(loader);
  AddKind<WeightType::kQ4K, 32>(loader);
  KVC_ADD_STEP(loader, join_few<16>, 0), KVC_ADD_STEP(loader, join_few<32>, 0);
  KVC_ADD_STEP(loader, join_few<64>, 0);
}

bool HasGemmFew(const Product& p, bool rounds) {
  const bool experts = p.tiles != nullptr;
  if (p.n > kMostFewRows || (experts && !rounds)) return false;
  for (int i = 0; i < p.n_parts; ++i) {
    const FewKind kind = KindOf(p.parts[i], p.cols);
    if (kind.type == WeightType::kF32 || (experts && HasOffsets(kind.type))) return false;
    if (HasFineCodes(kind.type, kind.group) && !rounds && FewTokens(p.n) > 16) return false;
  }
  return true;
}

cudaError_t GemmFew(const Product& p, const ProductRoom& room, CudaStream& stream) {
  const FewKind kind = KindOf(p.parts[0], p.cols);
  for (int i = 1; i < p.n_parts; ++i) {
    if (!(KindOf(p.parts[i], p.cols) == kind))
      return EachPart(p, [&](const Product& one) { return GemmFew(one, room, stream); });
  }
  switch (kind.type) {
    case WeightType::kInt8:
      return kind.group == 16 ? LaunchKind<WeightType::kInt8, 16>(p, room, stream)
                              : LaunchKind<WeightType::kInt8, 32>(p, room, stream);
    case WeightType::kInt4:
      return LaunchKind<WeightType::kInt4, 32>(p, room, stream);
    case WeightType::kQ4K:
      return LaunchKind<WeightType::kQ4K, 32>(p, room, stream);
    case WeightType::kF16:
      return LaunchKind<WeightType::kF16, 32>(p, room, stream);
    case WeightType::kF32:
    case WeightType::kBf16:
    case WeightType::kQ6K:
      break;  // no kernels: KindOf
  }
  return cudaErrorInvalidValue;
}

}  // namespace kvc::cuda

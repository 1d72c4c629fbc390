// Products with many rows of activations on the tensor cores. A block makes 64 outputs of 64 tokens, 32
// columns at a time; each of its four warps 32 x 32 of them.
//
// The tensor cores multiply bf16. Activations are split into two of them, high + low, 16 bits of mantissa;
// codes of eight and four bits and bf16 weights are one, f16 weights two (so are codes where a group's scale
// changes within 32 columns). Low times low is left out. What is lost is 2^-17 of a product: kept sets and
// logits stay those of f32 sums. Scales of groups are taken to the sums of 32 columns. Flops: 2 * n * rows *
// cols, twice (three times) on the tensor cores.
#include "cuda/launch.h"
#include "cuda/network.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRows = 64, kTokens = 64, kDepth = 32;
constexpr int kStride =
    kDepth + 8;  // 16-bit numbers: rows start 20 words apart, so that fragments meet no bank twice

struct Tiles {
  uint16_t w[2][kRows][kStride];  // high, low
  uint16_t x[2][kTokens][kStride];
  float scale[kRows];
};

KVC_DEVICE void Split(float v, uint16_t* high, uint16_t* low) {
  *high = ToBfBits(v);
  *low = ToBfBits(v - BfBits(*high));
}

// Whether a part's tile holds codes whose scale is one number a row.
KVC_DEVICE bool ScalesLater(const Part& w) { return w.group > 0 && w.group % kDepth == 0; }
// Whether a weight is one bf16.
KVC_DEVICE bool IsOnePart(const Part& w) { return w.type == WeightType::kBf16 || ScalesLater(w); }

// first: row of the stack with which the matrix begins.
KVC_DEVICE void LoadWeights(const Product& p, const Part& w, int32_t first, int32_t row0, int32_t k0,
                            Tiles* s) {
  const bool later = ScalesLater(w), one = IsOnePart(w);
  // Eight neighbours of a row a thread at a time.
  for (int i = ThreadOfBlock(); i < kRows * kDepth / 8; i += kThreads) {
    const int32_t r = i / (kDepth / 8), k = i % (kDepth / 8) * 8, row = first + row0 + r;
    for (int j = 0; j < 8; ++j) {
      float v = 0;
      if (row0 + r < w.rows && k0 + k + j < p.cols) {
        const int32_t c = k0 + k + j;
        if (!later) {
          v = WeightElement(w, p.cols, row, c);
        } else if (w.type == WeightType::kInt8) {
          v = static_cast<float>(static_cast<int8_t>(w.data[static_cast<int64_t>(row) * p.cols + c]));
        } else {
          const uint8_t two = w.data[static_cast<int64_t>(row) * (p.cols / 2) + c / 2];
          v = static_cast<float>(static_cast<int8_t>(two << (c % 2 == 0 ? 4 : 0)) >> 4);
        }
      }
      if (one) {
        s->w[0][r][k + j] = ToBfBits(v);
      } else {
        Split(v, &s->w[0][r][k + j], &s->w[1][r][k + j]);
      }
    }
  }
  for (int r = ThreadOfBlock(); later && r < kRows; r += kThreads)
    s->scale[r] =
        row0 + r < w.rows
            ? HalfBits(w.scales[static_cast<int64_t>(first + row0 + r) * (p.cols / w.group) + k0 / w.group])
            : 0.0f;
}

KVC_DEVICE void LoadTokens(const Product& p, const TokenTile& tile, int32_t k0, Tiles* s) {
  for (int i = ThreadOfBlock(); i < kTokens * kDepth / 4; i += kThreads) {
    const int32_t t = i / (kDepth / 4), k = i % (kDepth / 4) * 4;
    const bool there = t < tile.n;
    const float* x = there ? p.x + tile.RowOfX(t) * p.cols + k0 + k : nullptr;
    for (int j = 0; j < 4; ++j) {
      const float v = there && k0 + k + j < p.cols ? x[j] : 0.0f;
      Split(v, &s->x[0][t][k + j], &s->x[1][t][k + j]);
    }
  }
}

KVC_DEVICE uint32_t PairAt(const uint16_t (*tile)[kStride], int row, int k) {
  uint32_t pair;
  memcpy(&pair, &tile[row][k], sizeof pair);
  return pair;
}

template <bool kExperts>
__global__ void __launch_bounds__(kThreads) gemm_mma(const Product p) {
  KVC_SHARED(Tiles, s);
  const TokenTile mine = TileOf<kExperts>(p, static_cast<int32_t>(blockIdx.y), kTokens);
  if (kExperts && mine.n <= 0) return;
  const Part& w = PartOfBlock(p, static_cast<int32_t>(blockIdx.x));
  const int32_t row0 = (static_cast<int32_t>(blockIdx.x) - w.first_block) * kRows,
                first_row = kExperts ? mine.FirstRow(w) : 0;
  const int my_row = WarpOfBlock() % 2 * 32, my_token = WarpOfBlock() / 2 * 32, u = Lane() / 4,
            v = Lane() % 4;
  const bool later = ScalesLater(w), one = IsOnePart(w);
  float sum[2][4][4] = {};
  for (int32_t k0 = 0; k0 < p.cols; k0 += kDepth) {
    __syncthreads();
    LoadWeights(p, w, first_row, row0, k0, s);
    LoadTokens(p, mine, k0, s);
    __syncthreads();
    float tile[2][4][4] = {};
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t b[2][4][2];  // high and low of the tokens
      for (int half = 0; half < 2; ++half) {
        for (int n = 0; n < 4; ++n) {
          b[half][n][0] = PairAt(s->x[half], my_token + n * 8 + u, k + 2 * v);
          b[half][n][1] = PairAt(s->x[half], my_token + n * 8 + u, k + 2 * v + 8);
        }
      }
      for (int part = 0; part < (one ? 1 : 2); ++part) {
        for (int m = 0; m < 2; ++m) {
          const int r = my_row + m * 16 + u;
          const uint32_t a[4] = {PairAt(s->w[part], r, k + 2 * v), PairAt(s->w[part], r + 8, k + 2 * v),
                                 PairAt(s->w[part], r, k + 2 * v + 8),
                                 PairAt(s->w[part], r + 8, k + 2 * v + 8)};
          for (int n = 0; n < 4; ++n) {
            MmaBf16(tile[m][n], a, b[0][n]);
            if (part == 0) MmaBf16(tile[m][n], a, b[1][n]);
          }
        }
      }
    }
    for (int m = 0; m < 2; ++m) {
      const float low = later ? s->scale[my_row + m * 16 + u] : 1.0f,
                  high = later ? s->scale[my_row + m * 16 + u + 8] : 1.0f;
      for (int n = 0; n < 4; ++n) {
        for (int i = 0; i < 4; ++i) sum[m][n][i] += tile[m][n][i] * (i < 2 ? low : high);
      }
    }
  }
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int n = 0; n < 4; ++n) {
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int32_t row = row0 + my_row + m * 16 + u + i / 2 * 8, token = my_token + n * 8 + 2 * v + i % 2;
        if (row < w.rows && token < mine.n)
          StoreOutput(p, w, first_row, w.first + row, mine.first + token, sum[m][n][i]);
      }
    }
  }
}

}  // namespace

cudaError_t GemmMma(Product p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>(NumberBlocks(&p, kRows)),
                  static_cast<unsigned>(TileBlocks(p, kTokens)));
  if (p.tiles != nullptr) return KVC_LAUNCH(gemm_mma<true>, grid, dim3(kThreads), sizeof(Tiles), stream, p);
  return KVC_LAUNCH(gemm_mma<false>, grid, dim3(kThreads), sizeof(Tiles), stream, p);
}

cudaError_t Gemm(const Product& p, CudaStream& stream) {
  for (int i = 0; i < p.n_parts; ++i) {
    if (p.parts[i].type == WeightType::kF32) return GemmF32(p, stream);
  }
  return GemmMma(p, stream);
}

}  // namespace kvc::cuda

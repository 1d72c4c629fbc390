// Causal attention of a prompt's rows on the tensor cores, one query head and 64 rows a block, 16 of them a
// warp. A warp holds its queries, their logits with a tile of keys and the sum of values in registers
// (queries of more than 128 dimensions are read again for every tile); keys and values are split into shared
// memory, once for all rows of a block. Flops: 4 * rows * entries * D a query head, of which the tensor cores
// make three products each, of halves of f16 (split_tiles.h): queries, keys and values end at twice
// 65504. Of layers of f16 it is one product: queries and exponentials are rounded to it too
// (attend_prompt_half.cu has heads of 64 and 128 numbers). Bytes: keys and values once a block, from the
// second-level cache.
#include <cmath>

#include "cuda/attend_prompt_half.h"
#include "cuda/head_dims.h"
#include "cuda/launch.h"
#include "cuda/layer_params.h"
#include "cuda/split_tiles.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128, kRows = 64;
constexpr float kShare = F16Halves::kShare;

struct AttendParams {
  LayerParams layer;
  const int32_t* base;  // [G]
  int32_t offset, n, n_heads, window;
  float scale, cap;
  const float* q;
  float *out, *lse;  // out null: not wanted
  int64_t lse_stride;
  const float* sinks;  // [H], null: none
};

template <int kDims, bool kHalf>
struct KeysAndValues {
  static constexpr int kKeys = kDims <= 64 ? 64 : kDims <= 128 ? 32 : 16;
  using Tile = SplitTile<FiniteHalves, kKeys, kDims, !kHalf>;
  Tile keys, values;
};

// The two rows of which a lane has numbers: u and u + 8 of its warp.
struct TwoRows {
  int32_t begin[2], end[2];  // what they see
  float m[2], l[2];          // greatest logit; the lane's share of the sum of exponentials
};

// Logits of a tile, which begins with entry key0: scaled, and -infinity where a row does not see the entry.
// first: more for entry 0. seen: of the tile, null: whatever is in range.
template <int kTiles>
KVC_DEVICE void MaskLogits(const AttendParams& a, const TwoRows& rows, int32_t key0, float first,
                           const uint32_t* seen, uint32_t bit, float (&z)[kTiles][4]) {
  KVC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int32_t at = ColumnOfProduct(j, i), key = key0 + at;
      const bool in = key >= rows.begin[i / 2] && key < rows.end[i / 2];
      const bool sees = in && (seen == nullptr || (seen[at] & bit) != 0);
      z[j][i] = sees ? Capped(z[j][i] * a.scale, a.cap) + (key == 0 ? first : 0.0f) : -Infinity();
    }
  }
}

// Logits become exponentials; `acc`, a sum of values with those of earlier tiles, goes with the greatest
// logit.
template <int kTiles, int kSums>
KVC_DEVICE void SoftmaxOfTile(TwoRows* rows, float (&z)[kTiles][4], float (&acc)[kSums][4]) {
  KVC_UNROLL
  for (int half = 0; half < 2; ++half) {
    float top = -Infinity();
    KVC_UNROLL
    for (int j = 0; j < kTiles; ++j) top = fmaxf(top, fmaxf(z[j][2 * half], z[j][2 * half + 1]));
    const float m = rows->m[half], next = fmaxf(m, QuadMax(top)),
                keep = m == -Infinity() ? 0.0f : expf(m - next);
    float sum = 0;
    KVC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVC_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        z[j][i] = z[j][i] == -Infinity() ? 0.0f : expf(z[j][i] - next);
        sum += z[j][i];
      }
    }
    rows->l[half] = rows->l[half] * keep + sum, rows->m[half] = next;
    KVC_UNROLL
    for (int j = 0; j < kSums; ++j) acc[j][2 * half] *= keep, acc[j][2 * half + 1] *= keep;
  }
}

// Exponentials of 16 entries as a left factor.
template <bool kLow>
KVC_DEVICE LeftFactor<kLow> LeftOf(const float (&even)[4], const float (&odd)[4]) {
  LeftFactor<kLow> p;
  KVC_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float(&z)[4] = i / 2 == 0 ? even : odd;
    const float a = kShare * z[i % 2 * 2], b = kShare * z[i % 2 * 2 + 1];
    if constexpr (kLow) {
      SplitPair<F16Halves>(a, b, &p.high[i], &p.low[i]);
    } else {
      p.high[i] = F16Halves::Pair(a, b);
    }
  }
  return p;
}

template <int kDims, bool kHalf>
__global__ void __launch_bounds__(kThreads, 2) attend_prompt(const AttendParams a) {
  using Both = KeysAndValues<kDims, kHalf>;
  using Rows = LayerRows<kHalf>;
  constexpr int kKeys = Both::kKeys, kSteps = kDims / 16;
  KVC_SHARED(Both, tile);
  const int32_t d = a.layer.d, h = static_cast<int32_t>(blockIdx.y), group = a.n_heads / a.layer.n_heads,
                g = h / group;
  // Later rows see more: they go first.
  const int32_t row0 = (static_cast<int32_t>(gridDim.x) - 1 - static_cast<int32_t>(blockIdx.x)) * kRows,
                my_row0 = row0 + WarpOfBlock() * 16;
  const int64_t row_stride = static_cast<int64_t>(a.n_heads) * d,
                first = (static_cast<int64_t>(my_row0) * a.n_heads + h) * d;
  const LeftRows<FiniteHalves, kDims, typename Rows::Beside> queries(
      {a.q + first, row_stride, a.n - my_row0, d});
  const int32_t rows = min(kRows, a.n - row0), first_visible = a.base[g] + a.offset + row0;
  const int32_t block_end = first_visible + rows,
                block_begin = a.window > 0 && first_visible + 1 > a.window ? first_visible + 1 - a.window : 0;
  // A sink has been seen before the first key.
  const float sink = a.sinks != nullptr ? a.sinks[h] : -Infinity();
  TwoRows mine;
  for (int half = 0; half < 2; ++half) {
    mine.end[half] = a.base[g] + a.offset + my_row0 + Lane() / 4 + 8 * half + 1;
    mine.begin[half] = a.window > 0 && mine.end[half] > a.window ? mine.end[half] - a.window : 0;
    mine.end[half] = min(mine.end[half], block_end);
    mine.m[half] = sink, mine.l[half] = sink == -Infinity() || Lane() % 4 > 0 ? 0.0f : 1.0f;
  }
  const uint32_t bit = SeenBit(h, group);
  const int64_t head = g * a.layer.capacity;
  const float first_logit = LogitOfRest(a.layer.positions[head]);
  float acc[kDims / 8][4] = {};
  for (int32_t key0 = block_begin; key0 < block_end; key0 += kKeys) {
    const int32_t n = min(kKeys, block_end - key0);
    __syncthreads();
    tile->keys.template Load<kThreads>(Rows::Of(a.layer.Key(head + key0), n, d));
    if (a.out != nullptr) tile->values.template Load<kThreads>(Rows::Of(a.layer.Value(head + key0), n, d));
    __syncthreads();
    if (key0 >= first_visible + WarpOfBlock() * 16 + 16) continue;  // no row of the warp sees it
    float z[kKeys / 8][4] = {};
    tile->keys.TimesRows(queries, z);
    MaskLogits(a, mine, key0, first_logit, a.layer.has_seen ? a.layer.seen + head + key0 : nullptr, bit, z);
    SoftmaxOfTile(&mine, z, acc);
    if (a.out == nullptr) continue;
    KVC_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      const LeftFactor<!kHalf> p = LeftOf<!kHalf>(z[2 * k], z[2 * k + 1]);
      KVC_UNROLL
      for (int j = 0; j < kSteps; ++j) {
        typename Both::Tile::Right values[2];
        tile->values.ColumnsRight(16 * k, 16 * j, values);
        MmaSplit<F16Halves>(acc[2 * j], p, values[0]);
        MmaSplit<F16Halves>(acc[2 * j + 1], p, values[1]);
      }
    }
  }
  KVC_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float l = QuadSum(mine.l[half]);
    const int32_t r = Lane() / 4 + 8 * half;
    if (my_row0 + r >= a.n) continue;
    const int64_t at = first + r * row_stride;
    const int32_t end = a.out != nullptr ? d : 0;
    KVC_UNROLL
    for (int j = 0; j < kDims / 8; ++j) {
      const int32_t c = ColumnOfProduct(j, 0);
      if (c < end) a.out[at + c] = __fdiv_rn(acc[j][2 * half], kShare * l);
      if (c + 1 < end) a.out[at + c + 1] = __fdiv_rn(acc[j][2 * half + 1], kShare * l);
    }
    if (Lane() % 4 == 0 && a.lse != nullptr) a.lse[h * a.lse_stride + my_row0 + r] = mine.m[half] + logf(l);
  }
}

PromptHalfParams HalfParamsOf(const AttendParams& a) {
  const LayerParams& layer = a.layer;
  return {reinterpret_cast<const uint16_t*>(layer.keys),
          reinterpret_cast<const uint16_t*>(layer.values),
          layer.positions,
          layer.has_seen ? layer.seen : nullptr,
          layer.capacity,
          layer.d,
          layer.n_heads,
          a.n_heads,
          a.base,
          a.offset,
          a.n,
          a.window,
          a.scale,
          a.cap,
          a.q,
          a.out,
          a.lse,
          a.lse_stride,
          a.sinks};
}

template <int kDims, bool kHalf>
cudaError_t Attend(const AttendParams& p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>((p.n + kRows - 1) / kRows), static_cast<unsigned>(p.n_heads));
  return KVC_LAUNCH((attend_prompt<kDims, kHalf>), grid, dim3(kThreads), sizeof(KeysAndValues<kDims, kHalf>),
                    stream, p);
}

}  // namespace

void AddAttendPromptKernels(KernelLoader* loader) {
  ForEachHeadDims([&](auto dims) {
    KVC_ADD(loader, (attend_prompt<dims, false>), sizeof(KeysAndValues<dims, false>));
    KVC_ADD(loader, (attend_prompt<dims, true>), sizeof(KeysAndValues<dims, true>));
  });
}

Status CudaDevice::AttendPrompt(Stream* s, const PromptAttentionArgs& a) {
  KVC_ENTER();
  KVC_RETURN_IF_ERROR(CheckHeadSize(a.layer.head_dim));
  const int32_t heads = a.layer.n_kv_heads;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + Packet::Size<int32_t>(heads)));
  const LayerParams layer = LayerOf(a.layer, &packet);
  const AttendParams p{layer,         packet.Copy(a.rows.base, heads),
                       a.rows.offset, a.rows.n,
                       a.n_heads,     a.window,
                       a.scale,       a.cap,
                       At(a.q),       At(a.out),
                       At(a.lse),     a.lse_stride,
                       At(a.sinks)};
  KVC_RETURN_IF_ERROR(packet.Send());
  if (layer.half && IsForPromptHalf(layer.d))
    return Check(AttendPromptHalf(HalfParamsOf(p), StreamOf(s)), "attention of a prompt");
  const auto attend = [&](auto dims) {
    return layer.half ? Attend<dims, true>(p, StreamOf(s)) : Attend<dims, false>(p, StreamOf(s));
  };
  return Check(ForHeadDims(layer.d, attend), "attention of a prompt");
}

}  // namespace kvc::cuda

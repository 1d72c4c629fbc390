// Causal attention of a prompt's rows over keys and values of f16 on the tensor cores, of heads of 64 and of
// 128 numbers, with sums in f32; attend_prompt.cu does it for all others. Queries and exponentials are
// rounded to f16, as keys and values are: one product each.
//
// A warp has 32 rows, positions that follow each other, of one query head: their queries, their logits with
// 32 entries and their sums of values are in registers, all that a thread has with heads of 128 numbers. The
// four warps of a block are query heads of one group first, and then the next 32 positions: entries come from
// the second-level cache once for 128 rows, and rows of a group end together. 64 entries come by asynchronous
// copies while the 64 before them are multiplied; blocks of a head follow each other, so that its entries
// stay in that cache.
//
// Exponentials are to base 2, and relative to a logit of the row that is within 2^5 of the greatest: sums are
// scaled only where one of a step is greater than that. Times 2^10, so that what f16 loses of an exponential
// is 2^-35 of the greatest. Masks, caps and whatever else is done to logits have code of their own, which
// steps that all rows of a block see whole do not pass.
//
// Of 32 entries of a warp, by arithmetic, in cycles of a quarter of a multiprocessor, for 128 numbers (64):
//   products of 16 x 8 x 16   128 (64): 1,024 (512) on an A100, some 810 (400) on an H200 by mma.sync
//   instructions              400 (310), of which copies and their addresses 40 (35)
//   exponentials              32 a lane: 256
//   shared memory             16 (8) KiB read by matrices, 4 (2) written: 640 (320) for four warps
// so that the tensor cores have the most to do if a second warp of the quarter works while one waits: there
// are 2 (3). With 16 rows a warp matrices would be read twice as often, and with queries in shared memory a
// quarter more, which is nearly all that an H200 has for it. Bytes from the second-level cache: 16 (8) KiB
// for 2.1 (1.0) Mflop, 2.7 TB/s at 350 Tflop/s.
#include "cuda/attend_prompt_half.h"

#include <cmath>

#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kRows = 32;         // of a warp: positions that follow each other, of one query head
constexpr int kStep = 32;         // keys that a warp has logits of at a time
constexpr int kLoad = 64;         // keys that come at a time
constexpr int kRing = 2 * kLoad;  // keys in shared memory
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
// Exponentials are 2^(logit - m + kShare), m of a row the greatest logit, or one that is less by up to
// kSlack.
constexpr float kShare = 10, kSlack = 5;
// kShare - m of a row that has seen nothing: any logit is too great for it, the exponential of -infinity is
// 0.
constexpr float kNothingSeen = 0x1p100f;

struct AttendParams : PromptHalfParams {
  int32_t group;
  float factor;  // what makes a product of query and key, or what MaskLogits makes of it, a logit to base 2
  float before;  // with a cap, or a scale that is not positive, products are multiplied by this first
  float rest;    // what makes LogitOfRest a summand of what `factor` multiplies
  bool has_before;  // no step is plain then
};

// The rows of a warp, and what they see.
struct WarpRows {
  int32_t h, row0, n;       // query head, first row of the prompt, rows; n <= 0: none, behind the last
  int32_t least, most;      // entries that the first and the last of kRows rows see the end of
  int32_t begin, masks_to;  // the first row's first entry; before this one, some rows do not see some
  uint32_t bit;             // of the query head, in masks

  // first_seen: entries before the prompt's first row.
  KVC_DEVICE WarpRows(const AttendParams& a, int32_t first_seen, int32_t unit) {
    h = static_cast<int32_t>(blockIdx.y) * a.group + unit % a.group;
    row0 = unit / a.group * kRows, n = min(kRows, a.n - row0);
    least = first_seen + row0 + 1, most = least - 1 + n;
    begin = BeginOf(a, least), masks_to = BeginOf(a, least + kRows - 1);
    bit = SeenBit(h, a.group);
  }
  KVC_DEVICE static int32_t BeginOf(const AttendParams& a, int32_t end) {
    return a.window > 0 ? max(end - a.window, 0) : 0;
  }
};

// What a block works on.
struct BlockRange {
  // The entries that it sees; of these, counted from `begin` on, the steps that begin in [plain_begin,
  // plain_end): all rows see all of them, and nothing is done to their logits.
  int32_t begin, n, plain_begin, plain_end;
  int64_t head;  // first entry of the KV head

  KVC_DEVICE explicit BlockRange(const AttendParams& a) : head(blockIdx.y * a.capacity) {
    const int32_t first_seen = a.base[blockIdx.y] + a.offset;
    const WarpRows first(a, first_seen, FirstUnit()), last(a, first_seen, FirstUnit() + kWarps - 1);
    const int32_t rest = a.positions[head] < 0 ? 1 : 0;  // more for the logit of entry 0
    begin = first.begin / kLoad * kLoad, n = last.most - begin;
    plain_begin = max(last.masks_to, rest) - begin;
    plain_end = a.has_before || a.seen != nullptr ? 0 : first.least - kStep + 1 - begin;
  }
  // Of blocks, kWarps each. Later rows see more: they go first.
  KVC_DEVICE static int32_t FirstUnit() {
    return (static_cast<int32_t>(gridDim.x) - 1 - static_cast<int32_t>(blockIdx.x)) * kWarps;
  }
};

// Keys and values: entry i of a head in row i % kRing. The pieces of 16 bytes of a row lie in such an order
// that the same piece of eight rows, a matrix, meets no bank twice. Besides, all that there are no registers
// for.
template <int kDims>
struct Shared {
  alignas(16) uint16_t keys[kRing * kDims], values[kRing * kDims];
  alignas(16) BlockRange range;
  alignas(16) WarpRows rows[kWarps];
  uint32_t sees[kThreads];  // SeenOfStep, while there are logits

  KVC_DEVICE const WarpRows& mine() const { return rows[ThreadAgain() / kWarp]; }
};

// Entries [first, first + kLoad), those from `end` on as zeros, the first of them at `entries`: a thread
// brings the same piece of every kStride-th.
template <int kDims>
KVC_DEVICE void LoadEntries(const uint16_t* entries, int32_t first, int32_t end, uint16_t* ring) {
  constexpr int kPieces = kDims / 8, kStride = kThreads / kPieces;
  static_assert(kStride % 8 == 0);  // a thread's rows have their pieces in the same order
  const int thread = ThreadAgain(), row = thread / kPieces;
  const uint16_t* from = entries + thread * 8;
  uint16_t* to = ring + first % kRing * kDims + row * kDims + (thread % kPieces ^ row % 8) * 8;
  if (first + kLoad <= end) {
    KVC_UNROLL
    for (int i = 0; i < kLoad; i += kStride) CopyLater<16>(to + i * kDims, from + i * kDims);
  } else {
    KVC_UNROLL
    for (int i = 0; i < kLoad; i += kStride) {
      const bool there = first + row + i < end;
      CopyLater<16>(to + i * kDims, there ? from + i * kDims : entries, there);
    }
  }
}

// A warp's rows as left factors: [i][k]: rows 16 i .. 16 i + 15, dimensions 16 k .. 16 k + 15.
template <int kDims>
using Queries = uint32_t[2][kDims / 16][4];
template <int kDims>
KVC_DEVICE void LoadQueries(const float* q, int64_t stride, int32_t n, Queries<kDims>& queries) {
  KVC_UNROLL
  for (int i = 0; i < 2; ++i) {
    KVC_UNROLL
    for (int k = 0; k < kDims / 16; ++k) {
      KVC_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int32_t r = 16 * i + RowOfPair(j);
        const float* at = q + r * stride + 16 * k + ColumnOfPair(j);
        const float2 x = r < n ? *reinterpret_cast<const float2*>(at) : float2{0, 0};
        queries[i][k][j] = ToFiniteHalfPair(x.x, x.y);
      }
    }
  }
}

// Of what a lane has numbers: rows u + 8 r of the warp, r = 0 .. 3; of rows 2 i and 2 i + 1 in product i.
using Logits = float[2][kStep / 8][4];

// z = queries * keys of a step. The four matrices of the next product are on their way while one is made.
// first: where the step begins in the ring.
template <int kDims>
KVC_DEVICE void MultiplyKeys(const Queries<kDims>& queries, const uint16_t* keys, int32_t first, Logits& z) {
  constexpr int kProducts = kDims / 16 * (kStep / 16), kSame = kDims / 64;
  const int lane = LaneAgain(),
            at = (first + lane % 8 + lane / 16 * 8) * kDims + (lane / 8 % 2 ^ lane % 8) * 8;
  // Products with the same exchange of pieces follow each other: dimensions 64 apart, then 16 entries apart.
  const auto dims = [](int t) { return t / (2 * kSame) + t / 2 % kSame * 4; };
  const auto load = [&](int t, uint32_t(&m)[4]) {
    LoadMatrices<false>(m, keys + (at ^ dims(t) % 4 * 16) + dims(t) / 4 * 64 + t % 2 * 16 * kDims);
  };
  uint32_t m[2][4];
  load(0, m[0]);
  KVC_UNROLL
  for (int t = 0; t < kProducts; ++t) {
    if (t + 1 < kProducts) load(t + 1, m[(t + 1) % 2]);
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      MmaHalf(z[i][t % 2 * 2], queries[i][dims(t)], {m[t % 2][0], m[t % 2][1]});
      MmaHalf(z[i][t % 2 * 2 + 1], queries[i][dims(t)], {m[t % 2][2], m[t % 2][3]});
    }
  }
}

// sums += p * values of a step; p[i][k]: left factors of its entries 16 k .. 16 k + 15.
template <int kDims>
KVC_DEVICE void AddValues(const uint32_t (&p)[2][kStep / 16][4], const uint16_t* values, int32_t first,
                          float (&sums)[2][kDims / 8][4]) {
  const int lane = LaneAgain(), at = (first + lane % 16) * kDims + (lane / 16 ^ lane % 8) * 8;
  KVC_UNROLL
  for (int k = 0; k < kStep / 16; ++k) {
    KVC_UNROLL
    for (int c = 0; c < kDims / 16; ++c) {
      uint32_t m[4];
      LoadMatrices<true>(m, values + (at ^ c % 4 * 16) + c / 4 * 64 + k * 16 * kDims);
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        MmaHalf(sums[i][2 * c], p[i][k], {m[0], m[1]});
        MmaHalf(sums[i][2 * c + 1], p[i][k], {m[2], m[3]});
      }
    }
  }
}

// The lowest n bits.
KVC_DEVICE uint32_t LowBits(int32_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }

// Which of the step that begins with entry `key` the lane's rows see: bit 8 j + 2 r + c: row r, logit c of
// four of eight entries j. Found before there are logits, while there are registers for it.
KVC_DEVICE uint32_t SeenOfStep(const AttendParams& a, const WarpRows& rows, int64_t head, int32_t key) {
  const int lane = LaneAgain();
  bool shown = key + lane < rows.most;
  if (a.seen != nullptr) shown = shown && (a.seen[head + key + lane] & rows.bit) != 0;
  const uint32_t entries = LanesWhere(shown);
  uint32_t sees = 0;
  KVC_UNROLL
  for (int r = 0; r < 4; ++r) {
    const int32_t end = rows.least + lane / 4 + 8 * r, begin = WarpRows::BeginOf(a, end);
    const uint32_t of_row = entries & LowBits(end - key) & ~LowBits(begin - key);
    sees |= (of_row >> lane % 4 * 2 & 0x03030303u) << (2 * r);
  }
  return sees;
}

// Products: -infinity where a row does not see the entry. What a row gets of entries that it sees is the same
// bits as in a plain step.
KVC_DEVICE void MaskLogits(const AttendParams& a, int64_t head, int32_t key, uint32_t sees, Logits& z) {
  const float first = key == 0 && LaneAgain() % 4 == 0 ? a.rest * LogitOfRest(a.positions[head]) : 0.0f;
  if (a.has_before) {
    KVC_UNROLL
    for (int i = 0; i < kStep; ++i) {
      float& x = z[i / 16][i / 4 % 4][i % 4];
      x = a.cap > 0 ? a.cap * kLog2E * tanhf(x * a.before) : x * a.before;
    }
  }
  KVC_UNROLL
  for (int j = 0; j < kStep / 8; ++j) {
    KVC_UNROLL
    for (int i = 0; i < 8; ++i) {  // 2 r + c
      float& x = z[i / 4][j][i % 4];
      if (j == 0 && i % 2 == 0) x += first;
      if ((sees >> (8 * j + i) & 1) == 0) x = -Infinity();
    }
  }
}

// The running softmax of the lane's rows: kShare less the logit that exponentials are relative to, and the
// lane's share of their sum.
struct Softmax {
  float shift[4], l[4];
};

// Where a row's logits are too great for what exponentials are relative to: the greatest of them from here
// on.
template <int kSums>
KVC_DEVICE void Raise(float factor, const float (&top)[4], Softmax* s, float (&sums)[2][kSums][4]) {
  KVC_UNROLL
  for (int r = 0; r < 4; ++r) {
    const float greatest = QuadMax(top[r]), shift = s->shift[r];
    const bool raises = fmaf(greatest, factor, shift) > kShare + kSlack;
    const float next = raises ? kShare - greatest * factor : shift,
                keep = raises ? PowerOfTwo(next - shift) : 1.0f;
    s->shift[r] = next, s->l[r] *= keep;
    KVC_UNROLL
    for (int j = 0; j < kSums; ++j) sums[r / 2][j][r % 2 * 2] *= keep, sums[r / 2][j][r % 2 * 2 + 1] *= keep;
  }
}

// Logits, times `factor`, become exponentials, as left factors. What their sum takes is not what f16 rounds:
// lse is exact, and what is lost of the products does not add up.
template <int kSums>
KVC_DEVICE void AddExponentials(float factor, const Logits& z, Softmax* s, float (&sums)[2][kSums][4],
                                uint32_t (&p)[2][kStep / 16][4]) {
  float top[4];
  bool raises = false;
  KVC_UNROLL
  for (int r = 0; r < 4; ++r) {
    top[r] = fmaxf(z[r / 2][0][r % 2 * 2], z[r / 2][0][r % 2 * 2 + 1]);
    KVC_UNROLL
    for (int j = 1; j < kStep / 8; ++j)
      top[r] = fmaxf(top[r], fmaxf(z[r / 2][j][r % 2 * 2], z[r / 2][j][r % 2 * 2 + 1]));
    raises = raises || fmaf(top[r], factor, s->shift[r]) > kShare + kSlack;
  }
  if (OnAnyLane(raises)) Raise(factor, top, s, sums);
  KVC_UNROLL
  for (int i = 0; i < 2; ++i) {
    KVC_UNROLL
    for (int j = 0; j < kStep / 8; ++j) {
      KVC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int r = 2 * i + half;
        const float e0 = PowerOfTwo(fmaf(z[i][j][2 * half], factor, s->shift[r])),
                    e1 = PowerOfTwo(fmaf(z[i][j][2 * half + 1], factor, s->shift[r]));
        s->l[r] += e0 + e1;
        p[i][j / 2][j % 2 * 2 + half] = ToHalfPair(e0, e1);
      }
    }
  }
}

template <int kDims>
KVC_DEVICE void Begin(const AttendParams& a, const WarpRows& rows, Queries<kDims>& queries,
                      Softmax* softmax) {
  const int64_t first = (static_cast<int64_t>(rows.row0) * a.n_heads + rows.h) * kDims;
  LoadQueries<kDims>(a.q + first, static_cast<int64_t>(a.n_heads) * kDims, rows.n, queries);
  // A sink has been seen before the first key.
  const float sink = a.sinks != nullptr && rows.n > 0 ? a.sinks[rows.h] : -Infinity();
  KVC_UNROLL
  for (int r = 0; r < 4; ++r) {
    softmax->shift[r] = sink == -Infinity() ? kNothingSeen : kShare - kLog2E * sink;
    softmax->l[r] = sink == -Infinity() || Lane() % 4 > 0 ? 0.0f : PowerOfTwo(kShare);
  }
}

template <int kDims>
KVC_DEVICE void WriteRows(const AttendParams& a, const WarpRows& rows, const Softmax& softmax,
                          const float (&sums)[2][kDims / 8][4]) {
  const int lane = LaneAgain();
  KVC_UNROLL
  for (int r = 0; r < 4; ++r) {
    const float l = QuadSum(softmax.l[r]), share = __fdiv_rn(1.0f, l);
    const int32_t row = lane / 4 + 8 * r;
    if (row >= rows.n) continue;
    if (lane % 4 == 0 && a.lse != nullptr)
      a.lse[rows.h * a.lse_stride + rows.row0 + row] = logf(l) - kLn2 * softmax.shift[r];
    if (a.out == nullptr) continue;
    float* out = a.out + (static_cast<int64_t>(rows.row0 + row) * a.n_heads + rows.h) * kDims + lane % 4 * 2;
    KVC_UNROLL
    for (int j = 0; j < kDims / 8; ++j)
      *reinterpret_cast<float2*>(out + 8 * j) = {sums[r / 2][j][r % 2 * 2] * share,
                                                 sums[r / 2][j][r % 2 * 2 + 1] * share};
  }
}

template <int kDims>
__global__ void __launch_bounds__(kThreads, kDims == 64 ? 3 : 2) attend_prompt_half(const AttendParams a) {
  KVC_SHARED(Shared<kDims>, s);
  if (ThreadOfBlock() == 0) s->range = BlockRange(a);
  if (Lane() == 0)
    s->rows[WarpOfBlock()] =
        WarpRows(a, a.base[blockIdx.y] + a.offset, BlockRange::FirstUnit() + WarpOfBlock());
  __syncthreads();
  const auto load = [&](int32_t first) {
    const BlockRange& range = s->range;
    const int64_t at = (range.head + range.begin + first) * kDims;
    LoadEntries<kDims>(a.keys + at, first, range.n, s->keys);
    if (a.out != nullptr) LoadEntries<kDims>(a.values + at, first, range.n, s->values);
    CloseCopies();
  };
  load(0);
  Queries<kDims> queries;
  Softmax softmax;
  Begin<kDims>(a, s->mine(), queries, &softmax);
  float sums[2][kDims / 8][4] = {};
  for (int32_t i = 0;; i += kStep) {
    if (i >= s->range.n) break;
    if (i % kLoad == 0) {
      WaitForCopies<0>();
      __syncthreads();
      if (i + kLoad < s->range.n) load(i + kLoad);
    }
    const bool plain = i >= s->range.plain_begin && i < s->range.plain_end;
    if (!plain) {
      const uint32_t sees = SeenOfStep(a, s->mine(), s->range.head, s->range.begin + i);
      if (!OnAnyLane(sees != 0)) continue;
      s->sees[ThreadAgain()] = sees;
    }
    Logits z = {};
    MultiplyKeys<kDims>(queries, s->keys, i % kRing, z);
    if (!plain) MaskLogits(a, s->range.head, s->range.begin + i, s->sees[ThreadAgain()], z);
    uint32_t p[2][kStep / 16][4];
    AddExponentials(a.factor, z, &softmax, sums, p);
    if (a.out != nullptr) AddValues<kDims>(p, s->values, i % kRing, sums);
  }
  WriteRows<kDims>(a, s->mine(), softmax, sums);
}

template <int kDims>
cudaError_t Attend(const AttendParams& p, CudaStream& stream) {
  const int32_t units = (p.n + kRows - 1) / kRows * p.group;
  const dim3 grid(static_cast<unsigned>((units + kWarps - 1) / kWarps), static_cast<unsigned>(p.n_kv_heads));
  return KVC_LAUNCH(attend_prompt_half<kDims>, grid, dim3(kThreads), sizeof(Shared<kDims>), stream, p);
}

}  // namespace

void AddAttendPromptHalfKernels(KernelLoader* loader) {
  KVC_ADD(loader, attend_prompt_half<64>, sizeof(Shared<64>));
  KVC_ADD(loader, attend_prompt_half<128>, sizeof(Shared<128>));
}

cudaError_t AttendPromptHalf(const PromptHalfParams& params, CudaStream& stream) {
  AttendParams p{params, params.n_heads / params.n_kv_heads, 0, 0, 0, false};
  p.has_before = p.cap > 0 || !(p.scale > 0);
  p.factor = p.has_before ? 1.0f : p.scale * kLog2E;
  p.before = p.cap > 0 ? p.scale / p.cap : p.scale * kLog2E;
  p.rest = kLog2E / p.factor;
  return p.d == 64 ? Attend<64>(p, stream) : Attend<128>(p, stream);
}

}  // namespace kvc::cuda

// The table of kernels. A field is defined by its loop in lib/ops/ref; tests/parity proves every faster
// version. Letters: n rows of tokens, D head size, S keys, g query heads of one KV head. Everything f32
// unless said. Rules for every kernel: allocates nothing, never fails, touches only what its arguments name;
// results depend on the arguments alone, never on how work was split. A null field means: use the reference
// kernel (FillMissing does that).
#pragma once
#include <cstdint>

#include "lib/base/streams.h"
#include "lib/ops/tensor.h"

namespace kvc {

// y[t * y_stride + r] = dot(x[t], w[r]) (+ bias[r]) for t in [0, n), r in [row_begin, row_end).
// Each value depends on x[t] and w[r] alone: bit-equal for any n and any split of the rows.
// Weights with codes multiply int8 activations: xq, xs, sums from quantize_row with group = w->group; integer
// dot per group, then f32 sum over groups in order (dot * (xs * scale)); with q4_k, after the product of each
// group, less (sum of its activations * xs) * its least value. For those types x is not read.
// Weights in panels: row_begin is a multiple of 16. bf16 ones take xb for x where there is one.
struct MatMulArgs {
  const Weight* w;
  const float* x;     // [n, cols], row stride x_stride
  const int8_t* xq;   // [n, cols] dense
  const float* xs;    // [n, cols / group] dense
  const float* bias;  // [rows] or null
  float* y;
  int64_t x_stride, y_stride;
  int32_t n, row_begin, row_end;
  const int32_t* sums = nullptr;  // [n, cols / group] dense: of the codes xq of a group; for panels, q4_k
  Streams streams = Streams::kSeveral;  // how panels of one token are read; results do not depend on it
  const uint16_t* xb = nullptr;  // [n, PairedColumns(cols)] dense: rows as round_row makes them; or null
};
// Columns of a row that is multiplied by pairs: behind an odd number stands a zero.
static inline int32_t PairedColumns(int32_t cols) { return cols + cols % 2; }

// The bit of query head j of a group in masks of who sees an entry. Groups beyond 32 have none (seen is null
// there).
inline uint32_t SeenBit(int32_t j) { return j < 32 ? uint32_t{1} << j : 0; }

// Causal attention of query heads that share a KV head over contiguous keys. Row i (token i of the block)
// sees keys [0, first_visible + i] and, when window > 0, of these only the newest `window`. lse[i] = log sum
// exp of the scaled logits (null: not wanted). Keys t with (seen[t] & seen_bit) == 0 are left out (null:
// none); a row sees at least its own. What a head gets does not depend on how many are with it; pointers are
// those of the first (HeadOf).
struct PrefillAttentionArgs {
  const float* q;  // row i at q + i * q_stride, [D]
  const float* k;  // [S, D] dense
  const float* v;  // [S, D] dense
  float* out;      // row i at out + i * out_stride, [D]; null: only lse is wanted
  float* lse;      // [n_q] or null
  int64_t q_stride, out_stride;
  int32_t n_q, first_visible, d, window;
  float scale;
  const uint32_t* seen = nullptr;  // [S]
  uint32_t seen_bit = 0;
  float cap = 0;  // z = cap * tanh(z / cap) for the scaled logits z; 0: as they are. So below
  // One more logit of every row, which has no value; in lse too. Null: none.
  const float* sink = nullptr;
  int32_t n_heads = 1;
  int64_t lse_stride = 0;  // from head to head
  float first_logit = 0;   // more for key 0, which stands for several; behind the cap
  // The scaled logits of the keys [0, n_kept), which all rows see, row i at kept + i * kept_stride; -inf:
  // left out. Null: not wanted. For one head without a window; whole multiples of kKeptKeys of a row are
  // written.
  float* kept = nullptr;
  int64_t kept_stride = 0;
  int32_t n_kept = 0;
};
constexpr int32_t kKeptKeys = 64;
// Static: files of one instruction set have their own (common.inl.h).
static inline PrefillAttentionArgs HeadOf(const PrefillAttentionArgs& a, int32_t h) {
  PrefillAttentionArgs one = a;
  one.q += int64_t{h} * a.d;
  if (a.out != nullptr) one.out += int64_t{h} * a.d;
  if (a.lse != nullptr) one.lse += h * a.lse_stride;
  if (a.sink != nullptr) one.sink += h;
  one.seen_bit = h < 32 ? a.seen_bit << h : 0;
  one.n_heads = 1;
  return one;
}

// Attention probabilities of some rows of one query head: p[i, t] = softmax over t < visible[i] of gain[i] *
// z, z = scale * q_i.k_t or its cap, 0 for t in [visible[i], S). seen as above.
struct ScoreRowsArgs {
  const float* q;          // row i at q + i * q_stride, [D]
  const float* k;          // [S, D] dense
  const int32_t* visible;  // [n_q], 1 .. S
  const float* gain;       // [n_q] or null (1)
  float* p;                // [n_q, S] with row stride p_stride
  int64_t q_stride, p_stride;
  int32_t n_q, n_keys, d;
  float scale;
  const uint32_t* seen = nullptr;  // [S]
  uint32_t seen_bit = 0;
  float cap = 0;
  const float* sink = nullptr;  // one more logit of every row, times gain[i]; what it gets is nobody's
  float first_logit = 0;        // as above, whatever gain
};

// With p(i, t) = exp(scale * q_i.k_t - lse_factor * lse[i]) for the rows i that see key t, t in [key_begin,
// key_end): column_sums: sums[t] += weight * sum over i of p(i, t); column_maxima: sums[t] = max(sums[t], max
// over i of weight * p(i, t)). Row i sees keys [0, first_visible + i], of these those of seen as above. The
// second pass of methods.md 2.3: n x n never exists.
struct ColumnSumsArgs {
  const float* q;
  const float* k;    // [S, D] dense
  const float* lse;  // [n_q]
  float* sums;       // [S]
  int64_t q_stride;
  int32_t n_q, first_visible, key_begin, key_end, d;
  float scale, weight;
  float cap = 0;
  const uint32_t* seen = nullptr;  // [S]
  uint32_t seen_bit = 0;
  float lse_factor = 1;
  float first_logit = 0;  // more for key 0, behind the cap
};

// Adds n cached entries to the running softmax of the g query heads that read them:
// m = running maximum of the scaled logits (start -inf), l = sum of exp(z - m), acc = sum of exp(z - m) * v.
// Entries with visible[h * visible_stride + slot] == 0 are left out (null: all are seen). logits: z of every
// entry, wanted or null; an entry left out gets -inf.
struct AttendTileArgs {
  // Memory that is worked on next, asked for meanwhile; results do not depend on it.
  struct Next {
    const uint8_t* at = nullptr;
    int64_t bytes = 0;
  };
  const float* q;          // [g, D], rotated
  const void* k;           // [n, D] of `type`
  const void* v;           // the same; with codes of value_type
  const uint8_t* visible;  // [g][visible_stride] or null
  float* logits;           // [g][logits_stride] or null
  float *m, *l, *acc;      // [g], [g], [g, D] or null
  int64_t visible_stride, logits_stride;
  KvType type;
  int32_t n, g, d;
  float scale;
  float cap = 0;
  float first_logit = 0;  // more for entry 0, behind the cap
  Next next_keys{}, next_values{};
  // Codes, where type is int8 or int4: an f16 scale for every `group` elements [n, D / group]. group: a power
  // of two, 16 at least; 0: type is f32, f16 or bf16.
  int32_t group = 0;
  KvType value_type = KvType::kInt8;
  const uint16_t *k_scales = nullptr, *v_scales = nullptr;
};
constexpr int32_t kLeastTileGroup = 16;

struct KernelTable {
  const char* name;
  bool prefers_panels;                // matmul_panels is the faster of the two, and of this table's own
  void (*matmul)(const MatMulArgs&);  // weights in row major
  void (*matmul_panels)(const MatMulArgs&);  // weights in panels
  // Symmetric int8 per group: scale = max|x| / 127 (1 if all zero), code = round half even(x / scale), and
  // the sum of the group's codes. cols % group == 0. A group in which something is no number: NaN, 0 and 0.
  void (*quantize_row)(const float* x, int32_t cols, int32_t group, int8_t* codes, float* scales,
                       int32_t* sums);
  // y = x / sqrt(mean(x^2) + eps) * weight. y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int32_t n, float* y);
  // y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias, bias null: none. y may be x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int32_t n, float* y);
  // In place rotation of one vector [D] by the angles whose cos and sin [D/2] are given.
  void (*rope)(float* x, const float* cos, const float* sin, int32_t d, RopePairing pairing);
  void (*silu_mul)(const float* gate, const float* up, int32_t n,
                   float* y);  // y = gate / (1 + exp(-gate)) * up; y may be gate
  void (*gelu_mul)(const float* gate, const float* up, int32_t n,
                   float* y);  // y = gelu(gate) * up, by tanh; y may be gate
  // With gate cut off above the limit and up at both sides: y = (up + 1) * gate / (1 + exp(-gain * gate)); y
  // may be gate.
  void (*clamped_mul)(const float* gate, const float* up, float gain, float limit, int32_t n, float* y);
  void (*add)(const float* x, int32_t n, float* y);  // y += x
  void (*soft_cap)(float cap, int32_t n, float* x);  // x = cap * tanh(x / cap)
  float (*dot)(const float* a, const float* b, int32_t n);
  void (*axpy)(float a, const float* x, int32_t n, float* y);      // y += a * x
  void (*softmax)(float* x, int32_t n);                            // in place; all -inf gives zeros
  void (*weights)(float most, float factor, int32_t n, float* x);  // x = exp(x - most) * factor; most: finite
  void (*raise)(const float* x, float shift, int32_t n, float* y);  // y = max(y, x - shift)
  // y += exp(z - lse)^2. lse: finite.
  void (*add_squares)(const float* z, float lse, int32_t n, float* y);
  float (*largest_number)(const float* x, int32_t n);  // NaN where one is infinite or NaN
  void (*prefill_attention)(const PrefillAttentionArgs&);
  void (*score_rows)(const ScoreRowsArgs&);
  void (*column_sums)(const ColumnSumsArgs&);
  void (*column_maxima)(const ColumnSumsArgs&);
  void (*attend_tile)(const AttendTileArgs&);
  // Cache vectors: n vectors [n, D] f32 <-> codes [n, CodeBytes] and, of int8 and int4, f16 scales [n, D /
  // group]. A group of those two in which something is no number is read as NaN.
  void (*encode_vectors)(const VectorFormat& format, const float* x, int32_t n, void* codes,
                         uint16_t* scales);
  void (*decode_vectors)(const VectorFormat& format, const void* codes, const uint16_t* scales, int32_t n,
                         float* x);
  // One row of a weight matrix as f32 (embedding).
  void (*weight_row)(const Weight& w, int32_t row, float* out);
  // A block of n keys x [n, D] with one f16 scale per channel: codes [n, KeyCodeBytes], scales [D]. Rules of
  // the scale as in encode_vectors. Decoding takes any rows of a block.
  void (*encode_key_block)(KvType type, const float* x, int32_t n, int32_t d, uint8_t* codes,
                           uint16_t* scales);
  void (*decode_key_block)(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                           float* x);
  // A row for products with bf16 panels that multiply bf16 by bf16 (MatMulArgs::xb): rounded to nearest, ties
  // to even, to out[PairedColumns(cols)]. Null: there are none.
  void (*round_row)(const float* x, int32_t cols, uint16_t* out) = nullptr;
  // Measures, in a fraction of a millisecond, whether this table is faster than what it extends. Null: it is.
  bool (*pays)() = nullptr;
  Streams streams = Streams::kSeveral;  // this processor's choice for MatMulArgs::streams
};

const KernelTable& ReferenceKernels();
// The fastest table this processor can run; KVC_ISA = ref | avx2 | avxvnni | avx512 | avx512vnni |
// avx512bf16 | neon | neondot | neoni8mm in the environment chooses another one (for tests and for reports of
// a wrong result). Every field is set.
const KernelTable& BestKernels();
const char* WantedKernels();  // what KVC_ISA says; null: nothing
// All tables this build has and this processor can run, reference first, fastest last; for parity tests and
// benchmarks.
int RunnableKernels(const KernelTable** tables, int cap);

}  // namespace kvc

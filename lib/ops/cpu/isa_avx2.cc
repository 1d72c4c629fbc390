// AVX2, FMA and F16C (Haswell, Zen and later).
#include "lib/ops/cpu/tables.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_avx2.h"
#include "lib/ops/cpu/simd_x86.h"
// The kernels are written once over the names of the files above.
#include "lib/ops/cpu/common.inl.h"
#include "lib/ops/cpu/elementwise.inl.h"
#include "lib/ops/cpu/matmul_float.inl.h"
#include "lib/ops/cpu/matmul_int.inl.h"
#include "lib/ops/cpu/codec.inl.h"
#include "lib/ops/cpu/attention.inl.h"
#include "lib/ops/cpu/attend_tile.inl.h"

void MatMul(const MatMulArgs& a) {
  const bool codes = a.w->type == WeightType::kInt8 || a.w->type == WeightType::kInt4;
  codes ? MatMulInt(a) : MatMulFloat(a);
}

constexpr KernelTable Table() {
  KernelTable t{};
  t.name = "avx2";
  t.matmul = MatMul;
  t.quantize_row = QuantizeRow;
  t.rms_norm = RmsNorm;
  t.rope = ApplyRope;
  t.silu_mul = SiluMul;
  t.add = AddTo;
  t.dot = Dot;
  t.axpy = Axpy;
  t.softmax = Softmax;
  t.prefill_attention = PrefillAttention;
  t.score_rows = ScoreRows;
  t.column_sums = ColumnSums;
  t.attend_tile = AttendTile;
  t.encode_vectors = EncodeVectors;
  t.decode_vectors = DecodeVectors;
  return t;
}

}  // namespace

extern const KernelTable kAvx2Table = Table();

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kAvx2Table = {};
}  // namespace kvc
#endif

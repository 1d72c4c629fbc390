// Every kernel and their table, over the vector names of the simd_*.h that was included before. Included
// inside the unnamed namespace of an ISA's file.
#include "lib/ops/cpu/common.inl.h"
#include "lib/ops/cpu/elementwise.inl.h"
#include "lib/ops/cpu/matmul_float.inl.h"
#include "lib/ops/cpu/matmul_int.inl.h"
#include "lib/ops/cpu/panels.inl.h"
#include "lib/ops/cpu/panels_float.inl.h"
#include "lib/ops/cpu/panels_int.inl.h"
#include "lib/ops/cpu/panels_block.inl.h"
#include "lib/ops/cpu/matmul_codes.inl.h"
#include "lib/ops/cpu/codec.inl.h"
#include "lib/ops/cpu/attention.inl.h"
#include "lib/ops/cpu/attend_tile.inl.h"

void MatMul(const MatMulArgs& a) { a.w->group > 0 ? MatMulCodes(a) : MatMulFloat(a); }

void MatMulPanels(const MatMulArgs& a) { a.w->group > 0 ? MatMulCodePanels(a) : FloatPanelMatMul(a); }

constexpr KernelTable Table(const char* name) {
  KernelTable t{};
  t.name = name;
  t.matmul = MatMul;
  t.matmul_panels = MatMulPanels;
  t.prefers_panels = true;
  t.quantize_row = QuantizeRow;
  t.rms_norm = RmsNorm;
  t.layer_norm = LayerNorm;
  t.rope = ApplyRope;
  t.silu_mul = SiluMul;
  t.gelu_mul = GeluMul;
  t.clamped_mul = ClampedMul;
  t.add = AddTo;
  t.soft_cap = SoftCap;
  t.dot = Dot;
  t.axpy = Axpy;
  t.softmax = Softmax;
  t.weights = Weights;
  t.raise = Raise;
  t.add_squares = AddSquares;
  t.largest_number = LargestNumber;
  t.prefill_attention = PrefillAttention;
  t.score_rows = ScoreRows;
  t.column_sums = Columns<Fold::kSum>;
  t.column_maxima = Columns<Fold::kMaximum>;
  t.attend_tile = AttendTile;
  t.encode_vectors = EncodeVectors;
  t.decode_vectors = DecodeVectors;
  t.decode_key_block = DecodeKeyBlock;
  return t;
}

// AVX2 with AVX-VNNI (Alder Lake, Zen 5 and later): products of weights with codes by bytes. Written over
// either encoding of the products, so that its test runs on processors that have AVX-512's only.
#include "lib/ops/cpu/tables.h"

#if defined(__AVX2__) && (defined(__AVXVNNI__) || defined(__AVX512VNNI__))
#include <immintrin.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_vnni.h"
#include "lib/ops/cpu/simd_avx2.h"
#include "lib/ops/cpu/simd_x86.h"
// The kernel is written once over the names of the files above.
#include "lib/ops/cpu/common.inl.h"
#include "lib/ops/cpu/matmul_int.inl.h"
#include "lib/ops/cpu/panels.inl.h"
#include "lib/ops/cpu/panels_int.inl.h"
#include "lib/ops/cpu/panels_block.inl.h"
#include "lib/ops/cpu/matmul_codes.inl.h"

void MatMul(const MatMulArgs& a) { a.w->group > 0 ? MatMulCodes(a) : kAvx2Table.matmul(a); }

void MatMulPanels(const MatMulArgs& a) { a.w->group > 0 ? MatMulCodePanels(a) : kAvx2Table.matmul_panels(a); }

constexpr KernelTable Table() {
  KernelTable t{};
  t.name = "avxvnni";
  t.matmul = MatMul;
  t.matmul_panels = MatMulPanels;
  t.prefers_panels = true;
  return t;
}

}  // namespace

extern const KernelTable kAvxVnniTable = Table();

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kAvxVnniTable = {};
}  // namespace kvc
#endif

// Advanced SIMD with products of 8-bit matrices (Armv8.6; Cortex-X2 and A710, Neoverse V1 and N2, Apple M2,
// and later): products of weights with codes, of several tokens two by two.
#include "lib/ops/cpu/tables.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_neon.h"
// The kernel is written once over the names of the file above.
#include "lib/ops/cpu/common.inl.h"
#include "lib/ops/cpu/panels.inl.h"
#include "lib/ops/cpu/panels_int.inl.h"
#include "lib/ops/cpu/panels_block.inl.h"

// Pairs of tokens here; the last of an odd number, as every single one, by dot products.
void MatMulPanels(const MatMulArgs& a) {
  const int32_t paired = a.w->group > 0 ? a.n / 2 * 2 : 0;
  if (paired > 0) {
    MatMulArgs pairs = a;
    pairs.n = paired;
    MatMulCodePanels(pairs);
  }
  if (paired == a.n) return;
  MatMulArgs rest = a;
  rest.n -= paired;
  if (paired > 0) {
    const int64_t groups = a.w->cols / a.w->group;
    rest.xq += int64_t{paired} * a.w->cols, rest.xs += paired * groups, rest.y += paired * a.y_stride;
    if (rest.sums != nullptr) rest.sums += paired * groups;
  }
  kNeonDotTable.matmul_panels(rest);
}

constexpr KernelTable Table() {
  KernelTable t{};
  t.name = "neoni8mm";
  t.matmul_panels = MatMulPanels;
  t.prefers_panels = true;
  return t;
}

}  // namespace

extern const KernelTable kNeonI8mmTable = Table();

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kNeonI8mmTable = {};
}  // namespace kvc
#endif

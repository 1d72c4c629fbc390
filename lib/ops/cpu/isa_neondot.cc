// Advanced SIMD with the dot product instructions of Armv8.2: products of weights with codes.
#include "lib/ops/cpu/tables.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_neon.h"
// The kernel is written once over the names of the file above.
#include "lib/ops/cpu/common.inl.h"
#include "lib/ops/cpu/matmul_int.inl.h"
#include "lib/ops/cpu/panels.inl.h"
#include "lib/ops/cpu/panels_int.inl.h"
#include "lib/ops/cpu/panels_block.inl.h"
#include "lib/ops/cpu/matmul_codes.inl.h"

void MatMul(const MatMulArgs& a) { a.w->group > 0 ? MatMulCodes(a) : kNeonTable.matmul(a); }

void MatMulPanels(const MatMulArgs& a) { a.w->group > 0 ? MatMulCodePanels(a) : kNeonTable.matmul_panels(a); }

constexpr KernelTable Table() {
  KernelTable t{};
  t.name = "neondot";
  t.matmul = MatMul;
  t.matmul_panels = MatMulPanels;
  t.prefers_panels = true;
  return t;
}

}  // namespace

extern const KernelTable kNeonDotTable = Table();

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kNeonDotTable = {};
}  // namespace kvc
#endif

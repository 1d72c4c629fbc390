// AVX-512 with products of bf16: bf16 weights in panels, where the processor is faster with them.
#include "lib/ops/cpu/tables.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#include <immintrin.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_vnni.h"
#include "lib/ops/cpu/simd_avx512.h"
#include "lib/ops/cpu/simd_x86.h"
// The kernel is written once over the names of the files above.
#include "lib/ops/cpu/common.inl.h"
#include "lib/ops/cpu/panels.inl.h"
#include "lib/ops/cpu/panels_float.inl.h"
#include "lib/ops/cpu/panels_pairs.inl.h"

void MatMulPanels(const MatMulArgs& a) {
  const bool pairs = a.w->type == WeightType::kBf16 && a.xb != nullptr;
  pairs ? FloatPanelsOf<PairedBf16>(a) : kAvx512VnniTable.matmul_panels(a);
}

// Twelve products that do not wait for each other, many times over. In assembly, so that what is timed is the
// same in every build.
#define KVC_TIMED_PRODUCTS(product)                                                                    \
  asm volatile(                                                                                        \
      ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12\n"                                             \
      "vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n\n"                                                          \
      ".endr\n"                                                                                        \
      "1:\n"                                                                                           \
      ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n" product                                         \
      " %%zmm12, %%zmm12, %%zmm\\n\n"                                                                  \
      ".endr\n"                                                                                        \
      "dec %0\n"                                                                                       \
      "jnz 1b\n"                                                                                       \
      : "+r"(rounds)                                                                                   \
      :                                                                                                \
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12")

uint64_t ClocksOf(bool pairs) {
  int rounds = 1024;
  const uint64_t start = __rdtsc();
  if (pairs) {
    KVC_TIMED_PRODUCTS("vdpbf16ps");
  } else {
    KVC_TIMED_PRODUCTS("vfmadd231ps");
  }
  return __rdtsc() - start;
}

// Whether a product of pairs takes less than 1.6 times a fused one: 2 would be as much work in as much time,
// what widening costs besides not counted. Others may have the processor meanwhile: the least of some turns.
bool PairsPay() {
  uint64_t least[2] = {~uint64_t{0}, ~uint64_t{0}};
  for (int turn = 0; turn < 24; ++turn) {
    uint64_t& best = least[turn % 2];
    const uint64_t clocks = ClocksOf(turn % 2 == 1);
    best = clocks < best ? clocks : best;
  }
  return least[1] * 5 < least[0] * 8;
}

constexpr KernelTable Table() {
  KernelTable t{};
  t.name = "avx512bf16";
  t.matmul_panels = MatMulPanels;
  t.round_row = RoundRow;
  t.pays = PairsPay;
  t.prefers_panels = true;
  return t;
}

}  // namespace

extern const KernelTable kAvx512Bf16Table = Table();

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kAvx512Bf16Table = {};
}  // namespace kvc
#endif

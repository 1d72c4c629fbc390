// AVX-512 F, BW, DQ, VL (Skylake-X, Zen 4 and later).
#include "lib/ops/cpu/tables.h"

#if defined(__AVX512BW__)
#include <immintrin.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_vnni.h"
#include "lib/ops/cpu/simd_avx512.h"
#include "lib/ops/cpu/simd_x86.h"
// The kernels are written once over the names of the files above.
#include "lib/ops/cpu/all_kernels.inl.h"

}  // namespace

extern const KernelTable kAvx512Table = Table("avx512");

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kAvx512Table = {};
}  // namespace kvc
#endif

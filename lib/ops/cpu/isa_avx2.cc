// AVX2, FMA and F16C (Haswell, Zen and later).
#include "lib/ops/cpu/tables.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_vnni.h"
#include "lib/ops/cpu/simd_avx2.h"
#include "lib/ops/cpu/simd_x86.h"
// The kernels are written once over the names of the files above.
#include "lib/ops/cpu/all_kernels.inl.h"

}  // namespace

extern const KernelTable kAvx2Table = Table("avx2");

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kAvx2Table = {};
}  // namespace kvc
#endif

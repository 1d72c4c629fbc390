// Advanced SIMD: every 64-bit Arm.
#include "lib/ops/cpu/tables.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace kvc {
namespace {

#include "lib/ops/cpu/simd_neon.h"
// The kernels are written once over the names of the file above.
#include "lib/ops/cpu/all_kernels.inl.h"

}  // namespace

extern const KernelTable kNeonTable = Table("neon");

}  // namespace kvc
#else
namespace kvc {
extern const KernelTable kNeonTable = {};
}  // namespace kvc
#endif

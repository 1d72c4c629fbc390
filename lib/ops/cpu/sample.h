// One token from logits (network_ops.h).
#pragma once
#include "lib/base/thread_pool.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/network_ops.h"

namespace kvc::cpu {

// -1 when no logit is a finite number. Logits that are not finite are never picked; of equal logits the lower
// id is the likelier. Work is linear in n whatever the distribution: nothing is sorted.
int32_t SampleToken(const KernelTable& kernels, ThreadPool* pool, const SampleArgs& args);

}  // namespace kvc::cpu

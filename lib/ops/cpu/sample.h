// One token from logits (network_ops.h).
#pragma once
#include "lib/base/thread_pool.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/network_ops.h"

namespace kvc::cpu {

// Of logits [n]; weights [n], where the row draws. -1 when no logit is a finite number. Logits that are not
// finite are never picked; of equal logits the lower id is the likelier. Work is linear in n whatever the
// distribution: nothing is sorted.
int32_t SampleToken(const KernelTable& kernels, ThreadPool* pool, const SampleRow& row, int32_t n,
                    float* weights);

}  // namespace kvc::cpu

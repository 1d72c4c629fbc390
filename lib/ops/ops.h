// Kernels spread over threads: what the upper layers call. Splits are fixed by shape, so results do not
// depend on the number of threads.
#pragma once
#include "lib/base/thread_pool.h"
#include "lib/ops/kernel_table.h"

namespace kvc {

struct OpContext {
  const KernelTable* kernels = nullptr;
  ThreadPool* pool = nullptr;
};

// Bytes of scratch MatMul needs for n rows of `cols` (activations of int8/int4 weights, whose groups have
// kMinWeightGroup columns at least); 64-byte aligned.
int64_t MatMulScratchBytes(int32_t n, int32_t cols);

// y[n, rows] = x[n, cols] * w^T (+ bias). y_stride and x_stride in floats.
void MatMul(const OpContext& ctx, const Weight& w, const float* bias, const float* x, int64_t x_stride,
            int32_t n, float* y, int64_t y_stride, void* scratch);

}  // namespace kvc

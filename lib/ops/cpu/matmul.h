// Products spread over threads. Splits are fixed by shape, so results do not depend on the number of threads.
#pragma once
#include "lib/base/thread_pool.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/network_ops.h"

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

// Every part of a matrix times the same x [n, cols], into outputs of their own: y[i] [n, rows of part i]. x is rounded to
// integers once for parts that share a group size.
void MatMulParts(const OpContext& ctx, const Matrix& m, const float* x, int32_t n, float* const* y, void* scratch);

Weight PartOf(const Matrix& m, int32_t part);

}  // namespace kvc

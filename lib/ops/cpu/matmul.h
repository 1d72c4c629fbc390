// Products spread over threads. What an output is does not depend on how the work was cut.
#pragma once
#include "lib/base/span.h"
#include "lib/base/thread_pool.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/network_ops.h"

namespace kvc {

struct OpContext {
  const KernelTable* kernels = nullptr;
  ThreadPool* pool = nullptr;
};

// Bytes of scratch a product with these kernels needs for n rows of `cols` (activations of weights with
// codes, whose groups have kMinWeightGroup columns at least, or of bf16 ones); 64-byte aligned.
int64_t MatMulScratchBytes(const KernelTable& kernels, int32_t n, int32_t cols);

// y[n, rows] = x[n, cols] * w^T (+ bias). y_stride and x_stride in floats.
void MatMul(const OpContext& ctx, const Weight& w, const float* bias, const float* x, int64_t x_stride,
            int32_t n, float* y, int64_t y_stride, void* scratch);

// A function object that outlives the call it is handed to; may be empty.
template <typename... Args>
class Hook {
 public:
  Hook() = default;
  template <typename F>
  Hook(const F& f)  // NOLINT: converts, as a reference to a function does
      : context_(&f), call_([](const void* c, Args... args) { (*static_cast<const F*>(c))(args...); }) {}
  explicit operator bool() const { return call_ != nullptr; }
  void operator()(Args... args) const {
    if (call_ != nullptr) call_(context_, args...);
  }

 private:
  const void* context_ = nullptr;
  void (*call_)(const void*, Args...) = nullptr;
};

// Outputs [row, row + rows) of tokens [token, token + tokens).
struct OutputTile {
  int32_t row, rows, token, tokens;
};

// Rows [token, token + tokens) of activations, which matrix `matrix` of a stack multiplies.
struct StackSlice {
  int32_t matrix, token, tokens;
};

// A product of every part of a matrix with the same rows of activations, each part to an output of its own.
struct MatrixProduct {
  const Matrix* matrix;
  const float* x;  // [n, cols]
  int32_t n;
  float* y[Matrix::kMaxParts];  // [n, rows of part i]
  // Of a stack: which of its matrices multiplies which rows, together all of them. Empty: the only one, all.
  Span<const StackSlice> slices;
  // Makes row i of x, called once for each, on any thread; then the row is rounded where the weights have
  // codes, or are bf16 in panels and the kernels round for those.
  Hook<int64_t> make_row;
  // What follows where outputs were just written; sees every output once. aligned: all parts have the same
  // rows, and those of a tile are complete in all of them.
  Hook<const OutputTile&> finish;
  bool aligned = false;
  bool exact = false;  // rows are not rounded for weights that can do without
  void* scratch = nullptr;
};
void Multiply(const OpContext& ctx, const MatrixProduct& product);

Weight PartOf(const Matrix& m, int32_t part);  // of a stack: all of it

}  // namespace kvc

#include "lib/ops/cpu/matmul.h"

#include "lib/ops/cpu/raw.h"

#include "lib/base/limits.h"

namespace kvc {
namespace {

// Rows of a task: a multiple of every kernel's row block, and small enough that its weights stay in the
// second-level cache while the tokens pass by.
constexpr int32_t kRowTile = 64, kMinRowTile = 32;
constexpr int32_t kEnoughTasks = 16;  // row tiles are halved to reach it
// Tokens of a task. Their activations are read once per task, the task's weights once per token tile.
constexpr int32_t kTokenTile = 128;
// A task below this many products costs less than handing it to a thread.
constexpr int64_t kMinTask = 32 * 1024;

int64_t Align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

bool HasCodes(const Weight& w) { return w.type == WeightType::kInt8 || w.type == WeightType::kInt4; }

struct Task {
  const OpContext* ctx;
  MatMulArgs args;
  int32_t row_tile, n_token_tiles;

  // Neighbouring items share their weights.
  void Do(int64_t item) const {
    MatMulArgs a = args;
    const int32_t token = static_cast<int32_t>(item % n_token_tiles) * kTokenTile;
    a.row_begin = static_cast<int32_t>(item / n_token_tiles) * row_tile;
    a.row_end = a.row_begin + row_tile < a.w->rows ? a.row_begin + row_tile : a.w->rows;
    a.n = args.n - token < kTokenTile ? args.n - token : kTokenTile;
    if (a.xq == nullptr) {
      a.x += token * a.x_stride;
    } else {
      a.xq += int64_t{token} * a.w->cols;
      a.xs += int64_t{token} * (a.w->cols / a.w->group);
    }
    a.y += token * a.y_stride;
    ctx->kernels->matmul(a);
  }
};

void QuantizeRows(const OpContext& ctx, const Weight& w, const float* x, int64_t x_stride, int32_t n,
                  int8_t* codes, float* scales) {
  const int64_t groups = w.cols / w.group;
  auto one = [&](int64_t t, int) {
    ctx.kernels->quantize_row(x + t * x_stride, w.cols, w.group, codes + t * w.cols, scales + t * groups);
  };
  if (n * int64_t{w.cols} >= kMinTask) return ctx.pool->ParallelFor(n, one);
  for (int32_t t = 0; t < n; ++t) one(t, 0);
}

}  // namespace

int64_t MatMulScratchBytes(int32_t n, int32_t cols) {
  return Align64(int64_t{n} * cols) + Align64(int64_t{n} * (cols / kMinWeightGroup) * 4);
}

namespace {

// x as MatMulArgs wants it for w: rounded into scratch where w has codes.
MatMulArgs Activations(const OpContext& ctx, const Weight& w, const float* x, int64_t x_stride, int32_t n, void* scratch) {
  MatMulArgs a{};
  a.x = x, a.x_stride = x_stride, a.n = n;
  if (!HasCodes(w)) return a;
  assert(w.group >= kMinWeightGroup && w.cols % w.group == 0 && scratch != nullptr);
  int8_t* codes = static_cast<int8_t*>(scratch);
  float* scales = reinterpret_cast<float*>(codes + Align64(int64_t{n} * w.cols));
  QuantizeRows(ctx, w, x, x_stride, n, codes, scales);
  a.xq = codes, a.xs = scales;
  return a;
}

void Multiply(const OpContext& ctx, const Weight& w, const float* bias, const MatMulArgs& x, float* y, int64_t y_stride) {
  const int32_t n = x.n;
  Task task{&ctx, x, kRowTile, (n + kTokenTile - 1) / kTokenTile};
  MatMulArgs& a = task.args;
  a.w = &w, a.bias = bias, a.y = y, a.y_stride = y_stride;
  const int64_t row_products = int64_t{w.cols} * (n < kTokenTile ? n : kTokenTile);
  const auto count = [&] {
    return int64_t{(w.rows + task.row_tile - 1) / task.row_tile} * task.n_token_tiles;
  };
  while (task.row_tile > kMinRowTile && count() < kEnoughTasks &&
         task.row_tile / 2 * row_products >= kMinTask) {
    task.row_tile /= 2;
  }
  const int64_t items = count();
  auto one = [&task](int64_t item, int) { task.Do(item); };
  if (w.rows * row_products < kMinTask) {
    for (int64_t i = 0; i < items; ++i) one(i, 0);
  } else {
    ctx.pool->ParallelFor(items, one);
  }
}

}  // namespace

void MatMul(const OpContext& ctx, const Weight& w, const float* bias, const float* x, int64_t x_stride,
            int32_t n, float* y, int64_t y_stride, void* scratch) {
  if (n <= 0 || w.rows <= 0) return;
  Multiply(ctx, w, bias, Activations(ctx, w, x, x_stride, n, scratch), y, y_stride);
}

Weight PartOf(const Matrix& m, int32_t part) {
  const Matrix::Part& p = m.parts[part];
  Weight w;
  w.type = p.type, w.rows = p.rows, w.cols = m.cols, w.group = p.group;
  w.data = Raw(p.data), w.scales = Raw(p.scales);
  return w;
}

void MatMulParts(const OpContext& ctx, const Matrix& m, const float* x, int32_t n, float* const* y, void* scratch) {
  MatMulArgs rounded{};
  int32_t group = 0;
  for (int32_t i = 0; i < m.n_parts; ++i) {
    const Weight w = PartOf(m, i);
    if (HasCodes(w) && w.group != group) rounded = Activations(ctx, w, x, w.cols, n, scratch), group = w.group;
    MatMulArgs plain{};
    plain.x = x, plain.x_stride = w.cols, plain.n = n;
    Multiply(ctx, w, Raw(m.parts[i].bias), HasCodes(w) ? rounded : plain, y[i], w.rows);
  }
}

}  // namespace kvc

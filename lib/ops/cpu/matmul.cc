#include "lib/ops/cpu/matmul.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "lib/base/limits.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/weight_panels.h"

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

struct Part {
  Weight w;
  const float* bias;
  float* y;
  int64_t y_stride;
};

// Parts that take the same activations: as they are, or rounded in one way.
class Run {
 public:
  explicit Run(bool rounds_pairs) : rounds_pairs_(rounds_pairs) {}
  Part parts[Matrix::kMaxParts];
  int32_t n_parts = 0, group = 0;  // group 0: no part has codes
  bool pairs = false;              // a part takes rows as round_row makes them
  bool Takes(const Weight& w) const {
    return HasCodes(w.type) ? !pairs && (group == 0 || w.group == group) : !TakesPairs(w) || group == 0;
  }
  void Add(const Part& part) {
    if (HasCodes(part.w.type)) group = part.w.group;
    pairs = pairs || TakesPairs(part.w);
    parts[n_parts++] = part;
  }

 private:
  bool TakesPairs(const Weight& w) const {
    return rounds_pairs_ && w.type == WeightType::kBf16 && w.layout != WeightLayout::kRowMajor;
  }
  bool rounds_pairs_;
};

// Activations of one run: x, and as its weights take them.
MatMulArgs RoundRows(const OpContext& ctx, const Run& run, const float* x, int64_t stride, int32_t n,
                     const Hook<int64_t>& make_row, void* scratch) {
  MatMulArgs a{};
  a.x = x, a.x_stride = stride, a.n = n, a.streams = ctx.kernels->streams;
  const int32_t cols = run.parts[0].w.cols, group = run.group, groups = group > 0 ? cols / group : 0;
  int8_t* codes = static_cast<int8_t*>(scratch);
  float* scales = reinterpret_cast<float*>(codes + Align64(int64_t{n} * cols));
  int32_t* sums = reinterpret_cast<int32_t*>(scales + int64_t{n} * groups);
  uint16_t* pairs = static_cast<uint16_t*>(scratch);
  assert(scratch != nullptr || (group == 0 && !run.pairs));
  if (group > 0) {
    assert(group >= kMinWeightGroup && cols % group == 0);
    a.xq = codes, a.xs = scales, a.sums = sums;
  } else if (run.pairs) {
    a.xb = pairs;
  } else if (!make_row) {
    return a;
  }
  const auto one = [&](int64_t t, int) {
    make_row(t);
    if (group > 0)
      ctx.kernels->quantize_row(x + t * stride, cols, group, codes + t * cols, scales + t * groups,
                                sums + t * groups);
    if (run.pairs) ctx.kernels->round_row(x + t * stride, cols, pairs + t * PairedColumns(cols));
  };
  if (n > 1 && n * int64_t{cols} >= kMinTask) {
    ctx.pool->ParallelFor(n, one);
  } else {
    for (int32_t t = 0; t < n; ++t) one(t, 0);
  }
  return a;
}

// Rows of activations that one matrix multiplies, the most of them.
int32_t MostTokens(Span<const StackSlice> slices) {
  int32_t most = 0;
  for (const StackSlice& slice : slices) most = std::max(most, slice.tokens);
  return most;
}

// The parts of a run, cut into tiles. Neighbouring items share their weights.
class Tiles {
 public:
  Tiles(const OpContext& ctx, const Run& run, const MatMulArgs& x, Span<const StackSlice> slices,
        bool aligned, const Hook<const OutputTile&>& finish)
      : ctx_(ctx),
        run_(run),
        x_(x),
        all_{0, 0, x.n},
        slices_(slices.empty() ? Span<const StackSlice>(&all_, 1) : slices),
        aligned_(aligned),
        finish_(finish) {}

  void Multiply() {
    const int32_t most = std::min(MostTokens(slices_), kTokenTile);  // tokens of a task
    const int64_t cols = run_.parts[0].w.cols, products = cols * most;
    while (CountTiles() < kEnoughTasks && row_tile_ > kMinRowTile && row_tile_ / 2 * products >= kMinTask)
      row_tile_ /= 2;
    int64_t rows = 0;
    for (int32_t i = 0; i < run_.n_parts; ++i) rows += RowsOf(i);
    const auto one = [this](int64_t item, int) { Item(item); };
    if (rows * cols * std::min(x_.n, kTokenTile) < kMinTask) {
      for (int64_t i = 0; i < items_; ++i) one(i, 0);
    } else {
      ctx_.pool->ParallelFor(items_, one);
    }
  }

 private:
  // Of one matrix of a stack.
  int32_t RowsOf(int32_t part) const {
    const Weight& w = run_.parts[part].w;
    return w.stack == 1 ? w.rows : w.rows / w.stack;
  }
  static int64_t TokenTiles(const StackSlice& slice) { return (slice.tokens + kTokenTile - 1) / kTokenTile; }
  // Once, as an item is often less than a microsecond: what a division takes is seen there.
  int64_t CountTiles() {
    row_tiles_ = 0;
    for (int32_t i = 0; i < (aligned_ ? 1 : run_.n_parts); ++i)
      row_tiles_ += tiles_[i] = (RowsOf(i) + row_tile_ - 1) / row_tile_;
    int64_t tiles = 0;
    for (const StackSlice& slice : slices_) tiles += TokenTiles(slice);
    return items_ = tiles * row_tiles_;
  }

  void Item(int64_t item) const {
    const StackSlice* slice = slices_.begin();
    for (; item >= row_tiles_ * TokenTiles(*slice); ++slice) item -= row_tiles_ * TokenTiles(*slice);
    OutputTile tile;
    int64_t at = item, first = 0;
    if (const int64_t n = TokenTiles(*slice); n > 1) at = item / n, first = item % n * kTokenTile;
    tile.token = slice->token + static_cast<int32_t>(first);
    tile.tokens = std::min(slice->tokens - static_cast<int32_t>(first), kTokenTile);
    int32_t part = 0;
    while (!aligned_ && at >= tiles_[part]) at -= tiles_[part++];
    tile.row = static_cast<int32_t>(at) * row_tile_;
    tile.rows = std::min(RowsOf(part) - tile.row, row_tile_);
    for (int32_t i = part; i < (aligned_ ? run_.n_parts : part + 1); ++i)
      Do(run_.parts[i], slice->matrix, tile);
    finish_(tile);
  }

  void Do(const Part& part, int32_t matrix, const OutputTile& tile) const {
    MatMulArgs a = x_;
    const Weight w = MatrixOf(part.w, matrix);
    a.w = &w, a.bias = part.bias == nullptr ? nullptr : part.bias + int64_t{matrix} * w.rows;
    a.y_stride = part.y_stride, a.y = part.y + tile.token * part.y_stride;
    a.row_begin = tile.row, a.row_end = tile.row + tile.rows, a.n = tile.tokens;
    if (tile.token > 0) {
      a.x += tile.token * a.x_stride;
      if (run_.pairs) a.xb += int64_t{tile.token} * PairedColumns(w.cols);
      if (HasCodes(w.type)) {
        const int64_t groups = w.cols / w.group;
        a.xq += int64_t{tile.token} * w.cols, a.xs += tile.token * groups, a.sums += tile.token * groups;
      }
    }
    w.layout == WeightLayout::kRowMajor ? ctx_.kernels->matmul(a) : ctx_.kernels->matmul_panels(a);
  }

  const OpContext& ctx_;
  const Run& run_;
  const MatMulArgs x_;
  const StackSlice all_;
  const Span<const StackSlice> slices_;
  const bool aligned_;
  const Hook<const OutputTile&>& finish_;
  int32_t row_tile_ = kRowTile;
  int64_t tiles_[Matrix::kMaxParts] = {};  // of rows of each part
  int64_t row_tiles_ = 0, items_ = 0;
};

// What follows a product whose parts were not multiplied together.
void FinishRows(const OpContext& ctx, const MatrixProduct& p) {
  const int32_t rows = p.matrix->parts[0].rows / p.matrix->stack;
  const auto one = [&](int64_t t, int) { p.finish({0, rows, static_cast<int32_t>(t), 1}); };
  if (p.n > 1 && int64_t{p.n} * rows >= kMinTask) return ctx.pool->ParallelFor(p.n, one);
  for (int32_t t = 0; t < p.n; ++t) one(t, 0);
}

}  // namespace

int64_t MatMulScratchBytes(const KernelTable& kernels, int32_t n, int32_t cols) {
  const int64_t codes = Align64(int64_t{n} * cols) + Align64(int64_t{n} * (cols / kMinWeightGroup) * 8);
  const int64_t pairs = kernels.round_row == nullptr ? 0 : Align64(int64_t{n} * PairedColumns(cols) * 2);
  return std::max(codes, pairs);
}

void MatMul(const OpContext& ctx, const Weight& w, const float* bias, const float* x, int64_t x_stride,
            int32_t n, float* y, int64_t y_stride, void* scratch) {
  if (n <= 0 || w.rows <= 0) return;
  Run run(ctx.kernels->round_row != nullptr);
  run.Add({w, bias, y, y_stride});
  const MatMulArgs rounded = RoundRows(ctx, run, x, x_stride, n, {}, scratch);
  Tiles(ctx, run, rounded, {}, false, {}).Multiply();
}

Weight PartOf(const Matrix& m, int32_t part) {
  const Matrix::Part& p = m.parts[part];
  Weight w;
  w.type = p.type, w.layout = p.layout, w.rows = p.rows, w.cols = m.cols, w.group = p.group;
  w.data = Raw(p.data), w.scales = Raw(p.scales), w.stack = m.stack;
  return w;
}

// Most matrices are one run: their parts were quantised alike.
void Multiply(const OpContext& ctx, const MatrixProduct& p) {
  const Matrix& m = *p.matrix;
  if (p.n <= 0) return;
  // Aligned parts take turns, tile by tile, so that what follows finds their outputs in cache. One token's do
  // not: where memory is read somewhere else it pauses until it knows that it streams, which took an eighth
  // of such products (docs/performance.md, "How weights are read").
  const bool whole = p.aligned && (p.slices.empty() ? p.n : MostTokens(p.slices)) == 1;
  Hook<int64_t> make_row = p.make_row;
  bool by_tiles = false;  // what follows
  for (int32_t i = 0; i < m.n_parts;) {
    Run run(ctx.kernels->round_row != nullptr && !p.exact);
    for (; i < m.n_parts && run.Takes(PartOf(m, i)); ++i)
      run.Add({PartOf(m, i), Raw(m.parts[i].bias), p.y[i], m.parts[i].rows / m.stack});
    by_tiles = run.n_parts == m.n_parts && !whole;
    const MatMulArgs x = RoundRows(ctx, run, p.x, m.cols, p.n, make_row, p.scratch);
    make_row = {};
    const Hook<const OutputTile&> none;
    Tiles(ctx, run, x, p.slices, p.aligned && by_tiles, by_tiles ? p.finish : none).Multiply();
  }
  if (!by_tiles && p.finish) FinishRows(ctx, p);
}

}  // namespace kvc

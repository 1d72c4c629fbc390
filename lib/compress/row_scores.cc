// Attention rows of the observed queries over one layer: what window scorers share.
// Flops: 2 * rows * S * D per query head; keys are read once per kRowTile rows.
#include <algorithm>
#include <cstring>

#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

void Rows(const ScoreInput& in, int32_t first, int32_t n, int32_t h, const float* gain, float* p) {
  const int32_t d = in.kv.head_dim, g = h / in.group();
  int32_t visible[ScoreScratch::kRowTile];
  for (int32_t i = 0; i < n; ++i) visible[i] = VisibleKeys(in, first + i, g);
  ScoreRowsArgs args{};
  args.q = in.observed.queries.data() + (int64_t{first} * in.n_heads + h) * d;
  args.q_stride = int64_t{in.n_heads} * d;
  args.k = in.kv.Keys(g);
  args.visible = visible;
  args.gain = gain;
  args.seen = in.kv.Seen(g), args.seen_bit = SeenBit(h % in.group());
  args.p = p, args.p_stride = in.scratch.stride;
  args.n_q = n, args.n_keys = in.kv.len[static_cast<size_t>(g)], args.d = d, args.scale = in.scale;
  in.ops.kernels->score_rows(args);
}

}  // namespace

void OneRow(const ScoreInput& in, int32_t row, int32_t query_head, float* p) {
  Rows(in, row, 1, query_head, nullptr, p);
}

void SumRows(const ScoreInput& in, const RowSums& what, float* out) {
  constexpr int32_t kTile = ScoreScratch::kRowTile;
  const int32_t first = in.observed.n_rows - what.n_rows;
  in.ops.pool->ParallelFor(in.n_heads, [&](int64_t h, int thread) {
    const int32_t n_keys = in.kv.len[static_cast<size_t>(h / in.group())],
                  columns = n_keys - what.n_pool_tail;
    float* rows = in.scratch.rows + thread * kTile * in.scratch.stride;
    float* line = in.scratch.lines + thread * 2 * in.scratch.stride;
    float* sum = out + h * in.scratch.stride;
    std::fill(sum, sum + n_keys, 0.0f);
    for (int32_t r = 0; r < what.n_rows; r += kTile) {
      const int32_t n = std::min(kTile, what.n_rows - r);
      Rows(in, first + r, n, static_cast<int32_t>(h), what.gain == nullptr ? nullptr : what.gain + r, rows);
      for (int32_t i = 0; i < n; ++i) {
        float* p = rows + i * in.scratch.stride;
        if (what.pool_kernel > 1) {
          Pool(p, columns, what.pool_kernel, what.pool_avg ? PoolKind::kAvg : PoolKind::kMax,
               what.shrink_edges, line);
          p = line;
        }
        const float weight = what.weight == nullptr ? 1.0f : what.weight[r + i];
        in.ops.kernels->axpy(weight, p, what.pool_kernel > 1 ? columns : n_keys, sum);
      }
    }
  });
}

void ReduceGroup(const ScoreInput& in, const float* per_head, int32_t g, int32_t n, float* out) {
  const int32_t group = in.group(), kind = in.policy.Int(OptionId::kGqaAgg);  // mean, max, sum
  const float* first = per_head + int64_t{g} * group * in.scratch.stride;
  std::memcpy(out, first, static_cast<size_t>(n) * sizeof(float));
  for (int32_t j = 1; j < group; ++j) {
    const float* other = first + j * in.scratch.stride;
    for (int32_t t = 0; t < n; ++t) out[t] = kind == 1 ? std::max(out[t], other[t]) : out[t] + other[t];
  }
  if (kind != 0 || group == 1) return;
  const float inverse = 1.0f / static_cast<float>(group);
  for (int32_t t = 0; t < n; ++t) out[t] *= inverse;
}

}  // namespace kvc

// SnapKV: mean attention of the last w rows, group mean, pooled. methods.md 2.6.
#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Int(OptionId::kWindow)}; }
int32_t Rows(const Policy& policy, int32_t, int32_t) { return policy.Int(OptionId::kWindow); }

// Pools [0, m) of x into y; the window's own columns get +inf: they stay whatever the order of candidates.
void PoolCandidates(const Policy& policy, const float* x, int32_t m, int32_t n, float* y) {
  const int32_t kernel = policy.Int(OptionId::kKernel);
  if (kernel > 1) {
    Pool(x, m, kernel, policy.Int(OptionId::kPool) == 0 ? PoolKind::kMax : PoolKind::kAvg,
         policy.Int(OptionId::kAvgEdge) == 1, y);
  } else {
    std::memcpy(y, x, static_cast<size_t>(m) * sizeof(float));
  }
  std::fill(y + m, y + n, std::numeric_limits<float>::infinity());
}

Status Score(const ScoreInput& in, ScoreOutput& out) {
  const Policy& policy = in.policy;
  const bool rows_first = policy.Flag(OptionId::kPoolRowsFirst),
             head_first = !rows_first && policy.Flag(OptionId::kPoolBeforeGroup);
  const int32_t w = policy.Int(OptionId::kWindow);
  RowSums what;
  what.n_rows = std::min(in.observed.n_rows, w);
  what.n_pool_tail = w;
  if (rows_first) {
    what.pool_kernel = policy.Int(OptionId::kKernel);
    what.pool_avg = policy.Int(OptionId::kPool) == 1;
    what.shrink_edges = policy.Int(OptionId::kAvgEdge) == 1;
  }
  SumRows(in, what, in.scratch.per_head);
  const float inverse = 1.0f / static_cast<float>(what.n_rows);
  in.ops.pool->ParallelFor(in.kv.n_kv_heads, [&](int64_t g, int thread) {
    const int32_t n = in.kv.len[static_cast<size_t>(g)], m = std::max(n - w, 0);
    float *line = in.scratch.lines + thread * 2 * in.scratch.stride, *scores = out.scores + g * out.stride;
    for (int32_t h = 0; h < in.group(); ++h) {
      float* x = in.scratch.per_head + (g * in.group() + h) * in.scratch.stride;
      for (int32_t t = 0; t < m; ++t) x[t] *= inverse;
      if (!head_first) continue;
      PoolCandidates(policy, x, m, n, line);
      std::memcpy(x, line, static_cast<size_t>(m) * sizeof(float));
    }
    ReduceGroup(in, in.scratch.per_head, static_cast<int32_t>(g), m, line);
    if (head_first || rows_first) {
      std::memcpy(scores, line, static_cast<size_t>(m) * sizeof(float));
      std::fill(scores + m, scores + n, std::numeric_limits<float>::infinity());
    } else {
      PoolCandidates(policy, line, m, n, scores);
    }
  });
  return {};
}

}  // namespace

extern const Scorer kScorerWindow = {
    /*name=*/"window",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/false,
    /*n_aux=*/nullptr,
    /*options=*/
    {OptionId::kWindow, OptionId::kKernel, OptionId::kPool, OptionId::kAvgEdge, OptionId::kGqaAgg,
     OptionId::kPoolBeforeGroup, OptionId::kPoolRowsFirst},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/nullptr,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

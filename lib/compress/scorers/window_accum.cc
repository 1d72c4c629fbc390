// For documents whose questions are not known: what the newest rows look at and what all rows looked at, each
// as a share of its head's total, pooled and added. The window finds what the end of the text recalls, the
// accumulated attention what the text itself kept coming back to. Own composition of the scores of SnapKV and
// H2O (methods.md 2.6, 2.3).
#include <algorithm>
#include <limits>
#include <numeric>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

int32_t AuxCount(const Policy&) { return 1; }  // attention accumulated over all prompts

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Int(OptionId::kWindow)}; }
int32_t Rows(const Policy& policy, int32_t, int32_t) { return policy.Int(OptionId::kWindow); }

// weight * x / sum of x over the candidates [0, m), pooled into y.
void PooledShare(const Policy& policy, double weight, float* x, int32_t m, float* y) {
  const double sum = std::accumulate(x, x + m, 0.0);
  const float inverse = sum > 0 ? static_cast<float>(weight / sum) : 0.0f;
  for (int32_t t = 0; t < m; ++t) x[t] *= inverse;
  Pool(x, m, policy.Int(OptionId::kKernel),
       policy.Int(OptionId::kPool) == 0 ? PoolKind::kMax : PoolKind::kAvg,
       policy.Int(OptionId::kAvgEdge) == 1, y);
}

Status Score(const ScoreInput& in, ScoreOutput& out) {
  const int32_t w = in.policy.Int(OptionId::kWindow);
  RowSums what;
  what.n_rows = std::min(in.observed.n_rows, w);
  SumRows(in, what, in.scratch.per_head);
  in.ops.pool->ParallelFor(in.kv.n_kv_heads, [&](int64_t head, int thread) {
    const int32_t g = static_cast<int32_t>(head), n = in.kv.len[static_cast<size_t>(g)],
                  m = std::max(n - w, 0);
    float *line = in.scratch.lines + thread * 2 * in.scratch.stride, *pooled = line + in.scratch.stride;
    float* scores = out.scores + g * out.stride;
    ReduceGroup(in, in.scratch.per_head, g, m, line);
    PooledShare(in.policy, 1, line, m, scores);
    float* accumulated = out.kv->Aux(0, g);
    in.ops.kernels->add(in.observed.sums.data() + g * in.kv.capacity, n, accumulated);
    std::copy_n(accumulated, m, line);
    PooledShare(in.policy, in.policy.Real(OptionId::kAccumWeight), line, m, pooled);
    in.ops.kernels->add(pooled, m, scores);
    std::fill(scores + m, scores + n, std::numeric_limits<float>::infinity());
  });
  return {};
}

}  // namespace

extern const Scorer kScorerWindowAccum = {
    /*name=*/"window_accum",
    /*needs=*/kNeedsWindow | kNeedsColumnSums,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/
    {OptionId::kWindow, OptionId::kKernel, OptionId::kPool, OptionId::kAvgEdge, OptionId::kGqaAgg,
     OptionId::kAccumWeight},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/nullptr,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

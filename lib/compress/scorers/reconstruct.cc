// For documents whose questions are not known: how far the model looks at an entry when it reads the document
// once more behind the instruction to repeat it. The largest probability that any row of the second reading,
// in any query head of the group, gave the entry: KVzip's score (Kim et al., NeurIPS 2025, arXiv 2505.23416),
// here with the softmax over everything the row sees. What it costs is another prefill whose rows all see the
// whole prompt.
#include <algorithm>
#include <limits>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

int32_t AuxCount(const Policy&) { return 1; }  // the largest probability of all readings so far

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Int(OptionId::kWindow)}; }

Status Score(const ScoreInput& in, ScoreOutput& out) {
  in.ops.pool->ParallelFor(in.kv.n_kv_heads, [&](int64_t head, int) {
    const int32_t g = static_cast<int32_t>(head), n = in.kv.len[static_cast<size_t>(g)],
                  m = std::max(n - in.protect.n_recent, 0);
    float *largest = out.kv->Aux(0, g), *scores = out.scores + g * out.stride;
    const float* maxima = in.observed.maxima.data() + g * in.kv.capacity;
    for (int32_t t = 0; t < n; ++t) largest[t] = std::max(largest[t], maxima[t]);
    Pool(largest, m, in.policy.Int(OptionId::kKernel),
         in.policy.Int(OptionId::kPool) == 0 ? PoolKind::kMax : PoolKind::kAvg,
         in.policy.Int(OptionId::kAvgEdge) == 1, scores);
    std::fill(scores + m, scores + n, std::numeric_limits<float>::infinity());
  });
  return {};
}

}  // namespace

extern const Scorer kScorerReconstruct = {
    /*name=*/"reconstruct",
    /*needs=*/kNeedsReread,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/{OptionId::kWindow, OptionId::kKernel, OptionId::kPool, OptionId::kAvgEdge},
    /*protect=*/Protect,
    /*window_rows=*/nullptr,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/nullptr,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

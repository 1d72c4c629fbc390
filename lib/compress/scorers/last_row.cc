// TOVA: the newest token's attention, mean over all heads of the layer. methods.md 2.4.
#include <algorithm>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Flag(OptionId::kProtectLast) ? 1 : 0}; }
int32_t Rows(const Policy&, int32_t, int32_t) { return 1; }

Status Score(const ScoreInput& in, ScoreOutput& out) {
  RowSums what;
  what.n_rows = 1;
  SumRows(in, what, in.scratch.per_head);
  const int32_t heads = in.n_heads, group = in.group();
  const bool layer_wide = in.policy.Int(OptionId::kTovaScope) == 0;
  for (int32_t g = 0; g < in.kv.n_kv_heads; ++g) {
    const int32_t first = layer_wide ? 0 : g * group, end = layer_wide ? heads : first + group,
                  n = in.kv.len[static_cast<size_t>(g)];
    float* mean = out.scores + g * out.stride;
    std::fill(mean, mean + n, 0.0f);
    for (int32_t h = first; h < end; ++h)
      in.ops.kernels->add(in.scratch.per_head + h * in.scratch.stride, n, mean);
    for (int32_t t = 0; t < n; ++t) mean[t] /= static_cast<float>(end - first);
  }
  return {};
}

void Rank(const DecodeInput& in, float* scores) { std::copy(in.p, in.p + in.n, scores); }

}  // namespace

extern const Scorer kScorerLastRow = {
    /*name=*/"last_row",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/true,
    /*n_aux=*/nullptr,
    /*options=*/{OptionId::kProtectLast, OptionId::kTovaScope},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/Rank,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

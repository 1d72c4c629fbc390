// SpindleKV's first stage: a set per query head from the mean of the window rows. methods.md 2.16 (b), (c).
#include <algorithm>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Int(OptionId::kWindow)}; }
int32_t Rows(const Policy& policy, int32_t, int32_t) { return policy.Int(OptionId::kWindow); }

// scores: the group mean (for spindle_gqa=mean and for reports); in.scratch.per_head keeps the rows of the
// query heads.
Status Score(const ScoreInput& in, ScoreOutput& out) {
  RowSums what;
  what.n_rows = std::min(in.observed.n_rows, in.policy.Int(OptionId::kWindow));
  SumRows(in, what, in.scratch.per_head);
  const bool remaining = in.policy.Int(OptionId::kSpindleNorm) == 1;
  for (int32_t h = 0; h < in.n_heads; ++h) {
    const int32_t n = in.kv.len[static_cast<size_t>(h / in.group())];
    float* x = in.scratch.per_head + h * in.scratch.stride;
    for (int32_t t = 0; t < n; ++t) x[t] /= static_cast<float>(remaining ? n - t : what.n_rows);
  }
  for (int32_t g = 0; g < in.kv.n_kv_heads; ++g) {
    ReduceGroup(in, in.scratch.per_head, g, in.kv.len[static_cast<size_t>(g)], out.scores + g * out.stride);
  }
  return {};
}

}  // namespace

extern const Scorer kScorerWindowQhead = {
    /*name=*/"window_qhead",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/false,
    /*n_aux=*/nullptr,
    /*options=*/{OptionId::kWindow, OptionId::kSpindleNorm, OptionId::kSpindleGqa},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/nullptr,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

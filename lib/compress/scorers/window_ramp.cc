// PyramidInfer: the last 1 + w rows, newer rows weigh more, mean over all heads of the layer. methods.md 2.8.
#include <algorithm>
#include <limits>
#include <vector>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Int(OptionId::kWindow)}; }
int32_t Rows(const Policy& policy, int32_t, int32_t) { return policy.Int(OptionId::kWindow) + 1; }

Status Score(const ScoreInput& in, ScoreOutput& out) {
  const int32_t rows = in.observed.n_rows, n = in.kv.len[0];
  const float ramp = static_cast<float>(in.policy.Real(OptionId::kRamp));
  std::vector<float> weight(static_cast<size_t>(rows), 1.0f / static_cast<float>(rows));
  for (int32_t i = 1; i < rows; ++i) {
    weight[static_cast<size_t>(i)] *=
        1.0f + (ramp - 1.0f) * static_cast<float>(i) / static_cast<float>(rows - 1);
  }
  RowSums what;
  what.n_rows = rows;
  what.weight = weight.data();
  SumRows(in, what, in.scratch.per_head);
  float* mean = out.scores;
  std::fill(mean, mean + n, 0.0f);
  for (int32_t h = 0; h < in.n_heads; ++h)
    in.ops.kernels->add(in.scratch.per_head + h * in.scratch.stride, n, mean);
  for (int32_t t = 0; t < n; ++t) mean[t] /= static_cast<float>(in.n_heads);
  std::fill(mean, mean + std::min(n, in.policy.Int(OptionId::kNSink)),
            std::numeric_limits<float>::infinity());
  for (int32_t g = 1; g < in.kv.n_kv_heads; ++g) std::copy(mean, mean + n, out.scores + g * out.stride);
  return {};
}

}  // namespace

extern const Scorer kScorerWindowRamp = {
    /*name=*/"window_ramp",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/true,
    /*n_aux=*/nullptr,
    /*options=*/{OptionId::kWindow, OptionId::kNSink, OptionId::kRamp},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/nullptr,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

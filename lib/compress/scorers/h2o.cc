// H2O: attention summed over all rows. methods.md 2.3. `h2o_count` divides by the rows that could see the
// entry.
#include <algorithm>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

int32_t AuxCount(const Policy&) { return 1; }

Protected Protect(const Policy& policy, int32_t budget) {
  const int32_t recent = policy.Int(OptionId::kH2oRecent);
  return {0, recent < 0 ? (budget + 1) / 2 : recent};
}

bool Counts(const Policy& policy) {
  return policy.scorer == &kScorerH2oCount || policy.Int(OptionId::kH2oNorm) == 1;
}

// With `count` the prompt's sums are divided by the rows that could see the entry; decode adds plain
// probabilities (the reference does).
Status Score(const ScoreInput& in, ScoreOutput& out) {
  for (int32_t g = 0; g < in.kv.n_kv_heads; ++g) {
    const int32_t n = in.kv.len[static_cast<size_t>(g)], total = in.kv.Positions(g)[n - 1] + 1;
    const float* sums = in.observed.sums.data() + g * in.kv.capacity;
    float* kept = out.kv->Aux(0, g);
    for (int32_t t = 0; t < n; ++t) {
      const int32_t rows = Counts(in.policy) ? std::min(total - in.kv.Positions(g)[t], in.observed.n_new) : 1;
      kept[t] += sums[t] / static_cast<float>(std::max(rows, 1));
    }
    std::copy(kept, kept + n, out.scores + g * out.stride);
  }
  return {};
}

void Observe(const DecodeInput& in) {
  for (int32_t t = 0; t < in.n; ++t) in.aux[0][t] += in.p[t];
}

void Rank(const DecodeInput& in, float* scores) { std::copy(in.aux[0], in.aux[0] + in.n, scores); }

}  // namespace

extern const Scorer kScorerH2o = {
    /*name=*/"h2o",
    /*needs=*/kNeedsColumnSums,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/{OptionId::kH2oRecent, OptionId::kH2oNorm},
    /*protect=*/Protect,
    /*window_rows=*/nullptr,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/Observe,
    /*rank=*/Rank,
    /*clear_after_reduce=*/false,
};
extern const Scorer kScorerH2oCount = {
    /*name=*/"h2o_count",
    /*needs=*/kNeedsColumnSums,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/{OptionId::kH2oRecent},
    /*protect=*/Protect,
    /*window_rows=*/nullptr,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/Observe,
    /*rank=*/Rank,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

// WeightedKV: average attention since the entry came. methods.md 2.15.
#include <algorithm>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

enum Aux { kSum = 0, kCount = 1 };

int32_t AuxCount(const Policy&) { return 2; }

Protected Protect(const Policy& policy, int32_t budget) {
  const int32_t n_sink = policy.Int(OptionId::kNSink), recent = policy.Int(OptionId::kRecent);
  // The newest entry is never a candidate; a derived recent part that does not fit is clamped (Appendix
  // C, 1.9).
  return {n_sink, std::max(1, recent < 0 ? budget / 2 - 4 : recent)};
}

Status Score(const ScoreInput& in, ScoreOutput& out) {
  for (int32_t g = 0; g < in.kv.n_kv_heads; ++g) {
    const int32_t n = in.kv.len[static_cast<size_t>(g)], total = in.kv.Positions(g)[n - 1] + 1;
    float *sum = out.kv->Aux(kSum, g), *count = out.kv->Aux(kCount, g);
    in.ops.kernels->add(in.observed.sums.data() + g * in.kv.capacity, n, sum);
    for (int32_t t = 0; t < n; ++t) {
      count[t] = static_cast<float>(total - in.kv.Positions(g)[t]);
      out.scores[g * out.stride + t] = sum[t] / count[t];
    }
  }
  return {};
}

void Observe(const DecodeInput& in) {
  for (int32_t t = 0; t < in.n; ++t) {
    in.aux[kSum][t] += in.p[t];
    in.aux[kCount][t] += 1.0f;
  }
}

void Rank(const DecodeInput& in, float* scores) {
  for (int32_t t = 0; t < in.n; ++t) scores[t] = in.aux[kSum][t] / in.aux[kCount][t];
}

}  // namespace

extern const Scorer kScorerAvgAccum = {
    /*name=*/"avg_accum",
    /*needs=*/kNeedsColumnSums,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/{OptionId::kNSink, OptionId::kRecent},
    /*protect=*/Protect,
    /*window_rows=*/nullptr,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/Observe,
    /*rank=*/Rank,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

// AhaKV: sharpened softmax over a fixed number of recent rows, weighted by a prior from the value norms.
// methods.md 2.14.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

constexpr int32_t kDefaultRecent = 32;
enum Aux { kScore = 0, kPrior = 1, kPriorMax = 2 };  // F; value norm pooled; its running maximum

int32_t Recent(const Policy& policy) {
  const int32_t recent = policy.Int(OptionId::kRecent);
  return recent < 0 ? kDefaultRecent : recent;
}
bool DecodePrior(const Policy& policy) { return policy.Flag(OptionId::kAhaDecodePrior); }
int32_t AuxCount(const Policy& policy) { return DecodePrior(policy) ? 3 : 1; }
Protected Protect(const Policy& policy, int32_t) { return {0, Recent(policy)}; }
int32_t Rows(const Policy& policy, int32_t, int32_t) { return Recent(policy); }

// Factor on the model's logits for a row that sees i keys with budget k (equation 12; units and domain: D-29,
// D-30).
float Gain(const Policy& policy, int32_t i, int32_t k, int32_t d) {
  if (i <= k) return 1.0f;
  const bool raw = policy.Int(OptionId::kAhaUnits) == 0;
  const double x = 2.0 * std::log(static_cast<double>(i) / k), gain = std::sqrt(raw ? x : x / d);
  return static_cast<float>(raw && policy.Flag(OptionId::kAhaGainFloor) ? std::max(1.0, gain) : gain);
}

// line[0 .. n) = pooled squared norms of the values; returns their maximum. norms: scratch.
float ValuePrior(const ScoreInput& in, int32_t g, int32_t n, float* norms, float* pooled) {
  const int32_t d = in.kv.head_dim;
  for (int32_t t = 0; t < n; ++t) {
    const float* v = in.kv.Values(g) + int64_t{t} * d;
    norms[t] = in.ops.kernels->dot(v, v, d);
  }
  Pool(norms, n, in.policy.Int(OptionId::kValueKernel), PoolKind::kAvg, true, pooled);
  return *std::max_element(pooled, pooled + n);
}

Status Score(const ScoreInput& in, ScoreOutput& out) {
  const int32_t n_rows = in.observed.n_rows, d = in.kv.head_dim, n_aux = out.kv->n_aux;
  std::vector<float> gain(static_cast<size_t>(n_rows));
  const int32_t longest = *std::max_element(in.kv.len.begin(), in.kv.len.end());
  for (int32_t i = 0; i < n_rows; ++i)
    gain[static_cast<size_t>(i)] = Gain(in.policy, longest - n_rows + 1 + i, in.budget, d);
  RowSums what;
  what.n_rows = n_rows;
  what.gain = gain.data();
  SumRows(in, what, in.scratch.per_head);
  in.ops.pool->ParallelFor(in.kv.n_kv_heads, [&](int64_t head, int thread) {
    const int32_t g = static_cast<int32_t>(head), n = in.kv.len[static_cast<size_t>(g)];
    float *norms = in.scratch.lines + thread * 2 * in.scratch.stride, *pooled = norms + in.scratch.stride;
    const float max = ValuePrior(in, g, n, norms, pooled), inverse = max > 0 ? 1.0f / max : 0.0f;
    float *scores = out.scores + g * out.stride, *sums = out.kv->Aux(kScore, g);
    ReduceGroup(in, in.scratch.per_head, g, n, scores);
    for (int32_t t = 0; t < n; ++t) {
      sums[t] += pooled[t] * inverse * scores[t];
      if (n_aux > kPriorMax && DecodePrior(in.policy)) {
        out.kv->Aux(kPrior, g)[t] = pooled[t];
        out.kv->Aux(kPriorMax, g)[t] = max;
      }
    }
    const int32_t kernel = in.policy.Int(OptionId::kAhaScorePool);
    if (kernel > 1) {
      Pool(sums, n, kernel, PoolKind::kAvg, false, norms);
      std::copy(norms, norms + n, sums);
    }
    std::copy(sums, sums + n, scores);
  });
  return {};
}

void Observe(const DecodeInput& in) {
  if (!DecodePrior(in.policy)) {
    for (int32_t t = 0; t < in.n; ++t) in.aux[kScore][t] += in.p[t];
    return;
  }
  float norm = 0;
  for (int32_t x = 0; x < in.head_dim; ++x) norm += in.new_value[x] * in.new_value[x];
  const int32_t last = in.n - 1;
  const float max = std::max(norm, last > 0 ? in.aux[kPriorMax][last - 1] : 0.0f);
  in.aux[kPrior][last] = norm;
  in.aux[kPriorMax][last] = max;
  for (int32_t t = 0; t < in.n; ++t) in.aux[kScore][t] += max > 0 ? in.p[t] * in.aux[kPrior][t] / max : 0.0f;
}

void Rank(const DecodeInput& in, float* scores) { std::copy(in.aux[kScore], in.aux[kScore] + in.n, scores); }

}  // namespace

extern const Scorer kScorerWindowSgValue = {
    /*name=*/"window_sg_value",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/
    {OptionId::kRecent, OptionId::kValueKernel, OptionId::kAhaUnits, OptionId::kAhaGainFloor,
     OptionId::kAhaScorePool, OptionId::kAhaDecodePrior},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/Observe,
    /*rank=*/Rank,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

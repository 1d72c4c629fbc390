// StreamingLLM: the newest entries stay. methods.md 2.2.
#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

Protected Protect(const Policy& policy, int32_t) { return {policy.Int(OptionId::kNSink), 1}; }

Status Score(const ScoreInput& in, ScoreOutput& out) {
  for (int32_t g = 0; g < in.kv.n_kv_heads; ++g) {
    for (int32_t t = 0; t < in.kv.len[static_cast<size_t>(g)]; ++t)
      out.scores[g * out.stride + t] = static_cast<float>(t);
  }
  return {};
}

void Rank(const DecodeInput& in, float* scores) {
  for (int32_t t = 0; t < in.n; ++t) scores[t] = static_cast<float>(t);
}

}  // namespace

extern const Scorer kScorerPosition = {
    /*name=*/"position",
    /*needs=*/kNeedsNothing,
    /*one_set_per_layer=*/false,
    /*n_aux=*/nullptr,
    /*options=*/{OptionId::kNSink},
    /*protect=*/Protect,
    /*window_rows=*/nullptr,
    /*score=*/Score,
    /*select=*/nullptr,
    /*observe=*/nullptr,
    /*rank=*/Rank,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc

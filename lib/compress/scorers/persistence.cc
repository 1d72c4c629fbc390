// Scissorhands: entries whose attention was below average again and again are dropped, several at once.
// methods.md 2.5, Appendix C.
#include <algorithm>
#include <cstring>

#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

constexpr int32_t kDefaultRecent = 10;
constexpr int32_t kWordBits = 32;

// Side values: 0 = the statistic (rows below average, or summed attention); with mode count, the history
// follows as bits, newest lowest.
bool SumMode(const Policy& policy) { return policy.Int(OptionId::kScissorMode) == 1; }
int32_t Words(const Policy& policy) {
  return SumMode(policy) ? 0 : (policy.Int(OptionId::kHistory) + kWordBits - 1) / kWordBits;
}
int32_t AuxCount(const Policy& policy) { return 1 + Words(policy); }
int32_t Rows(const Policy& policy, int32_t, int32_t) { return policy.Int(OptionId::kHistory); }

Protected Protect(const Policy& policy, int32_t) {
  const int32_t recent = policy.Int(OptionId::kRecent);
  return {0, recent < 0 ? kDefaultRecent : recent};
}

// Pushes one bit into the history of entry t; the count in aux[0] gains it and loses the bit that leaves.
void Push(const Policy& policy, float* const* aux, int32_t t, bool low) {
  const int32_t oldest = policy.Int(OptionId::kHistory) - 1, words = Words(policy);
  uint32_t carry = low ? 1 : 0, leaving = 0;
  for (int32_t i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, &aux[1 + i][t], 4);
    const uint32_t out = word >> (kWordBits - 1);
    if (i == oldest / kWordBits) leaving = word >> oldest % kWordBits & 1;
    word = word << 1 | carry;
    carry = out;
    std::memcpy(&aux[1 + i][t], &word, 4);
  }
  aux[0][t] += static_cast<float>(low ? 1 : 0) - static_cast<float>(leaving);
}

void AddRow(const Policy& policy, float* const* aux, const float* p, int32_t visible) {
  const float average = 1.0f / static_cast<float>(visible);
  for (int32_t t = 0; t < visible; ++t) {
    if (SumMode(policy)) {
      aux[0][t] += p[t];
    } else {
      Push(policy, aux, t, p[t] < average);
    }
  }
}

Status Score(const ScoreInput& in, ScoreOutput& out) {
  in.ops.pool->ParallelFor(in.kv.n_kv_heads, [&](int64_t head, int thread) {
    const int32_t g = static_cast<int32_t>(head), n = in.kv.len[static_cast<size_t>(g)];
    float* aux[1 + 63];
    for (int32_t a = 0; a < AuxCount(in.policy); ++a) aux[a] = out.kv->Aux(a, g);
    float *mean = in.scratch.lines + thread * 2 * in.scratch.stride, *row = mean + in.scratch.stride;
    for (int32_t r = 0; r < in.observed.n_rows; ++r) {
      std::fill(mean, mean + n, 0.0f);
      for (int32_t h = g * in.group(); h < (g + 1) * in.group(); ++h) {
        OneRow(in, r, h, row);
        in.ops.kernels->add(row, n, mean);
      }
      const int32_t visible = VisibleKeys(in, r, g);
      for (int32_t t = 0; t < visible; ++t) mean[t] /= static_cast<float>(in.group());
      AddRow(in.policy, aux, mean, visible);
    }
    const float sign = SumMode(in.policy) ? 1.0f : -1.0f;
    for (int32_t t = 0; t < n; ++t) out.scores[g * out.stride + t] = sign * aux[0][t];
  });
  return {};
}

Status Select(const SelectInput& in) {
  const int32_t budget = in.count + in.protect.n_recent, n_free = in.n - in.protect.n_recent;
  const int32_t at_once =
      in.policy.Int(OptionId::kDrop) < 0 ? std::max(budget / 2, 1) : in.policy.Int(OptionId::kDrop);
  std::fill(in.mark, in.mark + in.n, uint8_t{1});
  if (in.n <= budget) return {};
  const int32_t drop = std::min(at_once * ((in.n - budget + at_once - 1) / at_once), n_free);
  MarkTop(in.scores, n_free, n_free - drop, in.keys, in.mark);
  return {};
}

void Observe(const DecodeInput& in) { AddRow(in.policy, in.aux, in.p, in.n); }

void Rank(const DecodeInput& in, float* scores) {
  const float sign = SumMode(in.policy) ? 1.0f : -1.0f;
  for (int32_t t = 0; t < in.n; ++t) scores[t] = sign * in.aux[0][t];
}

}  // namespace

extern const Scorer kScorerPersistence = {
    /*name=*/"persistence",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/false,
    /*n_aux=*/AuxCount,
    /*options=*/{OptionId::kRecent, OptionId::kHistory, OptionId::kDrop, OptionId::kScissorMode},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/Select,
    /*observe=*/Observe,
    /*rank=*/Rank,
    /*clear_after_reduce=*/true,
};

}  // namespace kvc

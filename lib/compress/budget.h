// From real budgets to token counts. Every rule ends in Alloc, the one rounding routine (methods.md 1.8).
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// Capped largest remainder with exact (128-bit) arithmetic. A weight is the numerator of a rational over a
// denominator that all weights of one call share; 0 .. 2^62. `low` may be empty (zeros). Without redistribute
// the caps only cut what came out, and the cut is lost. Returns the units nobody could take. counts, weights,
// caps, low: same size, at most 2^20. 0 <= total < 2^52; caps >= low >= 0; all weights together < 2^74.
int64_t Alloc(int64_t total, Span<const uint64_t> weights, Span<const int32_t> caps, Span<const int32_t> low,
              bool redistribute, Span<int32_t> counts);

// Floating-point weights as integers: round(w / max w * 2^40), half to even; negative and NaN weights are 0.
std::vector<uint64_t> IntegerWeights(Span<const double> weights);

// Candidates per KV head for a whole layer column: methods.md 2.7 (clamp formula). b average candidates, m
// candidates there are. Here and below: b >= m gives m everywhere, b <= 0 gives 0 everywhere; lengths < 2^31,
// at most 2^11 layers, beta >= 1.
std::vector<int32_t> PyramidCounts(int32_t b, int32_t m, int32_t n_layers, double beta,
                                   bool reference_rounding);
std::vector<int32_t> PyramidInferCounts(int32_t b, int32_t m, int32_t n_layers, double decay);
// methods.md 2.16 a; l tokens, l_w window, budget C slots (r = C / l), per query head. 0 < beta < 1.
std::vector<int32_t> SpindleCounts(int32_t budget, int32_t l, int32_t l_w, int32_t n_layers, double beta,
                                   bool round_down = false);
// methods.md 2.10; s_query [L, H], finite, >= 0; result [L, G]. Here and for CoKV room: candidates that every
// head can have, [L, G], 0 and more; all of them where b on average hold them.
std::vector<int32_t> HeadkvCounts(Span<const double> s_query, int32_t n_layers, int32_t n_heads,
                                  int32_t n_kv_heads, int32_t b, Span<const int32_t> room, double beta,
                                  double temperature, bool redistribute, bool reference_rounding);
// What the quotas of HeadKV and CoKV are proportional to, at any budget. All equal where no score stands out.
std::vector<double> HeadkvWeights(Span<const double> s_query, int32_t n_layers, int32_t n_heads,
                                  int32_t n_kv_heads, double beta, double temperature);
std::vector<double> CokvWeights(Span<const double> scores, int32_t alpha);
// methods.md 2.13; scores of all N players, finite; alpha 1 .. N-1 (N = 1 gets the average).
std::vector<int32_t> CokvCounts(Span<const double> scores, int32_t b, Span<const int32_t> room, int32_t alpha,
                                bool redistribute, bool reference_rounding);

// methods.md 2.11, one layer with b candidates a head on average, of which head h has candidates[h]. What
// must be known of the scores: how many of the `total` best each head has, when every head first takes its
// `locked` best (CountBestArgs). False: nothing is to be chosen, and counts are set. locked: tokens of every
// head that are taken first in safeguard mode, at most b; 0 = floor * b.
struct AdaOptions {
  double floor = 0.2;
  bool safeguard = false, normalize = false;
  int32_t locked = 0;
};
struct AdaQuestion {
  int64_t total = 0, locked = 0;
};
bool AdaAsks(const AdaOptions& options, int32_t b, Span<const int32_t> candidates, AdaQuestion* question,
             Span<int32_t> counts);
// The slots of the heads from the answer: they add up to the budget, or to all there are.
void AdaCounts(const AdaOptions& options, int32_t b, Span<const int32_t> candidates, Span<const int64_t> best,
               Span<int32_t> counts);

// methods.md 4.4: true = high bits. NaN ranks last. exact half: ceil(N/2) heads; lower median: score >= lower
// middle value.
std::vector<bool> HighPrecisionHeads(Span<const double> scores, bool lower_median);
// methods.md 4.4, general form: the bits of every head. Heads in descending order of score (ties: lower
// index, NaN last) fill the levels in their order; how many a level has is ALLOC of the shares, which sum
// to 1.
struct BitsLevel {
  int32_t bits;  // 4, 8 or 16
  double share;
};
std::vector<int32_t> BitsByLevels(Span<const double> scores, Span<const BitsLevel> levels);
// methods.md 4.4 (b): counts under a byte limit; cost[i] bytes per entry of head i, 1 .. 2^20. 0 <=
// total_bytes < 2^45. caps: most entries of a head, empty = none; what a full head cannot take goes to the
// others as in Alloc. left: what no head could use (may be null).
std::vector<int32_t> ByteBudgetCounts(int64_t total_bytes, Span<const double> weights,
                                      Span<const int64_t> cost, Span<const int32_t> caps, int64_t* left);

}  // namespace kvc

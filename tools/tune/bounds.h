// Bounds on a risk that hold with a stated confidence for any sample size: exact binomial tails, the interval
// of Clopper and Pearson, the p-value of Hoeffding and Bentkus. Sources: docs/quality.md.
#pragma once
#include <cstdint>

#include "tools/interval.h"

namespace kvc::tool {

// P(X <= k) for X of n draws that each hit with probability p. n >= 0, p in [0, 1]; 0 for k < 0, 1 for k >=
// n.
double BinomialCdf(int64_t k, int64_t n, double p);

// The exact two-sided interval of a probability after k hits of n draws: each end is missed with probability
// (1 - confidence) / 2 at most. {0, 1} for n = 0.
Interval ClopperPearson(int64_t k, int64_t n, double confidence);

// Losses in [0, 1] of n independent draws, summed to total. Bounds how likely a sum as small is when the
// expected loss is above `risk`, in (0, 1): a p-value. is_binary: every loss was 0 or 1, which permits the
// exact tail.
double RiskPValue(double total, int64_t n, double risk, bool is_binary);

// The least n at which a mean loss of `mean` gives a p-value of at most `level`; -1: no n below 10^9 does, as
// of a mean that is not below risk.
int64_t DrawsNeeded(double mean, double risk, double level, bool is_binary);

}  // namespace kvc::tool

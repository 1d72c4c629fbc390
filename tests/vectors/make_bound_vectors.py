#!/usr/bin/env python3
"""Makes tests/data/reference/bounds.json: binomial tails and Clopper-Pearson intervals from SciPy, and the p-value of
Hoeffding and Bentkus from SciPy's binomial tail and relative entropy (needs scipy, made with 1.17.1). The intervals
are quantiles of the beta distribution: binomtest finds the same ones to 2e-12 only."""
import json
import math
import os

from scipy.special import rel_entr
from scipy.stats import beta, binom

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/reference/bounds.json")


def hoeffding_bentkus(mean, n, risk):
    """Bates et al., Distribution-free, risk-controlling prediction sets, equations of section 3.1."""
    closer = min(mean, risk)
    hoeffding = math.exp(-n * (rel_entr(closer, risk) + rel_entr(1 - closer, 1 - risk)))
    bentkus = math.e * binom.cdf(math.ceil(n * mean - 1e-9), n, risk)
    return float(min(1, hoeffding, bentkus))


def main():
    sizes = (1, 2, 7, 59, 299, 1000, 20000)
    tails, intervals, p_values = [], [], []
    for n in sizes:
        for p in (0.001, 0.01, 0.05, 0.3, 0.5, 0.93):
            for k in sorted({0, 1, n // 100, n // 20, n // 3, n // 2, n - 1, n}):
                tails.append([k, n, p, float(binom.cdf(k, n, p))])
        for k in sorted({0, 1, n // 50, n // 7, n // 2, n - 1, n}):
            for confidence in (0.8, 0.95, 0.999):
                tail = (1 - confidence) / 2
                low = beta.ppf(tail, k, n - k + 1) if k > 0 else 0
                high = beta.isf(tail, k + 1, n - k) if k < n else 1
                intervals.append([k, n, confidence, float(low), float(high)])
        for risk in (0.01, 0.05, 0.2):
            for mean in (0, 0.0025, 0.01, 0.031, 0.125, 0.5):
                p_values.append([mean * n, n, risk, hoeffding_bentkus(mean, n, risk)])
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({"tails": tails, "intervals": intervals, "hoeffding_bentkus": p_values}, file, indent=0)
        file.write("\n")
    print(f"{len(tails)} tails, {len(intervals)} intervals, {len(p_values)} p-values")


if __name__ == "__main__":
    main()

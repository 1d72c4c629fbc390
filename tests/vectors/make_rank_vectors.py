#!/usr/bin/env python3
"""Makes tests/data/reference/ranks.json: rank correlations with ties from scipy.stats.spearmanr (needs scipy, made with
the version in the file)."""
import json
import os
import random

import scipy
from scipy.stats import spearmanr

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/reference/ranks.json")


def main():
    rng, rows = random.Random(1), []
    for n in (3, 4, 10, 42, 300):
        for levels in (2, 5, 1000000):
            for slope in (0.0, 0.5, -2.0):
                a = [float(rng.randrange(levels)) for _ in range(n)]
                b = [float(round(slope * x + rng.randrange(levels))) for x in a]
                if len(set(a)) > 1 and len(set(b)) > 1:
                    rows.append([a, b, float(spearmanr(a, b).statistic)])
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({"scipy": scipy.__version__, "spearman": rows}, file)
        file.write("\n")


if __name__ == "__main__":
    main()

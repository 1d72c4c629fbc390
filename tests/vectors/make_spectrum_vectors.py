#!/usr/bin/env python3
"""Makes tests/data/reference/spectra.json: singular values from numpy.linalg.svd in double, and the effective rank
(Roy and Vetterli, 2007) from them (needs numpy, made with the version in the file). Elements are whole numbers of
256ths, which single precision has exactly."""
import json
import os

import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/reference/spectra.json")


def main():
    rng, rows = np.random.default_rng(1), []
    for n, width, rank in ((1, 1, 1), (1, 6, 1), (6, 1, 1), (7, 4, 4), (4, 7, 4), (16, 16, 16), (40, 16, 16),
                           (40, 16, 5), (9, 24, 3), (64, 32, 32)):
        for decay in (1.0, 0.6):
            scales = decay ** np.arange(rank)
            product = (rng.normal(size=(n, rank)) * scales) @ rng.normal(size=(rank, width))
            whole = np.round(product * 256).astype(int)
            if rank < min(n, width):  # rounding would fill it up again: whole factors instead
                whole = rng.integers(-9, 10, (n, rank)) @ rng.integers(-9, 10, (rank, width))
            values = np.linalg.svd(whole / 256, compute_uv=False)
            shares = values[:rank] / values[:rank].sum()
            rows.append({"width": width, "rank": rank, "in_256ths": whole.ravel().tolist(),
                         "singular": values[:rank].tolist(),
                         "effective_rank": float(np.exp(-(shares * np.log(shares)).sum()))})
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({"numpy": np.__version__, "spectra": rows}, file)
        file.write("\n")


if __name__ == "__main__":
    main()

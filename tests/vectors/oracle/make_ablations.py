"""Writes reference values of options that no other file there turns, those of the papers' ablations among them, on the
tensors of tests/data/goldens/micro, in the form of the files there; and what allocators give out when they round as
published code does (rounding.json).

python make_ablations.py GOLDENS_DIR     (tests/data/goldens)"""

import json
import sys
import numpy as np
import methods as M
import pipeline
from llama import Layer

CASES = {
    "ahakv": [
        (20, dict(aha_rows="all")),
        (20, dict(aha_gain=0)),
        (20, dict(aha_prior=0)),
        (10, dict(aha_decode_i="logical")),
        (10, dict(aha_decode_i="logical", aha_gain_floor=0)),
        (10, dict(aha_decode_i="logical", aha_units="scaled", aha_prior=0)),
        (10, dict(aha_rows="all", aha_gain=0, aha_prior=0)),
        (20, dict(aha_decode_prior=1)),
        (10, dict(aha_decode_prior=1, kappa_v=1, recent=4)),
        (20, dict(kappa_v=3)),
        (20, dict(aha_score_pool=5)),
    ],
    "tova": [
        (20, dict(tova_scope="kvhead")),
        (10, dict(tova_scope="kvhead", protect_last=0)),
    ],
    "scissorhands": [
        (24, dict(scissor_mode="sum")),
        (20, dict(scissor_mode="sum", history=16, drop=3)),
    ],
    "ada-snapkv": [
        (20, dict(ada_skip=1)),
        (14, dict(ada_skip=1, ada_mode="safeguard", ada_locked=2)),
    ],
    "snapkv": [
        (20, dict(scorer="window_accum")),
        (14, dict(scorer="window_accum", accum_weight=8, pool="avg")),
    ],
    "spindlekv": [
        (20, dict(tail=3, spindle_magnitude=0)),
        (20, dict(tail=0, spindle_magnitude=0, theta_k=0.9, theta_v=0.8)),
        (20, dict(tail=3, spindle_rounding="floor")),
        (25, dict(tail=3, spindle_rounding="floor")),
        (20, dict(tail=3, spindle_gqa="mean")),
    ],
}


def plain(x):
    """As JSON has it; 9 significant digits."""
    if isinstance(x, np.ndarray):
        return plain(x.tolist())
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return float(f"{x:.9g}") if isinstance(x, (float, np.floating)) else int(x) if isinstance(x, np.integer) else x


def case(inputs, method, C, options):
    n, steps, theta = (inputs["shape"][x] for x in ("n", "steps", "rope_theta"))
    Q, K, V = (np.asarray(inputs[x], float) for x in "QKV")
    layers = [Layer(q[:, :n], k[:, :n], v[:, :n], float(theta)) for q, k, v in zip(Q, K, V)]
    caches, report, used = pipeline.compress(method, layers, C, **options)
    out = dict(C=C, options=used, score=[r["score"] for r in report], kept=[r["kept"] for r in report])
    out["attention"] = [
        [c.step(q[:, t], k[:, t], v[:, t], t) for c, q, k, v in zip(caches, Q, K, V)] for t in range(n, n + steps)
    ]
    out["final"] = dict(kept=[[h.pos for h in c.heads] for c in caches])
    if method == "scissorhands":
        out["final"]["I"] = [[h.aux["I"] for h in c.heads] for c in caches]
    if method == "ahakv":
        out["final"]["F"] = [[h.aux["F"] for h in c.heads] for c in caches]
    return plain(out)


def rounding():
    """Slots of 6 layers of 4 KV heads (8 query heads) behind a prompt of 120 tokens, window 8."""
    L, G, n, w = 6, 4, 120, 8
    rng, m = np.random.default_rng(3), n - w
    ssv = np.round(rng.normal(0, 0.01, L * G), 6).tolist()
    retrieval = np.round(rng.exponential(0.05, (L, 2 * G)), 6).tolist()

    def headkv_reference(b, beta):  # 2.10, D-19: the pool is floored, every head rounded
        s = np.asarray(retrieval).reshape(L, G, 2).mean(2).ravel()
        pool = b // beta
        return [min(round(x), m) for x in (b - pool) + s / s.sum() * len(s) * pool]

    per_head = lambda layers: [c for c in layers for _ in range(G)]
    text = lambda method, C, options: f"{method}:budget={C},window={w},{options}"
    cases = [
        ("cokv", 24, "alpha=3,cokv_rounding=reference", ssv, M.cokv_alloc(ssv, 16, m, 3, "reference")),
        ("cokv", 70, "alpha=20,redistribute=0", ssv, M.cokv_alloc(ssv, 62, m, 20, redistribute=False)),
        ("pyramidkv", 24, "pyramid_rounding=reference", [], per_head(M.pyramid_alloc(16, m, L, 20, "reference"))),
        ("pyramidkv", 41, "beta=3.5", [], per_head(M.pyramid_alloc(33, m, L, 3.5))),
        ("pyramidinfer", 40, "decay=0.5", [], per_head(M.pyramid_infer_alloc(32, m, L, 0.5))),
        ("headkv-r2", 24, "headkv_beta=1.1,headkv_rounding=reference", retrieval, headkv_reference(16, 1.1)),
        ("headkv-r2", 24, "headkv_beta=1.1,temperature=0.5", retrieval, M.headkv_alloc(retrieval, 16, m, 1.1, G, 0.5)),
        ("headkv-r2", 24, "headkv_beta=1.1,temperature=3", retrieval, M.headkv_alloc(retrieval, 16, m, 1.1, G, 3)),
    ]
    return [
        dict(policy=text(method, C, options), scores=np.ravel(scores).tolist(), candidates=counts)
        for method, C, options, scores, counts in cases
    ]


def main():
    with open(f"{sys.argv[1]}/micro/inputs.json", encoding="utf-8") as f:
        inputs = json.load(f)
    for method, cases in CASES.items():
        content = dict(format="kvc-golden/1", method=method, cases=[case(inputs, method, C, o) for C, o in cases])
        with open(f"{sys.argv[1]}/micro/{method}-ablations.json", "w", encoding="utf-8") as f:
            json.dump(content, f, separators=(",", ":"))
            f.write("\n")
    with open(f"{sys.argv[1]}/micro/rounding.json", "w", encoding="utf-8") as f:
        json.dump(dict(format="kvc-golden/1", shape=[6, 8, 4], n=120, window=8, cases=plain(rounding())), f)
        f.write("\n")


if __name__ == "__main__":
    main()

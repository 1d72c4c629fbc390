"""Writes reference values of prompts behind a compressed cache: every method reads a prompt, is fed tokens, reads a
longer and a short second prompt, and is fed again (methods.md 1.9).

python make_later_prompts.py MODEL_DIR PROMPTS.json OUT_FILE [NAME]...     (PROMPTS: tests/data/goldens/prompts.json)
"""

import json
import math
import sys
import numpy as np
from later_prompts import Sequence
from llama import Llama

BUDGET, WINDOW = 32, 8
PARTS = [("prompt", 300), ("feed", 3), ("prompt", 40), ("feed", 2), ("prompt", 3), ("feed", 2)]
N_IDS = sum(n for _, n in PARTS)
KEPT_AFTER = (2, 4, 5)  # parts
# "\n\nRepeat the previous text exactly:\n\n" in the tokens of models/recall.
INSTRUCTION = [201, 201, 52, 71, 386, 297, 266, 729, 88, 625, 1156, 1283, 477, 868, 322, 28, 620]


def cases(rng, L, n_q, n_kv):
    """name -> (policy text, method of the oracle, its options)"""
    N = L * n_kv
    ssv = np.round(rng.normal(0, 0.01, N), 6).tolist()
    retrieval = np.round(rng.exponential(0.05, (L, n_q)), 6).tolist()
    table = [BUDGET - 12 + i % 5 * 6 for i in range(N)]
    spec = lambda method, extra="": f"{method}:budget={BUDGET},kv=f32{extra}"
    w, recent = f",window={WINDOW}", ",recent=8"
    out = {
        "full": ("full:kv=f32", "full", {}),
        "streaming": (spec("streaming"), "streaming", {}),
        "streaming-baseline": (spec("streaming-baseline"), "streaming-baseline", {}),
        "h2o": (spec("h2o"), "h2o", {}),
        "tova": (spec("tova"), "tova", {}),
        "scissorhands": (spec("scissorhands", recent), "scissorhands", {}),
        "cam": (spec("cam"), "cam", dict(sequential=True)),
        "cam-oneshot": (spec("cam", ",cam_prefill=oneshot"), "cam", {}),
        "ahakv": (spec("ahakv", recent), "ahakv", {}),
        "weightedkv": (spec("weightedkv"), "weightedkv", {}),
        "weightedkv-sequential": (
            spec("weightedkv", ",wkv_prefill=sequential"),
            "weightedkv",
            dict(sequential=True),
        ),
        "snapkv": (spec("snapkv", w), "snapkv", {}),
        "snapkv-w8": (spec("snapkv-w8", ",pool=avg"), "snapkv", dict(pool="avg")),
        "nacl": (spec("nacl", recent), "nacl", {}),
        "reconstruct": (spec("reconstruct"), "reconstruct", {}),
        "reconstruct-own": (spec("reconstruct", ",reread=own"), "reconstruct", dict(own=True)),
        "reconstruct-local": (spec("reconstruct", ",reread_part=256"), "reconstruct", dict(part=256)),
        "reconstruct-own-local": (
            spec("reconstruct", ",reread=own,reread_part=256"),
            "reconstruct",
            dict(own=True, part=256),
        ),
        "reconstruct-share": (spec("reconstruct", ",reread_share=0.5"), "reconstruct", dict(share=0.5)),
        "kvzip-own-local": (
            spec("kvzip", ",window=4,reread=own,reread_part=256"),
            "kvzip",
            dict(w=4, own=True, part=256),
        ),
        "pyramidkv": (spec("pyramidkv", w), "pyramidkv", {}),
        "pyramidinfer": (spec("pyramidinfer", w), "pyramidinfer", {}),
        "spindlekv": (spec("spindlekv", w + ",tail=8,spindle_code=always"), "spindlekv", {}),
        "ada-snapkv": (spec("ada-snapkv", w), "ada-snapkv", {}),
        "ada-paper": (spec("ada-paper", w), "ada-snapkv", dict(ada_floor=0.5)),
        "ada-pyramid": (spec("ada-pyramid", w), "ada-pyramid", {}),
        "headkv-r2": (spec("headkv-r2", w), "headkv-r2", dict(scores=retrieval)),
        "cokv": (spec("cokv", ",alpha=3"), "cokv", dict(scores=ssv, alpha=3)),
        "cokv-document": (spec("cokv-document"), "cokv-document", dict(scores=ssv, alpha=1, redistribute=1)),
        "kvzip": (spec("kvzip"), "kvzip", dict(w=1)),
        "knorm": (spec("knorm"), "knorm", {}),
        # Every token but once: no key is as long as another.
        "knorm-distinct": (spec("knorm"), "knorm", dict(ids=rng.permutation(np.arange(512, 1536))[:N_IDS].tolist())),
        "keydiff": (spec("keydiff"), "keydiff", {}),
        "lagkv": (spec("lagkv", ",lag=16"), "lagkv", dict(n_sink=4, lag=16)),
        "lagkv-wide": (spec("lagkv", ",lag=60,n_sink=2"), "lagkv", dict(n_sink=2, lag=60)),
        "expected-attention": (
            spec("expected-attention", ",future_positions=64"),
            "expected-attention",
            dict(n_sink=4, future_positions=64),
        ),
        "duo-attention": (spec("duo-attention"), "duo-attention", dict(scores=ssv, n_sink=4)),
        "table": (
            "table:window=8,kv=f32",
            "snapkv",
            dict(slots=table, table=[[x - WINDOW for x in table[i * n_kv : (i + 1) * n_kv]] for i in range(L)]),
        ),
    }
    return out


def run(model, ids, method, options, max_tokens):
    """What is kept and the best logits after every part."""
    ids = options.get("ids", ids)
    options = {k: v for k, v in options.items() if k not in ("slots", "ids")}
    s = Sequence(model, method, BUDGET, options, INSTRUCTION, max_tokens)
    at, kept, margin, best = 0, [], [], []
    for number, (kind, n) in enumerate(PARTS):
        part = ids[at : at + n]
        at += n
        logits = s.prompt(part) if kind == "prompt" else [s.feed(t) for t in part][-1]
        # In layer 0 a token's key is as long wherever it stands: knorm's ties are broken by rounding.
        look = (number in KEPT_AFTER or method == "knorm") and method != "full"
        kept.append([[h.tolist() for h in layer] for layer in s.kept()] if look else None)
        margin.append(s.margins())
        order = np.argsort(-logits, kind="stable")[:5]
        best.append([[int(i), float(f"{logits[i]:.9g}")] for i in order])
    return dict(kept=kept, margin=margin, best=best)


def main():
    model_dir, prompts, out = sys.argv[1:4]
    model = Llama(model_dir)
    with open(f"{model_dir}/config.json", encoding="utf-8") as f:
        max_tokens = json.load(f)["max_position_embeddings"]
    with open(prompts, encoding="utf-8") as f:
        prose = next(p for p in json.load(f)["prompts"] if p["name"].startswith("prose"))
    ids = prose["ids"][:N_IDS]
    found = {}
    only = sys.argv[4:]  # names; the others stay as they are in OUT_FILE
    if only:
        with open(out, encoding="utf-8") as f:
            found = json.load(f)["cases"]
    for name, (spec, method, options) in cases(np.random.default_rng(9), model.L, model.n_q, model.n_kv).items():
        if only and name not in only:
            continue
        found[name] = dict(policy=spec, **run(model, ids, method, options, max_tokens))
        for key in ("scores", "slots", "ids"):
            if key in options:
                found[name][key] = np.asarray(options[key]).ravel().tolist()
        least = min((m for part in found[name]["margin"] for m in part if m is not None), default=math.nan)
        print(f"{name}: closest decision {least:.1e}", flush=True)
    with open(out, "w", encoding="utf-8") as f:
        content = dict(format="kvc-golden/1", ids=ids, parts=PARTS, cases=found)
        json.dump(content, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()

"""Writes reference values of what make_later_prompts.py leaves at its defaults: options of methods over several
prompts, short first prompts, compression at steps, and scorers under allocators of others (methods.md 1.9, 2, 4.2).

python make_later_options.py MODEL_DIR PROMPTS.json OUT_FILE [NAME]...     (PROMPTS: tests/data/goldens/prompts.json)
"""

import json
import math
import sys
import numpy as np
from later_prompts import Sequence
from llama import Llama

SEVERAL = [("prompt", 90), ("feed", 5), ("prompt", 30), ("feed", 4), ("prompt", 3), ("feed", 3)]
SHORT = [("prompt", 10), ("feed", 45), ("prompt", 12), ("feed", 6)]  # the first one fits the budget
ONE = [("prompt", 120), ("feed", 12)]
N_IDS = 148
WINDOW, RECENT = ",window=8", ",recent=8"


class Cases:
    """name -> policy text, method of the oracle, budget, parts, options."""

    def __init__(self):
        self.all = {}

    def add(self, name, method, parts, text="", C=32, kv="f32", **options):
        assert name not in self.all, name
        self.all[name] = (f"{method}:budget={C},kv={kv}{text}", method, C, parts, options)


def short_prompts(cases):
    for method, text in [
        ("h2o", ""),
        ("tova", ""),
        ("scissorhands", RECENT),
        ("ahakv", RECENT),
        ("weightedkv", ""),
        ("streaming", ""),
        ("cam", ",cam_prefill=oneshot"),
    ]:
        cases.add(f"short-{method}", method, SHORT, text)
    history = dict(history=5, drop=3)
    cases.add("short-scissorhands-history", "scissorhands", SHORT, RECENT + ",history=5,drop=3", **history)


def scorer_options(cases):
    add = cases.add
    several = dict(parts=SEVERAL)
    for name, text, options in [
        ("avg", ",kernel=3,pool=avg", dict(kappa=3, pool="avg")),
        ("shrink", ",kernel=9,pool=avg,avg_edge=shrink", dict(kappa=9, pool="avg", avg_edge="shrink")),
        ("gqa-max", ",gqa_agg=max", dict(gqa_agg="max")),
        ("gqa-sum", ",gqa_agg=sum,kernel=1", dict(gqa_agg="sum", kappa=1)),
        ("pool-heads-first", ",pool_before_group=1,gqa_agg=max", dict(pool_before_group=1, gqa_agg="max")),
        ("pool-rows-first", ",pool_rows_first=1", dict(pool_rows_first=1)),
        (
            "pool-rows-first-avg",
            ",pool_rows_first=1,pool=avg,avg_edge=shrink",
            dict(pool_rows_first=1, pool="avg", avg_edge="shrink"),
        ),
    ]:
        add(f"window-{name}", "snapkv", text=WINDOW + text, **several, **options)
    for name, text, options in [
        ("prior", ",aha_decode_prior=1", dict(aha_decode_prior=1)),
        ("prior-alone", ",aha_decode_prior=1,value_kernel=1", dict(aha_decode_prior=1, kappa_v=1)),
        ("logical", ",aha_decode_i=logical", dict(aha_decode_i="logical")),
        ("all-rows", ",aha_rows=all", dict(aha_rows="all")),
        ("score-pool", ",aha_score_pool=5", dict(aha_score_pool=5)),
        ("scaled", ",aha_units=scaled,aha_prior=0", dict(aha_units="scaled", aha_prior=0)),
        ("plain", ",aha_gain=0", dict(aha_gain=0)),
    ]:
        add(f"aha-{name}", "ahakv", text=RECENT + text, **several, **options)
    add("aha-prior-short", "ahakv", SHORT, RECENT + ",aha_decode_prior=1", aha_decode_prior=1)
    literal = dict(aha_decode_i="logical", aha_gain_floor=0)  # a gain below 1 just above the budget
    add("aha-logical-literal", "ahakv", SHORT, RECENT + ",aha_decode_i=logical,aha_gain_floor=0", **literal)
    add("h2o-count", "h2o", text=",h2o_norm=count,h2o_recent=5", h2o_norm="count", h2o_recent=5, **several)
    add("h2o-recent", "h2o", text=",h2o_recent=5", h2o_recent=5, **several)
    sums = dict(scissor_mode="sum")
    add("scissorhands-sum", "scissorhands", text=RECENT + ",scissor_mode=sum", **several, **sums)
    text = RECENT + ",scissor_mode=sum,history=7,drop=4"
    add("scissorhands-sum-history", "scissorhands", text=text, **several, **sums, history=7, drop=4)
    add("tova-kvhead", "tova", text=",tova_scope=kvhead", **several, tova_scope="kvhead")
    add("tova-unprotected", "tova", text=",protect_last=0", **several, protect_last=0)
    weighted = dict(n_sink=2, recent=0)
    add("weightedkv-unprotected", "weightedkv", text=",n_sink=2,recent=0", **several, **weighted)
    cam = dict(m_b=5, cam_expected=1, cam_denominator="max", n_sink=1)
    text = ",cam_prefill=oneshot,m_b=5,cam_expected=1,cam_denominator=max,n_sink=1"
    add("cam-expected", "cam", text=text, **several, **cam)
    nacl = dict(random_fraction=0.7, seed=9, n_sink=0)
    add("nacl-random", "nacl", text=RECENT + ",random_fraction=0.7,seed=9,n_sink=0", **several, **nacl)
    rows = dict(random_fraction=0.5, proxy_rows=5)
    add("nacl-rows", "nacl", C=33, text=RECENT + ",random_fraction=0.5,proxy_rows=5", **several, **rows)


def allocator_options(cases):
    add, several = cases.add, dict(parts=SEVERAL)
    for name, method, text, options in [
        ("locked", "ada-snapkv", ",ada_mode=safeguard,ada_locked=3", dict(ada_mode="safeguard", ada_locked=3)),
        ("lock-share", "ada-snapkv", ",ada_mode=safeguard,ada_floor=0.37", dict(ada_mode="safeguard", ada_floor=0.37)),
        ("normalized", "ada-snapkv", ",ada_normalize=1", dict(ada_normalize=1)),
        ("skip", "ada-snapkv", ",ada_skip=2,ada_floor=0.1", dict(ada_skip=2, ada_floor=0.1)),
        ("pyramid-skip", "ada-pyramid", ",ada_skip=2,beta=4", dict(ada_skip=2, beta=4)),
    ]:
        add(f"ada-{name}", method, text=WINDOW + text, **several, **options)
    add("pyramidkv-beta", "pyramidkv", text=WINDOW + ",beta=3.5", **several, beta=3.5)
    infer = dict(decay=0.3, ramp=3.0, n_sink=7)
    add("pyramidinfer-decay", "pyramidinfer", text=WINDOW + ",decay=0.3,ramp=3,n_sink=7", **several, **infer)
    spindle = WINDOW + ",spindle_code=always,"
    for name, text, options in [
        ("remaining", "tail=4,spindle_norm=remaining", dict(tail=4, spindle_norm="remaining")),
        ("mean", "tail=3,spindle_gqa=mean", dict(tail=3, spindle_gqa="mean")),
        ("low-cosines", "tail=0,theta_k=0.8,theta_v=0.7", dict(tail=0, theta_k=0.8, theta_v=0.7)),
        ("beta", "tail=4,spindle_beta=0.3", dict(tail=4, spindle_beta=0.3)),
        (
            "layer",
            "tail=4,spindle_scope=layer,theta_k=0.7,theta_v=0.6",
            dict(tail=4, spindle_scope="layer", theta_k=0.7, theta_v=0.6),
        ),
    ]:
        add(f"spindle-{name}", "spindlekv", C=40, text=spindle + text, **several, **options)


def in_cache(cases):
    for method, text in [
        ("h2o", ""),
        ("tova", ""),
        ("ahakv", RECENT),
        ("weightedkv", ""),
        ("cam", ",cam_prefill=oneshot"),
        ("scissorhands", RECENT),
        ("snapkv", WINDOW),
    ]:
        cases.add(f"incache-{method}", method, SEVERAL, text + ",pos_mode=incache", pos_mode="incache")


def reobserved(cases, ssv):
    several = [("prompt", 90), ("feed", 9), ("prompt", 30), ("feed", 7), ("prompt", 3), ("feed", 9)]
    short = [("prompt", 5), ("feed", 60), ("prompt", 4), ("feed", 8)]  # shorter than the window
    for parts_name, parts in (("", several), ("short-", short)):
        for method, text, options in [
            ("snapkv", "slack=5,pool=avg,kernel=5", dict(slack=5, pool="avg", kappa=5)),
            ("pyramidkv", "slack=2", dict(slack=2)),
            ("ada-snapkv", "slack=4", dict(slack=4)),
            ("cokv", "slack=3,alpha=3", dict(slack=3, alpha=3, scores=ssv)),
        ]:
            window = "" if method == "cokv" else WINDOW
            text = f"{window},decode=reobserve,{text}"
            cases.add(f"reobserve-{parts_name}{method}", method, parts, text, decode="reobserve", **options)


def under_other_allocators(cases, ssv, retrieval):
    cokv = ",allocator=cokv,alpha=3", dict(allocator="cokv", alpha=3, scores=ssv)
    headkv = (
        ",allocator=headkv,headkv_beta=1.5,temperature=2",
        dict(allocator="headkv-r2", headkv_beta=1.5, temperature=2.0, scores=retrieval),
    )
    pyramid = ",allocator=pyramid", dict(allocator="pyramidkv")
    for name, method, text, shares, fixed, options in [
        ("h2o-cokv", "h2o", ",h2o_recent=6", cokv, 6, dict(h2o_recent=6)),
        ("h2o-headkv", "h2o", ",h2o_recent=6", headkv, 6, dict(h2o_recent=6)),
        ("weightedkv-cokv", "weightedkv", ",recent=5", cokv, 9, dict(recent=5)),
        ("cam-cokv", "cam", ",cam_prefill=oneshot", cokv, 5, {}),
        ("nacl-cokv", "nacl", ",recent=6", cokv, 10, dict(recent=6)),
        ("scissorhands-pyramid", "scissorhands", ",recent=6", pyramid, 6, dict(recent=6)),
        ("tova-cokv", "tova", ",tova_scope=kvhead", cokv, 1, dict(tova_scope="kvhead")),
        ("aha-cokv", "ahakv", ",recent=6", cokv, 6, dict(recent=6)),
        ("position-headkv", "streaming-baseline", "", headkv, 5, {}),
    ]:
        cases.add(f"cell-{name}", method, ONE, text + shares[0], C=40, fixed=fixed, **shares[1], **options)


def stored_in_codes(cases):
    """What steps look at is what codes say (4.3)."""
    parts = [("prompt", 60), ("feed", 60)]  # long enough for other entries to stay than without codes
    for method, text, bits, residual in [
        ("h2o", "", 8, 0),
        ("h2o", "", 4, 6),
        ("tova", "", 4, 4),
        ("ahakv", RECENT, 4, 0),
        ("weightedkv", "", 8, 0),
    ]:
        options = dict(bits=bits, residual=residual, tolerance=5e-3)
        text += f",residual={residual}"
        cases.add(f"codes-{method}-{bits}", method, parts, text, kv=f"int{bits}", **options)


def run(model, ids, method, C, parts, options):
    """What is kept in the end; margins and the best logits after every part."""
    s = Sequence(model, method, C, options)
    at, kept, margin, best = 0, [], [], []
    for number, (kind, n) in enumerate(parts):
        part = ids[at : at + n]
        at += n
        logits = s.prompt(part) if kind == "prompt" else [s.feed(t) for t in part][-1]
        last = number == len(parts) - 1
        kept.append([[h.tolist() for h in layer] for layer in s.kept()] if last else None)
        margin.append([m if m is None else float(f"{m:.2g}") for m in s.margins()])
        order = np.argsort(-logits, kind="stable")[:3]
        best.append([[int(i), float(f"{logits[i]:.7g}")] for i in order])
    return dict(parts=parts, kept=kept, margin=margin, best=best)


def main():
    model_dir, prompts, out = sys.argv[1:4]
    model = Llama(model_dir)
    with open(prompts, encoding="utf-8") as f:
        prose = next(p for p in json.load(f)["prompts"] if p["name"].startswith("prose"))
    ids, rng, cases = prose["ids"][:N_IDS], np.random.default_rng(3), Cases()
    ssv = np.round(rng.normal(0, 0.01, model.L * model.n_kv), 6).tolist()
    retrieval = np.round(rng.exponential(0.05, (model.L, model.n_q)), 6).tolist()
    short_prompts(cases), scorer_options(cases), allocator_options(cases), in_cache(cases)
    reobserved(cases, ssv), under_other_allocators(cases, ssv, retrieval), stored_in_codes(cases)
    found, only = {}, sys.argv[4:]  # names; the others stay as they are in OUT_FILE
    if only:
        with open(out, encoding="utf-8") as f:
            found = json.load(f)["cases"]
    for name, (policy, method, C, parts, options) in cases.all.items():
        if only and name not in only:
            continue
        found[name] = dict(policy=policy, **run(model, ids, method, C, parts, options))
        for key in ("scores", "tolerance"):
            if key in options:
                found[name][key] = np.ravel(options[key]).tolist() if key == "scores" else options[key]
        least = min((m for part in found[name]["margin"] for m in part if m is not None), default=math.nan)
        print(f"{name}: closest decision {least:.1e}", flush=True)
    with open(out, "w", encoding="utf-8") as f:
        json.dump(dict(format="kvc-golden/1", ids=ids, cases=found), f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes tests/data/reference_windows: what compression must do to models whose layers differ.

  make_window_vectors.py ROOT [NAME]...   ROOT: the root of the repository; NAME: only these checkpoints

Needs the PyPI packages torch, transformers and numpy (made with torch 2.15.0 and transformers 5.23.0, on a CPU), and
the checkpoints of make_transformers_vectors.py. transformers computes everything: queries, keys and values of the
layers that see all tokens, from which the methods of oracle/ choose; then the whole text once more, where the tokens
behind the prompt see of these layers only what was chosen, head by head, and of the others their windows. Per method:
what every head keeps, and the logits behind some of the tokens that follow."""

import importlib
import json
import os
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "oracle"))
import llama  # noqa: E402
import mxfp4  # noqa: E402
import pipeline  # noqa: E402

BUDGET, WINDOW, PROMPT, FOLLOWS = 28, 8, 120, 30
LOOKS = [1, 2, 30]  # tokens behind the prompt
NAMES = ["hf_gemma2", "hf_gemma3", "hf_gemma3_by_type", "hf_exaone4", "hf_olmo3", "hf_ministral", "hf_gpt_oss"]
JUNK = 77.0  # scores of heads that nobody asks


def cases(rng, layers, n_q, n_kv, slides):
    """name -> (policy, method of the oracle, its options, the table [L, G or H] that the library is given)"""
    w = f"window={WINDOW}"
    spec = lambda method, extra="": f"{method}:budget={BUDGET},kv=f32{extra and ',' + extra}"
    ssv = np.round(rng.normal(0, 0.01, (layers, n_kv)), 6)
    retrieval = np.round(rng.exponential(0.05, (layers, n_q)), 6)
    seen = [i for i in range(layers) if not slides[i]]

    def table(scores):
        given = scores.copy()
        given[[i for i in range(layers) if slides[i]]] = JUNK
        return given.ravel().tolist()

    alpha = 1 if len(seen) * n_kv < 4 else 2
    return {
        "snapkv": (spec("snapkv", w), "snapkv", {}, None),
        "pyramidkv": (spec("pyramidkv", w), "pyramidkv", {}, None),
        "ada-snapkv": (spec("ada-snapkv", w), "ada-snapkv", {}, None),
        "h2o": (spec("h2o", "decode=grow"), "h2o", {}, None),
        "tova": (spec("tova", "decode=grow"), "tova", {}, None),
        "cokv": (
            spec("cokv", f"alpha={alpha}"),
            "cokv",
            dict(scores=ssv[seen].ravel().tolist(), alpha=alpha),
            table(ssv),
        ),
        "headkv-r2": (spec("headkv-r2"), "headkv-r2", dict(scores=retrieval[seen].tolist()), table(retrieval)),
    }


class Layer(llama.Layer):
    """Rows of attention with the scale, the cap and the sinks of the model."""

    def __init__(self, q, k, v, scale, cap, sinks):
        super().__init__(q, k, v, None)
        self.scale, self.cap, self.sinks = scale, cap, sinks

    def P(self, rows=None, gain=None):
        assert gain is None
        rows = np.arange(self.n) if rows is None else np.asarray(rows)
        keys = np.repeat(self.K, self.n_q // self.n_kv, 0)
        z = self.Q[:, rows] @ keys.transpose(0, 2, 1) * self.scale
        if self.cap is not None:
            z = self.cap * np.tanh(z / self.cap)
        z = np.where(np.arange(self.n) <= rows[:, None], z, -np.inf)
        if self.sinks is None:
            return llama.softmax(z)
        sinks = np.broadcast_to(self.sinks[:, None, None], (*z.shape[:2], 1))
        return llama.softmax(np.concatenate([z, sinks], -1))[..., :-1]


class Watched:
    """A model of transformers whose attention can be looked at, and told what each KV head may see."""

    def __init__(self, folder):
        if "gpt_oss" in folder:
            self.model = mxfp4.load(folder)
        else:
            self.model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        # By layer: q, k, v, scale, cap, sinks; [n_kv, n, n] what is hidden beside the mask.
        self.seen, self.hidden = {}, {}
        module = importlib.import_module(type(self.model).__module__)
        eager = module.eager_attention_forward

        def attention(layer, query, key, value, mask, **more):
            i = layer.layer_idx
            scale = more.get("scaling")
            self.seen[i] = [x[0].double().numpy() for x in (query, key, value)] + [scale, more.get("softcap")]
            sinks = getattr(layer, "sinks", None)
            self.seen[i].append(None if sinks is None else sinks.double().numpy())
            if i in self.hidden:
                group = query.shape[1] // key.shape[1]
                extra = np.repeat(np.where(self.hidden[i], -np.inf, 0), group, 0)
                mask = mask + torch.tensor(extra, dtype=mask.dtype)[None]
            return eager(layer, query, key, value, mask, **more)

        module.eager_attention_forward = attention

    def logits(self, ids, hidden):
        self.hidden = hidden
        return self.model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def make(root, name, seed):
    reference = os.path.join(root, "tests/data/reference", name)
    with open(os.path.join(reference, "logits.json"), encoding="utf-8") as file:
        ids = json.load(file)["ids"]
    rng = np.random.default_rng([seed, 3])
    ids = ids[:PROMPT] + rng.integers(0, 256, FOLLOWS).tolist()
    watched = Watched(reference)
    config = watched.model.config
    n_layers = config.num_hidden_layers
    slides = [t == "sliding_attention" for t in config.layer_types]
    watched.logits(ids[:PROMPT], {})
    prompt = dict(watched.seen)
    n_q, n_kv = prompt[0][0].shape[0], prompt[0][1].shape[0]
    layers = [Layer(*prompt[i][:3], *prompt[i][3:]) for i in range(n_layers) if not slides[i]]
    out = {}
    for case, (spec, method, options, table) in cases(rng, n_layers, n_q, n_kv, slides).items():
        _, report, _ = pipeline.compress(method, layers, BUDGET, **options)
        kept = [None if s else r for s, r in zip(slides, expand(slides, [r["kept"] for r in report]))]
        hidden = {}
        for i in range(n_layers):
            if slides[i]:
                continue
            hidden[i] = np.zeros((n_kv, len(ids), len(ids)), bool)
            for k in range(n_kv):
                gone = np.setdiff1d(np.arange(PROMPT), kept[i][k])
                hidden[i][k][np.ix_(np.arange(PROMPT, len(ids)), gone)] = True
        logits = watched.logits(ids, hidden)
        rows = {n: [float(f"{x:.7g}") for x in logits[PROMPT + n - 1]] for n in LOOKS}
        out[case] = {
            "policy": spec,
            "kept": [None if k is None else [h.tolist() for h in k] for k in kept],
            "logits": [{"n": n, "values": values} for n, values in rows.items()],
        }
        if table is not None:
            out[case]["scores"] = table
        margins = np.concatenate([np.ravel(r["margin"]) for r in report if r.get("margin") is not None] or [[]])
        margins = [m for m in margins.tolist() if m is not None]
        print(f"{name} {case}: closest decision {min(margins, default=float('nan')):.2g}")
    content = {"window": config.sliding_window, "prompt": PROMPT, "ids": ids, "cases": out}
    path = os.path.join(root, "tests/data/reference_windows")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"))
        file.write("\n")


def expand(slides, of_others):
    found = iter(of_others)
    return [None if s else next(found) for s in slides]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        for seed, name in enumerate(NAMES):
            if name in sys.argv[2:] or len(sys.argv) == 2:
                make(sys.argv[1], name, seed)


main()

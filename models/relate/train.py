"""Trains `relate` from random weights, or `join` from those of `relate`, on one processor core, stage by stage.
See README.md and ../join/README.md."""
import argparse
import json
import os
import struct
import time

import torch
import torch.nn.functional as F
from torch import nn

import documents
import recipes
import tasks
from documents import bpe

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 256,
          "rms_norm_eps": 1e-5,
          "rope_theta": 500000.0, "hidden_act": "silu", "vocab_size": 2048, "tie_word_embeddings": True,
          "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
          "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16"}
LAYERS, SIZE, HEADS = CONFIG["num_hidden_layers"], CONFIG["head_dim"], CONFIG["num_attention_heads"]
BACK = 4  # tokens back that probes ask for
BASE_LR = .02  # of Muon, at which AdamW's rates are as they are given

class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, CONFIG["rms_norm_eps"])


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        h = CONFIG["hidden_size"]
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(h, HEADS * SIZE, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(HEADS * SIZE, h, bias=False)

    def forward(self, x, cos, sin):
        rows, tokens, _ = x.shape
        qkv = F.linear(x, torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)))
        q, k, v = (y.view(rows, tokens, HEADS, SIZE).transpose(1, 2) for y in qkv.chunk(3, -1))
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, tokens, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        h, f = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False)
        self.down_proj = nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(CONFIG["hidden_size"]), Norm(CONFIG["hidden_size"])
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Names as in a checkpoint of transformers' LlamaForCausalLM, below `model.`; the head is the embeddings."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm(CONFIG["hidden_size"])
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = any(x in name for x in ("o_proj", "down_proj"))
                nn.init.normal_(p, std=.05 if "embed" in name else (.3 if last else 1) * p.shape[1] ** -.5)

    def head(self, x):
        return F.linear(self.norm(x), self.embed_tokens.weight)

    def forward(self, ids, pos, wanted):
        """Logits [wanted.sum(), vocabulary] behind the places `wanted` [rows, tokens], and what left layers 0 and 1."""
        inv = CONFIG["rope_theta"] ** (-torch.arange(0, SIZE, 2).float() / SIZE)
        angle = (pos.float()[..., None] * inv).repeat(1, 1, 2)[:, None]
        cos, sin = angle.cos(), angle.sin()
        x = self.embed_tokens(ids)
        left = []
        for layer in self.layers:
            x = layer(x, cos, sin)
            left.append(x)
        return self.head(x[wanted]), left[:2]


def probe(model, maps, first, ids, places=384):
    """Loss of telling the tokens 1 to BACK back from what left layer 0 at some places."""
    flat = torch.randint(ids.numel(), (places,))
    row, at = flat // ids.shape[1], (flat % ids.shape[1]).clamp(min=BACK)
    x = F.rms_norm(first[row, at], (first.shape[-1],))
    return sum(F.cross_entropy(F.linear(x @ m, model.embed_tokens.weight), ids[row, at - 1 - i])
               for i, m in enumerate(maps)) / BACK


def told_between(model, tell, second, between):
    """Loss of telling, from what left layer 1 where a question ends, what the first of its two facts says."""
    if not between: return torch.zeros(())
    row, place, piece = torch.tensor(between).T
    x = F.rms_norm(second[row, place], (second.shape[-1],))
    return F.cross_entropy(F.linear(x @ tell, model.embed_tokens.weight), piece)


class Muon:
    """Momentum, made orthogonal (Newton-Schulz), for the matrices of the layers; matrices of one shape go together."""

    def __init__(self, params, momentum=.95):
        self.groups, self.momentum, self.buffer = {}, momentum, {}
        for p in params: self.groups.setdefault(tuple(sorted(p.shape)), []).append(p)

    @torch.no_grad()
    def step(self, lr, decay):
        for params in self.groups.values():
            grads = []
            for p in params:
                m = self.buffer.setdefault(p, torch.zeros_like(p)).lerp_(p.grad, 1 - self.momentum)
                g = p.grad.lerp(m, self.momentum)
                grads.append(g if g.shape[0] <= g.shape[1] else g.T)
            x = torch.stack(grads)
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                a = x @ x.mT
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            for p, u in zip(params, x):
                u = u if p.shape[0] <= p.shape[1] else u.T
                p.mul_(1 - lr * decay).add_(u, alpha=-lr * max(1, p.shape[0] / p.shape[1]) ** .5)


def read(model, path):
    """Weights as `save` writes them."""
    with open(path, "rb") as file: raw = file.read()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    weights = {}
    for name, of in json.loads(raw[8:begin]).items():
        first, end = of["data_offsets"]
        weights[name.removeprefix("model.")] = torch.frombuffer(
            bytearray(raw[begin + first:begin + end]), dtype=torch.bfloat16).float().view(of["shape"])
    model.load_state_dict(weights)


def save(model, folder, state):
    os.makedirs(folder, exist_ok=True)
    torch.save(state, os.path.join(folder, "state.tmp"))
    os.replace(os.path.join(folder, "state.tmp"), os.path.join(folder, "state.pt"))
    header, blobs, at = {}, [], 0
    for name, p in model.state_dict().items():
        blob = p.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header["model." + name] = {"dtype": "BF16", "shape": list(p.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(CONFIG, indent=1) + "\n")


def marks(best, ids, spans, right, asked):
    """Adds to `right` and `asked`, by kind, which answers are wholly the most likely tokens; repeats count by token."""
    for i, row in enumerate(spans):
        for kind, first, end in row:
            same = best[i, first - 1:end - 1] == ids[i, first:end]
            asked[kind] = asked.get(kind, 0) + 1
            right[kind] = right.get(kind, 0) + float(same.float().mean() if kind == "repeats" else same.all())


@torch.no_grad()
def accuracy(model, docs, tokens, rows, mix):
    right, asked, at_once = {}, {}, max(1, 8192 // tokens)
    for _ in range(max(1, rows // at_once)):
        ids, pos, _, spans, _ = documents.batch(docs, at_once, tokens, mix, 0)
        ids, wanted = torch.from_numpy(ids), torch.zeros(ids.shape, dtype=torch.bool)
        for i, row in enumerate(spans):
            for _, first, end in row: wanted[i, first - 1:end - 1] = True
        best = torch.zeros(ids.shape, dtype=torch.long)
        best[wanted] = model(ids, torch.from_numpy(pos), wanted)[0].argmax(-1)
        marks(best, ids, spans, right, asked)
    return {k: f"{right[k] / asked[k]:.3f} of {asked[k]}" for k in sorted(asked)}


class Run:
    """A model, what it has cost and how far it is; goes on from OUT/state.pt where there is one."""

    def __init__(self, a):
        torch.manual_seed(a.seed)
        h = CONFIG["hidden_size"]
        self.recipe = recipes.RECIPES[a.recipe]
        self.out, self.model, self.embed_lr, self.adam_lr = a.out, Model(), a.embed_lr, a.adam_lr
        self.maps = [nn.Parameter(torch.randn(h, h) * h ** -.5) for _ in range(BACK)]
        self.tell = nn.Parameter(torch.eye(h) * 3 * h ** -.5)
        if a.begin: read(self.model, a.begin)
        self.stage, self.spent = 0, {"seconds": 0., "tokens": 0, "steps": 0, "of stage": 0.}
        path = os.path.join(a.out, "state.pt")
        if os.path.exists(path):
            state = torch.load(path)
            self.model.load_state_dict(state["model"])
            self.stage, self.spent = state.get("stage", 0), {**self.spent, **state["spent"]}
            with torch.no_grad():
                for m, old in zip(self.maps, state["maps"]): m.copy_(old)
                self.tell.copy_(state.get("tell", self.tell))
            torch.manual_seed(a.seed + self.spent["steps"])

    def save(self):
        save(self.model, self.out, {"model": self.model.state_dict(), "maps": [m.data for m in self.maps],
                                    "tell": self.tell.data, "stage": self.stage, "spent": self.spent})

    def train(self, docs, of):
        """One stage of the recipe."""
        model, maps, spent = self.model, self.maps, self.spent
        matrices = [q for n, q in model.named_parameters() if n.startswith("layers") and q.dim() == 2]
        others = [q for n, q in model.named_parameters() if q.dim() == 1]
        adam = torch.optim.AdamW([{"params": others + maps + [self.tell], "base": self.adam_lr},
                                  {"params": [model.embed_tokens.weight], "base": self.embed_lr}],
                                 betas=(.9, .98), weight_decay=0)
        muon, mix = Muon(matrices), self.recipe.mixes[of["mix"]]
        rows, tokens, until = of["batch"] // of["tokens"], of["tokens"], of.get("until", {})
        right, asked, losses, step, now, saved = {}, {}, [], 0, time.process_time(), 0.
        while spent["of stage"] < 60 * of["minutes"]:
            lr = of["lr"][0] + (of["lr"][1] - of["lr"][0]) * spent["of stage"] / (60 * of["minutes"])
            lr *= min(1, (step + 1) / 30)
            for g in adam.param_groups: g["lr"] = g["base"] * lr / BASE_LR
            ids, pos, w, spans, between = documents.batch(docs, rows, tokens, mix, of["reach"])
            ids, w = torch.from_numpy(ids), torch.from_numpy(w)
            wanted = torch.zeros(ids.shape, dtype=torch.bool)
            wanted[:, :-1] = w[:, 1:] > 0
            logits, (first, second) = model(ids, torch.from_numpy(pos), wanted)
            weight = w[:, 1:][wanted[:, :-1]]
            each = F.cross_entropy(logits, ids[:, 1:][wanted[:, :-1]], reduction="none")
            loss = (each * weight).sum() / weight.sum().clamp(min=1)
            told = probe(model, maps, first, ids) if of.get("probe") else torch.zeros(())
            via = told_between(model, self.tell, second, between) if of.get("between") else torch.zeros(())
            model.zero_grad(set_to_none=True)
            for m in (*maps, self.tell): m.grad = None
            (loss + of.get("probe", 0) * told + of.get("between", 0) * via).backward()
            adam.step()
            muon.step(lr, .05)
            step += 1
            seconds, now = time.process_time() - now, time.process_time()
            spent.update({"seconds": spent["seconds"] + seconds, "tokens": spent["tokens"] + ids.numel(),
                          "steps": spent["steps"] + 1, "of stage": spent["of stage"] + seconds})
            losses.append((loss.item(), told.item(), via.item()))
            if step % 4 == 0:
                best = torch.zeros(ids.shape, dtype=torch.long)
                best[wanted] = logits.argmax(-1)
                marks(best, ids, spans, right, asked)
            if step % 20 == 0:
                mean = [sum(x) / len(x) for x in zip(*losses)]
                print(time.strftime("%H:%M:%S"), f"stage {self.stage} step {spent['steps']} "
                      f"{spent['tokens'] / 1e6:.2f}M tokens {spent['seconds']:.0f} s loss {mean[0]:.3f} "
                      f"probe {mean[1]:.3f} between {mean[2]:.3f}",
                      {k: round(right[k] / asked[k], 3) for k in sorted(asked)}, flush=True)
                reached = until and all(asked.get(k) and right[k] / asked[k] > x for k, x in until.items())
                right, asked, losses = {}, {}, []
                if reached: break
            if spent["of stage"] - saved > 30:
                self.save()
                saved = spent["of stage"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("corpus", help="folder of the books to train on")
    p.add_argument("heldout", help="folder of the books to measure on")
    p.add_argument("out", help="where the checkpoint goes, and state.pt, from which the same command goes on")
    p.add_argument("--recipe", choices=sorted(recipes.RECIPES), default="relate")
    p.add_argument("--begin", help="model.safetensors to begin with; none: random weights")
    p.add_argument("--stage", type=int, help="go on with this stage of the recipe")
    p.add_argument("--stages", type=int, help="end before this one")
    p.add_argument("--adam-lr", type=float, default=.004, help="of norms and probes")
    p.add_argument("--embed-lr", type=float, default=.002)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--measure", default="256,1024,4096", help="tokens of the rows to measure on in the end")
    a = p.parse_args()
    torch.set_num_threads(1)
    os.makedirs(a.out, exist_ok=True)
    tok = bpe.load_hf(os.path.join(HERE, "tokenizer.json"))
    known = [n for n in tasks.NAMES if n not in tasks.HELDOUT_NAMES]
    run = Run(a)
    if a.stage is not None: run.stage, run.spent["of stage"] = a.stage, 0.
    recipe = run.recipe
    docs = documents.Documents(tok, a.corpus, known, a.seed + run.spent["steps"], a.out, recipe)
    n_stages = len(recipe.stages) if a.stages is None else min(a.stages, len(recipe.stages))
    while run.stage < n_stages:
        run.train(docs, recipe.stages[run.stage])
        run.stage, run.spent["of stage"] = run.stage + 1, 0.
        run.save()
    for tokens in map(int, a.measure.split(",") if a.measure else ()):
        for label, names in (("known", known), ("held-out", tasks.HELDOUT_NAMES)):
            held = documents.Documents(tok, a.heldout, names, 77, a.out, recipe)
            held.words = []
            print(tokens, label, "names", accuracy(run.model, held, tokens, 131072 // tokens, recipe.mixes["long"]),
                  flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What PyTorch takes for what the targets of the CUDA backend compare with: the largest product, attention of ragged
heads and of a prompt, and appending, steps and compression as the research code on budgets of single heads formulates
them. Written from the
descriptions of these, none of its code; every form is checked against plain attention before it is measured. One line
a measurement; what fails says why, and the others go on.

  python3 bench/gpu_peers.py                  # all but the compiled model; made to take less than a minute
  python3 bench/gpu_peers.py --only "attend"  # those with this in their names
  python3 bench/gpu_peers.py --all            # the compiled model too, which may compile for a minute
  python3 bench/gpu_peers.py --device cpu --small    # tiny shapes: whether it runs, no speed
"""
import argparse
import dataclasses
import json
import sys

import gpu_peers_model
import gpu_torch

WINDOW, POOL, FLOOR = 32, 7, 0.2  # rows that are looked at, scores that are pooled, the share every head has for sure


# ---- what the device reaches in products ----


def product(bench, dtype):
    n = bench.sizes.product
    rows, weights = (bench.normal(n, n).to(dtype) for _ in range(2))
    out = bench.torch.empty_like(rows)
    got = bench.timed(lambda: bench.torch.matmul(rows, weights.T, out=out), f"torch.matmul of {n} x {n} x {n}")
    return dataclasses.replace(got, flops=2 * n**3)


# ---- attention of ragged heads ----


def fastest(found, said):
    """Of several ways to the same numbers; said: what became of each."""
    best = min(found, key=lambda got: got.seconds)
    return dataclasses.replace(best, what=f"{best.what}; tried: {'; '.join(said)}")


def attend_ragged(bench):
    """The best of the forms."""
    lengths = gpu_torch.ragged_lengths(bench.sizes.ragged)
    layers = [gpu_torch.flat(bench, lengths) for _ in range(bench.copies(4 * sum(lengths) * bench.sizes.head_dim))]
    forms, said = gpu_torch.forms(bench)
    found = []
    for form in forms:
        run, how = bench.graphed(lambda form=form: [form.attend(*layer, lengths) for layer in layers])
        found.append(bench.timed(run, f"{form.name}; {len(layers)} layers, {how}", len(layers)))
        said.append(f"{form.name}: {found[-1].seconds * 1e6:.1f} us")
    return fastest(found, said)


def attend_padded(bench):
    """As a batch of sequences as long as the longest; what they do not have is masked."""
    torch, s = bench.torch, bench.sizes
    lengths = gpu_torch.ragged_lengths(s.ragged)
    longest = max(lengths)
    there = torch.arange(longest, device=bench.device) < bench.integers(lengths)[:, None]
    mask = torch.zeros(s.kv_heads, 1, s.group, longest, dtype=torch.bfloat16, device=bench.device)
    mask.masked_fill_(~there[:, None, None], float("-inf"))
    q = bench.normal(s.kv_heads, 1, s.group, s.head_dim)
    n = bench.copies(4 * longest * s.kv_heads * s.head_dim)
    layers = [[bench.normal(s.kv_heads, 1, longest, s.head_dim) for _ in range(2)] for _ in range(n)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    run, how = bench.graphed(lambda: [sdpa(q, k, v, attn_mask=mask) for k, v in layers])
    return bench.timed(run, f"SDPA over heads padded to {longest} entries, masked; {n} layers, {how}", n)


def attend_uniform(bench):
    """Heads that are as long as each other: the best of the backends. A KV head's query heads are heads, or rows of one
    head, which is the same where none is causal."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    s, sdpa = bench.sizes, bench.torch.nn.functional.scaled_dot_product_attention
    n = bench.copies(4 * s.uniform * s.kv_heads * s.head_dim)
    layers = [[bench.normal(1, s.kv_heads, s.uniform, s.head_dim) for _ in range(2)] for _ in range(n)]
    as_heads = bench.normal(1, s.heads, 1, s.head_dim), {"enable_gqa": True}
    as_rows = as_heads[0].view(1, s.kv_heads, s.group, s.head_dim), {}
    found, said = [], []
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        for kind, (q, grouped) in (("query heads as heads", as_heads), ("query heads as rows", as_rows)):
            name = f"SDPA, {backend} alone, {kind}"
            try:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    run, how = bench.graphed(
                        lambda q=q, grouped=grouped: [sdpa(q, k, v, **grouped) for k, v in layers])
                    found.append(bench.timed(run, f"{name}; {n} layers of {s.uniform} entries, {how}", n))
            except Exception as error:  # noqa: BLE001  what a backend cannot do here
                said.append(f"{name}: {gpu_torch.first_line(error)[:80]}")
                continue
            said.append(f"{name}: {found[-1].seconds * 1e6:.1f} us")
    if not found:
        raise RuntimeError(f"no backend runs here: {'; '.join(said)}")
    return fastest(found, said)


# ---- entries are appended to flat caches ----


class GrowingLayer:
    """Of flat entries of ragged heads, the new one of every head behind all of them, into others where each head has
    its new one at its own end: so nothing else copies the new ones, and one gather a tensor does it all."""

    def __init__(self, bench, lengths, dtype):
        self.torch, self.old, first = bench.torch, [], 0
        places = []
        for head, n in enumerate(lengths):
            places += [*range(first, first + n), sum(lengths) + head]
            first += n
        for _ in range(2):  # keys, values: of bf16, moved as numbers of `dtype`
            self.old.append(bench.normal(len(places), bench.sizes.head_dim).view(dtype))
        self.new = [bench.torch.empty_like(x) for x in self.old]
        self.places = bench.integers(places, bench.torch.int64)

    def run(self):
        for old, new in zip(self.old, self.new):
            self.torch.index_select(old, 0, self.places, out=new)


def append_research(bench):
    """The faster of moving numbers as they are and four at once."""
    lengths = gpu_torch.ragged_lengths(bench.sizes.appended)
    n, best = bench.copies(8 * sum(lengths) * bench.sizes.head_dim), None
    for dtype in (bench.torch.bfloat16, bench.torch.int64):
        layers = [GrowingLayer(bench, lengths, dtype) for _ in range(n)]
        run, how = bench.graphed(lambda layers=layers: [layer.run() for layer in layers])
        what = (f"update_flatten_view as PyTorch has it, not the CUDA file of its authors: {sum(lengths)} flat entries "
                f"and {len(lengths)} new ones, a gather for keys and one for values, indices made before, "
                f"as {str(dtype).split('.')[-1]}; {n} layers, {how}")
        got = bench.timed(run, what, n)
        best = got if best is None or got.seconds < best.seconds else best
        del layers, run
    return best


# ---- attention of a prompt ----


def attend_prompt(bench, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    s = bench.sizes
    q = bench.normal(1, s.heads, s.prompt, s.head_dim)
    k, v = (bench.normal(1, s.kv_heads, s.prompt, s.head_dim) for _ in range(2))
    sdpa = bench.torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return bench.timed(lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True), f"SDPA, {backend} alone, causal")


# ---- a layer of a prompt is compressed ----


class AdaptiveLayer:
    """What stays of a layer by the scores of its last rows, where heads share the layer's budget: steps as the research
    code takes them, each its own operation over memory."""

    def __init__(self, bench):
        s, self.bench = bench.sizes, bench
        self.q = bench.normal(s.heads, WINDOW, s.head_dim)
        self.k, self.v = (bench.normal(s.kv_heads, s.compressed, s.head_dim) for _ in range(2))
        self.base = s.budget - WINDOW  # entries a head on the mean, beside those of the window

    def scores(self):
        """[Hk, n - window], of the entries before the window."""
        torch, s = self.bench.torch, self.bench.sizes
        repeated = self.k.repeat_interleave(s.group, dim=0)
        logits = self.q @ repeated.transpose(1, 2) / s.head_dim**0.5
        later = torch.ones(WINDOW, WINDOW, dtype=torch.bool, device=self.bench.device).triu(1)
        logits[:, :, -WINDOW:].masked_fill_(later, float("-inf"))
        seen = torch.softmax(logits, dim=-1, dtype=torch.float32).to(self.q.dtype)[:, :, :-WINDOW].mean(1)
        pooled = torch.nn.functional.avg_pool1d(seen[None], POOL, stride=1, padding=POOL // 2)[0]
        return pooled.view(s.kv_heads, s.group, -1).mean(1)

    def counts(self, ordered):
        """Entries of every head, on the host: the best of all heads together, and a share that is for sure."""
        heads, n = ordered.shape
        sure = int(self.base * FLOOR)
        best = ordered.flatten().topk(heads * self.base).indices // n
        won = self.bench.torch.bincount(best, minlength=heads)
        return (sure + (won * (1 - FLOOR)).long()).clamp(max=n).tolist()  # waits for the device

    def run(self):
        torch = self.bench.torch
        ordered, places = self.scores().sort(dim=-1, descending=True)
        keys, values, lengths = [], [], []
        for head, count in enumerate(self.counts(ordered)):
            at = places[head, :count, None].expand(-1, self.k.shape[-1])
            for kept, x in ((keys, self.k[head]), (values, self.v[head])):
                kept.append(torch.cat([x[:-WINDOW].gather(0, at), x[-WINDOW:]]))
            lengths.append(count + WINDOW)
        return torch.cat(keys), torch.cat(values), gpu_torch.ends_of(self.bench, lengths)


def compress_research(bench):
    s = bench.sizes
    layers = [AdaptiveLayer(bench) for _ in range(bench.copies(4 * s.compressed * s.kv_heads * s.head_dim))]
    what = f"sorts, one budget for a layer's heads, split on the host; {s.compressed} entries a head to {s.budget}"
    return bench.timed(lambda: [layer.run() for layer in layers], f"{what}; {len(layers)} layers", len(layers))


# ---- the best scores ----


def topk(bench):
    """Of scores that lie in caches, as ours do."""
    s = bench.sizes
    scores, n = bench.normal(s.kv_heads, s.selected).float(), 2 if bench.small else 10
    run, how = bench.graphed(lambda: [bench.torch.topk(scores, s.budget, sorted=False) for _ in range(n)])
    return bench.timed(run, f"torch.topk of f32, the best {s.budget} in no order; {n} times, {how}", n)


# ---- the program ----


def peers(sizes, everything):
    """name -> what measures it; first what targets are judged by."""
    ragged, prompt = f"attend ragged 1 of {sizes.ragged}", f"attend prompt {sizes.prompt}"
    table = {
        ragged: attend_ragged,
        f"attend uniform 1 of {sizes.uniform}": attend_uniform,
        prompt: lambda bench: attend_prompt(bench, "FLASH_ATTENTION"),
        f"append research {sizes.appended}": append_research,
        f"compress research {sizes.compressed}": compress_research,
        f"topk {sizes.kv_heads} rows of {sizes.selected}": topk,
        f"step research {sizes.name}": gpu_peers_model.research,
        f"step research {gpu_torch.SMALLER[sizes].name}": lambda bench: gpu_peers_model.research(bench.of_smaller()),
        f"product {sizes.product} bf16": lambda bench: product(bench, bench.torch.bfloat16),
        f"product {sizes.product} f16": lambda bench: product(bench, bench.torch.float16),
        f"{ragged}, padded": attend_padded,
        f"{prompt}, cuDNN": lambda bench: attend_prompt(bench, "CUDNN_ATTENTION"),
    }
    return table | ({f"step compiled {sizes.name}": gpu_peers_model.compiled} if everything else {})


def measured(bench, name, measure):
    """The row of a peer."""
    try:
        with bench.torch.inference_mode():
            row = dataclasses.asdict(measure(bench))
    except Exception as error:  # noqa: BLE001  the others go on
        row = {"error": f"{type(error).__name__}: {gpu_torch.first_line(error)}"}
    if bench.cuda:
        bench.torch.cuda.empty_cache()
    return {"peer": name, **row, "library": f"PyTorch {bench.torch.__version__}"}


def shown(row):
    if "error" in row:
        return f"{row['peer']:<36} {row['error']}"
    return f"{row['peer']:<36} {row['seconds'] * 1e6:12.1f} us  n={row['n']}  {row['what']}"


def options(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny shapes (tests)")
    parser.add_argument("--only", default="", metavar="NAME", help="those with this in their names")
    parser.add_argument("--all", action="store_true", help="the compiled model too, last")
    return parser.parse_args(argv)


def main(argv=None):
    args = options(argv)
    try:
        import torch
    except ImportError as error:
        sys.exit(f"gpu_peers: PyTorch is not there: {gpu_torch.first_line(error)}")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit(f"gpu_peers: this PyTorch ({torch.__version__}) has no CUDA device")
    if not args.device.startswith("cuda") and not args.small:
        sys.exit("gpu_peers: a processor has time for --small alone")
    if args.device.startswith("cuda"):
        torch.cuda.set_device(torch.device(args.device))
    bench = gpu_torch.Bench(torch, args.device, args.small)
    for name, measure in peers(bench.sizes, args.all).items():
        if args.only in name:
            row = measured(bench, name, measure)
            print(json.dumps(row) if args.json else shown(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

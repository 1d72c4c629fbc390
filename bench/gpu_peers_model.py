"""Steps of a model in PyTorch, of random weights in a known shape (bench/gpu_peers.py): as the research code on budgets
of single heads takes them, and compiled over a static cache."""
import contextlib
import dataclasses
import functools
import signal

import gpu_torch

EPSILON, THETA = 1e-5, 5e5
ROOM = 128  # entries of a static cache beside those that are there
COMPILING = 60  # seconds at most


class Network:
    """The weights: as wide as networks have them, so that activations neither grow nor fade."""

    def __init__(self, bench):
        s, torch = bench.sizes, bench.torch
        kv = s.kv_heads * s.head_dim
        shapes = {"q": (s.heads * s.head_dim, s.hidden), "k": (kv, s.hidden), "v": (kv, s.hidden),
                  "o": (s.hidden, s.heads * s.head_dim), "gate": (s.ffn, s.hidden), "up": (s.ffn, s.hidden),
                  "down": (s.hidden, s.ffn)}  # fmt: skip
        ones = torch.ones(s.hidden, dtype=torch.bfloat16, device=bench.device)
        self.layers = [
            {name: bench.normal(*shape, scale=shape[1] ** -0.5) for name, shape in shapes.items()}
            | {"attention_norm": ones, "ffn_norm": ones}
            for _ in range(s.layers)
        ]
        self.embedding = bench.normal(s.vocabulary, s.hidden)
        self.head, self.norm = bench.normal(s.vocabulary, s.hidden, scale=s.hidden**-0.5), ones
        self.frequencies = THETA ** (-torch.arange(0, s.head_dim, 2, device=bench.device) / s.head_dim)

    def angles(self, torch, position):
        """cos and sin of a position (a tensor of one number), f32 [1, D]."""
        turned = (position * self.frequencies).repeat(2)[None]
        return torch.cos(turned), torch.sin(turned)


@functools.lru_cache(maxsize=1)
def network(bench):
    return Network(bench)


def normed(x, weight):
    wide = x.float()
    return weight * (wide * (wide.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype)


def rotated(torch, x, angles):
    cos, sin = (part.to(x.dtype) for part in angles)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def projected(torch, sizes, w, x, angles):
    """Queries [Hq, D], keys and values [Hk, D] of a row."""
    linear, rows = torch.nn.functional.linear, normed(x, w["attention_norm"])
    q, k, v = (linear(rows, w[name]).view(-1, sizes.head_dim) for name in "qkv")
    return rotated(torch, q, angles), rotated(torch, k, angles), v


def finished(torch, w, x, attended):
    linear = torch.nn.functional.linear
    x = x + linear(attended.reshape(1, -1), w["o"])
    rows = normed(x, w["ffn_norm"])
    return x + linear(torch.nn.functional.silu(linear(rows, w["gate"])) * linear(rows, w["up"]), w["down"])


def chosen(torch, net, x):
    return torch.nn.functional.linear(normed(x, net.norm), net.head).argmax(-1)


# ---- as the research code steps ----


@dataclasses.dataclass
class Places:
    """Of all layers, for one step: where entries of the flat caches go, where the new ones go, and where heads begin
    and end then."""

    moved: object  # [L, n]
    new: object  # [L, Hk]
    ends: object  # [L, Hk + 1], int32


class FlatCaches:
    """Of every layer keys and values [2, n, D], entries of a head behind each other, heads of any length."""

    def __init__(self, bench, lengths):
        self.bench, self.torch = bench, bench.torch
        self.lengths = [list(of_layer) for of_layer in lengths]
        self.n = sum(lengths[0])  # of every layer: heads share its budget
        self.kv = [bench.normal(2, self.n, bench.sizes.head_dim) for _ in lengths]
        self.on_device = bench.integers(self.lengths, self.torch.int64)
        self.heads = self.torch.arange(len(lengths[0]), device=bench.device)

    def places(self):
        """Of the next step; every head is one entry longer then."""
        torch, layers = self.torch, len(self.lengths)
        owner = torch.repeat_interleave(self.heads.repeat(layers), self.on_device.flatten(),
                                        output_size=layers * self.n).view(layers, -1)  # fmt: skip
        moved = owner + torch.arange(self.n, device=self.bench.device)
        new = self.on_device.cumsum(1) + self.heads
        ends = torch.nn.functional.pad(new + 1, (1, 0)).int()
        self.on_device += 1
        self.n += self.heads.numel()
        self.lengths = [[n + 1 for n in of_layer] for of_layer in self.lengths]
        return Places(moved, new, ends)

    def append(self, layer, places, k, v):
        """A new flat cache, into which all of the old one is copied."""
        old = self.kv[layer]
        kv = self.torch.empty(2, self.n, old.shape[-1], dtype=old.dtype, device=old.device)
        kv.index_copy_(1, places.moved[layer], old)
        kv.index_copy_(1, places.new[layer], self.torch.stack([k, v]))
        self.kv[layer] = kv
        return kv[0][:, None], kv[1][:, None]


class ResearchStep:
    def __init__(self, bench, form):
        s, self.bench, self.form, self.net = bench.sizes, bench, form, network(bench)
        self.caches = FlatCaches(bench, [gpu_torch.ragged_lengths(s.budget, layer) for layer in range(s.layers)])
        self.position, self.token = s.depth, bench.integers([1], bench.torch.int64)

    def run(self):
        torch, s, net = self.bench.torch, self.bench.sizes, self.net
        x = net.embedding[self.token]
        angles = net.angles(torch, self.bench.integers([self.position]))
        places = self.caches.places()
        for layer, w in enumerate(net.layers):
            q, k, v = projected(torch, s, w, x, angles)
            keys, values = self.caches.append(layer, places, k, v)
            grouped = q.view(s.kv_heads, s.group, s.head_dim)
            attended = self.form.attend(grouped, keys, values, places.ends[layer], self.caches.lengths[layer])
            x = finished(torch, w, x, attended)
        self.token = chosen(torch, net, x)
        self.position += 1
        return self.token.item()  # whether it ends the answer is asked behind every step


def research(bench):
    form = gpu_torch.forms(bench)[0][0]
    step = ResearchStep(bench, form)
    what = f"eager, {bench.sizes.budget} entries a head on the mean; the flat cache is copied at every step by index "
    return bench.timed(step.run, f"{what}copies (the original: a kernel of its own); attention: {form.name}")


# ---- compiled, over a static cache ----


@contextlib.contextmanager
def within(seconds, what):
    def late(*_):
        raise TimeoutError(f"{what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def static_layer(torch, sizes):
    """A layer's step over kv [2, Hk, S, D], of which the entries up to `at` are there."""

    def run(x, w, kv, at, cos, sin, mask):
        q, k, v = projected(torch, sizes, w, x, (cos, sin))
        kv.index_copy_(2, at, torch.stack([k, v])[:, :, None])
        grouped = q.view(1, sizes.kv_heads, sizes.group, sizes.head_dim)
        attended = torch.nn.functional.scaled_dot_product_attention(grouped, kv[0][None], kv[1][None], attn_mask=mask)
        return finished(torch, w, x, attended)

    return run


def compiled(bench):
    torch, s, net = bench.torch, bench.sizes, network(bench)
    caches = [bench.normal(2, s.kv_heads, s.budget + ROOM, s.head_dim) for _ in range(s.layers)]
    at, token = (bench.integers([n], torch.int64) for n in (s.budget, 1))
    layer = torch.compile(static_layer(torch, s), fullgraph=True, dynamic=False)
    last = torch.compile(functools.partial(chosen, torch, net), fullgraph=True, dynamic=False)

    def step():
        x = net.embedding[token]
        cos, sin = net.angles(torch, at)
        mask = (torch.arange(s.budget + ROOM, device=bench.device) <= at)[None, None, None]
        for w, kv in zip(net.layers, caches):
            x = layer(x, w, kv, at, cos, sin, mask)
        token.copy_(last(x))

    with within(COMPILING, "compiling"):
        step()
    run, how = bench.graphed(step)
    return bench.timed(run, f"torch.compile of a layer, static cache of {s.budget + ROOM} entries a head, SDPA; {how}")

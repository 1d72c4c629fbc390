"""Section 1.9: a prompt of q tokens behind a cache that was compressed before. Its rows attend to what is cached and to
each other; then the layer is reduced to the same budget. Candidates are all entries but the newest, rows those of the
new tokens; accumulated sums go on."""

import math
import numpy as np
import methods as M
import pipeline
from later_reduce import REDUCE, after_layer_books, duo_counts, reduce_kvzip, reduce_reread, reduce_window
from llama import rotate, softmax


class Rows:
    """What the rows of a prompt saw of a KV head: logits z [g, q, len], -inf where nothing is seen; P their softmax."""

    def __init__(self, z):
        self.z, self.P = z, softmax(z)

    def sums(self):
        return self.P.sum(1).mean(0)

    def newest(self, n):
        return self.P[:, -min(n, self.P.shape[1]) :]


def attend(cache, Q, K, V, pos):
    """Appends K, V [n_kv, q, d] (RoPE at pos) to the heads. Returns (output [n_q, q, d], Rows per KV head)."""
    g, rows, out = len(Q) // len(K), [], []
    for k, head in enumerate(cache.heads):
        before = len(head.pos)
        for i, p in enumerate(pos):
            head.append(K[k, i], V[k, i], p)
        keys, q, n = head.K, Q[k * g : (k + 1) * g], len(head.pos)
        if cache.incache:  # everything at its slot
            keys = rotate(keys, np.arange(n) - head.pos, cache.theta)
            q = rotate(q, np.arange(before, n) - np.asarray(pos), cache.theta)
        z = q @ keys.T * keys.shape[1] ** -0.5
        z = np.where(np.arange(n) <= np.arange(before, n)[:, None], z, -np.inf)
        if "visible" in head.aux:
            z = np.where(head.aux["visible"][:, None], z, -np.inf)
        rows.append(Rows(z))
        out.append(rows[-1].P @ head.V)
    return np.concatenate(out), rows


# ---------------------------------------------------------------- the second reading of 2.13


def evenly(share, n):
    """Which of n are taken."""
    return [i for i in range(n) if math.ceil((i + 1) * share - 1e-9) > math.ceil(i * share - 1e-9)]


def segments(ids, n_tokens, instruction, max_tokens, o, lead=8, shortest=64, longest=2048):
    """[(tokens, own, first, last, position)]: the tokens of a prompt again in parts, each behind the instruction and
    the `lead` tokens before it; a part is as long as the context of max_tokens leaves room behind n_tokens. own: rows
    (begin, end) of the prompt instead of tokens. Rows see the tokens [first, last) of the prompt and the first 4
    entries, or (first None) everything; position: of the first row."""
    n, local, share = len(ids), o.get("part", 0), o.get("share", 1)
    room = min(max(max_tokens - n_tokens, shortest), longest)
    size = local or max(room - len(instruction) - lead, shortest // 2)
    if o.get("own") and not local:
        size = 256
    elif share < 1 and not local:
        size = min(size, 256)
    parts, out = range(0, n, size), []
    for i in evenly(share, len(parts)):
        begin, end = parts[i], min(parts[i] + size, n)
        seen = (begin, end, n_tokens - n + end) if local else (None, None, n_tokens)
        if o.get("own"):
            out += [([], (b, min(b + 256, end)), *seen) for b in range(begin, end, 256)]
        else:
            out.append((list(instruction) + list(ids[max(begin - lead, 0) : end]), None, *seen))
    return out


def read_again(model, block, cache, x, n_new, first, last, position):
    """Rows of one segment behind what they see; they leave nothing but what they looked at. x: their residuals. Returns
    their residuals after the layer."""
    Q, K, V = model.qkv(block, x, np.arange(position, position + len(x)))
    g, out = len(Q) // len(K), []
    for k, h in enumerate(cache.heads):
        base = len(h.pos) - n_new
        if first is None:
            seen = np.arange(len(h.pos))
        else:
            seen = np.concatenate([np.arange(min(4, base + first)), np.arange(base + first, base + last)])
        n = len(seen)
        keys, values = np.concatenate([h.K[seen], K[k]]), np.concatenate([h.V[seen], V[k]])
        z = Q[k * g : (k + 1) * g] @ keys.T * keys.shape[1] ** -0.5
        P = softmax(np.where(np.arange(len(keys)) <= n + np.arange(len(x))[:, None], z, -np.inf))
        h.aux["most"][seen] = np.maximum(h.aux["most"][seen], P[:, :, :n].max((0, 1)))
        out.append(P @ values)
    return model.finish_block(block, x, np.concatenate(out))


# ---------------------------------------------------------------- prompts and steps of one sequence


class Ring:
    """The newest w queries of a layer, with RoPE at their positions; caps: slots of its heads at steps."""

    def __init__(self, model, w):
        self.w, self.queries, self.pos, self.caps = w, np.zeros((model.n_q, 0, model.d)), [], []

    def push(self, queries, pos):
        kept = slice(-self.w, None) if self.w else slice(0, 0)
        self.queries = np.concatenate([self.queries, queries], 1)[:, kept]
        self.pos = (self.pos + list(pos))[kept]


# ---------------------------------------------------------------- 4.3: entries in codes


def half(x):
    return np.asarray(x).astype(np.float16).astype(np.float64)


def coded(X, bits, group=32):
    """What symmetric codes of the vectors X [n, d] say: the scale is rounded to f16 before it is used."""
    most = 2 ** (bits - 1) - 1
    x = X.reshape(len(X), -1, min(group, X.shape[1]))
    scale = half(np.abs(x).max(-1, keepdims=True) / most)
    scale = np.where(scale > 0, scale, 1)
    return (np.clip(np.rint(x / scale), -most, most) * scale).reshape(X.shape)


class CodedCache(pipeline.LayerCache):
    """All entries but the newest are stored in codes, behind the attention; those newest ones in 16 bits."""

    def __init__(self, bits, residual, *args):
        super().__init__(*args)
        self.bits, self.residual = bits, residual
        for h in self.heads:
            h.aux["coded"] = np.zeros(0, bool)

    def step(self, q, k, v, pos):
        out = super().step(q, half(k), half(v), pos)
        self.store()
        return out

    def store(self):
        for h in self.heads:
            n = len(h.pos)
            codes = h.aux["coded"] | (np.arange(n) < n - self.residual)
            for X in ("K", "V"):
                x = half(getattr(h, X))
                x[codes] = coded(getattr(h, X)[codes], self.bits)
                setattr(h, X, x)
            h.aux["coded"] = codes


class Sequence:
    """A session: prompts that compress, tokens that are fed one by one."""

    def __init__(self, model, method, C, options, instruction=(), max_tokens=0):
        self.model, self.method, self.C, self.n = model, method, C, 0
        self.o = dict(pipeline.DEFAULTS.get(method, pipeline.WINDOW), **options)
        derived = dict(
            h2o=dict(h2o_recent=math.ceil(C / 2)),
            scissorhands=dict(drop=C // 2),
            weightedkv=dict(recent=max(C // 2 - 4, 0)),
        )
        for key, value in derived.get(method, {}).items():
            self.o[key] = value if self.o[key] is None else self.o[key]
        self.instruction, self.max_tokens = instruction, max_tokens
        self.rereads = REDUCE.get(method) is reduce_reread
        self.caches = []
        for _ in model.blocks:
            heads = [self.empty_head() for _ in range(model.n_kv)]
            args = heads, None, model.theta, self.o.get("pos_mode") == "incache"
            codes = self.o.get("bits"), self.o.get("residual")
            self.caches.append(CodedCache(*codes, *args) if codes[0] else pipeline.LayerCache(*args))
        self.rings = [Ring(model, self.o.get("w", 0)) for _ in model.blocks]
        for i, cache in enumerate(self.caches):
            cache.after = self.after(i)

    def empty_head(self):
        d, g, none = self.model.d, self.model.n_q // self.model.n_kv, np.zeros(0)
        aux = {
            "h2o": dict(A=none),
            "cam": dict(A=none),
            "ahakv": dict(F=none),
            "weightedkv": dict(a=none, cnt=np.zeros(0, int)),
            "scissorhands": dict(I=none) if self.o.get("scissor_mode") == "sum" else dict(low=np.zeros((0, 0), bool)),
            "spindlekv": dict(
                visible=np.zeros((g, 0), bool),
                raw=np.zeros(0, bool),
                refK=np.zeros(0, int),
                refV=np.zeros(0, int),
            ),
        }.get(self.method, dict(most=none) if self.rereads else {})
        head = pipeline.Head(np.zeros(0, int), np.zeros((0, d)), np.zeros((0, d)), **aux)
        if self.o.get("aha_decode_prior"):
            head.aux["prior"], head.most = none, 0.0
        return head

    def after(self, i):
        if "allocator" in self.o:
            return self.after_each_head(i)
        if self.o["decode"] == "reobserve":
            return self.after_reobserve(i)
        return self.after_step(i, self.C, self.o)

    def after_step(self, i, C, o):
        if o.get("spindle_scope") == "layer":
            return after_layer_books(o, self.model.theta)
        return {
            "streaming": lambda: pipeline.after_streaming(C, o),
            "streaming-baseline": lambda: pipeline.after_streaming(C, o),
            "h2o": lambda: pipeline.after_h2o(C, o),
            "tova": lambda: pipeline.after_tova(C, o),
            "scissorhands": lambda: pipeline.after_scissorhands(C, o),
            "cam": lambda: pipeline.after_cam(C, o, i),
            "ahakv": lambda: pipeline.after_aha(C, o),
            "weightedkv": lambda: pipeline.after_weighted(C, o),
            "spindlekv": lambda: pipeline.after_spindle(o, self.model.theta),
            "duo-attention": lambda: self.after_duo(i),
        }.get(self.method, lambda: pipeline.after_grow)()

    def after_duo(self, i):
        """Heads that keep everything grow; the others drop their oldest entry behind the sinks."""

        def after(cache, rows, q, pos):
            for h, slots in zip(cache.heads, self.slots[i]):
                if slots is not None and len(h.pos) > slots:
                    h.take(M.streaming_step(len(h.pos), slots, self.o["n_sink"]))

        return after

    def after_reobserve(self, i):
        """1.6: a head that is `slack` over its cap is scored again, by the ring of the newest queries."""
        o, ring, g = self.o, self.rings[i], self.model.n_q // self.model.n_kv

        def after(cache, rows, q, pos):
            ring.push(q[:, None], [pos])
            for k, (h, cap) in enumerate(zip(cache.heads, ring.caps)):
                n = len(h.pos)
                if n > cap + o["slack"]:
                    own = ring.queries[k * g : (k + 1) * g]
                    S = M.reobserve_score(own, h.K, h.pos, ring.pos, o["w"], o["kappa"], o["pool"])
                    cache.note(M.margin(cap - o["w"], S))
                    h.take(np.r_[M.top(cap - o["w"], S), n - o["w"] : n])

        return after

    # Scorers of a named method under another allocator (4.2): every head is reduced to slots of its own. What a
    # method derives from its budget is of the average; only Scissorhands drops half of the head's own.
    def own_options(self, slots):
        o = dict(self.o, gain_length=self.C)
        return dict(o, drop=max(slots // 2, 1)) if self.method == "scissorhands" else o

    def reduce_each_head(self, cache, i, rows, plan):
        for k, (h, r) in enumerate(zip(cache.heads, rows)):
            one, slots = pipeline.LayerCache([h], None, cache.theta, cache.incache), plan[i][k]
            number = i * len(rows) + k  # of the draws, as of a layer of one head
            REDUCE[self.method](one, number, [r], slots, self.own_options(slots), plan)
            cache.note(one.gap)

    def after_each_head(self, i):
        def after(cache, rows, q, pos):
            for k, (h, p) in enumerate(zip(cache.heads, rows)):
                one, slots = pipeline.LayerCache([h], None, cache.theta, cache.incache), self.slots[i][k]
                self.after_step(i * len(rows) + k, slots, self.own_options(slots))(one, [p], q, pos)
                cache.note(one.gap)

        return after

    def plan_each_head(self):
        fixed, n_kv = self.o["fixed"], self.model.n_kv
        o = dict(pipeline.DEFAULTS[self.o["allocator"]], **dict(self.o, w=fixed))
        plan = pipeline.static_plan(self.o["allocator"], self.n, len(self.caches), n_kv, self.C, o)
        self.slots = [[c + fixed for c in layer] for layer in plan]
        return self.slots

    def plan(self):
        if "allocator" in self.o:
            return self.plan_each_head()
        if self.method == "duo-attention":
            N, n_kv = len(self.caches) * self.model.n_kv, self.model.n_kv
            slots = duo_counts(self.o["scores"], self.n, self.C, self.o["n_sink"], N)
            by_layer = lambda x: [x[j : j + n_kv] for j in range(0, N, n_kv)]
            self.slots = by_layer([None if s >= self.n else s for s in slots])
            return by_layer(slots)
        method = {"reconstruct": "snapkv", "kvzip": "snapkv", "cokv-document": "cokv"}.get(self.method, self.method)
        C = self.C if self.method != "full" else self.n
        return pipeline.static_plan(method, self.n, len(self.caches), self.model.n_kv, C, self.o)

    def prompt(self, ids):
        """Returns the logits of the last row."""
        if self.o.get("sequential"):
            return self.prompt_by_tokens(ids)
        pos = np.arange(self.n, self.n + len(ids))
        self.n += len(ids)
        plan, model = self.plan(), self.model
        x = model.embed[np.asarray(ids)]
        again = segments(ids, self.n, self.instruction, self.max_tokens, self.o) if self.rereads else []
        second = [model.embed[np.asarray(tokens, int)] for tokens, *_ in again]
        for i, (block, cache) in enumerate(zip(model.blocks, self.caches)):
            Q, K, V = model.qkv(block, x, pos)
            Y, rows = attend(cache, Q, K, V, pos)
            for j, (_, own, *seen) in enumerate(again):
                rows = second[j] if own is None else x[slice(*own)]
                second[j] = read_again(model, block, cache, rows, len(ids), *seen)
            x = model.finish_block(block, x, Y)
            if self.method == "expected-attention":
                turned = rotate(Q, -pos, model.theta).reshape(model.n_kv, -1, len(pos), model.d)
                self.o.update(queries=turned, query_pos=pos)
            self.rings[i].push(Q, pos)
            if "allocator" in self.o:
                self.reduce_each_head(cache, i, rows, plan)
            elif self.method != "kvzip":
                counts = REDUCE.get(self.method, reduce_window)(cache, i, rows, self.C, self.o, plan)
                self.rings[i].caps = [c + self.o.get("w", 0) for c in self.caps_behind(i, counts)]
            if "bits" in self.o:  # what the prompt looked at is not rounded
                cache.store()
        if self.method == "kvzip":
            reduce_kvzip(self.caches, self.C, self.o, len(self.caches) * model.n_kv)
        return model.logits(x)[-1]

    def caps_behind(self, i, counts):
        """Candidates of the heads at steps: behind a prompt that the budget holds whole, those of an endless one."""
        if self.o["decode"] != "reobserve":
            return []
        if self.n > self.C:
            return counts
        return pipeline.static_plan(self.method, 10**6, len(self.caches), self.model.n_kv, self.C, self.o)[i]

    def prompt_by_tokens(self, ids):
        """What the budget holds at once, then a token at a time as steps do (sequential prefill)."""
        room = min(max(self.C - self.n, 1), len(ids))
        self.o["sequential"] = False
        logits = self.prompt(ids[:room])
        self.o["sequential"] = True
        for token in ids[room:]:
            logits = self.feed(token)
        return logits

    def feed(self, token):
        logits = self.model.decode(token, self.n, self.caches)
        self.n += 1
        return logits

    def kept(self):
        return [[h.pos for h in c.heads] for c in self.caches]

    def margins(self):
        """The closest decision of each layer so far."""
        return [c.gap for c in self.caches]

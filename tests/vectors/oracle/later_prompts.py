"""Section 1.9: a prompt of q tokens behind a cache that was compressed before. Its rows attend to what is cached and to
each other; then the layer is reduced to the same budget. Candidates are all entries but the newest, rows those of the
new tokens; accumulated sums go on."""

import math
import numpy as np
import methods as M
import pipeline
from later_reduce import REDUCE, duo_counts, reduce_kvzip, reduce_reread, reduce_window
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


class Sequence:
    """A session: prompts that compress, tokens that are fed one by one."""

    def __init__(self, model, method, C, options, instruction=(), max_tokens=0):
        self.model, self.method, self.C, self.n = model, method, C, 0
        self.o = dict(pipeline.DEFAULTS.get(method, pipeline.WINDOW), **options)
        if method == "h2o":
            self.o["h2o_recent"] = math.ceil(C / 2)
        if method == "scissorhands":
            self.o["drop"] = C // 2
        if method == "weightedkv":
            self.o["recent"] = max(C // 2 - 4, 0)
        self.instruction, self.max_tokens = instruction, max_tokens
        self.rereads = REDUCE.get(method) is reduce_reread
        self.caches = []
        for _ in model.blocks:
            heads = [self.empty_head() for _ in range(model.n_kv)]
            self.caches.append(pipeline.LayerCache(heads, None, model.theta, self.o.get("pos_mode") == "incache"))
        for i, cache in enumerate(self.caches):
            cache.after = self.after(i)

    def empty_head(self):
        d, g, none = self.model.d, self.model.n_q // self.model.n_kv, np.zeros(0)
        aux = {
            "h2o": dict(A=none),
            "cam": dict(A=none),
            "ahakv": dict(F=none),
            "weightedkv": dict(a=none, cnt=np.zeros(0, int)),
            "scissorhands": dict(low=np.zeros((0, 0), bool)),
            "spindlekv": dict(
                visible=np.zeros((g, 0), bool),
                raw=np.zeros(0, bool),
                refK=np.zeros(0, int),
                refV=np.zeros(0, int),
            ),
        }.get(self.method, dict(most=none) if self.rereads else {})
        return pipeline.Head(np.zeros(0, int), np.zeros((0, d)), np.zeros((0, d)), **aux)

    def after(self, i):
        C, o = self.C, self.o
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

    def plan(self):
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
            if self.method != "kvzip":
                REDUCE.get(self.method, reduce_window)(cache, i, rows, self.C, self.o, plan)
        if self.method == "kvzip":
            reduce_kvzip(self.caches, self.C, self.o, len(self.caches) * model.n_kv)
        return model.logits(x)[-1]

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

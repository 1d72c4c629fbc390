"""Sections 1.5 and 1.6: compress the prompt layer by layer, then decode against ragged caches.

compress(method, layers, C, options) returns (caches, report): one LayerCache per layer, and per layer the scores,
budgets and kept positions.
"""

import math
import numpy as np
import methods as M
from fractions import Fraction
from llama import rotate, softmax

# Options of every method, named as in the specification. w is the window (recent part); C comes from the caller.
WINDOW = dict(w=8, kappa=7, pool="max", gqa_agg="mean", decode="grow")
DEFAULTS = {
    "full": dict(decode="grow"),
    "streaming": dict(n_sink=4, pos_mode="incache", decode="step"),
    "streaming-baseline": dict(n_sink=4, pos_mode="original", decode="step"),
    "h2o": dict(h2o_norm="sum", h2o_recent=None, decode="step"),  # None: ceil(C/2)
    "tova": dict(protect_last=1, decode="step"),
    "scissorhands": dict(history=400, recent=8, drop=None, decode="step"),  # None: C/2
    "snapkv": dict(WINDOW),
    "pyramidkv": dict(WINDOW, beta=20),
    "pyramidinfer": dict(w=8, n_sink=4, decay=0.9, ramp=1.2, decode="grow"),
    "cam": dict(
        n_sink=4,
        victim="streaming",
        m_b=32,
        cam_expected=0,
        cam_denominator="mean",
        seed=1,
        sequence=0,
        pos_mode="original",
        decode="step",
    ),
    "headkv-r2": dict(WINDOW, headkv_beta=1.01, temperature=1.0, redistribute=1),
    "ada-snapkv": dict(WINDOW, ada_floor=0.2, ada_mode="mix", ada_locked=0, ada_normalize=0),
    "ada-pyramid": dict(WINDOW, ada_floor=0.2, ada_mode="mix", ada_locked=0, ada_normalize=0, beta=20),
    "cokv": dict(WINDOW, alpha=3, redistribute=1),
    "ahakv": dict(recent=8, kappa_v=7, aha_units="raw", aha_gain_floor=1, decode="step"),
    "weightedkv": dict(n_sink=4, recent=None, wkv_merge=1, decode="step"),  # None: floor(C/2) - 4
    "spindlekv": dict(
        w=8, spindle_beta=0.05, theta_k=0.98, theta_v=0.95, tail=8, spindle_norm="window", decode="grow"
    ),
    "nacl": dict(n_sink=4, recent=8, proxy_rows=32, random_fraction=0.35, seed=1, decode="grow"),
}


class Head:
    """Entries of one KV head in ascending position; aux arrays run along the entries on their last axis."""

    def __init__(self, pos, K, V, **aux):
        self.pos, self.K, self.V, self.aux, self.books = np.asarray(pos), K, V, aux, {}

    def append(self, k, v, pos):
        self.pos = np.append(self.pos, pos)
        self.K, self.V = np.vstack([self.K, k[None]]), np.vstack([self.V, v[None]])
        for name, a in self.aux.items():
            new = np.full(a.shape[:-1] + (1,), name in ("raw", "visible")).astype(a.dtype)
            self.aux[name] = np.concatenate([a, new], -1)

    def take(self, slots):
        self.pos, self.K, self.V = self.pos[slots], self.K[slots], self.V[slots]
        self.aux = {name: a[..., slots] for name, a in self.aux.items()}


class LayerCache:
    def __init__(self, heads, after, theta, incache=False):
        self.heads, self.after, self.theta, self.incache = heads, after, theta, incache
        self.gap = None  # smallest margin of a decode-time decision so far

    def note(self, margin):
        if margin is not None:
            self.gap = margin if self.gap is None else min(self.gap, margin)

    def step(self, q, k, v, pos):
        """1 append, 2 attend, 3 and 4 in `after`. q [n_q, d] and k [n_kv, d] carry RoPE of `pos`. Returns the
        attention output [n_q, d]."""
        g, out, rows = len(q) // len(k), [], []
        for i, head in enumerate(self.heads):
            head.append(k[i], v[i], pos)
            n, K, qi = len(head.pos), head.K, q[i * g : (i + 1) * g]
            if self.incache:  # turn by the angle difference: key to its slot, query to the last slot
                K, qi = rotate(K, np.arange(n) - head.pos, self.theta), rotate(
                    qi, np.full(g, n - 1 - pos), self.theta
                )
            z = qi @ K.T * K.dtype.type(K.shape[1] ** -0.5)
            if "visible" in head.aux:
                z = np.where(head.aux["visible"], z, -np.inf)
            rows.append(softmax(z))
            out.append(rows[-1] @ head.V)
        self.after(self, rows, q, pos)
        return np.concatenate(out)


# ---------------------------------------------------------------- steps 3 and 4 of 1.6


def after_grow(cache, rows, q, pos):
    pass


def after_streaming(C, o):
    def after(cache, rows, q, pos):
        for h in cache.heads:
            h.take(M.streaming_step(len(h.pos), C, o["n_sink"]))

    return after


def note_heavy(cache, A, C, R):
    if len(A) > C:
        cache.note(M.margin(C - R, A[: len(A) - R]))


def after_h2o(C, o):
    R = o["h2o_recent"]

    def after(cache, rows, q, pos):
        for h, p in zip(cache.heads, rows):
            keep, h.aux["A"] = M.h2o_step(h.aux["A"], p.mean(0), C, R)
            note_heavy(cache, h.aux["A"], C, R)
            h.take(keep)

    return after


def after_tova(C, o):
    def after(cache, rows, q, pos):
        scopes = [[k] for k in range(len(rows))] if o.get("tova_scope") == "kvhead" else [range(len(rows))]
        for scope in scopes:
            p = np.concatenate([rows[k] for k in scope])
            keep, S = M.tova_step(p, C, o["protect_last"]), p.mean(0)
            if p.shape[1] > C:
                cache.note(M.margin(C - 1, S[:-1]) if o["protect_last"] else M.margin(C, S))
            for k in scope:
                cache.heads[k].take(keep)

    return after


def after_scissorhands(C, o):
    def after(cache, rows, q, pos):
        for h, p in zip(cache.heads, rows):
            n = len(h.pos)
            if o.get("scissor_mode") == "sum":
                h.aux["I"] = h.aux["I"] + p.mean(0)
                if n > C:
                    h.take(M.scissorhands_drop(-h.aux["I"], C, o["recent"], o["drop"]))
                    h.aux["I"] = np.zeros(len(h.pos))
                continue
            low = p.mean(0) < p.dtype.type(1 / n)
            cache.note(float(np.abs(p.mean(0) * n - 1).min()))
            h.aux["low"] = np.vstack([h.aux["low"], low])[-o["history"] :]
            if n > C:
                h.take(M.scissorhands_drop(h.aux["low"].sum(0), C, o["recent"], o["drop"]))
                h.aux["low"] = np.zeros((0, len(h.pos)), bool)

    return after


def after_cam(C, o, layer):
    def after(cache, rows, q, pos):
        for k, (h, p) in enumerate(zip(cache.heads, rows)):
            h.aux["A"] = h.aux["A"] + p.mean(0)
            cam_evict(h, C, o, layer * len(rows) + k, cache.note)

    return after


def cam_evict(h, C, o, head, note):
    """Choose the victims (streaming or h2o), merge their values, remove them."""
    n, A = len(h.pos), h.aux["A"]
    if n <= C:
        return
    kept = (
        M.streaming_keep(n, C, o["n_sink"])
        if o["victim"] == "streaming"
        else M.heavy_and_recent(A, C, math.ceil(C / 2))
    )
    draw = M.cam_draw(o["seed"], o["sequence"], head, h.pos)
    h.V = M.cam_merge(
        np.setdiff1d(np.arange(n), kept),
        kept,
        A,
        h.V,
        o["m_b"],
        draw,
        o["cam_expected"],
        o["cam_denominator"],
        note,
    )
    h.take(kept)


def after_aha(C, o):
    def after(cache, rows, q, pos):
        logical = o.get("aha_decode_i") == "logical" and o.get("aha_gain", 1)
        gain = M.aha_gain(pos + 1, C, q.shape[-1], o["aha_units"], o["aha_gain_floor"]) if logical else 1.0
        for h, p in zip(cache.heads, rows):
            p = p**gain / (p**gain).sum(-1, keepdims=True)  # softmax of the logits times the gain
            seen = p.mean(0)
            if o.get("aha_decode_prior"):
                norm = (h.V[-1] * h.V[-1]).sum()
                h.most = max(h.most, norm)  # of all there have been, dropped ones too
                h.aux["prior"][-1] = norm / h.most
                seen = seen * h.aux["prior"]
            keep, h.aux["F"] = M.aha_step(h.aux["F"], seen, C, o["recent"])
            note_heavy(cache, h.aux["F"], C, o["recent"])
            h.take(keep)

    return after


def after_weighted(C, o):
    def after(cache, rows, q, pos):
        for h, p in zip(cache.heads, rows):
            keep, h.V, h.aux["a"], h.aux["cnt"] = M.weighted_step(
                h.aux["a"], h.aux["cnt"], h.V, p.mean(0), C, o["n_sink"], o["recent"], o["wkv_merge"]
            )
            n, last = len(h.pos), max(o["recent"], 1)
            if n > C:
                cache.note(M.margin(C - o["n_sink"] - last, (h.aux["a"] / h.aux["cnt"])[o["n_sink"] : n - last]))
            h.take(keep)

    return after


def after_spindle(o, theta):
    def after(cache, rows, q, pos):
        for h in cache.heads:
            raw = np.flatnonzero(h.aux["raw"])
            if len(raw) >= max(2 * o["tail"], 1):
                spindle_encode(h, raw[: max(o["tail"], 1)], o, theta, cache.note)

    return after


def spindle_encode(h, slots, o, theta, note=None):
    """Replace K (before RoPE) and V of the slots by magnitude * codebook entry; attention then sees the
    reconstruction."""
    for name, limit in (("K", o["theta_k"]), ("V", o["theta_v"])):
        X = getattr(h, name)[slots]
        if name == "K":
            X = rotate(X, -h.pos[slots], theta)
        if name in h.books:
            entries, ref, mag = M.codebook_add(X, h.books[name], limit, note)
        else:
            h.books[name + "_margin"] = M.codebook_margin(X, limit)
            entries, ref, mag = M.codebook(X, limit)
        h.books[name] = entries
        if not o.get("spindle_magnitude", 1):  # a member takes the length of the vector its entry came from
            lengths = h.books.setdefault(name + "_lengths", [])
            for e in range(len(lengths), len(entries)):
                lengths.append(
                    mag[np.flatnonzero((ref == e) & (np.abs(M.directions(X)[1] - entries[e]).sum(-1) == 0))[0]]
                )
            mag = np.asarray(lengths)[ref]
        X = mag[:, None] * entries[ref]
        new = getattr(h, name).copy()
        new[slots] = rotate(X, h.pos[slots], theta) if name == "K" else X
        setattr(h, name, new)
        h.aux["ref" + name][slots] = ref
    h.aux["raw"][slots] = False


def after_reobserve(caps, o, ring_q, ring_pos):
    """Keep the last w queries; when a head exceeds cap + slack, recompute its window scores and reduce it to cap."""
    state = dict(q=ring_q, pos=list(ring_pos))

    def after(cache, rows, q, pos):
        w = o["w"]
        state["q"] = np.concatenate([state["q"], q[:, None]], 1)[:, -w:]
        state["pos"] = (state["pos"] + [pos])[-w:]
        g = len(q) // len(rows)
        for k, h in enumerate(cache.heads):
            n = len(h.pos)
            if n > caps[k] + o["slack"]:
                S = M.reobserve_score(
                    state["q"][k * g : (k + 1) * g], h.K, h.pos, state["pos"], w, o["kappa"], o["pool"]
                )
                cache.note(M.margin(caps[k] - w, S))
                h.take(np.r_[M.top(caps[k] - w, S), n - w : n])

    return after


# ---------------------------------------------------------------- prompt compression of one layer
# Each returns (heads, after, info); info: score per head, kept is read from the heads, margin per head, extras.


def select(layer, keep, **aux):
    """Heads holding the kept positions; aux arrays [n_kv, ..., n] are gathered."""
    return [
        Head(
            keep[k],
            layer.K[k, keep[k]],
            layer.V[k, keep[k]],
            **{name: a[k][..., keep[k]] for name, a in aux.items()}
        )
        for k in range(layer.n_kv)
    ]


def do_full(layer, i, C, o, plan):
    return select(layer, [np.arange(layer.n)] * layer.n_kv), after_grow, {}


def do_streaming(layer, i, C, o, plan):
    return select(layer, [M.streaming_keep(layer.n, C, o["n_sink"])] * layer.n_kv), after_streaming(C, o), {}


def h2o_scores(layer, norm="sum"):
    A = layer.column_sums()
    return A / np.arange(layer.n, 0, -1).astype(A.dtype) if norm == "count" else A


def do_h2o(layer, i, C, o, plan):
    o["h2o_recent"] = R = math.ceil(C / 2) if o["h2o_recent"] is None else o["h2o_recent"]
    A = h2o_scores(layer, o["h2o_norm"])
    keep = [M.heavy_and_recent(a, C, R) for a in A]
    return (
        select(layer, keep, A=A),
        after_h2o(C, o),
        dict(score=A, margin=[M.margin(C - R, a[: layer.n - R]) for a in A]),
    )


def do_tova(layer, i, C, o, plan):
    P = layer.P([layer.n - 1])[:, 0]
    rows = np.split(P, layer.n_kv) if o.get("tova_scope") == "kvhead" else [P] * layer.n_kv
    S = [M.tova_score(p, False) for p in rows]
    return (
        select(layer, [M.tova_step(p, C, o["protect_last"]) for p in rows]),
        after_tova(C, o),
        dict(score=S, margin=[M.margin(C - 1, s[:-1]) if o["protect_last"] else M.margin(C, s) for s in S]),
    )


def count_margin(I, low, dist, C, r, delta):
    """Smallest |P*visible - 1| whose flip would move an entry across the threshold of the counters."""
    n = len(I)
    K = len(M.scissorhands_drop(I, C, r, delta)) - r
    if K + r == n:
        return None
    key = I[: n - r] * n + np.arange(n - r)
    ranked = np.sort(key)
    kept = key < ranked[K]
    sensitive_up = kept & (np.searchsorted(ranked, key + n) - 1 >= K)
    sensitive_down = ~kept & (I[: n - r] > 0) & (np.searchsorted(ranked, key - n) < K)
    up = np.where(low, np.inf, dist).min(0)[: n - r]
    down = np.where(low, dist, np.inf).min(0)[: n - r]
    x = min(up[sensitive_up].min(initial=np.inf), down[sensitive_down].min(initial=np.inf))
    return float(x) if np.isfinite(x) else None


def do_scissorhands(layer, i, C, o, plan):
    o["drop"] = C // 2 if o["drop"] is None else o["drop"]
    n = layer.n
    rows = np.arange(max(0, n - o["history"]), n)
    P = M.group(layer.P(rows), layer.n_kv)
    if o.get("scissor_mode") == "sum":
        I = P.sum(1)
        heads = select(layer, [M.scissorhands_drop(-x, C, o["recent"], o["drop"]) for x in I], I=I)
        for h in heads:
            h.aux["I"] *= n <= C  # none is left behind a drop
        return heads, after_scissorhands(C, o), dict(score=-I)
    low = [M.scissorhands_low(p, rows, n) for p in P]
    I = [x.sum(0) for x in low]
    keep = [M.scissorhands_drop(x, C, o["recent"], o["drop"]) for x in I]
    seen = np.arange(n) <= rows[:, None]
    gap = [
        count_margin(x, l, np.where(seen, np.abs(p * (rows[:, None] + 1) - 1), np.inf), C, o["recent"], o["drop"])
        for x, l, p in zip(I, low, P)
    ]
    heads = select(layer, keep)
    for h, l in zip(heads, low):
        h.aux["low"] = np.zeros((0, len(h.pos)), bool) if n > C else l
    return heads, after_scissorhands(C, o), dict(score=I, margin=gap)


def do_window(layer, i, C, o, plan):
    """SnapKV selection under any allocation: plan[i] = candidates per KV head, or Ada's dynamic split of plan[i]'s
    mean."""
    n, w = layer.n, min(o["w"], layer.n)
    m = n - w
    S = M.window_score(
        layer.P(np.arange(m, n)),
        m,
        layer.n_kv,
        o["kappa"],
        o["pool"],
        o["gqa_agg"],
        o.get("avg_edge", "kappa"),
        o.get("pool_before_group", 0),
        o.get("pool_rows_first", 0),
    )
    if o.get("scorer") == "window_accum":
        seen = M.group(layer.P(np.arange(m, n)).mean(1), layer.n_kv)
        S = M.pooled_share(seen[:, :m], o["kappa"], o["pool"])
        S = S + o.get("accum_weight", 1) * M.pooled_share(layer.column_sums()[:, :m], o["kappa"], o["pool"])
    c, info = [min(x, m) for x in plan[i]], dict(score=S)
    if "ada_floor" in o and i >= o.get("ada_skip", 0):
        b = c[0]
        info["alloc_margin"] = M.margin(b * layer.n_kv, S.ravel()) if b < m else None
        c = M.ada_alloc(S, b, o["ada_floor"], o["ada_mode"], o["ada_normalize"], o["ada_locked"])
    keep = [np.r_[M.top(x, s), m:n] for x, s in zip(c, S)]
    info["margin"] = [M.margin(x, s) for x, s in zip(c, S)]
    heads, after = select(layer, keep), after_grow
    if o["decode"] == "reobserve":
        after = after_reobserve([x + w for x in c], o, layer.Q[:, m:n], range(m, n))
    return heads, after, info


def do_pyramidinfer(layer, i, C, o, plan):
    n, w = layer.n, o["w"]
    m, c = n - w, plan[i][0]
    S = M.pyramid_infer_score(layer.P(np.arange(n - 1 - w, n)), m, o["n_sink"], o["ramp"])
    keep = np.r_[M.top(c, S), m:n]
    finite = S[o["n_sink"] :]
    return (
        select(layer, [keep] * layer.n_kv),
        after_grow,
        dict(
            score=[np.r_[np.zeros(o["n_sink"]), finite]] * layer.n_kv,
            margin=[M.margin(c - o["n_sink"], finite)] * layer.n_kv,
        ),
    )


def do_cam(layer, i, C, o, plan):
    A = layer.column_sums()
    heads, gap = select(layer, [np.arange(layer.n)] * layer.n_kv, A=A), []
    for k, h in enumerate(heads):
        seen = []
        cam_evict(h, C, o, i * layer.n_kv + k, seen.append)
        gap.append(min(seen, default=None))
    return heads, after_cam(C, o, i), dict(score=A, margin=gap)


def do_aha(layer, i, C, o, plan):
    n, r = layer.n, min(o["recent"], layer.n)
    rows = np.arange(0 if o.get("aha_rows") == "all" else n - r, n)
    gains = M.aha_gains(rows, C, layer.d, o["aha_units"], o["aha_gain_floor"])
    if not o.get("aha_gain", 1):
        gains = [1.0] * len(rows)
    P = layer.P(rows, gains)
    F = M.aha_score(P, layer.V, o["kappa_v"]) if o.get("aha_prior", 1) else M.group(P.sum(1), layer.n_kv)
    F = M.pool(F, o.get("aha_score_pool", 1), "avg")
    keep = [M.heavy_and_recent(f, C, r) for f in F]
    prior = dict(prior=M.value_prior(layer.V, o["kappa_v"])) if o.get("aha_decode_prior") else {}
    heads = select(layer, keep, F=F, **prior)
    for h, gamma in zip(heads, M.value_norms(layer.V, o["kappa_v"])):
        h.most = gamma.max()
    return (
        heads,
        after_aha(C, o),
        dict(score=F, gain=gains[-1], margin=[M.margin(C - r, f[: n - r]) for f in F]),
    )


def do_weighted(layer, i, C, o, plan):
    o["recent"] = R = max(C // 2 - 4, 0) if o["recent"] is None else o["recent"]
    n, a = layer.n, layer.column_sums()
    cnt = np.arange(n, 0, -1)
    abar = a / cnt.astype(a.dtype)
    heads = select(layer, [np.arange(n)] * layer.n_kv, a=a, cnt=np.tile(cnt, (layer.n_kv, 1)))
    for k, h in enumerate(heads):
        keep, h.V = M.weighted_reduce(h.V, abar[k], C, o["n_sink"], R, o["wkv_merge"])
        h.take(keep)
    return (
        heads,
        after_weighted(C, o),
        dict(score=abar, margin=[M.margin(C - o["n_sink"] - R, x[o["n_sink"] : n - R]) for x in abar]),
    )


def do_spindle(layer, i, C, o, plan):
    """Every query head keeps its own plan[i] candidates; the KV head stores the union and each query head sees its
    list."""
    n, w, g = layer.n, o["w"], layer.n_q // layer.n_kv
    m, c = n - w, plan[i][0]
    S = M.spindle_score(layer.P(np.arange(m, n)), m, o["spindle_norm"])
    if o.get("spindle_gqa") == "mean":
        S = np.repeat(M.group(S, layer.n_kv), g, axis=0)
    seen = np.zeros((layer.n_kv, g, n), bool)
    seen[:, :, m:] = True
    for h in range(layer.n_q):
        seen[h // g, h % g, M.top(c, S[h])] = True
    keep = [np.flatnonzero(x.any(0)) for x in seen]
    heads = select(layer, keep, visible=seen)
    for h in heads:
        h.aux.update(raw=np.ones(len(h.pos), bool), refK=np.zeros(len(h.pos), int), refV=np.zeros(len(h.pos), int))
        spindle_encode(h, np.arange(len(h.pos)), o, layer.theta)
    info = dict(
        score=S[::g] if o.get("spindle_gqa") == "mean" else S,
        margin=[M.margin(c, s) for s in S],
        per_query_head=c,
        query_lists=[np.flatnonzero(x) for y in seen for x in y],
    )
    info["codebook"] = [
        dict(
            K=len(h.books["K"]),
            V=len(h.books["V"]),
            margin=min((h.books[x] for x in ("K_margin", "V_margin") if h.books[x] is not None), default=None),
        )
        for h in heads
    ]
    return heads, after_spindle(o, layer.theta), info


def do_nacl(layer, i, C, o, plan):
    n, rows = layer.n, np.arange(max(0, layer.n - o["proxy_rows"]), layer.n)
    S = M.group(layer.P(rows).sum(1), layer.n_kv)
    c_top, c_rnd = M.nacl_split(
        C, o["n_sink"], o["recent"], Fraction(o["random_fraction"]).limit_denominator(10**6)
    )
    keep, gap = [], []
    for k, s in enumerate(S):
        if n <= C:
            keep.append(np.arange(n))
            gap.append(None)
            continue
        head = i * layer.n_kv + k
        kept, best, _ = M.nacl_keep(s, n, c_top, c_rnd, o["n_sink"], o["recent"], o["seed"], head)
        free = np.arange(o["n_sink"], n - o["recent"])
        rest = np.setdiff1d(free, best)
        gaps = [
            M.margin(c_top, s[free]),
            M.margin(c_rnd, s[rest] + M.nacl_gumbel(o["seed"], head, rest), scale=1.0),
        ]
        keep.append(kept)
        gap.append(min((x for x in gaps if x is not None), default=None))
    return select(layer, keep), after_grow, dict(score=S, margin=gap, c_top=c_top, c_rnd=c_rnd)


LAYER = {
    "full": do_full,
    "streaming": do_streaming,
    "streaming-baseline": do_streaming,
    "h2o": do_h2o,
    "tova": do_tova,
    "scissorhands": do_scissorhands,
    "pyramidinfer": do_pyramidinfer,
    "cam": do_cam,
    "ahakv": do_aha,
    "weightedkv": do_weighted,
    "spindlekv": do_spindle,
    "nacl": do_nacl,
}


def static_plan(method, n, L, n_kv, C, o):
    """Candidates per layer and KV head, known before layer 0. For Ada the layer mean; for SpindleKV the count per
    query head."""
    w = min(o.get("w", 0), n)
    b, m = C - w, n - w
    if "table" in o:
        return o["table"]
    if method in ("pyramidkv", "ada-pyramid"):
        return [[c] * n_kv for c in M.pyramid_alloc(b, m, L, o["beta"])]
    if method == "pyramidinfer":
        return [[c] * n_kv for c in M.pyramid_infer_alloc(b, m, L, o["decay"])]
    if method == "headkv-r2":
        flat = M.headkv_alloc(o["scores"], b, m, o["headkv_beta"], n_kv, o["temperature"], o["redistribute"])
    elif method == "cokv":
        flat = M.cokv_alloc(o["scores"], b, m, o["alpha"], redistribute=o["redistribute"])
    elif method == "spindlekv":
        return [
            [c] * n_kv
            for c in M.spindle_alloc(
                Fraction(C, n),
                n,
                w,
                L,
                Fraction(o["spindle_beta"]).limit_denominator(10**6),
                "paper" if o.get("spindle_rounding") == "floor" else "exact",
            )
        ]
    else:
        return [[min(b, m)] * n_kv] * L
    return [flat[i * n_kv : (i + 1) * n_kv] for i in range(L)]


def compress(method, layers, C=0, **options):
    """Returns (caches, report, options as used). options override DEFAULTS[method]; HeadKV and CoKV need scores=."""
    o = dict(DEFAULTS[method], **options)
    first = layers[0]
    plan = static_plan(method, first.n, len(layers), first.n_kv, C, o)
    caches, report = [], []
    for i, layer in enumerate(layers):
        heads, after, info = LAYER.get(method, do_window)(layer, i, C, o, plan)
        caches.append(LayerCache(heads, after, layer.theta, o.get("pos_mode") == "incache"))
        report.append(dict(info, kept=[h.pos.copy() for h in heads], cap=[len(h.pos) for h in heads]))
    return caches, report, o

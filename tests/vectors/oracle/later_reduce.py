"""What is kept of one layer after a prompt behind what is cached already (methods.md 1.9), by method. later_prompts.py
calls them."""

import math
from fractions import Fraction
import numpy as np
import methods as M
import pipeline
from llama import rotate, softmax

# ---------------------------------------------------------------- reducing one layer, by method
# reduce(cache, i, rows, C, o, plan): plan[i] = candidates of each KV head, for a sequence of all tokens so far.


def reduce_full(cache, i, rows, C, o, plan):
    pass


def reduce_streaming(cache, i, rows, C, o, plan):
    for h in cache.heads:
        h.take(M.streaming_keep(len(h.pos), C, o["n_sink"]))


def reduce_h2o(cache, i, rows, C, o, plan):
    for h, r in zip(cache.heads, rows):
        n, R, more = len(h.pos), o["h2o_recent"], r.sums()
        if o["h2o_norm"] == "count":  # what is there is a mean over the rows before
            saw = np.minimum(r.P.shape[1], np.arange(n, 0, -1))
            more = (more - h.aux["A"] * saw) / (h.pos[-1] + 1 - h.pos)
        h.aux["A"] = h.aux["A"] + more
        note(cache, C - R, h.aux["A"][: n - R])
        h.take(M.heavy_and_recent(h.aux["A"], C, R))


def reduce_tova(cache, i, rows, C, o, plan):
    heads = range(len(rows))
    for scope in [[k] for k in heads] if o.get("tova_scope") == "kvhead" else [heads]:
        S = M.tova_score(np.concatenate([rows[k].P[:, -1] for k in scope]), o["protect_last"])
        note(cache, C - 1, S[:-1]) if o["protect_last"] else note(cache, C, S)
        for k in scope:
            cache.heads[k].take(M.top(C, S))


def reduce_scissorhands(cache, i, rows, C, o, plan):
    for h, r in zip(cache.heads, rows):
        n, q = len(h.pos), r.P.shape[1]
        if o.get("scissor_mode") == "sum":
            h.aux["I"] = h.aux["I"] + r.newest(o["history"]).sum(1).mean(0)
            if n > C:
                h.take(M.scissorhands_drop(-h.aux["I"], C, o["recent"], o["drop"]))
                h.aux["I"] = np.zeros(len(h.pos))
            continue
        low = M.scissorhands_low(r.P.mean(0), np.arange(n - q, n), n)
        h.aux["low"] = np.vstack([h.aux["low"], low])[-o["history"] :]
        if n > C:
            h.take(M.scissorhands_drop(h.aux["low"].sum(0), C, o["recent"], o["drop"]))
            h.aux["low"] = np.zeros((0, len(h.pos)), bool)


def note(cache, c, S):
    cache.note(M.margin(c, S))


def window_scores(cache, rows, o):
    """Pooled scores of each head's candidates: mean over the newest rows there are and the group (2.6)."""
    w, order = o["w"], [o.get(x, False) for x in ("pool_before_group", "pool_rows_first")]
    how = o["kappa"], o["pool"], o["gqa_agg"], o.get("avg_edge", "kappa"), *order
    score = lambda r, m: M.window_score(r.newest(w), m, 1, *how)[0] if m > 0 else np.zeros(0)
    return [score(r, len(h.pos) - w) for h, r in zip(cache.heads, rows)]


def keep_best(cache, scores, counts, recent):
    for h, s, c in zip(cache.heads, scores, counts):
        n = len(h.pos)
        note(cache, c, s)
        h.take(np.r_[M.top(c, s), max(n - recent, 0) : n])


def reduce_window(cache, i, rows, C, o, plan):
    scores = window_scores(cache, rows, o)
    counts = plan[i]
    if "ada_floor" in o and i >= o.get("ada_skip", 0):
        counts = ada_counts(cache, scores, plan[i][0], o)
    keep_best(cache, scores, counts, o["w"])
    return counts


def ada_counts(cache, scores, b, o):
    """2.11 steps 2-4 with heads of different lengths: each has the candidates it has."""
    caps, G = [len(s) for s in scores], len(scores)
    total, phi = min(b * G, sum(caps)), round(10**6 * o["ada_floor"])
    if b * G >= sum(caps):
        return caps
    if o["ada_normalize"]:
        scores = [s * (-np.sort(-s)[:b].sum() / s.sum()) for s in scores]
    flat, head = np.concatenate(scores), np.repeat(np.arange(G), caps)
    if o["ada_mode"] == "safeguard":  # the best of every head first
        locked = min(o["ada_locked"], b) if o["ada_locked"] else phi * b // 10**6
        for k, s in enumerate(scores):
            note(cache, locked, s)
            flat[np.flatnonzero(head == k)[M.order(s)[:locked]]] = np.inf
        note(cache, total - np.isinf(flat).sum(), flat)
    else:
        note(cache, total, flat)
    best = np.bincount(head[M.order(flat)[:total]], minlength=G).tolist()
    if o["ada_mode"] == "safeguard":
        return best
    return M.alloc(b * G, [x * (10**6 - phi) + phi * b for x in best], cap=caps)[0]


def reduce_pyramidinfer(cache, i, rows, C, o, plan):
    n, w = len(cache.heads[0].pos), o["w"]
    P = np.concatenate([r.newest(1 + w) for r in rows])
    S = M.pyramid_infer_score(P, n - w, o["n_sink"], o["ramp"])
    note(cache, plan[i][0] - o["n_sink"], S[o["n_sink"] :])
    for h in cache.heads:
        h.take(np.r_[M.top(plan[i][0], S), n - w : n])


def reduce_cam(cache, i, rows, C, o, plan):
    for k, (h, r) in enumerate(zip(cache.heads, rows)):
        h.aux["A"] = h.aux["A"] + r.sums()
        pipeline.cam_evict(h, C, o, i * len(rows) + k, cache.note)


def reduce_aha(cache, i, rows, C, o, plan):
    for h, r in zip(cache.heads, rows):
        n, R, length = len(h.pos), o["recent"], o.get("gain_length", C)
        q = r.P.shape[1] if o.get("aha_rows") == "all" else min(R, r.P.shape[1])
        d, gains = h.K.shape[1], np.ones(q)
        if o.get("aha_gain", 1):
            gains = [M.aha_gain(j + 1, length, d, o["aha_units"], o["aha_gain_floor"]) for j in range(n - q, n)]
        F = M.sg_softmax(r.z[:, -q:], np.asarray(gains)[:, None]).sum(1).mean(0)
        norms = M.value_norms(h.V[None], o["kappa_v"])[0]
        if o.get("aha_prior", 1):
            F = F * (norms / norms.max())
        h.aux["F"] = h.aux["F"] + M.pool(F[None], o.get("aha_score_pool", 1), "avg")[0]
        if o.get("aha_decode_prior"):  # of all that is there, anew
            h.aux["prior"], h.most = norms / norms.max(), norms.max()
        note(cache, C - R, h.aux["F"][: n - R])
        h.take(M.heavy_and_recent(h.aux["F"], C, R))


def reduce_weighted(cache, i, rows, C, o, plan):
    for h, r in zip(cache.heads, rows):
        n, q, R = len(h.pos), r.P.shape[1], max(o["recent"], 1)
        h.aux["a"] = h.aux["a"] + r.sums()
        h.aux["cnt"] = h.aux["cnt"] + np.minimum(q, np.arange(n, 0, -1))  # a new token is seen from its own row on
        abar = h.aux["a"] / h.aux["cnt"]
        note(cache, C - o["n_sink"] - R, abar[o["n_sink"] : n - R])
        keep, h.V = M.weighted_reduce(h.V, abar, C, o["n_sink"], o["recent"], o["wkv_merge"])
        h.take(keep)


def reduce_spindle(cache, i, rows, C, o, plan):
    """A query head chooses among what it still sees; what is kept is coded anew, with books of its own."""
    for h, r in zip(cache.heads, rows):
        n, w = len(h.pos), o["w"]
        P, visible = r.newest(w), h.aux["visible"]
        S = P.sum(1) / (P.shape[1] if o["spindle_norm"] == "window" else n - np.arange(n))
        if o.get("spindle_gqa") == "mean":
            S = np.repeat(S.mean(0)[None], len(S), 0)
        seen = np.zeros_like(visible)
        seen[:, n - w :] = visible[:, n - w :]
        for j in range(len(seen)):
            own = np.flatnonzero(visible[j, : n - w])
            note(cache, plan[i][0], S[j][own])
            seen[j, own[M.top(plan[i][0], S[j][own])]] = True
        h.aux["visible"] = seen
        h.take(np.flatnonzero(seen.any(0)))
        h.books, m = {}, len(h.pos)
        h.aux.update(refK=np.zeros(m, int), refV=np.zeros(m, int), raw=np.ones(m, bool))
        if o.get("spindle_scope") != "layer":
            pipeline.spindle_encode(h, np.arange(m), o, cache.theta)
    if o.get("spindle_scope") == "layer":
        code_layer(cache, o)


def note_cosine(cache):
    """Of two directions a cosine is known to a hundredth of what a score is."""
    return lambda margin: cache.note(None if margin is None else 100 * margin)


def code_layer(cache, o):
    """The entries of all heads share a pair of books."""
    cache.books = {}
    for name, limit in (("K", o["theta_k"]), ("V", o["theta_v"])):
        X = [rotate(h.K, -h.pos, cache.theta) if name == "K" else h.V for h in cache.heads]
        note_cosine(cache)(M.codebook_margin(np.concatenate(X), limit))
        cache.books[name], ref, mag = M.codebook(np.concatenate(X), limit)
        ends = np.cumsum([len(x) for x in X])[:-1]
        for h, Y in zip(cache.heads, np.split(mag[:, None] * cache.books[name][ref], ends)):
            setattr(h, name, rotate(Y, h.pos, cache.theta) if name == "K" else Y)
    for h in cache.heads:
        h.aux["raw"][:] = False


def after_layer_books(o, theta):
    """2.16 f with such books: heads one after the other."""

    def after(cache, rows, q, pos):
        for h in cache.heads:
            raw = np.flatnonzero(h.aux["raw"])
            if len(raw) < max(2 * o["tail"], 1):
                continue
            slots = raw[: max(o["tail"], 1)]
            for name, limit in (("K", o["theta_k"]), ("V", o["theta_v"])):
                new = getattr(h, name).copy()
                X = rotate(new[slots], -h.pos[slots], theta) if name == "K" else new[slots]
                cache.books[name], ref, mag = M.codebook_add(X, cache.books[name], limit, note_cosine(cache))
                Y = mag[:, None] * cache.books[name][ref]
                new[slots] = rotate(Y, h.pos[slots], theta) if name == "K" else Y
                setattr(h, name, new)
            h.aux["raw"][slots] = False

    return after


def reduce_nacl(cache, i, rows, C, o, plan):
    share = Fraction(o["random_fraction"]).limit_denominator(10**6)
    c_top, c_rnd = M.nacl_split(C, o["n_sink"], o["recent"], share)
    for k, (h, r) in enumerate(zip(cache.heads, rows)):
        n = len(h.pos)
        if n <= C:
            continue
        S = r.newest(o["proxy_rows"]).mean(0).sum(0)
        free = np.arange(o["n_sink"], n - o["recent"])
        best = free[M.top(c_top, S[free])]
        rest = np.setdiff1d(free, best)
        keys = S[rest] + M.nacl_gumbel(o["seed"], i * len(rows) + k, h.pos[rest])
        note(cache, c_top, S[free])
        cache.note(M.margin(c_rnd, keys, scale=1.0))
        drawn = rest[M.top(c_rnd, keys)]
        h.take(np.sort(np.r_[0 : o["n_sink"], best, drawn, n - o["recent"] : n]))


def reduce_kvzip(caches, C, o, n_layers_heads):
    """2.18: the best candidates of all heads of all layers share the budget."""
    w, heads = o["w"], [h for c in caches for h in c.heads]
    S = [h.aux["most"][: max(len(h.pos) - w, 0)] for h in heads]
    flat = np.concatenate(S)
    total = min((C - w) * n_layers_heads, len(flat))
    gap = M.margin(total, flat)
    owner = np.repeat(np.arange(len(heads)), [len(s) for s in S])
    counts = np.bincount(owner[M.order(flat)[:total]], minlength=len(heads))
    for h, s, c in zip(heads, S, counts):
        n = len(h.pos)
        h.take(np.r_[M.top(c, s), len(s) : n])
    for c in caches:
        note_value(c, gap)


def note_value(cache, gap):
    if gap is not None:
        cache.note(gap)


def keep_all_heads(cache, scores, C, sinks):
    """Sinks and the newest entry stay, of the others the best."""
    for h, s in zip(cache.heads, scores):
        n = len(h.pos)
        c = max(C - sinks - 1, 0)
        note(cache, c, s[sinks : n - 1])
        h.take(np.r_[0:sinks, sinks + M.top(c, s[sinks : n - 1]), n - 1] if n > C else np.arange(n))


def reduce_knorm(cache, i, rows, C, o, plan):
    keep_all_heads(cache, [-np.linalg.norm(h.K, axis=1) for h in cache.heads], C, 0)


def reduce_keydiff(cache, i, rows, C, o, plan):
    scores = []
    for h in cache.heads:
        unit = h.K / np.linalg.norm(h.K, axis=1)[:, None]
        anchor = unit.mean(0)
        scores.append(-(unit @ anchor) / np.linalg.norm(anchor))
    keep_all_heads(cache, scores, C, 0)


def lag_scores(X, size):
    """[parts, size] of keys or values [parts * size, d]: every part but the last against the next."""
    parts = X.reshape(-1, size, X.shape[1])
    v, ref = parts[:-1], parts[1:]
    low, span = ref.min(1, keepdims=True), np.ptp(ref, 1, keepdims=True)
    scaled = np.where(
        span > 0, (v - low) / np.where(span > 0, span, 1), 0
    )  # a dimension without range says nothing
    return softmax(scaled.std(-1, ddof=1))


def reduce_lagkv(cache, i, rows, C, o, plan):
    for h in cache.heads:
        n, sinks, size = len(h.pos), o["n_sink"], o["lag"]
        S, ranked = 2.0 + np.arange(n), []
        parts = (n - sinks) // size
        if parts >= 2:
            inside = slice(sinks, sinks + parts * size)
            ranked = (lag_scores(h.K[inside], size) + lag_scores(h.V[inside], size)) / 2
            ranks = ranked.argsort(-1, kind="stable").argsort(-1, kind="stable") / size
            S[sinks : sinks + (parts - 1) * size] = ranks.ravel()
        if n <= C:
            continue
        kept = sinks + M.top(max(C - sinks - 1, 0), S[sinks : n - 1])
        # Ranks are the same in every part, so how many of it stay is certain; which ones, its own scores say.
        for p, of_part in enumerate(ranked):
            note(cache, np.count_nonzero((kept - sinks) // size == p), of_part)
        h.take(np.r_[0:sinks, kept, n - 1])


def mean_rotation(first, n, d, theta):
    """The mean of the rotation matrices of n positions, half-split pairing."""
    R = np.zeros((d, d))
    for p in range(first, first + n):
        R += rotate(np.eye(d), np.full(d, p), theta).T / n
    return R


def reduce_expected(cache, i, rows, C, o, plan):
    total = cache.heads[0].pos[-1] + 1
    d, sinks = cache.heads[0].K.shape[1], o["n_sink"]
    R = mean_rotation(total, o["future_positions"], d, cache.theta)
    scores = []
    for h, Q in zip(cache.heads, o["queries"]):  # [g, q, d] without rotation, and their positions
        Q = Q[:, o["query_pos"] >= sinks]
        p = []
        for q in Q:
            mu = R @ q.mean(0)
            cov = R @ np.cov(q.T, bias=True) @ R.T
            K = h.K[sinks:]
            p.append(softmax(K @ mu / d**0.5 + np.einsum("ti,ij,tj->t", K, cov, K) / d / 2))
        S = np.mean(p, 0) * np.linalg.norm(h.V[sinks:], axis=1)
        scores.append(np.r_[np.full(sinks, np.inf), S])
    keep_all_heads(cache, scores, C, sinks)


def duo_counts(scores, n, C, sinks, N):
    """2.23: entries of every head, and whether it keeps everything."""
    fixed = sinks + 1
    b, m, least = min(C - fixed, n - fixed), n - fixed, max(C // 4 - fixed, 0)
    whole = N if b >= m else int(N * (b - least) // (m - least))
    best = np.argsort(-np.asarray(scores), kind="stable")[:whole]
    low = [m if j in best else 0 for j in range(N)]
    return [c + fixed for c in M.alloc(N * b, [1] * N, cap=[m] * N, lo=low)[0]]


def reduce_duo(cache, i, rows, C, o, plan):
    for h, slots in zip(cache.heads, plan[i]):
        n = len(h.pos)
        h.take(M.streaming_keep(n, slots, o["n_sink"]))


def reduce_reread(cache, i, rows, C, o, plan):
    """2.13: the largest probability that any row of any second reading gave an entry; no pooling (kernel 1)."""
    keep_best(cache, [h.aux["most"][: len(h.pos) - o["w"]] for h in cache.heads], plan[i], o["w"])


REDUCE = {
    "full": reduce_full,
    "streaming": reduce_streaming,
    "streaming-baseline": reduce_streaming,
    "h2o": reduce_h2o,
    "tova": reduce_tova,
    "scissorhands": reduce_scissorhands,
    "pyramidinfer": reduce_pyramidinfer,
    "cam": reduce_cam,
    "ahakv": reduce_aha,
    "weightedkv": reduce_weighted,
    "spindlekv": reduce_spindle,
    "nacl": reduce_nacl,
    "reconstruct": reduce_reread,
    "cokv-document": reduce_reread,
    "kvzip": reduce_reread,
    "knorm": reduce_knorm,
    "keydiff": reduce_keydiff,
    "lagkv": reduce_lagkv,
    "expected-attention": reduce_expected,
    "duo-attention": reduce_duo,
}

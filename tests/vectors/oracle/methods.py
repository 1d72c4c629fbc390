"""The methods of the specification as pure numpy functions; the comment over each names its section.

Arrays: P [n_q, rows, n] attention rows, S [n_kv, ...] token scores, p [n_q, len] one decode row. All indices are
0-based.
Functions keep the dtype of their inputs, except ALLOC, which is exact."""

import math
from fractions import Fraction
import numpy as np
from philox import cam_uniform, nacl_gumbel

# ---------------------------------------------------------------- 1.7 TOP


def order(S):
    """Positions from best to worst: higher score first, equal scores lower position first, NaN = -inf."""
    S = np.asarray(S, float) if np.asarray(S).dtype.kind != "f" else np.asarray(S)
    return np.argsort(-np.where(np.isnan(S), -np.inf, S), kind="stable")


def top(c, S):
    """The c best positions, ascending."""
    return np.sort(order(S)[: max(c, 0)])


def victim(S):
    """The lowest entry: among equal minima the newest."""
    return order(S)[-1]


def margin(c, S, scale=None):
    """Relative score change that could alter top(c, S); None when nothing is decided. Entries tied with the
    threshold are decided by
    position, exactly, so the gap is taken to the next different value (a tie cut by the threshold looks both ways).
    """
    S = np.asarray(S, float)
    S = S[np.isfinite(S)]
    if c <= 0 or c >= len(S):
        return None
    s = -np.sort(-S)
    v, below, above = s[c - 1], s[s < s[c - 1]], s[s > s[c - 1]]
    gaps = [v - below[0]] if len(below) else []
    if s[c] == v and len(above):
        gaps.append(above[-1] - v)
    return float(min(gaps) / (scale or max(abs(v), 1e-30))) if gaps else None


# ---------------------------------------------------------------- 1.8 ALLOC


def int_weights(w):
    """Floating-point weights as integers: round(w / max w * 2^40)."""
    top_w = max(w)
    return [round(float(x) / float(top_w) * 2**40) if top_w > 0 else 0 for x in w]


def alloc(B, W, cap=None, lo=None, redistribute=True):
    """Capped largest remainder with exact arithmetic. W: integers or Fractions. Returns (counts, unused)."""
    n = len(W)
    W = [Fraction(x) for x in W]
    limit = [B] * n if cap is None else list(cap)
    cap = limit if redistribute else [B] * n
    c = [0] * n if lo is None else list(lo)
    R = B - sum(c)

    def share(R, W):
        A = [i for i in range(n) if W[i] > 0 and c[i] < cap[i]]
        while R > 0 and A:
            total = sum(W[i] for i in A)
            q = {i: R * W[i] / total for i in A}
            full = [i for i in A if q[i] >= cap[i] - c[i]]
            if full:
                for i in full:
                    R -= cap[i] - c[i]
                    c[i] = cap[i]
                    A.remove(i)
                continue
            r = R - sum(math.floor(x) for x in q.values())
            for i in A:
                c[i] += math.floor(q[i])
            for i in sorted(A, key=lambda i: (math.floor(q[i]) - q[i], i))[:r]:
                c[i] += 1
            R = 0
        return R

    R = share(R, W)
    if R > 0:
        R = share(R, [Fraction(1)] * n)
    if not redistribute:
        R += sum(max(0, a - b) for a, b in zip(c, limit))
        c = [min(a, b) for a, b in zip(c, limit)]
    return c, R


# ---------------------------------------------------------------- 1.4 groups, 1.10 pooling


def group(x, n_kv, agg="mean"):
    """[n_q, ...] -> [n_kv, ...]."""
    x = x.reshape(n_kv, x.shape[0] // n_kv, *x.shape[1:])
    return {"mean": x.mean, "max": x.max, "sum": x.sum}[agg](axis=1)


def pool(x, kappa, kind="max", edge="kappa"):
    """Pooling along the last axis, same length. edge: 'kappa' divides by kappa everywhere, 'shrink' by the number
    of terms."""
    half = (kappa - 1) // 2
    pad = [(0, 0)] * (x.ndim - 1) + [(half, half)]
    fill = -np.inf if kind == "max" else 0
    win = np.lib.stride_tricks.sliding_window_view(np.pad(x, pad, constant_values=fill), kappa, axis=-1)
    if kind == "max":
        return win.max(-1)
    m = x.shape[-1]
    t = np.arange(m)
    terms = kappa if edge == "kappa" else np.minimum(t + half, m - 1) - np.maximum(t - half, 0) + 1
    return win.sum(-1) / np.asarray(terms, x.dtype)


# ---------------------------------------------------------------- 2.2 StreamingLLM


def streaming_keep(n, C, n_sink=4):
    return np.r_[0:n_sink, n - (C - n_sink) : n] if n > C else np.arange(n)


def streaming_step(length, C, n_sink=4):
    """Slots kept after one step."""
    return np.delete(np.arange(length), n_sink) if length > C else np.arange(length)


# ---------------------------------------------------------------- 2.3 H2O


def h2o_score(P, n_kv, norm="sum"):
    """Sum over all rows per query head, then group mean. norm 'count' divides by the rows that see the entry."""
    n = P.shape[-1]
    A = group(P.sum(1), n_kv)
    return A / np.arange(n, 0, -1) if norm == "count" else A


def heavy_and_recent(A, C, R):
    """Last R plus TOP(C - R) of the rest. H2O at prefill and at every step; AhaKV likewise."""
    n = len(A)
    return np.r_[top(C - R, A[: n - R]), n - R : n] if n > C else np.arange(n)


def h2o_step(A, p, C, R):
    """A [len] with a zero for the new entry, p [len] group mean of the step. Returns (slots kept, new A of all
    entries)."""
    A = A + p
    return heavy_and_recent(A, C, R), A


# ---------------------------------------------------------------- 2.4 TOVA


def tova_score(P_last, protect_last=True):
    """Mean over all query heads of one row [n_q, n]; the last entry gets +inf."""
    S = P_last.mean(0)
    if protect_last:
        S[-1] = np.inf
    return S


def tova_step(p, C, protect_last=True):
    return top(C, tova_score(p, protect_last))


# ---------------------------------------------------------------- 2.5 Scissorhands


def scissorhands_low(P_group, rows, n):
    """Per observed row and entry: was the attention below 1/visible? [rows, n]; entries the row cannot see do not
    count."""
    visible = np.asarray(rows)[:, None] + 1
    return (P_group < (1 / visible).astype(P_group.dtype)) & (np.arange(n) < visible)


def scissorhands_drop(I, C, r, delta):
    """Drop delta entries at a time (largest counter, newest first) until len <= C; the last r are protected."""
    n = len(I)
    if n <= C:
        return np.arange(n)
    drop = min(delta * math.ceil((n - C) / delta), n - r)
    return np.r_[top(n - r - drop, -I[: n - r].astype(float)), n - r : n]


# ---------------------------------------------------------------- 2.6 SnapKV


def window_score(
    P, m, n_kv, kappa=7, kind="max", agg="mean", edge="kappa", pool_before_group=False, pool_rows_first=False
):
    """P: the w window rows [n_q, w, n]. Mean over rows, group, pool; columns [0, m)."""
    x = P[:, :, :m]
    if pool_rows_first:
        return group(pool(x, kappa, kind, edge).mean(1), n_kv, agg)
    x = x.mean(1)
    if pool_before_group:
        return group(pool(x, kappa, kind, edge), n_kv, agg)
    return pool(group(x, n_kv, agg), kappa, kind, edge)


def pooled_share(x, kappa, kind):
    """[n_kv, m], each head's as a share of its sum, pooled; window_accum adds two of these (2.13)."""
    return pool(x / x.sum(1, keepdims=True), kappa, kind)


# ---------------------------------------------------------------- 2.7 PyramidKV


def pyramid_quotas(b, m, L, beta=20):
    """Real candidate budgets per layer (Fractions)."""
    b, beta = Fraction(b), Fraction(beta).limit_denominator(10**6)
    k_min = b / beta
    k_max = 2 * b - k_min
    if k_max >= m:
        k_max, k_min = Fraction(m), 2 * b - m
    return [k_max - i * (k_max - k_min) / (L - 1) for i in range(L)] if L > 1 else [b]


def pyramid_alloc(b, m, L, beta=20, rounding="exact"):
    if b >= m:
        return [m] * L
    if rounding == "reference":
        k_min = b // beta
        k_max = 2 * b - k_min
        if k_max >= m:
            k_max, k_min = m, 2 * b - m
        return [k_max - i * ((k_max - k_min) // (L - 1)) for i in range(L)]
    return alloc(b * L, pyramid_quotas(b, m, L, beta), cap=[m] * L)[0]


# ---------------------------------------------------------------- 2.8 PyramidInfer


def pyramid_infer_ratios(L, decay=0.9):
    """Retention ratio of each layer, cosine schedule."""
    return [(1 - decay) * (math.cos(math.pi * i / L) + 1) / 2 + decay for i in range(L)]


def pyramid_infer_contexts(n, L, decay=0.9, minimum=64):
    """The published schedule: context entering each layer, floored step by step."""
    out = [n]
    for r in pyramid_infer_ratios(L, decay)[:-1]:
        out.append(max(math.floor(out[-1] * r), min(minimum, n)))
    return out


def pyramid_infer_alloc(b, m, L, decay=0.9):
    """The schedule as an allocator: weights = products of the ratios of the layers before, total b*L, caps m."""
    w, shape = 1.0, []
    for r in pyramid_infer_ratios(L, decay):
        shape.append(w)
        w *= r
    return alloc(b * L, int_weights(shape), cap=[m] * L)[0]


def pyramid_infer_score(P, m, n_sink=4, ramp=1.2):
    """P: the last 1 + recent rows. Mean over all heads, rows weighted 1.0 .. ramp, mean over rows; sinks +inf. [m]"""
    w = np.linspace(1.0, ramp, P.shape[1]).astype(P.dtype)
    S = (P.mean(0)[:, :m] * w[:, None]).mean(0)
    S[:n_sink] = np.inf
    return S


# ---------------------------------------------------------------- 2.9 CaM


def cam_merge(victims, kept, A, V, m_b, draw, expected=False, denominator="mean", note=None):
    """Merge the values of the victims (slots, ascending) into the next m_b kept slots. draw(e) -> u. Returns the
    new V.
    note(|u - prob|) tells how close a draw was."""
    source, V = V, V.copy()
    for e in victims:
        targets = kept[np.searchsorted(kept, e) :][:m_b]
        q = len(targets)
        if q == 0:
            continue
        base = A[targets].mean() if denominator == "mean" else A[targets].max()
        prob = min(max(A[e] / base, 0.0), 1.0) if base > 0 else float(A[e] > 0)
        u = 0.0 if expected else draw(e)
        gain = prob if expected else float(u < prob)
        if note and not expected and prob < 1:
            note(abs(u - prob))
        V[targets] += V.dtype.type(gain / q) * source[e]
    return V


def cam_draw(seed, sequence, head, pos):
    return lambda slot: float(cam_uniform(seed, sequence, head, int(pos[slot])))


# ---------------------------------------------------------------- 2.10 HeadKV-R2


def headkv_weights(s_query, b, beta, n_kv, tau=1.0):
    """s_query [L][n_q] -> real candidate budgets [L*n_kv] (doubles)."""
    s = np.asarray(s_query, float)
    s = s.reshape(s.shape[0], n_kv, -1).mean(2).ravel() ** tau
    N = len(s)
    return np.full(N, float(b)) if s.sum() == 0 else (b - b / beta) + s / s.sum() * N * (b / beta)


def headkv_alloc(s_query, b, m, beta, n_kv, tau=1.0, redistribute=True):
    c = headkv_weights(s_query, b, beta, n_kv, tau)
    return (
        [m] * len(c)
        if b >= m
        else alloc(b * len(c), int_weights(c), cap=[m] * len(c), redistribute=redistribute)[0]
    )


# ---------------------------------------------------------------- 2.11 Ada-SnapKV, 2.12 Ada-Pyramid


def ada_counts(S, B):
    """Entries of each head among the global TOP(B): score descending, head ascending, position ascending."""
    heads = order(S.ravel())[:B] // S.shape[1]
    return np.bincount(heads, minlength=len(S)).tolist()


def ada_normalize(S, b):
    """Optional ratio weight: share of the b best scores of a head in its total. Only used for the allocation."""
    best = -np.sort(-S, axis=1)[:, :b]
    return S * (best.sum(1) / S.sum(1))[:, None]


def ada_alloc(S, b, floor=0.2, mode="mix", normalize=False, locked=0, rounding="exact"):
    """S [n_kv, m]; b = average candidates per head of this layer. mode 'safeguard': the `locked` best of each head
    first."""
    G, m = S.shape
    if b >= m:
        return [m] * G
    if normalize:
        S = ada_normalize(S, b)
    if mode == "safeguard":
        S = S.copy()
        for k in range(G):
            S[k, order(S[k])[:locked]] = np.inf
        return ada_counts(S, b * G)
    a = ada_counts(S, b * G)
    if rounding == "reference":
        return [round((1 - floor) * x + int(b * floor)) for x in a]
    phi = round(10**6 * floor)
    return alloc(b * G, [x * (10**6 - phi) + phi * b for x in a], cap=[m] * G)[0]


# ---------------------------------------------------------------- 2.13 CoKV


def cokv_weights(ssv, alpha):
    theta = sorted(ssv)[alpha - 1]
    return [max(x - theta, 0.0) for x in ssv]


def cokv_alloc(ssv, b, m, alpha, rounding="exact", redistribute=True):
    """ssv: all N players. Counts of candidates."""
    N = len(ssv)
    if b >= m:
        return [m] * N
    v = cokv_weights(ssv, alpha)
    if rounding == "reference":
        total = sum(Fraction(x) for x in v)
        return [
            min(int(b * N * Fraction(x) / total + Fraction(1, 10**9)), m) for x in v
        ]  # 1e-9: an integer quota stays one
    return alloc(b * N, int_weights(v), cap=[m] * N, redistribute=redistribute)[0]


def alpha_search_set(N, base=(1, 5, 10, 15, 20, 30, 40)):
    """3.10: the set for N = 256 scaled to N players, half rounded up."""
    return sorted({min(max(math.floor(Fraction(a * N, 256) + Fraction(1, 2)), 1), N - 1) for a in base})


# ---------------------------------------------------------------- 2.14 AhaKV


def aha_gain(i, k, d=None, units="raw", floor=True):
    """Factor on the model's logits for a row that sees i keys with budget k."""
    if i <= k:
        return 1.0
    x = 2 * math.log(i / k)
    gain = math.sqrt(x / d if units == "scaled" else x)
    return max(1.0, gain) if floor and units == "raw" else gain


def sg_softmax(z, gain):
    """softmax(gain * z) along the last axis; gain broadcasts over rows."""
    e = np.exp(gain * z - (gain * z).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def value_norms(V, kappa_v=7):
    """Pooled squared value norms: V [n_kv, n, d] -> [n_kv, n]."""
    return pool((V * V).sum(-1), kappa_v, "avg", "shrink")


def value_prior(V, kappa_v=7):
    """The same relative to their maximum."""
    gamma = value_norms(V, kappa_v)
    return gamma / gamma.max(-1, keepdims=True)


def aha_gains(rows, C, d=None, units="raw", floor=True):
    """Row i sees i + 1 keys."""
    return [aha_gain(i + 1, C, d, units, floor) for i in rows]


def aha_score(P_sg, V, kappa_v=7):
    """P_sg: SG-softmax of the last r rows. Returns F-hat [n_kv, n] (sum over rows, group mean, value prior)."""
    return value_prior(V, kappa_v) * group(P_sg.sum(1), len(V))


def aha_step(F, p, C, B_r):
    """p: group mean of the SG row (gain 1 at decode by default: i = entries visible)."""
    return h2o_step(F, p, C, B_r)


# ---------------------------------------------------------------- 2.15 WeightedKV


def weighted_merge(V, e, f, abar):
    """Value of the right neighbour f after e is discarded."""
    s = abar[e] + abar[f]
    return (abar[e] * V[e] + abar[f] * V[f]) / s if s > 0 else V[f]


def weighted_reduce(V, abar, C, n_sink=4, R=0, merge=True):
    """One entry at a time until len = C, abar frozen. Returns (slots kept, V)."""
    n, V = len(abar), V.copy()
    if n <= C:
        return np.arange(n), V
    last = min(n - R, n - 1)
    victims = order(abar[n_sink:last])[::-1][: n - C] + n_sink
    following = np.arange(1, n + 1)
    before = np.arange(-1, n - 1)
    for e in victims:
        f, h = following[e], before[e]
        if merge:
            V[f] = weighted_merge(V, e, f, abar)
        before[f] = h
        if h >= 0:
            following[h] = f
    return np.setdiff1d(np.arange(n), victims), V


def weighted_step(a, cnt, V, p, C, n_sink=4, R=0, merge=True):
    """a, cnt with zeros for the new entry. Returns (slots kept, V, a, cnt)."""
    a, cnt = a + p, cnt + 1
    kept, V = weighted_reduce(V, a / cnt, C, n_sink, R, merge)
    return kept, V, a, cnt


# ---------------------------------------------------------------- 2.16 SpindleKV


def spindle_ratios(r, l, l_w, M, beta=Fraction(1, 20)):
    """(r_c, candidate ratio of every layer), exact. r: reserve ratio of stage (a) as a Fraction."""
    alpha = (1 + beta) / 2
    r_c = (Fraction(r) * l - l_w) / (l - l_w)
    if r_c >= 1:
        first = last = Fraction(1)
    elif r_c > alpha:
        first, last = Fraction(1), 2 * r_c - 1
    elif r_c > beta:
        first, last = 2 * r_c - beta, Fraction(beta)
    else:
        first = last = max(r_c, Fraction(0))
    return r_c, [first + i * (last - first) / (M - 1) for i in range(M)] if M > 1 else [min(r_c, 1)]


def spindle_alloc(r, l, l_w, M, beta=Fraction(1, 20), rounding="exact"):
    """Candidates per query head of every layer."""
    if l <= l_w:
        return [0] * M
    r_c, ratios = spindle_ratios(r, l, l_w, M, beta)
    l_c = l - l_w
    if rounding == "paper":
        return [math.floor(x * l_c) for x in ratios]
    total = math.floor(min(max(r_c, Fraction(0)), Fraction(1)) * l_c * M + Fraction(1, 2))
    return alloc(total, [x * l_c for x in ratios], cap=[l_c] * M)[0]


def spindle_score(P, m, norm="window"):
    """Per query head [n_q, m]: mean over the window rows (option: divide by l - t)."""
    x = P[:, :, :m].sum(1)
    return x / (P.shape[2] - np.arange(m)) if norm == "remaining" else x / P.shape[1]


def directions(X):
    """(magnitudes, unit vectors); zero vectors stay zero."""
    mag = np.sqrt((X * X).sum(-1))
    return mag, X / np.where(mag > 0, mag, 1)[:, None]


def codebook(X, theta):
    """Greedy cover of the similarity graph. Returns (entries [E, d], ref [N], magnitudes [N])."""
    mag, u = directions(X)
    G = u @ u.T > theta
    np.fill_diagonal(G, True)
    alive = mag > 0
    deg = (G & alive).sum(1)
    entries, ref = [], np.zeros(len(X), int)
    while alive.any():
        i = int(np.argmax(np.where(alive, deg, -1)))
        members = G[i] & alive
        ref[members] = len(entries)
        entries.append(u[i])
        alive &= ~members
        deg -= G[:, members].sum(1)
    if not entries and len(X):
        entries.append(u[0])
    return np.array(entries).reshape(-1, X.shape[1]), ref, mag


def codebook_add(X, entries, theta, note=None):
    """Encode more vectors: nearest entry above theta, the rest forms new entries. Returns (entries, ref,
    magnitudes)."""
    mag, u = directions(X)
    cos = u @ entries.T
    if note:
        note(float(np.abs(cos - theta).min()))
    best = cos.argmax(1)
    ref, new = best.copy(), (cos.max(1) <= theta) & (mag > 0)
    ref[mag == 0] = 0
    if new.any():
        extra, r, _ = codebook(X[new], theta)
        ref[new] = r + len(entries)
        entries = np.concatenate([entries, extra])
    return entries, ref, mag


def codebook_margin(X, theta):
    """Smallest |cos - theta| over all pairs; below about 1e-6 a float32 graph may differ."""
    u = directions(X)[1]
    i, j = np.triu_indices(len(X), 1)
    return float(np.abs((u @ u.T)[i, j] - theta).min()) if len(i) else None


def spindle_accounting(r1, book, kept, d, index_bits=16, element_bits=16):
    """(paper ratio, exact ratio) for a codebook of `book` entries over `kept` vectors; r1 = kept / original."""
    r2, extra = book / kept, (index_bits / element_bits + 1) / d
    return r1 * r2 * (1 + extra), r1 * (r2 + extra)


# ---------------------------------------------------------------- 2.17 NACL


def nacl_split(C, n_sink=4, R=32, fraction=Fraction(35, 100)):
    """(c_top, c_rnd); half rounds up."""
    free = C - n_sink - R
    c_rnd = math.floor(fraction * free + Fraction(1, 2))
    return free - c_rnd, c_rnd


def nacl_keep(S, n, c_top, c_rnd, n_sink, R, seed, head):
    """S [n]: sums over the proxy rows, one KV head. Returns (kept, top part, sampled part)."""
    free = np.arange(n_sink, n - R)
    best = free[top(c_top, S[free])]
    rest = np.setdiff1d(free, best)
    drawn = rest[top(c_rnd, S[rest] + nacl_gumbel(seed, head, rest))]
    return np.sort(np.r_[0:n_sink, best, drawn, n - R : n]), best, drawn


# ---------------------------------------------------------------- 1.6 reobserve


def reobserve_score(q, K, pos, q_pos, w, kappa=7, kind="max"):
    """Window scores on the current entries of one KV head. q [g, w, d] the last w queries, q_pos their positions, K
    [len, d], pos [len].
    The last w entries are protected, so the row has len - w scores; pooling runs over slots."""
    z = q @ K.T * K.dtype.type(K.shape[1] ** -0.5)
    z = np.where(np.asarray(pos) <= np.asarray(q_pos)[:, None], z, -np.inf)
    e = np.exp(z - z.max(-1, keepdims=True))
    P = e / e.sum(-1, keepdims=True)
    return pool(P[:, :, : len(pos) - w].mean((0, 1)), kappa, kind)

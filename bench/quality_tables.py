"""The methods of docs/results.md, and the numbers of its cells."""

import math
import os
import random

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUDGETS = (12, 16, 32, 64, 128, 256)
ASK_KINDS = ("niah_multi", "lives", "kv", "niah", "fewshot", "twohop", "passage")
PROMPT_KINDS = ("niah_multi", "lives", "niah")  # answers of several tokens
# Every method, with the least budget its protected part allows. A window of 8 where there is one, so that the smallest
# budgets are possible.
METHODS = {
    "streaming": ("streaming:budget={c}", 12),
    "streaming-baseline": ("streaming-baseline:budget={c}", 12),
    "h2o": ("h2o:budget={c}", 12),
    "tova": ("tova:budget={c}", 12),
    "scissorhands": ("scissorhands:budget={c},recent=4,drop={half}", 12),
    "cam": ("cam:budget={c}", 12),  # as published: a prompt is read token by token
    "cam-oneshot": ("cam:budget={c},cam_prefill=oneshot", 12),
    "ahakv": ("ahakv:budget={c},recent=8", 12),
    "weightedkv": ("weightedkv:budget={c}", 12),
    "snapkv": ("snapkv:budget={c}", 64),
    "snapkv-w8": ("snapkv-w8:budget={c}", 12),
    "nacl": ("nacl:budget={c},recent=4", 12),
    "pyramidkv": ("pyramidkv:budget={c},window=8", 12),
    "pyramidinfer": ("pyramidinfer:budget={c},window=8", 12),
    "spindlekv": ("spindlekv:budget={c},window=8", 12),
    "ada-snapkv": ("ada-snapkv:budget={c},window=8", 12),
    "ada-paper": ("ada-paper:budget={c},window=8", 12),
    "ada-pyramid": ("ada-pyramid:budget={c},window=8", 12),
    "headkv-r2": ("headkv-r2:budget={c}", 12),
    "cokv": ("cokv:budget={c}", 12),
    "cokv-document": ("cokv-document:budget={c}", 12),
    "duo-attention": ("duo-attention:budget={c}", 12),
    "kvzip": ("kvzip:budget={c}", 12),
    "knorm": ("knorm:budget={c}", 12),
    "keydiff": ("keydiff:budget={c}", 12),
    "lagkv": ("lagkv:budget={c},lag=16", 12),
    "expected-attention": ("expected-attention:budget={c}", 12),
    "cokv-mixed": ("cokv-mixed:budget={c}", 12),
}
COMPOSED = {
    "reconstruct": "snapkv-w8:budget={c},scorer=reconstruct,kernel=1",
    "kvzip-ada": "kvzip:budget={c},allocator=ada",
    "kvzip-own": "kvzip:budget={c},reread=own",
}


def template(method):
    return COMPOSED[method] if method in COMPOSED else METHODS[method][0]


def spec(method, budget):
    return template(method).format(c=budget, half=budget // 2)


def with_bytes(method, size):
    return template(method).format(c="BUDGET", half=4).replace("budget=BUDGET", "budget_bytes=" + size)


def fits(method, budget):
    return method in COMPOSED or budget >= METHODS[method][1]


def data(kind):
    return os.path.join(ROOT, "bench", "data", "tasks", kind + ".jsonl")


def percent(row):
    return f"{100 * row['accuracy']:.0f}" if row["n"] else "–"


def mean_accuracy(rows, kinds):
    return sum(rows[k]["accuracy"] for k in kinds) / len(kinds)


def bootstrap(rows, kinds, other=None, draws=1000):
    """95 % interval of the mean over kinds, contexts drawn again within each kind; of the difference to `other` on the
    same draws when that is given."""
    rng = random.Random(1)
    means = []
    for _ in range(draws):
        total = 0
        for kind in kinds:
            counts = rows[kind]["right_by_task"]
            against = other[kind]["right_by_task"] if other else None
            drawn = [rng.randrange(len(counts)) for _ in counts]
            asked = sum(counts[i][1] for i in drawn)
            right = sum(counts[i][0] for i in drawn) - (sum(against[i][0] for i in drawn) if against else 0)
            total += right / asked
        means.append(total / len(kinds))
    means.sort()
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def wilson(share, n, z=1.959964):
    """95 % interval of a share seen in n draws (Wilson, JASA 1927)."""
    middle, width = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max((middle - width) / (1 + z * z / n), 0.0), min((middle + width) / (1 + z * z / n), 1.0)


def interval(rows, kinds):
    """95 % interval of the mean over kinds. Where every draw of contexts is the same, all right or all wrong, drawing
    them again tells nothing: then Wilson's, the contexts being the draws."""
    low, high = bootstrap(rows, kinds)
    if low == high:
        low, high = wilson(mean_accuracy(rows, kinds), sum(len(rows[kind]["right_by_task"]) for kind in kinds))
    return f"{100 * low:.1f}–{100 * high:.1f}"


def accuracy_cell(rows, kinds):
    return f"{100 * mean_accuracy(rows, kinds):.1f} [{interval(rows, kinds)}]"


def difference_cell(rows, kinds, other):
    """How far rows are ahead of others, with the 95 % interval on the same contexts."""
    low, high = bootstrap(rows, kinds, other)
    difference = mean_accuracy(rows, kinds) - mean_accuracy(other, kinds)
    return f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def cache_kib(rows):
    """Mean cache bytes of rows, as the tables show them."""
    rows = list(rows)
    return f"{sum(r['cache_bytes'] for r in rows) / len(rows) / 1024:.0f} KiB"

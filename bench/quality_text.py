"""Perplexity in docs/results.md, and what it is held against: intervals are of differences on the same windows."""

import math
import os
import random

import quality_tables as quality

TEXTS = [
    os.path.join(quality.ROOT, "bench", "data", "text", name)
    for name in sorted(os.listdir(os.path.join(quality.ROOT, "bench", "data", "text")))
]
BOOKS = [os.path.basename(path).split(".")[0] for path in TEXTS]
# Methods that drop at every step, by the name of their row.
STREAMED = {name: "" for name in ("streaming", "h2o", "tova", "cam", "weightedkv", "ahakv")}
STREAMED["weightedkv, values dropped"] = ",wkv_merge=0"
BUDGETS = (64, 128)
LONG_WINDOW, LONG_BUDGETS = 4096, (256,)
ONCE_SLOTS = 64
# What is said to be below what.
CLAIMS = (("cam", "streaming"), ("weightedkv", "h2o"), ("weightedkv, values dropped", "weightedkv"))


def policy(name, budget):
    return quality.spec(name.split(",")[0], budget) + STREAMED.get(name, "")


def change(rows, against, draws=1000):
    """Perplexity over that of others on the same windows, less 1, in percent, and its 95 % interval: windows drawn
    again within each text. The mean over texts is geometric."""

    def mean_loss(own, other, drawn):
        tokens = sum(own[i][1] for i in drawn)
        return sum(own[i][0] - other[i][0] for i in drawn) / tokens

    pairs = [(own["nll_by_window"], other["nll_by_window"]) for own, other in zip(rows, against)]
    percent = lambda losses: 100 * math.expm1(sum(losses) / len(losses))
    rng, found = random.Random(1), []
    for _ in range(draws):
        found.append(percent([mean_loss(*pair, rng.choices(range(len(pair[0])), k=len(pair[0]))) for pair in pairs]))
    found.sort()
    whole = percent([mean_loss(*pair, range(len(pair[0]))) for pair in pairs])
    return whole, found[int(0.025 * draws)], found[int(0.975 * draws)]


def change_cell(rows, against):
    whole, low, high = change(rows, against)
    return f"{whole:+.1f} % [{low:+.1f}, {high:+.1f}]"


def table(named, columns):
    """A row for each (name, policy): perplexity of every text, the change to the full cache over all of them, bytes."""
    lines = [
        "| policy | " + " | ".join(BOOKS) + " | to full, all | cache |",
        "|---|" + "---|" * (len(BOOKS) + 2),
    ]
    for name, text in named:
        rows, full = [column[text] for column in columns], [column["full"] for column in columns]
        cells = [f"{row['perplexity']:.2f}" for row in rows]
        cells += ["–" if text == "full" else change_cell(rows, full), quality.cache_kib(rows)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def claims(columns, budgets, pairs=CLAIMS):
    lines = [
        "| slots | against | " + " | ".join(BOOKS) + " | all | cache |",
        "|---|---|" + "---|" * (len(BOOKS) + 2),
    ]
    for one, other in pairs:
        for budget in budgets:
            mine = [column[policy(one, budget)] for column in columns]
            theirs = [column[policy(other, budget)] for column in columns]
            cells = [change_cell([a], [b]) for a, b in zip(mine, theirs)] + [change_cell(mine, theirs)]
            bytes_of_both = f"{quality.cache_kib(mine)}, {quality.cache_kib(theirs)}"
            lines.append(f"| {budget} | {one} – {other} | " + " | ".join(cells) + f" | {bytes_of_both} |")
    return lines


def rows_of(budgets):
    return [("full", "full")] + [(f"{name}, {c} slots", policy(name, c)) for c in budgets for name in STREAMED]


def streamed(program, n_windows):
    """One measurement for the two parts that show some of it."""
    return program.texts("perplexity", [text for _, text in rows_of(BUDGETS)], TEXTS, "stream", n_windows)


def merging(program, n_windows):
    columns = streamed(program, n_windows)
    words = (
        f"Perplexity, token by token, with values dropped over with values merged ({n_windows} windows of every "
        "text; in brackets the 95 % interval on the same windows):"
    )
    return [words, "", *claims(columns, BUDGETS, CLAIMS[2:]), ""]


def scored_tokens(columns):
    return f"{sum(n for _, n in columns[0]['full']['nll_by_window']):,} tokens of every text scored"


def perplexity(program, arguments):
    n_windows = arguments.windows
    columns = streamed(program, n_windows)
    lines = [
        f"Token by token, with eviction at every step (the protocol of WeightedKV: 4 sinks, the newest half of the "
        f"budget is kept). {n_windows} windows of the trained context, spread over each text; the second half of each "
        f"is scored: {scored_tokens(columns)}. *to full*: how much higher the perplexity is, geometric mean over the "
        "texts, in brackets the 95 % interval (windows drawn again, the same for both).",
        "",
        *table(rows_of(BUDGETS), columns),
        "",
        "What is said of them, one against the other on the same windows:",
        "",
        *claims(columns, BUDGETS),
    ]
    return [*lines, ""]


def long_windows(program, arguments):
    own = program.of(arguments.relate)
    few = max(arguments.windows * 1024 // LONG_WINDOW, 1)
    columns = own.texts("perplexity", [t for _, t in rows_of(LONG_BUDGETS)], TEXTS, "stream", few, LONG_WINDOW)
    return [
        f"Model `models/relate`, which was trained on made-up records and has never seen prose: what a cache does to a "
        "context of this length, not how well a language is known. "
        f"Token by token, {few} windows of {LONG_WINDOW:,} tokens spread over each text: "
        f"{scored_tokens(columns)}. *to full*: how much higher the perplexity is, geometric mean over the texts, in "
        "brackets the 95 % interval (windows drawn again, the same for both); then one policy against another.",
        "",
        *table(rows_of(LONG_BUDGETS), columns),
        "",
        *claims(columns, LONG_BUDGETS),
        "",
    ]


def compressed_once(program, arguments):
    named = [("full", "full")] + [(m, quality.spec(m, ONCE_SLOTS)) for m in quality.METHODS]
    policies = [text for _, text in named]
    columns = program.texts("compressed once", policies, TEXTS, "prefix", arguments.windows)
    return [
        f"Every method: the first half of a window is a prompt, compressed to {ONCE_SLOTS} slots; the second is fed "
        f"token by token. {arguments.windows} windows: {scored_tokens(columns)}.",
        "",
        *table(named, columns),
        "",
    ]

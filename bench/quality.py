#!/usr/bin/env python3
"""Measures what every method costs in quality on models/recall and writes docs/results.md. Standard library only.

  bench/quality.py [--program build/bin/kvc] [--model build/models/recall.kvc] [--out docs/results.md]
                   [--contexts 25] [--compare 100] [--grid 4] [--windows 2]

Tasks and texts are those of bench/data (held out from the model's training). All policies share one pass over each
prompt, which compression never changes. Everything is deterministic but the times, which are of the machine it ran on.
What was measured is kept in build/quality, by program, model and question: an interrupted run goes on where it was."""

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time

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
GRID_METHODS = ("streaming", "h2o", "snapkv-w8", "ada-snapkv", "cokv", "cokv-document")
TEXT_METHODS = ("streaming", "h2o", "tova", "cam", "weightedkv", "ahakv")
# The comparison of head budgets: on every question of these kinds. The last two read the document twice: with CoKV's
# budgets, and with the same slots for every head.
OF_ONE_PASS = ("snapkv-w8", "pyramidkv", "ada-snapkv", "headkv-r2", "cokv")
COMPARED = (*OF_ONE_PASS, "cokv-document", "reconstruct")
COMPOSED = {"reconstruct": "snapkv-w8:budget={c},scorer=reconstruct,kernel=1"}
COMPARED_BUDGETS = (12, 16, 24, 32, 45, 64, 72, 128)
COMPARED_KINDS = ("niah_multi", "lives", "kv", "niah", "fewshot")
# Scores measured on one task, used on another; with the number of emptied heads that the mean's validation chose.
TRANSFER_TABLES = ("ssv", "ssv-niah_multi", "ssv-lives", "ssv-kv", "ssv-niah", "ssv-fewshot")
TRANSFER_SLOTS = 64
# Where the two differ at equal slots, held against each other at equal bytes.
EQUAL_METHODS, EQUAL_BUDGETS = ("cokv", "headkv-r2"), (64, 68, 72, 76, 80)


def spec(method, budget):
    text = COMPOSED[method] if method in COMPOSED else METHODS[method][0]
    return text.format(c=budget, half=budget // 2)


def fits(method, budget):
    return method in COMPOSED or budget >= METHODS[method][1]


def data(kind):
    return os.path.join(ROOT, "bench", "data", "tasks", kind + ".jsonl")


class Program:
    def __init__(self, arguments):
        self.path, self.model = arguments.program, arguments.model
        self.kept = os.path.join(ROOT, "build", "quality")
        os.makedirs(self.kept, exist_ok=True)
        self.identity = hashlib.sha256(open(self.path, "rb").read() + open(self.model, "rb").read())

    def evaluate(self, what, policies, *words):
        """The results of kvc eval, one row a policy (and kind)."""
        listed = [word for policy in policies for word in ("--policy", policy)]
        identity = self.identity.copy()
        files = [open(word, "rb").read() for word in words if os.path.isfile(word)]
        identity.update(repr((policies, [w for w in words if not os.path.isfile(w)], files)).encode())
        path = os.path.join(self.kept, identity.hexdigest()[:24] + ".json")
        if not os.path.exists(path):
            begin = time.time()
            done = subprocess.run(
                [self.path, "eval", self.model, *words, *listed, "--json"], capture_output=True, text=True
            )
            if done.returncode != 0:
                raise SystemExit(f"{what} failed:\n{done.stderr}")
            with open(path + ".part", "w", encoding="utf-8") as file:
                file.write(done.stdout)
            os.replace(path + ".part", path)
            print(f"{what}: {time.time() - begin:.0f} s", flush=True)
        return json.load(open(path, encoding="utf-8"))["results"]


# ---- tasks ----


def accuracy_rows(program, methods, budgets, kinds, protocol, contexts):
    """{(method, budget): {kind: row}}; "full" has budget 0."""
    table = {}
    wanted = [("full", 0, "full")] + [(m, c, spec(m, c)) for m in methods for c in budgets if fits(m, c)]
    for kind in kinds:
        # niah and passage have one question a context, the others four.
        limit = 4 * contexts if kind == "niah" and contexts >= 100 else contexts
        rows = program.evaluate(
            f"{protocol} {kind}",
            [w[2] for w in wanted],
            *("--data", data(kind), "--protocol", protocol, "--limit", str(limit)),
        )
        for (method, budget, _), row in zip(wanted, rows):
            table.setdefault((method, budget), {})[kind] = row
    return table


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


def accuracy_table(table, methods, kinds, budget):
    lines = [
        "| method | " + " | ".join(kinds) + " | mean | 95 % of the mean | cache KiB | share |",
        "|---|" + "---|" * (len(kinds) + 4),
    ]
    for method in methods:
        rows = table.get((method, budget if method != "full" else 0))
        if rows is None:
            continue
        low, high = bootstrap(rows, kinds)
        kib = sum(r["cache_bytes"] for r in rows.values()) / len(rows) / 1024
        share = sum(r["cache_share"] for r in rows.values()) / len(rows)
        cells = [method] + [percent(rows[k]) for k in kinds]
        cells += [f"**{100 * mean_accuracy(rows, kinds):.1f}**", f"{100 * low:.0f} – {100 * high:.0f}"]
        lines.append("| " + " | ".join([*cells, f"{kib:.0f}", f"{100 * share:.1f} %"]) + " |")
    return lines


def timing_table(table, methods, kinds, budget):
    lines = ["| method | prefill ms | step ms |", "|---|---|---|"]
    for method in methods:
        rows = table[(method, budget if method != "full" else 0)].values()
        prefill = sum(r["prefill_seconds"] for r in rows) / len(rows)
        step = sum(r["step_seconds"] for r in rows) / len(rows)
        lines.append(f"| {method} | {1e3 * prefill:.0f} | {1e3 * step:.2f} |")
    return lines


# ---- head budgets ----


def comparison(program, protocol, kinds, contexts):
    table = accuracy_rows(program, COMPARED, COMPARED_BUDGETS, kinds, protocol, contexts)
    full = mean_accuracy(table[("full", 0)], kinds)
    n = sum(table[("full", 0)][k]["n"] for k in kinds)
    lines = [
        f"### Protocol {protocol}: {n} questions, full cache {100 * full:.1f} %",
        "",
        "Mean over " + ", ".join(kinds) + "; in brackets the 95 % interval (bootstrap over contexts), then the mean "
        "bytes of the cache, which equal slots do not make equal.",
        "",
        "| slots per head (share) | " + " | ".join(COMPARED) + " | cokv − best other | ",
        "|---|" + "---|" * (len(COMPARED) + 1),
    ]
    for budget in COMPARED_BUDGETS:
        rows = {m: table[(m, budget)] for m in COMPARED}
        means = {m: mean_accuracy(rows[m], kinds) for m in COMPARED}
        cells = []
        for m in COMPARED:
            low, high = bootstrap(rows[m], kinds)
            cells.append(f"{100 * means[m]:.1f} [{100 * low:.0f}–{100 * high:.0f}], {cache_kib(rows[m].values())}")
        best = max((m for m in OF_ONE_PASS if m != "cokv"), key=means.get)
        low, high = bootstrap(rows["cokv"], kinds, rows[best])
        share = sum(r["cache_share"] for r in rows["cokv"].values()) / len(kinds)
        cells.append(f"{100 * (means['cokv'] - means[best]):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] ({best})")
        lines.append(f"| {budget} ({100 * share:.1f} %) | " + " | ".join(cells) + " |")
    reached = []
    for m in COMPARED:
        for budget in COMPARED_BUDGETS:
            if mean_accuracy(table[(m, budget)], kinds) >= 0.97 * full:
                share = sum(r["cache_share"] for r in table[(m, budget)].values()) / len(kinds)
                reached.append(f"{m} {budget} slots ({100 * share:.1f} %)")
                break
        else:
            reached.append(f"{m} none of these")
    lines += ["", "Smallest of these budgets with 97 % of the full cache's accuracy: " + ", ".join(reached) + ".", ""]
    lines += ["| kind, slots | " + " | ".join(COMPARED) + " |", "|---|" + "---|" * len(COMPARED)]
    for kind in kinds:
        for budget in (16, 32, 45, 72):
            cells = [f"{percent(table[(m, budget)][kind])}, {cache_kib([table[(m, budget)][kind]])}" for m in COMPARED]
            lines.append(f"| {kind}, {budget} | " + " | ".join(cells) + " |")
    return lines + [""]


def equal_bytes(program, contexts):
    """CoKV beside HeadKV with at least as many bytes: pages hold 64 slots, so equal slots are not equal bytes."""
    kinds, table = COMPARED_KINDS, accuracy_rows(program, EQUAL_METHODS, EQUAL_BUDGETS, COMPARED_KINDS, "ask", contexts)

    def n_bytes(method, budget):
        return sum(row["cache_bytes"] for row in table[(method, budget)].values())

    def cells(method, budget):
        rows = table[(method, budget)]
        low, high = bootstrap(rows, kinds)
        accuracy = f"{100 * mean_accuracy(rows, kinds):.1f} [{100 * low:.0f}–{100 * high:.0f}]"
        return [str(budget), cache_kib(rows.values()), accuracy]

    ours, theirs = EQUAL_METHODS
    lines = [
        f"| {ours}, slots | cache | accuracy | {theirs}, slots | cache | accuracy | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for budget in EQUAL_BUDGETS:
        enough = [b for b in EQUAL_BUDGETS if n_bytes(theirs, b) >= n_bytes(ours, budget)]
        if not enough:
            continue
        other = min(enough, key=lambda b: n_bytes(theirs, b))
        mine, against = table[(ours, budget)], table[(theirs, other)]
        low, high = bootstrap(mine, kinds, against)
        difference = 100 * (mean_accuracy(mine, kinds) - mean_accuracy(against, kinds))
        lines.append(
            "| " + " | ".join(cells(ours, budget) + cells(theirs, other))
            + f" | {difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] |"
        )  # fmt: skip
    return lines


def cache_kib(rows):
    """Mean cache bytes of rows, as the tables show them."""
    rows = list(rows)
    return f"{sum(r['cache_bytes'] for r in rows) / len(rows) / 1024:.0f} KiB"


def transfer_section(program, contexts):
    """Accuracy of cokv on every kind with the scores of every kind."""
    policies = [f"cokv:budget={TRANSFER_SLOTS},scores={table},alpha=22" for table in TRANSFER_TABLES]
    lines = [
        "| scores of | " + " | ".join(COMPARED_KINDS) + " | cache |",
        "|---|" + "---|" * (len(COMPARED_KINDS) + 1),
    ]
    columns = []
    for kind in COMPARED_KINDS:
        columns.append(
            program.evaluate(
                f"transfer to {kind}", policies, "--data", data(kind), "--protocol", "ask", "--limit", str(contexts)
            )
        )
    for i, table in enumerate(TRANSFER_TABLES):
        name = "all but fewshot (`ssv`)" if table == "ssv" else table.split("-")[1]
        cells = [percent(column[i]) for column in columns] + [cache_kib(column[i] for column in columns)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


# ---- needle grid and texts ----


def grid_tasks(folder, per_cell):
    """One code in prose, at five depths of contexts of three lengths (in words)."""
    rng = random.Random(1)
    text = os.path.join(ROOT, "bench", "data", "text", "carroll-alice.txt")
    words = open(text, encoding="utf-8").read().split()
    path = os.path.join(folder, "grid.jsonl")
    with open(path, "w", encoding="utf-8") as out:
        for length in (100, 250, 450):  # 450 words are about 900 tokens
            for depth in (0, 25, 50, 75, 100):
                for _ in range(per_cell):
                    start, code = rng.randrange(len(words) - length), rng.randrange(100, 1000)
                    name = rng.choice(["Adela", "Robin", "Nina", "Rosa", "Frank", "Julia"])
                    prose, at = words[start : start + length], length * depth // 100
                    context = " " + " ".join(prose[:at] + [f"The code of {name} is {code}."] + prose[at:])
                    question = {"question": f" The code of {name} is", "answer": f" {code}."}
                    task = {"kind": f"{length} words, {depth} %", "context": context, "questions": [question]}
                    out.write(json.dumps(task) + "\n")
    return path


def grid_section(program, per_cell, budget=64):
    names = ["full", *GRID_METHODS]
    with tempfile.TemporaryDirectory() as folder:
        path = grid_tasks(folder, per_cell)
        rows = program.evaluate("needle grid", ["full"] + [spec(m, budget) for m in GRID_METHODS], "--data", path)
    cells = {}
    for i, row in enumerate(rows):
        cells.setdefault(row["kind"], {})[names[i % len(names)]] = f"{percent(row)}, {cache_kib([row])}"
    lines = ["| context, depth | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    return lines + [f"| {kind} | " + " | ".join(of[n] for n in names) + " |" for kind, of in cells.items()]


def text_section(program, windows):
    texts = sorted(os.listdir(os.path.join(ROOT, "bench", "data", "text")))
    lines = [
        "| policy | " + " | ".join(t.split(".")[0] for t in texts) + " | cache |",
        "|---|" + "---|" * (len(texts) + 1),
    ]
    policies = [("full", "full")] + [(f"{m}, {c} slots", spec(m, c)) for c in (64, 128, 256) for m in TEXT_METHODS]
    columns = []
    for text in texts:
        path = os.path.join(ROOT, "bench", "data", "text", text)
        rows = program.evaluate(f"text {text}", [p for _, p in policies], "--text", path, "--limit", str(windows))
        columns.append(rows)
    for i, (name, _) in enumerate(policies):
        cells = [f"{column[i]['perplexity']:.2f}" for column in columns] + [cache_kib(column[i] for column in columns)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


# ---- the page ----


EQUAL_WORDS = "Each beside the smallest of the other's caches that takes no fewer bytes; in brackets 95 % intervals."


def page(program, arguments):
    methods = list(METHODS)
    out = [
        "# Results",
        "",
        f"Written by `./dev bench quality --contexts {arguments.contexts} --compare {arguments.compare} "
        f"--grid {arguments.grid} --windows {arguments.windows}`; the sections “What agrees” and “A token of "
        "the caller's own” are kept in `bench/results_notes.md`.",
        "",
        "Model `models/recall` (5.2 M parameters, 6 layers × 4 KV heads), f16 cache, greedy, held-out contexts of "
        "about 900 tokens. Protocol *ask*: the question is not known when the context is compressed; *prompt*: it is "
        "part of the compressed prompt, and the first answer token does not count. Accuracy in percent, intervals by "
        f"bootstrap over contexts. Times: {platform.machine()}, {os.cpu_count()} processors, shared with other work.",
        "",
    ]
    out += open(os.path.join(ROOT, "bench", "results_notes.md"), encoding="utf-8").read().splitlines() + [""]
    out += ["## Head budgets", ""]
    out += comparison(program, "ask", COMPARED_KINDS, arguments.compare)
    out += comparison(program, "prompt", PROMPT_KINDS, arguments.compare)
    out += ["### CoKV and HeadKV at equal bytes, protocol ask", "", EQUAL_WORDS, ""]
    out += equal_bytes(program, arguments.compare) + [""]
    out += [f"### Scores of one task on another, {TRANSFER_SLOTS} slots, protocol ask", ""]
    out += transfer_section(program, arguments.contexts) + [""]
    for protocol, kinds, contexts in (
        ("ask", ASK_KINDS, arguments.contexts),
        ("prompt", PROMPT_KINDS, arguments.contexts),
    ):
        table = accuracy_rows(program, methods, BUDGETS, kinds, protocol, contexts)
        for budget in BUDGETS:
            out += [f"## Protocol {protocol}, {budget} slots per KV head, {contexts} contexts a kind", ""]
            out += accuracy_table(table, ["full", *methods], kinds, budget) + [""]
        if protocol == "ask":
            timing = timing_table(table, ["full", *methods], kinds, 64)
    out += ["## Needle grid, 64 slots, protocol ask", "", f"{arguments.grid} contexts a cell.", ""]
    out += grid_section(program, arguments.grid) + [""]
    out += [
        "## Perplexity, token by token with eviction at every step",
        "",
        "Windows of the trained context that overlap by half; the second half is scored (the protocol of WeightedKV: 4 "
        "sinks, the newest half of the budget is kept).",
        "",
    ]
    out += text_section(program, arguments.windows) + [""]
    out += ["## Time at 64 slots", "", "Prefill of one context, scoring and compaction included; one decode step.", ""]
    return out + timing + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "bin", "kvc"))
    parser.add_argument("--model", default=os.path.join(ROOT, "build", "models", "recall.kvc"))
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "results.md"))
    parser.add_argument("--contexts", type=int, default=25, help="contexts of every kind for every method")
    parser.add_argument("--compare", type=int, default=100, help="contexts a kind for head budgets")
    parser.add_argument("--grid", type=int, default=4, help="contexts of every cell of the needle grid")
    parser.add_argument("--windows", type=int, default=2, help="windows of every text")
    arguments = parser.parse_args()
    lines = page(Program(arguments), arguments)
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    print(f"{arguments.out}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())

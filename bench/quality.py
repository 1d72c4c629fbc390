#!/usr/bin/env python3
"""Measures what every method costs in quality on models/recall, in parts also on models/relate and models/join,
and writes docs/results.md. Standard library only.

  bench/quality.py [--program build/bin/kvc] [--model build/models/recall.kvc] [--out docs/results.md]
                   [--contexts 8] [--compare 100] [--grid 4] [--windows 12] [--only PART,...]

Tasks and texts are those of bench/data (held out from the model's training). All policies share one pass over each
prompt, which compression never changes. Everything is deterministic but the times, which are of the machine it ran
on: kernels that round activations are not used, so that another processor gives the same page.
What was measured is kept in build/quality, by program, model, policy and tasks, four contexts at a time: an interrupted
run goes on where it was, and a larger one, or one with more policies, measures only what is new. The whole with these
sizes took 44 minutes on two processors (AMD Zen 5), a third of it `once`; `rest` and `three`, which came later, take 8.
--only measures some parts of the page and leaves the others as they stand in it; every part says how many contexts it
is over."""

import argparse
import json
import os
import platform
import random
import sys
import tempfile

import quality_bytes
import quality_join
import quality_pages
import quality_parts
import quality_readings
import quality_relate
import quality_rest
import quality_storage
import quality_text
import quality_three
from exact_kernels import keep_activations
from quality_program import Program, cost_of
from quality_tables import (
    ASK_KINDS,
    BUDGETS,
    METHODS,
    PROMPT_KINDS,
    ROOT,
    accuracy_cell,
    cache_kib,
    data,
    difference_cell,
    fits,
    interval,
    mean_accuracy,
    percent,
    spec,
)

GRID_METHODS = ("streaming", "h2o", "snapkv-w8", "ada-snapkv", "cokv", "cokv-document")
# The comparison of head budgets: on every question of these kinds. The last two read the document twice: with CoKV's
# budgets, and with the same slots for every head.
OF_ONE_PASS = ("snapkv-w8", "pyramidkv", "ada-snapkv", "headkv-r2", "cokv")
COMPARED = (*OF_ONE_PASS, "cokv-document", "reconstruct")
COMPARED_BUDGETS = (12, 16, 24, 32, 45, 64, 72, 128)
COMPARED_KINDS = ("niah_multi", "lives", "kv", "niah", "fewshot")
# Scores measured on one task, used on another; with the number of emptied heads that the mean's validation chose.
TRANSFER_TABLES = ("ssv", "ssv-niah_multi", "ssv-lives", "ssv-kv", "ssv-niah", "ssv-fewshot")
TRANSFER_SLOTS = 64
# Where the two differ at equal slots, held against each other at equal bytes.
EQUAL_METHODS, EQUAL_BUDGETS = ("cokv", "headkv-r2"), (64, 68, 72, 76, 80)


# ---- tasks ----


def accuracy_rows(program, methods, budgets, kinds, protocol, contexts):
    """{(method, budget): {kind: row}}; "full" has budget 0."""
    table = {}
    wanted = [("full", 0, "full")] + [(m, c, spec(m, c)) for m in methods for c in budgets if fits(m, c)]
    for kind in kinds:
        # niah and passage have one question a context, the others four.
        limit = 4 * contexts if kind == "niah" and contexts >= 100 else contexts
        rows = program.tasks(f"{protocol} {kind}", [w[2] for w in wanted], data(kind), protocol, limit)
        for (method, budget, _), row in zip(wanted, rows):
            table.setdefault((method, budget), {})[kind] = row
    return table


def accuracy_table(table, methods, kinds, budget):
    lines = [
        "| method | " + " | ".join(kinds) + " | mean | 95 % of the mean | cache KiB | share |",
        "|---|" + "---|" * (len(kinds) + 4),
    ]
    for method in methods:
        rows = table.get((method, budget if method != "full" else 0))
        if rows is None:
            continue
        kib = sum(r["cache_bytes"] for r in rows.values()) / len(rows) / 1024
        share = sum(r["cache_share"] for r in rows.values()) / len(rows)
        cells = [method] + [percent(rows[k]) for k in kinds]
        cells += [f"**{100 * mean_accuracy(rows, kinds):.1f}**", interval(rows, kinds)]
        lines.append("| " + " | ".join([*cells, f"{kib:.0f}", f"{100 * share:.1f} %"]) + " |")
    return lines


def timing_table(table, methods, kinds, budget):
    lines = ["| method | prefill ms | step ms | cache |", "|---|---|---|---|"]
    for method in methods:
        rows = table[(method, budget if method != "full" else 0)].values()
        prefill = sum(r["prefill_seconds"] for r in rows) / len(rows)
        step = sum(r["step_seconds"] for r in rows) / len(rows)
        lines.append(f"| {method} | {1e3 * prefill:.0f} | {1e3 * step:.2f} | {cache_kib(rows)} |")
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
        cells = [f"{accuracy_cell(rows[m], kinds)}, {cache_kib(rows[m].values())}" for m in COMPARED]
        best = max((m for m in OF_ONE_PASS if m != "cokv"), key=means.get)
        share = sum(r["cache_share"] for r in rows["cokv"].values()) / len(kinds)
        cells.append(f"{difference_cell(rows['cokv'], kinds, rows[best])} ({best})")
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
        return [str(budget), cache_kib(rows.values()), accuracy_cell(rows, kinds)]

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
        both = [*cells(ours, budget), *cells(theirs, other), difference_cell(mine, kinds, against)]
        lines.append("| " + " | ".join(both) + " |")
    return lines


def transfer_section(program, contexts):
    """Accuracy of cokv on every kind with the scores of every kind."""
    policies = [f"cokv:budget={TRANSFER_SLOTS},scores={table},alpha=22" for table in TRANSFER_TABLES]
    lines = [
        "| scores of | " + " | ".join(COMPARED_KINDS) + " | cache |",
        "|---|" + "---|" * (len(COMPARED_KINDS) + 1),
    ]
    columns = []
    for kind in COMPARED_KINDS:
        columns.append(program.tasks(f"transfer to {kind}", policies, data(kind), "ask", contexts))
    for i, table in enumerate(TRANSFER_TABLES):
        name = "all but fewshot (`ssv`)" if table == "ssv" else table.split("-")[1]
        cells = [percent(column[i]) for column in columns] + [cache_kib(column[i] for column in columns)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


# ---- needle grid ----


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


# ---- the page ----


EQUAL_WORDS = "Each beside the smallest of the other's caches that takes no fewer bytes; in brackets 95 % intervals."


def introduction():
    out = [
        "Written by `./dev bench quality`, parts of it at different times (`--only`): every part says how many "
        "contexts it is over, and parts since 2026-11-24 the command and what it took. Data and draws have fixed "
        "seeds. The sections “What agrees” and “A token of the caller's own” are kept in "
        "`bench/results_notes.md`.",
        "",
        "Model `models/recall` (5.2 M parameters, 6 layers × 4 KV heads), f16 cache, greedy, held-out contexts of "
        "about 900 tokens. Protocol *ask*: the question is not known when the context is compressed; *prompt*: it is "
        "part of the compressed prompt, and the first answer token does not count. Accuracy in percent, intervals by "
        f"bootstrap over contexts. Times: {platform.machine()}, {os.cpu_count()} processors, shared with other work.",
        "",
    ]
    return out + open(os.path.join(ROOT, "bench", "results_notes.md"), encoding="utf-8").read().splitlines() + [""]


def head_budgets(program, arguments):
    out = comparison(program, "ask", COMPARED_KINDS, arguments.compare)
    out += comparison(program, "prompt", PROMPT_KINDS, arguments.compare)
    out += ["### CoKV and HeadKV at equal bytes, protocol ask", "", EQUAL_WORDS, ""]
    return out + equal_bytes(program, arguments.compare) + [""]


def transfer(program, arguments):
    lines = [f"{arguments.contexts} contexts a kind, protocol ask.", ""]
    return lines + transfer_section(program, arguments.contexts) + [""]


def every_method(program, arguments, protocol, kinds):
    table = accuracy_rows(program, list(METHODS), BUDGETS, kinds, protocol, arguments.contexts)
    out = []
    for budget in BUDGETS:
        out += [f"### {budget} slots per KV head, {arguments.contexts} contexts a kind", ""]
        out += accuracy_table(table, ["full", *METHODS], kinds, budget) + [""]
    return out, table


def ask_tables(program, arguments):
    out, table = every_method(program, arguments, "ask", ASK_KINDS)
    words = "One thread. Prefill of one context, scoring and compaction included; one decode step."
    out += ["### Time at 64 slots", "", words, ""]
    return out + timing_table(table, ["full", *METHODS], ASK_KINDS, 64) + [""]


def prompt_tables(program, arguments):
    return every_method(program, arguments, "prompt", PROMPT_KINDS)[0]


def needle_grid(program, arguments):
    return [f"{arguments.grid} contexts a cell.", "", *grid_section(program, arguments.grid), ""]


SIZES = {"contexts": 8, "compare": 100, "grid": 4, "windows": 12}

# Name for --only, heading, lines.
PARTS = (
    ("heads", "Head budgets", head_budgets),
    ("transfer", f"Scores of one task on another, {TRANSFER_SLOTS} slots", transfer),
    ("explain", "Does the eviction loss tell accuracy?", quality_parts.explain),
    ("bytes", "Every method at equal bytes", quality_bytes.equal_bytes),
    ("merging", "Merging against dropping (WeightedKV)", quality_parts.merging),
    ("ahakv", "Parts of AhaKV", quality_parts.ahakv),
    ("ask", "Protocol ask, every method", ask_tables),
    ("prompt", "Protocol prompt, every method", prompt_tables),
    ("relate", "A second model", quality_relate.relate),
    ("join", "A model that joins facts", quality_join.join),
    ("relate-bytes", "Every method at equal bytes on models/relate", quality_bytes.relate),
    ("relate-parts", "Parts of methods, and the eviction loss, on models/relate", quality_relate.parts),
    ("readings", "Cheaper second readings", quality_readings.readings),
    ("rest", "One entry for all that is dropped", quality_rest.rest),
    ("three", "Three per cent of the bytes", quality_three.three),
    ("storage", "Bits of keys and of values", quality_storage.storage),
    ("pages", "Choosing pages instead of dropping entries (Quest)", quality_pages.pages),
    ("grid", "Needle grid, 64 slots, protocol ask", needle_grid),
    ("text", "Perplexity, token by token with eviction at every step", quality_text.perplexity),
    ("long", "Perplexity, windows of 4,096 tokens", quality_text.long_windows),
    ("once", "Perplexity behind a prompt that was compressed once", quality_text.compressed_once),
)


def sections_of(text):
    """{heading: lines} of a page, and what stands before its first part."""
    out, lines = {}, []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = out.setdefault(line[3:], [])
        else:
            lines.append(line)
    return out


def made_by(name, arguments, costs):
    """The command that makes a part, and what it took."""
    sizes = "".join(
        f" --{size} {getattr(arguments, size)}" for size, usual in SIZES.items() if getattr(arguments, size) != usual
    )
    took = cost_of(costs)
    return [f"`./dev bench quality --only {name}{sizes}`" + (f": {took}." if took else "."), ""]


def page(program, arguments):
    standing = {}
    if arguments.only and os.path.exists(arguments.out):
        standing = sections_of(open(arguments.out, encoding="utf-8").read())
    out = ["# Results", "", *introduction()]
    for name, heading, lines in PARTS:
        if not arguments.only or name in arguments.only:
            print(f"-- {name}", flush=True)
            Program.used.clear()
            body = lines(program, arguments)
            out += [f"## {heading}", "", *made_by(name, arguments, Program.used), *body]
        elif heading in standing:
            out += [f"## {heading}", *standing[heading]]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "bin", "kvc"))
    parser.add_argument("--model", default=os.path.join(ROOT, "build", "models", "recall.kvc"))
    parser.add_argument("--relate", default=os.path.join(ROOT, "build", "models", "relate.kvc"))
    parser.add_argument("--join", default=os.path.join(ROOT, "build", "models", "join.kvc"))
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "results.md"))
    parser.add_argument("--contexts", type=int, default=SIZES["contexts"], help="contexts a kind for every method")
    parser.add_argument("--compare", type=int, default=SIZES["compare"], help="contexts a kind for head budgets")
    parser.add_argument("--grid", type=int, default=SIZES["grid"], help="contexts of every cell of the needle grid")
    parser.add_argument("--windows", type=int, default=SIZES["windows"], help="windows of every text")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="parts, by name")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - {name for name, _, _ in PARTS}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(name for name, _, _ in PARTS)}")
    if hasattr(os, "nice"):
        os.nice(19 - os.nice(0))
    keep_activations(arguments.program)
    lines = page(Program(arguments), arguments)
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    print(f"{arguments.out}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The part of docs/results.md on models/relate, a model without hand-set weights: its kinds, at equal bytes, and what
head scores of several kinds are worth there."""

import argparse
import os

import quality_tables as quality
from quality_parts import mean
from quality_program import Program

DATA = os.path.join(quality.ROOT, "bench", "data", "tasks")
KINDS = ("recall", "paraphrase", "latest", "code")
METHODS = (
    "streaming", "h2o", "snapkv-w8", "pyramidkv", "ada-snapkv", "keydiff", "cokv", "kvzip", "cokv-document",
)  # fmt: skip
# Of a cache of about 2 MiB, and of one of 8 MiB.
BYTES, LONG_BYTES = ("100KiB", "200KiB", "400KiB", "800KiB"), ("800KiB",)
# Tables of the model file: of all coalitions of a head, of it alone, of the others without it.
TABLES = (("exact", "in every coalition (Shapley)"), ("alone", "alone"), ("leftout", "left out of all"))


def policy(method, size, more=""):
    text = quality.METHODS[method][0].format(c="BUDGET", half=4)
    return text.replace("budget=BUDGET", "budget_bytes=" + size) + more


def table(own, what, folder, named, contexts):
    """Lines of a table with one row for each (name, policy)."""
    rows = [{} for _ in named]
    for kind in KINDS:
        path = os.path.join(DATA, folder, kind + ".jsonl")
        of_kind = own.tasks(f"{what} {kind}", [p for _, p in named], path, "ask", contexts)
        for by_kind, row in zip(rows, of_kind):
            by_kind[kind] = row
    lines = [
        "| method | " + " | ".join(KINDS) + " | mean | 95 % of the mean | slots, used |",
        "|---|" + "---|" * (len(KINDS) + 3),
    ]
    for (name, _), of in zip(named, rows):
        low, high = quality.bootstrap(of, KINDS)
        slots = mean(r["slots_per_head"] for r in of.values())
        cells = [name, *(quality.percent(of[k]) for k in KINDS)]
        cells += [f"**{100 * quality.mean_accuracy(of, KINDS):.1f}**"]
        cells += [f"{100 * low:.0f} – {100 * high:.0f}", f"{slots:.0f}, {quality.cache_kib(of.values())}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def relate(program, arguments):
    own = Program(argparse.Namespace(program=program.path, model=arguments.relate))
    contexts = arguments.contexts
    lines = [
        f"Model `models/relate`, 4 layers × 4 KV heads, `budget_bytes`, protocol *ask*, {contexts} held-out contexts "
        "of 1,000 tokens a kind, four questions each. What it does not answer with the full cache either (joins of two "
        "facts, long copies) is left out: `models/relate/README.md`.",
    ]
    for size in BYTES:
        named = [("full", "full")] + [(m, policy(m, size)) for m in METHODS]
        lines += ["", f"### {size}", "", *table(own, "relate", "relate", named, contexts)]
    for size in LONG_BYTES:
        named = [("full", "full")] + [(m, policy(m, size)) for m in METHODS]
        few = min(contexts, 8)
        lines += ["", f"### {few} contexts of 3,900 tokens, {size}", ""]
        lines += table(own, "relate, long,", "relate_long", named, few)
    lines += ["", "### Heads together and alone", ""]
    lines.append(
        "Budgets of `cokv` from what a head is worth in every coalition of the others, alone, and to all others "
        "together."
    )
    for size in BYTES[:3]:
        named = [(words, policy("cokv", size, f",scores={name}")) for name, words in TABLES]
        named.append(("every head the same (snapkv-w8)", policy("snapkv-w8", size)))
        lines += ["", f"{size}:", "", *table(own, "relate tables", "relate", named, contexts)]
    return lines + [""]

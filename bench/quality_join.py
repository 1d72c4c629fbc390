"""The part of docs/results.md on models/join, whose heads work one after another: what is asked for stands in two
places."""

import quality_relate
import quality_tables as quality
from quality_parts import rows_by_kind
from quality_relate import BYTES, LONG_BYTES, TABLES

KINDS = ("join", "thing", "recall", "paraphrase", "latest")
JOIN_KINDS = tuple(f"join/{kind}" for kind in KINDS)  # as the files of tasks are named
JOINED = JOIN_KINDS[:2]
METHODS = (
    "streaming", "h2o", "snapkv-w8", "ada-snapkv", "keydiff", "reconstruct", "cokv", "kvzip", "cokv-document",
)  # fmt: skip
ALPHA = 11  # what validation chose for the first of the tables
# Budgets by head: from what a head is worth in all coalitions, alone, to all others; and the same for all.
BY_HEAD = ("cokv", "cokv-document")
SAME_FOR_ALL = {"cokv": "snapkv-w8", "cokv-document": "reconstruct"}
HEAD_BYTES = ("100KiB", "200KiB", "300KiB", "400KiB", "600KiB")
MORE = 3  # times as many contexts as other parts: the model is small, and so are differences


def of_tables(own, contexts):
    lines = [
        "### Heads together and alone",
        "",
        f"Mean over `join` and `thing`, α = {ALPHA}. Budgets by what a head is worth in every coalition of the others "
        "(Shapley); the others are how far ahead they are of that, with the 95 % interval on the same contexts.",
        "",
        "| method, bytes | Shapley | " + " | ".join(words for _, words in TABLES[1:]) + " | the same for every head |",
        "|---|---|" + "---|" * len(TABLES),
    ]
    for method in BY_HEAD:
        for size in HEAD_BYTES:
            of = quality.with_bytes(method, size) + f",alpha={ALPHA},scores="
            policies = [of + name for name, _ in TABLES]
            policies.append(quality.with_bytes(SAME_FOR_ALL[method], size))
            rows = rows_by_kind(own, "head scores", policies, "ask", JOINED, contexts)
            cells = [f"{method}, {size}", quality.accuracy_cell(rows[0], JOINED)]
            cells += [quality.difference_cell(row, JOINED, rows[0]) for row in rows[1:]]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def join(program, arguments):
    own = program.of(arguments.join)
    contexts = MORE * arguments.contexts
    lines = [
        f"Model `models/join`, 4 layers × 4 KV heads, `budget_bytes`, protocol *ask*, {contexts} held-out contexts a "
        "kind, four questions each. `join` and `thing` want two facts that stand in two places.",
    ]
    for size in BYTES:
        named = quality_relate.methods(size, METHODS)
        lines += ["", f"### {size}", "", *quality_relate.table(own, "methods", "join", named, contexts, KINDS)]
    for size in LONG_BYTES:
        few = min(arguments.contexts, 8)
        lines += ["", f"### {few} contexts of 3,900 tokens, {size}", ""]
        named = quality_relate.methods(size, METHODS)
        lines += quality_relate.table(own, "methods", "join_long", named, few, KINDS[:2])
    return lines + ["", *of_tables(own, contexts), ""]

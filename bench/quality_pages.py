"""The part of docs/results.md on Quest, which drops nothing and reads a part: how much it must read, beside caches
that have dropped the rest."""

import quality_tables as quality
from quality_parts import rows_by_kind
from quality_relate import KINDS

READ = (16, 32, 64, 128, 256)  # entries a head and step, pages of 16
DROPPING = ("snapkv-w8", "cokv")


def compared(program, folder, kinds, contexts):
    """A row for each number of entries: Quest, and methods that keep so many, with what Quest is ahead of each."""
    kinds = [f"{folder}{kind}" for kind in kinds]
    policies = ["full"] + [
        policy for n in READ for policy in (f"quest:read={n}", *(quality.spec(m, n) for m in DROPPING))
    ]
    full, *table = rows_by_kind(program, "pages", policies, "ask", kinds, contexts)
    lines = [
        "| entries | quest | cache | " + " | ".join(f"{m} | quest's lead | cache" for m in DROPPING) + " |",
        "|---|---|---|" + "---|" * (3 * len(DROPPING)),
    ]
    for i, n in enumerate(READ):
        own, *others = table[i * (1 + len(DROPPING)) : (i + 1) * (1 + len(DROPPING))]
        cells = [str(n), quality.accuracy_cell(own, kinds), quality.cache_kib(own.values())]
        for rows in others:
            cells.append(f"{100 * quality.mean_accuracy(rows, kinds):.1f}")
            cells += [quality.difference_cell(own, kinds, rows), quality.cache_kib(rows.values())]
        lines.append("| " + " | ".join(cells) + " |")
    answered = f"{quality.accuracy_cell(full, kinds)}, {quality.cache_kib(full.values())}"
    return [f"{contexts} contexts a kind; the full cache: {answered}.", "", *lines, ""]


def pages(program, arguments):
    own = program.of(arguments.relate)
    lines = [
        "Protocol *ask*: what is dropped is dropped before the question, pages are chosen anew at every step. "
        "*entries*: what a head reads at a step (Quest, but for its first two layers, which read everything), or "
        "keeps. Accuracy, and in brackets 95 % intervals, of the lead on the same contexts. Quest saves time, not "
        "memory: it holds the full cache and its pages' bounds.",
        "",
        "### Pages on models/recall",
        "",
    ]
    lines += compared(program, "", quality.ASK_KINDS[:5], arguments.contexts)
    lines += ["### Pages on models/relate", "", *compared(own, "relate/", KINDS, arguments.contexts)]
    few = min(arguments.contexts, 8)
    return lines + ["### Pages on models/relate, 3,900 tokens", "", *compared(own, "relate_long/", KINDS, few)]

"""The part of docs/results.md on second readings that cost less than running a prompt twice: what they keep, and what a
prompt takes with them."""

import argparse

import quality_tables as quality
from quality_parts import mean, rows_by_kind, with_bytes
from quality_program import Program
from quality_relate import KINDS

# The published reading comes first: the others are held against it.
READINGS = (
    ("run again, sees everything (KVzip)", ""),
    ("half of it", ",reread_share=0.5"),
    ("a quarter of it", ",reread_share=0.25"),
    ("run again, parts of 512", ",reread_part=512"),
    ("run again, parts of 256", ",reread_part=256"),
    ("own queries, see everything", ",reread=own"),
    ("own queries, parts of 512", ",reread=own,reread_part=512"),
    ("own queries, parts of 256", ",reread=own,reread_part=256"),
)
SLOTS, BYTES, LONG_BYTES = (16, 32), ("200KiB", "400KiB"), ("800KiB",)
METHODS, LONG_METHODS = ("kvzip", "cokv-document"), ("kvzip",)


def compared(program, what, columns, folder, kinds, contexts):
    """A row for each reading: for every column (heading, policy) the accuracy, and the difference to the first."""
    kinds = [f"{folder}{kind}" for kind in kinds]
    policies = ["full"] + [policy + more for _, more in READINGS for _, policy in columns]
    full, *table = rows_by_kind(program, what, policies, "ask", kinds, contexts)
    lines = [
        "| second reading | " + " | ".join(f"{heading} | difference" for heading, _ in columns) + " | prompt |",
        "|---|" + "---|" * (2 * len(columns) + 1),
    ]
    plain = mean(row["prefill_seconds"] for row in full.values())
    first = table[: len(columns)]
    for i, (name, _) in enumerate(READINGS):
        own, cells = table[i * len(columns) : (i + 1) * len(columns)], []
        for rows, published in zip(own, first):
            accuracy = quality.mean_accuracy(rows, kinds)
            low, high = quality.bootstrap(rows, kinds, published)
            difference = 100 * (accuracy - quality.mean_accuracy(published, kinds))
            interval = f"{difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]" if rows is not published else "–"
            cells += [f"{100 * accuracy:.1f}", interval]
        seconds = mean(mean(row["prefill_seconds"] for row in rows.values()) for rows in own)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {seconds / plain:.2f} × |")
    answered = f"{100 * quality.mean_accuracy(full, kinds):.1f}"
    return [f"{contexts} contexts a kind; the full cache answers {answered} %.", "", *lines, ""]


def readings(program, arguments):
    own = Program(argparse.Namespace(program=program.path, model=arguments.relate))
    lines = [
        "Protocol *ask*. Accuracy, and in brackets the 95 % interval of the difference to the published reading on "
        "the same contexts. *prompt*: what a prompt takes, compression included, beside `full` in the same run, one "
        "thread. These models are small, so attention is most of it; for the size of models people run see "
        "[performance](performance.md#where-the-time-of-a-prompt-goes).",
        "",
        "### models/recall",
        "",
    ]
    columns = [(f"{m}, {c} slots", quality.spec(m, c)) for m in METHODS for c in SLOTS]
    lines += compared(program, "readings", columns, "", quality.ASK_KINDS[:5], arguments.contexts)
    columns = [(f"{m}, {size}", with_bytes(m, size)) for m in METHODS for size in BYTES]
    lines += ["### models/relate", "", *compared(own, "readings", columns, "relate/", KINDS, arguments.contexts)]
    columns = [(f"{m}, {size}", with_bytes(m, size)) for m in LONG_METHODS for size in LONG_BYTES]
    few = min(arguments.contexts, 8)
    lines += ["### models/relate, 3,900 tokens", ""]
    return lines + compared(own, "readings", columns, "relate_long/", KINDS, few)

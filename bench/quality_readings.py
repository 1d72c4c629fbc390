"""The part of docs/results.md on second readings that cost less than running a prompt twice: what they keep, and what a
prompt takes with them."""

import quality_tables as quality
from quality_parts import rows_by_kind
from quality_relate import KINDS

# The published reading comes first: the others are held against it.
READINGS = (
    ("run again, sees everything (KVzip)", ""),
    ("half of it", ",reread_share=0.5"),
    ("a quarter of it", ",reread_share=0.25"),
    ("run again, parts of 512", ",reread_part=512"),
    ("run again, parts of 256", ",reread_part=256"),
    ("own queries, see everything", ",reread=own"),
    ("own queries, parts of 1,024", ",reread=own,reread_part=1024"),
    ("own queries, parts of 512", ",reread=own,reread_part=512"),
    ("own queries, parts of 256", ",reread=own,reread_part=256"),
)
SLOTS, BYTES, LONG_BYTES = (16, 32), ("200KiB", "400KiB"), ("800KiB",)
METHODS = ("kvzip", "cokv-document")
TIMED_CONTEXTS = "4"


def prompt_times(program, path, policy):
    """What a prompt takes with every reading, beside a plain one, all in one run."""
    policies = ["full"] + [policy + more for _, more in READINGS]
    plain, *rows = program.evaluate(
        "times of readings", policies, "--data", path, "--limit", TIMED_CONTEXTS, "--threads", "1"
    )
    return [row["prefill_seconds"] / plain["prefill_seconds"] for row in rows]


def compared(program, what, columns, folder, kinds, contexts):
    """A row for each reading: for every column (heading, policy) accuracy, difference to the first, bytes."""
    kinds = [f"{folder}{kind}" for kind in kinds]
    policies = ["full"] + [policy + more for _, more in READINGS for _, policy in columns]
    full, *table = rows_by_kind(program, what, policies, "ask", kinds, contexts)
    lines = [
        "| second reading | " + " | ".join(f"{heading} | difference | cache" for heading, _ in columns) + " | prompt |",
        "|---|" + "---|" * (3 * len(columns) + 1),
    ]
    first, costs = table[: len(columns)], prompt_times(program, quality.data(kinds[0]), columns[0][1])
    for i, (name, _) in enumerate(READINGS):
        own, cells = table[i * len(columns) : (i + 1) * len(columns)], []
        for rows, published in zip(own, first):
            accuracy = quality.mean_accuracy(rows, kinds)
            interval = quality.difference_cell(rows, kinds, published) if rows is not published else "–"
            cells += [f"{100 * accuracy:.1f}", interval, quality.cache_kib(rows.values())]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {costs[i]:.2f} × |")
    answered = f"{100 * quality.mean_accuracy(full, kinds):.1f}"
    return [f"{contexts} contexts a kind; the full cache answers {answered} %.", "", *lines, ""]


def readings(program, arguments):
    own = program.of(arguments.relate)
    lines = [
        "Protocol *ask*. Accuracy, and in brackets the 95 % interval of the difference to the published reading on "
        f"the same contexts. *prompt*: what prompts of {TIMED_CONTEXTS} contexts take with the first column's policy, "
        "compression included, beside `full` in the same run, one thread. These models are small, so attention is most "
        "of it; for the size of models people run see [performance](performance.md#where-the-time-of-a-prompt-goes).",
        "",
        "### models/recall",
        "",
    ]
    columns = [(f"{m}, {c} slots", quality.spec(m, c)) for m in METHODS for c in SLOTS]
    lines += compared(program, "readings", columns, "", quality.ASK_KINDS[:5], arguments.contexts)
    columns = [(f"{m}, {size}", quality.with_bytes(m, size)) for m in METHODS for size in BYTES]
    lines += ["### models/relate", "", *compared(own, "readings", columns, "relate/", KINDS, arguments.contexts)]
    columns = [(f"{m}, {size}", quality.with_bytes(m, size)) for m in METHODS for size in LONG_BYTES]
    few = min(arguments.contexts, 8)
    lines += ["### models/relate, 3,900 tokens", ""]
    return lines + compared(own, "readings", columns, "relate_long/", KINDS, few)

"""The part of docs/results.md on how keys and values are stored: which of the two the bits are for."""

import quality_tables as quality
import quality_text
from quality_join import JOIN_KINDS, MORE
from quality_parts import ASK_KINDS, mean, rows_by_kind
from quality_relate import OWN_KINDS

# keys, values: options
STORED = (
    ("f16", "kv=f16"),
    ("int8", "kv=int8,residual=0"),
    ("int8 keys, int4 values", "kv=int8,kv_values=int4,residual=0"),
    ("int8 keys, int2 values", "kv=int8,kv_values=int2,residual=0"),
    ("int4 keys, int8 values", "kv=int4,kv_values=int8,residual=0"),
    ("int4", "kv=int4,residual=0"),
    ("int4 keys, int2 values", "kv=int4,kv_values=int2,residual=0"),
)
METHOD, SIZES = "kvzip-own", ("63KiB", "100KiB", "200KiB")


def divergence(rows):
    return f"{mean(row['kl'] for row in rows):.4f}"


def by_bytes(program, contexts):
    """The method at equal bytes, whose slots fewer bits make more."""
    named = [(name, kv.replace(",residual=0", "")) for name, kv in STORED]
    lines = [
        f"`kvzip:reread=own` at equal bytes on `models/relate`, {contexts} contexts a kind: accuracy, slots a head.",
        "",
        "| keys, values | " + " | ".join(SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
    ]
    policies = [quality.with_bytes(METHOD, size) + "," + kv for _, kv in named for size in SIZES]
    table = rows_by_kind(program, "storage", policies, "ask", OWN_KINDS, contexts)
    for i, (name, _) in enumerate(named):
        cells = []
        for rows in table[i * len(SIZES) : (i + 1) * len(SIZES)]:
            slots = mean(row["slots_per_head"] for row in rows.values())
            cells.append(f"{quality.accuracy_cell(rows, OWN_KINDS)}, {slots:.0f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def storage(program, arguments):
    relate, contexts = program.of(arguments.relate), MORE * arguments.contexts
    policies = ["full:" + kv for _, kv in STORED]
    models = (
        ("recall", program, ASK_KINDS),
        ("relate", relate, OWN_KINDS),
        ("join", program.of(arguments.join), JOIN_KINDS),
    )
    columns = []
    for _, own, kinds in models:
        table = rows_by_kind(own, "storage", policies, "ask", kinds, contexts)
        columns.append(
            [
                (
                    quality.difference_cell(rows, kinds, table[0]),
                    divergence(rows.values()),
                    quality.cache_kib(rows.values()),
                )
                for rows in table
            ]
        )
    texts = program.texts("storage", policies, quality_text.TEXTS, "prefix", arguments.windows)
    lines = [
        "Everything is kept (`full`), nothing waits for its codes (`residual=0`); `kv=int8,kv_values=int4` are keys of "
        f"8 bits with values of 4. Protocol *ask*, {contexts} contexts a kind: the difference in accuracy to f16 with "
        "its 95 % interval, KL (nats a token: how far the model's answers are from those in f16), bytes. *text*: of "
        f"`recall`, the second halves of {arguments.windows} windows of every held-out text behind their first halves.",
        "",
        "| keys, values | " + " | ".join(f"{name} | KL | cache" for name, _, _ in models) + " | text, KL | cache |",
        "|---|" + "---|" * (3 * len(models) + 2),
    ]
    for i, (name, _) in enumerate(STORED):
        cells = [cell for column in columns for cell in ("–" if i == 0 else column[i][0], *column[i][1:])]
        rows = [column[policies[i]] for column in texts]
        cells += [divergence(rows), quality.cache_kib(rows)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, "", *by_bytes(relate, contexts), ""]

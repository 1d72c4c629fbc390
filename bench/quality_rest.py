"""The part of docs/results.md on one entry a head for all that is dropped (reducer=rest)."""

import quality_tables as quality
from quality_join import JOIN_KINDS, MORE
from quality_parts import ASK_KINDS, mean, rows_by_kind
from quality_relate import OWN_KINDS

METHODS = (
    "snapkv-w8", "keydiff", "cokv", "kvzip", "kvzip-own", "cokv-document",
)  # fmt: skip
READINGS = METHODS[3:]
SQUARES, REST = ",reread_score=squares", ",reducer=rest"
CODES = ",kv=int4,residual=0"
# bytes, options: the smallest are 3 % of the full cache
SIZES = {
    "recall": (("85KiB", ""), ("170KiB", ""), ("340KiB", "")),
    "relate": (("63KiB", CODES), ("100KiB", CODES), ("200KiB", ""), ("400KiB", "")),
    "join": (("63KiB", CODES), ("100KiB", CODES), ("200KiB", ""), ("400KiB", "")),
}


def named(method, size, options):
    return f"{method}{', int4' if options else ''}, {size}"


def divergence(rows):
    return f"{mean(row['kl'] for row in rows.values()):.3f}"


def table(own, kinds, contexts, sizes):
    lines = [
        "| method, bytes | dropped | one entry | lead | KL, dropped | KL, one entry |",
        "|---|---|---|---|---|---|",
    ]
    whole = rows_by_kind(own, "rest", ["full"], "ask", kinds, contexts)[0]
    for size, options in sizes:
        policies = [quality.with_bytes(method, size) + options for method in METHODS]
        dropped = rows_by_kind(own, "rest", policies, "ask", kinds, contexts)
        rest = rows_by_kind(own, "rest", [policy + REST for policy in policies], "ask", kinds, contexts)
        for method, a, b in zip(METHODS, dropped, rest):
            cells = [
                named(method, size, options),
                quality.accuracy_cell(a, kinds),
                quality.accuracy_cell(b, kinds),
                quality.difference_cell(b, kinds, a),
                divergence(a),
                divergence(b),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return [f"Everything kept: {quality.accuracy_cell(whole, kinds)}, {quality.cache_kib(whole.values())}.", "", *lines]


def squares(own, kinds, contexts, sizes):
    """Scores of a second reading: the largest probabilities, or the sums of all squares."""
    lines = [
        "| method, bytes | dropped, largest | lead of squares, dropped | one entry, largest "
        "| lead of squares, one entry | KL, largest | KL, squares |",
        "|---|---|---|---|---|---|---|",
    ]
    for size, options in sizes:
        for method in READINGS:
            policy = quality.with_bytes(method, size) + options
            policies = [policy, policy + SQUARES, policy + REST, policy + SQUARES + REST]
            a, b, c, d = rows_by_kind(own, "rest", policies, "ask", kinds, contexts)
            cells = [
                named(method, size, options),
                quality.accuracy_cell(a, kinds),
                quality.difference_cell(b, kinds, a),
                quality.accuracy_cell(c, kinds),
                quality.difference_cell(d, kinds, c),
                divergence(c),
                divergence(d),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def models_of(program, arguments):
    """(name, program, kinds, contexts a kind) of each model."""
    contexts = MORE * arguments.contexts
    return (
        ("recall", program, ASK_KINDS, arguments.contexts),
        ("relate", program.of(arguments.relate), OWN_KINDS, contexts),
        ("join", program.of(arguments.join), JOIN_KINDS, contexts),
    )


def rest(program, arguments):
    lines = [
        "What a prompt drops becomes one entry a head (`reducer=rest`), which takes a slot of the same budget. "
        "`budget_bytes`, protocol *ask*: mean accuracy over the kinds, the lead on the same contexts, KL (nats a "
        "token: how far the answers are from the full cache's).",
    ]
    for name, own, kinds, n in models_of(program, arguments):
        lines += ["", f"### One entry, models/{name}", "", f"{n} contexts a kind.", ""]
        lines += table(own, kinds, n, SIZES[name])
        lines += ["", f"### Squares of a second reading, models/{name}", "", "`reread_score=squares`.", ""]
        lines += squares(own, kinds, n, SIZES[name])
    return [*lines, ""]

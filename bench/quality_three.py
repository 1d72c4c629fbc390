"""The part of docs/results.md on 3 % of the full cache's bytes: entries in fewer bits, an entry for the rest, and how a
second reading scores, added one after the other."""

import quality_tables as quality
from quality_parts import mean, rows_by_kind
from quality_rest import CODES, REST, SQUARES, models_of

METHODS = ("cokv-document", "kvzip", "kvzip-own")
STORED = (
    ("f16", ""),
    ("int4", CODES),
    ("int4, values int2", CODES + ",kv_values=int2"),
)
CHOICES = ("", REST, SQUARES + REST)
ONCE = ",once=1"
SIZES = {"recall": "170KiB", "relate": "63KiB", "join": "63KiB"}  # 3 %


def used(rows):
    return f"{mean(row['slots_per_head'] for row in rows.values()):.0f}, {quality.cache_kib(rows.values())}"


def table(own, kinds, contexts, size):
    rows_of = [(method, name, quality.with_bytes(method, size) + kv) for method in METHODS for name, kv in STORED]
    policies = ["full"]
    for _, _, policy in rows_of:
        policies += [policy + choice for choice in CHOICES]
        policies.append(policy.replace(",residual=0", "") + CHOICES[-1] + ONCE)
    whole, *measured = rows_by_kind(own, "three", policies, "ask", kinds, contexts)
    lines = [
        f"Everything kept: {quality.accuracy_cell(whole, kinds)}, {quality.cache_kib(whole.values())}.",
        "",
        f"| method, bits, {size} | slots, used | dropped | one entry | one entry, squares | that, once "
        "| slots, used of that | that, to everything kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for i, (method, name, _) in enumerate(rows_of):
        of = measured[i * (len(CHOICES) + 1) : (i + 1) * (len(CHOICES) + 1)]
        accuracies = [quality.accuracy_cell(rows, kinds) for rows in of]
        cells = [f"{method}, {name}", used(of[0]), *accuracies, used(of[-1])]
        cells.append(quality.difference_cell(of[-1], kinds, whole))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def three(program, arguments):
    lines = [
        "The document is read before the question is known (*ask*), and 3 % of the full cache's bytes are kept of it. "
        "What is dropped is gone, or becomes one entry a head (`reducer=rest`), and the second reading scores by its "
        "largest probabilities or by their squares (`reread_score=squares`). *Once*: what comes behind the document "
        "is kept whole, and entries remember no score (`once=1`). *int4, values int2*: `kv=int4,kv_values=int2`. Codes "
        "are of all that is kept (`residual=0`); *once* of all of the document, and the newest 32 entries behind it "
        "stay as they are. Bytes are those behind the document.",
    ]
    for name, own, kinds, n in models_of(program, arguments):
        lines += ["", f"### Three per cent, models/{name}", "", f"{n} contexts a kind.", ""]
        lines += table(own, kinds, n, SIZES[name])
    return [*lines, ""]

"""The part of docs/results.md on models/relate, a model without hand-set weights: its kinds, at equal bytes, and what
head scores of several kinds are worth there."""

import quality_tables as quality
from quality_parts import AHAKV, WEIGHTEDKV, Explained, against_whole, explained, mean, rows_by_kind

KINDS = ("recall", "paraphrase", "latest", "code")
METHODS = (
    "streaming", "h2o", "snapkv-w8", "pyramidkv", "ada-snapkv", "keydiff", "cokv", "kvzip", "cokv-document",
)  # fmt: skip
ALPHA = 11  # what validation chose for the first of TABLES
# Of a cache of about 2 MiB, and of one of 8 MiB.
BYTES, LONG_BYTES = ("100KiB", "200KiB", "400KiB", "800KiB"), ("800KiB",)
# Tables of the model file: of all coalitions of a head, of it alone, of the others without it.
TABLES = (("exact", "in every coalition (Shapley)"), ("alone", "alone"), ("leftout", "left out of all"))


def methods(size, names=METHODS):
    return [("full", "full")] + [(m, quality.with_bytes(m, size)) for m in names]


def table(own, what, folder, named, contexts, of=KINDS):
    """Lines of a table with one row for each (name, policy)."""
    kinds = [f"{folder}/{kind}" for kind in of]
    rows = rows_by_kind(own, what, [p for _, p in named], "ask", kinds, contexts)
    lines = [
        "| method | " + " | ".join(of) + " | mean | 95 % of the mean | slots, used |",
        "|---|" + "---|" * (len(of) + 3),
    ]
    for (name, _), found in zip(named, rows):
        slots = mean(r["slots_per_head"] for r in found.values())
        cells = [name, *(quality.percent(found[k]) for k in kinds)]
        cells += [f"**{100 * quality.mean_accuracy(found, kinds):.1f}**"]
        cells += [quality.interval(found, kinds), f"{slots:.0f}, {quality.cache_kib(found.values())}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def relate(program, arguments):
    own = program.of(arguments.relate)
    contexts = arguments.contexts
    lines = [
        f"Model `models/relate`, 4 layers × 4 KV heads, `budget_bytes`, protocol *ask*, {contexts} held-out contexts "
        "of 1,000 tokens a kind, four questions each. What it does not answer with the full cache either (joins of two "
        "facts, long copies) is left out: `models/relate/README.md`.",
    ]
    for size in BYTES:
        lines += ["", f"### {size}", "", *table(own, "methods", "relate", methods(size), contexts)]
    for size in LONG_BYTES:
        few = min(contexts, 8)
        lines += ["", f"### {few} contexts of 3,900 tokens, {size}", ""]
        lines += table(own, "methods", "relate_long", methods(size), few)
    lines += ["", "### Heads together and alone", ""]
    lines.append(
        "Budgets of `cokv` from what a head is worth in every coalition of the others, alone, and to all others "
        "together."
    )
    for size in BYTES[:3]:
        cokv = quality.with_bytes("cokv", size) + f",alpha={ALPHA},scores="
        named = [(words, cokv + name) for name, words in TABLES]
        named.append(("every head the same (snapkv-w8)", quality.with_bytes("snapkv-w8", size)))
        lines += ["", f"{size}:", "", *table(own, "head scores", "relate", named, contexts)]
    return lines + [""]


# ---- parts of methods ----

# Of contexts of 1,000 tokens.
BUDGETS = (64, 128, 256)
OWN_KINDS = tuple(f"relate/{kind}" for kind in KINDS)
# With the question in the prompt the first token of an answer does not count, and only codes have more that are hard.
PROTOCOLS = (("ask", OWN_KINDS), ("prompt", ("relate/code",)))
EXPLAINED = Explained(OWN_KINDS, BUDGETS, 128, "kept-positions-relate.svg")


def parts(program, arguments):
    own = program.of(arguments.relate)
    contexts = arguments.contexts
    lines = ["### Merging against dropping (WeightedKV)", ""]
    lines += against_whole(own, "merging", WEIGHTEDKV, contexts, PROTOCOLS, BUDGETS)
    lines += ["### Parts of AhaKV", "", *against_whole(own, "ahakv", AHAKV, contexts, PROTOCOLS, BUDGETS)]
    return [*lines, "### Does the eviction loss tell accuracy?", "", *explained(own, contexts, EXPLAINED)]

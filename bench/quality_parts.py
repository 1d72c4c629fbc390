"""Parts of docs/results.md that ask one question each, over the first contexts of a few kinds."""

import dataclasses
import os

import quality_tables as quality
import quality_text

ASK_KINDS = ("niah_multi", "lives", "kv", "niah", "fewshot")
BUDGETS = (32, 64, 128)

# ---- does the eviction loss tell accuracy? ----

EXPLAINED = (
    "streaming", "h2o", "tova", "ahakv", "weightedkv", "snapkv-w8", "pyramidkv", "ada-snapkv", "headkv-r2", "cokv",
    "cokv-document", "knorm", "keydiff", "expected-attention",
)  # fmt: skip
MEASURES = ("loss", "relative_loss", "bound", "bound_by_head", "retained")


@dataclasses.dataclass(frozen=True)
class Explained:
    """What of a model is explained."""

    kinds: tuple
    budgets: tuple
    shown: int  # the budget of the tables of layers and of positions
    picture: str  # in docs


def names_of(kinds):
    """As their files call them and who reads does: without the folder."""
    return [kind.rpartition("/")[2] for kind in kinds]


RECALL_EXPLAINED = Explained(("niah_multi", "lives", "kv"), BUDGETS, 64, "kept-positions.svg")


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def explain(program, arguments):
    return explained(program, arguments.contexts, RECALL_EXPLAINED)


def explained(program, n_contexts, of):
    policies = [quality.spec(m, c) for m in EXPLAINED for c in of.budgets]
    contexts = str(n_contexts)
    files = [word for kind in of.kinds for word in ("--data", quality.data(kind))]
    document = program.document("explain", policies, *files, "--limit", contexts, "--threads", "1", "--explain")
    lines = [
        f"`kvc eval --explain`, {contexts} contexts of each of {', '.join(names_of(of.kinds))}, protocol *ask*, "
        f"{len(EXPLAINED)} methods at {', '.join(map(str, of.budgets))} slots: {len(policies)} policies. Rank "
        "correlation (Spearman) of each measure, mean over layers and queries, with accuracy and with the divergence "
        "from the full cache; *all*: of the means over the kinds.",
        "",
        "| kind, with | " + " | ".join(MEASURES) + " |",
        "|---|" + "---|" * len(MEASURES),
    ]
    found = {(c["kind"], c["measure"]): c for c in document["explain"]["rank_correlation"]}
    for kind in (*names_of(of.kinds), "all"):
        for against in ("accuracy", "kl"):
            values = [found[(kind, m)][against] for m in MEASURES]
            cells = ["–" if v is None else f"{v:+.2f}" for v in values]
            lines.append(f"| {kind}, {against} | " + " | ".join(cells) + " |")
    lines += ["", *of_layers(document, policies, of), "", *by_layer(document, policies, of)]
    return lines + ["", *by_position(document, policies, of), ""]


def ranks(values):
    """Equal values share their mean rank."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def rank_correlation(a, b):
    a, b = ranks(a), ranks(b)
    middle = (len(a) - 1) / 2
    products = [sum((x - middle) * (y - middle) for x, y in zip(*pair)) for pair in ((a, b), (a, a), (b, b))]
    return products[0] / (products[1] * products[2]) ** 0.5


def of_layers(document, policies, of):
    rows, n = document["results"], len(policies)
    kinds = [rows[k * n : (k + 1) * n] for k in range(len(of.kinds))]
    accuracy = [mean(kind[i]["accuracy"] for kind in kinds) for i in range(n)]
    layers = range(len(rows[0]["explain"]["loss"]))
    lines = [
        "The same for the layers alone: means over the kinds, with accuracy.",
        "",
        "| measure | " + " | ".join(f"layer {i}" for i in layers) + " |",
        "|---|" + "---|" * len(layers),
    ]
    for measure in ("loss", "bound", "retained"):
        cells = []
        for i in layers:
            values = [mean(kind[p]["explain"][measure][i] for kind in kinds) for p in range(n)]
            cells.append(f"{rank_correlation(values, accuracy):+.2f}")
        lines.append(f"| {measure} | " + " | ".join(cells) + " |")
    return lines


def of_shown(document, policies, of):
    rows = document["results"]
    for method in EXPLAINED:
        at = policies.index(quality.spec(method, of.shown))
        yield method, [rows[k * len(policies) + at] for k in range(len(of.kinds))]


def by_layer(document, policies, of):
    layers = range(len(document["results"][0]["explain"]["loss"]))
    lines = [
        f"Per layer at {of.shown} slots, mean over the kinds: L1 loss, and of the attention what stays.",
        "",
        "| method | accuracy | cache | " + " | ".join(f"layer {i}" for i in layers) + " |",
        "|---|---|---|" + "---|" * len(layers),
    ]
    for method, rows in of_shown(document, policies, of):
        cells = [f"{100 * mean(r['accuracy'] for r in rows):.0f}", quality.cache_kib(rows)]
        for i in layers:
            loss, stays = (mean(r["explain"][key][i] for r in rows) for key in ("loss", "retained"))
            cells.append(f"{loss:.0f}, {100 * stays:.0f} %")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def by_position(document, policies, of):
    rows = []
    for method, measured in of_shown(document, policies, of):
        tenths = [f"{100 * mean(r['explain']['kept_by_position'][i] for r in measured):.1f}" for i in range(10)]
        rows.append((method, tenths, quality.cache_kib(measured)))
    with open(os.path.join(quality.ROOT, "docs", of.picture), "w", encoding="utf-8") as file:
        file.write(position_picture(rows, of))
    return position_table(rows, of)


def position_table(rows, of):
    lines = [
        f"Where in the context stands what is kept at {of.shown} slots: percent of every tenth, mean over heads.",
        "",
        "| method | " + " | ".join(str(i) for i in range(1, 11)) + " | cache |",
        "|---|" + "---|" * 11,
    ]
    lines += [f"| {method} | " + " | ".join([*tenths, used]) + " |" for method, tenths, used in rows]
    return [*lines, "", f"![Share kept of every tenth of the context]({of.picture})"]


POSITION_STYLE = (
    "text{font:13px sans-serif;fill:#222}.c{fill:#0b5cad}.n{text-anchor:middle}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.c{fill:#58a6ff}}"
)


def position_picture(rows, of):
    """SVG: a line of ten cells for each method, the darker the more is kept."""
    left, top, width, height = 150, 44, 56, 26
    size = f"{left + 10 * width + 80} {top + height * len(rows) + 12}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">',
        f"<title>Percent kept of every tenth of the context</title><style>{POSITION_STYLE}</style>",
        f'<text x="{left}" y="16">percent kept of every tenth of the context, {of.shown} slots</text>',
        f'<text x="{left + 10 * width + 8}" y="36">cache</text>',
    ]
    out += [f'<text class="n" x="{left + (i + 0.5) * width:.0f}" y="36">{i + 1}</text>' for i in range(10)]
    for row, (method, tenths, used) in enumerate(rows):
        y = top + row * height
        out.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{method}</text>')
        for i, tenth in enumerate(tenths):
            at = f'x="{left + i * width}" y="{y}" width="{width - 2}" height="{height - 2}"'
            out.append(f'<rect class="c" {at} opacity="{min(0.75, 0.05 * float(tenth)):.2f}"/>')
            out.append(f'<text class="n" x="{left + (i + 0.5) * width - 1:.0f}" y="{y + 17}">{tenth}</text>')
        out.append(f'<text x="{left + 10 * width + 8}" y="{y + 17}">{used}</text>')
    return "\n".join([*out, "</svg>", ""])


# ---- with a part of a method, and without ----


def rows_by_kind(program, what, policies, protocol, kinds, contexts):
    """[{kind: row}] of every policy."""
    table = [{} for _ in policies]
    for kind in kinds:
        for own, row in zip(
            table, program.tasks(f"{what} {protocol} {kind}", policies, quality.data(kind), protocol, contexts)
        ):
            own[kind] = row
    return table


def against_whole(program, what, method, contexts, protocols, budgets):
    """Accuracy of a method and of it without each of its parts; the differences on the same contexts. method: its name
    and [(name, options)] of the parts; protocols: [(protocol, kinds)]."""
    whole, parts = method
    kinds_of = "; ".join(f"*{protocol}*: mean over {', '.join(names_of(kinds))}" for protocol, kinds in protocols)
    lines = [
        f"{contexts} contexts a kind; accuracy, bytes, and in brackets the 95 % interval of the difference "
        f"to the whole method on the same contexts. {kinds_of}.",
        "",
        "| protocol, slots | " + whole + " | " + " | ".join(name for name, _ in parts) + " |",
        "|---|---|" + "---|" * len(parts),
    ]
    for protocol, kinds in protocols:
        texts = [quality.spec(whole, c) + more for c in budgets for more in ("", *(more for _, more in parts))]
        table = rows_by_kind(program, what, texts, protocol, kinds, contexts)
        for i, budget in enumerate(budgets):
            own = table[i * (len(parts) + 1) : (i + 1) * (len(parts) + 1)]
            best = quality.mean_accuracy(own[0], kinds)
            cells = [f"{100 * best:.1f}, {quality.cache_kib(own[0].values())}"]
            for rows in own[1:]:
                cells.append(f"{quality.difference_cell(rows, kinds, own[0])}, {quality.cache_kib(rows.values())}")
            lines.append(f"| {protocol}, {budget} | " + " | ".join(cells) + " |")
    return lines + [""]


WEIGHTEDKV = ("weightedkv", (("values dropped", ",wkv_merge=0"),))
AHAKV = ("ahakv", (
    ("rows of the whole prompt", ",aha_rows=all"),
    ("the model's own softmax", ",aha_gain=0"),
    ("no value prior", ",aha_prior=0"),
))  # fmt: skip
PROTOCOLS = (("ask", ASK_KINDS), ("prompt", quality.PROMPT_KINDS))


def merging(program, arguments):
    lines = against_whole(program, "merging", WEIGHTEDKV, arguments.contexts, PROTOCOLS, BUDGETS)
    return lines + quality_text.merging(program, arguments.windows)


def ahakv(program, arguments):
    return against_whole(program, "ahakv", AHAKV, arguments.contexts, PROTOCOLS, BUDGETS)

"""Parts of docs/results.md that ask one question each, over the first contexts of a few kinds."""

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
EXPLAINED_KINDS = ("niah_multi", "lives", "kv")
MEASURES = ("loss", "relative_loss", "bound", "bound_by_head", "retained")
SHOWN_BUDGET = 64  # of the table of positions


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def explain(program, arguments):
    policies = [quality.spec(m, c) for m in EXPLAINED for c in BUDGETS]
    contexts = str(arguments.contexts)
    files = [word for kind in EXPLAINED_KINDS for word in ("--data", quality.data(kind))]
    document = program.document("explain", policies, *files, "--limit", contexts, "--threads", "1", "--explain")
    lines = [
        f"`kvc eval --explain`, {contexts} contexts of each of {', '.join(EXPLAINED_KINDS)}, protocol *ask*, "
        f"{len(EXPLAINED)} methods at {', '.join(map(str, BUDGETS))} slots: {len(policies)} policies. Rank correlation "
        "(Spearman) of each measure, mean over layers and queries, with accuracy and with the divergence from the "
        "full cache; *all*: of the means over the kinds.",
        "",
        "| kind, with | " + " | ".join(MEASURES) + " |",
        "|---|" + "---|" * len(MEASURES),
    ]
    found = {(c["kind"], c["measure"]): c for c in document["explain"]["rank_correlation"]}
    for kind in (*EXPLAINED_KINDS, "all"):
        for against in ("accuracy", "kl"):
            values = [found[(kind, m)][against] for m in MEASURES]
            cells = ["–" if v is None else f"{v:+.2f}" for v in values]
            lines.append(f"| {kind}, {against} | " + " | ".join(cells) + " |")
    lines += ["", *of_layers(document, policies), "", *by_layer(document, policies)]
    return lines + ["", *by_position(document, policies), ""]


def ranks(values):
    """Equal values share their mean rank."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def rank_correlation(a, b):
    a, b = ranks(a), ranks(b)
    middle = (len(a) - 1) / 2
    products = [sum((x - middle) * (y - middle) for x, y in zip(*pair)) for pair in ((a, b), (a, a), (b, b))]
    return products[0] / (products[1] * products[2]) ** 0.5


def of_layers(document, policies):
    rows, n = document["results"], len(policies)
    kinds = [rows[k * n : (k + 1) * n] for k in range(len(EXPLAINED_KINDS))]
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


def of_budget(document, policies, budget):
    rows = document["results"]
    for method in EXPLAINED:
        at = policies.index(quality.spec(method, budget))
        yield method, [rows[k * len(policies) + at] for k in range(len(EXPLAINED_KINDS))]


def by_layer(document, policies):
    layers = range(len(document["results"][0]["explain"]["loss"]))
    lines = [
        f"Per layer at {SHOWN_BUDGET} slots, mean over the kinds: L1 loss, and of the attention what stays.",
        "",
        "| method | accuracy | cache | " + " | ".join(f"layer {i}" for i in layers) + " |",
        "|---|---|---|" + "---|" * len(layers),
    ]
    for method, rows in of_budget(document, policies, SHOWN_BUDGET):
        cells = [f"{100 * mean(r['accuracy'] for r in rows):.0f}", quality.cache_kib(rows)]
        for i in layers:
            loss, stays = (mean(r["explain"][key][i] for r in rows) for key in ("loss", "retained"))
            cells.append(f"{loss:.0f}, {100 * stays:.0f} %")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


POSITIONS = os.path.join(quality.ROOT, "docs", "kept-positions.svg")


def by_position(document, policies):
    rows = []
    for method, of in of_budget(document, policies, SHOWN_BUDGET):
        tenths = [f"{100 * mean(r['explain']['kept_by_position'][i] for r in of):.1f}" for i in range(10)]
        rows.append((method, tenths, quality.cache_kib(of)))
    with open(POSITIONS, "w", encoding="utf-8") as file:
        file.write(position_picture(rows))
    return position_table(rows)


def position_table(rows):
    lines = [
        f"Where in the context stands what is kept at {SHOWN_BUDGET} slots: percent of every tenth, mean over heads.",
        "",
        "| method | " + " | ".join(str(i) for i in range(1, 11)) + " | cache |",
        "|---|" + "---|" * 11,
    ]
    lines += [f"| {method} | " + " | ".join([*tenths, used]) + " |" for method, tenths, used in rows]
    return [*lines, "", "![Share kept of every tenth of the context](kept-positions.svg)"]


POSITION_STYLE = (
    "text{font:13px sans-serif;fill:#222}.c{fill:#0b5cad}.n{text-anchor:middle}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.c{fill:#58a6ff}}"
)


def position_picture(rows):
    """SVG: a line of ten cells for each method, the darker the more is kept."""
    left, top, width, height = 150, 44, 56, 26
    size = f"{left + 10 * width + 80} {top + height * len(rows) + 12}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">',
        f"<title>Percent kept of every tenth of the context</title><style>{POSITION_STYLE}</style>",
        f'<text x="{left}" y="16">percent kept of every tenth of the context, {SHOWN_BUDGET} slots</text>',
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


def against_whole(program, what, whole, parts, arguments):
    """Accuracy of a method and of it without each of its parts; the differences on the same contexts."""
    lines = [
        f"{arguments.contexts} contexts a kind; accuracy, bytes, and in brackets the 95 % interval of the difference "
        f"to the whole method on the same contexts. *ask*: mean over {', '.join(ASK_KINDS)}; *prompt*: over "
        f"{', '.join(quality.PROMPT_KINDS)}.",
        "",
        "| protocol, slots | " + whole + " | " + " | ".join(name for name, _ in parts) + " |",
        "|---|---|" + "---|" * len(parts),
    ]
    for protocol, kinds in (("ask", ASK_KINDS), ("prompt", quality.PROMPT_KINDS)):
        texts = [quality.spec(whole, c) + more for c in BUDGETS for more in ("", *(more for _, more in parts))]
        table = rows_by_kind(program, what, texts, protocol, kinds, arguments.contexts)
        for i, budget in enumerate(BUDGETS):
            own = table[i * (len(parts) + 1) : (i + 1) * (len(parts) + 1)]
            best = quality.mean_accuracy(own[0], kinds)
            cells = [f"{100 * best:.1f}, {quality.cache_kib(own[0].values())}"]
            for rows in own[1:]:
                cells.append(f"{quality.difference_cell(rows, kinds, own[0])}, {quality.cache_kib(rows.values())}")
            lines.append(f"| {protocol}, {budget} | " + " | ".join(cells) + " |")
    return lines + [""]


def merging(program, arguments):
    lines = against_whole(program, "merging", "weightedkv", [("values dropped", ",wkv_merge=0")], arguments)
    return lines + quality_text.merging(program, arguments.windows)


def ahakv(program, arguments):
    parts = [
        ("rows of the whole prompt", ",aha_rows=all"),
        ("the model's own softmax", ",aha_gain=0"),
        ("no value prior", ",aha_prior=0"),
    ]
    return against_whole(program, "ahakv", "ahakv", parts, arguments)

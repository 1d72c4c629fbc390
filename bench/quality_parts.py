"""Parts of docs/results.md that ask one question each, over the first contexts of a few kinds."""

import os

import quality_tables as quality

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


def by_position(document, policies):
    lines = [
        f"Where in the context stands what is kept at {SHOWN_BUDGET} slots: percent of every tenth, mean over heads.",
        "",
        "| method | " + " | ".join(str(i) for i in range(1, 11)) + " |",
        "|---|" + "---|" * 10,
    ]
    for method, rows in of_budget(document, policies, SHOWN_BUDGET):
        cells = [f"{100 * mean(r['explain']['kept_by_position'][i] for r in rows):.1f}" for i in range(10)]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


# ---- every method at equal bytes ----

BYTES = ("240KiB", "480KiB")
OF_BYTES = (
    "streaming", "h2o", "tova", "scissorhands", "ahakv", "weightedkv", "snapkv-w8", "pyramidkv", "ada-snapkv",
    "ada-pyramid", "headkv-r2", "cokv", "cokv-document", "kvzip", "knorm", "keydiff", "lagkv", "expected-attention",
    "cokv-mixed",
)  # fmt: skip


def with_bytes(method, size):
    text = quality.METHODS[method][0].format(c="BUDGET", half=4)
    return text.replace("budget=BUDGET", "budget_bytes=" + size)


def rows_by_kind(program, what, policies, protocol, kinds, contexts):
    """[{kind: row}] of every policy."""
    table = [{} for _ in policies]
    for kind in kinds:
        for own, row in zip(
            table, program.tasks(f"{what} {protocol} {kind}", policies, quality.data(kind), protocol, contexts)
        ):
            own[kind] = row
    return table


def accuracy_cell(rows, kinds):
    low, high = quality.bootstrap(rows, kinds)
    return f"{100 * quality.mean_accuracy(rows, kinds):.1f} [{100 * low:.0f}–{100 * high:.0f}]"


def equal_bytes(program, arguments):
    policies = [with_bytes(m, size) for m in OF_BYTES for size in BYTES]
    table = rows_by_kind(program, "bytes", policies, "ask", ASK_KINDS, arguments.contexts)
    lines = [
        f"`budget_bytes`, protocol *ask*, {arguments.contexts} contexts of each of {', '.join(ASK_KINDS)}: mean "
        "accuracy, the slots a head has for it, and the bytes that were used: whole pages, so uniform budgets leave "
        "some.",
        "",
        "| method | " + " | ".join(f"{size} | slots, used" for size in BYTES) + " |",
        "|---|" + "---|---|" * len(BYTES),
    ]
    for i, method in enumerate(OF_BYTES):
        cells = []
        for rows in table[i * len(BYTES) : (i + 1) * len(BYTES)]:
            slots = mean(r["slots_per_head"] for r in rows.values())
            cells += [accuracy_cell(rows, ASK_KINDS), f"{slots:.0f}, {quality.cache_kib(rows.values())}"]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines + [""]


# ---- with a part of a method, and without ----


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
                low, high = quality.bootstrap(rows, kinds, own[0])
                difference = 100 * (quality.mean_accuracy(rows, kinds) - best)
                cells.append(
                    f"{difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}], {quality.cache_kib(rows.values())}"
                )
            lines.append(f"| {protocol}, {budget} | " + " | ".join(cells) + " |")
    return lines + [""]


def merging(program, arguments):
    lines = against_whole(program, "merging", "weightedkv", [("values dropped", ",wkv_merge=0")], arguments)
    return lines + merged_text(program, arguments)


def merged_text(program, arguments):
    names = sorted(os.listdir(os.path.join(quality.ROOT, "bench", "data", "text")))
    cases = [(c, more) for c in (64, 128, 256) for more in ("", ",wkv_merge=0")]
    policies = [quality.spec("weightedkv", c) + more for c, more in cases]
    calls = []
    for name in names:
        path = os.path.join(quality.ROOT, "bench", "data", "text", name)
        words = ("--text", path, "--limit", str(arguments.windows), "--threads", "1")
        calls.append((f"merging {name}", policies, *words))
    columns = program.several(calls)
    lines = [
        f"Perplexity, token by token (windows of every text: {arguments.windows}):",
        "",
        "| slots | values | " + " | ".join(name.split(".")[0] for name in names) + " | cache |",
        "|---|---|" + "---|" * (len(names) + 1),
    ]
    for i, (budget, more) in enumerate(cases):
        cells = [f"{column[i]['perplexity']:.3f}" for column in columns]
        kind = "dropped" if more else "merged"
        lines.append(
            f"| {budget} | {kind} | " + " | ".join(cells) + f" | {quality.cache_kib(c[i] for c in columns)} |"
        )
    return lines + [""]


def ahakv(program, arguments):
    parts = [
        ("rows of the whole prompt", ",aha_rows=all"),
        ("the model's own softmax", ",aha_gain=0"),
        ("no value prior", ",aha_prior=0"),
    ]
    return against_whole(program, "ahakv", "ahakv", parts, arguments)

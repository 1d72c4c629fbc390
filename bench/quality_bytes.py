"""Every method at equal bytes on both models, in docs/results.md, with a picture of each: accuracy over bytes, and
which policies nobody beats with as few."""

import dataclasses
import math
import os

import quality_tables as quality
from quality_parts import ASK_KINDS, mean, names_of, rows_by_kind
from quality_relate import OWN_KINDS

WHOLE = ("f16", "int8", "int4", "int2")  # int2: of values, beside keys in 4 bits
METHODS = [m for m in quality.METHODS if m not in ("streaming-baseline", "cam-oneshot", "pyramidinfer", "ada-paper")]
BEHIND_KVZIP = METHODS.index("kvzip") + 1
METHODS[BEHIND_KVZIP:BEHIND_KVZIP] = ["kvzip-own", "kvzip-ada"]
# Eviction and fewer bits: the same bytes hold two or four times the slots.
IN_BITS = (
    "h2o", "snapkv-w8", "pyramidkv", "ada-snapkv", "headkv-r2", "cokv", "cokv-document", "kvzip", "kvzip-own",
    "keydiff",
)  # fmt: skip
IN_TWO = ("cokv", "cokv-document", "kvzip", "kvzip-own")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model and its caches: the smallest is 3 % of the full one."""

    kinds: tuple
    tokens: int  # of a context
    sizes: tuple
    picture: str  # in docs
    lowest: int  # KiB, where its axis begins
    ticks: tuple


RECALL = Setting(
    ASK_KINDS, 900, ("170KiB", "240KiB", "480KiB", "960KiB"),
    "accuracy-bytes.svg", 110, (170, 480, 1440, 4320),
)  # fmt: skip
RELATE = Setting(
    OWN_KINDS, 1000, ("63KiB", "100KiB", "200KiB", "400KiB"),
    "accuracy-bytes-relate.svg", 45, (63, 200, 600, 1800),
)  # fmt: skip


def stored(kv):
    return "" if kv == "f16" else ",kv=int4,kv_values=int2" if kv == "int2" else f",kv={kv}"


def cases(program, setting):
    """[(name, kv, {size: policy})]; a policy that is whole as it stands has the size None. Sizes in which a policy has
    no room for what it always keeps are left out."""
    out = [("full", kv, {None: "full" + stored(kv).replace(",", ":", 1)}) for kv in WHOLE]
    named = [(m, "mixed" if m == "cokv-mixed" else "f16") for m in METHODS]
    named += [(m, kv) for kv in WHOLE[1:] for m in (IN_TWO if kv == "int2" else IN_BITS)]
    for method, kv in named:
        more = "" if kv == "mixed" else stored(kv)
        policies = {size: quality.with_bytes(method, size) + more for size in setting.sizes}
        out.append((method, kv, {s: p for s, p in policies.items() if program.takes(p, setting.tokens)}))
    return out


def frontier(points):
    """Of [(bytes, accuracy, name)] those that no other reaches with as few bytes."""
    out = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not out or point[1] > out[-1][1]:
            out.append(point)
    return out


def label(method, kv):
    return method if kv in ("f16", "mixed") else f"{method}, {kv}"


def equal_bytes(program, arguments):
    return compared(program, arguments.contexts, RECALL)


def relate(program, arguments):
    own = program.of(arguments.relate)
    return compared(own, arguments.contexts, RELATE)


def compared(program, contexts, setting):
    kinds, all_cases = setting.kinds, cases(program, setting)
    policies = [policy for _, _, of in all_cases for policy in of.values()]
    table = dict(zip(policies, rows_by_kind(program, "bytes", policies, "ask", kinds, contexts)))
    points, lines = [], []
    for method, kv, of in all_cases:
        cells = []
        for size in (None,) if None in of else setting.sizes:
            rows = table.get(of.get(size))
            if rows is None:
                cells += ["–", "–"]
                continue
            slots = mean(r["slots_per_head"] for r in rows.values())
            cells += [quality.accuracy_cell(rows, kinds), f"{slots:.0f}, {quality.cache_kib(rows.values())}"]
            used = mean(r["cache_bytes"] for r in rows.values()) / 1024
            points.append((round(used), round(100 * quality.mean_accuracy(rows, kinds), 1), label(method, kv)))
        if None in of:
            lines.append(f"{label(method, kv)}: {cells[0]}, {cells[1].split(', ')[1]}")
        else:
            lines.append(f"| {label(method, kv)} | " + " | ".join(cells) + " |")
    best = frontier(points)
    with open(os.path.join(quality.ROOT, "docs", setting.picture), "w", encoding="utf-8") as file:
        file.write(picture(points, best, setting))
    names = ", ".join(f"{name} ({used} KiB, {accuracy:.1f} %)" for used, accuracy, name in best)
    whole = [line for line in lines if not line.startswith("|")]
    return [
        f"`budget_bytes`, protocol *ask*, {contexts} contexts of each of {', '.join(names_of(setting.kinds))}: mean "
        "accuracy, the slots a head has for it, and the bytes that were used; the smallest size is 3 % of the full "
        "cache. In int8, int4 (`kv=`) and int2 (`kv=int4,kv_values=int2`) the same bytes hold more slots. –: no room "
        "for what is always kept. "
        "Everything kept: "
        + "; ".join(whole)
        + ".",
        "",
        "| method | " + " | ".join(f"{size} | slots, used of {size}" for size in setting.sizes) + " |",
        "|---|" + "---|---|" * len(setting.sizes),
        *(line for line in lines if line.startswith("|")),
        "",
        f"The frontier, which nobody beats with as few bytes: {names}.",
        "",
        f"![Accuracy over the bytes of the cache]({setting.picture})",
        "",
    ]


# ---- the picture ----

LEFT, TOP, WIDTH, HEIGHT, RIGHT, BOTTOM = 60, 60, 620, 400, 120, 50
STYLE = (
    "text{font:13px sans-serif;fill:#222}.s{font-size:11px}.a{stroke:#999}.f{fill:none;stroke:#c1121f;stroke-width:1.5}"
    ".f16{fill:#2a6f97}.int8{fill:#e09f3e}.int4{fill:#9a8c98}.int2{fill:#7b5ea7}.mixed{fill:#52796f}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.f{stroke:#ff6b6b}.f16{fill:#61a5c2}.int8{fill:#f2cc8f}"
    ".int4{fill:#c9ada7}.int2{fill:#b79ced}.mixed{fill:#84a98c}}"
)


def picture(points, best, setting):
    """SVG: bytes on a logarithmic axis; the name of a point is its title, those of the frontier are written out."""
    low, high = math.log(setting.lowest), math.log(max(used for used, _, _ in points) * 1.1)
    x = lambda used: LEFT + WIDTH * (math.log(used) - low) / (high - low)
    y = lambda accuracy: TOP + HEIGHT * (1 - accuracy / 100)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {TOP + HEIGHT + BOTTOM}" '
        'role="img">',
        f"<title>Right answers over the bytes of the cache</title><style>{STYLE}</style>",
        f'<path class="a" fill="none" d="M{LEFT} {TOP}V{TOP + HEIGHT}H{LEFT + WIDTH}"/>',
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 42}" text-anchor="middle">KiB of cache</text>',
        f'<text x="{LEFT}" y="18">right answers in percent, question unknown when compressed</text>',
    ]
    for tick in (0, 20, 40, 60, 80, 100):
        out.append(f'<text class="s" x="{LEFT - 8}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick}</text>')
    for tick in setting.ticks:
        at = f'x="{x(tick):.0f}" y="{TOP + HEIGHT + 18}"'
        out.append(f'<text class="s" {at} text-anchor="middle">{tick}</text>')
    steps = "".join(f"{'ML'[i > 0]}{x(used):.1f} {y(accuracy):.1f}" for i, (used, accuracy, _) in enumerate(best))
    out.append(f'<path class="f" d="{steps}"/>')
    kinds = {name.rpartition(", ")[2] for _, _, name in points} & set(WHOLE)
    for used, accuracy, name in points:
        kind = name.rpartition(", ")[2]
        kind = kind if kind in kinds else "mixed" if name == "cokv-mixed" else "f16"
        at = f'cx="{x(used):.1f}" cy="{y(accuracy):.1f}"'
        out.append(f'<circle class="{kind}" {at} r="4"><title>{name}: {used} KiB, {accuracy} %</title></circle>')
    for used, accuracy, name in best:
        at = f'x="{x(used) + 9:.1f}" y="{y(accuracy) + (4 if accuracy < 99 else -8):.1f}"'
        out.append(f'<text class="s" {at}>{name}</text>')
    for i, kind in enumerate((*WHOLE, "mixed")):
        top = TOP + 20 * i + 10
        out.append(f'<circle class="{kind}" cx="{LEFT + WIDTH + 30}" cy="{top + 100}" r="4"/>')
        out.append(f'<text x="{LEFT + WIDTH + 42}" y="{top + 104}">{kind}</text>')
    return "\n".join([*out, "</svg>", ""])

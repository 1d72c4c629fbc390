"""The targets of the CUDA backend, T1 to T19, against what a run of gpu.py measured. They speak of an H200 and of
models of a certain shape; what a run has not measured says what was missing, and is no success."""

import dataclasses
import re
from typing import Callable, Union

import gpu_times
from gpu_times import UNDECIDED

H200 = "H200"
BUDGET_ENTRIES = 1024
BUDGET = f"snapkv:budget={BUDGET_ENTRIES}"
STEPS_OF_P99 = 100  # of fewer it is the longest
LAYERS_8B = 32
SHORT, LONG = 4096, 131072  # prompts: from here on a budget's cache is full and steps are alike
SHAPES = {(32, 4096): "8B", (16, 2048): "1B"}  # layers, hidden


@dataclasses.dataclass(frozen=True)
class Found:
    """A value as people read it, and whether it is good enough; None: only what was missing."""

    text: str
    met: Union[bool, str, None]


@dataclasses.dataclass(frozen=True)
class Target:
    """One row: what is wanted, and the function that finds it in a report."""

    name: str
    what: str
    target: str
    find: Callable
    rest: str = ""  # of the whole target: what no run measures


def of_cells(find):
    return lambda report: find(report["cells"])


def operation_of(report, name):
    """The single operation (bench/device_bench.cc) of that name; some say behind it in how many layers."""
    named = re.compile(re.escape(name) + r"(, \d+ layers)?")
    return next((row for row in report["operations"] if named.fullmatch(row["operation"])), None)


def of_operations(judge_rows, *names):
    """What judge_rows(rows) says of the operations of these names."""

    def find(report):
        rows = [operation_of(report, name) for name in names]
        if None in rows:
            return Found(f"needs the operation '{names[rows.index(None)]}'", None)
        return judge_rows(rows)

    return find


def time_of_a_layer(row):
    """The Spread of an operation's seconds; where its name counts layers, of those of each."""
    layers = re.search(r"(\d+) layers$", row["operation"])
    return gpu_times.of_row(row) / (int(layers.group(1)) if layers else 1)


def share_of_copies(least):
    """Of every row."""

    def judge_rows(rows):
        shares = [row["bytes"] / row["read_bytes_per_second"] / gpu_times.of_row(row) for row in rows]
        return Found(" and ".join(f"{100 * share.median:.0f} %" for share in shares),
                     gpu_times.together(*(share.at_least(least) for share in shares)))

    return judge_rows


def microseconds(most):
    """Of a call; where the operation's name counts layers, of each of them."""

    def judge_rows(rows):
        took = time_of_a_layer(rows[0])
        return Found(f"{1e6 * took.median:.1f} us", took.at_most(1e-6 * most))

    return judge_rows


def ragged_beside_uniform(rows):
    """Time by byte: the pages of layers whose heads differ are not all as full. The last row is uniform."""
    *ragged, uniform = (gpu_times.of_row(row) / row["bytes"] for row in rows)
    beside = [kind / uniform for kind in ragged]
    return Found(" and ".join(f"{kind.median:.3f}" for kind in beside),
                 gpu_times.together(*(kind.at_most(1.05) for kind in beside)))


def coded_pages(rows):
    plain, *coded = map(gpu_times.of_row, rows)
    int8, int4 = (plain / took for took in coded)
    return Found(f"{int8.median:.2f} and {int4.median:.2f} times",
                 gpu_times.together(int8.at_least(1.75), int4.at_least(2.8)))


def dropping(report):
    """What a step takes longer for scores and victims: of its attention, and of a step of the 8B shape."""
    names = ONE, ONE + ", dropping"
    rows = [operation_of(report, name) for name in names]
    if None in rows:
        return Found(f"needs the operation '{names[rows.index(None)]}'", None)
    plain, drops = map(time_of_a_layer, rows)
    beside = drops / plain
    text, few = f"{100 * (beside.median - 1):.1f} % of attention", beside.at_most(1.08)
    steps = [cell["result"]["step_seconds_median"] for cell in chosen(report["cells"], "8B", "bf16", BUDGET, SHORT)]
    if not steps:
        return Found(f"{text}, needs 8B bf16 at {BUDGET}", False if few is False else None)
    usual, most = (LAYERS_8B * more / min(steps) for more in (drops.median - plain.median, drops.p90 - plain.p10))
    return Found(f"{text}, {100 * usual:.2f} % of a step",
                 gpu_times.together(few, gpu_times.verdict(usual <= 0.01, most <= 0.01)))


def column_sums(rows):
    folded, attended = map(gpu_times.of_row, rows)
    share_of = folded / attended
    return Found(f"{100 * share_of.median:.0f} %", share_of.at_most(0.65))


def kind_of(model):
    """("8B", "bf16") of what kvc inspect says of a model; other shapes have no name here."""
    config = model["config"]
    weights = {tensor["type"] for tensor in model["tensors"] if tensor["role"] == "gate"}
    return SHAPES.get((config["n_layers"], config["hidden_size"])), weights.pop() if len(weights) == 1 else None


def chosen(cells, shape, weights, policy=None, least_prompt=0):
    """The measured cells of a model, by prompt."""
    found = [cell for cell in cells if cell["shape"] == shape and cell["weights"] in (weights or cell["weights"],)
             and policy in (None, cell["policy"]) and cell["prompt"] >= least_prompt and "error" not in cell["result"]]
    return sorted(found, key=lambda cell: cell["prompt"])


def decode(shape, weights, rate, fraction):
    """Steps at a budget of 1024: tokens per second, and of the copy bandwidth; the slower tenth is of stretches of
    eight steps."""

    def find(cells):
        found = chosen(cells, shape, weights, BUDGET, SHORT)
        if not found:
            return Found(f"needs {shape} {weights} at {BUDGET}", None)
        got = found[0]["result"]

        def good(of):
            return got[f"decode_tokens_per_second{of}"] >= rate and got[f"bandwidth_fraction{of}"] >= fraction

        return Found(f"{got['decode_tokens_per_second']:.0f} tokens/s, {100 * got['bandwidth_fraction']:.0f} %",
                     gpu_times.verdict(good(""), good("_p10")))

    return find


def drift(cells):
    """Steps at a fixed budget behind a prompt of 4k and one of 128k, of the same weights."""
    for shape in ("8B", "1B"):
        found = {cell["prompt"]: cell["result"]["step_seconds_median"]
                 for cell in chosen(cells, shape, "bf16", BUDGET)}
        if SHORT in found and LONG in found:
            more = found[LONG] / found[SHORT] - 1
            return Found(f"{100 * more:+.1f} %", more <= 0.02)
    return Found(f"needs bf16 with prompts of {SHORT} and {LONG} at {BUDGET}", None)


def jitter(cells):
    found = chosen(cells, "8B", None, BUDGET, SHORT)
    if not found:
        return Found(f"needs 8B at {BUDGET}", None)
    found = [cell for cell in found if cell["result"].get("steps_timed", 0) >= STEPS_OF_P99]
    if not found:
        return Found(f"needs {STEPS_OF_P99} steps behind a prompt", None)
    worst = max(cell["result"]["step_seconds_p99"] / cell["result"]["step_seconds_median"] for cell in found)
    return Found(f"{worst:.3f}", worst <= 1.03)


def peak(report):
    """What the run reached in products of 16 bits: the most operations a second, and where. None: it has measured
    none."""
    rows = [(row["operation"], row) for row in report.get("operations", ()) if row["operation"].startswith(PRODUCT)]
    rows += [(f"{row['library']}, {row['peer']}", row) for row in report.get("peers", ()) if row.get("flops")]
    rates = [(row["flops"] / row["seconds"], name) for name, row in rows]
    return dict(zip(("flops_per_second", "of"), max(rates))) if rates else None


def share_of_peak(cell, most):
    """What a cell's prompt reaches of the peak, or None."""
    flops = cell.get("prompt_flops")
    return flops / cell["result"]["prefill_seconds"] / most["flops_per_second"] if flops and most else None


def prompt(report):
    found = [cell for cell in chosen(report["cells"], "8B", "bf16", "full") if cell["prompt"] == 8192]
    if not found:
        return Found("needs 8B bf16 with a prompt of 8192", None)
    seconds, share_of = found[0]["result"]["prefill_seconds"], share_of_peak(found[0], peak(report))
    if share_of is None:
        return Found(f"{seconds:.3f} s, needs the rate of products", None if seconds <= 0.27 else False)
    return Found(f"{seconds:.3f} s, {100 * share_of:.0f} %", seconds <= 0.27 and share_of >= 0.62)


def share(report):
    """Of the time to the first token that compression takes, of both shapes against its own bound: what a layer of the
    8B shape takes on the device, for each. The host does not wait for it, and cannot say."""
    texts, met = [], []
    for shape, layers, prompt_tokens, bound in (("8B", 32, 8192, 0.01), ("1B", 16, 8192, 0.02), ("8B", 32, 4096, 0.03),
                                                ("1B", 16, 4096, 0.03)):
        name = compressed(prompt_tokens)
        layer = operation_of(report, name)
        if layer is None:
            return Found(f"needs the operation '{name}'", None)
        found = [cell for cell in chosen(report["cells"], shape, None, BUDGET) if cell["prompt"] == prompt_tokens]
        if not found:
            return Found(f"needs {shape} with a prompt of {prompt_tokens} at {BUDGET}", None)
        least = min(cell["result"]["first_token_seconds"] for cell in found)
        share_of = time_of_a_layer(layer) / (least / layers)
        texts.append(f"{shape} at {prompt_tokens // 1024}k {100 * share_of.median:.2f} %")
        met.append(share_of.at_most(bound))
    return Found(", ".join(texts), gpu_times.together(*met))


def memory(cells):
    """What the device holds more while a long prompt is read, at most."""
    found = [cell["result"] for cell in chosen(cells, "8B", "bf16", BUDGET) if cell["prompt"] == LONG]
    if not found or "device_bytes_peak" not in found[0]:
        return Found(f"needs the memory of a CUDA device, 8B bf16 with a prompt of {LONG}", None)
    peak = found[0]["device_bytes_peak"]
    return Found(f"{peak / 1e9:.1f} GB", peak <= 19e9)


def operation(name):
    """The time of ours, a layer; or what was missing."""

    def find(report):
        row = operation_of(report, name)
        return (None, f"the operation '{name}'") if row is None else (time_of_a_layer(row), None)

    return find


def step_of(shape):
    """The slowest behind any prompt: with a fixed budget they are alike."""

    def find(report):
        found = chosen(report["cells"], shape, "bf16", BUDGET)
        if not found:
            return None, f"{shape} bf16 at {BUDGET}"
        return gpu_times.once(max(cell["result"]["step_seconds_median"] for cell in found)), None

    return find


def peer_of(report, peer):
    """The time that PyTorch takes (bench/gpu_peers.py), None; or None and what was missing."""
    row = next((row for row in report.get("peers", ()) if row["peer"] == peer), None)
    if row is None or "error" in row:
        why = f", which says: {row['error']}" if row else ""
        return None, f"its comparator '{peer}'{why}"
    return gpu_times.of_row(row), None


def beside(*pairs):
    """How many times as long PyTorch takes as we do: of every (ours(report), peer, least)."""

    def find(report):
        texts, met = [], []
        for ours, peer, least in pairs:
            took, lacks = ours(report)
            theirs, they_lack = peer_of(report, peer)
            if lacks or they_lack:
                return Found(", ".join([*texts, f"needs {they_lack or lacks}"]), False if False in met else None)
            times = theirs / took
            texts.append(f"{times.median:.2f} times")
            met.append(times.at_least(least))
        return Found(" and ".join(texts), gpu_times.together(*met))

    return find


def both(judge_rows, name, peer, least):
    """An operation by itself, and how many times as long PyTorch takes for the like."""

    def find(report):
        row = operation_of(report, name)
        if row is None:
            return Found(f"needs the operation '{name}'", None)
        alone = judge_rows([row])
        theirs, lacks = peer_of(report, peer)
        if lacks:
            return Found(f"{alone.text}, needs {lacks}", False if alone.met is False else None)
        times = theirs / time_of_a_layer(row)
        return Found(f"{alone.text}, {times.median:.2f} times",
                     gpu_times.together(alone.met, times.at_least(least)))

    return find


def products(least):
    def judge_rows(rows):
        rate = rows[0]["flops"] / gpu_times.of_row(rows[0])
        return Found(f"{rate.median / 1e12:.0f} TFLOP/s", rate.at_least(least))

    return judge_rows


def appending(report):
    """Two bounds hold what appending, rotating and evicting take: at least what a step over heads that hold hardly
    anything takes longer when an entry leaves, for that is eviction; at most all of that step, with its launches and
    its attention. An interface of whole steps has no operation for them alone."""
    plain, slides = (operation_of(report, name) for name in (HARDLY, HARDLY + ", sliding"))
    if plain is None or slides is None:
        return Found(f"needs the operation '{HARDLY if plain is None else HARDLY + ', sliding'}'", None)
    most = time_of_a_layer(slides).median
    least = max(most - time_of_a_layer(plain).median, 0)
    text, too_slow = f"{1e6 * least:.1f} to {1e6 * most:.1f} us", least > 0.5e-6
    theirs, lacks = peer_of(report, FLATTENED)
    if lacks:
        return Found(f"{text}, needs {lacks}", False if too_slow else None)
    least_times, most_times = theirs.median / most, theirs.median / least if least > 0 else float("inf")
    text += f", {least_times:.1f} to {most_times:.1f} times" if least > 0 else f", {least_times:.1f} times or more"
    if too_slow or most_times < 20:
        return Found(text, False)
    return Found(text, True if most <= 0.5e-6 and least_times >= 20 else UNDECIDED)


def longest(report):
    """Of the 1B shape, whose prompts take seconds. The longest prompt of either policy is between the one that ran and
    the one that was refused."""
    ladder = report.get("ladder")
    if not ladder or ladder["shape"] != "1B" or ladder["error"] or len(ladder["rows"]) < 2:
        why = f", which says: {ladder['error']}" if ladder and ladder["error"] else ""
        return Found(f"needs the longest prompts of 1B{why}", None)
    full, budget = ladder["rows"]
    least, most = budget["tokens"] / full["refused"], budget["refused"] / full["tokens"]
    wanted = 0.95 * ladder["predicted"]
    return Found(f"{least:.2f} to {most:.2f} times, predicted {ladder['predicted']:.2f}",
                 True if least >= wanted else False if most < wanted else UNDECIDED)


PRODUCT = "product "  # how the largest one's name begins
HARDLY, FLATTENED = "attend 1 of 8 entries bf16, uniform", "append research 4096"
SIXTEEN = "attend 16 of 4096 entries "  # sessions, of a head on the mean; 256 MB of bf16
ONE = "attend 1 of 1024 entries bf16, uniform"


def compressed(tokens):
    return f"compress to {BUDGET_ENTRIES} of {tokens} entries"


COMPRESS = compressed(8192)

TARGETS = [
    Target("T1", "decode attention, ragged, 256 MB or more", "90 % of the copy bandwidth",
           of_operations(share_of_copies(0.90), SIXTEEN + "bf16, ragged", SIXTEEN + "bf16, one giant")),
    Target("T2", "the same, 32 to 64 MB", "75 % of the copy bandwidth",
           of_operations(share_of_copies(0.75), "attend 2 of 4096 entries bf16, ragged")),
    Target("T3", "ragged beside uniform, equal bytes", "1.05 or less",
           of_operations(ragged_beside_uniform, SIXTEEN + "bf16, ragged", SIXTEEN + "bf16, one giant",
                         SIXTEEN + "bf16, uniform")),
    Target("T4", "decode attention of one layer, budget 1024", "6.0 us or less",
           of_operations(microseconds(6), ONE)),
    Target("T5", "beside PyTorch, ragged, mean 8k; uniform, 32k", "5 times varlen attention; 1.0 of the best backend",
           beside((operation("attend 1 of 8192 entries bf16, ragged"), "attend ragged 1 of 8192", 5),
                  (operation("attend 1 of 32768 entries bf16, uniform"), "attend uniform 1 of 32768", 1.0))),
    Target("T6", "pages of int8 and int4 beside bf16", "1.75 and 2.8 times",
           of_operations(coded_pages, *(SIXTEEN + kind + ", uniform" for kind in ("bf16", "int8", "int4")))),
    Target("T7", "scores and victims of a step", "8 % of the attention kernel, 1 % of a step of 8B bf16", dropping),
    Target("T8", "append, rotate and evict: between what leaving adds to a step over 8 entries a head, and that whole "
           "step, launches included; beside PyTorch's copy of 8 x 4096 flat entries into new ones with 8 more",
           "0.5 us a layer, 20 times", appending),
    Target("T9a", "step, 8B bf16", "250 tokens/s, 88 %", of_cells(decode("8B", "bf16", 250, 0.88))),
    Target("T9b8", "step, 8B int8", "430 tokens/s, 80 %", of_cells(decode("8B", "int8", 430, 0.80))),
    Target("T9b4", "step, 8B int4", "700 tokens/s, 70 %", of_cells(decode("8B", "int4", 700, 0.70))),
    Target("T9c", "step, 1B bf16", "1350 tokens/s, 78 %", of_cells(decode("1B", "bf16", 1350, 0.78))),
    Target("T10", "step behind 128k beside 4k, fixed budget", "2 % more", of_cells(drift)),
    Target("T11", "step beside the research code, 8B and 1B", "5 and 10 times",
           beside((step_of("8B"), "step research 8B", 5), (step_of("1B"), "step research 1B", 10))),
    Target("T12", "p99 of steps over their median, 8B", "1.03", of_cells(jitter),
           rest="allocations and waits within a step"),
    Target("T13", "prompt of 8k, 8B bf16", "0.27 s, 62 % of the run's products", prompt),
    Target("T14", "attention of a prompt of 16k", "350 TFLOP/s, 0.95 of PyTorch's flash backend",
           both(products(350e12), "attend prompt 16384 rows of 16384", "attend prompt 16384", 0.95)),
    Target("T15a", "compression of the time to the first token", "8B 1 %, 1B 2 %; of 4k 3 %", share),
    Target("T15b", "column sums beside attention", "65 %",
           of_operations(column_sums, "fold columns 512 rows of 4096", "attend prompt 512 rows of 4096")),
    Target("T16", "compression beside the research code", "10 times",
           beside((operation(COMPRESS), "compress research 8192", 10))),
    Target("T17", "the best 1024 of 128k, 8 rows", "25 us, 3 times torch.topk",
           both(microseconds(25), "select 1024 of 131072 entries", "topk 8 rows of 131072", 3)),
    Target("T18", "peak of memory, 8B bf16, 128k", "19 GB", of_cells(memory),
           rest="0.7 of what other libraries take"),
    Target("T19", "longest prompt at a budget of 1024 beside the full cache's in as much memory, 1B: between those "
           "that ran and those that were refused", "0.95 of what is predicted", longest, rest="8B"),
]


VERDICTS = {None: "not measured", True: "met", False: "missed", UNDECIDED: UNDECIDED}
IN_PART = "met in part"  # as far as the run measures it: the value says what is left


def judge(report):
    """A row for every target: id, what, target, value, verdict. A report has cells, those of a model file on the
    device, operations, what single ones took, and maybe peers, what PyTorch took for the like."""
    rows, ours = [], H200 in report["device"]["description"]
    for target in TARGETS:
        found = target.find(report)
        verdict, text = VERDICTS[found.met], found.text
        if found.met is True and target.rest:
            verdict, text = IN_PART, f"{text}; not measured: {target.rest}"
        if found.met is not None and not ours:
            verdict = "no target on this device"
        rows.append({"id": target.name, "what": target.what, "target": target.target, "value": text,
                     "verdict": verdict})
    return rows

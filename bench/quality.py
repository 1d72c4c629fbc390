#!/usr/bin/env python3
"""Measures what every method costs in quality on models/recall and writes docs/results.md. Standard library only.

  bench/quality.py [--program build/bin/kvc] [--model build/models/recall.kvc] [--out docs/results.md]
                   [--contexts 25] [--grid 3] [--windows 3]

Tasks and texts are those of bench/data (held out from the model's training). All policies share one pass over each
prompt, which compression never changes. Everything is deterministic; times are of the machine it ran on."""

import argparse
import json
import os
import platform
import random
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUDGETS = (12, 16, 32, 64, 128, 256)
ASK_KINDS = ("niah_multi", "lives", "kv", "niah", "fewshot", "twohop", "passage")
PROMPT_KINDS = ("niah_multi", "lives", "niah")  # answers of several tokens
# Every method with a window of 8, so that the smallest budgets are possible for all.
METHODS = {
    "streaming": "streaming:budget={c}",
    "streaming-baseline": "streaming-baseline:budget={c}",
    "h2o": "h2o:budget={c}",
    "tova": "tova:budget={c}",
    "scissorhands": "scissorhands:budget={c},recent=4,drop={half}",
    "cam": "cam:budget={c}",
    "ahakv": "ahakv:budget={c},recent=8",
    "weightedkv": "weightedkv:budget={c}",
    "snapkv": "snapkv:budget={c},window=8",
    "nacl": "nacl:budget={c},recent=4",
    "pyramidkv": "pyramidkv:budget={c}",
    "pyramidinfer": "pyramidinfer:budget={c}",
    "spindlekv": "spindlekv:budget={c},window=8",
    "ada-snapkv": "ada-snapkv:budget={c},window=8",
    "ada-pyramid": "ada-pyramid:budget={c},window=8",
    "headkv-r2": "headkv-r2:budget={c}",
    "cokv": "cokv:budget={c}",
}
GRID_METHODS = ("streaming", "h2o", "snapkv", "ada-snapkv", "cokv")
TEXT_METHODS = ("streaming", "h2o", "tova", "cam", "weightedkv", "ahakv")


def spec(method, budget):
    return METHODS[method].format(c=budget, half=budget // 2)


class Program:
    def __init__(self, arguments):
        self.path, self.model = arguments.program, arguments.model

    def run(self, *words):
        done = subprocess.run([self.path, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words[:2])} failed:\n{done.stderr}")
        return done.stdout

    def evaluate(self, policies, *words):
        listed = [word for policy in policies for word in ("--policy", policy)]
        return json.loads(self.run("eval", self.model, *words, *listed, "--json"))

    def has_scores(self, estimator):
        tables = json.loads(self.run("inspect", self.model, "--json")).get("head_scores", [])
        return any(estimator in table.get("estimator", "") for table in tables)


def data(kind):
    return os.path.join(ROOT, "bench", "data", "tasks", kind + ".jsonl")


def accuracy_rows(program, methods, kinds, protocol, contexts):
    """{(method, budget): {kind: result}}; "full" has budget 0."""
    table = {}
    wanted = [("full", 0, "full")] + [(m, c, spec(m, c)) for m in methods for c in BUDGETS]
    for kind in kinds:
        begin = time.time()
        result = program.evaluate(
            [w[2] for w in wanted], "--data", data(kind), "--protocol", protocol, "--limit", str(contexts)
        )
        for (method, budget, _), row in zip(wanted, result["results"]):
            table.setdefault((method, budget), {})[kind] = row
        print(f"{protocol} {kind}: {time.time() - begin:.0f} s", flush=True)
    return table


def percent(row):
    return f"{100 * row['accuracy']:.0f}" if row["n"] else "–"


def accuracy_table(table, methods, kinds, budget):
    lines = [
        "| method | " + " | ".join(kinds) + " | mean | 95 % of the mean | cache KiB | share |",
        "|---|" + "---|" * (len(kinds) + 4),
    ]
    for method in methods:
        rows = table[(method, budget if method != "full" else 0)]
        right = sum(r["accuracy"] * r["n"] for r in rows.values())
        n = sum(r["n"] for r in rows.values())
        low, high = wilson(right, n)
        kib = sum(r["cache_bytes"] for r in rows.values()) / len(rows) / 1024
        share = sum(r["cache_share"] for r in rows.values()) / len(rows)
        lines.append(
            f"| {method} | "
            + " | ".join(percent(rows[k]) for k in kinds)
            + f" | **{100 * right / n:.1f}** | {100 * low:.0f} – {100 * high:.0f} | {kib:.0f} | {100 * share:.1f} % |"
        )
    return lines


def wilson(right, n, z=1.959963984540054):
    if n == 0:
        return 0, 1
    p, scale = right / n, 1 + z * z / n
    half = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return (p + z * z / (2 * n) - half) / scale, (p + z * z / (2 * n) + half) / scale


def grid_tasks(folder, per_cell):
    """One code in prose, at five depths of contexts of three lengths (in words)."""
    rng = random.Random(1)
    words = (
        open(os.path.join(ROOT, "bench", "data", "text", "carroll-alice.txt"), encoding="utf-8")
        .read()
        .split()
    )
    path = os.path.join(folder, "grid.jsonl")
    with open(path, "w", encoding="utf-8") as out:
        for length in (100, 250, 450):  # 450 words are about 900 tokens
            for depth in (0, 25, 50, 75, 100):
                for _ in range(per_cell):
                    start, code = rng.randrange(len(words) - length), rng.randrange(100, 1000)
                    name = rng.choice(["Adela", "Robin", "Nina", "Rosa", "Frank", "Julia"])
                    prose, at = words[start : start + length], length * depth // 100
                    context = " " + " ".join(prose[:at] + [f"The code of {name} is {code}."] + prose[at:])
                    question = {"question": f" The code of {name} is", "answer": f" {code}."}
                    task = {"kind": f"{length} words, {depth} %", "context": context, "questions": [question]}
                    out.write(json.dumps(task) + "\n")
    return path


def grid_section(program, per_cell, budget=64):
    with tempfile.TemporaryDirectory() as folder:
        path = grid_tasks(folder, per_cell)
        policies = ["full"] + [spec(m, budget) for m in GRID_METHODS]
        rows = program.evaluate(policies, "--data", path, "--protocol", "ask")["results"]
    names = ["full", *GRID_METHODS]
    cells = {}
    for i, row in enumerate(rows):
        cells.setdefault(row["kind"], {})[names[i % len(names)]] = percent(row)
    lines = ["| context, depth | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    return lines + [f"| {kind} | " + " | ".join(of[n] for n in names) + " |" for kind, of in cells.items()]


def text_section(program, windows):
    texts = sorted(os.listdir(os.path.join(ROOT, "bench", "data", "text")))
    lines = ["| policy | " + " | ".join(t.split(".")[0] for t in texts) + " |", "|---|" + "---|" * len(texts)]
    policies = [("full", "full")] + [
        (f"{m}, {c} slots", spec(m, c)) for c in (64, 128, 256) for m in TEXT_METHODS
    ]
    columns = []
    for text in texts:
        begin = time.time()
        path = os.path.join(ROOT, "bench", "data", "text", text)
        result = program.evaluate([p for _, p in policies], "--text", path, "--limit", str(windows))
        columns.append([f"{row['perplexity']:.2f}" for row in result["results"]])
        print(f"text {text}: {time.time() - begin:.0f} s", flush=True)
    return lines + [
        f"| {name} | " + " | ".join(column[i] for column in columns) + " |"
        for i, (name, _) in enumerate(policies)
    ]


def timing_table(table, methods, kinds, budget):
    lines = ["| method | prefill ms | step ms |", "|---|---|---|"]
    for method in methods:
        rows = table[(method, budget if method != "full" else 0)].values()
        prefill = sum(r["prefill_seconds"] for r in rows) / len(rows)
        step = sum(r["step_seconds"] for r in rows) / len(rows)
        lines.append(f"| {method} | {1e3 * prefill:.0f} | {1e3 * step:.2f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "bin", "kvc"))
    parser.add_argument("--model", default=os.path.join(ROOT, "build", "models", "recall.kvc"))
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "results.md"))
    parser.add_argument("--contexts", type=int, default=25, help="contexts of every kind")
    parser.add_argument("--grid", type=int, default=3, help="contexts of every cell of the needle grid")
    parser.add_argument("--windows", type=int, default=2, help="windows of every text")
    arguments = parser.parse_args()
    program = Program(arguments)
    methods = [m for m in METHODS if m != "headkv-r2" or program.has_scores("headkv")]
    ask = accuracy_rows(program, methods, ASK_KINDS, "ask", arguments.contexts)
    prompt = accuracy_rows(program, methods, PROMPT_KINDS, "prompt", max(arguments.contexts // 2, 1))
    notes_path = os.path.join(ROOT, "bench", "results_notes.md")
    out = [
        "# Results",
        "",
        "Written by `bench/quality.py`; the section “What agrees” is kept in `bench/results_notes.md`.",
        "",
    ]
    out += [
        "Model `models/recall` (5.2 M parameters, 6 layers × 4 KV heads), f16 cache, greedy, contexts of about "
        f"900 tokens, {arguments.contexts} contexts a kind in protocol *ask* (the question is not known when the "
        f"context is compressed), {max(arguments.contexts // 2, 1)} in *prompt* (it is part of the prompt; the "
        "first answer token does not count).",
        f"Machine: {platform.machine()}, {os.cpu_count()} processors. Accuracy in percent, intervals are Wilson's.",
        "",
    ]
    out += open(notes_path, encoding="utf-8").read().splitlines() + [""]
    for protocol, table, kinds in (("ask", ask, ASK_KINDS), ("prompt", prompt, PROMPT_KINDS)):
        for budget in BUDGETS:
            out += (
                [f"## Protocol {protocol}, {budget} slots per KV head", ""]
                + accuracy_table(table, ["full", *methods], kinds, budget)
                + [""]
            )
    out += ["## Needle grid, 64 slots, protocol ask", ""] + grid_section(program, arguments.grid) + [""]
    out += [
        "## Perplexity, token by token with eviction at every step",
        "",
        "Windows of the trained context that overlap by half; the second half is scored (the protocol of WeightedKV).",
        "",
    ]
    out += text_section(program, arguments.windows) + [""]
    out += [
        "## Time at 64 slots",
        "",
        "Prefill of one context, scoring and compaction included; one decode step.",
        "",
    ]
    out += timing_table(ask, ["full", *methods], ASK_KINDS, 64) + [""]
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


if __name__ == "__main__":
    main()

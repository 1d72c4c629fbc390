#!/usr/bin/env python3
"""What drafts are worth: how many of their tokens are right, and what they may cost.

    speculation.py KVC --relate RELATE.kvc --shape SHAPE.kvc [--depths 4096,8192] [--publish]
    speculation.py --check

Right: greedy answers of models/relate behind about 3,900 tokens, with drafts from the text (prompt lookup) and from
the same model with a smaller cache (self-speculation). Tasks: held-out questions and what the model writes behind its
answer; prose: how it goes on with held-out books. Cost: on a model of random weights in a shape people run
(shapes.py), steps and passes that check a draft behind so many tokens, and steps of a cache as small as a draft's.
From both follows how much faster an answer may become. Without one of the models its part stays as it was kept.
--publish writes docs/performance.md and bench/results/speculation.json; --check measures nothing: does the page say
what was kept?"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import textwrap

import peers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "bench", "data")
KEPT = os.path.join(ROOT, "bench", "results", "speculation.json")
BEGIN, END = "<!-- speculation: written by bench/speculation.py --publish -->", "<!-- speculation: end -->"
DRAFTS = (("the text", None), ("`snapkv:budget=256`", "snapkv:budget=256"), ("`snapkv:budget=64`", "snapkv:budget=64"))
LENGTHS, CHECKED = (4, 8), (1, 2, 4, 8, 16)
SMALL = 128  # slots of a draft's cache, whose steps are timed
PROMPT, ANSWER = 3900, 64  # tokens
WANTED = 1.5  # times a plain step


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


# ---- how many are right ----


def tasks(n):
    """(context, questions) of every kind that the model answers."""
    for kind in ("recall", "paraphrase", "latest", "code"):
        with open(os.path.join(DATA, "tasks", "relate_long", kind + ".jsonl"), encoding="utf-8") as file:
            for line in file.readlines()[:n]:
                task = json.loads(line)
                yield task["context"], [q["question"] for q in task["questions"]]


def prose(kvc, model, n):
    """The first and later pieces of every book, each of about PROMPT tokens."""
    folder = os.path.join(DATA, "text")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = file.read()
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as sample:
            sample.write(text[:20000])
            sample.flush()
            count = json.loads(call([kvc, "tokenize", model, "--file", sample.name, "--json"]))
        size = int(20000 / len(count["tokens"]) * PROMPT * 0.97)
        for i in range(n):
            yield text[i * size : (i + 1) * size], []


def right(kvc, model, texts, policy, length):
    """{tokens, passes, drafted} over all answers."""
    total = dict(tokens=0, passes=0, drafted=0)
    for text, questions in texts:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            command = [kvc, "run", model, "--prompt-file", file.name, "--max-tokens", str(ANSWER), "--json"]
            command += ["--draft", str(length)] + (["--draft-policy", policy] if policy else [])
            for question in questions:
                command += ["--ask", question]
            result = json.loads(call(command))
        for answer in result["answers"] or [result]:
            total["tokens"] += len(answer["tokens"])
            total["passes"] += answer["n_passes"]
            total["drafted"] += answer["n_drafted"]
    return total


# ---- what they cost ----


def bench(kvc, model, depth, *more):
    return json.loads(call([kvc, "bench", model, "--prompt", str(depth), "--json", *more]))


def cost(depth, full, small):
    """Of what kvc bench said at that depth, and behind as many tokens as the draft's cache has slots."""
    return {
        "depth": depth,
        "step": full["step_seconds_median"],
        "small": small["step_seconds_median"],
        "passes": {str(d["n_drafted"]): d["pass_in_steps"] for d in full["drafts"]},
    }


def costs(kvc, model, depths, repeat):
    small = bench(kvc, model, SMALL, "--gen", "32", "--repeat", "9")
    for depth in depths:
        full = bench(kvc, model, depth, "--gen", "8", "--repeat", repeat, "--draft", ",".join(map(str, CHECKED)))
        yield cost(depth, full, small)


def gains(row):
    """{draft: how much faster at best, where all of it is right}; a step of the draft costs small / step of a step."""
    share = row["small"] / row["step"]
    return {int(k): (int(k) + 1) / (int(k) * share + in_steps) for k, in_steps in row["passes"].items()}


# ---- the page ----


def percent(total):
    return 100 * (total["tokens"] - total["passes"]) / total["drafted"] if total["drafted"] else 0.0


def tokens_a_pass(total):
    return total["tokens"] / total["passes"]


def section(document):
    out = [
        BEGIN, "",
        f"`models/relate` behind about {PROMPT:,} tokens, answers of {ANSWER}, greedy; *right*: of the tokens that "
        "were drafted.", "",
        "| draft from | at most | tasks: right | tokens a pass | prose: right | tokens a pass |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in document["right"]:
        cells = [f"{f(row[part]):.{d}f}{unit}" for part in ("tasks", "prose") for f, d, unit in
                 ((percent, 0, " %"), (tokens_a_pass, 2, ""))]  # fmt: skip
        out.append(f"| {row['from']} | {row['length']} | {' | '.join(cells)} |")
    out += ["", f"{document['shape']}, times of a step behind so many tokens; *at best*: all drafted tokens right, "
            f"drafts by steps with {SMALL} slots a head; no such draft, however long and right, is faster than "
            f"*limit*, a step over one of the draft. {document['measured']}.", "",
            "| depth | step | step of the draft | limit | "
            + " | ".join(f"pass of {k}, at best" for k in CHECKED) + " |",
            "|---|---|---|---|" + "---|" * len(CHECKED)]  # fmt: skip
    for row in document["cost"]:
        best = gains(row)
        cells = [f"{row['passes'][str(k)]:.2f}, {best[k]:.2f}" for k in CHECKED]
        out.append(f"| {row['depth']:,} | {1e3 * row['step']:.1f} ms | {1e3 * row['small']:.1f} ms | "
                   f"{row['step'] / row['small']:.2f} | {' | '.join(cells)} |")  # fmt: skip
    out += ["", verdict(document), "", END]
    return "\n".join(line if line.startswith(("|", "<")) else textwrap.fill(line, 130) for line in out)


def verdict(document):
    """What follows, in words, from the numbers above."""
    last = document["cost"][-1]
    best = gains(last)
    k = max(best, key=best.get)
    limit = last["step"] / last["small"]
    reached = "reaches" if best[k] >= WANTED else "does not reach"
    text = (f"So self-speculation {reached} {WANTED} times plain decoding behind {last['depth']:,} tokens on this "
            f"shape: a step of the draft takes {100 / limit:.0f} % of a full one, as it reads all weights, and with "
            f"every token right the best draft ({k} tokens) makes {best[k]:.2f}.")  # fmt: skip
    lookup = max((r for r in document["right"] if r["from"] == DRAFTS[0][0]), key=lambda r: r["length"])["tasks"]
    checked = lookup["drafted"] / lookup["passes"]
    price = pass_of(last, checked)
    gain = tokens_a_pass(lookup) / price
    return text + (f" Drafts from the text cost their pass only: the tasks' {tokens_a_pass(lookup):.2f} tokens a "
                   f"pass, which checked {checked:.1f} on average for about {price:.2f} steps, would be {gain:.2f} "
                   "times.")  # fmt: skip


def pass_of(row, checked):
    """What a pass that checks so many tokens costs, in steps: between those that were measured."""
    known = sorted({0: 1.0, **{int(k): v for k, v in row["passes"].items()}}.items())
    for (k, low), (more, high) in zip(known, known[1:]):
        if checked <= more:
            return low + (high - low) * (checked - k) / (more - k)
    return known[-1][1]


def with_section(text, document):
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"the marks {BEGIN} and {END} are not there once each")
    return text[: text.index(BEGIN)] + section(document) + text[text.index(END) + len(END) :]


def check():
    if with_section(peers.read(peers.DOCUMENT), json.loads(peers.read(KEPT))) == peers.read(peers.DOCUMENT):
        return 0
    print("docs/performance.md does not say what bench/results/speculation.json holds", file=sys.stderr)
    return 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvc", nargs="?")
    parser.add_argument("--relate", metavar="FILE", help="models/relate")
    parser.add_argument("--shape", metavar="FILE", help="a model of random weights")
    parser.add_argument("--depths", default="4096,8192")
    parser.add_argument("--repeat", default="3", help="of every cost [3]")
    parser.add_argument("--texts", type=int, default=2, help="contexts of a kind, pieces of a book [2]")
    parser.add_argument("--machine", default="machine not named", help="for the page")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        return check()
    if options.kvc is None or options.relate is None is options.shape:
        parser.error("KVC and a model are needed")
    document = json.loads(peers.read(KEPT)) if os.path.exists(KEPT) else {"right": [], "cost": []}
    if options.relate is not None:
        texts = {"tasks": list(tasks(options.texts)), "prose": list(prose(options.kvc, options.relate, options.texts))}
        document["right"] = []
        for name, policy in DRAFTS:
            for length in LENGTHS:
                row = {part: right(options.kvc, options.relate, texts[part], policy, length) for part in texts}
                document["right"].append({"from": name, "length": length, **row})
                print(json.dumps(document["right"][-1]), file=sys.stderr, flush=True)
    if options.shape is not None:
        depths = [int(depth) for depth in options.depths.split(",")]
        document["shape"] = os.path.splitext(os.path.basename(options.shape))[0]
        document["measured"] = f"{datetime.date.today()}, {options.machine}"
        document["cost"] = list(costs(options.kvc, options.shape, depths, options.repeat))
    print(section(document))
    if options.publish:
        peers.write(KEPT, json.dumps(document, indent=1) + "\n")
        peers.write(peers.DOCUMENT, with_section(peers.read(peers.DOCUMENT), document))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""libkvc beside llama.cpp on this machine, with one command: fetches and builds llama.cpp, makes models of random
weights in the shapes people run, measures both in turns (compare_llama.py), prints a table and draws a picture.

Everything it makes lies in --out; a second call measures again at once."""

import argparse
import json
import os
import re
import shlex
import sys
from xml.sax.saxutils import escape

import compare_llama
import llama_cpp
import pairing
import shapes

ROOT = compare_llama.ROOT
DOCUMENT = os.path.join(ROOT, "docs", "performance.md")
PICTURE = os.path.join(ROOT, "docs", "peers.svg")
KEPT = os.path.join(ROOT, "bench", "results", "peers.json")
BEGIN, END = "<!-- peers: written by ./dev bench peers --publish -->", "<!-- peers: end -->"
EXAMPLES = """examples:
  ./dev bench peers                                    # 0.5B shape, Q8_0, Q4_0 and BF16: about an hour
  ./dev bench peers --types q8_0 --cells decode-0,decode-4096,decode-32768-budget
  ./dev bench peers --shapes 1b --types q4_0 --rounds 9 --threads 1
  ./dev bench peers --busy 1 --cells prefill-512,decode-0    # beside a program that takes a core
  ./dev bench peers --threads 1 --cells prefill-512,decode-0 --add    # to the table of the calls before
  ./dev bench peers --peer ~/llama.cpp/build/bin       # a llama.cpp of your own
The machine should do nothing else meanwhile; the table says whether it did."""


# ---- the picture ----

STYLE = (
    "text{font:13px sans-serif;fill:#222}.k{fill:#2a6f97}.p{fill:#c9ada7}.a{stroke:#999}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.k{fill:#61a5c2}.p{fill:#8d7b77}}"
)
ROW, TITLE, BAR, LEFT, WIDTH, RIGHT = 44, 34, 15, 270, 420, 120


def picture(tables):
    """An SVG: for every cell our bar above theirs, both in parts of the longer one, with the rates and the ratio; a
    line with the machine above the cells of each table."""
    shown = [(table, [pair for result in results_of(table) for pair in result.pairs()]) for table in tables]
    height = sum(ROW * len(pairs) + TITLE for _, pairs in shown) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img">',
        f"<title>Tokens a second, libkvc beside llama.cpp</title><style>{STYLE}</style>",
        f'<rect class="k" x="{LEFT}" y="8" width="12" height="12"/><text x="{LEFT + 18}" y="19">libkvc</text>',
        f'<rect class="p" x="{LEFT + 90}" y="8" width="12" height="12"/><text x="{LEFT + 108}" y="19">llama.cpp</text>',
        f'<text x="{LEFT + 200}" y="19">tokens a second, best run</text>',
    ]
    top = 30
    for table, pairs in shown:
        out.append(f'<text x="{LEFT}" y="{top + 20}">{escape(machine(table))}</text>')
        top += TITLE
        for pair in pairs:
            out += bars(pair, top)
            top += ROW
    return "\n".join(out + ["</svg>", ""])


def bars(pair, top):
    """The elements of one cell."""
    ours, theirs = pair.ours.series.best, pair.other.series.best
    name = escape(f"{pair.model} {pair.cell}")
    out = [f'<text x="{LEFT - 10}" y="{top + 20}" text-anchor="end">{name}</text>']
    for line, (kind, rate) in enumerate((("k", ours), ("p", theirs))):
        y, length = top + line * (BAR + 1), max(1, round(WIDTH * 0.85 * rate / max(ours, theirs)))
        out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{length}" height="{BAR}"/>')
        out.append(f'<text x="{LEFT + length + 6}" y="{y + 12}">{rate:.4g}</text>')
    out.append(f'<text x="{LEFT + WIDTH + RIGHT - 8}" y="{top + 20}" text-anchor="end">× {pair.ratio:.2f}</text>')
    return out


# ---- what is kept: a table for each kind of machine ----


def machine(table):
    return f"{table['n_processors']} cores of {table['processor']}"


def results_of(document):
    """The results that compare_llama.py wrote."""
    return [
        pairing.Result(
            cell["model"],
            cell["cell"],
            [
                pairing.Side(
                    side["name"],
                    [pairing.Series(s["label"], [pairing.Run(**run) for run in s["runs"]]) for s in side["settings"]],
                )
                for side in cell["sides"]
            ],
        )
        for cell in document["cells"]
    ]


# ---- what is aimed at ----

PROMPTS = ("prefill-512", "prefill-2048")
# (what, weights or "" for all, cells, least ratio of bests)
AIMS = (
    ("prompts of 512 and 2,048 tokens, Q8_0", "q8_0", PROMPTS, 3.5),
    ("the same, Q4_0", "q4_0", PROMPTS, 2),
    ("the same, Q4_K", "q4_k", PROMPTS, 2),
    ("the same, BF16", "bf16", PROMPTS, 1.5),
    ("a prompt of 8,192", "", ("prefill-8192",), 3),
    ("steps from an empty cache", "", ("decode-0",), 1.1),
    ("steps behind 4,096 tokens", "", ("decode-4096",), 1.5),
    ("steps behind 8,192", "", ("decode-8192",), 1.9),
    ("behind 4,096, int8 caches", "", ("decode-4096-int8",), 2),
    ("behind 8,192, int8 caches", "", ("decode-8192-int8",), 2.5),
    ("behind 32,768, ours with 1,024 slots a head", "", ("decode-32768-budget",), 6),
)
BUSY, ONE_THREAD = r", \d+ busy$", ", 1 thread$"
BUSY_RATIO, BUSY_OWN = 0.9, 0.5  # of the ratio at rest, of our own speed at rest
TWO_THREADS = 1.9  # times one, where there are two processors


def aims(table):
    """Markdown: the least ratio of bests of the cells that belong together, beside what is aimed at."""
    pairs = {(pair.model, pair.cell): pair for result in results_of(table) for pair in result.pairs()}
    days = {(cell["model"], cell["cell"]): cell["date"][:10] for cell in table["cells"]}

    def whole(model, cell, without):
        """The cell that one measured under conditions is held against; of the same day only, as machines of one name
        differ and so do their neighbours."""
        of = (re.sub(without, "", model), cell)
        return pairs[of] if re.search(without, model) and of in pairs and days[of] == days[model, cell] else None

    alone = [(model, cell, p) for (model, cell), p in pairs.items() if not re.search(BUSY, model)]
    rows = []
    for what, weights, cells, least in AIMS:
        own = [p for model, cell, p in alone if cell in cells and model.split(",")[0].endswith(weights)]
        if own:
            rows.append((what, len(own), min(p.ratio for p in own), least))
    prompts = [(model, cell, p) for model, cell, p in alone if cell.startswith("prefill")]
    both = [(two, p) for model, cell, p in prompts if (two := whole(model, cell, ONE_THREAD))]
    if both and table["n_processors"] == 2:
        own = [all_.ours.series.best / one.ours.series.best for all_, one in both]
        rows.append(("prompts with two threads: our speed, in times of that with one", len(own), min(own), TWO_THREADS))
    beside = [(p, rest) for (model, cell), p in pairs.items() if (rest := whole(model, cell, BUSY))]
    if beside:
        what = "beside a program that takes a core: the ratio, in parts of that at rest"
        rows.append((what, len(beside), min(p.ratio / rest.ratio for p, rest in beside), BUSY_RATIO))
        own = [p.ours.series.best / rest.ours.series.best for p, rest in beside]
        rows.append(("the same: our speed, in parts of that at rest", len(own), min(own), BUSY_OWN))
    lines = ["| aimed at | cells | least | aim | reached |", "|---|---|---|---|---|"]
    for what, count, least, aim in rows:
        lines.append(f"| {what} | {count} | {least:.2f} | {aim:g} | {'yes' if least >= aim else 'no'} |")
    return "\n".join(lines) if rows else ""


def built(commands):
    """How llama.cpp was built where there is something to say, by day: machines of one name differ."""
    days = {}
    for run in commands:
        days.setdefault(run["note"], {})[run["date"][:10]] = None
    if len(days) == 1:
        return [f"llama.cpp was {note}." for note in days if note]
    every = "built for all that the processor has"
    return [f"On {', '.join(of)} llama.cpp was {note or every}." for note, of in days.items()]


def section(tables):
    """The part of docs/performance.md between the marks, from the kept numbers alone."""
    lines = [BEGIN, "", "Tokens a second as best (median, worst); MiB is the peak of the process, ours : theirs.", ""]
    for table in tables:
        lines += [f"### {machine(table)}", ""]
        lines += [f"`{run['command']}` ({run['date'][:10]})," for run in table["commands"]]
        lines[-1] = lines[-1][:-1] + "."
        lines += built(table["commands"])
        lines += ["", pairing.table(results_of(table)), "", "Least ratios of bests:", "", aims(table), ""]
    lines += ["![libkvc beside llama.cpp](peers.svg)", "", END]
    return "\n".join(lines)


def with_section(text, tables):
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise compare_llama.Failure(f"the marks {BEGIN} and {END} are not there once each")
    return text[: text.index(BEGIN)] + section(tables) + text[text.index(END) + len(END) :]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    """What was there stays until the new text is there in full."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def published():
    """The tables that the page has."""
    return json.loads(read(KEPT))["tables"] if os.path.exists(KEPT) else []


def publish(table):
    """In the place of the table of the same kind of machine, or behind the others."""
    tables = list({**{machine(kept): kept for kept in published()}, machine(table): table}.values())
    write(KEPT, json.dumps({"tables": tables}, indent=1) + "\n")
    write(PICTURE, picture(tables))
    write(DOCUMENT, with_section(read(DOCUMENT), tables))


def check():
    """Whether the page and the picture say what was measured and kept."""
    tables = published()
    wrong = [
        path
        for path, expected in (
            (DOCUMENT, with_section(read(DOCUMENT), tables)),
            (PICTURE, picture(tables)),
        )
        if read(path) != expected
    ]
    for path in wrong:
        compare_llama.say(f"peers: {os.path.relpath(path, ROOT)} does not say what bench/results/peers.json holds")
    return 1 if wrong else 0


# ---- the program ----


def names(known):
    def parse(text):
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(known)}")
        return text.split(",")

    return parse


def parse(words):
    parser = argparse.ArgumentParser(
        prog="./dev bench peers",
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    cells = [cell.name for cell in compare_llama.CELLS]
    parser.add_argument("--peer", metavar="DIR", help="a built llama.cpp, instead of fetching and building it")
    parser.add_argument("--shapes", type=names(shapes.SHAPES), default=["0.5b"], metavar="A,B", help="[0.5b] and 1b")
    parser.add_argument(
        "--types",
        type=names(shapes.TYPES),
        default=["q8_0", "q4_0", "bf16"],
        metavar="A,B",
        help=", ".join(shapes.TYPES),
    )
    parser.add_argument("--cells", type=names(cells), metavar="A,B", help=f"of {', '.join(cells)} [the short ones]")
    parser.add_argument("--rounds", default="5", metavar="N", help="runs of each in every cell [5]")
    parser.add_argument("--threads", default=str(os.cpu_count() or 1), metavar="N", help="[all]")
    parser.add_argument("--busy", default="0", metavar="N", help="beside N other processes that take a core each")
    parser.add_argument("--fa", choices=["on", "off"], help="of llama.cpp's settings this one only [both]")
    parser.add_argument("--kvc", default=os.path.join(ROOT, "build", "bin", "kvc"), metavar="FILE")
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "peers"), metavar="DIR", help="[build/peers]")
    parser.add_argument("--add", action="store_true", help="to the table in --out, else this machine's published one")
    parser.add_argument("--publish", action="store_true", help="into docs/performance.md, peers.svg, bench/results")
    parser.add_argument("--check", action="store_true", help="measures nothing; do page and picture say what was kept?")
    return parser.parse_args(words)


def model_files(arguments):
    files = []
    os.makedirs(arguments.out, exist_ok=True)
    for shape in arguments.shapes:
        for kind in arguments.types:
            path = os.path.join(arguments.out, f"{shape}-{kind}.gguf")
            if not os.path.exists(path):
                compare_llama.say(f"making {path}")
                shapes.write(path + ".part", shape, kind)
                os.replace(path + ".part", path)
            files.append(path)
    return files


def merged(old, new):
    """The new document, with those cells of the old one that were not measured again, in the order of the old."""
    at = {(cell["model"], cell["cell"]): cell for cell in new["cells"]}
    cells = [at.pop((cell["model"], cell["cell"]), cell) for cell in old["cells"]]
    return {**new, "commands": old["commands"] + new["commands"], "cells": cells + list(at.values())}


def measure(arguments, words_of_user):
    models = model_files(arguments)
    note, peer = "", arguments.peer
    if not peer:
        peer, note = llama_cpp.get(os.path.join(arguments.out, "llama.cpp"), models[0], compare_llama.say)
    words = ["--kvc", arguments.kvc, "--peer", peer, "--work", arguments.out]
    words += ["--rounds", arguments.rounds, "--threads", arguments.threads, "--busy", arguments.busy]
    words += ["--cells", ",".join(arguments.cells)] if arguments.cells else []
    words += ["--fa", arguments.fa] if arguments.fa else []
    shown = [word for word in words_of_user if word not in ("--publish", "--add")]
    table = Table(arguments, " ".join(["./dev bench peers", shlex.join(shown)]).strip(), note)
    code = compare_llama.main(words + models, table.keep)
    if table.document is None:
        return code
    print(f"\n{aims(table.document)}\n\nEverything: {table.kept}, the picture: {table.picture}")
    if code not in (0, 1):
        return code
    if arguments.publish:
        publish(table.document)
    return 0


class Table:
    """What was measured, with what earlier calls did where it is added to that; written behind every cell."""

    def __init__(self, arguments, command, note):
        self.kept, self.picture = (os.path.join(arguments.out, name) for name in ("peers.json", "peers.svg"))
        self.earlier = self.added_to() if arguments.add else None
        self.command, self.note, self.document = command, note, None

    def added_to(self):
        """What --add adds to: the table in --out, else this kind of machine's published one; None without either."""
        here = compare_llama.processor()
        if not os.path.exists(self.kept):
            return next((table for table in published() if table["processor"] == here), None)
        document = json.loads(read(self.kept))
        if document["processor"] != here:
            raise compare_llama.Failure(
                f"{self.kept} was measured on {document['processor']}, this is {here}: a table of its own (without "
                "--add, or with another --out)"
            )
        return document

    def keep(self, document):
        document["commands"] = [{"command": self.command, "date": document["date"], "note": self.note}]
        document["cells"] = [{**cell, "date": document["date"]} for cell in document["cells"]]
        del document["command"]  # of compare_llama.py, with the paths of this machine
        document["checks"] = [
            {**checked, "model": os.path.basename(checked["model"])} for checked in document["checks"]
        ]
        self.document = merged(self.earlier, document) if self.earlier else document
        write(self.kept, json.dumps(self.document, indent=1) + "\n")
        write(self.picture, picture([self.document]))


def main(words):
    arguments = parse(words)
    try:
        return check() if arguments.check else measure(arguments, words)
    except (compare_llama.Failure, llama_cpp.Failure, OSError, ImportError) as failure:
        compare_llama.say(f"peers: {failure}")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

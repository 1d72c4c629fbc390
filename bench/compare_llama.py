#!/usr/bin/env python3
"""Measures kvc beside llama.cpp on the same GGUF files, or builds of kvc beside each other, in turns: A B A B ...
Prints a Markdown table; progress goes to stderr.

With --against OTHER_KVC (several times, if wanted) the other side is that build; then the recall model of models/ is
measured too, and the exit code is 1 when a ratio of bests is below --least. Exit code 2: something could not be
measured, or the two did not do the same work.

Rates are tokens a second. A ratio above 1 says that kvc (the build of --kvc) is the faster one. A cell is called quiet
when best and worst of either side differ by at most 5 %, and its best confirmed when a second run came within 2 % of
it; both are printed. llama.cpp runs with and without flash attention, and the better of the two counts; one that is
beaten by 15 % behind two runs is not run again."""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import pairing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = """examples:
  bench/compare_llama.py --peer ~/llama.cpp/build/bin --small stories.gguf model-q8_0.gguf
  bench/compare_llama.py --peer ~/llama.cpp/build/bin --cells decode-4096 --rounds 9 --json out.json model-q4_0.gguf
  bench/compare_llama.py --kvc build/bin/kvc --against ../before/kvc model-q8_0.gguf
  nice -n -5 bench/compare_llama.py --against ../before/kvc --least 0.99
How llama.cpp is got and built, and what to make of the numbers: docs/performance.md"""
PROMPT = "Once upon a time, there was"  # of the continuation that both engines must agree on
LLAMA_PROGRAMS = ("llama-bench", "llama-tokenize", "llama-completion")


class Failure(Exception):
    """Ends the program with a message."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One kind of work: a prompt of that many tokens, or that many generated ones behind `depth` cached ones."""

    name: str
    prompt: int = 0
    gen: int = 0
    depth: int = 0
    policy: str = "full"
    peer_cache: str = "f16"  # of llama.cpp
    named: bool = False  # measured only when named with --cells: it takes long


# The one list of what is measured. A new kind of work is a field of Cell with its words in Kvc.measure and
# Llama.measure, and a row here.
CELLS = (
    Cell("prefill-512", prompt=512),
    Cell("prefill-2048", prompt=2048),
    Cell("decode-0", gen=64),
    Cell("decode-4096", gen=64, depth=4096),
    Cell("prefill-8192", prompt=8192, named=True),
    Cell("decode-8192", gen=64, depth=8192, named=True),
    Cell("decode-4096-int8", gen=64, depth=4096, policy="full:kv=int8", peer_cache="q8_0", named=True),
    Cell("decode-8192-int8", gen=64, depth=8192, policy="full:kv=int8", peer_cache="q8_0", named=True),
    Cell("decode-4096-budget", gen=64, depth=4096, policy="snapkv:budget=1024", named=True),
    Cell("decode-32768-budget", gen=64, depth=32704, policy="snapkv:budget=1024", named=True),
)
# The recall model was trained on 1,024 tokens, and is where compression pays: its contexts as in kvc demo.
RECALL_CELLS = (
    Cell("prefill-900", prompt=900),
    Cell("decode-900", gen=64, depth=900),
    Cell("prefill-900-cokv", prompt=900, policy="cokv:budget=64,window=8"),
    Cell("decode-900-cokv", gen=64, depth=900, policy="cokv:budget=64,window=8"),
    Cell("prefill-900-cokv-document", prompt=900, policy="cokv-document:budget=64"),
)


# ---- processes ----


def say(text):
    print(text, file=sys.stderr, flush=True)


def busy_seconds():
    """Time that all processors together were at work for anybody, hypervisor included; None where it is not told."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = (int(word) for word in file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def rest(pause, patience):
    """Sleeps, and goes on sleeping up to `patience` seconds while others keep the processors busy."""
    end = time.monotonic() + patience
    while True:
        busy, begin = busy_seconds(), time.monotonic()
        time.sleep(pause)
        wall = time.monotonic() - begin
        if busy is None or time.monotonic() >= end:
            return
        if busy_seconds() - busy < pairing.DISTURBED * wall * os.cpu_count():
            return


@dataclasses.dataclass
class Finished:
    out: str
    peak_bytes: int
    others: float  # share of the processors that others had; None where it is not told


def run(command):
    """Runs a program to its end; a Failure names the command and shows the end of what it said."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        busy, begin = busy_seconds(), time.monotonic()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            raise Failure(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        others = None
        if busy is not None and wall > 0:
            taken = busy_seconds() - busy - usage.ru_utime - usage.ru_stime
            others = min(max(taken / (wall * os.cpu_count()), 0), 1)
        out.seek(0), err.seek(0)
        text, message = (file.read().decode("utf-8", errors="replace") for file in (out, err))
    if process.returncode != 0:
        tail = "\n".join((message or text).strip().splitlines()[-5:])
        raise Failure(f"{shlex.join(command)}\nended with {process.returncode}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Finished(text, usage.ru_maxrss * unit, others)


def document(command):
    """Runs a program; the last line with a JSON object, and how the run went."""
    done = run(command)
    for line in reversed(done.out.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line), done
            except ValueError:
                break
    raise Failure(f"{shlex.join(command)}\ngave no JSON but: {done.out[:200]!r}")


def program(path, what):
    if not os.path.isfile(path):
        raise Failure(f"{path}: no such program ({what})")
    if not os.access(path, os.X_OK):
        raise Failure(f"{path}: not executable ({what})")
    return os.path.abspath(path)


# ---- engines ----


@dataclasses.dataclass
class Kvc:
    label: str
    path: str
    model: str
    threads: int
    repeat: int

    def can(self, cell):
        return True

    def measure(self, cell):
        result, done = document(
            [self.path, "bench", self.model, "--policy", cell.policy, "--prompt", str(cell.prompt or 1)]
            + ["--gen", str(cell.gen), "--depth", str(cell.depth), "--threads", str(self.threads)]
            + ["--repeat", str(self.repeat), "--json"]
        )
        if cell.gen == 0:
            rate = result["prefill_tokens_per_second"]
        else:
            # Builds that do not tell their passes of the network made one less than the steps they timed.
            passes = result.get("decode_passes", cell.gen - 1)
            rate = passes / (result["step_seconds_mean"] * cell.gen)
        # Builds that do not tell their memory count the buffer of their bandwidth measurement in, 256 MiB.
        return pairing.Run(rate, result.get("process_bytes_peak", done.peak_bytes), done.others)


@dataclasses.dataclass
class Llama:
    label: str
    path: str
    model: str
    threads: int
    repeat: int
    flash_attention: str

    def can(self, cell):
        return cell.peer_cache == "f16" or self.flash_attention == "on"  # llama.cpp wants it for quantised values

    def measure(self, cell):
        result, done = document(
            [self.path, "-m", self.model, "-p", str(cell.prompt), "-n", str(cell.gen), "-d", str(cell.depth)]
            + ["-fa", self.flash_attention, "-t", str(self.threads), "-r", str(self.repeat)]
            + ["-ctk", cell.peer_cache, "-ctv", cell.peer_cache, "-o", "jsonl"]
        )
        return pairing.Run(statistics.median(result["samples_ts"]), done.peak_bytes, done.others)


def peer_programs(folder):
    """The programs of llama.cpp, in the folder or its bin/."""
    if not folder:
        raise Failure("where is llama.cpp? Give --peer DIR (or KVC_PEER); docs/performance.md tells how to build it")
    for place in (folder, os.path.join(folder, "bin")):
        if os.path.isfile(os.path.join(place, LLAMA_PROGRAMS[0])):
            return {name: program(os.path.join(place, name), "llama.cpp") for name in LLAMA_PROGRAMS}
    raise Failure(f"{folder}: neither here nor in bin/ is {LLAMA_PROGRAMS[0]}")


def newest(path):
    """When the file, or anything in the folder, was last written."""
    if not os.path.isdir(path):
        return os.path.getmtime(path)
    return max(os.path.getmtime(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def converted(kvc, source, work, *options):
    """The model file that this build makes of a source; kept in `work` while build and source stay as they are."""
    if not os.path.exists(source):
        raise Failure(f"{source}: no such model")
    if source.endswith(".kvc"):
        return source
    os.makedirs(work, exist_ok=True)
    name = os.path.splitext(os.path.basename(os.path.normpath(source)))[0]
    build = kvc.strip(os.sep).replace(os.sep, "-")
    out = os.path.join(work, f"{name}--{build}.kvc")
    if not os.path.exists(out) or os.path.getmtime(out) <= max(newest(source), os.path.getmtime(kvc)):
        say(f"converting {source} with {kvc}")
        run([kvc, "convert", source, out, *options])
    return out


def recall_model(kvc, work):
    folder = os.path.join(ROOT, "models", "recall")
    scores = os.path.join(folder, "scores")
    tables = [os.path.join(folder, "head_scores.json")] + sorted(os.path.join(scores, f) for f in os.listdir(scores))
    return converted(kvc, folder, work, *(word for table in tables for word in ("--head-scores", table)))


# ---- equal work ----


def check_weights(kvc, model, peers, gguf):
    """Both engines read as many bytes of weights, or a comparison of speed says nothing."""
    ours, _ = document([kvc, "inspect", model, "--json"])
    theirs, _ = document(
        [peers["llama-bench"], "-m", gguf, "-p", "1", "-n", "0", "-r", "1", "-t", "1", "--no-warmup", "-o", "jsonl"]
    )
    n_bytes, n_bytes_llama = ours["weight_bytes"], theirs["model_size"]
    if abs(n_bytes - n_bytes_llama) > 0.05 * n_bytes_llama or ours["n_parameters"] != theirs["model_n_params"]:
        raise Failure(
            f"{gguf}: kvc has {ours['n_parameters']} parameters in {n_bytes} bytes, llama.cpp "
            f"{theirs['model_n_params']} in {n_bytes_llama}: that is not the same work"
        )
    return {"weight_bytes": n_bytes, "weight_bytes_llama": n_bytes_llama, "llama": theirs["build_commit"]}


def check_tokens(kvc, model, peers, gguf):
    ours, _ = document([kvc, "tokenize", model, "--text", PROMPT, "--json"])
    out = run([peers["llama-tokenize"], "-m", gguf, "-p", PROMPT, "--ids", "--no-bos", "--log-disable"]).out
    theirs = json.loads(out[out.rindex("[") :])
    if ours["tokens"] != theirs:
        raise Failure(f"{gguf}: {PROMPT!r} is {ours['tokens']} to kvc and {theirs} to llama.cpp")
    return theirs


def continuation_of_llama(peers, gguf, n_tokens, expected):
    """The longest of some runs, which are all alike: llama-completion prints in a thread of its own, and often ends
    before everything is out."""
    command = [peers["llama-completion"], "-m", gguf, "-p", PROMPT, "-n", str(n_tokens), "-c", str(n_tokens + 512)]
    command += ["-t", "1", "--temp", "0", "-no-cnv", "--no-display-prompt", "--simple-io", "--no-warmup"]
    command += ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    longest = ""
    for _ in range(5):
        longest = max(longest, run(command).out.replace("[end of text]", "").strip(), key=len)
        if longest == expected:
            break
    return longest


def check_continuation(kvc, model, peers, gguf, n_tokens, must_agree):
    """The greedy answer of both, f32 cache and no flash attention; rounding alone may part them on other models than
    small ones with whole weights."""
    result, _ = document(
        [kvc, "run", model, "--prompt", PROMPT, "--max-tokens", str(n_tokens), "--policy", "full:kv=f32", "--json"]
    )
    ours = result["text"].strip()
    theirs = continuation_of_llama(peers, gguf, n_tokens, ours)
    same = os.path.commonprefix([ours, theirs])
    if must_agree and ours != theirs:
        raise Failure(f"{gguf}: the engines answer differently\n  kvc       {ours!r}\n  llama.cpp {theirs!r}")
    return {"model": gguf, "characters_equal": len(same), "characters": max(len(ours), len(theirs)), "text": same}


def check_builds(builds, models, n_tokens):
    """All builds generate the same tokens with the recall model."""
    answers = {}
    for build, model in zip(builds, models):
        result, _ = document(
            [build, "run", model, "--prompt", " The code of Zachary is 736. The code of Zachary is", "--max-tokens"]
            + [str(n_tokens), "--json"]
        )
        answers[build] = result["tokens"]
    for build in builds[1:]:
        if answers[build] != answers[builds[0]]:
            raise Failure(
                f"the builds answer differently\n  {builds[0]}: {answers[builds[0]]}\n  {build}: {answers[build]}"
            )
    return {"model": "recall", "tokens_equal": len(answers[builds[0]])}


# ---- the two modes ----


@contextlib.contextmanager
def neighbours(count):
    """So many processes that do nothing but take a processor each, as the machine's other programs would."""
    spin = [subprocess.Popen([sys.executable, "-SEc", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spin:
            process.kill()
            process.wait()


def conditions(arguments):
    """What is unlike an idle machine of which every processor takes part, in the words of the table."""
    threads = f"{arguments.threads} thread{'s' * (arguments.threads != 1)}"
    return [threads] * (arguments.threads != os.cpu_count()) + [f"{arguments.busy} busy"] * (arguments.busy > 0)


def measured(arguments, model, cells, sides):
    """sides: (name, contenders). The result of every cell of one model, as soon as it is there."""
    for cell in cells:
        if cell.name not in arguments.cells if arguments.cells else cell.named:
            continue
        able = [(name, [c for c in contenders if c.can(cell)]) for name, contenders in sides]
        result = pairing.Result(
            ", ".join([model, *conditions(arguments)]),
            cell.name,
            [pairing.Side(name, [pairing.Series(c.label) for c in contenders]) for name, contenders in able],
        )
        contenders = [c for _, contenders in able for c in contenders]
        pause = functools.partial(rest, arguments.pause, arguments.patience)
        with neighbours(arguments.busy):
            pairing.take_turns(cell, contenders, result, arguments.rounds, arguments.max_rounds, pause, say)
        yield result


def short_name(path):
    return os.path.splitext(os.path.basename(os.path.normpath(path)))[0]


def against_llama(arguments, keep):
    peers = peer_programs(arguments.peer)
    checks, results = [], []
    for gguf in [arguments.small] * bool(arguments.small) + arguments.models:
        if not gguf.endswith(".gguf"):
            raise Failure(f"{gguf}: llama.cpp reads GGUF; give the .gguf, kvc's file is made of it")
        model = converted(arguments.kvc, gguf, arguments.work)
        small = gguf == arguments.small
        check = check_continuation(arguments.kvc, model, peers, gguf, arguments.tokens, must_agree=small)
        check["prompt_tokens"] = check_tokens(arguments.kvc, model, peers, gguf)
        check.update(check_weights(arguments.kvc, model, peers, gguf))
        checks.append(check)
        say(f"{gguf}: answers agree in {check['characters_equal']} of {check['characters']} characters")
    common = (arguments.threads, arguments.repeat)
    for gguf in arguments.models:
        model = converted(arguments.kvc, gguf, arguments.work)
        llama = [
            Llama(f"llama.cpp, fa {flash_attention}", peers["llama-bench"], gguf, *common, flash_attention)
            for flash_attention in ([arguments.fa] if arguments.fa else ("off", "on"))
        ]
        sides = [("kvc", [Kvc("kvc", arguments.kvc, model, *common)]), ("llama.cpp", llama)]
        for result in measured(arguments, short_name(gguf), CELLS, sides):
            results.append(result)
            keep(checks, results)
    return checks, results


def against_builds(arguments, keep):
    builds = [arguments.kvc] + arguments.against
    names = ["kvc"] + [f"build {i + 1}" * (len(arguments.against) > 1) or "before" for i in range(len(builds) - 1)]
    for name, path in zip(names, builds):
        say(f"{name}: {path}")
    recall = [recall_model(build, arguments.work) for build in builds]
    checks = [check_builds(builds, recall, arguments.tokens)]
    results = []
    for source, cells in [("recall", RECALL_CELLS)] + [(model, CELLS) for model in arguments.models]:
        files = recall if cells is RECALL_CELLS else [converted(b, source, arguments.work) for b in builds]
        sides = [
            (name, [Kvc(name, build, file, arguments.threads, arguments.repeat)])
            for name, build, file in zip(names, builds, files)
        ]
        for result in measured(arguments, short_name(source), cells, sides):
            results.append(result)
            keep(checks, results)
    return checks, results


# ---- the program ----


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def parse(words):
    known = sorted({cell.name for cell in CELLS + RECALL_CELLS})
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def at_least(kind, least):
        def number(text):
            value = kind(text)
            if not value >= least:
                raise argparse.ArgumentTypeError(f"{text} is less than {least}")
            return value

        return number

    count = at_least(int, 1)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="GGUF file; with --against also a .kvc file")
    parser.add_argument("--kvc", default=os.path.join(ROOT, "build", "bin", "kvc"), metavar="FILE")
    parser.add_argument("--peer", default=os.environ.get("KVC_PEER"), metavar="DIR", help="built llama.cpp [KVC_PEER]")
    parser.add_argument("--against", action="append", metavar="KVC", help="another build of kvc, instead of llama.cpp")
    parser.add_argument("--least", type=at_least(float, 0), metavar="R", help="exit code 1 below it [0.98 for builds]")
    parser.add_argument("--threads", type=count, default=os.cpu_count(), metavar="N")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="runs of each in every cell [5]")
    parser.add_argument("--max-rounds", type=count, default=0, metavar="N", help="goes on until bests are confirmed")
    parser.add_argument("--repeat", type=count, default=1, metavar="N", help="repetitions in a run, median counts [1]")
    parser.add_argument("--pause", type=at_least(float, 0), default=1, metavar="S", help="before every run [1 s]")
    parser.add_argument(
        "--patience", type=at_least(float, 0), default=0, metavar="S", help="longer pauses while others are at work"
    )
    parser.add_argument(
        "--busy", type=at_least(int, 0), default=0, metavar="N", help="beside N other processes that take a core each"
    )
    parser.add_argument(
        "--cells",
        type=lambda text: text.split(","),
        metavar="A,B",
        help=f"of {', '.join(known)} [those that take no minutes]",
    )
    parser.add_argument("--fa", choices=["on", "off"], help="of llama.cpp's two settings this one only [both]")
    parser.add_argument("--small", metavar="GGUF", help="a small model with whole weights; greedy answers must agree")
    parser.add_argument("--tokens", type=count, default=32, metavar="N", help="length of these answers [32]")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "compare"), metavar="DIR", help="where models go")
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    arguments = parser.parse_args(words)
    for name in arguments.cells or []:
        if name not in known:
            parser.error(f"no cell {name}; there are {', '.join(known)}")
    if not arguments.models and not arguments.against:
        parser.error("a MODEL is needed, or --against")
    if arguments.least is None and arguments.against:
        arguments.least = 0.98
    return arguments


def compare(arguments, words, kept):
    arguments.kvc = program(arguments.kvc, "give another with --kvc")
    arguments.against = [program(path, "--against") for path in arguments.against or []]

    def keep(checks, results):
        out = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(["bench/compare_llama.py", *words]),
            "processor": processor(),
            "n_processors": os.cpu_count(),
            "threads": arguments.threads,
            "checks": checks,
            "cells": [result.document() for result in results],
            "worst_ratio": pairing.worst_ratio(results).ratio,
        }
        if arguments.json:
            with open(arguments.json + ".part", "w", encoding="utf-8") as file:
                json.dump(out, file, indent=1)
                file.write("\n")
            os.replace(arguments.json + ".part", arguments.json)
        if kept:
            kept(out)

    _, results = against_builds(arguments, keep) if arguments.against else against_llama(arguments, keep)
    worst = pairing.worst_ratio(results)
    if worst is None:
        raise Failure("none of these cells belongs to these models")
    print(pairing.table(results))
    print(
        f"\nWorst ratio of bests: {worst.ratio:.3f}, {worst.model} {worst.cell} against {worst.other.name} "
        f"(quiet: {worst.verdict})"
    )
    if arguments.least is not None and worst.ratio < arguments.least:
        again = "" if worst.verdict == "yes" else "; the machine was not quiet: measure again, with more --max-rounds"
        say(f"compare_llama: {worst.ratio:.3f} is below {arguments.least}{again}")
        return 1
    return 0


def main(words, kept=None):
    """kept(document): called behind every cell with all there is so far, so that nothing is lost with a run."""
    arguments = parse(words)
    try:
        return compare(arguments, words, kept)
    except (Failure, OSError) as failure:
        say(f"compare_llama: {failure}")
        return 2
    except KeyboardInterrupt:
        say("compare_llama: interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

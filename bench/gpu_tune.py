#!/usr/bin/env python3
"""Tunes the CUDA backend to this machine's GPU: tries values of the numbers in cuda/tuning.list, one number after the
other, and writes those that are faster into a file, for KVC_CUDA_TUNING in the environment of programs that use the
library. A value is measured in turns with the one that stands, by single operations (bench/device_bench.cc) or by
prompts and steps of a model; it takes its place where it is more than 2 % faster. At the end all of them together stand
against what follows from the device, and are written if that is slower.

  bench/gpu_tune.py --kvc build-gpu/bin/kvc --out build-gpu/tuning.txt [MODEL.kvc]
  bench/gpu_tune.py --only step_blocks,piece --minutes 3
"""
import argparse
import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
import time

import gpu
import gpu_cells
import gpu_run
import gpu_scratch

BETTER = 0.98  # of the time that it takes now
VARIABLE = "KVC_CUDA_TUNING"
ONE, RAGGED, SIXTEEN = (f"attend {which}" for which in (
    "1 of 1024 entries bf16, uniform", "1 of 8192 entries bf16, ragged", "16 of 4096 entries bf16, ragged"))
PROMPT, STEP = "prefill_seconds", "step_seconds_median"  # of kvc bench
LONG_PROMPT = 8192


@dataclasses.dataclass(frozen=True)
class Knob:
    """A number of the tuning, what may be tried for it beside what it is, and what it is judged by: operations with so
    many rows, or figures of a model."""

    name: str
    tries: tuple  # of values, or of parts of what it is (floats)
    operations: tuple = ()
    rows: tuple = ()
    figures: tuple = ()

    def values(self, now):
        """Without what it is."""
        found = []
        for value in (round(now * t) if isinstance(t, float) else t for t in self.tries):
            if value != now and value not in found:
                found.append(value)
        return found


def layers(weights, rows):
    return tuple(f"layer {weights}, rows {n}" for n in rows)


KNOBS = (
    Knob("step_blocks", (0.5, 0.75, 1.5, 2.0), (ONE, RAGGED, SIXTEEN)),
    Knob("least_segment", (32, 64, 128, 256), (ONE, RAGGED)),
    Knob("most_segment", (512, 1024, 2048, 4096), (RAGGED, SIXTEEN)),
    Knob("few_rows", (2, 3, 4, 9), layers("bf16", (2, 4, 8)) + layers("int4", (2, 4, 8)), (2, 4, 8)),
    Knob("blas_rows", (64, 128, 256, 512), layers("bf16", (64, 128, 256)), (64, 128, 256)),
    Knob("decoded_rows", (256, 512, 1024, 1 << 20), layers("int8", (256, 512, 1024)), (256, 512, 1024)),
    Knob("blas_workspace", (4, 8, 16, 32, 64), layers("bf16", (512, 1024)), (512, 1024)),
    Knob("prompt_rows", (512, 1024, 2048, 4096), figures=(PROMPT,)),
    Knob("first_piece", (8, 16, 32), figures=(STEP,)),
    Knob("piece", (32, 64, 128), figures=(STEP,)),
    Knob("weights_ahead", (0, 32, 64, 128), figures=(STEP,)),
    Knob("early", (0, 1), figures=(STEP,)),
)


class Failed(Exception):
    """Something could not be measured; the text says what."""


def parse(text):
    """({name: number}, {name: text}) of a tuning as the library prints it."""
    pairs = [line.split(" = ", 1) for line in text.splitlines() if " = " in line]
    numbers = {name: int(value) for name, value in pairs if value.isdigit()}
    return numbers, {name: value for name, value in pairs if name not in numbers}


def written(words, numbers):
    return "".join(f"{name} = {value}\n" for name, value in (words | numbers).items())


class Device:
    """What is measured with a tuning: seconds by what was measured."""

    def __init__(self, args, folder, model):
        self.args, self.folder, self.model = args, folder, model
        self.program = os.path.join(os.path.dirname(args.kvc), "device_bench")
        self.words = {}

    def run(self, command, tuning=None):
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        if tuning is not None:
            path = os.path.join(self.folder, "tuning.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(written(self.words, tuning))
            environment[VARIABLE] = path
        out, error = gpu_run.run(command, env=environment)
        if error is not None:
            raise Failed(error)
        return out

    def usual(self):
        """What follows from the device."""
        numbers, self.words = parse(self.run([self.program, "--device", self.args.device, "--tuning"]))
        if not numbers:
            raise Failed(f"device {self.args.device} has nothing to tune")
        return numbers

    def seconds(self, knob, tuning):
        found = {}
        if knob.operations:
            command = [self.program, "--device", self.args.device, "--json"]
            command += ["--rows", ",".join(map(str, knob.rows))] if knob.rows else []
            command += ["--small"] if self.args.small else []
            out = self.run(command + self.names(knob), tuning)
            found |= {row["operation"]: row["seconds"] for row in map(json.loads, out.splitlines())}
        if knob.figures:
            prompt = 64 if self.args.small else LONG_PROMPT
            steps, policy = (4, "snapkv:budget=32") if self.args.small else (64, gpu_cells.BUDGET)
            out = json.loads(self.run([
                self.args.kvc, "bench", self.model, "--device", self.args.device, "--trusted", "--policy", policy,
                "--prompt", str(prompt), "--gen", str(steps), "--repeat", "1", "--json"], tuning).splitlines()[0])
            found |= {figure: out[figure] for figure in knob.figures}
        if not found:
            raise Failed(f"no operation has a name with {' or '.join(map(repr, knob.operations))}")
        return found

    def names(self, knob):
        """--small has other sizes."""
        if not self.args.small:
            return list(knob.operations)
        return ["attend 1 of "] if knob.operations[0].startswith("attend") else ["layer bf16"]


def ratio(seconds, beside):
    """The geometric mean over what both measured."""
    return statistics.geometric_mean(seconds[name] / beside[name] for name in seconds if name in beside)


class Tuner:
    """measure(knob, tuning) -> {what: seconds}."""

    def __init__(self, measure, usual, rounds, clock, say):
        self.measure, self.usual, self.rounds, self.clock, self.say = measure, usual, rounds, clock, say
        self.now = dict(usual)
        self.rows, self.left_out = [], []

    def times(self, knob, tuning, beside):
        """The median of rounds that take turns."""
        found = []
        for _ in range(self.rounds):
            base = self.measure(knob, beside)
            found.append(ratio(self.measure(knob, tuning), base))
        return statistics.median(found)

    def allowed(self, tuning):
        return tuning["least_segment"] <= tuning["most_segment"]

    def tune(self, knob):
        best, best_value = BETTER, None
        for value in knob.values(self.now[knob.name]):
            tried = self.now | {knob.name: value}
            if not self.allowed(tried):
                continue
            if self.clock.left() <= 0:
                self.left_out.append(f"{knob.name} = {value}: out of time")
                continue
            try:
                times = self.times(knob, tried, self.now)
            except Failed as error:
                self.left_out.append(f"{knob.name} = {value}: {error}")
                continue
            self.rows.append({"number": knob.name, "now": self.now[knob.name], "tried": value, "times": times})
            self.say(f"{knob.name}: {value} instead of {self.now[knob.name]} takes {times:.3f} times as long")
            if times < best:
                best, best_value = times, value
        if best_value is not None:
            self.now[knob.name] = best_value

    def confirm(self, knobs):
        """What the new numbers take beside the usual ones, of everything that changed; None: not measured. Numbers that
        are not faster together are taken back."""
        changed = [knob for knob in knobs if self.now[knob.name] != self.usual[knob.name]]
        if not changed:
            return 1.0
        try:
            times = statistics.geometric_mean(self.times(knob, self.now, self.usual) for knob in changed)
        except Failed as error:
            self.left_out.append(f"all together: {error}")
            return None
        if times >= 1:
            self.now = dict(self.usual)
        return times


def options(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="for prompts and steps; without one, --shape is made and deleted")
    parser.add_argument("--shape", default="1b:bf16", help="SHAPE:TYPE [1b:bf16]")
    parser.add_argument("--scratch", help="folder to make it in")
    parser.add_argument("--only", type=lambda text: text.split(","), help="numbers to tune, as step_blocks,piece [all]")
    parser.add_argument("--minutes", type=float, help="nothing is begun behind these")
    parser.add_argument("--rounds", type=int, default=3, help="of each value, in turns with what it is [3]")
    parser.add_argument("--kvc", default="build-gpu/bin/kvc")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--check", action="store_true", help="look at the options, and measure nothing")
    parser.add_argument("--small", action="store_true", help="over little (tests)")
    parser.add_argument("--out", default="build-gpu/tuning.txt")
    args = parser.parse_args(argv)
    names = [knob.name for knob in KNOBS]
    for name in args.only or ():
        if name not in names:
            parser.error(f"no number '{name}': one of {', '.join(names)}")
    if args.rounds < 1:
        parser.error("--rounds: at least 1")
    if args.model and not os.path.isfile(args.model):
        parser.error(f"no model file '{args.model}'")
    return args


def model_of(args, knobs, clock):
    """(path, the scratch folder's or None)."""
    if args.model or not any(knob.figures for knob in knobs):
        return args.model, None
    made = gpu_scratch.Models(args.kvc, [args.shape], args.scratch, os.path.dirname(os.path.abspath(args.out)), clock)
    error = made.need(made.all[0], [])
    if error is not None:
        made.close()
        raise Failed(f"there is no model {args.shape}: {error}")
    return made.all[0].path, made


def report(args, device, tuner, times):
    """What goes into the file, in front of the numbers."""
    beside = "not measured" if times is None else f"{times:.3f} times as long as without this file"
    head = f"# By ./dev gpu tune, commit {gpu.commit(args.kvc)}, {time.strftime('%Y-%m-%d')}"
    lines = [f"{head}: what changed takes {beside}."]
    lines += [f"# {row['number']} = {row['tried']} instead of {row['now']}: {row['times']:.3f} times as long"
              for row in tuner.rows]
    lines += [f"# left out: {text}" for text in tuner.left_out]
    return "\n".join(lines) + "\n" + written(device.words, tuner.now)


def main(argv=None):
    args = options(argv)
    if args.check:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is deleted
    began = time.monotonic()
    clock = gpu_cells.Clock(args.minutes)
    knobs = [knob for knob in KNOBS if args.only is None or knob.name in args.only]
    made = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            device = Device(args, folder, None)
            usual = device.usual()
            device.model, made = model_of(args, knobs, clock)
            tuner = Tuner(device.seconds, usual, args.rounds, clock, lambda text: print(text, flush=True))
            for knob in knobs:
                tuner.tune(knob)
            times = tuner.confirm(knobs)
        except (Failed, ValueError, OSError) as error:
            sys.exit(f"gpu_tune: {error}")
        finally:
            if made is not None:
                made.close()
    for text in tuner.left_out:
        print(f"left out: {text}")
    if tuner.now == usual:
        print(f"nothing is more than {100 * (1 - BETTER):.0f} % faster than what follows from the device "
              f"({time.monotonic() - began:.0f} s): no file")
        return 0
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(report(args, device, tuner, times))
    print(f"{args.out}: {VARIABLE}={args.out} in a program's environment uses it"
          + ("" if times is None else f"; what changed takes {times:.3f} times as long"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

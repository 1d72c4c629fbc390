#!/usr/bin/env python3
"""Speed of the CUDA backend on this machine's GPU: prompts and steps of models at several lengths and policies, as
fractions of what the same device copies in the same run, and the targets they meet; single operations
(bench/device_bench.cc); and what PyTorch takes for the like where it is there (bench/gpu_peers.py). Writes one JSON
file and one table, after every cell, so that a run that is cut off has what it measured. What targets ask for comes
first; with --minutes, what there is no time for is said and left out.

  bench/gpu.py --kvc build-gpu/bin/kvc --out build-gpu/gpu.json MODEL.kvc [MODEL.kvc ...]
  bench/gpu.py --shapes 8b:bf16,1b:bf16 --minutes 5      models with random weights, made for it and deleted
"""
import argparse
import json
import os
import signal
import sys

import gpu_cells
import gpu_ladder
import gpu_machine
import gpu_memory
import gpu_operations
import gpu_report
import gpu_run
import gpu_scratch
import gpu_smi

LEAST_FOR_PEERS = 25  # seconds: every row that there is counts
PEERS_TAKE, MOST_FOR_PEERS = 60, 900  # about; without an end of the time
LONGEST = 600  # seconds for a word about a device or a file
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "temperature.gpu",
          "driver_version")


def need(command):
    out, error = gpu_run.run(command, LONGEST)
    if error is not None:
        sys.exit(f"{os.path.basename(command[0])} {' '.join(command[1:3])}: {error}")
    return out


def commit(kvc):
    """What was built, with a + where files differ from it, as the archive says that it came in; "unknown" outside of
    a repository."""
    packed = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(kvc))), "commit")
    if os.path.exists(packed):
        with open(packed, encoding="ascii") as file:
            return file.read().strip()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    out, error = gpu_run.run(["git", "-C", root, "rev-parse", "HEAD"])
    if error is not None:
        return "unknown"
    changed, _ = gpu_run.run(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"])
    return out.strip() + ("+" if changed else "")


def device_of(kvc, device):
    name = device.split(":")[0]
    found = [entry for entry in json.loads(need([kvc, "devices", "--json"])) if entry["name"] == name]
    if not found:
        sys.exit(f"this build has no device {name}")
    if not found[0]["available"]:
        sys.exit(f"device {name}: {found[0]['reason']}")
    return found[0]


def peers(args, clock, rows, save):
    """Adds what PyTorch takes for the like, by the program beside this one, to rows; why it says no more, or None."""
    if not gpu_smi.is_cuda(args.device) and not args.small:
        return "it is measured on CUDA devices"
    if clock.left() < LEAST_FOR_PEERS:
        return "out of time"

    def keep(row):
        rows.append(row)
        save()

    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_peers.py")
    command = [args.python, program, "--device", args.device if gpu_smi.is_cuda(args.device) else "cpu", "--json",
               *(["--small"] if args.small else []), *(["--all"] if args.all else [])]
    return clock.blamed(gpu_run.lines_of(command, min(clock.most(PEERS_TAKE), MOST_FOR_PEERS), keep=keep)[1])


def options(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[],
                        help=f"models to make, as SHAPE:TYPE,...; without models {gpu_cells.SHAPES}")
    parser.add_argument("--scratch", help="folder to make them in (default: /dev/shm where it has room, else that of "
                        "the report)")
    parser.add_argument("--minutes", type=float, help="no cell is begun that is not likely to end within these")
    parser.add_argument("--kvc", default="build-gpu/bin/kvc")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gen", type=int, default=64, help="steps of a repetition")
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")],
                        help="by both policies, in this order, instead of what targets ask for and more")
    parser.add_argument("--small", action="store_true", help="single operations once, over little (tests)")
    parser.add_argument("--python", default="python3", help="the Python that has PyTorch [python3]")
    parser.add_argument("--all", action="store_true", help="a compiled model in PyTorch too, which may take a minute")
    parser.add_argument("--out", default="build-gpu/gpu.json")
    parser.add_argument("--copies", metavar="FOLDER", help="for a copy of what is written, whenever it is")
    args = parser.parse_args(argv)
    if not args.models and not args.shapes:
        args.shapes = gpu_cells.SHAPES.split(",")
    return args


def folder_of(path):
    return os.path.dirname(os.path.abspath(path))


def shapes_of(args, clock, report):
    """The scratch folder's models; without any where they cannot be made, and then the report says why."""
    try:
        made = gpu_scratch.Models(args.kvc, args.shapes, args.scratch, folder_of(args.out), clock)
    except (OSError, ValueError) as error:
        report["failures"].append(f"shape_model: {error}")
        made = gpu_scratch.Models(args.kvc, [], None, None, clock)
    made.leave_out_larger_than(gpu_memory.device_bytes(args.device))
    report["left_out"] = made.left_out
    return made


def there(args, report):
    """The models that are files."""
    found = []
    for path in args.models:
        out, error = gpu_run.run([args.kvc, "inspect", path, "--json"], LONGEST)
        if error is None:
            found.append(gpu_cells.Model(path, os.path.getsize(path), about=json.loads(out)))
        else:
            report["failures"].append(f"kvc inspect {path}: {error}")
    return found


def measure_unit(args, unit, clock, error, keep, save):
    """Every cell of a unit goes to keep; what more there is to say of one is saved when all are there and their process
    has ended. The number of failures. error: why there is no model."""
    failed, cells = 0, []
    for cell in gpu_cells.measure(args, unit, clock) if error is None else gpu_cells.failed_cells(unit, error):
        said = cell["result"].get("error")
        failed += said is not None and not any(words in said for words in gpu_cells.EXPECTED)
        keep(cell)
        cells.append(cell)
        print(f"{cell['model']}  {unit.policy}  prompt {cell['prompt']}: {said or 'measured'}", flush=True)
    if any([gpu_memory.add(args, unit, cell, clock) for cell in cells]):
        save()
    return failed


class Run:
    """Fills a report, and writes it whenever there is more in it. What fails is in it too, and the rest goes on."""

    def __init__(self, args, clock, watch, report):
        self.args, self.clock, self.watch, self.report, self.failed = args, clock, watch, report, 0

    def write(self):
        self.report["clocks"]["at_work"] = gpu_smi.at_work(self.watch.samples)
        gpu_report.write(self.report, self.args.out, self.args.copies)

    def save(self):
        """Between parts: the start of an nvidia-smi would take time from what is measured."""
        self.report["clocks"]["after"] = gpu_smi.query(self.args.device, CLOCKS)
        self.write()

    def keep(self, cell):
        at_work = self.watch.take()
        self.report["cells"].append(cell | ({"clocks": at_work} if at_work else {}))
        self.write()

    def attempt(self, what, *args):
        """Nothing that goes wrong in one part is a reason to measure no other."""
        try:
            what(*args)
        except Exception as error:  # noqa: BLE001
            self.report["failures"].append(f"{what.__name__}: {type(error).__name__}: {error}")
            print(self.report["failures"][-1], file=sys.stderr, flush=True)
        self.watch.take()  # what is behind this is of no cell before
        self.save()

    def operations(self, groups):
        print("single operations", flush=True)
        self.failed += gpu_operations.measure(self.args, self.clock, groups, self.report, self.save)

    def peers(self):
        """It is no failure that PyTorch is not there."""
        print("PyTorch", flush=True)
        self.report["peers_error"] = peers(self.args, self.clock, self.report["peers"], self.write)

    def ladder(self, models, made, later):
        """The longest prompts in fixed memory, of the model that takes seconds for them, if there is one."""
        model = gpu_ladder.model_for(models, self.args.small)
        if model is None:
            return
        climbs = gpu_ladder.Ladder(self.args.kvc, self.args.device, model, self.clock, self.args.small)
        error = made.need(model, later) if self.clock.left() > 0 else "out of time"
        self.report["ladder"] = gpu_ladder.measure(climbs, error)
        error = self.report["ladder"]["error"] or ""
        self.failed += error != "" and not any(words in error for words in gpu_cells.EXPECTED)

    def unit(self, made, unit, later):
        error = made.need(unit.model, later) if self.clock.left() > 0 else gpu_cells.OUT_OF_TIME
        self.failed += measure_unit(self.args, unit, self.clock, error, self.keep, self.save)
        if unit.model.shape and all(other.model is not unit.model for other in later):
            made.drop(unit.model)

    def all(self):
        """Most targets are about single operations, which need no model: those come first. Then the short prompts that
        targets ask for, what is compared with them, the long ones, and the rest. The number of failures."""
        self.attempt(self.operations, gpu_operations.JUDGED)
        made = shapes_of(self.args, self.clock, self.report)
        try:
            models = there(self.args, self.report) + made.all
            made.make_first()
            units = gpu_cells.units(models, self.args.repeat, self.args.prompts)
            short, needed = gpu_cells.turns(units)
            for i in range(len(units) + 1):
                if i == short:
                    self.attempt(self.peers)
                    self.attempt(self.ladder, models, made, units[i:])
                if i == needed:
                    self.attempt(self.operations, gpu_operations.REST)
                if i < len(units):
                    self.attempt(self.unit, made, units[i], units[i + 1:])
        finally:
            made.close()
        self.save()
        return self.failed + len(self.report["failures"])


def main(argv=None):
    args = options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is deleted
    clock = gpu_cells.Clock(args.minutes)
    places = gpu_scratch.folders(args.scratch, folder_of(args.out))
    for place in places:
        gpu_scratch.remove_left(place)
    machine = gpu_machine.found(args.device, args.python, places)
    print("\n".join(machine), flush=True)
    report = {"machine": machine, "device": device_of(args.kvc, args.device), "commit": commit(args.kvc),
              "clocks": {"before": gpu_smi.query(args.device, CLOCKS)},
              "switches": {name: value for name, value in os.environ.items() if name.startswith("KVC_CU")},
              "failures": [], "left_out": [], "cells": [], "ladder": None,
              "operations": [], "operations_error": None, "products": "", "peers": [], "peers_error": None}
    watch = gpu_smi.Watch(args.device)
    try:
        failed = Run(args, clock, watch, report).all()
    finally:
        watch.close()
    print(gpu_report.table(report), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

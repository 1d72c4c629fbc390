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
import subprocess
import sys
import time

import gpu_cells
import gpu_ladder
import gpu_run
import gpu_smi
import gpu_targets

LEAST_FOR_OPERATIONS, LEAST_FOR_PEERS = 10, 25  # seconds; of peers every row counts
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "temperature.gpu",
          "driver_version")


def need(command):
    out, error = gpu_run.run(command)
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


def memory(device, which):
    """Bytes of a GPU, "used" by all programs (in containers nvidia-smi shows no single ones) or in "total". None where
    it does not say."""
    mebibytes = gpu_smi.number(gpu_smi.query(device, [f"memory.{which}"]).get(f"memory.{which}", ""))
    return None if mebibytes is None else int(mebibytes) << 20


def memory_peak(command, device, seconds, interval=1.0):
    """What the device holds more while a command runs, at most; None where that cannot be said: it did not end within
    these seconds, for one."""
    before = memory(device, "used")
    if before is None:
        return None
    most, end = before, time.monotonic() + seconds
    # pylint: disable=consider-using-with
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while running.poll() is None and time.monotonic() < end:
            most = max(most, memory(device, "used") or 0)
            time.sleep(interval)
    finally:
        code = running.poll()
        if code is None:
            gpu_run.end(running)
    return most - before if code == 0 else None


def add_memory(args, unit, cell, clock):
    """To a cell that T18 speaks of, the memory that its prompt takes, where there is time to ask; whether it is there
    now. In a run of its own, where no other process of ours is on the device: asking takes time from steps."""
    wanted = ("8B", "bf16", gpu_targets.BUDGET, gpu_targets.LONG)
    if (cell["shape"], cell["weights"], cell["policy"], cell["prompt"]) != wanted or "error" in cell["result"]:
        return False
    expected = clock.estimate(unit, cell["prompt"], 1, True)
    if not gpu_smi.is_cuda(args.device) or clock.left() < expected:
        return False
    peak = memory_peak([args.kvc, "bench", unit.model.path, "--device", args.device, "--trusted", "--policy",
                        cell["policy"], "--prompt", str(cell["prompt"]), "--gen", "1", "--repeat", "1", "--json"],
                       args.device, clock.most(expected))
    if peak is not None:
        cell["result"]["device_bytes_peak"] = peak
    return peak is not None


def device_bytes(device):
    """Memory of a GPU; of what is none, no limit."""
    return memory(device, "total") or 1 << 62


def operations(args, clock):
    """What single operations take, by the program beside kvc: [{operation, seconds, flops, bytes,
    read_bytes_per_second}]; or why it cannot be said; and who multiplied in them."""
    program = os.path.join(os.path.dirname(args.kvc), "device_bench")
    if clock.left() < LEAST_FOR_OPERATIONS:
        return [], "out of time", ""
    log = []
    rows, error = gpu_run.lines_of([program, "--device", args.device, "--json", *(["--small"] if args.small else [])],
                           None if clock.end is None else clock.left(), log)
    return rows, error, "; ".join(line for line in log if "cuBLASLt" in line)


def peers(args, clock):
    """What PyTorch takes for the like, by the program beside this one: its rows; or why it cannot be said."""
    if not gpu_smi.is_cuda(args.device) and not args.small:
        return [], "it is measured on CUDA devices"
    if clock.left() < LEAST_FOR_PEERS:
        return [], "out of time"
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_peers.py")
    return gpu_run.lines_of([args.python, program, "--device", args.device if gpu_smi.is_cuda(args.device) else "cpu", "--json",
                     *(["--small"] if args.small else []), *(["--all"] if args.all else [])],
                    None if clock.end is None else clock.left())


def peer_rows(report):
    rows, error = report.get("peers", []), report.get("peers_error")
    lines = ["", f"PyTorch was {'cut off' if rows else 'not measured'}: {error}"] if error else []
    lines += ["", f"| {rows[0]['library']} | us | of | what |", "|---|---|---|---|"] if rows else []
    for row in rows:
        took = f"{row['seconds'] * 1e6:.1f} | {row['n']} | {row['what']}" if "seconds" in row else f"{row['error']} | |"
        lines.append(f"| {row['peer']} | {took} |")
    return lines


def operation_rows(report):
    rows, error = report.get("operations", []), report.get("operations_error")
    lines = ["", f"Single operations were {'cut off' if rows else 'not measured'}: {error}"] if error else []
    lines += ["", "| operation | us | TFLOP/s | GB/s | of what is read |", "|---|---|---|---|---|"] if rows else []
    for row in rows:
        seconds, rate = row["seconds"], row["bytes"] / row["seconds"]
        lines.append(f"| {row['operation']} | {seconds * 1e6:.1f} | {row['flops'] / seconds / 1e12:.2f} | "
                     f"{rate / 1e9:.1f} | {100 * rate / row['read_bytes_per_second']:.1f} % |")
    return lines


def cell_row(cell, peak):
    """The line of a cell, beside what the run reached in products."""
    head, got = f"| {cell['model']} | {cell['policy']} | {cell['prompt']} | ", cell["result"]
    if "error" in got:
        return head + f"{got['error']} | | | | |"
    share = gpu_targets.share_of_peak(cell, peak)
    return (head + f"{got['prefill_tokens_per_second']:.0f} | {'' if share is None else f'{100 * share:.1f} %'} | "
            f"{100 * got['compress_seconds'] / got['first_token_seconds']:.2f} % | "
            f"{got['decode_tokens_per_second']:.1f} | {100 * got['bandwidth_fraction']:.1f} % |")


def table(report):
    """The report for people."""
    device = report["device"]
    lines = [f"# {device['description']}", "", f"Commit {report['commit']}; a large copy moves "
             f"{device['bytes_per_second'] / 1e9:.1f} GB/s, both ways counted."]
    for when in ("before", "after"):
        if report["clocks"].get(when):
            numbers = ", ".join(f"{key} {value}" for key, value in report["clocks"][when].items())
            lines.append(f"{when.capitalize()}: {numbers}.")
    if report["clocks"].get("at_work"):
        lines.append(f"At work: {gpu_smi.shown(report['clocks']['at_work'])}.")
    peak = report.get("peak")
    if peak:
        lines.append(f"Products reach {peak['flops_per_second'] / 1e12:.3g} TFLOP/s ({peak['of']}).")
    if report.get("products"):
        lines.append(f"Log of the single operations: {report['products']}.")
    if report.get("switches"):
        lines.append("With " + ", ".join(f"{name}={value}" for name, value in sorted(report["switches"].items())) + ".")
    if report.get("left_out"):
        lines += ["", "Left out: " + "; ".join(report["left_out"]) + "."]
    if report.get("left_behind"):
        lines += ["", "Killed, and still there: " + ", ".join(report["left_behind"]) + "."]
    lines += ["", "| model | policy | prompt | prompt tokens/s | of the products | compression | steps tokens/s | "
              "of the copies |", "|---|---|---|---|---|---|---|---|"]
    lines += [cell_row(cell, peak) for cell in report["cells"]]
    lines += ["", "| target | what | wanted | value | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {row['id']} | {row['what']} | {row['target']} | {row['value']} | {row['verdict']} |"
              for row in report["targets"]]
    lines += gpu_ladder.table_rows(report.get("ladder")) + operation_rows(report) + peer_rows(report)
    return "\n".join(lines) + "\n"


def write(report, path, copies=None):
    report["peak"], report["left_behind"] = gpu_targets.peak(report), list(gpu_run.left_behind)
    report["targets"] = gpu_targets.judge({"operations": []} | report)
    gpu_run.write_whole(path, json.dumps(report, indent=1), copies)
    gpu_run.write_whole(os.path.splitext(path)[0] + ".md", table(report), copies)


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


def models_of(args, clock):
    """(models, the scratch folder's): those that are there, then those to make."""
    def there(path):
        about = json.loads(need([args.kvc, "inspect", path, "--json"]))
        return gpu_cells.Model(path, os.path.getsize(path), about=about)

    try:
        made = gpu_cells.Models(args.kvc, args.shapes, args.scratch, os.path.dirname(os.path.abspath(args.out)),
                                clock)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"shape_model: {error}")
    made.leave_out_larger_than(device_bytes(args.device))
    return [there(path) for path in args.models] + made.all, made


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
    if any([add_memory(args, unit, cell, clock) for cell in cells]):
        save()
    return failed


def ladder(args, models, made, later, clock):
    """The longest prompts in fixed memory, of the model that takes seconds for them; None: there is none."""
    model = gpu_ladder.model_for(models, args.small)
    if model is None:
        return None
    climbs = gpu_ladder.Ladder(args.kvc, args.device, model, clock, args.small)
    return gpu_ladder.measure(climbs, made.need(model, later) if clock.left() > 0 else "out of time")


def single_ones(args, report, clock, climb, save):
    """What is not of a model and a policy: single operations, PyTorch, which is no failure where it is not there, and
    the longest prompts. The number of failures."""
    report["operations"], report["operations_error"], report["products"] = operations(args, clock)
    failed = "out of time" not in (report["operations_error"] or "out of time")
    save()
    report["peers"], report["peers_error"] = peers(args, clock)
    save()
    report["ladder"] = climb()
    error = (report["ladder"] or {}).get("error") or ""
    save()
    return failed + (error != "" and not any(words in error for words in gpu_cells.EXPECTED))


def measure_all(args, report, clock, watch):
    """Fills the report; the number of failures. Single operations come where the units end that targets ask for and
    that are short: most targets are about them."""
    def save():
        report["clocks"] |= {"after": gpu_smi.query(args.device, CLOCKS), "at_work": gpu_smi.at_work(watch.samples)}
        write(report, args.out, args.copies)

    def keep(cell):
        at_work = watch.take()
        report["cells"].append(cell | ({"clocks": at_work} if at_work else {}))
        save()

    models, made = models_of(args, clock)
    report["left_out"] = made.left_out
    failed = 0
    try:
        made.make_first()
        units = gpu_cells.units(models, args.repeat, args.prompts)
        turn = gpu_cells.first_long(units)
        for i in range(len(units) + 1):
            if i == turn:
                climb = lambda: ladder(args, models, made, units[turn:], clock)  # noqa: E731
                failed += single_ones(args, report, clock, climb, save)
                watch.take()  # is of no cell
            if i == len(units):
                break
            unit, later = units[i], units[i + 1:]
            error = made.need(unit.model, later) if clock.left() > 0 else gpu_cells.OUT_OF_TIME
            failed += measure_unit(args, unit, clock, error, keep, save)
            if unit.model.shape and all(other.model is not unit.model for other in later):
                made.drop(unit.model)
    finally:
        made.close()
    save()
    return failed


def main(argv=None):
    args = options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is deleted
    clock = gpu_cells.Clock(args.minutes)
    report = {"device": device_of(args.kvc, args.device), "commit": commit(args.kvc),
              "clocks": {"before": gpu_smi.query(args.device, CLOCKS)},
              "switches": {name: value for name, value in os.environ.items() if name.startswith("KVC_CU")}, "cells": []}
    watch = gpu_smi.Watch(args.device)
    try:
        failed = measure_all(args, report, clock, watch)
    finally:
        watch.close()
    print(table(report), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

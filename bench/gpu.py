#!/usr/bin/env python3
"""Speed of the CUDA backend on this machine's GPU: prompts and steps of models at several lengths and policies, as
fractions of what the same device copies in the same run, and the targets they meet; single operations
(bench/device_bench.cc); and what PyTorch takes for the like where it is there (bench/gpu_peers.py). Writes one JSON
file and one table, after every cell, so that a run that is cut off has what it measured.

  bench/gpu.py --kvc build-gpu/bin/kvc --out build-gpu/gpu.json MODEL.kvc [MODEL.kvc ...]
"""
import argparse
import json
import os
import subprocess
import sys
import time

import gpu_targets

POLICIES = ("full", gpu_targets.BUDGET)
PROMPTS = (512, 4096, 8192, 32768)
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,temperature.gpu,driver_version"


def run(command):
    """(output, None), or (None, what it said last)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return None, str(error)
    if done.returncode != 0:
        return None, ((done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return done.stdout, None


def need(command):
    out, error = run(command)
    if error is not None:
        sys.exit(f"{os.path.basename(command[0])} {' '.join(command[1:3])}: {error}")
    return out


def clocks():
    """Of the first GPU, by name; empty where nvidia-smi is not there."""
    out, error = run(["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader", "--id=0"])
    return {} if error else dict(zip(CLOCKS.split(","), (value.strip() for value in out.strip().split(","))))


def commit():
    """What was built, with a + where files differ from it; "unknown" outside of a repository."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    out, error = run(["git", "-C", root, "rev-parse", "HEAD"])
    if error is not None:
        return "unknown"
    changed, _ = run(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"])
    return out.strip() + ("+" if changed else "")


def device_of(kvc, device):
    name = device.split(":")[0]
    found = [entry for entry in json.loads(need([kvc, "devices", "--json"])) if entry["name"] == name]
    if not found:
        sys.exit(f"this build has no device {name}")
    if not found[0]["available"]:
        sys.exit(f"device {name}: {found[0]['reason']}")
    return found[0]


def memory_used(device):
    """Bytes of a GPU that are taken, by all programs: in containers nvidia-smi shows no single ones. None where it does
    not say."""
    number = (device.split(":") + ["0"])[1]
    out, error = run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={number}"])
    return int(out) << 20 if error is None and out.strip().isdigit() else None


def memory_peak(command, device, interval=1.0):
    """What the device holds more while a command runs, at most; None where that cannot be said."""
    before = memory_used(device)
    if before is None:
        return None
    most = before
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None:
            most = max(most, memory_used(device) or 0)
            time.sleep(interval)
    return most - before if running.returncode == 0 else None


def with_memory(args, model, cell):
    """A cell that T18 speaks of, with the memory that its prompt takes. In a run of its own: asking for it takes time
    from steps."""
    wanted = (cell["shape"], cell["weights"], cell["policy"]) == ("8B", "bf16", gpu_targets.BUDGET)
    if not wanted or cell["prompt"] != gpu_targets.LONG or "error" in cell["result"] or not on_cuda(args.device):
        return cell
    peak = memory_peak([args.kvc, "bench", model, "--device", args.device, "--policy", cell["policy"], "--prompt",
                        str(cell["prompt"]), "--gen", "1", "--repeat", "1", "--json"], args.device)
    return cell if peak is None else cell | {"result": cell["result"] | {"device_bytes_peak": peak}}


def on_cuda(device):
    return device.split(":")[0] == "cuda"


def measure(args, model, about, policy, prompt):
    """One cell. What does not fit into the model's context is said, not measured."""
    shape, weights = gpu_targets.kind_of(about)
    cell = {"model": os.path.basename(model), "shape": shape, "weights": weights, "policy": policy, "prompt": prompt}
    if prompt + 2 * args.gen + 64 > about["config"]["max_tokens"]:
        return cell | {"result": {"error": f"the model was trained for {about['config']['max_tokens']} tokens"}}
    out, error = run([args.kvc, "bench", model, "--device", args.device, "--policy", policy, "--prompt", str(prompt),
                      "--gen", str(args.gen), "--repeat", str(args.repeat), "--json"])
    return cell | {"result": {"error": error} if error is not None else json.loads(out)}


def operations(args):
    """What single operations take, by the program beside kvc: [{operation, seconds, flops, bytes,
    read_bytes_per_second}]; or why it cannot be said."""
    program = os.path.join(os.path.dirname(args.kvc), "device_bench")
    out, error = run([program, "--device", args.device, "--json", *(["--small"] if args.small else [])])
    return [] if error else [json.loads(line) for line in out.splitlines()], error


def peers(args):
    """What PyTorch takes for the like, by the program beside this one: its rows; or why it cannot be said."""
    if not on_cuda(args.device) and not args.small:
        return [], "it is measured on CUDA devices"
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_peers.py")
    out, error = run([args.python, program, "--device", args.device if on_cuda(args.device) else "cpu", "--json",
                      *(["--small"] if args.small else []), *(["--all"] if args.all else [])])
    return [] if error else [json.loads(line) for line in out.splitlines() if line.startswith("{")], error


def peer_rows(report):
    if report.get("peers_error"):
        return ["", f"PyTorch was not measured: {report['peers_error']}"]
    rows = report.get("peers", [])
    lines = ["", f"| {rows[0]['library']} | us | of | what |", "|---|---|---|---|"] if rows else []
    for row in rows:
        took = f"{row['seconds'] * 1e6:.1f} | {row['n']} | {row['what']}" if "seconds" in row else f"{row['error']} | |"
        lines.append(f"| {row['peer']} | {took} |")
    return lines


def operation_rows(report):
    if report.get("operations_error"):
        return ["", f"Single operations were not measured: {report['operations_error']}"]
    lines = ["", "| operation | us | TFLOP/s | GB/s | of what is read |", "|---|---|---|---|---|"]
    for row in report["operations"]:
        seconds, rate = row["seconds"], row["bytes"] / row["seconds"]
        lines.append(f"| {row['operation']} | {seconds * 1e6:.1f} | {row['flops'] / seconds / 1e12:.2f} | "
                     f"{rate / 1e9:.1f} | {100 * rate / row['read_bytes_per_second']:.1f} % |")
    return lines if report["operations"] else []


def table(report):
    """The report for people."""
    device = report["device"]
    lines = [f"# {device['description']}", "", f"Commit {report['commit']}; a large copy moves "
             f"{device['bytes_per_second'] / 1e9:.1f} GB/s, both ways counted."]
    for when in ("before", "after"):
        if report["clocks"].get(when):
            numbers = ", ".join(f"{key} {value}" for key, value in report["clocks"][when].items())
            lines.append(f"{when.capitalize()}: {numbers}.")
    lines += ["", "| model | policy | prompt | prompt tokens/s | compression | steps tokens/s | of the copies |",
              "|---|---|---|---|---|---|---|"]
    for cell in report["cells"]:
        head, got = f"| {cell['model']} | {cell['policy']} | {cell['prompt']} | ", cell["result"]
        if "error" in got:
            lines.append(head + f"{got['error']} | | | |")
            continue
        lines.append(head + f"{got['prefill_tokens_per_second']:.0f} | "
                     f"{100 * got['compress_seconds'] / got['first_token_seconds']:.2f} % | "
                     f"{got['decode_tokens_per_second']:.1f} | {100 * got['bandwidth_fraction']:.1f} % |")
    lines += ["", "| target | what | wanted | value | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {row['id']} | {row['what']} | {row['target']} | {row['value']} | {row['verdict']} |"
              for row in report["targets"]]
    lines += operation_rows(report) + peer_rows(report)
    return "\n".join(lines) + "\n"


def write(report, path):
    report["clocks"]["after"] = clocks()
    report["targets"] = gpu_targets.judge(report)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    with open(os.path.splitext(path)[0] + ".md", "w", encoding="utf-8") as file:
        file.write(table(report))


def options(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--kvc", default="build-gpu/bin/kvc")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gen", type=int, default=64, help="steps of a repetition")
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=PROMPTS)
    parser.add_argument("--small", action="store_true", help="single operations once, over little (tests)")
    parser.add_argument("--python", default="python3", help="the Python that has PyTorch [python3]")
    parser.add_argument("--all", action="store_true", help="a compiled model in PyTorch too, which may take a minute")
    parser.add_argument("--out", default="build-gpu/gpu.json")
    return parser.parse_args(argv)


def main(argv=None):
    args = options(argv)
    device = device_of(args.kvc, args.device)
    report = {"device": device, "commit": commit(), "clocks": {"before": clocks()}, "cells": [], "operations": []}
    failed = 0
    for model in args.models:
        about = json.loads(need([args.kvc, "inspect", model, "--json"]))
        for policy in POLICIES:
            for prompt in args.prompts:
                cell = with_memory(args, model, measure(args, model, about, policy, prompt))
                error = cell["result"].get("error")
                failed += error is not None and "was trained for" not in error
                report["cells"].append(cell)
                write(report, args.out)
                print(f"{cell['model']}  {policy}  prompt {prompt}: {error or 'measured'}", flush=True)
    report["operations"], report["operations_error"] = operations(args)
    failed += report["operations_error"] is not None
    write(report, args.out)
    report["peers"], report["peers_error"] = peers(args)  # no failure: not everybody has PyTorch
    write(report, args.out)
    print(table(report), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

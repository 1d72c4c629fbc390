#!/usr/bin/env python3
"""Speed of the CUDA backend on this machine's GPU: prompts and steps of models at several lengths and policies, as
fractions of what the same device copies in the same run, and the targets they meet; and single operations
(bench/device_bench.cc). Writes one JSON file and one table, after every cell, so that a run that is cut off has what it
measured.

  bench/gpu.py --kvc build-gpu/bin/kvc --out build-gpu/gpu.json MODEL.kvc [MODEL.kvc ...]
"""
import argparse
import json
import os
import subprocess
import sys

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
    lines += operation_rows(report)
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
                cell = measure(args, model, about, policy, prompt)
                error = cell["result"].get("error")
                failed += error is not None and "was trained for" not in error
                report["cells"].append(cell)
                write(report, args.out)
                print(f"{cell['model']}  {policy}  prompt {prompt}: {error or 'measured'}", flush=True)
    report["operations"], report["operations_error"] = operations(args)
    failed += report["operations_error"] is not None
    write(report, args.out)
    print(table(report), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Speed of the CUDA backend on this machine's GPU: prefill and decode of models at several depths and policies,
beside the bandwidth that the same device gives in the same run. Writes one JSON file.

  bench/gpu.py --kvc build-gpu/bin/kvc --out result.json MODEL.kvc [MODEL.kvc ...]
"""
import argparse
import json
import os
import subprocess
import sys

CELLS = [("full", 512), ("full", 4096), ("snapkv:budget=1024", 4096), ("snapkv:budget=1024", 16384)]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, (done.stderr or done.stdout).strip().splitlines()[-1:]
    return done.stdout, None


def gpu_state():
    out, _ = run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
                  "--format=csv,noheader"])
    return (out or "unknown").strip()


def measure(kvc, device, model, policy, prompt, repeat):
    out, error = run([kvc, "bench", model, "--device", device, "--policy", policy, "--prompt", str(prompt),
                      "--gen", "64", "--repeat", str(repeat), "--json"])
    if error is not None:
        return {"error": " ".join(error)}
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--kvc", default="build-gpu/bin/kvc")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", default="build-gpu/gpu.json")
    args = parser.parse_args()
    devices, error = run([args.kvc, "devices", "--json"])
    if error is not None:
        sys.exit(f"kvc devices: {error}")
    report = {"gpu": gpu_state(), "devices": json.loads(devices), "cells": []}
    for model in args.models:
        for policy, prompt in CELLS:
            cell = measure(args.kvc, args.device, model, policy, prompt, args.repeat)
            name = os.path.basename(model)
            report["cells"].append({"model": name, "policy": policy, "prompt": prompt, "result": cell})
            print(f"{name}  {policy}  prompt {prompt}: {cell.get('error') or 'measured'}", flush=True)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    print(f"{args.out}: {len(report['cells'])} cells on {report['gpu']}")
    return 1 if any("error" in cell["result"] for cell in report["cells"]) else 0


if __name__ == "__main__":
    sys.exit(main())

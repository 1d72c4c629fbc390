#!/usr/bin/env python3
"""Runs a scenario runner: run_scenario.py KVC SOURCE COMMAND...

Makes the model `recall` with the program KVC, calls COMMAND MODEL SCENARIO FOLDER, and holds it to having passed as
many steps as the scenario has."""
import glob
import json
import os
import subprocess
import sys
import tempfile


def main():
    kvc, source, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    sys.path.insert(0, os.path.join(source, "bench"))
    from exact_kernels import keep_activations

    keep_activations(kvc)  # what the scenario expects was computed with activations in f32
    scenario = os.path.join(source, "tests", "bindings", "scenario.json")
    with tempfile.TemporaryDirectory(prefix="kvc-scenario-") as folder:
        model, empty = os.path.join(folder, "recall.kvc"), os.path.join(folder, "empty")
        os.mkdir(empty)
        recall = os.path.join(source, "models", "recall")
        tables = [os.path.join(recall, "head_scores.json"), *sorted(glob.glob(f"{recall}/scores/*.json"))]
        subprocess.run([kvc, "convert", recall, model, *(f"--head-scores={t}" for t in tables)], check=True,
                       stdout=subprocess.DEVNULL)
        done = subprocess.run([*command, model, scenario, empty], stdout=subprocess.PIPE, text=True, encoding="utf-8")
        last = done.stdout.strip().splitlines()[-1:] or [""]
        with open(scenario, encoding="utf-8") as file:
            wanted = f"{len(json.load(file))} steps passed"
        print(done.stdout, end="")
        if done.returncode != 0 or last[0] != wanted:
            sys.exit(f"the runner ended with {done.returncode} and '{last[0]}', not '{wanted}'")


main()

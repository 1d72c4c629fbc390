#!/usr/bin/env python3
"""docs/first-hour.md as a reader would follow it, on a small model: first_hour_test.py CMAKE BUILD SOURCE CONFIG

Installs the build into a temporary folder, makes `my-model` (recall, as if it had been trained on turns), `book.txt`
and `questions.jsonl`, writes the C block to ask.c, and runs the sh blocks, one shell after the other."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

WORDS = ["is good", "agreement:", "95 % interval", "bytes of cache"]  # of the commands' output, whatever the model says


def prepare(source, folder):
    shutil.copytree(os.path.join(source, "models", "recall"), os.path.join(folder, "my-model"))
    config = os.path.join(folder, "my-model", "tokenizer_config.json")
    with open(config, encoding="utf-8") as file:
        settings = json.load(file)
    with open(os.path.join(source, "tests", "data", "templates", "chatml.jinja"), encoding="utf-8") as file:
        settings["chat_template"] = file.read()
    with open(config, "w", encoding="utf-8") as file:
        json.dump(settings, file)
    with open(os.path.join(source, "samples", "data", "recall_demo.jsonl"), encoding="utf-8") as file:
        lines = [file.readline() for _ in range(2)]
    with open(os.path.join(folder, "questions.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(lines)
    with open(os.path.join(folder, "book.txt"), "w", encoding="utf-8") as file:
        file.write(json.loads(lines[0])["context"])


def main():
    cmake, build, source, config = sys.argv[1:5]
    with open(os.path.join(source, "docs", "first-hour.md"), encoding="utf-8") as file:
        page = file.read()
    blocks = re.findall(r"^```(sh|c)\n(.*?)^```", page, re.M | re.S)
    shells = [text for kind, text in blocks if kind == "sh"]
    programs = [text for kind, text in blocks if kind == "c"]
    assert len(shells) >= 6 and len(programs) == 1, "the page has lost its commands"
    output = ""
    with tempfile.TemporaryDirectory(prefix="kvc-first-hour-") as folder:
        prefix = os.path.join(folder, "kvc")
        subprocess.run([cmake, "--install", build, "--prefix", prefix, "--config", config], check=True,
                       stdout=subprocess.DEVNULL)
        prepare(source, folder)
        with open(os.path.join(folder, "ask.c"), "w", encoding="utf-8") as file:
            file.write(programs[0])
        lib = next(os.path.join(root) for root, _, files in os.walk(prefix) if "libkvc.so" in files)
        env = dict(os.environ, PATH=f"{prefix}/bin:{os.environ['PATH']}", LD_LIBRARY_PATH=lib,
                   PKG_CONFIG_PATH=f"{lib}/pkgconfig")
        for script in shells:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=env, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(f"$ {script}{done.stdout}")
            if done.returncode != 0:
                sys.exit(f"a command of docs/first-hour.md ended with {done.returncode}")
            output += done.stdout
    missing = [word for word in WORDS if word not in output]
    if missing:
        sys.exit(f"the output lacks {missing}")


main()

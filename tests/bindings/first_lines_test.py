#!/usr/bin/env python3
"""Runs the first program of a language's document as a reader would: it becomes a file in a folder that has recall.kvc.
first_lines_test.py DOCUMENT FENCE FILE EXPECTED COMMAND..., each COMMAND one argument; EXPECTED is the whole output."""
import os
import re
import shlex
import subprocess
import sys
import tempfile


def main():
    document, fence, name, expected, *commands = sys.argv[1:]
    with open(os.path.join(os.environ["KVC_SOURCE"], document), encoding="utf-8") as file:
        block = re.search(rf"^```{fence}\n(.*?)^```", file.read(), re.M | re.S)
    if not block:
        sys.exit(f"{document}: no block of {fence}")
    with tempfile.TemporaryDirectory(prefix="kvc-first-lines-") as folder:
        os.symlink(os.environ["KVC_RECALL"], os.path.join(folder, "recall.kvc"))
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(block.group(1))
        for command in commands:
            done = subprocess.run(shlex.split(command), cwd=folder, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                                  check=True)
    if done.stdout != expected:
        sys.exit(f"{document}: wanted {expected!r}, got {done.stdout!r}")
    print(f"{document}: {done.stdout}")


main()

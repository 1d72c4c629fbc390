#!/usr/bin/env python3
"""That a binding does not copy weights: opening a file that is packed for this processor takes no more anonymous memory
through it than through C. opening_test.py KVC_TOOL OPENING_C COMMAND...

The programs, opening_c and COMMAND, open a model nine times and print by how much the eight beyond the first made the
anonymous memory of the process grow, and the bytes of the weights. What a runtime takes meanwhile for its own ends is
a matter of its version, so it may be as much as a quarter of the weights of one of the eight. The same file not packed
is copied by the library itself, which the measure has to see."""
import os
import subprocess
import sys
import tempfile

SOURCE = os.environ["KVC_SOURCE"]
AGAIN = 8


def main():
    tool, opening_c, *command = sys.argv[1:]
    grown = {}
    with tempfile.TemporaryDirectory() as folder:
        for pack in ("native", "none"):
            path = os.path.join(folder, pack + ".kvc")
            subprocess.run([tool, "convert", os.path.join(SOURCE, "models", "recall"), path, "--pack", pack],
                           stdout=subprocess.DEVNULL, check=True)
            for name, program in (("c", [opening_c]), ("binding", command)):
                done = subprocess.run([*program, path], stdout=subprocess.PIPE, text=True, check=True)
                grown[name, pack], weights = map(int, done.stdout.split())
                print(f"{name}, {pack}: {grown[name, pack]} bytes for {AGAIN} models of {weights}")
    more = grown["binding", "native"] - grown["c", "native"]
    problems = []
    if more > weights // 4:
        problems.append(f"{more} bytes more than in C")
    if grown["c", "native"] > weights // 4:
        problems.append("C copies weights")
    if any(grown[name, "none"] < (AGAIN - 1) * weights for name in ("c", "binding")):
        problems.append("what the library copies is not seen")
    sys.exit("\n".join(problems) or 0)


main()

#!/usr/bin/env python3
"""Compares what the library offers, functions and the structs they take, with tests/abi/baseline.xml, by abidiff. New
functions pass; whatever else differs fails until the baseline is made anew, which is a decision (docs/packages.md,
ABI).

Usage: abi_diff.py LIBRARY_WITH_DEBUG_INFO HEADER_FOLDER BASELINE [--update]     exit code 77: no abidiff here"""
import re
import shlex
import shutil
import subprocess
import sys

DIFFERS, BREAKS = 4, 8  # bits of abidiff's exit code; 1 and 2: it did not work


def main():
    library, headers, baseline = sys.argv[1:4]
    if not shutil.which("abidiff") or not shutil.which("abidw"):
        print("abidiff is not installed (Debian: abigail-tools)")
        return 77
    if "--update" in sys.argv:
        subprocess.run(["abidw", "--exported-interfaces-only", "--headers-dir", headers, "--drop-private-types",
                        "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed",
                        "--out-file", baseline, library], check=True)
        return 0
    # Not with --headers-dir2: it takes types without a place for private ones, and the baseline holds no places.
    done = subprocess.run(["abidiff", "--exported-interfaces-only", "--no-added-syms", baseline, library],
                          capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr)
    if done.returncode & 3:
        return 1
    changed = re.search(r"Functions changes summary: (\d+) Removed, (\d+) Changed", done.stdout)
    if done.returncode & BREAKS:
        print("the library breaks programs that were compiled with the header of the baseline")
    elif not done.returncode & DIFFERS or changed and changed.group(1, 2) == ("0", "0"):
        return 0
    print("where that is decided, the baseline is made anew by:\n  " +
          shlex.join(["python3", *sys.argv[:4], "--update"]))
    return 1


if __name__ == "__main__":
    sys.exit(main())

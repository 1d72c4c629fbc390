#!/usr/bin/env python3
"""Where Python's packages have cuBLASLt, as PyTorch brings it: what ./dev gpu hands to libkvc as KVC_CUBLASLT, newest
first, those that the loader may know by name in front of a package's. Nothing where no package has one: libkvc looks
for the names itself."""

import glob
import os
import subprocess
import sys

VERSIONS = (13, 12)  # as cuda/blas.cc looks for them
WITH_PYTORCH = "python3"  # as bench/gpu.py starts it; in a virtual environment not the Python of this script


def folders_of(python):
    """Of the packages of a Python."""
    try:
        shown = subprocess.run([python, "-c", r"import sys; print('\n'.join(sys.path))"], capture_output=True,
                               text=True, check=False).stdout
    except OSError:
        return []
    return [folder for folder in shown.splitlines() if folder]


def candidates(folders):
    """Files in these folders of packages, and names."""
    found, there = [], False
    for version in VERSIONS:
        name = f"libcublasLt.so.{version}"
        files = [path for folder in folders
                 for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", name)))]
        found += [name, *dict.fromkeys(files)]
        there = there or bool(files)
    return found if there else []


if __name__ == "__main__":
    print(":".join(candidates(folders_of(WITH_PYTORCH) + sys.path)))

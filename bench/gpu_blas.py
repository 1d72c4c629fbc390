#!/usr/bin/env python3
"""Where this Python's packages have cuBLASLt, as PyTorch brings it, on a machine that has none by name; nothing where
there is none, or where the loader finds one itself. ./dev gpu hands it to libkvc as KVC_CUBLASLT."""

import glob
import os
import subprocess
import sys

VERSIONS = (13, 12)  # as cuda/blas.cc looks for them


def known_by_name():
    """Whether the loader knows one."""
    try:
        shown = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any(f"libcublasLt.so.{version} " in shown or
               any(os.path.exists(os.path.join(folder, f"libcublasLt.so.{version}")) for folder in folders)
               for version in VERSIONS)


def of_packages(folders):
    """The newest in these folders of packages, or None."""
    for version in VERSIONS:
        for folder in folders:
            pattern = os.path.join(glob.escape(folder), "nvidia", "*", "lib", f"libcublasLt.so.{version}")
            found = sorted(glob.glob(pattern))
            if found:
                return found[-1]
    return None


if __name__ == "__main__":
    path = None if known_by_name() else of_packages(sys.path)
    if path is not None:
        print(path)

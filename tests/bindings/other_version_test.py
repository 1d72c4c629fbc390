#!/usr/bin/env python3
"""A program meets a libkvc of another version, and says so before it does anything with it.
other_version_test.py LIBRARY COMMAND...: LIBRARY has a kvc_version of its own and is loaded first."""
import os
import subprocess
import sys


def main():
    library, *command = sys.argv[1:]
    done = subprocess.run(command, env=dict(os.environ, LD_PRELOAD=library), capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL)
    print(done.stdout, done.stderr)
    if done.returncode in (0, -11) or "99.0" not in done.stderr or "built for libkvc" not in done.stderr:
        sys.exit(f"it ended with {done.returncode}")


main()

#!/usr/bin/env python3
"""gofmt and go vet over folders: style.py GO FOLDER... The flat layer comes from SWIG, which formats in its own way."""
import os
import subprocess
import sys


def main():
    go, *folders = sys.argv[1:]
    gofmt = os.path.join(os.path.dirname(os.path.realpath(go)), "gofmt")
    wrong = 0
    for folder in folders:
        listed = subprocess.run([gofmt, "-l", "."], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
        unformatted = [name for name in listed.split() if name != "internal/flat/flat.go"]
        if unformatted:
            print(f"{folder}: run gofmt over {' '.join(unformatted)}")
        vetted = subprocess.run([go, "vet", "./..."], cwd=folder, check=False).returncode == 0
        wrong += bool(unformatted) + (not vetted)
    print(f"{len(folders)} folders, {wrong} problems")
    sys.exit(wrong)


main()

#!/usr/bin/env python3
"""Our C and C++ sources are as clang-format 14 lays them out; skipped where that is not installed.
Usage: check_format.py [--fix | --list] [SOURCE_DIR]: writes them anew; names them."""
import os
import re
import shutil
import subprocess
import sys

FOLDERS = ("lib", "include", "models", "tools", "samples", "tests", "bench", "bindings", "cuda")
SUFFIXES = (".h", ".hpp", ".cc", ".c", ".cu")
BY_HAND = ("include/kvc/kvc.h",)  # a hand-set table that the formatter would take apart
VERSION = 14  # another one lays out other lines


def sources(root):
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), root)
                if name.endswith(SUFFIXES) and path not in BY_HAND and not os.path.islink(os.path.join(root, path)):
                    yield path


def formatter():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path is not None:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if re.search(rf"version {VERSION}\.", said):
                return path
    return None


def run(root, program, options, paths):
    """As many at once as there are processors; what they say."""
    n = os.cpu_count() or 1
    parts = [paths[i::n] for i in range(n) if paths[i::n]]
    running = [subprocess.Popen([program, *options, *part], cwd=root, stderr=subprocess.PIPE, text=True)
               for part in parts]
    return [(process.communicate()[1], process.returncode) for process in running]


def main():
    arguments = sys.argv[1:]
    mode = arguments.pop(0) if arguments and arguments[0].startswith("--") else ""
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    paths = sorted(sources(root))
    if mode == "--list":
        print("\n".join(paths))
        return 0
    program = formatter()
    if program is None:
        print(f"skipped: clang-format {VERSION} was not found")
        return 1 if mode else 0
    done = run(root, program, ["-i"] if mode == "--fix" else ["--dry-run", "--Werror"], paths)
    wrong = set()
    for text, code in done:
        found = {line.split(":")[0] for line in text.split("\n") if "error:" in line}
        if code != 0 and not found:
            print(text)
            return 1
        wrong |= found
    for path in sorted(wrong):
        print(f"{path}: clang-format lays it out otherwise: ./dev format")
    print(f"format: {len(paths)} files, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Every file we write: length, width, length of functions, no leftovers, no path of a machine, plain ends of lines.
Usage: check_files.py [SOURCE_DIR]"""
import os
import re
import subprocess
import sys

MAX_LINES, MAX_COLUMNS, MAX_FUNCTION = 600, 120, 80
CODE = (".h", ".cc", ".c", ".cpp", ".cu", ".cuh", ".inl", ".py", ".sh", ".cmake", ".fbs", ".i", ".java", ".cs", ".go")
TEXT = CODE + (".md", ".txt", ".json", ".in", ".list", ".map", ".yml")
NAMES = ("dev", "run", "CMakeLists.txt", "NOTICE")
# What stands below these folders is data or comes from elsewhere.
DATA = ("tests/data/", "tests/vectors/tokenizer_strings.py", "models/recall/", "models/relate/tokenizer",
        "models/join/tokenizer", "models/stories260k/", "LICENSE")
LEFTOVERS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE = re.compile(r"(^|[\s\"'=(:])/(work|root|home)/")


def our_files(root):
    """What git tracks or would add; every file when this is no checkout."""
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f != ".git" and not f.startswith("build")]
            listed += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(path for path in listed if path and os.path.isfile(os.path.join(root, path)))


def long_functions(path, lines):
    """Formatted C++ starts a function and ends it in the first column."""
    start = None
    for number, line in enumerate(lines, 1):
        starts = re.match(r"[A-Za-z~].*[^=] \{$", line)  # and no table of data
        if starts and not re.match(r"(namespace|class|struct|union|enum|extern)\b", line):
            start = number
        elif line.startswith("}") and start is not None:
            if number - start + 1 > MAX_FUNCTION:
                yield f"{path}:{start}: function of {number - start + 1} lines, at most {MAX_FUNCTION}"
            start = None


def check(root, path):
    is_code = path.endswith(CODE) or os.path.basename(path) in NAMES
    with open(os.path.join(root, path), "rb") as file:
        data = file.read()
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return [f"{path}: not UTF-8"]
    problems = []
    if lines[-1] != "":
        problems.append(f"{path}: the last line has no end")
    if is_code and len(lines) - 1 > MAX_LINES:
        problems.append(f"{path}: {len(lines) - 1} lines, at most {MAX_LINES}")
    if path.endswith((".cc", ".c", ".h", ".cu")):
        problems += long_functions(path, lines)
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        if is_code and len(line) > MAX_COLUMNS:
            problems.append(f"{place}: {len(line)} columns, at most {MAX_COLUMNS}")
        if line.endswith("\r") or line.endswith((" ", "\t")) and is_code:
            problems.append(f"{place}: white space at the end")
        if is_code and "\t" in line and not path.endswith(".go"):
            problems.append(f"{place}: tabulator")
        if LEFTOVERS.search(line):
            problems.append(f"{place}: leftover word {LEFTOVERS.search(line).group(0)}")
        if MACHINE.search(line):
            problems.append(f"{place}: path of one machine")
    return problems


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    n_files, problems = 0, []
    for path in our_files(root):
        if path.startswith(DATA) or not (path.endswith(TEXT) or os.path.basename(path) in NAMES):
            continue
        n_files += 1
        problems += check(root, path)
    for problem in problems:
        print(problem)
    print(f"files: {n_files} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

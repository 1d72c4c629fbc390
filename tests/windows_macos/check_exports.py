#!/usr/bin/env python3
"""kvc.dll or libkvc.dylib exports the functions of tests/abi/symbols.txt and nothing else, needs libraries of the
system only, and the archive defines the same functions and marks none of them as exported."""
import argparse
import re
import subprocess
import sys

# Windows: the C library (UCRT) and what every process has. macOS: the system's one library.
SYSTEM = re.compile(r"(api-ms-win-crt-[a-z]+-l1-1-0|kernel32|ntdll|advapi32|ucrtbase)\.dll|"
                    r"/usr/lib/libSystem\.B\.dylib", re.I)

# What Zig's linker for macOS cannot hide: the operators new and delete, weak, and its own marks.
WEAK = re.compile(r"_Zn[aw]m.*|_Zd[al]Pv.*|__dso_handle|_mh_dylib_header")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def of_dll(args):
    exports = re.findall(r"^\s*Name: (\S+)$", run(args.readobj, "--coff-exports", args.library), re.M)
    imports = re.findall(r"Import \{\s*Name: (\S+)", run(args.readobj, "--coff-imports", args.library))
    return set(exports), imports


def of_dylib(args):
    listed = run(args.nm, "-gU", args.library).splitlines()
    needed = run(args.readobj, "--needed-libs", args.library).split("[")[1].split("]")[0].split()
    names = {line.split()[-1].removeprefix("_") for line in listed if line.strip()}
    return {name for name in names if not WEAK.fullmatch(name)}, [n for n in needed if n != "@rpath/libkvc.0.dylib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--nm", "--readobj", "--library", "--archive", "--expected"):
        parser.add_argument(option, required=True)
    args = parser.parse_args()
    with open(args.expected, encoding="utf-8") as file:
        expected = set(file.read().split())
    dll = args.library.endswith(".dll")
    exported, needed = of_dll(args) if dll else of_dylib(args)
    problems = [f"{name}: not exported" for name in sorted(expected - exported)]
    problems += [f"{name}: exported" for name in sorted(exported - expected)]
    problems += [f"needs {name}" for name in needed if not SYSTEM.fullmatch(name)]
    listed = subprocess.run([args.nm, "-g", "--defined-only", args.archive], check=False, capture_output=True,
                            text=True).stdout.split()
    defined = {name if dll else name.removeprefix("_") for name in listed}
    problems += [f"{name}: not in the archive" for name in sorted(expected - defined)]
    if dll and "-export:" in run(args.readobj, "--string-dump=.drectve", args.archive).lower():
        problems.append("functions of the archive are marked as exported")
    for problem in problems:
        print(problem)
    print(f"{len(exported)} functions exported, needs {', '.join(needed)}; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

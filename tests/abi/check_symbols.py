#!/usr/bin/env python3
"""The functions of the header, tests/abi/symbols.txt and the exports of libkvc.so are the same set, each export has the
version KVC_0, and the library needs nothing but the C library when everything else is linked into it."""
import argparse
import re
import subprocess
import sys

# What a device has: the C library, its parts, the loader.
DEVICE_LIBRARIES = re.compile(r"^(libc|libm|libdl|libpthread|ld-linux[^.]*|linux-vdso)\.so(\.\d+)?$")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare(name_a, a, name_b, b):
    problems = [f"{s}: in {name_a}, not in {name_b}" for s in sorted(a - b)]
    return problems + [f"{s}: in {name_b}, not in {name_a}" for s in sorted(b - a)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--nm", "--readelf", "--library", "--header", "--expected"):
        parser.add_argument(option, required=True)
    parser.add_argument("--bundled", action="store_true", help="everything but the C library is inside")
    args = parser.parse_args()

    with open(args.header, encoding="utf-8") as file:
        declared = set(re.findall(r"^KVC_API [^;(]*?(kvc_\w+)\s*\(", file.read(), re.M))
    with open(args.expected, encoding="utf-8") as file:
        expected = set(file.read().split())
    names = [line.split()[-1] for line in run(args.nm, "-D", "--defined-only", args.library).splitlines()]
    names.remove("KVC_0")  # the version itself
    exported = {name.split("@")[0] for name in names}

    problems = compare("kvc.h", declared, "symbols.txt", expected)
    problems += compare("symbols.txt", expected, "the exports of libkvc.so", exported)
    problems += [f"{name}: not of version KVC_0" for name in names if not name.endswith("@@KVC_0")]
    if args.bundled:
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run(args.readelf, "-d", args.library))
        problems += [f"libkvc.so needs {name}" for name in needed if not DEVICE_LIBRARIES.match(name)]
    for problem in problems:
        print(problem)
    print(f"{len(exported)} functions exported, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

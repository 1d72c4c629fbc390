#!/usr/bin/env python3
"""What every shipped ELF file keeps to: a library exports kvc_* only, or what its VM looks for, and needs the C library
only (a module of Python libkvc.so.0 too); nobody needs a newer glibc than promised; every segment is aligned to 16 KB
pages where the file is a library; no stack that can be executed.

Usage: check_elf.py FOLDER_OR_FILE [GLIBC]    for example: check_elf.py out/tree 2.28"""
import os
import re
import subprocess
import sys

# The C library, its parts, the loader.
C_LIBRARY = re.compile(r"^(libc|libm|libdl|libpthread|librt|ld-linux[^.]*|liblog)\.so(\.\d+)?$")
PAGE = 16384
# Libraries that a VM loads: the beginning of their name, of the names they export, what else they need.
MODULES = [("libkvc_jni.", "Java_dev_kvc_", ""), ("libkvc_csharp.", "CSharp_", ""),
           ("_flat.", "PyInit_", "libkvc.so.0")]


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True).stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def check_floor(path, floor):
    for name, major, minor in re.findall(r"(\S+)@+GLIBC_(\d+)\.(\d+)", readelf("--dyn-syms", path)):
        if (int(major), int(minor)) > floor:
            yield f"{path}: {name} needs glibc {major}.{minor}, promised is {floor[0]}.{floor[1]}"


def check_segments(path, page):
    for line in readelf("-l", path).splitlines():
        fields = line.split()
        if fields[:1] == ["LOAD"] and int(fields[-1], 16) % page:
            yield f"{path}: a segment is aligned to {fields[-1]}, not to {page:#x}"
        if fields[:1] == ["GNU_STACK"] and "E" in "".join(fields[6:-1]):
            yield f"{path}: its stack can be executed"


def module(path):
    """What path exports and needs besides the C library."""
    name = os.path.basename(path)
    return next(((prefix, needs) for start, prefix, needs in MODULES if name.startswith(start)), ("kvc_", ""))


def check_exports(path):
    prefix, _ = module(path)
    for line in readelf("--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0][:-1].isdigit() or fields[6] == "UND" or fields[4] == "LOCAL":
            continue
        name = fields[7].split("@")[0]
        if not name.startswith(prefix) and name != "KVC_0":
            yield f"{path}: exports {name}"


def check_file(path, floor=None):
    problems = []
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", path))
    problems += [f"{path}: needs {name}" for name in needed
                 if not C_LIBRARY.match(name) and name != module(path)[1]]
    is_library = ".so" in os.path.basename(path)
    problems += check_segments(path, PAGE if is_library else 4096)
    if is_library:
        problems += check_exports(path)
    if floor:
        problems += check_floor(path, floor)
    return problems


def check_tree(folder, floor=None):
    problems, n_files = [], 0
    paths = [os.path.realpath(folder)] if os.path.isfile(folder) else [
        os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    for path in sorted(paths):
        if os.path.islink(path) or not os.path.isfile(path) or not is_elf(path) or path.endswith(".o"):
            continue
        n_files += 1
        problems += check_file(path, floor)
    if not n_files:
        problems.append(f"{folder}: no ELF file")
    return problems


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    floor = tuple(int(n) for n in sys.argv[2].split(".")) if len(sys.argv) > 2 else None
    problems = check_tree(sys.argv[1], floor)
    for problem in problems:
        print(problem)
    print(f"elf: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

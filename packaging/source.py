"""All of the library as plain files, for build systems that are not CMake (a Rust -sys crate, Bazel, a vendored
copy):

  sources.json   every file to compile with its language, definitions and flags, by processor where they differ (a
                 compiler that does not know these compiles the file without them: it is an empty table then);
                 "system" is posix or windows where a file is for one of them
  build.sh       the same as a loop over cc and c++: libkvc.a
  include/, lib/, generated/, third_party/, samples/c/"""
import json
import os
import re
import shutil
import subprocess
import sys

import archive
import package
import sbom

COMMON = ["-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"]
OURS = [*COMMON, "-std=c++17", "-fvisibility-inlines-hidden", "-fno-rtti", "-ffp-contract=off"]
INCLUDES = [".", "include", "generated", "third_party/include"]
BUILD = """\
#!/bin/sh
# Compiles sources.json into libkvc.a: the same as a loop over cc and c++. Usage: build.sh [OUT_FOLDER] CC, CXX, AR
# and the processor (KVC_PROCESSOR, as uname -m says it) may be set. A program that links the archive needs the C++
# runtime, libm and threads: c++ main.o libkvc.a -lm -lpthread
set -eu
cd "$(dirname "$0")"
out=${1:-build}
mkdir -p "$out"
rm -f "$out"/*.o
knows() {  # the compiler these flags
  ${CXX:-c++} "$@" -x c++ -c /dev/null -o "$out/knows.o" 2>/dev/null && rm "$out/knows.o"
}
@COMMANDS@
${AR:-ar} rcs "$out/libkvc.a" "$out"/*.o
"""


def flags_of(processor):
    """From the lists that the CMake build reads."""
    done = subprocess.run(["cmake", f"-DCMAKE_SYSTEM_PROCESSOR={processor}", "-P",
                           os.path.join(package.ROOT, "packaging/source_flags.cmake")],
                          capture_output=True, text=True, check=True)
    lines = [line.split(" ", 2) for line in (done.stderr + done.stdout).splitlines() if line.count(" ") >= 2]
    isa = {name: flags.split() for kind, name, flags in lines if kind == "isa"}
    # Only GCC knows these.
    isa = {name: [flag for flag in flags if not flag.startswith("-Wno")] for name, flags in isa.items()}
    return isa, [(kind, name, value) for kind, name, value in lines if kind != "isa"]


def gather(folder):
    """Copies everything; returns the rows of sources.json."""
    for path in package.run("git", "-C", package.ROOT, "ls-files", "include", "lib", "samples/c").split():
        if path.endswith((".h", ".cc", ".c", ".list", ".map", ".hpp")):
            target = os.path.join(folder, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(os.path.join(package.ROOT, path), target)
    shutil.copytree(package.THIRD_PARTY, os.path.join(folder, "third_party"),
                    ignore=shutil.ignore_patterns("original", "made_by"))
    for unused in ("CLI", "nlohmann"):
        shutil.rmtree(os.path.join(folder, "third_party/include", unused))
    generated = os.path.join(folder, "generated")
    package.run("flatc", "--cpp", "--cpp-std", "c++17", "--scoped-enums", "-o", generated,
                os.path.join(package.ROOT, "models/kvc_model.fbs"))
    isa = {processor: flags_of(processor)[0] for processor in ("x86_64", "aarch64")}
    rows = []
    for place, folders, names in os.walk(os.path.join(folder, "lib")):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(".cc"):
                continue
            row = {"file": os.path.relpath(os.path.join(place, name), folder), "language": "c++", "flags": OURS,
                   "define": ["KVC_BUILDING", "PCRE2_STATIC", "UTF8PROC_STATIC"]}
            extra = {processor: flags[name] for processor, flags in isa.items() if name in flags}
            if extra:
                row["flags_by_processor"] = extra
            if name.endswith("_windows.cc"):
                row["system"] = "windows"
            elif name.replace(".cc", "_windows.cc") in names:
                row["system"] = "posix"
            rows.append(row)
    third = flags_of("x86_64")[1]
    for library in ("pcre2", "utf8proc"):
        defines = [value for kind, name, value in third if (kind, name) == ("define", library)]
        rows += [{"file": f"third_party/{value}", "language": "c", "flags": COMMON, "define": defines}
                 for kind, name, value in third if (kind, name) == ("source", library)]
    return rows


def shell(rows):
    """Lines of build.sh."""
    lines = ['processor=${KVC_PROCESSOR:-$(uname -m)}']
    for row in rows:
        if row.get("system") == "windows":
            continue
        compiler = "${CXX:-c++}" if row["language"] == "c++" else "${CC:-cc}"
        words = [compiler, *row["flags"], *("-D" + d for d in row["define"]), *("-I" + i for i in INCLUDES)]
        target = re.sub(r"[/.]", "_", row["file"]) + ".o"
        extra = ""
        if "flags_by_processor" in row:
            lines.append('extra=')
            for processor, flags in row["flags_by_processor"].items():
                lines.append(f'[ "$processor" != {processor} ] || extra="{" ".join(flags)}"')
            lines.append('knows $extra || extra=')
            extra = " $extra"
        lines.append(f'{" ".join(words)}{extra} -c {row["file"]} -o "$out/{target}"')
    return "\n".join(lines)


def make():
    name = f"libkvc-{package.version()}-source"
    folder = package.stage_folder("source")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    rows = gather(folder)
    if len(rows) < 50:
        sys.exit("source.py: sources are missing")
    with open(os.path.join(folder, "sources.json"), "w", encoding="utf-8") as file:
        json.dump({"version": package.version(), "include": INCLUDES, "link": ["m", "pthread"], "sources": rows}, file,
                  indent=1)
        file.write("\n")
    script = os.path.join(folder, "build.sh")
    with open(script, "w", encoding="utf-8") as file:
        file.write(BUILD.replace("@COMMANDS@", shell(rows)))
    os.chmod(script, 0o755)
    for place, _, names in os.walk(folder):  # who unpacks it may read it
        for entry in names:
            os.chmod(os.path.join(place, entry), 0o755 if entry == "build.sh" else 0o644)
    sbom.write(folder, "libkvc-source", package.version(), folder, package.THIRD_PARTY)
    return package.write(f"{name}.tar.gz", folder, name)


if __name__ == "__main__":
    make()
    print(len(archive.names_below(package.stage_folder("source"))), "files")

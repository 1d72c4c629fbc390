#!/usr/bin/env python3
"""Reads every #include of ours against the table of layers: includes point downward only, by full path, and a library
is included only where it belongs. And every name: no file of lib/ but a method's own names that method, and no device
names an architecture. Usage: check_layers.py [SOURCE_DIR]"""
import os
import re
import sys

# Folder -> what it may include besides itself; the longest matching folder counts. "lib/ops/*.h" is the op interface.
BASE = ["include/kvc", "lib/base"]
OPS = BASE + ["lib/ops/*.h"]  # the device interface
LAYERS = {
    "include/kvc": [],
    "lib/base": ["include/kvc"],
    "lib/ops": BASE + ["lib/ops/ref/*.h"],
    "lib/ops/ref": OPS + ["lib/ops/cpu/kernel_table.h"],
    "lib/ops/cpu": OPS + ["lib/ops/ref/*.h"],  # shapes without a fast version go to the definition
    "lib/cache": OPS,
    "lib/compress": OPS + ["lib/cache"],
    "lib/model": OPS + ["lib/cache"],
    "lib/engine": OPS + ["lib/cache", "lib/compress", "lib/model"],
    "lib/api": OPS + ["lib/cache", "lib/compress", "lib/model", "lib/engine"],
    "models/convert": OPS + ["lib/model", "lib/engine/cache_plan.h"],
    "tools": ["include/kvc", "models/convert"],
    "samples": ["include/kvc"],
    "bindings": ["include/kvc"],
    "cuda": OPS,
    "bench": ["include/kvc"] + OPS + ["lib/cache", "lib/model", "lib/ops/cpu/*.h", "models/convert", "tests/parity",
                                      "tests/support"],
    "tests/api": ["include/kvc", "tests/support"],
    "tests/package": ["include/kvc"],
    "tests/emu": OPS + ["lib/ops/cpu/*.h", "lib/engine", "cuda", "tests/method", "tests/support"],
    # One file of kernels is compiled again there, for the encoding of another instruction set.
    "tests/parity": OPS + ["lib/ops/cpu/*.h", "lib/ops/cpu/*isa_avxvnni.cc", "lib/ops/ref/*.h", "tests/support"],
    "tests": ["include/kvc", "lib", "models/convert", "tests/parity", "tools"],
}
# Single files that may include one more: the list of devices, which makes the processor's and asks for its layout.
FILES = {"lib/ops/devices.cc": ["lib/ops/cpu/cpu_device.h"]}
# Library headers -> where they may be included.
LIBRARIES = {
    r"flatbuffers/|kvc_model_generated\.h": r"lib/model/model_file[^/]*|models/convert/[^/]*|tests/.*",
    r"nlohmann/": r"models/convert/[^/]*|tools/.*|bench/.*|tests/.*",
    r"CLI/": r"tools/.*|bench/.*",
    r"pcre2\.h|utf8proc\.h": r"lib/model/[^/]*|tests/package/unicode\.c",
    r"xxhash\.h": r"lib/base/hash\.cc|tools/.*",
    r"jni\.h": r"bindings/java/.*",
    r"cuda(_|\.h|d)|cublas": r"(cuda|tests/emu)/.*",
    r"boost/": r"tests/emu/.*",
    r"gtest/|gmock/": r"tests/.*",
}
SUFFIXES = (".h", ".cc", ".c", ".cpp", ".inl", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    return max((f for f in LAYERS if path.startswith(f + "/")), key=len, default=None)


def allowed(path, target):
    own = layer_of(path)
    if os.path.dirname(target) == os.path.dirname(path) or target.startswith(own + "/") and layer_of(target) == own:
        return True
    for rule in LAYERS[own] + FILES.get(path, []):
        folder, _, pattern = rule.partition("/*")
        if rule.endswith(".h") and not pattern:
            if target == rule:
                return True
        elif pattern:
            if os.path.dirname(target) == folder and target.endswith(pattern):
                return True
        elif target.startswith(folder + "/"):
            return True
    return False


def check_include(root, path, kind, name):
    for pattern, places in LIBRARIES.items():
        if re.match(pattern, name) and not re.fullmatch(places, path):
            return f"<{name}> is not for this folder"
    target = f"include/{name}" if name.startswith("kvc/") else name
    if layer_of(target) is None:
        if kind == '"' and not re.match(r".*_generated\.h$", name):
            return f'"{name}": our files are included by their full path, libraries as <...>'
        return None
    if not os.path.exists(os.path.join(root, target)):
        return f'"{name}" does not exist'
    if not allowed(path, target):
        return f'"{name}": {layer_of(path)} may not include {layer_of(target)}'
    return None


# Parts of lib/ that may name compression methods: their own files, and the lists of them.
METHOD_FILES = re.compile(r"lib/compress/((methods|scorers|allocators|reducers)(/|\.h|\.list)|options\.list)")
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)


ROWS = {"methods": r"\bconstexpr Method (k\w+) =", "scorers": r"\bextern const Scorer (k\w+) =",
        "allocators": r"\bconstexpr Allocator (k\w+) =", "reducers": r"\bconstexpr Reducer (k\w+) ="}


def method_names(root, problems):
    """The methods, and the rows of their parts, that code outside their own files must not ask for: those of the lists,
    each found in a file below its folder."""
    rows = set()
    for part, pattern in ROWS.items():
        folder = os.path.join(root, "lib/compress", part)
        found = set()
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found |= set(re.findall(pattern, file.read()))
        with open(folder + ".list", encoding="utf-8") as file:
            listed = set(re.findall(r"^KVC_\w+\((k\w+)\)", file.read(), re.M))
        if not listed:
            problems.append(f"lib/compress/{part}.list: no rows")
        problems += [f"lib/compress/{part}: no row {name}, which the list has" for name in sorted(listed - found)]
        problems += [f"lib/compress/{part}: {name} is in no list" for name in sorted(found - listed)]
        rows |= found
    return rows


def check_names(path, text, rows):
    if not path.startswith("lib/") or METHOD_FILES.match(path):
        return
    code = STRING_OR_COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    for n, line in enumerate(code.split("\n"), 1):
        for name in re.findall(r"\bk[A-Z]\w*", line):
            if name in rows:
                yield f"{path}:{n}: {name}: only a method's own files, and the lists, name it"
    if re.match(r"lib/ops/(cpu|ref)/|cuda/", path) and re.search(r"llama|qwen|gemma|mistral|phi\d", code, re.I):
        yield f"{path}: a device names an architecture"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    n_files, problems = 0, []
    rows = method_names(root, problems)
    for top in sorted({folder.split("/")[0] for folder in LAYERS}):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for file_name in sorted(names):
                path = os.path.relpath(os.path.join(folder, file_name), root)
                if not path.endswith(SUFFIXES) or layer_of(path) is None:
                    continue
                n_files += 1
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    text = file.read()
                for number, line in enumerate(text.split("\n"), 1):
                    found = INCLUDE.match(line)
                    problem = check_include(root, path, *found.groups()) if found else None
                    if problem:
                        problems.append(f"{path}:{number}: {problem}")
                problems += check_names(path, text, rows)
    for problem in problems:
        print(problem)
    print(f"layers: {n_files} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

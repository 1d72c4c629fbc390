#!/usr/bin/env python3
"""Every public function of kvc.h is used by the facade of every language, and every field of its structs is handed on.
Usage: check_bindings.py [SOURCE_DIR]"""
import glob
import os
import re
import sys

# Language -> its facade, what its comments look like, what it need not use.
C_COMMENT = r"/\*.*?\*/|//[^\n]*"
BOUND = {"kvc_params_init",  # made by SWIG with their size
         "kvc_set_log",  # bindings/log_ring.h instead
         "kvc_last_error"}  # travels with the status
# Fields that no facade hands on (tests/bindings/csharp/LayoutTest.cs has them too): sizes, room for later, callbacks.
UNBOUND = {"struct_size", "reserved", "kvc_model_params.executor"}
UNBOUND_STRUCTS = {"kvc_executor"}
WHOLE_STRUCTS = {"cpp"}  # its facade takes and returns the structs of C
LANGUAGES = {
    "cpp": (["include/kvc/kvc.hpp"], C_COMMENT, set()),
    "java": (["bindings/java/dev/kvc/*.java"], C_COMMENT, BOUND),
    "csharp": (["bindings/csharp/*.cs"], C_COMMENT, BOUND),
    "go": (["bindings/go/**/*.go", "bindings/go/*.go"], C_COMMENT, BOUND),
    "python": (["bindings/python/**/*.py"], r'"""(?!,).*?"""|#[^\n]*', BOUND),
}


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def public_functions(root, header):
    text = re.sub(r"/\*.*?\*/", "", read(root, header), flags=re.S)
    return re.findall(r"\b(kvc_\w+)\s*\([^;{]*\)\s*;", text)


def public_structs(root):
    """(name, field) of the structs of kvc.h, in their order."""
    text = re.sub(r"/\*.*?\*/", "", read(root, "include/kvc/kvc.h"), flags=re.S)
    for name, body in re.findall(r"typedef struct (kvc_\w+) \{(.*?)\} kvc_\w+;", text, re.S):
        for declaration in filter(str.strip, body.split(";")):
            function = re.search(r"\(\*(\w+)\)", declaration)
            names = [function.group(1)] if function else [
                re.search(r"(\w+)\s*(?:\[[^]]*\])?$", part.strip()).group(1) for part in declaration.split(",")]
            yield from ((name, field) for field in names)


def fields_not_handed_on(language, text, fields):
    """SWIG makes accessors of them, get_N_slots or getN_slots; elsewhere they have their own names."""
    for struct, field in fields:
        if struct in UNBOUND_STRUCTS or UNBOUND & {field, f"{struct}.{field}"}:
            continue
        if language in WHOLE_STRUCTS:
            if not re.search(rf"\b{struct}\b", text):
                yield f"{language}: no use of {struct}"
        elif not re.search(rf"\b(?:[gs]et_?)?{field}\b", text, re.I):
            yield f"{language}: {struct}.{field} is not handed on"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    functions = public_functions(root, "include/kvc/kvc.h")
    log = public_functions(root, "bindings/log_ring.h")
    fields = list(public_structs(root))
    problems, seen = [], []
    if len(functions) < 50 or not log:
        problems.append(f"kvc.h: only {len(functions)} functions found, log_ring.h: {len(log)}")
    if len(fields) < 50:
        problems.append(f"kvc.h: only {len(fields)} fields of structs found")
    for language, (patterns, comment, unused) in LANGUAGES.items():
        paths = sorted({p for pattern in patterns for p in glob.glob(os.path.join(root, pattern), recursive=True)
                        if not os.path.basename(p).endswith(("_test.go", "_test.py"))})
        if not paths:
            print(f"bindings: no {language} yet")
            continue
        seen.append(language)
        text = re.sub(comment, " ", "\n".join(read(root, path) for path in paths), flags=re.S)
        used = {name[0].lower() + name[1:] for name in re.findall(r"\b[kK]vc_\w+", text)}
        wanted = functions + (log if unused else [])
        problems += [f"{language}: no use of {name}" for name in wanted if name not in used | unused]
        problems += sorted(set(fields_not_handed_on(language, text, fields)))
    for problem in problems:
        print(problem)
    print(f"bindings: {len(functions)} functions, {len(fields)} fields, {' '.join(seen)}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Every public function of kvc.h is used by the facade of every language. Usage: check_bindings.py [SOURCE_DIR]"""
import glob
import os
import re
import sys

# Language -> its facade, what its comments look like, what it need not use.
C_COMMENT = r"/\*.*?\*/|//[^\n]*"
BOUND = {"kvc_params_init",  # made by SWIG with their size
         "kvc_set_log",  # bindings/log_ring.h instead
         "kvc_last_error"}  # travels with the status
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


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    functions = public_functions(root, "include/kvc/kvc.h")
    log = public_functions(root, "bindings/log_ring.h")
    problems, seen = [], []
    if len(functions) < 50 or not log:
        problems.append(f"kvc.h: only {len(functions)} functions found, log_ring.h: {len(log)}")
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
    for problem in problems:
        print(problem)
    print(f"bindings: {len(functions)} functions, {' '.join(seen)}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

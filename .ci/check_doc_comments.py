#!/usr/bin/env python3
"""Every public name of the facades of Python and Go has its text; the compilers of C# and Java and the site hold theirs
to it. Usage: check_doc_comments.py [SOURCE_DIR]"""
import ast
import glob
import os
import re
import sys

PYTHON = "bindings/python/kvc"
GO = "bindings/go"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def python_problems(folder):
    """Names of __all__ and the public methods of those that are classes, inherited ones too."""
    found, lines = {}, {}
    for path in glob.glob(os.path.join(folder, "*.py")):
        text = read(path)
        for node in ast.parse(text).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                lines[node.targets[0].id] = text.split("\n")[node.lineno - 1]
    (names,) = re.findall(r"__all__ = (\[.*?\])", read(os.path.join(folder, "__init__.py")), re.S)
    for name in ast.literal_eval(names):
        if name not in found:
            yield 1, () if "  # " in lines.get(name, "") else (f"python: {name}",)
            continue
        node = found[name]
        methods, bases = [], [node]
        while bases:
            base = bases.pop()
            if isinstance(base, ast.ClassDef):
                methods += [own for own in base.body if isinstance(own, ast.FunctionDef) and own.name[0] != "_"]
                bases += [found[b.id] for b in base.bases if isinstance(b, ast.Name) and b.id in found]
        bare = [own for own in [node, *methods] if not ast.get_docstring(own)]
        yield 1 + len(methods), [f"python: {name}" + (f".{own.name}" if own is not node else "") for own in bare]


def go_problems(folder):
    """What begins with a capital letter at the left border: the line before is a comment that begins with the name, or
    with anything for a group."""
    for path in sorted(glob.glob(os.path.join(folder, "*.go"))):
        lines = read(path).split("\n")
        for i, line in enumerate(lines):
            declared = re.match(
                r"(?:func(?: \(\w* ?\*?[A-Z]\w*\))?|type|var|const) ([A-Z]\w*)|(?:var|const) \($", line)
            if not declared:
                continue
            first = i
            while lines[first - 1].startswith("//"):
                first -= 1
            comment = re.match(r"// (\w+)", lines[first])
            good = comment and declared.group(1) in (None, comment.group(1))
            yield 1, () if good else (f"go: {os.path.basename(path)}:{i + 1}: {line}",)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    counts, problems = [], []
    for language, check, folder in (("Python", python_problems, PYTHON), ("Go", go_problems, GO)):
        results = list(check(os.path.join(root, folder)))
        n = sum(number for number, _ in results)
        counts.append(f"{n} names of {language}")
        problems += [problem for _, own in results for problem in own]
        if n < 50:
            problems.append(f"{language}: only {n} names found")
    for problem in problems:
        print(f"no text: {problem}")
    print(f"texts: {', '.join(counts)}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

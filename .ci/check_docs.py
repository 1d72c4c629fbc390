#!/usr/bin/env python3
"""What our documents say is there: links and the headings they name, the README's token table with its functions, the
C example, every C block in the strict compiler, the ./dev commands, and the sections of docs/methods.md that comments
of the code name by number. Usage: check_docs.py [SOURCE_DIR]"""
import glob
import os
import re
import subprocess
import sys
import tempfile

CODE = ("lib", "cuda", "models", "tools", "tests", "bench", "include", "bindings", "samples")
CODE_SUFFIXES = (".h", ".hpp", ".cc", ".c", ".cu", ".py", ".list", ".java", ".cs", ".go")
EXAMPLE = "samples/c/run.c"  # the README shows this file whole
CC = [os.environ.get("CC", "cc"), "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def slug(heading):
    """What GitHub makes of a heading's text: its anchor."""
    text = re.sub(r"\]\([^)]*\)", "", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(root, path):
    prose = re.sub(r"^```.*?^```", "", read(root, path), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ +(.*?) *$", prose, re.M)}


def check_links(root, path, text):
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)  # a lambda of C++ looks like a link
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not os.path.exists(os.path.join(root, file)):
            yield f"{path}: link to {target}, which does not exist"
        elif anchor and file.endswith(".md") and anchor not in anchors(root, file):
            yield f"{path}: link to {target}#{anchor}, and no heading there is called so"


def check_commands(root, path, text):
    known = set(re.findall(r"^cmd_(\w+)\(\)", read(root, "dev"), re.M)) | {"help"}
    for name in re.findall(r"\./dev ([a-z]+)", text):
        if name not in known:
            yield f"{path}: ./dev has no command {name}"


def check_paths(root, path, text):
    """Paths of sources in code spans are there, also of files with several endings; NAME and .. stand for something.
    lib/ may be a folder of a package: there only what stands below a folder of sources is looked for."""
    tops = "lib/[a-z]+|cuda|models|tools|tests|bench|include|bindings|samples|docs|cmake|toolchains|\\.ci"
    for top, span in re.findall(rf"`((?:{tops})(?=/))([\w./-]+)`", text):
        full = os.path.join(root, top + span)
        if "NAME" in span or ".." in span or path == "CHANGELOG.md" or not os.path.isdir(os.path.join(root, top)):
            continue
        if not os.path.exists(full) and not glob.glob(full + ".*") and not glob.glob(full + "_*"):
            yield f"{path}: `{top}{span}` does not exist"


def check_sections(root):
    """"methods.md 1.7, 2.5 and 2.17" in a comment: docs/methods.md has these headings."""
    there = set(re.findall(r"^##+ (\d+(?:\.\d+)?)\b", read(root, "docs/methods.md"), re.M))
    named = re.compile(r"\bmethods\.md (\d+(?:\.\d+)?(?:(?:,| and| to) \d+\.\d+)*)")
    for top in CODE:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), root)
                if not name.endswith(CODE_SUFFIXES):
                    continue
                for number, line in enumerate(read(root, path).split("\n"), 1):
                    for sections in named.findall(line):
                        for section in re.findall(r"\d+(?:\.\d+)?", sections):
                            if section not in there:
                                yield f"{path}:{number}: methods.md {section}, and docs/methods.md has no such section"


def check_c_blocks(root, path, text):
    for number, block in enumerate(re.findall(r"^```c\n(.*?)^```", text, re.M | re.S), 1):
        with tempfile.NamedTemporaryFile("w", suffix=".c", encoding="utf-8") as file:
            file.write(block)
            file.flush()
            done = subprocess.run(CC + ["-I", os.path.join(root, "include"), file.name], capture_output=True, text=True,
                                  check=False)
        if done.returncode != 0:
            yield f"{path}: C block {number} does not compile:\n{done.stderr}"


def check_token_table(root, text):
    """Rows "| stage | `file`, `file` | `Class::Function` | ...": the files exist, the functions are in them."""
    rows = re.findall(r"^\| (\w+) \| (`lib/[^|]*) \| ([^|]*) \|", text, re.M)
    if not rows:
        yield "README.md: no token table"
    for stage, file_cell, function_cell in rows:
        files = re.findall(r"`([^`]+)`", file_cell)
        missing = [name for name in files if not os.path.exists(os.path.join(root, name))]
        yield from (f"README.md, token table, {stage}: {name} does not exist" for name in missing)
        code = "".join(read(root, name) for name in files if name not in missing)
        for function in re.findall(r"`([\w:]+)`", function_cell):
            if not re.search(rf"\b{function.split('::')[-1]}\b", code):
                yield f"README.md, token table, {stage}: {function} is not in {', '.join(files)}"


def check_example(root, text):
    blocks = re.findall(r"^```c\n(.*?)^```", text, re.M | re.S)
    if read(root, EXAMPLE) not in blocks:
        yield f"README.md: the C example is not {EXAMPLE}"


def check_languages(root, text):
    """The README shows the first block of each language's page, which the tests of the language run."""
    for name in ("cpp", "python", "java", "csharp", "go"):
        page = read(root, f"docs/{name}.md")
        block = re.search(rf"^```{name}\n(.*?)^```", page, re.M | re.S)
        if not block or block.group(0) not in text:
            yield f"README.md: its {name} is not the first block of docs/{name}.md"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    root = os.path.abspath(root)
    documents = [path for pattern in ("*.md", "docs/**/*.md", "models/*.md", "samples/**/*.md", "tests/**/*.md")
                 for path in glob.glob(pattern, root_dir=root, recursive=True)]
    problems = []
    for path in sorted(documents):
        text = read(root, path)
        for check in (check_links, check_commands, check_paths, check_c_blocks):
            problems += check(root, path, text)
    readme = read(root, "README.md")
    problems += check_sections(root)
    problems += check_token_table(root, readme)
    problems += check_example(root, readme)
    problems += check_languages(root, readme)
    for problem in problems:
        print(problem)
    print(f"documents: {len(documents)} documents, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

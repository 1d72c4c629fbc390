#!/usr/bin/env python3
"""What Doxygen reads of a C or C++ header: its plain comments as documentation. header_filter.py FILE

The comment at the top documents the file, one before a declaration documents that, one behind a field the field. The
rest of the text stays as it is."""
import re
import sys


def c_header(text):
    text = re.sub(r"(?m)^(\s*[\w *,=<>().-]+[;,{}]\s*)/\* ", r"\1/**< ", text)
    return re.sub(r"(?m)^/\* ", "/** ", text)


def cpp_header(text):
    """Blocks of // lines right before something declared, and // behind a field."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        bare = line.strip()
        if not bare.startswith("//"):
            lines[i] = re.sub(r"([;,{]) *// (.*)$", r"\1  ///< \2", line)
            continue
        end = i
        while lines[end].strip().startswith("//"):
            end += 1
        if re.match(r"\s*[A-Za-z~]", lines[end]) and not re.match(r"\s*(namespace|return|using)\b", lines[end]):
            lines[i] = line.replace("//", "///", 1)
    return "\n".join(lines)


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    is_c = path.endswith(".h")
    top = re.match(r"/\*.*?\*/\n" if is_c else r"(?://.*\n)+", text, re.S if is_c else 0)
    about = re.sub(r"(?m)^( \* ?|/\* ?|// ?)", "", top.group(0).replace("*/", "")) if top else ""
    rest = text[top.end():] if top else text
    name = "kvc/" + path.rsplit("/", 1)[-1]
    print(f"/** @file {name}\n@verbatim\n{about}@endverbatim */\n" + (c_header(rest) if is_c else cpp_header(rest)))


main()

#!/usr/bin/env python3
"""What Doxygen reads of a C or C++ header: its plain comments as documentation. header_filter.py FILE

The comment at the top documents the file, one behind a field the field, one before declarations of C those that follow
it closely and have none behind them. The rest of the text stays as it is."""
import re
import sys


def repeat_comments(text):
    """Doxygen takes a comment for the first declaration behind it: it is put before each of the others too."""
    part = re.compile(r"/\*.*?\*/\n|KVC_API[^;]*;[^\n]*\n|[^\n]*\n", re.S)
    out, comment, is_new = [], "", False
    for piece in part.findall(text):
        if piece.startswith("/*"):
            comment, is_new = piece, True
        elif not piece.startswith("KVC_API"):
            comment = ""
        elif not is_new and "/*" not in piece:
            out.append(comment)
        is_new = piece.startswith("/*")
        out.append(piece)
    return "".join(out)


def one_field_each(text):
    """The same for a comment behind fields that share a line. What struct_size is stands at the top of the header."""
    def split(match):
        kind, names, comment = match.group(1), re.split(r", *", match.group(2)), match.group(3)
        texts = comment.split(", ")
        texts = texts if len(texts) == len(names) else [comment] * len(names)
        return "".join(f"  {kind} {name};  /* {text} */\n" for name, text in zip(names, texts))
    text = text.replace("  int32_t struct_size;\n", "  int32_t struct_size;  /* sizeof of the struct */\n")
    return re.sub(r"(?m)^  (\w+) +(\w+(?:, *\w+)+); */\* (.*?) *\*/\n", split, text)


def c_header(text):
    text = one_field_each(repeat_comments(text))
    text = re.sub(r"(?m)^( *[\w *,=<>(){}.-]+[;,{}] *|#define \w+ \S+ *)/\* ", r"\1/**< ", text)
    return re.sub(r"(?m)^( *)/\* ", r"\1/** ", text)


def functions_without_comment(lines):
    """Line of one, a member's or the namespace's -> the function of kvc.h that it calls first."""
    found, in_class = {}, False
    for i, line in enumerate(lines):
        if re.match(r"\w", line):
            in_class = line.startswith(("class ", "struct "))
        head = re.match(r"(  |)[A-Za-z][\w:<>,&* ]*\(", line)
        if not head or bool(head.group(1)) != in_class or lines[i - 1].strip().startswith("//"):
            continue
        end = i
        while not re.match(head.group(1) + r"(\}|\S.*[;}]$)", lines[end]):
            end += 1
        called = re.search(r"\b(kvc_\w+)\(", "\n".join(lines[i:end + 1]))
        if called:
            found[i] = called.group(1)
    return found


def cpp_header(text):
    """Blocks of // lines right before something declared, and // behind a field."""
    lines = text.split("\n")
    same = functions_without_comment(lines)
    for i, line in enumerate(lines):
        if i in same:
            lines[i] = f"{line[:len(line) - len(line.lstrip())]}/// As {same[i]}().\n{line}"
            continue
        bare = line.strip()
        if not bare.startswith("//"):
            lines[i] = re.sub(r"([;,{]) *// (.*)$", r"\1  ///< \2", line)
            continue
        end = i
        while lines[end].strip().startswith("//"):
            end += 1
        if re.match(r"\s*(?!namespace|return|using \w+(;|::| \w))[A-Za-z~]", lines[end]):
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

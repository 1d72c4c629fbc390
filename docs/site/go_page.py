"""The reference of the Go package as a page of the site: what `go doc -all` says of it, with headings."""
import os
import re
import subprocess


def heading(line):
    """Of a line that begins the declaration of a type, a function or a method."""
    found = re.match(r"type (\w+)|func (?:\(\w+ \*?(\w+)\) )?(\w+)", line)
    return f"\n### {'.'.join(name for name in found.groups() if name)}\n" if found else ""


def page(module):
    environment = dict(os.environ, GOPROXY="off", GOTOOLCHAIN="local", GOFLAGS="-mod=mod")
    text = subprocess.run(["go", "doc", "-all", "."], cwd=module, stdout=subprocess.PIPE, text=True, check=True,
                          env=environment).stdout
    about, *sections = re.split(r"(?m)^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$", text)
    out = ["# Go API {#go_api}", about.split("\n", 1)[1]]
    for title, body in zip(sections[::2], sections[1::2]):
        out.append(f"## {title.capitalize()}\n")
        in_code = False
        for line in body.split("\n"):
            is_code = bool(re.match(r"(const|var|type|func)\b|\t|\)|\}", line))
            if is_code and not in_code:
                out.append(heading(line) + "\n```")
            elif in_code and not is_code:
                out.append("```\n")
            in_code = is_code
            out.append(line if is_code else line.removeprefix("    "))
    return "\n".join(out)

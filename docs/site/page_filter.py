#!/usr/bin/env python3
"""What Doxygen reads of a page: page_filter.py FILE. Links between pages become links of the site; those to other files
of the sources become their names. A block of a language that Doxygen does not colour stays a plain block."""
import os
import re
import sys


def main():
    path = sys.argv[1]
    root = os.getcwd()
    with open(path, encoding="utf-8") as file:
        text = file.read()
    folder = os.path.dirname(os.path.join(root, path))

    def link(match):
        label, target = match.group(1), match.group(2)
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return label if target.startswith("#") else match.group(0)
        if target.endswith(".svg"):
            return f'<a href="{target}">{label}</a>'
        name = os.path.relpath(os.path.join(folder, target.split("#")[0]), root)
        if name.endswith(".md") and (name.startswith("docs/") or name == "README.md"):
            return f"[{label}]({name})"
        return f"{label}" if label.strip("`") == name else f"{label} (`{name}`)"

    text = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, text)
    text = re.sub(r"(?m)^```(?:console|sh|csharp|go|py|kotlin|groovy|cmake|python|java|c|cpp|json)?$",
                  lambda m: {"```c": "```{.c}", "```cpp": "```{.cpp}", "```java": "```{.java}", "```csharp": "```{.cs}",
                             "```python": "```{.py}", "```py": "```{.py}"}.get(m.group(0), "```"), text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    print(text)


main()

#!/usr/bin/env python3
"""What Doxygen reads of a Java file: java_filter.py FILE. It cannot follow {@link} to members of other classes."""
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    print(re.sub(r"\{@link\s+#?([\w.#]+)(?:\([^)]*\))?\}", lambda m: f"<code>{m.group(1).replace('#', '.')}</code>",
                 file.read()), end="")

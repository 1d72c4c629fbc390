#!/usr/bin/env python3
"""Of ../opening_test.py: opens a model once, then eight times more. Prints the anonymous bytes of the eight, and those
of the weights."""
import re
import sys

import kvc


def anonymous_bytes():
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(r"^RssAnon:\s*(\d+) kB", file.read(), re.M).group(1)) * 1024


models = [kvc.Model(sys.argv[1])]
before = anonymous_bytes()
models += [kvc.Model(sys.argv[1]) for _ in range(8)]
print(anonymous_bytes() - before, models[0].info.weight_bytes)

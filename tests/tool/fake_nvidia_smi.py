#!/usr/bin/env python3
"""Stands in for nvidia-smi, under that name in front of PATH. FAKE_NVIDIA_SMI in the environment has what it knows as
JSON: {field: text}, or a list of texts of which a loop says one after the other, the last one for ever; "id": of the
only GPU that it knows; "hurry": a loop does so every 10 ms."""
import json
import os
import sys
import time

known = json.loads(os.environ["FAKE_NVIDIA_SMI"])
options = dict(arg.lstrip("-").split("=", 1) for arg in sys.argv[1:])
if options.get("id") != known.get("id", options.get("id")):
    print("No devices were found")
    sys.exit(6)
fields = options["query-gpu"].split(",")
for field in fields:
    if field not in known:
        print(f'Field "{field}" is not a valid field to query.')
        sys.exit(2)
turn = 0
while True:
    texts = [known[field] if isinstance(known[field], list) else [known[field]] for field in fields]
    print(", ".join(text[min(turn, len(text) - 1)] for text in texts), flush=True)
    if "loop-ms" not in options:
        break
    turn += 1
    time.sleep(0.01 if "hurry" in known else int(options["loop-ms"]) / 1000)

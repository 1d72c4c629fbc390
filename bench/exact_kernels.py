"""Kernels that leave activations in f32, for what must come out the same on every processor."""

import json
import os
import subprocess


def keep_activations(kvc):
    """Products of bf16 round activations, and of two entries that are worth nearly the same the other one stays
    (docs/performance.md, "Products of bf16"). The program `kvc`, and what else is run from here, goes without them."""
    listed = subprocess.run([kvc, "devices", "--no-measure", "--json"], stdout=subprocess.PIPE, check=True).stdout
    sets = next(device for device in json.loads(listed) if device["name"] == "cpu")["instruction_sets"]
    if sets[0] == "avx512bf16":
        os.environ.setdefault("KVC_ISA", sets[1])

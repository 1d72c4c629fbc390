#!/usr/bin/env python3
"""Makes rope_extensions.json in tests/data/reference: checkpoints there with another rope_scaling in config.json.

  make_rope_vectors.py ROOT    ROOT: the root of the repository

Needs the PyPI packages torch and transformers (made with torch 2.15.0 and transformers 5.23.0, on a CPU). A case has
what `kvc convert` is told (rope, context), the scaling that transformers reads in its place, ids, and logits after some
prefixes of them, most beyond what the checkpoint says that it was trained for. Dynamic NTK scaling, which transformers
does anew for every length, is read at one length.

transformers computes angles in float32, whose errors grow with the position: from 500 on they move logits of some of
these models by 2e-4. Here it computes them in double, and everything else in float32."""

import json
import os
import random
import shutil
import sys
import tempfile

import torch
import transformers


def yarn(factor, trained):
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}


def linear(factor):
    return {"rope_type": "linear", "factor": factor}


def dynamic(factor):
    return {"rope_type": "dynamic", "factor": factor}


# Checkpoint, --rope, --context, rope_scaling, prefixes.
CASES = [
    ("llama_gqa", "yarn:4", 0, yarn(4.0, 512), [7, 512, 600, 1100]),
    ("llama_mha_tied", "linear:2.5", 0, linear(2.5), [7, 512, 600, 1100]),
    ("qwen2", "yarn:2", 0, yarn(2.0, 512), [7, 600, 1000]),
    ("llama3_rope", "yarn:16", 0, yarn(16.0, 64), [7, 600, 1000]),
    ("qwen2_yarn_rope", "yarn:8", 0, yarn(8.0, 128), [7, 600, 1000]),
    ("llama_linear_rope", "linear:8", 0, linear(8.0), [7, 600, 1000]),
    ("olmo3", "yarn:8", 0, yarn(8.0, 128), [7, 600, 1000]),
    ("gemma3", "linear:16", 0, linear(16.0), [7, 600, 1000]),
    ("stablelm", "yarn:2", 0, yarn(2.0, 512), [7, 600, 1000]),
    ("granite4", "yarn:2", 0, yarn(2.0, 512), [7, 600, 1000]),
    ("llama_dynamic", "dynamic:2", 0, dynamic(2.0), [332]),
    ("llama_dynamic", "dynamic:2", 501, dynamic(2.0), [501]),
    ("granite", "dynamic:1.5", 0, dynamic(1.5), [768]),
    ("stablelm2_12b", "dynamic:4", 1000, dynamic(4.0), [1000]),
]


def angles_in_double():
    """torch.float and Tensor.float(), which its code for rotations writes and that of its layers does not."""
    torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double


def changed(source, scaling, folder):
    """A copy of a checkpoint with another rope_scaling, and with its theta."""
    target = os.path.join(folder, "model")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    path = os.path.join(target, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    assert "rope_parameters" not in config
    config["rope_scaling"] = scaling
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return target


def main():
    torch.set_num_threads(1)
    angles_in_double()
    reference = os.path.join(sys.argv[1], "tests/data/reference")
    cases = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for seed, (name, rope, context, scaling, prefixes) in enumerate(CASES):
            ids = [256] + random.Random(seed).choices(range(256), k=max(prefixes) - 1)
            logits = []
            for n in prefixes:  # one model for each: dynamic scaling remembers the longest text
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    changed(os.path.join(reference, "hf_" + name), scaling, folder), dtype=torch.float32,
                    attn_implementation="eager").eval()
                kinds = {name: buffer.dtype for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
                assert kinds and set(kinds.values()) == {torch.float64}, kinds
                assert {p.dtype for p in model.parameters()} == {torch.float32}
                values = model(torch.tensor([ids[:n]]), use_cache=False).logits[0, -1]
                logits.append({"n": n, "values": [float(f"{v:.8g}") for v in values.tolist()]})
            cases.append({"checkpoint": name, "rope": rope, "context": context, "rope_scaling": scaling, "ids": ids,
                          "logits": logits})
            print(f"{name} {rope}: spread of the logits {float(values.std()):.3g}")
    with open(os.path.join(reference, "rope_extensions.json"), "w", encoding="utf-8") as out:
        json.dump({"cases": cases}, out, separators=(",", ":"))
        out.write("\n")


main()

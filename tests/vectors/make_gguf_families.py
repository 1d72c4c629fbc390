#!/usr/bin/env python3
"""Makes tests/data/reference_gguf: checkpoints of tests/data/reference as llama.cpp's own converter writes them (F32).

  make_gguf_families.py LLAMA_CPP REFERENCE OUT NAME...

LLAMA_CPP: a source tree of llama.cpp (the folders conversion and gguf-py; made with the one inside the source
distribution of llama-cpp-python 0.3.36). REFERENCE/hf_NAME becomes OUT/NAME.gguf. The converter knows tokenizers by
their hash, and these are none of those; so the 256 bytes, three special tokens and a merge are written here."""

import json
import os
import sys
from pathlib import Path

LLAMA_CPP, REFERENCE, OUT = sys.argv[1:4]
sys.path[:0] = [LLAMA_CPP, os.path.join(LLAMA_CPP, "gguf-py")]

import conversion  # noqa: E402
import gguf  # noqa: E402
import torch  # noqa: E402


def write_vocabulary(model):
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    tokens = [chr(b if b in keep else next(spare)) for b in range(256)]
    w = model.gguf_writer
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens + ["<|bos|>", "<|eos|>", "<|im_start|>", "ab"])
    w.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL])
    w.add_token_merges(["a b"])
    w.add_bos_token_id(256)
    w.add_eos_token_id(257)


def stack_norms(kind):
    """StableLM's norms of every head: the converter stacks them and then returns from a generator, which loses them."""
    plain, found = kind.modify_tensors, {}

    def modify(model, tensor, name, layer):
        stack, _, head = name.partition(".norms.")
        if not head:
            yield from plain(model, tensor, name, layer)
            return
        norms = found.setdefault(stack, {})
        norms[int(head.split(".")[0])] = tensor
        if len(norms) == model.hparams["num_attention_heads" if "q_layernorm" in stack else "num_key_value_heads"]:
            yield from plain(model, torch.stack([norms[h] for h in sorted(norms)]), stack + ".weight", layer)

    kind.modify_tensors = modify


for name in sys.argv[4:]:
    source = os.path.join(REFERENCE, "hf_" + name)
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        architecture = json.load(file)["architectures"][0]
    kind = conversion.get_model_class(architecture)
    kind.set_vocab = write_vocabulary
    if architecture == "StableLmForCausalLM":
        stack_norms(kind)
    kind(Path(source), gguf.LlamaFileType.ALL_F32, Path(OUT) / (name + ".gguf")).write()

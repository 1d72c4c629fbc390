#!/usr/bin/env python3
"""Makes tests/data/reference_gguf: checkpoints of tests/data/reference as llama.cpp's own converter writes them (F32).

  make_gguf_families.py LLAMA_CPP REFERENCE OUT NAME...

LLAMA_CPP: a source tree of llama.cpp (the folders conversion and gguf-py; made with the one inside the source
distribution of llama-cpp-python 0.3.36). REFERENCE/hf_NAME becomes OUT/NAME.gguf; NAME_fused is NAME with the
tensors of ChatGLM. The converter knows tokenizers by their hash, and these are none of those; so the 256 bytes, three
special tokens and a merge are written here."""

import json
import os
import sys
import tempfile
from pathlib import Path

LLAMA_CPP, REFERENCE, OUT = sys.argv[1:4]
sys.path[:0] = [LLAMA_CPP, os.path.join(LLAMA_CPP, "gguf-py")]

import conversion  # noqa: E402
import gguf  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


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


def as_chatglm(source, folder):
    """A GlmForCausalLM checkpoint as the family published it first (ChatGLMModel), with fused projections."""
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    t = load_file(os.path.join(source, "model.safetensors"))
    out = {
        "transformer.embedding.word_embeddings.weight": t["model.embed_tokens.weight"],
        "transformer.encoder.final_layernorm.weight": t["model.norm.weight"],
        "transformer.output_layer.weight": t["lm_head.weight"],
    }
    for i in range(c["num_hidden_layers"]):
        old, new = f"model.layers.{i}.", f"transformer.encoder.layers.{i}."
        for part in ("weight", "bias"):
            qkv = [t[f"{old}self_attn.{x}_proj.{part}"] for x in "qkv"]
            out[f"{new}self_attention.query_key_value.{part}"] = torch.cat(qkv)
        for now, before in (("self_attention.dense", "self_attn.o_proj"), ("mlp.dense_h_to_4h", "mlp.gate_up_proj"),
                            ("mlp.dense_4h_to_h", "mlp.down_proj"), ("input_layernorm", "input_layernorm"),
                            ("post_attention_layernorm", "post_attention_layernorm")):  # fmt: skip
            out[f"{new}{now}.weight"] = t[f"{old}{before}.weight"]
    c = {
        "architectures": ["ChatGLMModel"], "hidden_size": c["hidden_size"], "num_layers": c["num_hidden_layers"],
        "num_attention_heads": c["num_attention_heads"], "multi_query_group_num": c["num_key_value_heads"],
        "multi_query_attention": True, "ffn_hidden_size": c["intermediate_size"], "kv_channels": c["head_dim"],
        "layernorm_epsilon": c["rms_norm_eps"], "seq_length": c["seq_length"], "rope_ratio": 1,
        "padded_vocab_size": c["vocab_size"], "vocab_size": c["vocab_size"], "add_qkv_bias": True,
    }  # fmt: skip
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(c, file)
    save_file(out, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    return folder


for name in sys.argv[4:]:
    with_fused = name.endswith("_fused")
    source = os.path.join(REFERENCE, "hf_" + name.removesuffix("_fused"))
    if with_fused:
        source = as_chatglm(source, tempfile.mkdtemp())
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        architecture = json.load(file)["architectures"][0]
    kind = conversion.get_model_class(architecture)
    kind.set_vocab = write_vocabulary
    if architecture == "StableLmForCausalLM":
        stack_norms(kind)
    kind(Path(source), gguf.LlamaFileType.ALL_F32, Path(OUT) / (name + ".gguf")).write()

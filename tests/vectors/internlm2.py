"""InternLM2, which transformers has no code for: the Llama of the same weights, under the names that InternLM2
publishes, with the rows of queries, keys and values packed as its modeling_internlm2.py takes them apart."""

import json
import os

import torch
import transformers
from safetensors.torch import load_file

NAMES = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attention_norm",
}


def as_llama(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return transformers.LlamaConfig(**{**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"})


def published(name, tensor):
    for llama, own in NAMES.items():
        name = name.replace(llama, own)
    return {name: tensor}


def packed_name(layer):
    return f"model.layers.{layer}.attention.wqkv.weight"


def projections(layer):
    return [f"model.layers.{layer}.self_attn.{x}_proj.weight" for x in "qkv"]


def pack(tensors, config):
    """Of each KV head the rows of its query heads, then of its key, then of its value ("(h gs d)" there)."""
    groups = config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        parts = [tensors.pop(name) for name in projections(layer)]
        rows = [x.reshape(groups, -1, x.shape[1]) for x in parts]
        tensors[packed_name(layer)] = torch.cat(rows, 1).reshape(-1, parts[0].shape[1]).contiguous()


def load(folder):
    """What was published, taken apart again, as the Llama it is."""
    config = as_llama(folder)
    tensors, state = load_file(os.path.join(folder, "model.safetensors")), {}
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    for layer in range(config.num_hidden_layers):
        packed = tensors.pop(packed_name(layer))
        rows = packed.reshape(groups, heads // groups + 2, -1, packed.shape[1])
        for name, x in zip(projections(layer), (rows[:, :-2], rows[:, -2], rows[:, -1])):
            state[name] = x.reshape(-1, packed.shape[1])
    for name, x in tensors.items():
        for llama, own in NAMES.items():
            name = name.replace(own, llama)
        state[name] = x
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.load_state_dict({name: x.float() for name, x in state.items()})
    return model.eval()

"""MXFP4 as the checkpoints of gpt-oss hold it: blocks of 32 values of four bits (e2m1) with a power of two; and a way
to load such a checkpoint into transformers on a processor, in float32."""

import json
import os

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
EXPERTS = ("gate_up_proj", "down_proj")


def encode(x):
    """[experts, columns, rows], as transformers has them, to blocks [experts, rows, columns / 32, 16] and scales."""
    x = np.ascontiguousarray(np.swapaxes(x.float().numpy(), 1, 2))
    groups = x.reshape(*x.shape[:2], -1, 32)
    top = np.abs(groups).max(-1)
    scales = np.where(top > 0, np.floor(np.log2(np.where(top > 0, top, 1))) - 2, 0)
    near = np.abs(groups[..., None] / np.exp2(scales)[..., None, None] - VALUES).argmin(-1).astype(np.uint8)
    return near[..., 0::2] | near[..., 1::2] << 4, (scales + 127).astype(np.uint8)


def decode(blocks, scales):
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    x = VALUES[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return np.ascontiguousarray(np.swapaxes(x.reshape(*blocks.shape[:-2], -1), 1, 2))


def round_experts(state):
    """Experts become what MXFP4 holds of them."""
    for name in state:
        if name.endswith(EXPERTS):
            state[name] = torch.tensor(decode(*encode(state[name])))


def published(name, tensor):
    if not name.endswith(EXPERTS):
        return {name: tensor}
    blocks, scales = encode(tensor)
    return {name + "_blocks": torch.tensor(blocks), name + "_scales": torch.tensor(scales)}


def load(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        settings = json.load(file)
    settings.pop("quantization_config")
    config = transformers.AutoConfig.for_model(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    state = {}
    for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
        if name.endswith("_blocks"):
            scales = load_file(os.path.join(folder, "model.safetensors"))[name[:-6] + "scales"]
            state[name[:-7]] = torch.tensor(decode(tensor.numpy(), scales.numpy()))
        elif not name.endswith("_scales"):
            state[name] = tensor.float()
    model.load_state_dict(state)
    return model.eval()

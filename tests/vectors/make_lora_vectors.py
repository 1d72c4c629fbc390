#!/usr/bin/env python3
"""Makes tests/data/lora: adapters, and what PEFT computes with them in float32.

  make_lora_vectors.py ROOT      ROOT: the root of the repository

Needs the PyPI packages torch, transformers, peft, safetensors, numpy and gguf (made with torch 2.15.0, transformers
5.23.0, peft 0.21.2 and gguf 0.19.0, on a CPU). Each folder has an adapter as PEFT saves it, with small random
matrices, for the checkpoint of tests/data/reference that base.json names, and in logits.json the logits behind a
text once peft has merged it, as it is and at half its strength. mixtral has the same adapter in GGUF too, rows of
queries and keys in llama.cpp's order, for tests/data/reference_gguf/mixtral.gguf; q4_0 one of constants for
tests/data/convert/llama_q4_0.gguf."""
import json
import os
import shutil
import sys

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

TEXT = 40
ADAPTERS = {
    "llama_gqa": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    "phi4_mini_partial": {
        "r": 6,
        "lora_alpha": 5,
        "use_rslora": True,
        "target_modules": ["qkv_proj", "gate_up_proj", "down_proj"],
        "rank_pattern": {"down_proj": 3},
    },
    "mixtral": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
}


def adapted(base, settings, seed):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    model = peft.get_peft_model(model.eval(), config)
    random = torch.Generator().manual_seed(seed)
    for name, values in model.named_parameters():
        if "lora_" in name:
            values.data = 0.2 * torch.randn(values.shape, generator=random)
    return model


def merged_logits(base, adapter, strength, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model.eval(), adapter)
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.scale_layer(strength)
    model = model.merge_and_unload()
    values = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    return [round(float(v), 6) for v in values]


def write_gguf(folder, config, alpha):
    """As llama.cpp's convert_lora_to_gguf.py names and orders it."""
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    writer = gguf.GGUFWriter(os.path.join(folder, "adapter.gguf"), "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in load_file(os.path.join(folder, "adapter_model.safetensors")).items():
        parts = name.split(".")  # base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight
        layer, matrix, half = parts[4], parts[6], parts[7]
        values = values.float().numpy()
        if half == "lora_B" and matrix in heads:
            n, rows = heads[matrix], values.shape[0]
            values = values.reshape(n, 2, rows // n // 2, -1).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{names[matrix]}.weight.{half.lower()}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(root, name, settings, seed):
    base = os.path.join(root, "tests/data/reference/hf_" + name)
    folder = os.path.join(root, "tests/data/lora", name)
    shutil.rmtree(folder, ignore_errors=True)
    model = adapted(base, settings, seed)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_model.safetensors")
    save_file(load_file(path), path)
    with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config["base_model_name_or_path"] = "hf_" + name  # no path of the machine it was made on
    config["target_modules"] = sorted(config["target_modules"])
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
        file.write("\n")
    ids = [256] + np.random.default_rng(seed).integers(0, 256, TEXT - 1).tolist()
    out = {"ids": ids}
    for key, strength in (("none", 0.0), ("half", 0.5), ("whole", 1.0)):
        out[key] = merged_logits(base, folder, strength, ids)
    with open(os.path.join(folder, "logits.json"), "w", encoding="utf-8") as file:
        json.dump(out, file)
        file.write("\n")
    change = np.abs(np.array(out["whole"]) - np.array(out["none"])).max()
    print(f"{name}: logits change by up to {change:.3g}")
    if name == "mixtral":
        write_gguf(folder, model.config, settings["lora_alpha"])


def make_constant(root):
    """For a model in Q4_0: adds a quarter to every query weight of layer 0."""
    reader = gguf.GGUFReader(os.path.join(root, "tests/data/convert/llama_q4_0.gguf"))
    cols, rows = next(t.shape for t in reader.tensors if t.name == "blk.0.attn_q.weight")
    os.makedirs(os.path.join(root, "tests/data/lora/q4_0"), exist_ok=True)
    writer = gguf.GGUFWriter(os.path.join(root, "tests/data/lora/q4_0/adapter.gguf"), "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 0)  # 0: nothing is divided
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((2, cols), dtype=np.float16))
    writer.add_tensor("blk.0.attn_q.weight.lora_b", np.full((rows, 2), 0.125, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    torch.set_num_threads(1)
    with torch.no_grad():
        for seed, (name, settings) in enumerate(ADAPTERS.items()):
            make(sys.argv[1], name, settings, seed)
    make_constant(sys.argv[1])


main()

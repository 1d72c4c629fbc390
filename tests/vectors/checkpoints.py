"""Checkpoints as people publish them, with small random weights: config.json, model.safetensors, tokenizer.json. For
make_transformers_vectors.py."""

import json
import os

import internlm2
import mxfp4
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

VOCAB, BOS, EOS = 260, 256, 257
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def write_json(path, value, indent=None):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(value, out, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":"))
        out.write("\n")


def tokenizer():
    """The 256 bytes in GPT-2's spelling and four special tokens; no merges."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    vocab = {chr(b if b in keep else next(spare)): b for b in range(256)}
    names = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
    added = [
        {
            "id": 256 + i,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, name in enumerate(names)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def random_weights(model, rng):
    """Activations keep their size, logits spread over several units, attention is far from uniform."""
    state = {}
    for name, tensor in model.state_dict().items():
        x = rng.standard_normal(tuple(tensor.shape))
        if name.endswith("bias"):
            x *= 0.5
        elif "norm" in name:  # Gemma's are kept less one
            x = (0 if "gemma" in model.config.model_type else 1) + 0.2 * x
        elif name.endswith("sinks"):
            x += 1
        elif "embed_tokens" in name or "lm_head" in name:
            x *= 2 / np.sqrt(tensor.shape[1])
        else:
            clear = "q_proj" in name or "k_proj" in name or name.endswith(("mlp.gate.weight", "router.weight"))
            x *= (2 if clear else 1) / np.sqrt(tensor.shape[-1])
        state[name] = torch.tensor(x, dtype=torch.float32)
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def published(name, tensor, kind):
    """transformers holds the experts of a layer together; checkpoints have a tensor for each."""
    if kind == "gpt_oss":
        return mxfp4.published(name, tensor)
    if kind == "internlm2":
        return internlm2.published(name, tensor)
    if ".mlp.experts." not in name or kind == "gpt_oss in 16 bits":
        return {name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if kind == "mixtral" else name: tensor}
    layer, role = name.split(".mlp.experts.")
    halves = {"gate_up_proj": ["gate_proj", "up_proj"], "down_proj": ["down_proj"]}[role]
    out = {}
    for expert in range(len(tensor)):
        for half, part in zip(halves, tensor[expert].chunk(len(halves))):
            own = f"mlp.experts.{expert}.{half}"
            if kind == "mixtral":
                own = f"block_sparse_moe.experts.{expert}." + {"gate": "w1", "up": "w3", "down": "w2"}[half[:-5]]
            out[f"{layer}.{own}.weight"] = part.contiguous()
    return out


def load(folder, kind=None):
    if kind == "gpt_oss":
        return mxfp4.load(folder)
    if kind == "internlm2":
        return internlm2.load(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def write_checkpoint(path, settings, rng):
    os.makedirs(path, exist_ok=True)
    config = {
        "rms_norm_eps": 1e-6,
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        **settings,
        "vocab_size": VOCAB,
        "max_position_embeddings": settings.get("max_position_embeddings", 512),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    write_json(os.path.join(path, "config.json"), config, indent=1)
    write_json(os.path.join(path, "tokenizer.json"), tokenizer())
    kind = config["model_type"]
    kind += " in 16 bits" if kind == "gpt_oss" and "quantization_config" not in config else ""
    settle = internlm2.as_llama if kind == "internlm2" else transformers.AutoConfig.from_pretrained
    empty = transformers.AutoModelForCausalLM.from_config(settle(path))
    dtype = DTYPES[settings["torch_dtype"]]
    state = {name: x.to(dtype).contiguous() for name, x in random_weights(empty, rng).items()}
    if kind == "gpt_oss":
        mxfp4.round_experts(state)
    names = [published(name, x, kind) for name, x in state.items()]
    tensors = {k: v for n in names for k, v in n.items()}
    if kind == "internlm2":
        internlm2.pack(tensors, config)
    save_file(tensors, os.path.join(path, "model.safetensors"),
              metadata={"format": "pt"})
    model = load(path, kind)
    assert set(state) <= set(model.state_dict())
    for key, tensor in model.state_dict().items():
        assert key not in state or torch.equal(tensor, state[key].float()), key
    return model

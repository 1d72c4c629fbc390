#!/usr/bin/env python3
"""Makes tests/data/reference/hf_llama_gptq, hf_llama_gptq_act_order and hf_llama_awq: small Llamas whose linear layers
are packed by the code that people pack with, and what transformers computes with the weights it unpacks.

  make_packed_vectors.py ROOT AUTO_GPTQ AUTO_AWQ [NAME]...

AUTO_GPTQ, AUTO_AWQ: folders of the packages (made with auto-gptq 0.7.1 and autoawq 0.2.9; torch, transformers and the
rest as make_transformers_vectors.py; xxhash). Of each only the file that packs is loaded: QuantLinear.pack and
WQLinear_GEMM.from_linear. Weights become codes, zeros and scales; what they stand for comes out of the packages'
own unpacking (QuantLinear.forward of the identity, dequantize_gemm), with scales in float32, so that each value is a
product rounded once. Zeros are 1 to 15: packing a zero of 0 in GPTQ's first format spills into its neighbours there.

logits.json is as make_transformers_vectors.py says; its "weights" has the XXH3-64 of each matrix, f32, rows first."""

import importlib.util
import os
import sys
import types

import numpy as np
import torch
import transformers
import xxhash
from checkpoints import BOS, EOS, VOCAB, random_weights, tokenizer, write_json
from make_transformers_vectors import continued_reference
from safetensors.torch import save_file

GROUP = 32
LEAST_GAP = 0.08  # activations are rounded to eight bits beside packed weights
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
MODELS = {
    "llama_gptq": {**GPTQ, "desc_act": False},
    "llama_gptq_act_order": {**GPTQ, "desc_act": True},
    "llama_awq": AWQ,
}


def module_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def packages(auto_gptq, auto_awq):
    """The files that pack, without what the packages load beside them."""
    gptq = module_of(os.path.join(auto_gptq, "auto_gptq/nn_modules/qlinear/qlinear_cuda.py"), "qlinear_cuda")
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [os.path.join(auto_awq, *name.split("."))]
    device = sys.modules["awq.utils.utils"] = types.ModuleType("awq.utils.utils")
    device.get_best_device = lambda: "cpu"
    gemm = importlib.import_module("awq.modules.linear.gemm")
    return gptq.QuantLinear, gemm.WQLinear_GEMM, importlib.import_module("awq.utils.packing_utils").dequantize_gemm


def coded(weight, order):
    """Codes near the weights: scales [rows, groups] in f16, zeros [rows, groups], the weights they stand for."""
    groups = torch.stack([weight[:, order == g] for g in range(weight.shape[1] // GROUP)], 1)
    scales = (groups.amax(2) - groups.amin(2)).div(15).half().float()
    zeros = torch.clamp(torch.round(-groups.amin(2) / scales), 1, 15)
    codes = torch.clamp(torch.round(weight / scales[:, order] + zeros[:, order]), 0, 15)
    return scales, zeros, (codes - zeros[:, order]) * scales[:, order]


def linear_of(weight):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return linear


def pack_gptq(layer_type, weight, rng, act_order):
    order = torch.arange(weight.shape[1]) // GROUP
    if act_order:
        order = order[torch.tensor(rng.permutation(weight.shape[1]))]
    scales, zeros, weight = coded(weight, order)
    layer = layer_type(4, GROUP, weight.shape[1], weight.shape[0], False, weight_dtype=torch.float32)
    layer.pack(linear_of(weight), scales, zeros.clone(), order.int())
    unpacked = layer.forward(torch.eye(weight.shape[1])).T.contiguous()
    assert torch.equal(unpacked, weight)
    parts = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales.half(), "g_idx": layer.g_idx}
    return parts, unpacked


def pack_awq(layer_type, dequantize, weight):
    scales, zeros, weight = coded(weight, torch.arange(weight.shape[1]) // GROUP)
    scales, zeros = scales.T.contiguous(), zeros.T.contiguous()
    layer = layer_type.from_linear(linear_of(weight), 4, GROUP, scales=scales, zeros=zeros)
    unpacked = dequantize(layer.qweight, layer.qzeros, layer.scales.float(), 4, GROUP).T.contiguous()
    assert torch.equal(unpacked, weight)
    return {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}, unpacked


def make(folder, scheme, seed, gptq, awq, dequantize):
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), {**COMMON, "quantization_config": scheme}, indent=1)
    write_json(os.path.join(folder, "tokenizer.json"), tokenizer())
    auto, config = transformers.AutoModelForCausalLM, transformers.LlamaConfig(**COMMON)
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for attempt in range(200):
        rng = np.random.default_rng([seed, 4, attempt])
        state, tensors, hashes = random_weights(model, rng), {}, {}
        for name, x in state.items():
            if name.endswith(("q_proj.weight", "k_proj.weight", "lm_head.weight")):
                x = x / 2  # sharp attention makes much of how activations are rounded, as large logits do
            if not name.endswith("_proj.weight"):
                tensors[name] = x.half()
                state[name] = tensors[name].float()
                continue
            if scheme["quant_method"] == "gptq":
                parts, state[name] = pack_gptq(gptq, x, rng, scheme["desc_act"])
            else:
                parts, state[name] = pack_awq(awq, dequantize, x)
            tensors.update({name.removesuffix("weight") + part: y.contiguous() for part, y in parts.items()})
            hashes[name] = xxhash.xxh3_64_hexdigest(state[name].numpy().astype("<f4").tobytes())
        model.load_state_dict(state)
        reference = continued_reference(model, rng, LEAST_GAP)
        if reference is not None:
            break
    else:
        sys.exit(f"{folder}: no clear continuation")
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    write_json(os.path.join(folder, "logits.json"), {**reference, "weights": hashes})
    print(f"{os.path.basename(folder)}: smallest gap {min(reference['gap']):.3g}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    root, tools = sys.argv[1], packages(*sys.argv[2:4])
    with torch.no_grad():
        for seed, (name, scheme) in enumerate(MODELS.items()):
            if sys.argv[4:] and name not in sys.argv[4:]:
                continue
            make(os.path.join(root, "tests/data/reference/hf_" + name), scheme, seed, *tools)


main()

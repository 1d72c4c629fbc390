#!/usr/bin/env python3
"""Makes tests/data/convert: small GGUF files and what the PyPI package gguf dequantises from them (needs numpy,
gguf, xxhash).

  make_convert_vectors.py OUT

NAME.gguf with NAME.f32: the values of all tensors, f32 little-endian, in the order of the file, rows first.
blocks.json: for every quantised type random blocks (hexadecimal, as they stand in a file) and the bits of what they
stand for. Blocks whose scales are the largest, the smallest and negative ones are among them.
mixed.json: what the tensors of mixed.gguf hash to (XXH3-64 of their f32, needs xxhash).
"""

import json
import os
import sys

import gguf
import numpy as np
import xxhash
from gguf import GGMLQuantizationType as Type
from gguf import TokenType

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, EXPERTS = 2, 32, 4, 2, 8, 64, 3


def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b if b in keep else next(spare)) for b in range(256)]


def byte_level(w, pre):
    tokens = byte_alphabet()
    merges = ["h e", "l l", "he ll", "hell o", f"{tokens[32]} w"]
    tokens += [m.replace(" ", "") for m in merges]
    kinds = (
        [TokenType.NORMAL] * len(tokens)
        + [TokenType.CONTROL] * 3
        + [TokenType.USER_DEFINED, TokenType.UNUSED]
    )
    tokens += ["<|bos|>", "<|eos|>", "<|eot_id|>", "<tool> call", "[PAD265]"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges(merges)
    w.add_bos_token_id(261)
    w.add_eos_token_id(262)
    w.add_eot_token_id(263)
    return len(tokens)


def sentencepiece(w):
    tokens = (
        ["<unk>", "<s>", "</s>"]
        + [f"<0x{b:02X}>" for b in range(256)]
        + ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    )
    kinds = (
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.BYTE] * 256
        + [TokenType.NORMAL] * 6
    )
    scores = [0.0] * 259 + [-5.0, -6.0, -7.0, -1.0, -2.0, -3.0]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(kinds)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)
    return len(tokens)


def make(
    folder, name, arch, tokenizer, types, biases=False, qk_norm=False, tied=True, rope_freqs=None, experts=None
):
    """types: of the matrices, used in turn. experts: "stacked", or "single" as files of 2023 have them."""
    rng = np.random.default_rng(sum(name.encode()))
    path = os.path.join(folder, name)
    w = gguf.GGUFWriter(path + ".gguf", arch)
    w.add_name(name)
    w.add_block_count(LAYERS)
    w.add_context_length(128)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(500000.0)
    w.add_rope_dimension_count(HEAD_DIM)
    if experts:
        w.add_expert_count(EXPERTS)
        w.add_expert_used_count(2)
    vocab = tokenizer(w)
    w.add_vocab_size(vocab)
    values, count = [], [0]

    def tensor(tensor_name, shape, kind):
        x = rng.standard_normal(shape).astype(np.float32) * np.float32(0.2)
        if len(shape) == 2:
            x[0, :32] = 0  # a group of zeros
            x[-1, 5] = 3  # an outlier
        data = x if kind == Type.F32 else gguf.quants.quantize(x, kind)
        w.add_tensor(tensor_name, data, raw_dtype=kind)
        values.append(gguf.quants.dequantize(data, kind).astype("<f4").reshape(-1))

    def matrix(tensor_name, rows, cols):
        tensor(tensor_name, (rows, cols), types[count[0] % len(types)])
        count[0] += 1

    def vector(tensor_name, n):
        tensor(tensor_name, (n,), Type.F32)

    def mixture(b):
        tensor(b + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), Type.F32)
        for role, rows, cols in [("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)]:
            if experts == "stacked":
                tensor(f"{b}ffn_{role}_exps.weight", (EXPERTS, rows, cols), types[count[0] % len(types)])
                count[0] += 1
            else:
                for expert in range(EXPERTS):
                    matrix(f"{b}ffn_{role}.{expert}.weight", rows, cols)

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    matrix("token_embd.weight", vocab, HIDDEN)
    vector("output_norm.weight", HIDDEN)
    if not tied:
        matrix("output.weight", vocab, HIDDEN)
    if rope_freqs is not None:
        w.add_tensor("rope_freqs.weight", rope_freqs, raw_dtype=Type.F32)
    for i in range(LAYERS):
        b = f"blk.{i}."
        vector(b + "attn_norm.weight", HIDDEN)
        matrix(b + "attn_q.weight", q, HIDDEN)
        matrix(b + "attn_k.weight", kv, HIDDEN)
        matrix(b + "attn_v.weight", kv, HIDDEN)
        matrix(b + "attn_output.weight", HIDDEN, q)
        if biases:
            vector(b + "attn_q.bias", q)
            vector(b + "attn_k.bias", kv)
            vector(b + "attn_v.bias", kv)
        if qk_norm:
            vector(b + "attn_q_norm.weight", HEAD_DIM)
            vector(b + "attn_k_norm.weight", HEAD_DIM)
        vector(b + "ffn_norm.weight", HIDDEN)
        if experts:
            mixture(b)
            continue
        matrix(b + "ffn_gate.weight", FFN, HIDDEN)
        matrix(b + "ffn_up.weight", FFN, HIDDEN)
        matrix(b + "ffn_down.weight", HIDDEN, FFN)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if rope_freqs is None:
        np.concatenate(values).tofile(path + ".f32")


BLOCK_TYPES = [
    Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K,
    Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4,
]  # fmt: skip
# Where the f16 of a block stand.
HALVES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
    Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0], Type.IQ4_XS: [0],
    Type.MXFP4: [],
}  # fmt: skip


def random_blocks(kind, count, rng, halves):
    """Blocks of random bits, their f16 drawn by halves(number of the f16)."""
    blocks = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for i, at in enumerate(HALVES[kind]):
        blocks[:, at : at + 2] = halves(i).astype(np.float16).reshape(-1, 1).view(np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = rng.integers(110, 124, count)
    return blocks


def make_blocks(path):
    rng = np.random.default_rng(8)
    out = {}
    for kind in BLOCK_TYPES:
        scales = [6e-8, -6e-8, 65504, -65504, 0, -0.0, 3e-5, 1.0]
        scales += list(rng.standard_normal(8) * 0.02)
        blocks = random_blocks(kind, len(scales), rng, lambda i: np.array(scales if i == 0 else scales[::-1]))
        if kind == Type.MXFP4:
            blocks[:6, 0] = [0, 1, 2, 3, 127, 252]
        values = gguf.quants.dequantize(blocks, kind).astype("<f4")
        assert np.isfinite(values).all(), kind
        out[kind.name] = {"blocks": blocks.tobytes().hex(), "values": values.tobytes().hex()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


def make_mixed(path, hashes_path):
    """As the usual quantiser mixes types (Q4_K_M and others): rows of 256, the K types from random blocks."""
    rng = np.random.default_rng(9)
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("mixed")
    w.add_block_count(2)
    w.add_context_length(128)
    w.add_embedding_length(256)
    w.add_feed_forward_length(256)
    w.add_head_count(4)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(64)
    vocab = byte_level(w, "llama-bpe")
    hashes = {}

    def tensor(name, rows, kind):
        if kind == Type.F32:
            data = (1 + 0.1 * rng.standard_normal(256)).astype(np.float32)
            w.add_tensor(name, data)
            return
        block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random_blocks(kind, rows * 256 // block, rng, lambda i: np.full(rows * 256 // block, 2e-4))
        values = gguf.quants.dequantize(blocks, kind).astype("<f4")
        hashes[name] = {"type": kind.name, "hash": xxhash.xxh3_64_hexdigest(values.tobytes())}
        w.add_tensor(name, blocks.reshape(rows, 256 // block * size), raw_dtype=kind)

    tensor("token_embd.weight", vocab, Type.Q6_K)
    tensor("output_norm.weight", 0, Type.F32)
    tensor("output.weight", vocab, Type.Q6_K)
    for i, kinds in enumerate([
        (Type.Q4_K, Type.Q4_K, Type.Q6_K, Type.Q5_K, Type.Q3_K, Type.Q2_K, Type.Q6_K),
        (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4),
    ]):  # fmt: skip
        b = f"blk.{i}."
        tensor(b + "attn_norm.weight", 0, Type.F32)
        names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        for name, kind in zip(names, kinds):
            tensor(f"{b}{name}.weight", 64 if name in ("attn_k", "attn_v") else 256, kind)
        tensor(b + "ffn_norm.weight", 0, Type.F32)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with open(hashes_path, "w", encoding="utf-8") as file:
        json.dump(hashes, file, indent=1)
        file.write("\n")


def llama3_divisors(factor, theta, head_dim, low=1.0, high=4.0, original=8192.0):
    """As transformers' _compute_llama3_parameters, told as divisors of the plain frequencies."""
    out = []
    for j in range(0, head_dim, 2):
        wave = 2 * np.pi * theta ** (j / head_dim)
        smooth = (original / wave - low) / (high - low)
        out.append(
            1.0
            if wave < original / high
            else factor if wave > original / low else 1 / ((1 - smooth) / factor + smooth)
        )
    return np.array(out, np.float32)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    make(folder, "qwen2_q8_0", "qwen2", lambda w: byte_level(w, "qwen2"), [Type.Q8_0], biases=True)
    make(folder, "llama_q4_0", "llama", sentencepiece, [Type.Q4_0], tied=False)
    make(
        folder,
        "qwen3_mixed",
        "qwen3",
        lambda w: byte_level(w, "qwen2"),
        [Type.BF16, Type.F16, Type.F32, Type.Q8_0, Type.Q4_0],
        qk_norm=True,
    )
    make(
        folder,
        "qwen3moe_mixed",
        "qwen3moe",
        lambda w: byte_level(w, "qwen2"),
        [Type.Q4_0, Type.Q8_0],
        qk_norm=True,
        experts="stacked",
    )
    make(folder, "llama_single_experts", "llama", sentencepiece, [Type.Q4_0], experts="single")
    make(
        folder,
        "llama3_scaled",
        "llama",
        lambda w: byte_level(w, "llama-bpe"),
        [Type.Q4_0],
        rope_freqs=llama3_divisors(32.0, 500000.0, HEAD_DIM),
    )
    make_mixed(os.path.join(folder, "mixed.gguf"), os.path.join(folder, "mixed.json"))
    make_blocks(os.path.join(folder, "blocks.json"))


main()

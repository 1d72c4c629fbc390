#!/usr/bin/env python3
"""Perplexity of a model in blocks of Q4_K or Q6_K, as kvc multiplies them, beside that of the very same weights in f32.

    block_perplexity.py KVC MODEL_DIR TEXT... [--window N] [--limit N] [--scratch DIR]

MODEL_DIR: a Llama-like directory whose matrices have multiples of 256 columns (models/recall). Its weights become
blocks here, by a plain quantiser; PyPI's gguf makes f32 of those blocks; both go through `kvc convert` and `kvc eval`.
What differs then is what multiplying in blocks does: activations rounded to eight bits, and the order of sums. The
second is what the reference and the fastest kernels differ by in f32 (the last column). Differences are relative to
f32. Needs numpy and gguf."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

BLOCK = 256


def half(x):
    return np.asarray(x, np.float16)


def q4_k(x):
    """[n, 256] as blocks [n, 144]: of 32 values each a scale and a least value, of six bits, times one of the block."""
    x = x.reshape(-1, 8, 32)
    low = np.maximum(-x.min(2), 0)
    scale = (x.max(2) + low) / 15
    d, least = half(scale.max(1) / 63), half(low.max(1) / 63)
    wide = [np.maximum(v.astype(np.float32), 1e-30)[:, None] for v in (d, least)]
    s, m = (np.clip(np.rint(v / w), 0, 63).astype(np.uint8) for v, w in zip((scale, low), wide))
    step = np.maximum(wide[0] * s, 1e-30)[..., None]
    codes = np.clip(np.rint((x + (wide[1] * m)[..., None]) / step), 0, 15).astype(np.uint8)
    packed = np.concatenate(
        [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], 1
    )
    return np.concatenate(
        [d[:, None].view(np.uint8), least[:, None].view(np.uint8), packed,
         (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(-1, 128)], 1)  # fmt: skip


def q6_k(x):
    """[n, 256] as blocks [n, 210]: of 16 values each a scale of eight bits, times one of the block."""
    x = x.reshape(-1, 16, 16)
    scale = np.abs(x).max(2) / 31
    d = half(scale.max(1) / 127)
    wide = np.maximum(d.astype(np.float32), 1e-30)[:, None]
    s = np.rint(scale / wide).astype(np.int8)
    step = np.maximum(wide * s, 1e-30)[..., None]
    codes = (np.clip(np.rint(x / step), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    return np.concatenate(
        [(low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128),
         (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64),
         s.view(np.uint8), d[:, None].view(np.uint8)], 1)  # fmt: skip


def read_safetensors(path):
    """{name: f32 array} of a file in bf16 or f32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    out = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        raw = data[slice(*about["data_offsets"])]
        if about["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[about["dtype"]]).astype(np.float32)
        out[name] = values.reshape(about["shape"])
    return out


def gguf_tensors(config, weights):
    """(name, array) by GGUF's names; its rope turns neighbours, so the rows of queries and keys change places."""
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm"}  # fmt: skip
    yield "token_embd", weights["model.embed_tokens.weight"]
    yield "output_norm", weights["model.norm.weight"]
    for layer in range(config["num_hidden_layers"]):
        for theirs, name in names.items():
            w = weights[f"model.layers.{layer}.{theirs}.weight"]
            if name in ("attn_q", "attn_k"):
                w = w.reshape(-1, 2, config["head_dim"] // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
            yield f"blk.{layer}.{name}", w


def write_tokenizer(writer, directory):
    """The vocabulary as it is, cut as GPT-2 does."""
    with open(os.path.join(directory, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    special = {t["content"] for t in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in special else 1 for t in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(True)


def write_models(directory, kind, paths):
    """The blocks to paths[0], what they stand for in f32 to paths[1]."""
    import gguf  # noqa: PLC0415: the quantiser above does without

    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    weights = read_safetensors(os.path.join(directory, "model.safetensors"))
    number = gguf.GGMLQuantizationType[kind.upper()]
    for path in paths:
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
        write_tokenizer(writer, directory)
        for name, values in gguf_tensors(config, weights):
            if values.ndim == 1:
                writer.add_tensor(f"{name}.weight", values)
                continue
            blocks = {"q4_k": q4_k, "q6_k": q6_k}[kind](values.reshape(-1, BLOCK)).reshape(len(values), -1)
            if path == paths[0]:
                writer.add_tensor(f"{name}.weight", blocks, raw_dtype=number)
            else:
                writer.add_tensor(f"{name}.weight", gguf.dequantize(blocks, number).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def measure(options, path, isa=None):
    """(perplexity, tokens scored), over all texts."""
    env = dict(os.environ, **({"KVC_ISA": isa} if isa else {}))
    command = [options.kvc, "eval", path, "--json", "--policy", "full:kv=f32", "--window", str(options.window)]
    command += ["--limit", str(options.limit)] if options.limit else []
    for text in options.texts:
        command += ["--text", text]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, env=env).stdout)["results"]
    scored = sum(row["n"] for row in rows)
    return np.exp(sum(np.log(row["perplexity"]) * row["n"] for row in rows) / scored), scored


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kvc")
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--limit", type=int, default=0, help="windows of each text, 0 = all")
    parser.add_argument("--scratch", default=None)
    options = parser.parse_args()
    print("type  tokens  perplexity in blocks  of the same weights in f32  relative  of sums alone")
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for kind in ("q4_k", "q6_k"):
            paths = [os.path.join(folder, f"{kind}-{form}") for form in ("blocks", "f32")]
            write_models(options.model, kind, [path + ".gguf" for path in paths])
            for path in paths:
                subprocess.run([options.kvc, "convert", path + ".gguf", path + ".kvc"], check=True, capture_output=True)
            (blocks, n), (plain, _) = (measure(options, path + ".kvc") for path in paths)
            sums = measure(options, paths[1] + ".kvc", "ref")[0]
            apart = f"{blocks / plain - 1:+.1e}  {sums / plain - 1:+.1e}"
            print(f"{kind}  {n}  {blocks:.6f}  {plain:.6f}  {apart}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""How fast `kvc convert` is and what memory it takes, on random weights in the shapes of models people run.

    convert_speed.py KVC FOLDER [--runs 3] [--only bf16]

Makes the sources in FOLDER where they are not there yet (up to 1 GB each), reads each once so that it lies in the page
cache, and prints, of the fastest of the runs: seconds, also those of all processors together, bytes of the source a
second, and the largest resident size, beside what is promised, the largest tensor as it is stored and 64 MiB. The time
has everything in it, also the wait until the file is on the disk; with FOLDER in memory (/dev/shm) there is none. Needs
numpy and gguf."""

import argparse
import json
import multiprocessing
import os
import sys
import time

import shapes

# shape, type of the source, options, what becomes of it
CASES = (
    ("0.5b", "bf16", (), "bf16"),
    ("0.5b", "bf16", ("--weights", "int8"), "int8"),
    ("0.5b", "bf16", ("--pack", "native"), "bf16, packed"),
    ("0.5b", "bf16", ("--weights", "int8", "--pack", "native"), "int8, packed"),
    ("0.5b", "q8_0", ("--pack", "native"), "int8, packed"),
    ("1b", "q4_k", ("--pack", "native"), "Q4_K, Q6_K, packed"),
)
HF_NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm"}  # fmt: skip
MOST_BESIDE = 64 << 20  # what is promised beside the largest tensor


def hf_name(name):
    if not name.startswith("blk."):
        return {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[name] + ".weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{HF_NAMES[part]}.weight"


def write_hf(folder, name, seed=1):
    """A directory with the shape of that name in bf16: rows from one pool of normal values, as shapes.py has them."""
    import numpy as np  # noqa: PLC0415: only those who make models need it

    shape = shapes.SHAPES[name]
    os.makedirs(folder, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_size,
        "intermediate_size": shape.feed_forward, "vocab_size": shape.vocabulary, "rope_theta": shape.theta,
        "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {token: i for i, token in enumerate(shapes.byte_tokens())}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "decoder": level,
                 "post_processor": None, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}  # fmt: skip
    for file, content in (("config.json", config), ("tokenizer.json", tokenizer)):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
            json.dump(content, out)
    tensors = [(hf_name(n), (rows, columns), scale) for n, rows, columns, scale in shapes.matrices(shape)]
    tensors += [(hf_name(n), (shape.hidden,), 1.0) for n in shapes.norms(shape)]
    header, at = {}, 0
    for tensor, size, _ in tensors:
        n = 2 * int(np.prod(size))
        header[tensor] = {"dtype": "BF16", "shape": list(size), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pool = np.random.default_rng(seed).standard_normal(1 << 21, dtype=np.float32)
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for i, (_, size, scale) in enumerate(tensors):
            half = (np.roll(pool, 7919 * i) * np.float32(scale)).view(np.uint32) >> 16
            half, left = half.astype(np.uint16), int(np.prod(size))
            while left > 0:
                out.write(half[:left].tobytes())
                left -= min(left, len(half))


def source_of(folder, shape, kind):
    """The path of a source, made where it is missing, and its bytes; in the page cache."""
    path = os.path.join(folder, f"{shape}-{kind}" + ("" if kind == "bf16" else ".gguf"))
    weights = os.path.join(path, "model.safetensors") if kind == "bf16" else path
    if not os.path.exists(weights):  # by another process: what is measured is born with the resident size of this one
        make = (write_hf, (path, shape)) if kind == "bf16" else (shapes.write, (path, shape, kind))
        maker = multiprocessing.get_context("fork").Process(target=make[0], args=make[1])
        maker.start()
        maker.join()
        if maker.exitcode != 0:
            sys.exit(f"{path} could not be made")
    with open(weights, "rb") as file:
        while file.read(1 << 24):
            pass
    return path, os.path.getsize(weights)


def run(command):
    """(seconds, those of processors, bytes resident at most) of a command that must succeed."""
    begin = time.perf_counter()
    child = os.posix_spawn(command[0], command, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])  # fmt: skip
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: failed")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def largest_tensor(kvc, path):
    """Bytes of the largest tensor of a model file."""
    import subprocess  # noqa: PLC0415

    about = json.loads(subprocess.run([kvc, "inspect", path, "--json"], check=True, capture_output=True).stdout)
    return max(tensor["size"] for tensor in about["tensors"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kvc")
    parser.add_argument("folder")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=None, help="sources of this kind")
    options = parser.parse_args()
    kvc, out = os.path.abspath(options.kvc), os.path.join(options.folder, "out.kvc")
    print("| source | becomes | MB read | MB written | seconds | of processors | MB/s | peak MiB | promised MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shape, kind, more, becomes in CASES:
        if options.only not in (None, kind):
            continue
        path, n_bytes = source_of(options.folder, shape, kind)
        seconds, busy, peak = min(run([kvc, "convert", path, out, *more]) for _ in range(options.runs))
        promised = largest_tensor(kvc, out) + MOST_BESIDE
        read, written = n_bytes / 1e6, os.path.getsize(out) / 1e6
        print(f"| {shape}, {kind} | {becomes} | {read:.0f} | {written:.0f} | {seconds:.2f} | {busy:.2f} | "
              f"{read / seconds:.0f} | {peak / 2**20:.0f} | {promised / 2**20:.0f} |", flush=True)  # fmt: skip
        os.remove(out)


if __name__ == "__main__":
    main()

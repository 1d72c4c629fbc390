#!/usr/bin/env python3
"""Makes stories260k_llamacpp.json, gguf_llamacpp.json and recall_quantised_llamacpp.* in tests/data/reference: what
llama.cpp computes.

  make_llamacpp_vectors.py ROOT LOGITS RECALL [--gguf GGUF] [--only PART]

ROOT    the root of the repository
LOGITS  the program that llamacpp_logits.cc makes
RECALL  the program recall_gguf of a build with tests (ninja recall_gguf)
GGUF    where stories260k as GGUF is left (default: nowhere)
PART    stories, files or recall

Needs the PyPI packages numpy, gguf and xxhash, and llama.cpp (made with commit 0c1e57098, as llama-cpp-python 0.3.36
carries it), its target llama built with -DBUILD_SHARED_LIBS=OFF, and with it the program:
  c++ -std=c++17 -O2 -fopenmp -I LLAMA/include -I LLAMA/ggml/include llamacpp_logits.cc -o llamacpp_logits \\
      BUILD/src/libllama.a BUILD/ggml/src/libggml.a BUILD/ggml/src/libggml-cpu.a \\
      BUILD/ggml/src/libggml-base.a -lpthread -ldl -lm
llama.cpp gets all weights as f32, as with quantised ones it rounds activations too; but for recall both.
stories260k: ids are BOS and its greedy continuation; logits: the 20 largest after some prefixes (n tokens).
The GGUF files of tests/data/convert: ids are random; logits: all of them after some prefixes.
recall_quantised: models/recall in Q8_0, Q4_0 and Q4_K, ids a golden prompt of prose. The .bin has, file by file and
prefix by prefix, the TOP tokens that are likeliest with the same weights as f32 (uint16), their log probabilities in
f32 and behind them that of all other tokens together (float32), and the same of llama.cpp with the quantised file. KL
divergences of these cells are at most those of whole distributions: how much of the probability is outside is
printed."""

import argparse
import json
import os
import struct
import subprocess
import tempfile

import gguf
import numpy as np
import xxhash

CONTINUATION, EVERY, BOS = 200, 3, 1
RECALL_TYPES, RECALL_IDS, RECALL_FIRST, RECALL_EVERY, TOP = ("q8_0", "q4_0", "q4_k"), 512, 129, 3, 128
GGUF_FILES, PREFIXES = ["llama_q4_0", "qwen2_q8_0", "qwen3_mixed", "llama3_scaled"], [1, 7, 64, 128]


def read_checkpoint(path):
    """llama2.c's first format: seven int32, then all of one kind of tensor after the other, f32."""
    with open(path, "rb") as file:
        raw = file.read()
    dim, ffn, layers, heads, kv_heads, vocab, context = struct.unpack("<7i", raw[:28])
    values = np.frombuffer(raw, "<f4", offset=28)
    head_dim, at, tensors = dim // heads, 0, {}

    def take(*shape):
        nonlocal at
        n = int(np.prod(shape))
        at += n
        return values[at - n : at].reshape(shape)

    tensors["token_embd"] = take(abs(vocab), dim)
    for name, shape in [
        ("attn_norm", (dim,)),
        ("attn_q", (heads * head_dim, dim)),
        ("attn_k", (kv_heads * head_dim, dim)),
        ("attn_v", (kv_heads * head_dim, dim)),
        ("attn_output", (dim, heads * head_dim)),
        ("ffn_norm", (dim,)),
        ("ffn_gate", (ffn, dim)),
        ("ffn_down", (dim, ffn)),
        ("ffn_up", (ffn, dim)),
    ]:
        for i, tensor in enumerate(take(layers, *shape)):
            tensors[f"blk.{i}.{name}"] = tensor
    tensors["output_norm"] = take(dim)
    take(2, context, head_dim // 2)  # tables of angles that readers make themselves
    if vocab < 0:
        tensors["output"] = take(-vocab, dim)
    return (
        dict(
            dim=dim, ffn=ffn, layers=layers, heads=heads, kv_heads=kv_heads, vocab=abs(vocab), context=context
        ),
        tensors,
    )


def read_pieces(path, n):
    with open(path, "rb") as file:
        raw = file.read()
    at, pieces, scores = 4, [], []
    for _ in range(n):
        score, size = struct.unpack_from("<fi", raw, at)
        pieces.append(raw[at + 8 : at + 8 + size])
        scores.append(score)
        at += 8 + size
    return pieces, scores


def write_gguf(path, shape, tensors, pieces, scores):
    w = gguf.GGUFWriter(path, "llama")
    w.add_file_type(0)
    w.add_context_length(shape["context"])
    w.add_embedding_length(shape["dim"])
    w.add_block_count(shape["layers"])
    w.add_feed_forward_length(shape["ffn"])
    w.add_head_count(shape["heads"])
    w.add_head_count_kv(shape["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(shape["dim"] // shape["heads"])
    w.add_vocab_size(shape["vocab"])
    special = [b"<unk>", b"<s>", b"</s>"]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(special + [p.replace(b" ", "\u2581".encode()) for p in pieces[3:]])
    w.add_token_scores(scores)
    w.add_token_types(kinds + [gguf.TokenType.NORMAL] * (shape["vocab"] - len(kinds)))
    w.add_unk_token_id(0)
    w.add_bos_token_id(BOS)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    for name, tensor in tensors.items():
        w.add_tensor(name + ".weight", np.ascontiguousarray(tensor, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def copy_as_f32(source, path):
    """The same model with all tensors f32."""
    reader = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            w.add_key_value(name, field.contents(), field.types[0], sub_type=kind)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        w.add_tensor(tensor.name, values.astype(np.float32).reshape(shape))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def logits(program, model, ids, folder):
    given, out = os.path.join(folder, "ids"), os.path.join(folder, "logits")
    with open(given, "w", encoding="ascii") as file:
        file.write(" ".join(map(str, ids)))
    subprocess.run([program, model, given, out], check=True)
    return np.fromfile(out, np.float32).reshape(len(ids), -1)


def write_reference(root, name, value):
    with open(os.path.join(root, "tests/data/reference", name), "w", encoding="utf-8") as out:
        json.dump(value, out, separators=(",", ":"))
        out.write("\n")


def make_stories(root, program, model, folder):
    source = os.path.join(root, "models", "stories260k")
    shape, tensors = read_checkpoint(os.path.join(source, "stories260K.bin"))
    write_gguf(model, shape, tensors, *read_pieces(os.path.join(source, "tok512.bin"), shape["vocab"]))
    ids = [BOS]
    for _ in range(CONTINUATION):
        ids.append(int(logits(program, model, ids, folder)[-1].argmax()))
    rows = logits(program, model, ids, folder)
    best = np.sort(rows, axis=1)[:, ::-1]
    print(f"stories260k: smallest gap {(best[:, 0] - best[:, 1]).min():.3g}, spread of the logits {rows.std():.3g}")
    cases = []
    for n in range(1, len(ids) + 1, EVERY):
        row = rows[n - 1]
        top = np.argsort(-row, kind="stable")[:20]
        cases.append({"n": n, "top20": [[int(i), float(f"{row[i]:.8g}")] for i in top]})
    write_reference(root, "stories260k_llamacpp.json", {"ids": ids, "logits": cases})


def make_gguf_files(root, program, folder):
    models = {}
    for seed, name in enumerate(GGUF_FILES):
        copy = os.path.join(folder, name + ".gguf")
        copy_as_f32(os.path.join(root, "tests/data/convert", name + ".gguf"), copy)
        ids = np.random.default_rng(seed).integers(0, 256, max(PREFIXES)).tolist()
        rows = logits(program, copy, ids, folder)
        print(f"{name}: spread of the logits {rows.std():.3g}")
        cases = [{"n": n, "values": [float(f"{x:.8g}") for x in rows[n - 1]]} for n in PREFIXES]
        models[name] = {"ids": ids, "logits": cases}
    write_reference(root, "gguf_llamacpp.json", models)


def log_probabilities(rows):
    rows = rows.astype(np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def cells(row, top):
    """Of these tokens, and of all others together."""
    rest = np.delete(row, top)
    return np.append(row[top], rest.max() + np.log(np.exp(rest - rest.max()).sum())).astype("<f4")


def make_recall(root, program, recall, folder):
    with open(os.path.join(root, "tests/data/goldens/model/full.json"), encoding="utf-8") as file:
        ids = next(p["ids"] for p in json.load(file)["prompts"] if p["name"] == "prose1")[:RECALL_IDS]
    files, out = {}, b""
    for kind in RECALL_TYPES:
        model, copy = os.path.join(folder, kind + ".gguf"), os.path.join(folder, kind + "_f32.gguf")
        subprocess.run([recall, os.path.join(root, "models/recall"), kind, model], check=True)
        copy_as_f32(model, copy)
        with open(model, "rb") as file:
            files[kind] = xxhash.xxh3_64_hexdigest(file.read())
        plain, theirs = (log_probabilities(logits(program, path, ids, folder)) for path in (copy, model))
        outside = []
        for n in range(RECALL_FIRST, len(ids) + 1, RECALL_EVERY):
            top = np.argsort(-plain[n - 1], kind="stable")[:TOP]
            of_plain, of_theirs = cells(plain[n - 1], top), cells(theirs[n - 1], top)
            outside.append(np.exp(of_plain[-1]))
            out += top.astype("<u2").tobytes() + of_plain.tobytes() + of_theirs.tobytes()
        apart = (np.exp(plain) * (plain - theirs)).sum(axis=1)[RECALL_FIRST - 1 :: RECALL_EVERY]
        loss = -plain[np.arange(len(ids) - 1), ids[1:]].mean()
        print(f"recall {kind}: perplexity {np.exp(loss):.4g}; KL of f32 and llama.cpp, all tokens {apart.mean():.4g}; "
              f"outside of the {TOP} likeliest {np.mean(outside):.3g}")  # fmt: skip
    write_reference(root, "recall_quantised_llamacpp.json", dict(ids=ids, every=RECALL_EVERY, top=TOP, files=files))
    with open(os.path.join(root, "tests/data/reference/recall_quantised_llamacpp.bin"), "wb") as file:
        file.write(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("logits")
    parser.add_argument("recall")
    parser.add_argument("--gguf")
    parser.add_argument("--only", choices=("stories", "files", "recall"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "stories"):
            model = options.gguf or os.path.join(folder, "stories260k.gguf")
            make_stories(options.root, options.logits, model, folder)
        if options.only in (None, "files"):
            make_gguf_files(options.root, options.logits, folder)
        if options.only in (None, "recall"):
            make_recall(options.root, options.logits, options.recall, folder)


main()

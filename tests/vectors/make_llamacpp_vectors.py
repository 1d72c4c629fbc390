#!/usr/bin/env python3
"""Makes tests/data/reference/stories260k_llamacpp.json: what llama.cpp computes for stories260k in f32, for the
engine to be compared with.

  make_llamacpp_vectors.py ROOT LOGITS [GGUF]     ROOT: the root of the repository; LOGITS: the program of
  llamacpp_logits.cc;
                                                  GGUF: where the model that llama.cpp reads is left (default:
                                                  nowhere)

Needs the PyPI packages numpy and gguf, and llama.cpp (made with commit 0c1e57098, as llama-cpp-python 0.3.36
carries it), built with
cmake -DBUILD_SHARED_LIBS=OFF for the target llama, and with it the program:
  c++ -std=c++17 -O2 -fopenmp -I LLAMA/include -I LLAMA/ggml/include llamacpp_logits.cc -o llamacpp_logits \\
      BUILD/src/libllama.a BUILD/ggml/src/libggml.a BUILD/ggml/src/libggml-cpu.a BUILD/ggml/src/libggml-base.a
      -lpthread -ldl -lm
ids: BOS and its greedy continuation. logits: the 20 largest after some prefixes (n tokens) of it."""

import json
import os
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np

CONTINUATION, EVERY, BOS = 200, 3, 1


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


def logits(program, model, ids, folder):
    given, out = os.path.join(folder, "ids"), os.path.join(folder, "logits")
    with open(given, "w", encoding="ascii") as file:
        file.write(" ".join(map(str, ids)))
    subprocess.run([program, model, given, out], check=True)
    return np.fromfile(out, np.float32).reshape(len(ids), -1)


def main():
    root, program = sys.argv[1:3]
    source = os.path.join(root, "models", "stories260k")
    shape, tensors = read_checkpoint(os.path.join(source, "stories260K.bin"))
    with tempfile.TemporaryDirectory() as folder:
        model = sys.argv[3] if len(sys.argv) > 3 else os.path.join(folder, "stories260k.gguf")
        write_gguf(model, shape, tensors, *read_pieces(os.path.join(source, "tok512.bin"), shape["vocab"]))
        ids = [BOS]
        for _ in range(CONTINUATION):
            ids.append(int(logits(program, model, ids, folder)[-1].argmax()))
        rows = logits(program, model, ids, folder)
    best = np.sort(rows, axis=1)[:, ::-1]
    print(
        f"smallest distance of the two best logits: {(best[:, 0] - best[:, 1]).min():.3g}, "
        f"spread of logits {rows.std():.3g}"
    )
    cases = []
    for n in range(1, len(ids) + 1, EVERY):
        row = rows[n - 1]
        top = np.argsort(-row, kind="stable")[:20]
        cases.append({"n": n, "top20": [[int(i), float(f"{row[i]:.8g}")] for i in top]})
    with open(
        os.path.join(root, "tests/data/reference/stories260k_llamacpp.json"), "w", encoding="utf-8"
    ) as out:
        json.dump({"ids": ids, "logits": cases}, out, separators=(",", ":"))
        out.write("\n")


main()

#!/usr/bin/env python3
"""GGUF files with random weights in the shapes of models people run, to measure speed and memory with: what a pass
costs does not depend on what the weights are. Needs numpy and PyPI's gguf. shapes.py 0.5b q8_0 OUT.gguf

Rows are drawn block by block from one pool of normal blocks (of random codes in K-quants), so making a file costs no
more than writing it; the same shape and type give the same bytes."""

import dataclasses
import math
import sys

TYPES = ("q8_0", "q4_0", "q4_k", "bf16", "f16")
POOL, BLOCK = 1 << 16, 32
K_POOL, K_BLOCK = 1 << 13, 256  # of q4_k and q6_k


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a Llama-like model with tied embeddings is made of."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    theta: float


SHAPES = {
    "0.5b": Shape(24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6),  # Qwen2.5-0.5B
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5),  # Llama-3.2-1B
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5),  # Llama-3.1-8B, but for its own output head
    "tiny": Shape(2, 256, 512, 4, 2, 64, 512, 4096, 1e4),  # for tests
}


def matrices(shape):
    """(name, rows, columns, standard deviation) in the order of the file."""
    q, kv, deep = shape.heads * shape.head_size, shape.kv_heads * shape.head_size, (2 * shape.layers) ** -0.5
    yield "token_embd", shape.vocabulary, shape.hidden, 0.02
    for layer in range(shape.layers):
        for name, rows, columns, scale in (
            ("attn_q", q, shape.hidden, 1), ("attn_k", kv, shape.hidden, 1), ("attn_v", kv, shape.hidden, 1),
            ("attn_output", shape.hidden, q, deep), ("ffn_gate", shape.feed_forward, shape.hidden, 1),
            ("ffn_up", shape.feed_forward, shape.hidden, 1), ("ffn_down", shape.hidden, shape.feed_forward, deep),
        ):  # fmt: skip
            yield f"blk.{layer}.{name}", rows, columns, scale * columns**-0.5


def type_of(shape, kind, name, columns):
    """The type of a matrix in a file of that kind. q4_k: as llama.cpp mixes Q4_K_M, and what it takes for columns
    that are no multiple of 256."""
    if kind != "q4_k":
        return kind
    part, layer = name.split(".")[-1], int((name.split(".") + ["0"])[1]) if "." in name else 0
    n = shape.layers
    better = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
    wanted = "q6_k" if part == "token_embd" or (part in ("attn_v", "ffn_down") and better) else "q4_k"
    if columns % K_BLOCK == 0:
        return wanted
    return "q8_0" if wanted == "q6_k" else "q5_0"


def k_blocks(kind, deviation, random):
    """Blocks of random codes and scales, for which gguf has no encoder. Values have about that deviation."""
    import numpy as np  # noqa: PLC0415

    blocks = random.integers(0, 256, (K_POOL, 144 if kind == "q4_k" else 210), dtype=np.uint8)
    half = np.array([deviation / (36 * 4.6), 7.5 * deviation / (36 * 4.6)] if kind == "q4_k" else
                    [deviation / (18.5 * 74)], dtype=np.float16).view(np.uint8)  # fmt: skip
    if kind == "q4_k":  # least values in the middle of the codes: around zero
        blocks[:, :4] = half
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
    else:
        blocks[:, 208:] = half
    return blocks


def norms(shape):
    yield "output_norm"
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_norm"
        yield f"blk.{layer}.ffn_norm"


def byte_tokens():
    """The characters that stand for the 256 bytes in byte-level vocabularies (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def write_tokenizer(writer, shape):
    """Byte-level BPE: the bytes, pairs of small letters, a filler for the rest of the vocabulary, two marks."""
    from gguf import TokenType  # noqa: PLC0415

    letters = "etaoinshrdlu"
    merges = [(a, b) for a in letters for b in letters]
    tokens = byte_tokens() + [a + b for a, b in merges]
    tokens += [f"[{i}]" for i in range(shape.vocabulary - 2 - len(tokens))] + ["<|begin|>", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * (shape.vocabulary - 2) + [TokenType.CONTROL] * 2)
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(shape.vocabulary - 2)
    writer.add_eos_token_id(shape.vocabulary - 1)
    writer.add_add_bos_token(False)


def write(path, name, kind, seed=1):
    """Writes the shape of that name with matrices of that type."""
    import gguf  # noqa: PLC0415: only those who make models need it
    import numpy as np  # noqa: PLC0415

    shape = SHAPES[name]
    types = {matrix: type_of(shape, kind, matrix, columns) for matrix, _, columns, _ in matrices(shape)}
    numbers = {matrix: gguf.GGMLQuantizationType[of.upper()] for matrix, of in types.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random {name}")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.theta)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_quantization_version(2)
    writer.add_file_type(gguf.LlamaFileType["MOSTLY_" + {"q4_k": "q4_k_m"}.get(kind, kind).upper()])
    write_tokenizer(writer, shape)

    for matrix, rows, columns, _ in matrices(shape):
        block, n_bytes = gguf.GGML_QUANT_SIZES[numbers[matrix]]
        size, number = rows * columns // block * n_bytes, numbers[matrix]
        writer.add_tensor_info(f"{matrix}.weight", (rows, columns), np.dtype(np.float32), size, raw_dtype=number)
    for vector in norms(shape):
        writer.add_tensor_info(f"{vector}.weight", (shape.hidden,), np.dtype(np.float32), 4 * shape.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()

    pool = np.random.default_rng(seed).standard_normal((POOL, BLOCK), dtype=np.float32)
    encoded = {}
    for n, (matrix, rows, columns, deviation) in enumerate(matrices(shape)):
        key = types[matrix], deviation
        k_type = types[matrix] in ("q4_k", "q6_k")
        if key not in encoded:
            encoded[key] = (
                k_blocks(types[matrix], deviation, np.random.default_rng([seed, K_POOL]))
                if k_type
                else gguf.quants.quantize(pool * np.float32(deviation), numbers[matrix])
            )
        blocks, of_row = (K_POOL, columns // K_BLOCK) if k_type else (POOL, columns // BLOCK)
        pick = np.random.default_rng([seed, n]).integers(0, blocks, (rows, of_row), dtype=np.uint16)
        writer.write_tensor_data(encoded[key][pick].reshape(rows, -1))
    for n, _ in enumerate(norms(shape)):
        writer.write_tensor_data(
            (1 + 0.1 * np.random.default_rng([seed, POOL, n]).standard_normal(shape.hidden)).astype(np.float32)
        )
    writer.close()


def n_parameters(name):
    shape = SHAPES[name]
    return sum(math.prod(m[1:3]) for m in matrices(shape)) + shape.hidden * sum(1 for _ in norms(shape))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES or sys.argv[2] not in TYPES:
        sys.exit(f"usage: shapes.py {'|'.join(SHAPES)} {'|'.join(TYPES)} OUT.gguf")
    write(sys.argv[3], sys.argv[1], sys.argv[2])

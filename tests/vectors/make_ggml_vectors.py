#!/usr/bin/env python3
"""Makes tests/data/convert/ggml.json: what ggml's own dequantize_row_* makes of the blocks of blocks.json and of the
tensors of mixed.gguf, as XXH3-64 of the f32 (needs numpy, gguf, xxhash).

  make_ggml_vectors.py LIBGGML tests/data/convert

LIBGGML: ggml's C files as a shared library; made with those inside the source distribution of llama-cpp-python 0.3.36,
in vendor/llama.cpp/ggml, with a ggml-version.h that defines GGML_VERSION and GGML_COMMIT as "":

  gcc -O1 -fPIC -shared -I. -Iinclude -Isrc src/ggml.c src/ggml-quants.c src/ggml-threading.cpp -lstdc++ -o libggml.so

for x86-64 without fused multiply-add: where a compiler fuses the products of a block, ggml's bits are other ones."""

import ctypes
import json
import os
import sys

import gguf
import numpy as np
import xxhash


def row_function(library, name):
    """Q4_K is dequantize_row_q4_K there, IQ4_NL dequantize_row_iq4_nl."""
    kind = name.lower()
    kind = kind[:-1] + "K" if kind.startswith("q") and kind.endswith("_k") else kind
    function = getattr(library, "dequantize_row_" + kind)
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return function


def digest(library, name, blocks):
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = np.ascontiguousarray(blocks, np.uint8)
    values = np.empty(blocks.size // size * elements, "<f4")
    row_function(library, name)(blocks.ctypes.data, values.ctypes.data, values.size)
    return xxhash.xxh3_64_hexdigest(values.tobytes())


def main():
    library, folder = ctypes.CDLL(os.path.abspath(sys.argv[1]), mode=os.RTLD_LAZY), sys.argv[2]
    with open(os.path.join(folder, "blocks.json"), encoding="utf-8") as file:
        blocks = json.load(file)
    out = {"blocks": {}, "mixed": {}}
    for name, entry in blocks.items():
        out["blocks"][name] = digest(library, name, np.frombuffer(bytes.fromhex(entry["blocks"]), np.uint8))
    for tensor in gguf.GGUFReader(os.path.join(folder, "mixed.gguf")).tensors:
        if tensor.tensor_type.name in blocks:
            out["mixed"][tensor.name] = digest(library, tensor.tensor_type.name, tensor.data)
    with open(os.path.join(folder, "ggml.json"), "w", encoding="utf-8") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


main()

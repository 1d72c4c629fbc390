#!/usr/bin/env python3
"""What the CUDA backend's kernels should take on devices that nobody has run it on: the bytes and operations of each
launch of a step and of a prompt, over the rates of the device. Predictions, not measurements; docs/cuda.md has the
tables as this prints them (--write puts them there, a test compares).

  time of a launch = max(bytes / (efficiency * bandwidth), operations / rate, least) + gap"""

import dataclasses
import os
import re
import sys

from shapes import SHAPES, Shape

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "cuda.md")
BEGIN, END = "<!-- predictions: bench/gpu_model.py --write -->\n", "<!-- end of predictions -->\n"


@dataclasses.dataclass(frozen=True)
class Device:
    """Rates that programs reach, not those of data sheets."""

    bandwidth: float  # bytes per second of a copy
    products: float  # operations per second of large products on the tensor cores, 16 bits
    attention: float  # the same in the attention of a prompt
    gap: float  # seconds between two kernels of a graph
    least: float  # seconds of the shortest attention kernel
    block: float  # bytes per second that one multiprocessor reads from the second cache: 64 a clock
    turn: float  # seconds from the choice of a token to the first kernel of the next step: the host waits for it,
    # makes the first piece and starts a graph. An estimate.
    known_by: str  # in what kvc devices says of it; all Orins have one name


DEVICES = {
    "H200": Device(4300e9, 650e12, 350e12, 1.3e-6, 4e-6, 112e9, 60e-6, r"\bH200\b"),
    "A100 80 GB": Device(1700e9, 240e12, 190e12, 1.3e-6, 4e-6, 90e9, 60e-6, r"\bA100\b.*\b80GB\b"),
    "Orin AGX 64 GB": Device(178e9, 28e12, 20e12, 2.5e-6, 8e-6, 83e9, 150e-6, r"\bOrin\b.*, 16 multiprocessors"),
}
MODELS = {
    "0.5B": SHAPES["0.5b"],
    "1B": SHAPES["1b"],
    "8B": Shape(32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5),
}
# Bytes of a weight, with one scale of 16 bits for 32 columns where there are codes.
WEIGHTS = {"bf16": 2.0, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}
JOIN = 0.5  # of a gap: the last block of a head reads what the others wrote, from the second cache
EFFICIENCY = 0.9  # of the bandwidth, in kernels that read weights or the cache
KV = 2  # bytes of a number in the cache: f16
PROMPT_ROWS = 1024  # of a chunk, whose layers have so many launches
PROMPT_LAUNCHES = 19  # with cuBLASLt: norms, places, attention, rounding, six products, shifts around those that add


def step_kernels(shape, weight, entries):
    """(name, bytes) of the launches of a layer in a step of one session, a dense layer of a Llama."""
    wide, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    b = WEIGHTS[weight]
    return [
        ("gemv_row q, k, v", b * shape.hidden * (wide + 2 * kv)),
        ("attend_step_mma", KV * 2 * kv * entries),
        ("gemv_row output", b * wide * shape.hidden),
        ("gemv_row gate, up", b * 2 * shape.hidden * shape.feed_forward),
        ("gemv_row down", b * shape.feed_forward * shape.hidden),
    ]


def seconds_beside_layers(device, shape, weight):
    """Of one token: the embedding, a copy of the last row to its session, the output head with the last norm, the
    choice, by one block that reads all logits, and the host until the next step begins."""
    launches = 4  # embed, a copy within the device, gemv_row, sample: none but the first is in a graph
    head = WEIGHTS[weight] * shape.vocabulary * shape.hidden / (EFFICIENCY * device.bandwidth)
    return launches * device.gap + head + 4 * shape.vocabulary / device.block + device.turn


def step_seconds(device, shape, weight, entries):
    """Of one token: all layers, and what is beside them."""
    total = seconds_beside_layers(device, shape, weight)
    for name, moved in step_kernels(shape, weight, entries):
        attends = name.startswith("attend")
        gap = device.gap * (1 + JOIN if attends else 1)
        total += shape.layers * (max(moved / (EFFICIENCY * device.bandwidth), attends * device.least) + gap)
    return total


def activation_bytes(shape):
    """What a token's activations in a layer of a prompt read and write, (kernel, bytes): numbers of f32, and of f16
    where products and the attention read them."""
    wide, kv, ffn = shape.heads * shape.head_size, shape.kv_heads * shape.head_size, shape.feed_forward
    return [
        ("norm_halves, twice", 2 * (4 + 2) * shape.hidden),
        ("q, k, v", 2 * shape.hidden + 4 * (wide + 2 * kv)),
        ("place", (4 + 4) * wide + (4 + 2) * 2 * kv),
        ("attend_prompt_half", (4 + 4) * wide),
        ("round_rows", (4 + 2) * wide),
        ("output", 2 * wide + (4 + 4) * shape.hidden),
        ("gate, up", 2 * shape.hidden + 4 * 2 * ffn),
        ("activate_halves", (4 * 2 + 2) * ffn),
        ("down", 2 * ffn + (4 + 4) * shape.hidden),
    ]


def prompt_seconds(device, shape, tokens):
    """Products of every token with every weight of the layers, causal attention, and activations between them."""
    wide, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    weights = shape.layers * shape.hidden * (2 * wide + 2 * kv + 3 * shape.feed_forward)
    products = 2 * weights * tokens / device.products
    attention = shape.layers * 2 * wide * tokens * tokens / device.attention
    moved = shape.layers * tokens * sum(b for _, b in activation_bytes(shape)) / (EFFICIENCY * device.bandwidth)
    gaps = PROMPT_LAUNCHES * shape.layers * -(-tokens // PROMPT_ROWS) * device.gap
    return products + attention + moved + gaps


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Tokens per second of a prompt, and of the steps behind it; None: of another device or shape."""

    prompt: float
    steps: float


def predicted(description, model, weight, tokens, entries):
    """For a device by its description, a model by the name of its shape, a prompt of so many tokens, of which `entries`
    a head stay."""
    device = next((device for device in DEVICES.values() if re.search(device.known_by, description)), None)
    if device is None or model not in MODELS or weight not in WEIGHTS:
        return Predicted(None, None)
    shape = MODELS[model]
    return Predicted(tokens / prompt_seconds(device, shape, tokens), 1 / step_seconds(device, shape, weight, entries))


def digits(x):
    """Three of them, without an exponent."""
    return f"{float(f'{x:.3g}'):.10f}".rstrip("0").rstrip(".")


def tables():
    """Both tables as they stand in the page."""
    lines = ["| predicted: tokens/s of one session | 8k, all kept | 32k, all kept | budget 1024, any length |",
             "|---|---|---|---|"]
    for device_name, device in DEVICES.items():
        for model, shape in MODELS.items():
            for weight in WEIGHTS:
                cells = [digits(1 / step_seconds(device, shape, weight, n)) for n in (8192, 32768, 1024)]
                lines.append(f"| {device_name}, {model} {weight} | " + " | ".join(cells) + " |")
    lines += ["", "| predicted: seconds of a prompt | 1k | 8k | 32k |", "|---|---|---|---|"]
    for device_name, device in DEVICES.items():
        for model, shape in MODELS.items():
            cells = [digits(prompt_seconds(device, shape, n)) for n in (1024, 8192, 32768)]
            lines.append(f"| {device_name}, {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page_with(text, table):
    """The page with these tables between its marks."""
    head, rest = text.split(BEGIN, 1)
    return head + BEGIN + table + END + rest.split(END, 1)[1]


def main(args):
    """Prints the tables, or writes them into the page."""
    if args != ["--write"]:
        print(tables(), end="")
        return
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page_with(text, tables()))


if __name__ == "__main__":
    main(sys.argv[1:])

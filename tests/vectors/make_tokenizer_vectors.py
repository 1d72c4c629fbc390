"""Writes the tokenizer vectors: what the PyPI packages make of every string of tokenizer_strings.py.

    python3 -m venv v && v/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    v/bin/python tests/vectors/make_tokenizer_vectors.py

Reads the tokenizers in tests/data/tokenizers, models/recall/tokenizer.json and models/stories260k/tok512.bin;
writes, in
tests/data/tokenizers, strings.txt (one string a line, bytes outside printable UTF-8 as \\xNN) and for each
tokenizer NAME.ids, whose
line i is about string i:

    ids without special tokens parsed
    [TAB S ids with special tokens parsed]   tokenizer.json only, where they differ
    [TAB D text]                             what the first ids decode to, where that is not the string
    [TAB C ids]                              of the string as one that goes on behind another, where they differ: made
                                             with the rule for the space before a text taken out of the tokenizer

Invalid UTF-8 has no meaning to these packages, so the vectors say what ours is in terms of what they do.
Byte-level: each stretch of
valid text is encoded by itself, each stretch of invalid bytes is a word of its own. Byte fallback: an invalid
byte is a character that
is not in the vocabulary (a private one is put in its place), and becomes one byte token. Else: U+FFFD.
"""

import json
import os
import re
import struct

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from tokenizer_strings import escape, strings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DATA = os.path.join(ROOT, "tests", "data", "tokenizers")
INVALID = re.compile("([\udc80-\udcff]+)")
PRIVATE = 0x100000  # + byte: plane 16, in no vocabulary


def alphabet():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


ALPHABET = alphabet()


def raw(c):
    return ord(c) - 0xDC00


class ByteLevel:
    def __init__(self, path):
        self.t = Tokenizer.from_file(path)

    def encode(self, data, special):
        self.t.encode_special_tokens = not special
        ids = []
        for i, part in enumerate(INVALID.split(data.decode("utf-8", "surrogateescape"))):
            if i % 2:
                ids += [x.id for x in self.t.model.tokenize("".join(ALPHABET[raw(c)] for c in part))]
            else:
                ids += self.t.encode(part, add_special_tokens=False).ids
        return ids

    def decode(self, ids, data):
        if INVALID.search(
            data.decode("utf-8", "surrogateescape")
        ):  # kept byte for byte; each good part by itself otherwise
            out = b""
            for i, part in enumerate(INVALID.split(data.decode("utf-8", "surrogateescape"))):
                out += (
                    bytes(raw(c) for c in part)
                    if i % 2
                    else self.t.decode(self.encode(part.encode(), False)).encode()
                )
            return out
        return self.t.decode(ids).encode()


class Fallback:
    """Byte fallback; one call encodes text, one decodes ids, byte_id gives the id of a byte."""

    def __init__(self, encode, decode, byte_id):
        self.enc, self.dec, self.byte_id = encode, decode, byte_id

    def stand_in(self, data):
        return "".join(
            chr(PRIVATE + raw(c)) if 0xDC80 <= ord(c) <= 0xDCFF else c
            for c in data.decode("utf-8", "surrogateescape")
        )

    def encode(self, data, special):
        ids = self.enc(self.stand_in(data), special)
        if ids is None:
            return None
        lead = [self.byte_id(0xF4), self.byte_id(0x80)]
        out = []
        while ids:
            if ids[:2] == lead:
                low = [next(b for b in range(0x80, 0xC0) if self.byte_id(b) == i) for i in ids[2:4]]
                out.append(self.byte_id((low[0] & 63) << 6 | low[1] & 63))
                ids = ids[4:]
            else:
                out.append(ids[0])
                ids = ids[1:]
        return out

    def decode(self, ids, data):
        text = self.dec(self.enc(self.stand_in(data), False))
        return b"".join(
            bytes([ord(c) - PRIVATE]) if PRIVATE <= ord(c) < PRIVATE + 256 else c.encode() for c in text
        )


def llama_hf(path, continued=False):
    tokenizer = json.load(open(path, encoding="utf-8"))
    if continued:
        normalizers = tokenizer["normalizer"]["normalizers"]
        tokenizer["normalizer"]["normalizers"] = [n for n in normalizers if n["type"] != "Prepend"]
    t = Tokenizer.from_str(json.dumps(tokenizer))

    def encode(text, special):
        t.encode_special_tokens = not special
        return t.encode(text, add_special_tokens=False).ids

    return Fallback(
        encode, lambda ids: t.decode(ids, skip_special_tokens=True), lambda b: t.token_to_id("<0x%02X>" % b)
    )


def piece_model(model, continued=False):
    if continued:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        proto.normalizer_spec.add_dummy_prefix = False
        model = proto.SerializeToString()
    s = sentencepiece.SentencePieceProcessor(model_proto=model)
    if sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec.byte_fallback:
        return Fallback(
            lambda text, special: None if special else s.encode(text),
            s.decode,
            lambda b: s.piece_to_id("<0x%02X>" % b),
        )

    class Unknown:
        def encode(self, data, special):
            return (
                None
                if special
                else s.encode(
                    INVALID.sub(lambda m: "\ufffd" * len(m[0]), data.decode("utf-8", "surrogateescape"))
                )
            )

        def decode(self, ids, data):
            return s.decode(ids).encode()

    return Unknown()


def llama2c(path, continued=False):
    """The same pieces and scores as a SentencePiece model; run.c puts a space before the text and keeps all
    others."""
    data = open(path, "rb").read()
    m = sentencepiece_model_pb2.ModelProto()
    at = 4
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        piece, at = data[at + 8 : at + 8 + size].decode(), at + 8 + size
        i = len(m.pieces)
        kind = 2 if i == 0 else 3 if i < 3 else 6 if i < 259 else 1  # unknown, control, byte, normal
        m.pieces.add(piece=piece.strip("\n") if i < 3 else piece.replace(" ", "▁"), score=score, type=kind)
    m.trainer_spec.model_type, m.trainer_spec.byte_fallback = 2, True
    m.normalizer_spec.name, m.normalizer_spec.add_dummy_prefix, m.normalizer_spec.remove_extra_whitespaces = (
        "identity",
        True,
        False,
    )
    return piece_model(m.SerializeToString(), continued)


def all_tokenizers():
    """name -> the tokenizer, and the same for text that goes on where that is another one and the package has it: what
    it trims it trims from every text."""
    tok512 = ROOT + "/models/stories260k/tok512.bin"
    tokenizers = {
        "recall": (ByteLevel(ROOT + "/models/recall/tokenizer.json"), None),
        "tok512": (llama2c(tok512), llama2c(tok512, True)),
    }
    for name in ("gpt2", "llama3", "qwen2", "chain"):
        tokenizers[name] = (ByteLevel(DATA + "/%s.json" % name), None)
    path = DATA + "/llama_hf.json"
    tokenizers["llama_hf"] = (llama_hf(path), llama_hf(path, True))
    for name in ("sp_fallback", "sp_unused", "sp_squeeze", "sp_plain"):
        model = open(DATA + "/%s.model" % name, "rb").read()
        tokenizers[name] = (piece_model(model), None if name == "sp_squeeze" else piece_model(model, True))
    return tokenizers


def main():
    tokenizers = all_tokenizers()
    all_strings = strings()
    with open(DATA + "/strings.txt", "w", encoding="utf-8", newline="\n") as f:
        f.writelines(escape(s) + "\n" for s in all_strings)
    for name, (t, continued) in tokenizers.items():
        with open(DATA + "/%s.ids" % name, "w", encoding="utf-8", newline="\n") as f:
            for s in all_strings:
                ids, special = t.encode(s, False), t.encode(s, True)
                line = " ".join(map(str, ids))
                if special is not None and special != ids:
                    line += "\tS " + " ".join(map(str, special))
                text = t.decode(ids, s)
                if text != s:
                    line += "\tD " + escape(text)
                if continued and continued.encode(s, False) != ids:
                    line += "\tC " + " ".join(map(str, continued.encode(s, False)))
                f.write(line + "\n")


if __name__ == "__main__":
    main()

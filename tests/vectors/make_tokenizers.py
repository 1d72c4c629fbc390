"""Trains the small tokenizers in tests/data/tokenizers.

    python3 -m venv v && v/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    v/bin/python tests/vectors/make_tokenizers.py CORPUS_DIR tests/data/tokenizers

CORPUS_DIR holds English prose as *.txt; the sentences of tokenizer_strings.py, in many scripts, are added. The
results stand in
the repository; they need to be made again only when this script changes, and then the vectors too
(make_tokenizer_vectors.py).
"""

import glob
import io
import json
import os
import random
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tokenizer_strings import corpus

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Three patterns, one after the other.
CHAIN = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def byte_level(lines, vocab_size, patterns, specials, users=(), nfc=False):
    """patterns empty: the one of GPT-2, inside ByteLevel."""
    t = Tokenizer(models.BPE())
    if nfc:
        t.normalizer = normalizers.NFC()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    t.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] + [level])
        if patterns
        else level
    )
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in users])
    return t


def llama3(lines):
    """Some words are in the vocabulary but no merge makes them: only ignore_merges finds them."""
    t = byte_level(lines, 1500, [LLAMA3], ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    j = json.loads(t.to_str())
    merges = [tuple(m) for m in j["model"]["merges"]]
    parts = {p for m in merges for p in m}
    made = ["".join(m) for m in merges]
    whole = {w for w in made if len(w) > 4 and w not in parts}
    whole = set(sorted(whole)[::3])
    j["model"]["merges"] = [list(m) for m, w in zip(merges, made) if w not in whole]
    j["model"]["ignore_merges"] = True
    bos = "<|begin_of_text|>"
    t = Tokenizer.from_str(json.dumps(j))
    t.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, t.token_to_id(bos))]),
        ]
    )
    return t


def llama_hf(lines):
    """BPE with byte fallback as tokenizer.json has it for Llama 2."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = [s for line in lines for s in line.replace(" ", " \0").split("\0")]
    t.train_from_iterator(pieces, trainers.BpeTrainer(vocab_size=1000, show_progress=False))
    old = json.loads(t.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    names += [n for n, _ in sorted(old["vocab"].items(), key=lambda x: x[1]) if len(n) > 1 or ord(n) < 0x3000]
    vocab = {n: i for i, n in enumerate(names)}
    merges = [tuple(m) for m in old["merges"] if all(x in vocab for x in (*m, "".join(m)))]
    t.model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in names[:3]])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    return t


def sentencepiece_model(lines, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        model_type="bpe",
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
        **options
    )
    return out.getvalue()


def with_unused(model, step):
    """Declares every step-th piece of several characters unused, as vocabularies that were cut down have them."""
    m = sentencepiece_model_pb2.ModelProto.FromString(model)
    normal = [p for p in m.pieces if p.type == p.NORMAL and len(p.piece) > 1]
    for p in normal[::step]:
        p.type = p.UNUSED
    return m.SerializeToString()


def main(corpus_dir, out):
    text = "".join(
        open(f, encoding="utf-8", errors="replace").read() for f in sorted(glob.glob(corpus_dir + "/*.txt"))
    )
    r = random.Random(1)
    lines = text.splitlines(keepends=True)
    lines = [lines[i] for i in sorted(r.sample(range(len(lines)), min(20000, len(lines))))] + corpus() * 30
    byte_level(lines, 1400, [], ["<|endoftext|>"]).save(out + "/gpt2.json", pretty=False)
    llama3(lines).save(out + "/llama3.json", pretty=False)
    byte_level(
        lines,
        1400,
        [QWEN2],
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool"],
        nfc=True,
    ).save(out + "/qwen2.json", pretty=False)
    byte_level(lines, 1000, CHAIN, ["<|eos|>"]).save(out + "/chain.json", pretty=False)
    llama_hf(lines).save(out + "/llama_hf.json", pretty=False)
    fallback = sentencepiece_model(
        lines,
        vocab_size=1500,
        byte_fallback=True,
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        character_coverage=0.985,
        user_defined_symbols=["<sep>", "<sep><sep2>", "▁▁▁▁"],
    )
    open(out + "/sp_fallback.model", "wb").write(fallback)
    open(out + "/sp_unused.model", "wb").write(with_unused(fallback, 7))
    open(out + "/sp_squeeze.model", "wb").write(
        sentencepiece_model(
            lines,
            vocab_size=900,
            byte_fallback=False,
            add_dummy_prefix=True,
            remove_extra_whitespaces=True,
            character_coverage=0.985,
            user_defined_symbols=["<sep>"],
        )
    )
    open(out + "/sp_plain.model", "wb").write(
        sentencepiece_model(
            lines,
            vocab_size=900,
            byte_fallback=True,
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            character_coverage=0.985,
        )
    )
    for name in os.listdir(out):
        if name.endswith(
            ".json"
        ):  # one line a file is no use to people; merges and vocab one entry a line neither
            path = os.path.join(out, name)
            j = json.load(open(path, encoding="utf-8"))
            json.dump(j, open(path, "w", encoding="utf-8"), ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

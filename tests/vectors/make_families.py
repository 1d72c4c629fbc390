"""Tokenizers in the style of every family, and what the PyPI package makes of the test strings with them.

    python3 -m venv v && v/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    v/bin/python tests/vectors/make_families.py CORPUS_DIR tests/data/tokenizers [NAME...]
    v/bin/python tests/vectors/make_families.py --explain NAME NUMBER tests/data/tokenizers

Normalizer, pre-tokenizer, post-processor, decoder, options and added tokens are those of the tokenizer.json that the
family publishes; the vocabulary is a small one, trained on the prose of CORPUS_DIR and the sentences of
tokenizer_strings.py. Writes families/NAME.json, families/NAME.sums, families/families.json (which names of GGUF's
tokenizer.ggml.pre a family stands for), families/begins.json (the ids with which a family's texts begin) and
families/strings.txt, the strings beyond strings.txt.

Line i of NAME.sums is about string i, of strings.txt and then of families/strings.txt: the FNV-1a sum (32 bits, of the
little-endian 32-bit ids) of its ids without special tokens parsed, and, where it differs, that with them; or - for a
string that is left out. --explain prints the ids themselves.
"""

import glob
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tokenizer_vectors import ByteLevel, Fallback
from tokenizer_strings import corpus, escape, family_strings, strings

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+%s|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*%s|"
O200K = (
    WORDS.replace("%s", CONTRACTIONS + "?") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = WORDS.replace("%s", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SEED_CODER = (
    CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z"
    "µÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ"
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
    "]+"
)
DEEPSEEK_LLM = ["[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


DIGITS = pre_tokenizers.Digits(individual_digits=True)


def added(names, special=True, **flags):
    return [AddedToken(name, special=special, **{"normalized": False, **flags}) for name in names]


class Family:
    """Byte-level. steps: the pre-tokenizers before ByteLevel, which cuts as GPT-2 does where use_regex; behind: those
    that see its alphabet; pre: the names in GGUF."""

    left_out = None

    def __init__(
        self, pre, steps, use_regex=False, nfc=False, ignore_merges=False, begin=(), tokens=(), ids_of=None, behind=()
    ):
        self.pre, self.steps, self.use_regex, self.nfc = pre, steps, use_regex, nfc
        self.ignore_merges, self.begin, self.tokens, self.ids_of = ignore_merges, begin, list(tokens), ids_of or {}
        self.behind = list(behind)

    def make(self, lines):
        t = Tokenizer(models.BPE())
        if self.nfc:
            t.normalizer = normalizers.NFC()
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.use_regex)
        t.pre_tokenizer = pre_tokenizers.Sequence(self.steps + [level] + self.behind) if self.steps else level
        t.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        t.train_from_iterator(
            lines, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
        )
        if self.ignore_merges:
            t = without_some_merges(t)
        t.add_special_tokens(added(["<|endoftext|>"]))
        for token in self.tokens:
            (t.add_special_tokens if token.special else t.add_tokens)([token])
        t.post_processor = processors.ByteLevel(trim_offsets=False)
        if self.begin:
            tokens = {b: self.ids_of.get(b, [b]) for b in self.begin}
            special = [{"id": b, "ids": [t.token_to_id(x) for x in xs], "tokens": xs} for b, xs in tokens.items()]
            begin = processors.TemplateProcessing(single=[*self.begin, "$A"], special_tokens=special)
            t.post_processor = processors.Sequence([t.post_processor, begin])
        return t

    def oracle(self, path):
        return ByteLevel(path)


def without_some_merges(t):
    """Takes merges away whose words stay in the vocabulary: only ignore_merges finds them."""
    j = json.loads(t.to_str())
    merges = [tuple(m) for m in j["model"]["merges"]]
    parts = {p for m in merges for p in m}
    whole = {w for w in map("".join, merges) if len(w) > 3 and w not in parts}
    whole = set(sorted(whole)[::3])
    j["model"]["merges"] = [list(m) for m in merges if "".join(m) not in whole]
    j["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(j))


class Pieces:
    """Llama's way: "▁" for spaces, byte fallback. Not in GGUF under a name."""

    pre = []

    # left_out: strings with this are left out; ours has spaces there, where the package cuts a token out of the text.
    def __init__(self, normalizer, pre_tokenizer, strip, bos="<s>", tokens=(), left_out=None):
        self.left_out = left_out
        self.normalizer, self.pre_tokenizer, self.strip = normalizer, pre_tokenizer, strip
        self.bos, self.tokens = bos, list(tokens)

    def make(self, lines):
        t = Tokenizer(models.BPE())
        t.normalizer = normalizers.Replace(" ", "▁")
        pieces = [s for line in lines for s in line.replace(" ", " \0").split("\0")]
        t.train_from_iterator(pieces, trainers.BpeTrainer(vocab_size=900, show_progress=False))
        old = json.loads(t.to_str())["model"]
        names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + ["▁" * n for n in (2, 3, 4)]
        known = set(names)
        for n, _ in sorted(old["vocab"].items(), key=lambda x: x[1]):
            if n not in known and (len(n) > 1 or ord(n) < 0x3000):
                names.append(n)
        vocab = {n: i for i, n in enumerate(names)}
        merges = [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁")]
        merges += [
            tuple(m)
            for m in old["merges"]
            if all(x in vocab for x in (*m, "".join(m))) and tuple(m) not in merges
        ]
        t.model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        j = json.loads(t.to_str())
        j["normalizer"] = None
        t = Tokenizer.from_str(json.dumps(j))
        if self.normalizer:
            t.normalizer = self.normalizer
        if self.pre_tokenizer:
            t.pre_tokenizer = self.pre_tokenizer
        t.add_special_tokens(added(names[:3]))
        for token in self.tokens:
            (t.add_special_tokens if token.special else t.add_tokens)([token])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        t.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if self.strip else []))
        t.post_processor = processors.TemplateProcessing(
            single=[self.bos, "$A"], special_tokens=[(self.bos, t.token_to_id(self.bos))]
        )
        return t

    def oracle(self, path):
        t = Tokenizer.from_file(path)

        def encode(text, special):
            t.encode_special_tokens = not special
            return t.encode(text, add_special_tokens=False).ids

        return Fallback(encode, lambda ids: t.decode(ids), lambda b: t.token_to_id("<0x%02X>" % b))


IM = added(["<|im_start|>", "<|im_end|>"])
GLM_BEGINS = ["[gMASK]", "<sop>"]
GLM = added(["[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>"])
THINK = added(["<think>", "</think>"], special=False)
FAMILIES = {
    "gpt-2": Family(
        ["gpt-2", "phi-2", "exaone4", "jais", "trillion", "granite-docling", "mellum", "gigachat", "a.x-4.0"],
        [],
        use_regex=True,
    ),
    "olmo": Family(
        ["mpt", "olmo"],
        [],
        use_regex=True,
        nfc=True,
        tokens=added(["  ", "   ", "|||IP_ADDRESS|||"], special=False, normalized=True),
    ),
    "smollm": Family(
        ["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        [DIGITS],
        use_regex=True,
        tokens=IM,
    ),
    "command-r": Family(["command-r"], [DIGITS], use_regex=True, nfc=True),
    "llama-bpe": Family(
        ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        [split(LLAMA3)],
        ignore_merges=True,
        begin=["<|begin_of_text|>"],
        tokens=added(["<|begin_of_text|>", "<|eot_id|>"]),
    ),
    "smollm3": Family(["smaug-bpe"], [split(LLAMA3)], ignore_merges=True, tokens=IM + THINK),
    "glm4": Family(["glm4", "glm5"], [split(LLAMA3)], ignore_merges=True, begin=GLM_BEGINS, tokens=GLM),
    "chatglm": Family(["chatglm-bpe"], [split(LLAMA3)], begin=GLM_BEGINS, tokens=GLM),
    "dbrx": Family(["dbrx"], [split(LLAMA3, "removed", True)], tokens=IM),
    "qwen2": Family(["qwen2", "deepseek-r1-qwen", "megrez"], [split(QWEN2)], nfc=True, tokens=IM + THINK),
    "qwen35": Family(["qwen35"], [split(QWEN35)], nfc=True, tokens=IM + THINK),
    "stablelm2": Family(["stablelm2", "hunyuan", "solar-open", "grok-2"], [split(QWEN2)]),
    "gpt-4o": Family(["gpt-4o", "llama4", "kanana2", "minimax-m2"], [split(O200K, "removed", True)]),
    "tekken": Family(
        ["tekken"], [split(TEKKEN)], ignore_merges=True, begin=["<s>"], tokens=added(["<s>", "</s>", "[INST]"])
    ),
    "deepseek-llm": Family(["deepseek-llm"], [split(p) for p in DEEPSEEK_LLM] + [DIGITS]),
    "deepseek-coder": Family(["deepseek-coder"], [split(p) for p in DEEPSEEK_CODER] + [DIGITS]),
    "deepseek-v3": Family(
        ["deepseek-v3", "hunyuan-dense", "joyai-llm"], [split(p) for p in DEEPSEEK_V3], tokens=THINK
    ),
    "seed-coder": Family(["seed-coder"], [split(SEED_CODER)]),
    "bailingmoe": Family(["bailingmoe", "bailingmoe2", "llada-moe"], [split(BAILING)]),
    "bloom": Family(["bloom", "poro-chat", "gpt3-finnish"], [split(BLOOM)]),
    "viking": Family(["viking"], [split(BLOOM), DIGITS]),
    "falcon": Family(
        ["falcon"],
        [pre_tokenizers.Punctuation("contiguous")],
        use_regex=True,
        behind=[pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")],
        tokens=added([">>TITLE<<", ">>QUESTION<<", ">>ANSWER<<"]),
    ),
    "phi-4": Family(
        [],
        [split(LLAMA3, "removed", True)],
        tokens=added(["<|im_start|>", "<|im_end|>", "<|im_sep|>"], lstrip=True, rstrip=True),
    ),
    "phi-3": Pieces(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
        strip=True,
        tokens=added(["<|endoftext|>"]) + added(["<|user|>", "<|assistant|>", "<|end|>"], rstrip=True),
    ),
    "mistral-v3": Pieces(
        None,
        pre_tokenizers.Metaspace("▁", "first", split=False),
        strip=True,
        tokens=added(["[INST]", "[/INST]"]),
    ),
    "llama-2-always": Pieces(
        None,
        pre_tokenizers.Metaspace("▁", "always", split=False),
        strip=True,
    ),
    "splits": Family(  # what is in no family above
        [],
        [
            split(r"[.!?]", "contiguous"),
            split(r"[a-z]{2}$"),
            split("^[A-Z]"),
            pre_tokenizers.Split("-", "merged_with_next"),
            pre_tokenizers.Split("e", "merged_with_previous"),
            pre_tokenizers.Split("中", "contiguous"),
            pre_tokenizers.Digits(individual_digits=False),
        ],
        begin=["<b>", "<a>"],
        tokens=added(["<a>", "<b>"]),
        ids_of={"<b>": ["<b>", "<a>"]},  # a name that stands for two tokens
    ),
    "gemma": Pieces(
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        strip=False,
        left_out="▁▁",
        tokens=added(["<start_of_turn>", "<end_of_turn>"])
        + added(["\n\n", "\n\n\n", "▁▁", "▁▁▁", "<table>"], special=False),
    ),
}


def all_strings():
    return strings() + family_strings()


def checksum(ids):
    h = 0x811C9DC5
    for b in b"".join(i.to_bytes(4, "little") for i in ids):
        h = (h ^ b) * 0x01000193 & 0xFFFFFFFF
    return "%08x" % h


def explain(name, number, out):
    oracle = FAMILIES[name].oracle(out + "/families/%s.json" % name)
    s = all_strings()[int(number) - 1]
    for special in (False, True):
        print("special tokens parsed:" if special else "as text:", *oracle.encode(s, special))


def main(corpus_dir, out, *names):
    out += "/families"
    os.makedirs(out, exist_ok=True)
    text = "".join(open(f, encoding="utf-8", errors="replace").read() for f in sorted(glob.glob(corpus_dir + "/*.txt")))
    r = random.Random(1)
    lines = text.splitlines(keepends=True)
    lines = [lines[i] for i in sorted(r.sample(range(len(lines)), min(8000, len(lines))))] + corpus() * 30
    with open(out + "/strings.txt", "w", encoding="utf-8", newline="\n") as f:
        f.writelines(escape(s) + "\n" for s in family_strings())
    with open(out + "/families.json", "w", encoding="utf-8") as f:
        json.dump({name: family.pre for name, family in FAMILIES.items()}, f, indent=1)
        f.write("\n")
    for name in names or FAMILIES:
        family = FAMILIES[name]
        path = out + "/%s.json" % name
        family.make(lines).save(path, pretty=False)
        j = json.load(open(path, encoding="utf-8"))
        with open(path, "w", encoding="utf-8") as f:
            json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        oracle = family.oracle(path)
        with open(out + "/%s.sums" % name, "w", encoding="utf-8", newline="\n") as f:
            for s in all_strings():
                if family.left_out and family.left_out.encode() in s:
                    f.write("-\n")
                    continue
                ids, special = checksum(oracle.encode(s, False)), checksum(oracle.encode(s, True))
                f.write(ids + (" " + special if special != ids else "") + "\n")
    begins = {name: Tokenizer.from_file(out + "/%s.json" % name).encode("").ids for name in FAMILIES}
    with open(out + "/begins.json", "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(' "%s": %s' % (name, json.dumps(ids)) for name, ids in begins.items()) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1] == "--explain":
        explain(*sys.argv[2:])
    else:
        main(*sys.argv[1:])

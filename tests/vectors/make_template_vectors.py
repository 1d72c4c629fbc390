#!/usr/bin/env python3
"""What transformers makes of chat templates, and jinja2 of single lines: tests/data/templates/conversations.json and
lines.json. Needs transformers, tokenizers and jinja2 from PyPI; the files are committed, so that tests do not.
Usage: make_template_vectors.py [SOURCE_DIR]"""
import datetime
import json
import os
import sys

import tokenizers
import transformers
from transformers.utils import chat_template_utils

LLAMA, CHATML, DEEPSEEK = ("<s>", "</s>"), (None, "<|im_end|>"), ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
LLAMA3, GEMMA = ("<|begin_of_text|>", "<|eot_id|>"), ("<bos>", "<eos>")
# Template: its BOS and EOS.
TOKENS = {
    "chatml": CHATML, "deepseek_v2": DEEPSEEK, "deepseek_v3": DEEPSEEK, "deepseek_r1_distill": DEEPSEEK,
    "falcon_h1": ("<|begin_of_text|>", "<|im_end|>"), "phi_3": LLAMA, "phi_35": LLAMA,
    "phi_4": (None, "<|im_end|>"), "glm4moe": (None, "<|endoftext|>"), "gptoss": ("<|startoftext|>", "<|return|>"),
    "jamba": ("<|startoftext|>", "<|endoftext|>"), "qwen_25": CHATML, "qwen3": CHATML, "qwen3_instruct_2507": CHATML,
    "qwen3_5_think": CHATML, "qwen2_vl": CHATML, "smolvlm": ("<|im_start|>", "<end_of_utterance>"),
    "style_llama3": LLAMA3, "style_llama3_dated": LLAMA3, "style_gemma": GEMMA, "style_gemma3": GEMMA,
    "style_granite": (None, "<|end_of_text|>"), "style_granite4": (None, "<|end_of_text|>"),
    "style_exaone4": ("[BOS]", "[|endofturn|]"), "style_smollm3": (None, "<|im_end|>"),
    "style_smollm2": ("<|im_start|>", "<|im_end|>"),
    "style_starcoder": (None, "<|endoftext|>"), "style_falcon": (None, "<|endoftext|>"),
    "style_glm4": (None, "<|endoftext|>"), "style_command": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "style_openchat": ("<s>", "<|end_of_turn|>"), "style_olmo": ("<|endoftext|>", "<|endoftext|>"),
}
PARTS = ("smolvlm",)  # templates that want what is said as a list of parts
TODAY = datetime.datetime(2025, 3, 4, 15, 6, 7)


class FixedDate(datetime.datetime):
    """The day that strftime_now tells."""

    @classmethod
    def now(cls, tz=None):
        return TODAY


def conversations():
    """Lists of (role, text), all but two ending with a user."""
    s, u, v = "You answer briefly.", "What is the capital of France?", "And of Peru?"
    a, w = "Paris.", "Lima, by the sea."
    yield [("user", u)]
    yield [("system", s), ("user", u)]
    yield [("user", u), ("assistant", a), ("user", v)]
    yield [("system", s), ("user", u), ("assistant", a), ("user", v)]
    yield [("system", s), ("user", u), ("assistant", a), ("user", v), ("assistant", w),
           ("user", "Thanks!\nWhich is larger?")]
    yield [("user", "  padded on both sides \n"), ("assistant", "\n so is this "), ("user", "\tand this\u3000")]
    yield [("system", " \n padded system \n"), ("user", "\n padded user\n\n"), ("assistant", " yes \n"),
           ("user", " on ")]
    yield [("user", "Grüße, 世界 🌍: {{ not.a.template }} {% nor this %} \"quoted\" 'too'"),
           ("assistant", "def f(x):\n    return x\n"), ("user", "1\n2\n\n3")]
    yield [("user", u), ("assistant", a), ("user", v), ("assistant", w), ("user", u), ("assistant", a), ("user", "0")]
    yield [("user", u), ("assistant", a), ("system", s), ("user", v)]
    yield [("user", u), ("assistant", a)]
    yield [("system", s)]


def render_conversations(folder):
    out = {}
    for file in sorted(os.listdir(folder)):
        name, ending = os.path.splitext(file)
        if ending != ".jinja" or name == "refused_loops":
            continue
        with open(os.path.join(folder, file), encoding="utf-8") as f:
            template = f.read()
        bos, eos = TOKENS.get(name, LLAMA)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token=bos, eos_token=eos)
        talks = []
        for talk in conversations():
            messages = [{"role": role, "content": [{"type": "text", "text": text}] if name in PARTS else text}
                        for role, text in talk]
            answer = talk[-1][0] == "user"
            try:
                text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False,
                                                     add_generation_prompt=answer)
            except Exception:  # the template's own refusals, and what its language has not
                text = None
            talks.append({"messages": talk, "answer": answer, "text": text})
        out[name] = {"bos": bos or "", "eos": eos or "", "parts": name in PARTS, "conversations": talks}
    return out


VARIABLES = {"n": 3, "x": 2.5, "word": "Hello wörld", "none": None, "yes": True, "list": [3, 1, 2], "empty": [],
             "names": ["b", "A", "c"], "people": [{"name": "Ann", "age": 3}, {"name": "bob", "age": 1}, {"name": "Cy"}],
             "map": {"b": 1, "a": [1, None, True], "c": {"k": "v\"\n"}}, "spaces": " \t two\nlines \n"}


def render_lines(folder):
    """lines.txt: a template a paragraph; \\n stands for itself."""
    with open(os.path.join(folder, "lines.txt"), encoding="utf-8") as f:
        sources = [s for s in f.read().split("\n%%\n") if s]
    out = []
    for source in sources:
        try:
            text = chat_template_utils._compile_jinja_template(source).render(**VARIABLES)
        except Exception as error:
            text, kind = None, type(error).__name__
        out.append({"template": source, "text": text} if text is not None else {"template": source, "error": kind})
    return {"variables": VARIABLES, "lines": out}


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    folder = os.path.join(root, "tests/data/templates")
    chat_template_utils.datetime = FixedDate
    for name, made in (("conversations.json", render_conversations(folder)), ("lines.json", render_lines(folder))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(made, f, ensure_ascii=False, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()

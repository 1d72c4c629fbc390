#!/usr/bin/env python3
"""Makes tests/data/reference/metrics.json: answers with the scores that LongBench's and RULER's definitions give them.
ROUGE-L is the PyPI package rouge, edit similarity Python's difflib behind the rules of fuzzywuzzy; the rest is written
here from the definitions, with Python's own str methods and re (needs rouge, made with 1.0.1)."""
import collections
import difflib
import json
import os
import random
import re
import string

from rouge import Rouge

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/reference/metrics.json")


def normalize(text):
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def token_f1(answer, truth):
    ours, theirs = normalize(answer).split(), normalize(truth).split()
    same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 0 if same == 0 else 2 * same / (len(ours) + len(theirs))


def rouge_l(answer, truth):
    try:
        return Rouge().get_scores([answer], [truth], avg=True)["rouge-l"]["f"]
    except ValueError:  # an empty text
        return 0


def classification(answer, truth, classes):
    named = [c for c in classes if c in answer]
    for term in named:
        if term in truth and term != truth:
            named.remove(term)
    return 1 / len(named) if truth in named else 0


def number_share(answer, wanted):
    numbers = re.findall("[0-9]+", answer)
    return numbers.count(wanted) / len(numbers) if numbers else 0


def retrieval(answer, truth, mark="Paragraph "):
    return number_share(answer, re.findall(mark + "([0-9]+)", truth)[0])


def edit(answer, truth):
    lines = [line for line in answer.lstrip("\n").split("\n") if not re.search("[`#]|//", line)]
    line = lines[0] if lines else ""
    if line == truth:
        return 1
    if not line or not truth:
        return 0
    return int(round(100 * difflib.SequenceMatcher(None, line, truth).ratio())) / 100


def matches(answer, expected, is_all):
    text = re.sub("[\x00-\x1f]", "\n", answer.strip()).strip().lower()
    found = [e.lower() in text for e in expected]
    return sum(found) / len(found) if is_all else float(any(found))


WORDS = ("The the a an A An it's house-boat Émile ÉCOLE naïve Straße Ωmega ПРИВЕТ don't x. U.S. 3.14 42 42, (42) "
         "“quoted” the’ a— an_b under_score THE. code code; re:code 100% née café e\u0301 日本 語 ½ end").split()
SPACES = (" ", " ", " ", "  ", "\n", "\t", "\u00a0", ". ", ".")


def sentence(rng, n):
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(n)))


def code_line(rng, n):
    return "".join(rng.choice("abcxyz_=+()[]., 01éß") for _ in range(rng.randrange(n)))


def mutate(rng, text):
    out = list(text)
    for _ in range(rng.randrange(6)):
        if out:
            out[rng.randrange(len(out))] = rng.choice(["", "q", "é", " x"])
    return "".join(out)


def cases(rng):
    for _ in range(150):
        answer, truth = sentence(rng, 14), sentence(rng, 10)
        yield "f1", answer, [truth], [], token_f1(answer, truth)
        yield "rouge-l", answer, [truth], [], rouge_l(answer, truth)
    for text in ("", ".", " ", ". .", "a", "..x", "x. "):
        for other in ("", " . ", "x", "x. y", ". "):
            yield "f1", text, [other], [], token_f1(text, other)
            yield "rouge-l", text, [other], [], rouge_l(text, other)
    for _ in range(40):  # the best of several expected answers
        answer, many = sentence(rng, 8), [sentence(rng, 4) + "end" for _ in range(3)]
        yield "f1", answer, many, [], max(token_f1(answer, t) for t in many)
    classes = ["Date", "Other location", "location", "Other", "Number of something", "Number", "Date of birth", "Date"]
    for _ in range(150):
        answer = " ".join(rng.choice(classes + ["nothing", "Num"]) for _ in range(rng.randrange(4)))
        truth = rng.choice(classes)
        yield "classification", answer, [truth], classes, classification(answer, truth, classes)
    for _ in range(60):
        answer = " ".join(rng.choice(["Paragraph 7", "7", "12", "x7y", "seven", "007", "1.7"])
                          for _ in range(rng.randrange(5)))
        yield "retrieval", answer, ["Paragraph 7"], [], retrieval(answer, "Paragraph 7")
        yield "retrieval-zh", answer, ["段落12"], [], retrieval(answer, "段落12", "段落")
        yield "count", answer, ["7"], [], number_share(answer, "7")
    for n in (4, 30, 120, 400, 900):  # from 200 on, popular characters count for less
        for _ in range(24):
            truth = code_line(rng, n)
            answer = rng.choice(["", "\n\n", "# note\n", "```py\n", "x // y\n"]) + mutate(rng, truth)
            answer += rng.choice(["", "\nmore", "\n```"])
            yield "edit", answer, [truth], [], edit(answer, truth)
            other = code_line(rng, n)
            yield "edit", other, [truth], [], edit(other, truth)
    for _ in range(60):
        expected = [rng.choice(["Ada", "9301", "émile", "big-cat"]) for _ in range(rng.randrange(1, 4))]
        answer = "\x00".join(rng.choice(["ADA", "93012", "ÉMILE", "big-cat", "cat"]) for _ in range(rng.randrange(4)))
        yield "match-all", answer, expected, [], matches(answer, expected, True)
        yield "match-part", answer, expected, [], matches(answer, expected, False)


def main():
    rng = random.Random(7)
    rows = [list(case) for case in cases(rng)]
    normal = [[text, normalize(text)] for text in (sentence(rng, 20) for _ in range(200))]
    with open(OUT, "w", encoding="utf-8") as file:
        file.write("{\n\"normalized\": [\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in normal) + "],\n")
        file.write("\"scores\": [\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "]}\n")
    print(len(rows), "scores,", sum(0 < r[-1] < 1 for r in rows), "between 0 and 1;", len(normal), "texts")


if __name__ == "__main__":
    main()

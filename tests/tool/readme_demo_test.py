"""The README's block of the demo is what kvc demo prints: paragraphs, columns, rows, and the numbers that every machine
has. One context is run; times, tokens a second and how many answers are right are others elsewhere and left out.

Usage: readme_demo_test.py KVC RECALL.kvc SOURCE"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

# Counts of contexts and questions, which a run of one context has others of; and speed.
COUNTS = re.compile(r"\d+(?= contexts? of about )|(?<=come the questions, )\d+|(?<=at )\d+(?= tokens a second)")
BYTES = {"KiB": 2**10, "MiB": 2**20}
RULE = "--"  # between rows, of any width


def run(*command):
    return subprocess.run([KVC, *command], capture_output=True, text=True, check=True).stdout


def paragraphs(text):
    return [paragraph.splitlines() for paragraph in text.strip("\n").split("\n\n")]


def is_table(lines):
    return len(lines) > 1 and re.fullmatch(r" *-+(  -+)*", lines[1])


def columns(lines):
    """{heading: cells from top to bottom} of a table, whose second line shows how wide its columns are."""
    places = [match.span() for match in re.finditer(r"-+", lines[1])]
    rows = [[re.sub("^-+$", RULE, line[begin:end].strip()) for begin, end in places] for line in (lines[0], *lines[2:])]
    return {heading: cells for heading, *cells in zip(*rows)}


class Block(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tasks = os.path.join(SOURCE, "samples/data/recall_demo.jsonl")
        with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
            block = re.search(r"<!-- demo -->\n```\n(.*?)```\n<!-- /demo -->", file.read(), re.S)
        cls.said = paragraphs(block.group(1))
        with tempfile.TemporaryDirectory() as folder:
            stories = os.path.join(folder, "stories.kvc")
            run("convert", os.path.join(SOURCE, "models/stories260k/stories260K.bin"), stories)
            cls.printed = paragraphs(run("demo", "--device", "cpu", "--model", RECALL, "--tasks", cls.tasks,
                                         "--stories", stories, "--limit", "1"))  # fmt: skip

    def table(self, heading):
        return [columns(lines) for text in (self.said, self.printed) for lines in text
                if is_table(lines) and heading in columns(lines)]  # fmt: skip

    def test_it_has_the_paragraphs(self):
        self.assertEqual(len(self.said), len(self.printed))
        for said, printed in zip(self.said[:-1], self.printed[:-1]):
            self.assertEqual(bool(is_table(said)), bool(is_table(printed)), said[0])
            if not is_table(said):
                words = [COUNTS.sub("N", " ".join(" ".join(lines).split())).replace("contexts", "context")
                         for lines in (said, printed)]  # fmt: skip
                self.assertEqual(*words)
        begin = [" ".join(lines).split()[:4] for lines in (self.said[-1], self.printed[-1])]  # of the story
        self.assertEqual(*begin)

    def test_the_answers_have_the_columns_and_the_right_ones(self):
        said, printed = self.table("question")
        self.assertEqual(list(said), list(printed))
        for heading in ("question", "answer"):
            self.assertEqual(said[heading], printed[heading])
        for heading, cells in said.items():  # "wrong" is what is not the answer
            if heading not in ("question", "answer"):
                for cell, answer in zip(cells, said["answer"]):
                    self.assertEqual(cell.endswith("  wrong"), cell.split()[0] != answer, cell)

    def test_the_table_has_the_columns_and_rows(self):
        said, printed = self.table("policy")
        self.assertEqual(list(said), list(printed))
        for heading in ("policy", "slots per head", "share of the cache"):
            self.assertEqual(said[heading], printed[heading])

    def test_the_bytes_are_those_of_the_kept_slots(self):
        said, printed = self.table("policy")
        # full has the length of the contexts, ada-snapkv gives its heads what the context has for them.
        for name, *pair in zip(said["policy"], said["cache bytes"], printed["cache bytes"]):
            if name != "full" and not name.startswith("ada-"):
                self.assertEqual(*pair, name)
        results = json.loads(run("eval", RECALL, "--device", "cpu", "--data", self.tasks, "--policy", "full", "--json"))
        kinds = results["results"]
        mean = sum(kind["cache_bytes"] * kind["n_prompts"] for kind in kinds) / sum(kind["n_prompts"] for kind in kinds)
        number, unit = said["cache bytes"][said["policy"].index("full")].split()
        self.assertEqual(f"{mean / BYTES[unit]:.2f}", number)

    def test_it_counts_the_contexts_and_questions_that_there_are(self):
        with open(self.tasks, encoding="utf-8") as file:
            tasks = [json.loads(line) for line in file]
        n = sum(len(task["questions"]) for task in tasks)
        text = " ".join(" ".join(lines) for lines in self.said)
        self.assertIn(f"{len(tasks)} contexts of about ", text)
        self.assertIn(f"come the questions, {n} in all", text)
        right = set(self.table("policy")[0]["answers right"]) - {RULE}
        self.assertEqual({cell.split(" of ")[1] for cell in right}, {str(n)})


if __name__ == "__main__":
    KVC, RECALL, SOURCE = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])

"""What the documents say of results is what their tables hold: every interval in brackets that prose quotes stands in a
table of docs/results.md, and the page has the notes as they are kept."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INTERVAL = re.compile(r"\[[+-]?\d+(?:\.\d+)?(?:, |–)[+-]?\d+(?:\.\d+)?\]")
QUOTES = ("bench/results_notes.md", "docs/head-scores.md", "README.md")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tables(text):
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def prose(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


class Results(unittest.TestCase):
    def test_the_page_has_the_notes(self):
        self.assertIn(read("bench/results_notes.md").strip(), read("docs/results.md"))

    def test_intervals_in_prose_are_those_of_a_table(self):
        known, n_quoted = set(INTERVAL.findall(tables(read("docs/results.md")))), 0
        for path in QUOTES:
            for interval in INTERVAL.findall(prose(read(path))):
                n_quoted += 1
                self.assertIn(interval, known, f"{path} quotes an interval that no table has")
        self.assertGreaterEqual(n_quoted, 3)

    def test_every_budget_of_the_comparison_says_what_equal_bytes_give(self):
        section = read("docs/results.md").split("### CoKV and HeadKV at equal bytes", 1)[1].split("\n### ", 1)[0]
        rows = re.findall(r"^\| (\d+) \| (\d+) KiB \| .*? \| (\d+) \| (\d+) KiB \|", section, re.M)
        self.assertGreaterEqual(len(rows), 3)
        for _, ours, _, theirs in rows:
            self.assertGreaterEqual(int(theirs), int(ours), "the other has fewer bytes")
            self.assertLess(int(theirs), 1.05 * int(ours), "and about as many")


if __name__ == "__main__":
    unittest.main()

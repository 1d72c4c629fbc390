"""What the documents say of results is what their tables hold: every interval in brackets that prose quotes stands in a
table of docs/results.md, and the page has the notes as they are kept."""

import json
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

    def part(self, heading):
        return read("docs/results.md").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]

    def note(self, title):
        return " ".join(read("bench/results_notes.md").split(f"* **{title}", 1)[1].split("\n* ", 1)[0].split())

    def test_what_prose_says_of_the_second_model_is_what_its_tables_have(self):
        cells = set(re.findall(r"\*\*(\d+\.\d)\*\*", self.part("A second model")))
        for title, least in (("A second model", 12), ("Shapley values against heads alone", 9)):
            quoted = re.findall(r"(?<![.\d])\d+\.\d(?!\d)", self.note(title))
            self.assertGreaterEqual(len(quoted), least)
            for number in quoted:
                self.assertIn(number, cells, f"{title} quotes a number that no table has")

    def test_scores_of_the_second_model_in_prose_are_those_of_its_files(self):
        names = ("head_scores", "scores/leftout")
        scores = [json.loads(read(f"models/relate/{name}.json"))["scores"] for name in names]
        best = [max(score for layer in table for score in layer) for table in scores]
        note = self.note("Shapley values against heads alone")
        self.assertEqual(re.findall(r"(?<=\s)\.\d{3}", note), [f"{score:.3f}"[1:] for score in best])
        for table in scores:  # the four of layer 1 before all others
            flat = [score for layer in table for score in layer]
            self.assertEqual(sorted(sorted(range(16), key=flat.__getitem__)[-4:]), [4, 5, 6, 7])

    def test_what_prose_says_of_cheaper_readings_is_what_the_tables_have(self):
        part, note = self.part("Cheaper second readings"), self.note("Cheaper second readings")
        cells = set(re.findall(r"(?<![.\d])[+-]?\d+\.\d+(?!\d)", tables(part)))
        quoted = re.findall(r"(?<![.\d])[+-]?\d+\.\d+(?!\d)", note)
        self.assertGreaterEqual(len(quoted), 6)
        for number in quoted:
            self.assertIn(number, cells, "no table of this part has it")

    def test_rank_correlations_in_prose_are_those_of_the_tables(self):
        rows = {}
        for line in self.part("Does the eviction loss tell accuracy?").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows.setdefault(cells[0], cells[1:])
        loss, _, bound, _, stays = rows["all, accuracy"]
        layers = [rows[measure] for measure in ("loss", "bound", "retained")]
        note = self.note("Does Ada-KV's eviction loss")
        self.assertEqual(re.findall(r"[+-]0\.\d\d", note)[:3], [loss, bound, stays])
        self.assertEqual(re.findall(r"[+-]0\.\d\d", note)[3:6], [row[1] for row in layers])
        others = [float(cell) for row in layers for cell in row[:1] + row[2:]]
        self.assertEqual(re.findall(r"[+-]0\.\d\d", note)[6:], [f"{min(others):+.2f}", f"{max(others):+.2f}"])

    def test_what_prose_says_of_merging_is_what_the_table_has(self):
        cells = {"merged": [], "dropped": []}
        for kind, numbers in re.findall(r"^\| \d+ \| (merged|dropped) \|(.*)\|[^|]*\|$", self.part(
                "Merging against dropping (WeightedKV)"), re.M):  # fmt: skip
            cells[kind] += [float(number) for number in numbers.split("|")]
        lower = sum(d < m for d, m in zip(cells["dropped"], cells["merged"]))
        self.assertIn(f"in {lower} of {len(cells['merged'])} cells", self.note("Merging against dropping"))

    def test_what_prose_says_of_positions_is_what_the_table_has(self):
        part = self.part("Does the eviction loss tell accuracy?").split("every tenth", 1)[1]
        tenths = {
            row[0]: [float(cell) for cell in row[1].split("|")]
            for row in re.findall(r"^\| (\S+) \|(.*)\|$", part, re.M)
            if row[0] in ("h2o", "ahakv")
        }
        note = self.note("Parts of AhaKV")
        self.assertIn(f"keeps {tenths['h2o'][0]} %", note)
        self.assertIn(f"{tenths['h2o'][8]} % of the ninth", note)
        self.assertEqual(tenths["h2o"][:9], sorted(tenths["h2o"][:9], reverse=True))
        first = tenths["ahakv"][:9]
        self.assertIn(f"`ahakv` {min(first)} to {max(first)} % of each of the first nine", note)

    def test_every_budget_of_the_comparison_says_what_equal_bytes_give(self):
        section = read("docs/results.md").split("### CoKV and HeadKV at equal bytes", 1)[1].split("\n### ", 1)[0]
        rows = re.findall(r"^\| (\d+) \| (\d+) KiB \| .*? \| (\d+) \| (\d+) KiB \|", section, re.M)
        self.assertGreaterEqual(len(rows), 3)
        for _, ours, _, theirs in rows:
            self.assertGreaterEqual(int(theirs), int(ours), "the other has fewer bytes")
            self.assertLess(int(theirs), 1.05 * int(ours), "and about as many")


if __name__ == "__main__":
    unittest.main()

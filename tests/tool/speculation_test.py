"""What docs/performance.md says of drafts: the part is what bench/speculation.py makes of the numbers kept, its
tables hold what they promise of each other, and its prose quotes them."""

import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def section():
    with open(os.path.join(ROOT, "docs", "performance.md"), encoding="utf-8") as file:
        return file.read().split("<!-- speculation: written", 1)[1].split("<!-- speculation: end", 1)[0]


class Speculation(unittest.TestCase):
    def test_the_page_says_what_was_kept(self):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "speculation.py"), "--check"])
        self.assertEqual(done.returncode, 0)

    def costs(self):
        out = []
        for line in section().split("| depth |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            step, small = (float(cell.split()[0]) for cell in cells[1:3])
            out.append((step, small, float(cells[3]), [[float(x) for x in cell.split(",")] for cell in cells[4:]]))
        return out

    def test_what_drafts_make_at_best_follows_from_what_they_cost(self):
        costs = self.costs()
        self.assertGreaterEqual(len(costs), 2)
        for step, small, limit, passes in costs:
            self.assertAlmostEqual(limit, step / small, delta=0.01)
            for drafted, (price, best) in zip((1, 2, 4, 8, 16), passes):
                self.assertAlmostEqual(best, (drafted + 1) / (drafted * small / step + price), delta=0.02)
                self.assertLess(best, limit)

    def test_the_prose_quotes_the_tables(self):
        prose = " ".join(line for line in section().splitlines() if not line.startswith("|"))
        step, small, _, passes = self.costs()[-1]
        best = max(b for _, b in passes)
        self.assertIn(f"makes {best:.2f}.", prose)
        self.assertIn("does not reach 1.5" if best < 1.5 else "reaches 1.5", prose)
        self.assertAlmostEqual(float(re.search(r"takes (\d+) % of", prose)[1]), 100 * small / step, delta=1)
        from_text = [line for line in section().splitlines() if line.startswith("| the text |")]
        tokens = from_text[-1].split("|")[4].strip()
        self.assertIn(f"the tasks' {tokens} tokens a pass", prose)


if __name__ == "__main__":
    unittest.main()

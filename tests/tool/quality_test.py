"""What bench/quality.py reckons from measurements, on ones whose answers are known."""

import argparse
import json
import math
import os
import random
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import quality
import quality_bytes
import quality_program
import quality_tables
import quality_text


def row(losses, tokens=512):
    return {"nll_by_window": [[nats, tokens] for nats in losses]}


class Perplexity(unittest.TestCase):
    def test_a_change_that_is_the_same_everywhere_has_no_interval(self):
        windows = [[900.0 + 37 * i * i % 211 for i in range(12)], [1500.0 + i for i in range(12)]]
        full = [row(w) for w in windows]
        self.assertEqual(quality_text.change(full, full), (0, 0, 0))
        more = [row([nats + 512 * 0.1 for nats in w]) for w in windows]
        for found in quality_text.change(more, full):
            self.assertAlmostEqual(found, 100 * math.expm1(0.1), places=9)

    def test_pairs_cancel_what_windows_have_in_common(self):
        rng = random.Random(3)
        common = [rng.gauss(1800, 300) for _ in range(12)]
        other = [nats + rng.gauss(5, 2) for nats in common]
        whole, low, high = quality_text.change([row(other)], [row(common)])
        self.assertLess(low, whole)
        self.assertLess(whole, high)
        self.assertGreater(low, 0)  # 5 nats of 512 tokens are seen, though windows differ by 300
        self.assertLess(high, 2)

    def test_intervals_hold_the_truth_about_as_often_as_they_say(self):
        rng, held, n = random.Random(5), 0, 100
        for _ in range(n):
            common = [rng.gauss(1800, 300) for _ in range(12)]
            rows = [row([nats + rng.gauss(5, 4) for nats in common])], [row(common)]
            _, low, high = quality_text.change(*rows, draws=200)
            held += low <= 100 * math.expm1(5 / 512) <= high
        self.assertGreaterEqual(held, 80)  # 95 of very many windows, somewhat fewer of 12
        self.assertLess(held, 100)


class Provenance(unittest.TestCase):
    """What a part of the page says of how it was made."""

    def test_the_command_has_the_sizes_that_are_not_the_usual_ones(self):
        usual = argparse.Namespace(contexts=8, compare=100, grid=4, windows=12)
        costs = [{"seconds": 100, "machine": "B"}, {"seconds": 21, "machine": "A"}]
        self.assertEqual(
            quality.made_by("text", usual, costs),
            ["`./dev bench quality --only text`: 3 minutes of processor on A and B.", ""],
        )
        usual.contexts, usual.compare = 16, 24
        for unknown in ([], [None], [costs[0], None]):  # measured before it was kept
            self.assertEqual(
                quality.made_by("heads", usual, unknown),
                ["`./dev bench quality --only heads --contexts 16 --compare 24`.", ""],
            )

    def test_what_a_piece_cost_is_kept_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            model, text = os.path.join(folder, "m"), os.path.join(folder, "t")
            for path in (model, text):
                with open(path, "w", encoding="utf-8") as file:
                    file.write("x")
            program = quality_program.Program(argparse.Namespace(program=sys.executable, model=model))
            program.kept, calls = folder, []

            def run(what, policies, words):
                calls.append(list(policies))
                return {"results": [{"policy": policy} for policy in policies]}

            program.run = run
            for wanted, n_calls in ((["a", "b"], 1), (["b", "c", "c"], 2), (["a", "b", "c"], 2)):
                quality_program.Program.used.clear()
                rows = program.texts("x", wanted, [text], "stream", 1)[0]
                self.assertEqual(len(calls), n_calls)
                self.assertEqual([rows[policy]["policy"] for policy in wanted], wanted)
                self.assertEqual(
                    json.dumps(quality_program.Program.used),
                    json.dumps([rows[policy]["cost"] for policy in dict.fromkeys(wanted)]),
                )
                self.assertIn("minute of processor on", quality_program.cost_of(quality_program.Program.used))
            self.assertEqual(calls, [["a", "b"], ["c"]])


class EqualBytes(unittest.TestCase):
    def test_the_frontier_is_what_nobody_beats_with_as_few_bytes(self):
        points = [(200, 50, "a"), (200, 60, "b"), (210, 60, "c"), (220, 59, "d"), (230, 61, "e"), (400, 61, "f")]
        self.assertEqual([name for _, _, name in quality_bytes.frontier(points)], ["b", "e"])
        rng = random.Random(2)
        points = [(rng.randrange(100, 140), rng.randrange(100), str(i)) for i in range(200)]
        best = quality_bytes.frontier(points)
        for point in points:
            better = [p for p in points if p[0] <= point[0] and p[1] >= point[1] and p[:2] != point[:2]]
            self.assertEqual(any(p[:2] == point[:2] for p in best), not better)

    def test_every_policy_of_the_tables_is_its_own(self):
        class TakesAll:
            def takes(self, policy, tokens):
                return True

        class TakesLarge:
            def takes(self, policy, tokens):
                return "budget_bytes=63KiB" not in policy

        for setting in (quality_bytes.RECALL, quality_bytes.RELATE):
            policies = [policy for _, _, of in quality_bytes.cases(TakesAll(), setting) for policy in of.values()]
            self.assertEqual(len(policies), len(set(policies)))
            for policy in policies:
                self.assertEqual(policy.count("budget_bytes="), 0 if policy.startswith("full") else 1, policy)
        some = [of for _, _, of in quality_bytes.cases(TakesLarge(), quality_bytes.RELATE) if None not in of]
        self.assertEqual({tuple(of) for of in some}, {quality_bytes.RELATE.sizes[1:]})


class Intervals(unittest.TestCase):
    def test_draws_that_are_all_alike_have_one_too(self):
        rows = {kind: {"accuracy": 1.0, "right_by_task": [(4, 4)] * 8} for kind in "ab"}
        self.assertEqual(quality_tables.interval(rows, "ab"), "80.6–100.0")  # 16 of 16, Wilson
        rows["a"] = {"accuracy": 0.5, "right_by_task": [(4, 4), (0, 4)] * 4}
        low, high = quality_tables.bootstrap(rows, "ab")
        self.assertEqual(quality_tables.interval(rows, "ab"), f"{100 * low:.1f}–{100 * high:.1f}")
        self.assertLess(low, high)

    def test_known_values(self):
        for share, n, low, high in ((0.0, 10, 0.0, 0.2775), (0.5, 20, 0.2993, 0.7007), (0.9, 40, 0.7695, 0.9604)):
            found = quality_tables.wilson(share, n)
            self.assertAlmostEqual(found[0], low, 4)
            self.assertAlmostEqual(found[1], high, 4)


if __name__ == "__main__":
    unittest.main()

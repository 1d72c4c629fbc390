#!/usr/bin/env python3
"""kvc.kept and kvc.eval against the program kvc, which has its own code for both: research_test.py KVC SOURCE."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

from checks import RECALL, STORIES, WITHOUT_NUMPY, kvc, main

KVC, SOURCE = sys.argv[1:]
TASKS = os.path.join(SOURCE, "samples", "data", "recall_demo.jsonl")
POLICIES = ("full", "cokv:budget=24,window=8", "snapkv:budget=24,window=8")


def tool(*arguments):
    done = subprocess.run([KVC, *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


class Research(unittest.TestCase):
    def test_kept(self):
        with open(TASKS, encoding="utf-8") as file:
            text = json.loads(file.readline())["context"]
        for policy in POLICIES:
            wanted = tool("kept", RECALL, "--policy", policy, "--prompt", text)["kept"]
            own = kvc.kept(RECALL, text, policy)
            self.assertEqual([[list(map(int, head)) for head in layer] for layer in own], wanted)
        with kvc.Model(RECALL) as model, kvc.Policy(POLICIES[1]) as policy:
            tokens = model.prompt(text)
            kept = kvc.kept(model, tokens, policy)
            self.assertEqual(sum(len(head) for layer in kept for head in layer), 24 * 24)
            self.assertEqual(kept[0][0][-1], len(tokens) - 1)

    @unittest.skipUnless(WITHOUT_NUMPY, "there is numpy")
    def test_eval_without_numpy(self):
        with self.assertRaisesRegex(ImportError, "needs numpy"):
            kvc.eval(RECALL, TASKS, POLICIES)

    def same(self, own, rows):
        """One result of ours and the rows of a policy, one a kind of task."""
        def mean(field, weight):
            weights = sum(row[weight] for row in rows)
            return sum(row[field] * row[weight] for row in rows) / weights
        self.assertEqual(own.n, sum(row["n"] for row in rows))
        self.assertEqual(own.n_compared, sum(row["n_compared"] for row in rows))
        self.assertAlmostEqual(own.kl, mean("kl", "n_compared"), 4)
        self.assertAlmostEqual(own.top1, mean("top1", "n_compared"), 9)
        self.assertAlmostEqual(own.cache_bytes, mean("cache_bytes", "n_prompts"), 3)
        if rows[0]["accuracy"] is not None:
            self.assertAlmostEqual(own.accuracy, mean("accuracy", "n"), 9)
            self.assertTrue(math.isnan(own.perplexity))
        else:
            self.assertAlmostEqual(own.perplexity, rows[0]["perplexity"], 4)
            self.assertTrue(math.isnan(own.accuracy))

    @unittest.skipIf(WITHOUT_NUMPY, "kvc.eval needs it")
    def test_eval_tasks(self):
        specs = [option for policy in POLICIES for option in ("--policy", policy)]
        results = tool("eval", RECALL, "--data", TASKS, *specs, "--limit", "2")["results"]
        for policy, own in zip(POLICIES, kvc.eval(RECALL, TASKS, POLICIES, limit=2)):
            self.same(own, [row for row in results if row["policy"] == own.policy or row["policy"] == policy])

    @unittest.skipIf(WITHOUT_NUMPY, "kvc.eval needs it")
    def test_eval_text(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "story.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("Once upon a time there was a little dog. He liked to play with a red ball. " * 9)
            policies = ("full", "snapkv:budget=16,window=4", "streaming:budget=12,n_sink=4")
            specs = [option for policy in policies for option in ("--policy", policy)]
            results = tool("eval", STORIES, "--text", path, *specs, "--window", "64", "--limit", "2")["results"]
            for row, own in zip(results, kvc.eval(STORIES, path, policies, window=64, limit=2)):
                self.same(own, [row])

    @unittest.skipIf(WITHOUT_NUMPY, "kvc.eval needs it")
    def test_tasks_as_objects(self):
        task = {"context": "The code of Nina is 417. " * 4, "questions": [{"question": " The code of Nina is",
                                                                          "answer": " 417."}]}
        (result,) = kvc.eval(RECALL, [task], ["full"])
        self.assertEqual((result.n, result.accuracy, result.kl), (1, 1.0, 0.0))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""kvc.kept and kvc.eval against the program kvc, which has its own code for both: research_test.py KVC SOURCE."""
import json
import math
import os
import shutil
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


def other_beginning(folder, change):
    """recall, whose tokenizer puts something else before a text: change(config, tokenizer, tokenizer_config)."""
    source = os.path.join(folder, change.__name__)
    shutil.copytree(os.path.join(SOURCE, "models", "recall"), source, ignore=shutil.ignore_patterns("scores", "*.py"))
    paths = [os.path.join(source, name) for name in ("config.json", "tokenizer.json", "tokenizer_config.json")]
    contents = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            contents.append(json.load(file))
    change(*contents)
    for path, content in zip(paths, contents):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    subprocess.run([KVC, "convert", source, source + ".kvc"], stdout=subprocess.DEVNULL, check=True)
    return source + ".kvc"


def adds_nothing(_config, _tokenizer, about):
    about["add_bos_token"] = False


def has_no_bos(config, tokenizer, about):
    del config["bos_token_id"], about["bos_token"]
    about["add_bos_token"] = False
    pieces = tokenizer["model"]["vocab"]
    pieces["<|nothing|>"] = pieces.pop("<|bos|>")
    tokenizer["added_tokens"][0]["content"] = "<|nothing|>"


def adds_two(_config, tokenizer, about):
    del about["add_bos_token"]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<|bos|>", "<|pad|>")),
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]}
                           for i, token in ((0, "<|bos|>"), (2, "<|pad|>"))}}


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
    def test_eval_text_of_every_beginning(self):
        with tempfile.TemporaryDirectory() as folder:
            for n, change in ((95, adds_nothing), (96, adds_nothing), (95, has_no_bos), (96, has_no_bos),
                              (93, adds_two), (94, adds_two)):  # one window and two
                path = os.path.join(folder, "words.txt")
                with open(path, "w", encoding="utf-8") as file:
                    file.write("".join(str(i * i % 7) for i in range(n)))  # a digit is a token
                model = os.path.join(folder, change.__name__ + ".kvc")
                if not os.path.exists(model):
                    other_beginning(folder, change)
                (row,) = tool("eval", model, "--text", path, "--policy", "snapkv:budget=16,window=4", "--window",
                              "64")["results"]
                (own,) = kvc.eval(model, path, ["snapkv:budget=16,window=4"], window=64)
                self.same(own, [row])
                self.assertEqual(own.n, 64 if n in (94, 96) else 32)
                with self.assertRaisesRegex(ValueError, "window 1: a window of text has"):
                    kvc.eval(model, path, ["full"], window=1)

    @unittest.skipIf(WITHOUT_NUMPY, "kvc.eval needs it")
    def test_policies_may_come_one_by_one(self):
        task = {"context": "The code of Nina is 417. " * 4, "questions": [{"question": " The code of Nina is",
                                                                          "answer": " 417."}]}
        self.assertEqual(kvc.eval(RECALL, [task, task], iter(POLICIES)), kvc.eval(RECALL, [task, task], POLICIES))

    @unittest.skipIf(WITHOUT_NUMPY, "kvc.eval needs it")
    def test_tasks_as_objects(self):
        task = {"context": "The code of Nina is 417. " * 4, "questions": [{"question": " The code of Nina is",
                                                                          "answer": " 417."}]}
        (result,) = kvc.eval(RECALL, [task], ["full"])
        self.assertEqual((result.n, result.accuracy, result.kl), (1, 1.0, 0.0))
        with kvc.Policy("full") as policy:
            for one in ("full", policy, None, [None]):  # a policy alone, and none
                self.assertEqual(kvc.eval(RECALL, [task], one), [result])
        for nothing in ({"context": "a"}, {"context": "a", "questions": []}):
            with self.assertRaisesRegex(ValueError, "task 2: expected a list of questions"):
                kvc.eval(RECALL, [task, nothing], "full")


if __name__ == "__main__":
    main()

"""bench/compare_llama.py: its statistics and tables by known answers, the program with engines that are scripts of
known speed. compare_llama_test.py [kvc program] drives the kvc program too."""

import contextlib
import io
import json
import os
import re
import stat
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import compare_llama  # noqa: E402
import pairing  # noqa: E402

KVC = None  # the program under test, from the command line


def series(label, *rates, others=None, peak=2**20):
    return pairing.Series(label, [pairing.Run(rate, peak, others) for rate in rates])


def result(ours, *others, model="m", cell="c"):
    sides = [pairing.Side("kvc", [ours])] + [pairing.Side(f"other {i}", [s]) for i, s in enumerate(others)]
    return pairing.Result(model, cell, sides)


class Statistics(unittest.TestCase):
    def test_known_answers(self):
        five = series("a", 90, 100, 80, 99, 70)
        self.assertEqual((five.best, five.median, five.worst), (100, 90, 70))
        self.assertAlmostEqual(five.spread, 0.3)
        self.assertEqual(series("a", 1, 2, 3, 10).median, 2.5)

    def test_quiet_is_a_spread_of_five_percent_at_most(self):
        self.assertTrue(series("a", 100, 95).quiet)
        self.assertFalse(series("a", 100, 94.9).quiet)
        self.assertFalse(series("a", 100).quiet, "one run says nothing about the noise")

    def test_confirmed_is_a_second_run_near_the_best(self):
        self.assertTrue(series("a", 50, 100, 98).confirmed)
        self.assertFalse(series("a", 50, 97.9, 100).confirmed)
        self.assertFalse(series("a", 100).confirmed)

    def test_the_better_setting_counts(self):
        side = pairing.Side("llama.cpp", [series("fa off", 50, 60), series("fa on", 10, 61)])
        self.assertEqual(side.series.label, "fa on")

    def test_a_setting_is_beaten_behind_two_runs(self):
        fast, slow, close = series("on", 100, 90), series("off", 84, 80), series("other", 85, 1)
        side = pairing.Side("llama.cpp", [fast, slow, close])
        self.assertEqual([side.beaten(s) for s in side.settings], [False, True, False])
        self.assertFalse(pairing.Side("llama.cpp", [fast, series("off", 1)]).beaten(series("off", 1)), "one run")
        self.assertFalse(pairing.Side("kvc", [slow]).beaten(slow), "alone")

    def test_ratios(self):
        pair = result(series("kvc", 100, 80, 60), series("before", 50, 40, 10)).pairs()[0]
        self.assertEqual((pair.ratio, pair.ratio_of_medians), (2, 2))
        self.assertEqual(pair.verdict, "no: worst 40 % and 80 % below best, best seen once")

    def test_a_slow_run_of_either_side_is_not_quiet(self):
        good, bad = (100, 99, 98), (100, 99, 90)
        self.assertEqual(result(series("a", *good), series("b", *good)).pairs()[0].verdict, "yes")
        for pair in (result(series("a", *good), series("b", *bad)), result(series("a", *bad), series("b", *good))):
            self.assertFalse(pair.pairs()[0].quiet)
            self.assertTrue(pair.pairs()[0].verdict.startswith("no: worst "), pair.pairs()[0].verdict)

    def test_others_are_named_with_what_they_took(self):
        pair = result(series("a", 100, 90, 99, others=0.5), series("b", 100, 99, others=0.0)).pairs()[0]
        self.assertTrue(pair.verdict.endswith("others had 50 % of the processors"), pair.verdict)

    def test_worst_ratio(self):
        results = [result(series("a", 100), series("b", 50), series("c", 125)), result(series("a", 9), series("b", 10))]
        self.assertEqual(pairing.worst_ratio(results).ratio, 0.8)
        self.assertIsNone(pairing.worst_ratio([]))

    def test_a_rate_is_positive(self):
        for rate in (0, -1, float("nan")):
            with self.assertRaises(ValueError):
                pairing.Run(rate, 1)


class Turns(unittest.TestCase):
    def take(self, rates, rounds, max_rounds, sides=("A", "B")):
        """rates: one list for every contender; sides: their labels. The order of the runs by label, and the result."""
        order, rests = [], []

        class Contender:
            def __init__(self, label, values):
                self.label, self.values = label, iter(values)

            def measure(self, cell):
                order.append(self.label)
                return pairing.Run(next(self.values), 1)

        contenders = [Contender(label, values) for label, values in zip("".join(sides), rates)]
        taken = pairing.Result("m", "c", [pairing.Side(s, [pairing.Series(c) for c in s]) for s in sides])
        pairing.take_turns("c", contenders, taken, rounds, max_rounds, lambda: rests.append(1), lambda text: None)
        self.assertEqual(len(rests), len(order))
        return "".join(order), taken

    def test_alternate(self):
        order, taken = self.take([[1, 2, 3], [4, 5, 6]], 3, 0)
        self.assertEqual(order, "ABABAB")
        self.assertEqual([side.series.rates for side in taken.sides], [[1, 2, 3], [4, 5, 6]])

    def test_a_beaten_setting_takes_no_further_turns(self):
        order, taken = self.take([[9, 9, 9], [1, 2], [4, 4, 4]], 3, 0, ["A", "BC"])
        self.assertEqual(order, "ABC" * 2 + "AC")
        self.assertEqual([s.rates for s in taken.sides[1].settings], [[1, 2], [4, 4, 4]])
        self.assertEqual(self.take([[9, 9, 9], [3.5, 2, 1], [4, 4, 4]], 3, 0, ["A", "BC"])[0], "ABC" * 3)

    def test_go_on_until_confirmed(self):
        self.assertEqual(self.take([[10, 5, 10, 1], [7, 7, 7, 1]], 2, 9)[0], "ABABAB")
        self.assertEqual(self.take([[10, 5, 2, 1], [7, 7, 7, 1]], 2, 4)[0], "ABABABAB")
        self.assertEqual(self.take([[10, 10], [7, 7]], 2, 9)[0], "ABAB")


class Tables(unittest.TestCase):
    def test_markdown(self):
        two = result(series("kvc", 100, 98, 96, peak=3 * 2**20), series("before", 50, 49, 49, peak=2**21), model="1b")
        noisy = result(series("kvc", 10, 9.9), series("before", 20, 10, 19.8), cell="decode-0")
        self.assertEqual(
            pairing.table([two, noisy]),
            "| model | cell | kvc | against | | ratio of bests | of medians | MiB | quiet |\n"
            "|---|---|---|---|---|---|---|---|---|\n"
            "| 1b | c | 100.0 (98.0, 96.0) | before | 50.0 (49.0, 49.0) | 2.00 | 2.00 | 3 : 2 | yes |\n"
            "| m | decode-0 | 10.0 (9.9, 9.9) | before | 20.0 (19.8, 10.0) | 0.50 | 0.50 | 1 : 1 | "
            "no: worst 1 % and 50 % below best |",
        )

    def test_document(self):
        text = json.dumps(result(series("kvc", 100, 98), series("before", 50, 49)).document())
        self.assertEqual(json.loads(text)["pairs"][0]["ratio_of_bests"], 2)
        self.assertEqual(json.loads(text)["sides"][1]["settings"][0]["runs"][1]["rate"], 49)


# An engine of known speed, which answers as the program it is called as. Its settings lie beside it.
ENGINE = '''#!%s -SE
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.path.join(os.path.dirname(sys.argv[0]), "settings.json")) as file:
    settings = json.load(file)
with open(os.path.join(os.path.dirname(sys.argv[0]), "calls"), "a") as file:
    file.write(" ".join([name, *words]) + "\\n")
def value(option):
    return words[words.index(option) + 1]
if name == "llama-bench":
    rate = settings["rate"][value("-fa")] if "-fa" in words else 1
    print(json.dumps({"samples_ts": [rate], "model_size": settings["bytes"], "model_n_params": 7, "build_commit": "c"}))
elif name == "llama-tokenize":
    print(settings["tokens"])
elif name == "llama-completion":
    with open(os.path.join(os.path.dirname(sys.argv[0]), "calls")) as file:
        n_calls = sum(line.startswith(name) for line in file)
    print(" " + settings["text"][: settings.get("printed", {}).get(str(n_calls))] + "\\n\\n")
elif words[0] == "convert":
    with open(words[2], "w") as file:
        file.write("model")
elif words[0] == "inspect":
    print(json.dumps({"weight_bytes": settings["bytes"], "n_parameters": 7}))
elif words[0] == "tokenize":
    print(json.dumps({"tokens": settings["tokens"]}))
elif words[0] == "run":
    print(json.dumps({"text": settings["text"], "tokens": settings["tokens"]}))
elif words[0] == "bench":
    gen = int(value("--gen"))
    out = {"prefill_tokens_per_second": settings["rate"], "step_seconds_mean": gen and 1 / settings["rate"]}
    if settings.get("tells"):
        out.update(decode_passes=gen, process_bytes_peak=5 * 2**20)
    print(json.dumps(out))
'''


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.model = self.path("tiny.gguf")
        with open(self.model, "w", encoding="ascii") as file:
            file.write("GGUF")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def engine(self, folder, names, **settings):
        os.makedirs(self.path(folder))
        for name in names:
            path = self.path(folder, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(ENGINE % sys.executable)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        with open(self.path(folder, "settings.json"), "w", encoding="ascii") as file:
            json.dump({"tokens": [1, 2], "text": "a b", "bytes": 100, **settings}, file)
        return self.path(folder, names[0])

    def calls(self, folder):
        with open(self.path(folder, "calls"), encoding="ascii") as file:
            return file.read().splitlines()

    def compare(self, *words):
        """Exit code, table, messages."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = compare_llama.main(["--pause", "0", "--work", self.path("work"), *words])
            except SystemExit as end:
                code = end.code
        return code, out.getvalue(), err.getvalue()

    def both(self, **llama):
        """Options for a kvc of 200 tokens a second and a llama.cpp of 50, or 100 with flash attention; one cell."""
        kvc = self.engine("kvc", ["kvc"], rate=200, tells=True)
        self.engine("peer/bin", compare_llama.LLAMA_PROGRAMS, **{"rate": {"off": 50, "on": 100}, **llama})
        return ["--kvc", kvc, "--peer", self.path("peer"), "--rounds", "2", "--cells", "decode-0"]

    def test_beside_llama(self):
        words = self.both()[:-2]
        code, out, err = self.compare(*words, "--small", self.model, "--json", self.path("out.json"), self.model)
        self.assertEqual(code, 0, err)
        cells = [cell for cell in compare_llama.CELLS if not cell.named]
        for cell in cells:
            rates = "200.0 (200.0, 200.0) | llama.cpp, fa on | 100.0 (100.0, 100.0) | 2.00 | 2.00 | 5 : "
            self.assertIn(f"| tiny | {cell.name} | {rates}", out)
        self.assertIn("Worst ratio of bests: 2.000", out)
        with open(self.path("out.json"), encoding="utf-8") as file:
            written = json.load(file)
        self.assertEqual(written["worst_ratio"], 2)
        self.assertEqual([cell["cell"] for cell in written["cells"]], [cell.name for cell in cells])
        self.assertEqual(written["checks"][0]["prompt_tokens"], [1, 2])
        runs = [call for call in self.calls("peer/bin") if "-d 4096" in call]
        self.assertEqual([re.search("-fa (on|off)", run).group(1) for run in runs], ["off", "on"] * 2)
        self.assertIn("-p 0 -n 64 -d 4096", runs[0])
        self.assertIn("--prompt 1 --gen 64 --depth 4096", [c for c in self.calls("kvc") if "--depth 4096" in c][0])

    def test_what_was_measured_is_handed_over_behind_every_cell(self):
        words, seen = [*self.both()[:-1], "decode-0,decode-4096", self.model], []
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = compare_llama.main(
                ["--pause", "0", "--work", self.path("work"), "--json", self.path("out.json"), *words],
                lambda document: seen.append((document, json.load(open(self.path("out.json"), encoding="utf-8")))),
            )
        self.assertEqual(code, 0)
        for n, (document, written) in enumerate(seen, 1):
            self.assertEqual(document, written)
            self.assertEqual([cell["cell"] for cell in document["cells"]], ["decode-0", "decode-4096"][:n])
        self.assertEqual(len(seen), 2)

    def test_a_quantised_cache_is_held_against_their_quantised_cache(self):
        words = self.both()[:-1] + ["decode-4096-int8"]
        code, out, err = self.compare(*words, self.model)
        self.assertEqual(code, 0, err)
        self.assertIn("| tiny | decode-4096-int8 | 200.0 (200.0, 200.0) | llama.cpp, fa on | 100.0", out)
        timed = [call for call in self.calls("peer/bin") if "-d 4096" in call]
        self.assertEqual(len(timed), 2, "theirs takes quantised values with flash attention only")
        self.assertIn("-fa on -t", timed[0])
        self.assertIn("-ctk q8_0 -ctv q8_0", timed[0])
        self.assertIn("--policy full:kv=int8", [call for call in self.calls("kvc") if "--depth 4096" in call][0])

    def test_beside_neighbours(self):
        code, out, err = self.compare(*self.both(), "--busy", "2", self.model)
        self.assertEqual(code, 0, err)
        self.assertIn("| tiny, 2 busy | decode-0 |", out)
        self.assertEqual(self.compare("--busy", "-1", self.model)[0], 2)

    def test_builds_that_do_not_tell_their_passes_made_one_less(self):
        kvc = self.engine("kvc", ["kvc"], rate=64)
        run = compare_llama.Kvc("kvc", kvc, "m.kvc", 1, 1).measure(compare_llama.Cell("d", gen=64))
        self.assertAlmostEqual(run.rate, 63)

    def test_unequal_work_is_refused(self):
        words = self.both(tokens=[1, 3])
        code, out, err = self.compare(*words, self.model)
        self.assertEqual((code, out), (2, ""))
        self.assertIn("is [1, 2] to kvc and [1, 3] to llama.cpp", err)
        self.assertFalse([call for call in self.calls("kvc") if call.startswith("kvc bench")])

    def test_other_weights_are_refused(self):
        code, _, err = self.compare(*self.both(bytes=110), self.model)
        self.assertEqual(code, 2)
        self.assertIn("not the same work", err)

    def test_another_answer_of_the_small_model_is_refused(self):
        words = self.both(text="a c")
        code, _, err = self.compare(*words, "--small", self.model, self.model)
        self.assertEqual(code, 2)
        self.assertIn("the engines answer differently", err)
        self.assertEqual(self.compare(*words, self.model)[0], 0, "of other models it is told, not asked")

    def test_text_that_llama_lost_on_its_way_out_is_asked_for_again(self):
        words = self.both(printed={"1": 1, "2": 0})
        code, _, err = self.compare(*words, "--small", self.model, self.model)
        self.assertEqual(code, 0, err)
        self.assertIn("agree in 3 of 3 characters", err)

    def test_below_least_is_exit_code_one(self):
        words = self.both()
        self.assertEqual(self.compare(*words, "--least", "2", self.model)[0], 0)
        code, out, err = self.compare(*words, "--least", "2.01", self.model)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"2\.000 is below 2\.01\n$")
        self.assertIn("Worst ratio", out)

    def test_builds(self):
        new = self.engine("new", ["kvc"], rate=98, tells=True)
        old = self.engine("old", ["kvc"], rate=100, tells=True)
        older = self.engine("older", ["kvc"], rate=49, tells=True)
        words = ["--kvc", new, "--against", old, "--against", older, "--rounds", "1"]
        code, out, err = self.compare(*words, self.model)
        self.assertEqual(code, 0, err)
        for cell in [c for c in compare_llama.RECALL_CELLS + compare_llama.CELLS if not c.named]:
            self.assertEqual(len(re.findall(rf"\| {cell.name} \| 98.0 [^|]*\| build [12] \|", out)), 2, out)
        self.assertIn("Worst ratio of bests: 0.980", out)
        self.assertIn("build 2: " + older, err)
        code, _, err = self.compare("--kvc", older, "--against", old, "--rounds", "1", "--cells", "decode-900")
        self.assertEqual(code, 1)
        self.assertIn("below 0.98; the machine was not quiet: measure again", err)

    def test_every_build_converts_for_itself_and_only_once(self):
        builds = [self.engine(name, ["kvc"], rate=1) for name in ("new", "old")]
        for _ in range(2):
            words = ["--kvc", builds[0], "--against", builds[1], "--rounds", "1", "--cells", "decode-0"]
            self.assertEqual(self.compare(*words, self.model)[0], 0)
        for name in ("new", "old"):
            self.assertEqual(len([call for call in self.calls(name) if self.model in call]), 1)

    def test_builds_that_answer_differently_are_refused(self):
        builds = [self.engine(name, ["kvc"], rate=1, tokens=[len(name)]) for name in ("new", "older")]
        code, _, err = self.compare("--kvc", builds[0], "--against", builds[1])
        self.assertEqual(code, 2)
        self.assertIn("the builds answer differently", err)

    def test_what_is_missing_is_named(self):
        words = self.both()
        for expected, changed in (
            ("no such program", ["--kvc", self.path("none"), "--peer", self.path("peer"), self.model]),
            ("not executable", ["--kvc", self.model, "--peer", self.path("peer"), self.model]),
            ("neither here nor in bin/ is llama-bench", words[:2] + ["--peer", self.folder, self.model]),
            ("Give --peer DIR", words[:2] + ["--peer", "", self.model]),
            ("none.gguf: no such model", words + [self.path("none.gguf")]),
            ("llama.cpp reads GGUF", words + [self.path("tiny.kvc")]),
            ("none of these cells", words + ["--cells", "decode-900", self.model]),
            ("no cell decode-1", words + ["--cells", "decode-1", self.model]),
            ("a MODEL is needed", words),
            ("0 is less than 1", words + ["--rounds", "0", self.model]),
            ("nan is less than 0", words + ["--least", "nan", self.model]),
        ):
            code, out, err = self.compare(*changed)
            self.assertEqual((code, out), (2, ""), expected)
            self.assertIn(expected, err)

    def test_a_program_that_fails_is_shown_with_its_words(self):
        words = self.both()
        with open(self.path("kvc", "kvc"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\necho no model here >&2; exit 3\n")
        code, _, err = self.compare(*words, self.model)
        self.assertEqual(code, 2)
        self.assertRegex(err, r"ended with 3:\n.*no model here")

    def test_help_has_examples(self):
        code, out, _ = self.compare("--help")
        self.assertEqual(code, 0)
        self.assertIn("examples:", out)

    def test_the_kvc_program_beside_itself(self):
        if KVC is None:
            self.skipTest("no kvc program given")
        words = ["--kvc", KVC, "--against", KVC, "--rounds", "1", "--least", "0", "--threads", "1"]
        code, out, err = self.compare(*words, "--cells", "prefill-900,decode-900-cokv", "--json", self.path("j"))
        self.assertEqual(code, 0, err)
        with open(self.path("j"), encoding="utf-8") as file:
            written = json.load(file)
        self.assertEqual([cell["cell"] for cell in written["cells"]], ["prefill-900", "decode-900-cokv"])
        self.assertGreater(written["checks"][0]["tokens_equal"], 3)
        one = "" if os.cpu_count() == 1 else ", 1 thread"
        self.assertIn(f"| recall{one} | decode-900-cokv |", out)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]):
        KVC = sys.argv.pop(1)
    unittest.main()

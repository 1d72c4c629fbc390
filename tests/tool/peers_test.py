"""bench/peers.py and bench/shapes.py: the page and the picture say what was kept; shapes are those of the models whose
names they have; llama.cpp's source package is checked before it is used."""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
import unittest.mock as mock
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import compare_llama  # noqa: E402
import llama_cpp  # noqa: E402
import pairing  # noqa: E402
import peers  # noqa: E402
import shapes  # noqa: E402


def document(*cells, date="2026-01-02T03:04:05"):
    """A document as compare_llama.py writes it, with two runs of each side: (model, cell, ours, theirs)."""
    results = [
        pairing.Result(
            model,
            cell,
            [
                pairing.Side(name, [pairing.Series(name, [pairing.Run(rate, 2**20), pairing.Run(rate, 2**20)])])
                for name, rate in (("kvc", ours), ("llama.cpp", theirs))
            ],
        )
        for model, cell, ours, theirs in cells
    ]
    return {
        "date": date, "processor": compare_llama.processor(), "n_processors": 2, "threads": 2,
        "commands": [{"command": "./dev bench peers", "date": date, "note": "built so"}],
        "cells": [{**result.document(), "date": date} for result in results],
    }  # fmt: skip


class Published(unittest.TestCase):
    def test_page_and_picture_say_what_was_kept(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            code = peers.check()
        self.assertEqual(code, 0, err.getvalue())

    def test_the_kept_numbers_hold_no_path_of_a_machine(self):
        tables = peers.published()
        self.assertEqual(len({peers.machine(table) for table in tables}), len(tables))
        for run in (run for table in tables for run in table["commands"]):
            self.assertTrue(run["command"].startswith("./dev bench peers"), run)
        self.assertFalse([word for word in json.dumps(tables).split() if word.strip('"').startswith("/")], "paths")

    def test_a_table_takes_the_place_of_its_machine_and_no_other(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("KEPT", "PICTURE", "DOCUMENT"):
                self.enterContext(mock.patch.object(peers, name, os.path.join(folder, name)))
            peers.write(peers.DOCUMENT, f"{peers.BEGIN}{peers.END}\n")
            for processor, rate in (("A", 2), ("B", 3), ("A", 4)):
                peers.publish({**document(("m", "c", rate, 1)), "processor": processor})
                self.assertEqual(peers.check(), 0)
            kept = [(peers.machine(t), peers.results_of(t)[0].sides[0].series.best) for t in peers.published()]
            self.assertEqual(kept, [("2 cores of A", 4), ("2 cores of B", 3)])
            page, drawn = peers.read(peers.DOCUMENT), peers.read(peers.PICTURE)
            self.assertLess(page.index("### 2 cores of A"), page.index("### 2 cores of B"))
            self.assertEqual([drawn.count(f"2 cores of {name}<") for name in "AB"], [1, 1])
            peers.write(peers.KEPT, peers.read(peers.KEPT).replace("4", "5"))
            with contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(peers.check(), 1)
            self.assertEqual(err.getvalue().count("does not say what"), 2)

    def test_a_run_that_is_cut_off_keeps_its_cells_beside_the_earlier_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = argparse.Namespace(out=folder, add=True)
            with open(os.path.join(folder, "published.json"), "w", encoding="utf-8") as file:
                other = {**document(("m", "a", 9, 9)), "processor": "another"}
                json.dump({"tables": [other, document(("m", "b", 1, 1), date="2026-01-01")]}, file)
            self.enterContext(mock.patch.object(peers, "KEPT", file.name))
            for date, *cells in (("2026-01-02", ("m", "a", 2, 1)), ("2026-01-03", ("m", "b", 3, 1), ("m", "a", 4, 1))):
                table = peers.Table(arguments, "./dev bench peers", "built so")
                for n in range(1, len(cells) + 1):  # what a run hands over behind every cell; it never comes to its end
                    handed = document(*cells[:n], date=date)
                    table.keep({**handed, "command": "bench/x.py /a", "checks": [{"model": "/a/m"}]})
                    with open(os.path.join(folder, "peers.json"), encoding="utf-8") as file:
                        kept = json.load(file)
            self.assertEqual([(r.cell, r.sides[0].series.best) for r in peers.results_of(kept)], [("b", 3), ("a", 4)])
            self.assertEqual([c["date"] for c in kept["commands"]], ["2026-01-01", "2026-01-02", "2026-01-03"])
            self.assertEqual(kept["checks"], [{"model": "m"}])
            self.assertNotIn("command", kept)
            self.assertTrue(os.path.exists(os.path.join(folder, "peers.svg")))

    def test_nothing_is_added_to_a_table_of_another_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "peers.json"), "w", encoding="utf-8") as file:
                json.dump({**document(("m", "a", 1, 1)), "processor": "another"}, file)
            peers.Table(argparse.Namespace(out=folder, add=False), "./dev bench peers", "")
            with self.assertRaisesRegex(compare_llama.Failure, "measured on another, this is"):
                peers.Table(argparse.Namespace(out=folder, add=True), "./dev bench peers", "")

    def test_a_machine_without_a_table_begins_one(self):
        with tempfile.TemporaryDirectory() as folder:
            self.enterContext(mock.patch.object(peers, "KEPT", os.path.join(folder, "published.json")))
            arguments = argparse.Namespace(out=folder, add=True)
            self.assertIsNone(peers.Table(arguments, "./dev bench peers", "").earlier)
            with open(peers.KEPT, "w", encoding="utf-8") as file:
                json.dump({"tables": [{**document(("m", "a", 1, 1)), "processor": "another"}]}, file)
            self.assertIsNone(peers.Table(arguments, "./dev bench peers", "").earlier)

    def test_section(self):
        text = peers.section([document(("m", "decode-0", 30, 20), ("m", "decode-4096", 9, 1))])
        self.assertIn("`./dev bench peers` (2026-01-02).\nllama.cpp was built so.", text)
        other = document(("m", "b", 1, 1), date="2026-01-03")
        other["commands"][0]["note"] = ""
        both = peers.section([peers.merged(document(("m", "a", 1, 1)), other)])
        self.assertIn("On 2026-01-02 llama.cpp was built so.\nOn 2026-01-03 llama.cpp was built for all that", both)
        self.assertIn("| m | decode-0 | 30.0 (30.0, 30.0) | llama.cpp | 20.0 (20.0, 20.0) | 1.50 |", text)
        self.assertIn("| 9.00 | 9.00 | 1 : 1 | yes |", text)

    def test_aims(self):
        text = peers.aims(document(
            ("0.5b-q8_0", "prefill-512", 36, 10), ("1b-q8_0", "prefill-2048", 34, 10), ("1b-bf16", "decode-0", 11, 10),
            ("0.5b-q8_0", "decode-0", 30, 10), ("0.5b-q8_0, 1 busy", "decode-0", 15, 5), ("m", "other", 1, 9),
            ("0.5b-q8_0, 1 thread", "prefill-512", 18, 6), ("0.5b-q8_0, 1 thread", "decode-0", 15, 14),
        ))  # fmt: skip
        self.assertEqual(text.splitlines()[2:], [
            "| prompts of 512 and 2,048 tokens, Q8_0 | 3 | 3.00 | 3.5 | no |",
            "| steps from an empty cache | 3 | 1.07 | 1.1 | no |",
            "| prompts with two threads: our speed, in times of that with one | 1 | 2.00 | 1.9 | yes |",
            "| beside a program that takes a core: the ratio, in parts of that at rest | 1 | 1.00 | 0.9 | yes |",
            "| the same: our speed, in parts of that at rest | 1 | 0.50 | 0.5 | yes |",
        ])  # fmt: skip
        self.assertEqual(peers.aims(document()), "")

    def test_our_own_speeds_are_compared_within_a_day(self):
        whole = document(("q8_0", "prefill-512", 36, 10))
        for condition in ("1 thread", "1 busy"):
            of = [document((f"q8_0, {condition}", "prefill-512", 18, 6), date=f"2026-01-{day}") for day in ("02", "03")]
            same, other = (peers.aims(peers.merged(whole, one)) for one in of)
            self.assertIn("| 2.00 |" if condition == "1 thread" else "| 0.50 |", same)
            self.assertFalse([line for line in other.splitlines() if "our speed" in line], other)

    def test_only_the_part_between_the_marks_changes(self):
        page = f"before\n{peers.BEGIN}\nold\n{peers.END}\nafter\n"
        new = peers.with_section(page, [document(("m", "c", 1, 1))])
        self.assertTrue(new.startswith("before\n" + peers.BEGIN) and new.endswith(peers.END + "\nafter\n"))
        self.assertNotIn("old", new)
        with self.assertRaises(compare_llama.Failure):
            peers.with_section(page + peers.END, [document(("m", "c", 1, 1))])

    def test_cells_of_an_earlier_call_stay(self):
        old = document(("m", "a", 1, 1), ("m", "b", 2, 1))
        both = peers.merged(old, document(("m", "b", 3, 1), ("m", "c", 4, 1), date="2026-02-02T00:00:00"))
        got = [(r.cell, r.sides[0].series.best) for r in peers.results_of(both)]
        self.assertEqual(got, [("a", 1), ("b", 3), ("c", 4)])
        self.assertEqual([run["date"][:7] for run in both["commands"]], ["2026-01", "2026-02"])

    def test_the_picture_is_in_proportion(self):
        root = xml.etree.ElementTree.fromstring(peers.picture([document(("<m>", "c", 30, 10))]))
        space = "{http://www.w3.org/2000/svg}"
        bars = [float(r.get("width")) for r in root.iter(space + "rect") if r.get("height") == str(peers.BAR)]
        self.assertEqual(len(bars), 2)
        self.assertAlmostEqual(bars[0] / bars[1], 3, delta=0.05)
        texts = ["".join(text.itertext()) for text in root.iter(space + "text")]
        self.assertIn("<m> c", texts)
        self.assertIn("× 3.00", texts)


class Conditions(unittest.TestCase):
    def test_what_is_unlike_an_idle_machine_stands_beside_the_model(self):
        with mock.patch.object(os, "cpu_count", return_value=2):
            said = [compare_llama.conditions(argparse.Namespace(threads=t, busy=b)) for t in (1, 2, 3) for b in (0, 1)]
        self.assertEqual(said, [
            ["1 thread"], ["1 thread", "1 busy"], [], ["1 busy"], ["3 threads"], ["3 threads", "1 busy"],
        ])  # fmt: skip


class Shapes(unittest.TestCase):
    def test_parameters_are_those_of_the_models(self):
        # Qwen2.5-0.5B has 494,032,768, of which 24 x (896 + 128 + 128) are biases; Llama-3.2-1B has 1,235,814,400.
        self.assertEqual(shapes.n_parameters("0.5b"), 494032768 - 24 * (896 + 128 + 128))
        self.assertEqual(shapes.n_parameters("1b"), 1235814400)

    def test_file_is_what_kvc_converts(self):
        if importlib.util.find_spec("gguf") is None:
            self.skipTest("PyPI's gguf is not here; ./dev bench peers installs it")
        if KVC is None:
            self.skipTest("no kvc program given")
        with tempfile.TemporaryDirectory() as folder:
            for kind in shapes.TYPES:
                source, out = os.path.join(folder, "s.gguf"), os.path.join(folder, "s.kvc")
                shapes.write(source, "tiny", kind)
                compare_llama.run([KVC, "convert", source, out])
                told, _ = compare_llama.document([KVC, "inspect", out, "--json"])
                self.assertEqual(told["n_parameters"], shapes.n_parameters("tiny"))
                os.remove(out)


class FirstCall(unittest.TestCase):
    def test_folder_of_its_files_is_made(self):
        def write(path, shape, kind):
            with open(path, "w", encoding="utf-8") as file:
                file.write(shape + kind)

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(shapes, "write", write):
            out = os.path.join(folder, "not", "there")
            made = peers.model_files(peers.parse(["--out", out, "--types", "q4_0,bf16"]))
            self.assertEqual(sorted(os.listdir(out)), ["0.5b-bf16.gguf", "0.5b-q4_0.gguf"])
            self.assertEqual(made, [os.path.join(out, "0.5b-q4_0.gguf"), os.path.join(out, "0.5b-bf16.gguf")])


class Program(unittest.TestCase):
    def test_bad_words_are_named(self):
        for words, expected in ((["--types", "q9"], "no 'q9'"), (["--cells", "decode"], "no 'decode'")):
            err = io.StringIO()
            with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
                peers.main(words)
            self.assertEqual(end.exception.code, 2)
            self.assertIn(expected, err.getvalue())

    def test_another_archive_is_not_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.tar.gz")
            self.assertFalse(llama_cpp.checked(path))
            with open(path, "wb") as file:
                file.write(b"not it")
            self.assertFalse(llama_cpp.checked(path))

    def test_a_command_that_fails_is_shown_with_its_words(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            with self.assertRaisesRegex(llama_cpp.Failure, "no sources\n(.|\n)*ended with 3"):
                llama_cpp.ran(["sh", "-c", "echo no sources; exit 3"], log)


KVC = sys.argv.pop(1) if len(sys.argv) > 1 and os.sep in sys.argv[1] else None

if __name__ == "__main__":
    unittest.main()

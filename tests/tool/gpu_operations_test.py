"""Single operations of ./dev gpu: in which groups, and what one that fails or hangs takes along; and that a part of a
run that fails takes no other along."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu  # noqa: E402
import gpu_cells  # noqa: E402
import gpu_operations  # noqa: E402
import gpu_targets  # noqa: E402

KVC = None  # the program, from the command line
NAMES = ("attend 1 of 8 entries bf16, uniform, 32 layers", "attend 16 of 4096 entries bf16, ragged",
         "attend 1 of 8192 entries bf16, uniform, choosing 1024, 9 layers",
         "attend 2 of 4096 entries bf16, ragged", "attend prompt 512 rows of 4096", "fold columns 512 rows of 4096",
         "compress to 1024 of 8192 entries", "select 1024 of 131072 entries", "product 8192 x 8192 bf16, rows 8192",
         "layer bf16, rows 1", "finish q4_k, rows 1", "logits int8, rows 1", "store f16, 8192 entries",
         "load int8, 8192 entries", "step int4, 8192 entries, 9 layers", "sample greedy",
         "score 32 rows of 4096 entries", "pages of 32768 KiB taken and given back",
         "reading, measured again")


def in_groups(names):
    """Each name as often as a group wants it, in their order."""
    return [name for parts in gpu_operations.JUDGED + gpu_operations.REST for name in names
            if any(part in name for part in parts)]


class Groups(unittest.TestCase):
    def test_every_operation_is_in_one(self):
        self.assertEqual(sorted(in_groups(NAMES)), sorted(NAMES))

    def test_those_that_targets_are_judged_by_come_first(self):
        row = {"seconds": 1e-5, "seconds_p10": 1e-5, "seconds_p90": 1e-5, "flops": 1, "bytes": 1,
               "read_bytes_per_second": 1e12}
        asked = []
        with mock.patch.object(gpu_targets, "operation_of", lambda report, name: asked.append(name) or
                               row | {"operation": name}):
            gpu_targets.judge({"device": {"description": "H200"}, "cells": [], "operations": []})
        self.assertGreater(len(asked), 10)
        for name in asked:
            self.assertTrue(any(part in name for parts in gpu_operations.JUDGED for part in parts), name)

    def test_the_program_measures_in_groups_what_it_measures_at_once(self):
        program = KVC and os.path.join(os.path.dirname(KVC), "device_bench")
        if program is None or not os.path.exists(program):
            self.skipTest("no kvc program was named, or it has no device_bench beside it")

        def names(*parts):
            out = subprocess.run([program, "--device", "cpu", "--small", "--json", *parts], check=True,
                                 capture_output=True, text=True).stdout
            return [json.loads(line)["operation"] for line in out.splitlines()]

        everything = names()
        self.assertEqual(sorted(in_groups(everything)), sorted(everything))
        self.assertEqual(names("attend 2 of ", "attend 16 of "),
                         [name for name in everything if name.startswith(("attend 2 of ", "attend 16 of "))])


class Measured(unittest.TestCase):
    """With a program that stands in for device_bench: a word fails it, another hangs it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.args = argparse.Namespace(kvc=os.path.join(folder.name, "kvc"), device="cpu", small=False)
        path = os.path.join(folder.name, "device_bench")
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nshift 3\necho prompts: cuBLASLt >&2\necho $1: cuBLASLt >&2\nfor part; do\n"
                       "  [ $part != fails ] || { echo kvc: lost >&2; exit 1; }\n"
                       "  [ $part != lacks ] || { echo device_bench: attend $part: no memory >&2; bad=1; continue; }\n"
                       "  [ $part != hangs ] || exec sleep 1000\n"
                       "  echo '{\"operation\":\"'$part'\"}'\ndone\nexit $bad\n")
        os.chmod(path, 0o755)
        self.report = {"operations": [], "operations_error": None, "products": ""}

    def measure(self, *groups, minutes=None):
        saved = []
        failed = gpu_operations.measure(self.args, gpu_cells.Clock(minutes), groups, self.report,
                                        lambda: saved.append(len(self.report["operations"])))
        return failed, [row["operation"] for row in self.report["operations"]], saved

    def test_one_that_fails_takes_no_other_group_along(self):
        self.assertEqual(self.measure(("a", "fails", "b"), ("c",), ("fails",)), (2, ["a", "c"], [1, 2, 2, 2]))
        self.assertEqual(self.report["operations_error"], "a, fails, b, fails: kvc: lost")
        self.assertEqual(self.report["products"], "prompts: cuBLASLt; a: cuBLASLt; c: cuBLASLt; fails: cuBLASLt")

    def test_all_that_failed_in_a_process_is_told(self):
        self.assertEqual(self.measure(("lacks", "a"), ("lacks", "b", "fails"))[:2], (2, ["a", "b"]))
        self.assertEqual(self.report["operations_error"], "lacks, a: attend lacks: no memory; "
                         "lacks, b, fails: attend lacks: no memory; kvc: lost")

    def test_nor_one_that_hangs(self):
        with mock.patch.object(gpu_operations, "limit", lambda clock: 0.5):
            self.assertEqual(self.measure(("a", "hangs"), ("b",), minutes=10)[:2], (1, ["a", "b"]))
        self.assertEqual(self.report["operations_error"], "a, hangs: stopped after 0 s")

    def test_nothing_is_there_twice(self):
        self.measure(("a",))
        self.assertEqual(self.measure(("a", "b"))[1], ["a", "b"])

    def test_time(self):
        self.assertEqual(self.measure(("a",), ("b ", "c"), minutes=0.1), (0, [], [0]))
        self.assertEqual(self.report["operations_error"], "a, b, c: out of time")
        self.assertEqual(gpu_operations.limit(gpu_cells.Clock()), gpu_operations.LIMIT)
        for minutes, seconds in ((8, 120), (1, 30), (0.25, 15)):
            self.assertAlmostEqual(gpu_operations.limit(gpu_cells.Clock(minutes)), seconds, delta=1)


class Order(unittest.TestCase):
    """Of a whole run whose parts are stand-ins."""

    def run_all(self, shapes=None, operations=lambda groups: None):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        said = []

        class Made:
            all, there = [model for name in (("8B", 32, 4096), ("1B", 16, 2048)) for model in [gpu_cells.Model(
                name[0], 1, "x", about={"config": {"n_layers": name[1], "hidden_size": name[2]},
                                        "tensors": [{"role": "gate", "type": "bf16"}]})]], []
            make_first = staticmethod(lambda: said.append("make"))
            drop = staticmethod(lambda model: None)
            close = staticmethod(lambda: said.append("delete"))
            need = staticmethod(lambda model, later: None)

        def measure_unit(args, unit, *_):
            said.append(f"{unit.model.path} {unit.policy[:4]} {unit.prompts}")
            return 0

        def measure(args, clock, groups, report, save):
            said.append("judged" if groups == gpu_operations.JUDGED else "others")
            operations(groups)
            return 0

        report = {"device": {"description": "d", "bytes_per_second": 1}, "commit": "", "clocks": {}, "cells": [],
                  "failures": [], "peers": [], "left_out": [], "operations": [], "operations_error": None}
        args = gpu.options(["--device", "cpu", "--out", os.path.join(folder.name, "gpu.json")])
        watch = mock.Mock(samples=[])
        with mock.patch.object(gpu, "shapes_of", shapes or (lambda *_: Made())), \
                mock.patch.object(gpu, "measure_unit", measure_unit), \
                mock.patch.object(gpu_operations, "measure", measure), \
                mock.patch.object(gpu, "peers", lambda *_: said.append("peers")), \
                mock.patch.object(gpu.gpu_ladder, "measure", lambda *_: said.append("ladder") or {
                    "error": None, "rows": [], "shape": "1B"}):
            failed = gpu.Run(args, gpu_cells.Clock(), watch, report).all()
        return said, failed, report["failures"]

    def test_what_needs_no_model_comes_before_models_and_what_targets_ask_for_before_the_rest(self):
        said, failed, _ = self.run_all()
        self.assertEqual(failed, 0)
        self.assertEqual(said[:5], ["judged", "make", "8B snap [4096, 8192]", "8B full [8192]", "1B snap [4096, 8192]"])
        self.assertEqual(said[5:7], ["peers", "ladder"])
        self.assertEqual(set(said[7:9]), {"8B snap [131072]", "1B snap [131072]"})
        self.assertEqual(said[9], "others")
        self.assertEqual(said[-1], "delete")
        self.assertEqual(len(said), len(set(said)))

    def test_a_part_that_fails_is_told_and_the_rest_goes_on(self):
        def fails(groups):
            raise ValueError("no line")

        with mock.patch("sys.stderr"):
            said, failed, failures = self.run_all(operations=fails)
        self.assertEqual((failed, failures), (2, ["operations: ValueError: no line"] * 2))
        self.assertIn("ladder", said)

    def test_without_models_there_are_operations_and_comparators(self):
        def none(args, clock, report):
            args.kvc = "/none/kvc"
            return shapes_of(args, clock, report)

        shapes_of = gpu.shapes_of
        said, failed, failures = self.run_all(shapes=none)
        self.assertEqual(said, ["judged", "peers", "others"])
        self.assertEqual(failed, 1)
        self.assertRegex(failures[0], "^shape_model: .*No such file")


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        KVC = os.path.abspath(sys.argv.pop(1))
    unittest.main()

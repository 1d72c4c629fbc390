"""What ./dev gpu measures and in which order, what it leaves out when time ends, and the whole of it from an archive in
a tree of stand-ins. gpu_cells_test.py KVC uses the programs beside that one too."""

import argparse
import dataclasses
import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_blas  # noqa: E402
import gpu_cells  # noqa: E402
import gpu_ladder  # noqa: E402
import gpu_targets  # noqa: E402
import gpu_tests  # noqa: E402
import shapes  # noqa: E402

KVC = None  # the program, from the command line
BUDGET = gpu_targets.BUDGET
RESULT = {"decode_tokens_per_second": 260.0, "bandwidth_fraction": 0.9,
          "decode_tokens_per_second_p10": 255.0, "bandwidth_fraction_p10": 0.89, "step_seconds_median": 0.004,
          "step_seconds_p99": 0.0041, "steps_timed": 168, "prefill_seconds": 0.2, "prefill_tokens_per_second": 1e4,
          "compress_seconds": 0.001, "first_token_seconds": 0.3, "step_seconds_mean": 0.0}

# Stands in for kvc, shape_model and device_bench: a prompt of N tokens takes N milliseconds, one of 13 fails. Of
# memory it takes 1,000,000 bytes and 600 a token, with a budget 100.
PROGRAM = """#!/usr/bin/env python3
import json, os, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
option = lambda name: args[args.index(name) + 1]
need = lambda tokens: 1000000 + int(tokens) * (600 if option("--policy") == "full" else 100)
if name == "shape_model" and args == ["--list"]:
    shape = dict(layers=32, hidden=4096, feed_forward=16, heads=2, kv_heads=1, head_size=8, vocabulary=512, theta=1e4)
    kinds = dict(bf16=2000, int8=1000, int4=500)
    print(json.dumps({"8b": shape | dict(context=200000, weight_bytes=kinds),
                      "1b": shape | dict(layers=16, hidden=2048, context=200000, weight_bytes=kinds)}))
elif name == "shape_model":
    open(args[2], "w").close()
elif name == "device_bench":
    print(json.dumps(dict(operation="layer x", seconds=1e-3, seconds_p10=1e-3, seconds_p90=1e-3, flops=1, bytes=1,
                          read_bytes_per_second=1e9)))
elif args[0] == "--version":
    sys.exit(os.environ.get("FAKE_VERSION", 0))
elif args[0] == "devices":
    print('[{"name":"cuda","summary":"one","available":true,"description":"NVIDIA H200","bytes_per_second":4e12}]')
elif args[0] == "plan":
    print(json.dumps({"total_bytes_peak": need(option("--context"))}))
else:
    for prompt in args[args.index("--prompt") + 1].split(","):
        if "--memory-limit" in args and need(prompt) > int(option("--memory-limit")) + TOLERANCE:
            sys.exit("kvc: cannot process the prompt: activations need more bytes (MEMORY)")
        time.sleep(int(prompt) / SLOWNESS)
        if prompt == "13":
            sys.exit("kvc: no memory")
        print(json.dumps(RESULT | {"n_prompt": int(prompt), "prefill_seconds": int(prompt) * 1e-6}), flush=True)
"""


def model(name="m", layers=32, hidden=4096, weights="bf16", n_bytes=1000, context=200000):
    config = {"n_layers": layers, "hidden_size": hidden, "n_heads": 2, "n_kv_heads": 1, "head_dim": 8, "ffn_size": 16,
              "max_tokens": context}
    return gpu_cells.Model(name, n_bytes, about={"config": config, "tensors": [{"role": "gate", "type": weights}]})


def eight(weights="bf16", n_bytes=8000):
    return model(f"8b-{weights}", weights=weights, n_bytes=n_bytes)


def one():
    return model("1b-bf16", 16, 2048, n_bytes=2000)


def cells(units):
    return [(unit.model.path, unit.policy, prompt) for unit in units for prompt in unit.prompts]


def write_program(path, slowness=1000, tolerance=0):
    """tolerance: bytes beyond a limit that are not refused."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(PROGRAM.replace("SLOWNESS", str(slowness)).replace("RESULT", repr(RESULT)).replace(
            "TOLERANCE", str(tolerance)))
    os.chmod(path, 0o755)


class Order(unittest.TestCase):
    def test_what_targets_ask_for_comes_first_and_is_enough_for_them(self):
        units = gpu_cells.units([eight(), eight("int8"), eight("int4"), one()], 3)
        order = cells(units)
        self.assertEqual(order[:3], [("8b-bf16", BUDGET, 4096), ("8b-bf16", BUDGET, 8192), ("8b-bf16", "full", 8192)])
        self.assertEqual(order[3:7], [("8b-int8", BUDGET, 4096), ("8b-int4", BUDGET, 4096), ("1b-bf16", BUDGET, 4096),
                                      ("1b-bf16", BUDGET, 8192)])
        self.assertEqual(order[7:9], [("1b-bf16", BUDGET, 131072), ("8b-bf16", BUDGET, 131072)])
        self.assertEqual(len(order), len(set(order)))
        self.assertEqual(set(cells(units)), set(order) | {(name, policy, prompt) for name in ("8b-bf16", "8b-int8")
                                                         for policy in gpu_cells.POLICIES
                                                         for prompt in gpu_cells.PROMPTS})
        turn, _ = gpu_cells.turns(units)
        self.assertEqual(len(cells(units[:turn])), 7)
        done = [gpu_cells.cell_of(unit, prompt, RESULT) for unit in units[:turn + 2] for prompt in unit.prompts]
        rows = gpu_targets.judge({"device": {"description": "H200"}, "cells": done,
                                  "operations": [
                                      {"operation": gpu_targets.compressed(tokens), "seconds": 1e-5,
                                       "seconds_p10": 1e-5, "seconds_p90": 1e-5} for tokens in (4096, 8192)
                                  ] + [{"operation": "product 1", "seconds": 1, "flops": 1}]})
        judged = {row["id"] for row in rows if row["verdict"] != "not measured"}
        self.assertTrue({"T9a", "T9b8", "T9b4", "T9c", "T10", "T12", "T13", "T15a"} <= judged, judged)

    def test_long_prompts_are_measured_once_and_others_as_often_as_asked(self):
        for unit in gpu_cells.units([eight()], 3):
            self.assertEqual({unit.repeat}, {1 if prompt >= gpu_cells.LONG else 3 for prompt in unit.prompts})
            steps = gpu_cells.steps_of(argparse.Namespace(gen=64), unit)
            self.assertGreater(unit.repeat * steps * 7 / 8, gpu_targets.STEPS_OF_P99)

    def test_named_prompts_are_all(self):
        self.assertEqual(cells(gpu_cells.units([one()], 3, [24, 40])),
                         [("1b-bf16", policy, prompt) for policy in ("full", BUDGET) for prompt in (24, 40)])


class Deadline(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.kvc = os.path.join(self.folder, "kvc")
        write_program(self.kvc)
        self.args = argparse.Namespace(kvc=self.kvc, device="cpu", gen=1)

    def measure(self, prompts, minutes=None, about=None):
        unit = gpu_cells.Unit(about or model(), BUDGET, prompts, 1)
        clock = gpu_cells.Clock(minutes)
        return [(cell["prompt"], cell["result"].get("error")) for cell in gpu_cells.measure(self.args, unit, clock)]

    def test_without_one_everything_is_measured(self):
        self.assertEqual(self.measure([10, 20, 5]), [(10, None), (20, None), (5, None)])

    def test_files_are_not_read_to_be_checked_before_each_unit(self):
        with mock.patch.object(gpu_cells.gpu_run, "Lines", side_effect=InterruptedError) as started:
            with self.assertRaises(InterruptedError):
                self.measure([10])
        self.assertIn("--trusted", started.call_args.args[0])

    def test_one_prompt_that_fails_takes_no_other_along(self):
        self.assertEqual(self.measure([10, 13, 20]), [(10, None), (13, "kvc: no memory"), (20, None)])

    def test_what_does_not_fit_the_model_is_said(self):
        self.assertEqual(self.measure([10, 50], about=model(context=40)),
                         [(10, None), (50, "the model was trained for 40 tokens")])

    def test_nothing_is_begun_without_time(self):
        self.assertEqual(self.measure([10, 20], minutes=0), [(10, gpu_cells.OUT_OF_TIME), (20, gpu_cells.OUT_OF_TIME)])

    def test_what_took_long_is_not_begun_again(self):
        """The first cell takes many times its guess: there is no time for a second one like it."""
        found = self.measure([4000, 4001], minutes=6.0 / 60)
        self.assertEqual(found, [(4000, None), (4001, gpu_cells.OUT_OF_TIME)])

    def test_what_does_not_end_is_stopped_with_its_line(self):
        (prompt, error), = self.measure([9000], minutes=3.0 / 60)
        self.assertEqual(prompt, 9000)
        self.assertRegex(error, r"^stopped after \d s: out of time$")


class LongestPrompts(unittest.TestCase):
    """gpu_ladder.py with the stand-in."""

    def climb(self, minutes=None, tolerance=0, slowness=1e6, script=None):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        kvc = os.path.join(folder, "kvc")
        write_program(kvc, slowness, tolerance)
        if script is not None:
            with open(kvc, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\n{script}\n")
        return gpu_ladder.measure(gpu_ladder.Ladder(kvc, "cpu", one(), gpu_cells.Clock(minutes)))

    def test_both_run_under_the_limit_and_longer_ones_are_refused(self):
        found = self.climb()
        self.assertIsNone(found["error"])
        self.assertEqual((found["shape"], found["limit"]), ("1B", 1000000 + 600 * gpu_ladder.PROMPT))
        full, budget = found["rows"]
        self.assertEqual((full["policy"], full["tokens"]), ("full", gpu_ladder.PROMPT))
        self.assertEqual(budget["policy"], BUDGET)
        self.assertAlmostEqual(budget["tokens"], 6 * gpu_ladder.PROMPT, delta=0.0021 * 6 * gpu_ladder.PROMPT)
        self.assertLessEqual(budget["tokens"], 6 * gpu_ladder.PROMPT)
        for row in found["rows"]:
            self.assertAlmostEqual(row["refused"] / row["tokens"], 1.05, places=3)

    def test_where_the_plan_is_careful_longer_ones_are_tried(self):
        full, budget = self.climb(tolerance=600 * 1000)["rows"]
        self.assertEqual((full["planned"], full["tokens"], full["refused"]), (16384, 17203, 18063))
        self.assertGreater(budget["tokens"], budget["planned"])

    def test_what_is_not_as_planned_is_an_error(self):
        found = self.climb(tolerance=10**8)
        self.assertEqual(found["error"], "a prompt of 19914 tokens by full has room too, where the plan ends at 16384")
        found = self.climb(tolerance=-1000)
        self.assertRegex(found["error"],
                         r"^a prompt of 16384 tokens by full, for which the plan has room: .*\(MEMORY\)$")
        self.assertEqual(found["rows"], [])

    def test_another_failure_is_no_refusal(self):
        plan = 'test $1 = plan && { echo "{\\"total_bytes_peak\\": $((${10} * 10))}"; exit; }'
        found = self.climb(script=plan + "; echo '{\"prefill_seconds\": 1}'; "
                           "echo kvc: the device is lost >&2; exit 1")
        self.assertEqual(found["error"], "a prompt of 17203 tokens by full: kvc: the device is lost")
        self.assertEqual(self.climb(script="echo kvc: no device >&2; exit 1")["error"], "kvc: no device")
        self.assertEqual(self.climb(script="echo '{}'")["error"], "'total_bytes_peak'")

    def test_time(self):
        self.assertEqual(self.climb(minutes=0)["error"], "out of time")
        self.assertEqual(self.climb(minutes=0.05)["error"], "out of time")  # plans alone are guessed to take more
        with mock.patch.object(gpu_ladder.Ladder, "seconds", lambda *_: 0):
            found = self.climb(minutes=0.05, slowness=1000)
        self.assertRegex(found["error"], r"^kvc bench, stopped after \d+ s: out of time$")

    def test_the_model_is_the_one_that_takes_seconds(self):
        self.assertEqual(gpu_ladder.model_for([eight(), one()], False).path, "1b-bf16")
        self.assertIsNone(gpu_ladder.model_for([eight()], False))
        self.assertEqual(gpu_ladder.model_for([eight()], True).path, "8b-bf16")


class Estimates(unittest.TestCase):
    def test_prompts_and_steps_have_rates_of_their_own(self):
        unit, clock = gpu_cells.Unit(eight(n_bytes=10**10), BUDGET, [], 1), gpu_cells.Clock()
        self.assertEqual(clock.left(), float("inf"))
        self.assertAlmostEqual(clock.loading(unit), 6)
        prompt, step = clock.guess(unit, 100000)
        first = clock.estimate(unit, 100000, 10, loads=False)
        self.assertAlmostEqual(first, 1 + 2 * (prompt + 10 * step))
        result = {"prefill_seconds": 3 * prompt, "step_seconds_mean": 0.5 * step}
        clock.took(unit, 100000, 10, result, 2 * (3 * prompt + 5 * step) + 4)
        self.assertAlmostEqual(clock.estimate(unit, 100000, 10, loads=False), 4 + 2 * (3 * prompt + 5 * step))
        longer = clock.guess(unit, 200000)[0]
        self.assertGreater(longer, 2 * prompt)
        self.assertAlmostEqual(clock.estimate(unit, 200000, 10, loads=True), 4 + 2 * (3 * longer + 5 * step) + 6)
        clock.gave_up(unit, 1000)
        self.assertGreater(clock.estimate(unit, 10, 10, loads=False), 1000)
        other = gpu_cells.Unit(one(), BUDGET, [], 1)
        self.assertLess(clock.estimate(other, 10, 10, loads=False), 1000)

    def test_no_cell_takes_all_the_time(self):
        self.assertAlmostEqual(gpu_cells.Clock(4).most(10), 120, delta=1)
        self.assertAlmostEqual(gpu_cells.Clock(0.25).most(10), 15, delta=1)

    def test_what_is_begun_has_the_time_that_it_is_begun_for(self):
        self.assertAlmostEqual(gpu_cells.Clock(4).most(150), 195, delta=1)
        self.assertAlmostEqual(gpu_cells.Clock(4).most(239), 240, delta=1)


class Runner(unittest.TestCase):
    def test_verdicts(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "tests"))
            tests = {"a": 'echo "[  PASSED  ] 3 tests."', "b": "echo reason; exit 3", "c": "sleep 60",
                     "d": 'test "$X" = 1'}
            listed = []
            for name, script in tests.items():
                path = os.path.join(folder, "tests", name)
                with open(path, "w", encoding="ascii") as file:
                    file.write(f"#!/bin/sh\n{script}\n")
                os.chmod(path, 0o755)
                listed.append({"name": name, "program": f"tests/{name}", "environment": ["X=1"],
                               "timeout": 1 if name == "c" else 60})
            with open(os.path.join(folder, "tests.json"), "w", encoding="ascii") as file:
                json.dump(listed, file)
            self.assertFalse(gpu_tests.run(folder, 4, None))
            with open(os.path.join(folder, "tests.txt"), encoding="ascii") as file:
                said = file.read()
            for words in ("a: passed", "(3 passed)", "b: failed: exit code 3", "c: failed: took too long", "d: passed",
                          "2 of 4 test programs passed, 2 failed, 0 out of time"):
                self.assertIn(words, said)
            self.assertFalse(gpu_tests.run(folder, 4, 0))
            with open(os.path.join(folder, "tests.txt"), encoding="ascii") as file:
                self.assertIn("0 of 4 test programs passed, 0 failed, 4 out of time", file.read())

    def test_what_tells_most_is_first(self):
        names = ["api_batch_test", "golden_later_test", "device_parity_test", "experts_parity_test"]
        self.assertEqual(sorted(names, key=lambda name: (gpu_tests.rank(name), name)),
                         ["device_parity_test", "experts_parity_test", "api_batch_test", "golden_later_test"])


class FromAnArchive(unittest.TestCase):
    """./dev gpu --from in a tree that has the scripts alone."""

    def setUp(self):
        self.tree = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.tree)
        shutil.copy(os.path.join(ROOT, "dev"), self.tree)
        os.mkdir(os.path.join(self.tree, "bench"))
        for path in glob.glob(os.path.join(ROOT, "bench", "gpu*")) + [os.path.join(ROOT, "bench", "shapes.py")]:
            shutil.copy(path, os.path.join(self.tree, "bench"))
        self.path = os.path.join(self.tree, "path")  # in front of PATH
        os.mkdir(self.path)

    def pack(self, *tests):
        packed = os.path.join(self.tree, "packed")
        for folder in ("bin", "lib", "tests", "compiler"):
            os.makedirs(os.path.join(packed, folder))
        with open(os.path.join(packed, "compiler", "libstdc++.so.6"), "w", encoding="ascii"):
            pass
        for name in ("kvc", "shape_model", "device_bench"):
            write_program(os.path.join(packed, "bin", name), 1e6)
        for name in tests:
            path = os.path.join(packed, "tests", name)
            with open(path, "w", encoding="ascii") as file:
                file.write(f'#!/bin/sh\n[ "$1" != --gtest_list_tests ] || exit 0$FAKE_LISTS\necho said by {name}\n'
                           f'test "$KVC_TEST_DEVICE" = cuda && test {name} != bad\n')
            os.chmod(path, 0o755)
        with open(os.path.join(packed, "tests.json"), "w", encoding="ascii") as file:
            json.dump([{"name": name, "program": f"tests/{name}", "environment": [], "timeout": 60} for name in tests],
                      file)
        for name, text in (("commit", "0123"), ("driver", "580")):
            with open(os.path.join(packed, name), "w", encoding="ascii") as file:
                file.write(text + "\n")
        with tarfile.open(os.path.join(self.tree, "gpu.tar.xz"), "w:xz") as archive:  # a machine may have no xz
            archive.add(packed, ".")

    def dev(self, *args):
        return self.run_here([os.path.join(self.tree, "dev"), "gpu", *args])

    def run_here(self, command):
        path = self.path + os.pathsep + os.environ["PATH"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.tree,
                              env=dict(os.environ, PATH=path))

    def program(self, name, script):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(os.path.join(self.path, name), 0o755)

    def read(self, name):
        with open(os.path.join(self.tree, "build-gpu", name), encoding="utf-8") as file:
            return file.read()

    def test_everything_is_run_and_nothing_is_left_behind(self):
        self.pack("good", "better")
        done = self.dev("--from", "gpu.tar.xz", "--minutes", "5", "--scratch", self.tree, "--out", "out")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("2 of 2 test programs passed", self.read("tests.txt"))
        self.assertEqual(self.read("logs/good.txt"), "said by good\n")
        for name in ("gpu.json", "gpu.md", "tests.txt", "logs/good.txt", "logs/better.txt"):  # as often as they change
            with open(os.path.join(self.tree, "out", name), encoding="utf-8") as file:
                self.assertEqual(file.read(), self.read(name))
        report = json.loads(self.read("gpu.json"))
        self.assertEqual(report["commit"], "0123")
        self.assertEqual({c["model"] for c in report["cells"]},
                         {"8b-bf16.kvc", "8b-int8.kvc", "8b-int4.kvc", "1b-bf16.kvc"})
        self.assertEqual({c["result"].get("error") for c in report["cells"]}, {None})
        self.assertEqual(len(report["operations"]), 1)
        self.assertEqual((report["ladder"]["error"], len(report["ladder"]["rows"])), (None, 2))
        self.assertEqual(next(row["verdict"] for row in report["targets"] if row["id"] == "T19"), "met in part")
        self.assertEqual([name for name in os.listdir(self.tree) if name.startswith("kvc-gpu-")], [])
        self.assertEqual(self.dev("--from", "gpu.tar.xz", "--minutes", "5", "--shapes", "1b:int4").returncode, 0)
        self.assertEqual({c["model"] for c in json.loads(self.read("gpu.json"))["cells"]}, {"1b-int4.kvc"})

    def library(self, folder, package, version):
        path = os.path.join(folder, "nvidia", package, "lib", f"libcublasLt.so.{version}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii"):
            pass
        return path

    def test_products_of_a_package_of_the_first_python_on_the_path_are_used(self):
        """That of a virtual environment, say, which has PyTorch, and not the one that runs the scripts."""
        self.pack("good")
        packages = os.path.join(self.tree, "packages")
        self.program("python3", f'PYTHONPATH={packages} exec {sys.executable} "$@"')
        options = "--from", "gpu.tar.xz", "--shapes", "1b:int4", "--minutes", "1"
        for there, named in ((False, None), (True, None), (True, "/mine/libcublasLt.so.12")):
            wanted = named
            if there:
                library = self.library(packages, "cu13", 13)
                wanted = named or f"libcublasLt.so.13:{library}:libcublasLt.so.12"
            with mock.patch.dict(os.environ, {"KVC_CUBLASLT": named} if named else {}):
                done = self.dev(*options)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(json.loads(self.read("gpu.json"))["switches"], {"KVC_CUBLASLT": wanted} if wanted else {})
            self.assertEqual(f"With KVC_CUBLASLT={wanted}." in self.read("gpu.md"), wanted is not None)

    def test_newer_products_come_first_and_none_is_left_out(self):
        """One of 13 may not start: the driver is too old for it."""
        one, other = (os.path.join(self.tree, name) for name in ("one", "other"))
        self.assertEqual(gpu_blas.candidates([one, other]), [])
        of_12 = self.library(one, "cublas", 12)
        self.assertEqual(gpu_blas.candidates([one, other]), ["libcublasLt.so.13", "libcublasLt.so.12", of_12])
        of_13 = self.library(other, "cu13", 13)
        self.assertEqual(gpu_blas.candidates([one, other, other]),
                         ["libcublasLt.so.13", of_13, "libcublasLt.so.12", of_12])

    def test_what_nvidia_smi_says(self):
        self.pack("good", "better")
        shutil.copy(os.path.join(ROOT, "tests", "tool", "fake_nvidia_smi.py"), os.path.join(self.path, "nvidia-smi"))
        says = {"hurry": "", "driver_version": "570.124.06", "compute_mode": "Exclusive_Process",
                "clocks.sm": "1755 MHz", "clocks.mem": "3201 MHz", "power.draw": "690.10 W", "utilization.gpu": "99 %",
                "clocks_event_reasons.active": "0x0000000000000004"}
        with mock.patch.dict(os.environ, FAKE_NVIDIA_SMI=json.dumps(says)):
            done = self.dev("--from", "gpu.tar.xz", "--shapes", "1b:int4", "--minutes", "1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 at once", self.read("tests.txt"))
        self.assertIn("one test program at a time: the GPU is in the compute mode Exclusive_Process\n", done.stdout)
        self.assertRegex(self.read("gpu.md"), r"\nAt work: clocks\.sm 1755 \(least 1755\), clocks\.mem 3201 .*, of \d+ "
                         r"samples; held down by power cap in 100 %\.\n")
        self.assertIn("this machine's driver is 570.124.06, and what was packed is made for 580 or later", done.stdout)
        cells = json.loads(self.read("gpu.json"))["cells"]
        self.assertIn({"median": 1755, "least": 1755}, [cell.get("clocks", {}).get("clocks.sm") for cell in cells])

    def test_an_older_driver_is_told(self):
        os.mkdir(os.path.join(self.tree, "build-gpu"))
        for needed, says, told in (
                ("580", "echo 570.124.06; echo 570.124.06", True), ("580", "echo 580.65.06", False),
                ("525", "echo 535.54.03", False), ("580", "echo '[N/A]'", False), ("580", "exit 9", False),
                ("580", "", False), ("that of CUDA 14", "echo 570.124.06", False), (None, "echo 570.124.06", False)):
            self.program("nvidia-smi", says)
            path = os.path.join(self.tree, "build-gpu", "driver")
            if needed is None:
                os.remove(path)
            else:
                with open(path, "w", encoding="ascii") as file:
                    file.write(needed + "\n")
            done = self.of_gpu_bash("tell_old_driver")
            self.assertEqual(done.stdout, "this machine's driver is 570.124.06, and what was packed is made for 580 or "
                             "later: it may not start\n" if told else "", (needed, says))
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_archive_has_the_driver_that_it_needs(self):
        for release, driver in (("12.4", "525"), ("13.0", "580"), ("14.1", "that of CUDA 14")):
            self.program("nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.88'")
            self.assertEqual(self.of_gpu_bash("needed_driver").stdout, driver + "\n")

    def test_tests_have_less_of_a_short_run(self):
        for seconds, of_tests in ((0, 0), (120, 24), (300, 60), (540, 156), (900, 300)):
            self.assertEqual(self.of_gpu_bash(f"seconds_of_tests {seconds}").stdout, f"{of_tests}\n")

    def test_a_pack_says_what_goes_to_the_other_machine(self):
        with open(os.path.join(self.tree, "sources"), "wb") as file:
            file.truncate(40 << 20)
        subprocess.run("git init -q . && git add sources", shell=True, check=True, cwd=self.tree)
        for size, sizes, warned in (((3 << 20) >> 1, "1.5 MiB, together 41.5 MiB", False),
                                    (64 << 20, "64.0 MiB, together 104.0 MiB", False),
                                    ((64 << 20) + 1, "64.0 MiB, together 104.0 MiB", True)):
            with open(os.path.join(self.tree, "archive"), "wb") as file:
                file.truncate(size)
            said = self.of_gpu_bash("tell_sizes archive").stdout
            self.assertTrue(said.startswith(f"tracked files: 40.0 MiB, the archive: {sizes}\n"), said)
            self.assertEqual("larger than 64 MiB" in said, warned)

    def of_gpu_bash(self, function):
        """What a function of it says."""
        say = "say() { printf '%s\\n' \"$*\"; }"
        return self.run_here(["bash", "-euo", "pipefail", "-c", f"{say}; source bench/gpu.bash; {function}"])

    def test_a_failed_test_is_shown_and_told_and_speed_is_measured(self):
        self.pack("good", "bad")
        done = self.dev("--from", "gpu.tar.xz", "--shapes", "1b:int4")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("    said by bad\n", done.stdout)
        self.assertIn("bad: failed: exit code 1", self.read("tests.txt"))
        self.assertGreater(len(json.loads(self.read("gpu.json"))["cells"]), 0)

    def test_libraries_of_the_compiler_are_taken_where_there_are_none(self):
        self.pack("good")
        library = os.path.join(self.tree, "build-gpu", "lib", "libstdc++.so.6")
        options = "--from", "gpu.tar.xz", "--shapes", "1b:int4", "--minutes", "1"
        for fails in ({}, {"FAKE_VERSION": "no libstdc++.so.6"}, {"FAKE_LISTS": "1"}):  # tests may ask for a newer one
            with mock.patch.dict(os.environ, fails):
                self.assertEqual(self.dev(*options).returncode, 0)
            self.assertEqual(os.path.exists(library), fails != {})

    def test_a_build_is_not_overwritten(self):
        self.pack("good")
        os.mkdir(os.path.join(self.tree, "build-gpu"))
        with open(os.path.join(self.tree, "build-gpu", "CMakeCache.txt"), "w", encoding="ascii"):
            pass
        done = self.dev("--from", "gpu.tar.xz")
        self.assertEqual(done.returncode, 1)
        self.assertIn("build-gpu/ holds a build of this machine", done.stderr)

    def test_what_is_asked_for_wrongly(self):
        for args, words in ((("--from", "none.xz"), "no archive 'none.xz'"), (("--minutes", "x"), "a whole number"),
                            (("--nothing",), "no option '--nothing'"),
                            (("pack", "--arch", "ninety"), "no architectures")):
            done = self.dev(*args)
            self.assertEqual(done.returncode, 1, args)
            self.assertIn(words, done.stderr)


class WithThePrograms(unittest.TestCase):
    def setUp(self):
        self.program = KVC and os.path.join(os.path.dirname(KVC), "shape_model")
        if KVC is None or not os.path.exists(self.program):
            self.skipTest("no kvc program was named, or it has no shape_model beside it")

    def test_shapes_are_those_of_the_other_writer(self):
        listed = json.loads(subprocess.run([self.program, "--list"], check=True, capture_output=True).stdout)
        for shape in listed.values():
            shape.pop("weight_bytes")
        self.assertEqual(listed, {name: dataclasses.asdict(shape) for name, shape in shapes.SHAPES.items()})

    def test_files_are_alike_for_a_seed_and_as_large_as_said(self):
        sizes = json.loads(subprocess.run([self.program, "--list"], check=True, capture_output=True).stdout)
        with tempfile.TemporaryDirectory() as folder:
            def made(weights, *options):
                path = os.path.join(folder, "m.kvc")
                subprocess.run([self.program, "tiny", weights, path, *options], check=True)
                with open(path, "rb") as file:
                    return file.read()
            for weights, n_bytes in sizes["tiny"]["weight_bytes"].items():
                first = made(weights)
                self.assertEqual(first, made(weights, "--seed", "1"))
                self.assertNotEqual(first, made(weights, "--seed", "2"))
                self.assertTrue(n_bytes <= len(first) <= n_bytes + (64 << 10), weights)
            self.assertEqual(subprocess.run([self.program, "tiny", "q6_k", "x"], stderr=subprocess.DEVNULL,
                                            check=False).returncode, 2)

    def test_models_are_made_measured_and_deleted(self):
        listed = subprocess.run([KVC, "devices", "--json", "--no-measure"], check=True, capture_output=True, text=True)
        device = "emu" if "emu" in [entry["name"] for entry in json.loads(listed.stdout)] else "cpu"
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "gpu.json")
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "bench", "gpu.py"), "--kvc", KVC, "--device", device, "--out", out,
                 "--shapes", "tiny:bf16,tiny:int4,tiny:q4_k", "--prompts", "24,40", "--gen", "2", "--repeat", "1",
                 "--small", "--scratch", folder], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(out, encoding="utf-8") as file:
                report = json.load(file)
            self.assertEqual(sorted(os.listdir(folder)), ["gpu.json", "gpu.md"])
        self.assertEqual([(c["model"], c["prompt"], c["result"]["n_prompt"]) for c in report["cells"]],
                         [(f"tiny-{kind}.kvc", prompt, prompt) for kind in ("int4", "q4_k", "bf16")  # small ones first
                          for _ in range(2) for prompt in (24, 40)])


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        KVC = os.path.abspath(sys.argv.pop(1))
    unittest.main()

"""bench/gpu_tune.py by known answers: devices that a function describes. gpu_tune_test.py KVC runs the whole script
with that program: on the emulated device where it has one, else on the processor, which has nothing to tune."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_tune  # noqa: E402

KVC = None  # the program, from the command line
USUAL = {"prompt_rows": 1024, "few_rows": 5, "blas_rows": 256, "decoded_rows": 512, "blas_workspace": 32,
         "step_blocks": 264, "least_segment": 64, "most_segment": 1024, "first_piece": 16, "piece": 64,
         "weights_ahead": 64, "early": 1}


class Clock:
    def __init__(self, calls=None):
        self.calls = calls

    def left(self):
        if self.calls is None:
            return float("inf")
        self.calls -= 1
        return self.calls


def tuner(seconds, clock=None, rounds=3):
    """Of a device that takes seconds(name of a number, tuning)."""
    return gpu_tune.Tuner(lambda knob, tuning: seconds(knob.name, tuning), USUAL, rounds, clock or Clock(),
                          lambda text: None)


def tuned(seconds, **more):
    found = tuner(seconds, **more)
    for knob in gpu_tune.KNOBS:
        found.tune(knob)
    times = found.confirm(gpu_tune.KNOBS)
    return found, times


class Known(unittest.TestCase):
    def test_every_number_of_the_library_has_one(self):
        with open(os.path.join(ROOT, "cuda", "tuning.list"), encoding="utf-8") as file:
            listed = re.findall(r"^KVC_TUNED\((\w+), (\d+), (\d+), (\d+), (\d+)\)", file.read(), re.MULTILINE)
        self.assertEqual(sorted(name for name, *_ in listed), sorted(knob.name for knob in gpu_tune.KNOBS))
        ranges = {name: tuple(map(int, numbers)) for name, *numbers in listed}
        for knob in gpu_tune.KNOBS:
            least, most, step, usual = ranges[knob.name]
            self.assertTrue(knob.operations or knob.figures)
            self.assertGreater(len(knob.values(usual)), 0)
            for now in (least, usual, most) if isinstance(knob.tries[0], int) else (USUAL[knob.name], 32):
                for value in knob.values(now):
                    self.assertTrue(least <= value <= most and value % step == 0, f"{knob.name} = {value}")

    def test_the_fastest_is_found(self):
        def seconds(name, tuning):
            best = {"step_blocks": 396, "piece": 32, "prompt_rows": 4096}
            return {"a": 1 + abs(tuning[name] - best[name]) / best[name] if name in best else 1.0}

        found, times = tuned(seconds)
        self.assertEqual(found.now, USUAL | {"step_blocks": 396, "piece": 32, "prompt_rows": 4096})
        self.assertLess(times, 0.8)
        self.assertEqual(found.left_out, [])

    def test_two_percent_are_nothing(self):
        found, times = tuned(lambda name, tuning: {"a": 1.0 if tuning[name] == USUAL[name] else 0.981})
        self.assertEqual((found.now, times), (USUAL, 1.0))

    def test_a_device_that_becomes_slower_meanwhile(self):
        """Values take turns with what is there: both grow slow together."""
        count = [0]

        def seconds(_name, _tuning):
            count[0] += 1
            return {"a": 1.0 + count[0] / 200}

        self.assertEqual(tuned(seconds)[0].now, USUAL)

    def test_one_disturbed_round_does_not_count(self):
        count = [0]

        def seconds(name, tuning):
            count[0] += name == "piece" and tuning["piece"] == 32
            return {"a": 0.1 if count[0] == 1 and tuning["piece"] == 32 else 1.0}

        self.assertEqual(tuned(seconds)[0].now, USUAL)
        self.assertEqual(tuned(seconds, rounds=1)[0].now, USUAL)  # the confirmation does not agree

    def test_all_that_is_measured_counts_alike(self):
        found, _ = tuned(lambda name, tuning: {"a": 0.5, "b": 2.1} if tuning[name] != USUAL[name] else {"a": 1, "b": 1})
        self.assertEqual(found.now, USUAL)

    def test_what_is_not_faster_together_is_taken_back(self):
        def seconds(_name, tuning):
            changed = [name for name in ("piece", "first_piece") if tuning[name] != USUAL[name]]
            return {"a": {0: 1.0, 1: 0.9, 2: 0.85 if tuning["early"] else 1.1}[len(changed)]}

        found = tuner(seconds)
        found.now = USUAL | {"piece": 32, "first_piece": 8, "early": 0}
        self.assertGreater(found.confirm(gpu_tune.KNOBS), 1)
        self.assertEqual(found.now, USUAL)

    def test_segments_that_cannot_be_are_not_tried(self):
        tried = []

        def seconds(_name, tuning):
            tried.append(tuning["least_segment"] <= tuning["most_segment"])
            return {"a": 1.0}

        found = tuner(seconds)
        found.now = USUAL | {"most_segment": 128}
        found.tune(next(knob for knob in gpu_tune.KNOBS if knob.name == "least_segment"))
        self.assertEqual(set(tried), {True})
        self.assertEqual([row["tried"] for row in found.rows], [32, 128])

    def test_what_fails_and_what_there_is_no_time_for_is_said(self):
        def seconds(_name, tuning):
            if tuning["piece"] == 32:
                raise gpu_tune.Failed("no memory")
            return {"a": 1.0}

        knob = next(knob for knob in gpu_tune.KNOBS if knob.name == "piece")
        found = tuner(seconds)
        found.tune(knob)
        self.assertEqual(found.left_out, ["piece = 32: no memory"])
        found = tuner(seconds, Clock(1))
        found.tune(knob)
        self.assertEqual(found.left_out, ["piece = 32: out of time", "piece = 128: out of time"])


class OnADevice(unittest.TestCase):
    def setUp(self):
        if KVC is None:
            self.skipTest("no kvc program was named")
        listed = subprocess.run([KVC, "devices", "--json", "--no-measure"], check=True, capture_output=True, text=True)
        self.emulated = "emu" in [entry["name"] for entry in json.loads(listed.stdout)]
        self.folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(self.folder.cleanup)

    def run_script(self, *options):
        command = [sys.executable, os.path.join(ROOT, "bench", "gpu_tune.py"), "--kvc", KVC, "--small", "--rounds", "1",
                   "--device", "emu" if self.emulated else "cpu", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder.name)

    def test_a_processor_has_nothing_to_tune(self):
        if self.emulated:
            self.skipTest("this build has an emulated device")
        done = self.run_script("--only", "step_blocks")
        self.assertEqual((done.returncode, done.stderr), (1, "gpu_tune: device cpu has nothing to tune\n"))

    def test_numbers_are_tried_on_the_device(self):
        """Which of them are faster in an emulator means nothing; that each is used, what is said of it does."""
        if not self.emulated:
            self.skipTest("no emulated device")
        model = os.path.join(self.folder.name, "tiny.kvc")
        source = os.path.join(ROOT, "models", "stories260k", "stories260K.bin")
        subprocess.run([KVC, "convert", source, model], check=True, capture_output=True)
        done = self.run_script("--only", "least_segment,piece", "--out", "tuned.txt", model)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("left out", done.stdout)
        for said in ("least_segment: 32 instead of 64", "piece: 32 instead of "):
            self.assertIn(said, done.stdout)
        path = os.path.join(self.folder.name, "tuned.txt")
        self.assertEqual(os.path.exists(path), "in a program's environment" in done.stdout)

    def test_the_library_takes_what_is_written(self):
        if not self.emulated:
            self.skipTest("no emulated device")
        args = argparse.Namespace(kvc=KVC, device="emu")
        device = gpu_tune.Device(args, self.folder.name, None)
        usual = device.usual()
        self.assertEqual(sorted(usual), sorted(USUAL))
        found = gpu_tune.Tuner(None, usual, 1, Clock(), None)
        found.now = usual | {"piece": 7, "early": 0}
        found.rows.append({"number": "piece", "now": 64, "tried": 7, "times": 0.9})
        found.left_out.append("early: x")
        path = os.path.join(self.folder.name, "all.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(gpu_tune.report(args, device, found, None))
        out = subprocess.run([device.program, "--device", "emu", "--tuning"], check=True, capture_output=True,
                             text=True, env=os.environ | {gpu_tune.VARIABLE: path}).stdout
        self.assertEqual(gpu_tune.parse(out), (found.now, device.words))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") and os.path.exists(sys.argv[-1]):
        KVC = os.path.abspath(sys.argv.pop())
    unittest.main()

"""Models that are made for a run of ./dev gpu: where, which and how often; and what is known of the machine."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_cells  # noqa: E402
import gpu_machine  # noqa: E402
import gpu_scratch  # noqa: E402
from gpu_cells_test import write_program  # noqa: E402


def in_memory():
    """Whatever the folder is."""
    return mock.patch.object(gpu_scratch, "in_memory", lambda _: True)


class Scratch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("kvc", "shape_model"):
            write_program(os.path.join(self.folder, name))
        self.made = os.path.join(self.folder, "made")
        os.mkdir(self.made)

    def write(self, path, script):
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{script}\n")

    def models(self, *names, clock=None):
        made = gpu_scratch.Models(os.path.join(self.folder, "kvc"), list(names), self.made, None,
                                clock or gpu_cells.Clock())
        self.addCleanup(made.close)
        return made

    def test_they_take_turns_where_there_is_room_for_two(self):
        with in_memory():
            made = self.models("8b:bf16", "8b:int8", "1b:int4")
        left = lambda _: (1 << 28) + 3001 - sum(m.n_bytes for m in made.there)  # noqa: E731
        with mock.patch.object(gpu_scratch, "room", lambda _: (1 << 28) + 3001), in_memory():
            made.make_first()
        self.assertEqual({m.name for m in made.there}, {"8b-bf16.kvc", "8b-int8.kvc"})
        units = gpu_cells.units(made.all, 1)
        with mock.patch.object(gpu_scratch, "room", left):
            last = next(i for i, unit in enumerate(units) if unit.model is made.all[2])
            self.assertIsNone(made.need(made.all[2], units[last + 1:]))
            self.assertIn(made.all[2], made.there)
            self.assertEqual(len(made.there), 2)
            self.assertEqual(len([n for n in os.listdir(made.folder) if n.endswith(".kvc")]), 2)
        with mock.patch.object(gpu_scratch, "room", lambda _: 0):
            self.assertIn("no room for", made.need([m for m in made.all if m not in made.there][0], []))

    def test_one_that_is_not_made_in_time_leaves_nothing(self):
        made = self.models("8b:bf16", clock=gpu_cells.Clock(2.0 / 60))
        with open(made.program, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\necho part > "$(dirname "$3")/.kvc-$$-1.tmp"\nexec sleep 20\n')
        self.assertEqual(made.need(made.all[0], []), "not made in 1 s: out of time")
        self.assertEqual(os.listdir(made.folder), [])

    def test_one_that_was_not_made_is_not_tried_again(self):
        made = self.models("8b:bf16")
        self.write(made.program, f"echo x >> {self.folder}/tries\necho no space >&2\nexit 1")
        for _ in range(2):
            self.assertEqual(made.need(made.all[0], []), "no space")
        with in_memory():
            made.make_first()
        with open(os.path.join(self.folder, "tries"), encoding="ascii") as file:
            self.assertEqual(file.read(), "x\n")

    def test_on_a_disk_small_ones_are_first_and_none_is_made_before_its_turn(self):
        made = self.models("8b:bf16", "8b:int8", "1b:int4")
        made.make_first()
        self.assertEqual(([m.n_bytes for m in made.all], made.there), ([500, 1000, 2000], []))
        self.assertIsNone(made.need(made.all[0], []))
        self.assertGreater(made.rate, 0)

    def test_none_is_begun_that_would_take_more_than_half_of_the_time(self):
        made = self.models("8b:bf16", "1b:int4", clock=gpu_cells.Clock(1))
        made.rate = 50.0
        self.assertIsNone(made.need(made.all[0], []))  # 500 bytes in 10 s of 30
        made.rate = 50.0
        self.assertEqual(made.need(made.all[1], []), "not made: it would take 40 s: out of time")

    def test_what_killed_runs_left_is_removed_and_what_others_use_is_not(self):
        """Of one that lives, another process knows."""
        lives = self.models("1b:int4")
        left, other = (os.path.join(self.made, name) for name in ("kvc-gpu-left", "kvc-other"))
        for folder in (left, other):
            os.mkdir(folder)
            self.write(os.path.join(folder, "m.kvc"), "")
        code = (f"import sys; sys.path.insert(0, {os.path.join(ROOT, 'bench')!r}); import gpu_scratch; "
                f"gpu_scratch.remove_left({self.made!r})")
        said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        self.assertEqual(said, f"removed {left}, which a run before left\n")
        self.assertEqual(sorted(os.listdir(self.made)), sorted([os.path.basename(lives.folder), "kvc-other"]))
        lives.close()
        self.assertEqual(os.listdir(self.made), ["kvc-other"])

    def test_files_in_memory_leave_some(self):
        with mock.patch.object(gpu_scratch.shutil, "disk_usage", lambda _: mock.Mock(free=1 << 50)):
            for available, free in ((16 << 30, 12 << 30), (128 << 30, 120 << 30)):
                said = mock.mock_open(read_data=f"MemTotal: 1 kB\nMemAvailable: {available >> 10} kB\n")
                with mock.patch("builtins.open", said), in_memory():
                    self.assertEqual(gpu_scratch.room(self.made), free)

    def test_what_the_device_has_no_room_for_is_left_out(self):
        made = self.models("8b:bf16", "1b:int4")
        made.leave_out_larger_than(gpu_cells.BESIDE_WEIGHTS + 1000)
        self.assertEqual([m.name for m in made.all], ["1b-int4.kvc"])
        self.assertEqual(made.left_out, ["8b-bf16: no room for it in 2.0 GiB of the device"])

    def test_a_shape_that_is_none(self):
        with self.assertRaisesRegex(ValueError, "no shape '9b:bf16': one of 8b, 1b"):
            self.models("9b:bf16")


class Machine(unittest.TestCase):
    def test_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = gpu_machine.found("cpu", sys.executable, [folder, "/no/folder"])
            self.assertRegex(lines[0], r"^\d+ of \d+ processors, \d+\.\d GiB of memory available$")
            self.assertRegex(lines[1], f"^{folder}: .* GiB free$")
            self.assertRegex(lines[2], rf"^{sys.executable} is {sys.executable} 3\.\S+, with(out)? PyTorch")
            self.assertEqual(len(lines), 3)
            self.assertEqual(gpu_machine.python("/no/python"), "/no/python does not start: [Errno 2] No such file or "
                             "directory: '/no/python'")

    def test_pytorch_is_named_without_loading_it(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "torch"))
            with open(os.path.join(folder, "torch", "__init__.py"), "w", encoding="ascii") as file:
                file.write("import time; time.sleep(1000)")
            about = os.path.join(folder, "torch-2.9.1.dist-info")
            os.mkdir(about)
            with open(os.path.join(about, "METADATA"), "w", encoding="ascii") as file:
                file.write("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
            with mock.patch.dict(os.environ, PYTHONPATH=folder):
                self.assertTrue(gpu_machine.python(sys.executable).endswith(", with PyTorch 2.9.1"))


if __name__ == "__main__":
    unittest.main()

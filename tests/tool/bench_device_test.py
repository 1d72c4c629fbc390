"""bench/device_bench.cc: bench_device_test.py PROGRAM runs it on the emulated device where it has one, else on the
processor."""

import json
import os
import subprocess
import sys
import unittest

PROGRAM = None  # from the command line


def run(device, *parts, **environment):
    """(its rows, what it said, its exit status)."""
    done = subprocess.run([PROGRAM, "--small", "--json", "--device", device, "--rows", "1", *parts], check=False,
                          capture_output=True, text=True, env=os.environ | environment)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr, done.returncode


class DeviceBench(unittest.TestCase):
    def setUp(self):
        if PROGRAM is None:
            self.skipTest("no device_bench was named")
        emulated = subprocess.run([PROGRAM, "--device", "emu", "--tuning"], check=False, capture_output=True)
        self.device = "emu" if emulated.returncode == 0 else "cpu"

    def test_what_targets_are_judged_by_comes_first(self):
        judged = ["attend 16 of 64 entries bf16, ragged", "attend 2 of 64 entries bf16, ragged",
                  "attend 1 of 4 entries bf16, uniform, 2 layers", "select 64 of 512 entries",
                  "compress to 48 of 128 entries", "attend prompt 16 rows of 16", "fold columns 16 rows of 16",
                  "product 256 x 256 bf16, rows 256"]
        others = ["reading, measured again", "step f16, 128 entries, 2 layers", "finish bf16, rows 1",
                  "score 32 rows of 128 entries", "sample greedy"]
        rows, said, status = run(self.device, *reversed(judged + others))
        self.assertEqual(status, 0, said)
        names = [row["operation"] for row in rows]
        self.assertEqual([name for name in names if name in judged + others], judged + others)
        for row in rows:  # small: of one batch
            self.assertEqual((row["n"], row["seconds_p10"], row["seconds_p90"]), (1, row["seconds"], row["seconds"]))
        first = rows[0]["read_bytes_per_second"]
        again = next(row for row in rows if row["operation"] == others[0])
        self.assertEqual(again["read_bytes_per_second"], max(first, rows[-1]["read_bytes_per_second"]))

    def test_what_a_call_takes_of_the_host_is_said_where_that_is_not_the_device(self):
        rows, said, status = run(self.device, "attend 1 of", "select 48")
        self.assertEqual((status, len(rows)), (0, 8), said)
        for row in rows:
            self.assertEqual("host_seconds" in row, self.device == "emu")
            self.assertGreater(row.get("host_seconds", 1), 0)

    def test_the_median_is_between_the_deciles_of_eleven_batches(self):
        if self.device != "cpu":
            self.skipTest("an emulator's batches are not of milliseconds")
        done = subprocess.run([PROGRAM, "--json", "--device", "cpu", "sample greedy"], check=True, capture_output=True,
                              text=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertGreater(len(rows), 0)
        for row in rows:
            self.assertIn(row["n"], (5, 11))
            self.assertLessEqual(row["seconds_p10"], row["seconds"])
            self.assertLessEqual(row["seconds"], row["seconds_p90"])

    def test_steps_leave_caches_as_they_were(self):
        """Else every step would be of longer heads: the program looks."""
        rows, said, status = run(self.device, "attend 1 of", "step int4")
        self.assertEqual((status, len(rows)), (0, 8), said)

    def test_an_operation_that_fails_is_left_out(self):
        if self.device != "emu":
            self.skipTest("a processor does not run out of memory")
        rows, said, status = run("emu", "attend 16 of 64 entries bf16", "attend 1 of 4", "select 48",
                                 KVC_EMU_MEMORY=str(7 << 20))
        self.assertEqual(status, 1)
        self.assertEqual([row["operation"] for row in rows],
                         ["attend 1 of 4 entries bf16, uniform, 2 layers",
                          "attend 1 of 4 entries bf16, uniform, sliding, 2 layers", "select 48 of 128 entries"])
        failures = [line for line in said.splitlines() if line.startswith("device_bench: ")]
        self.assertEqual([line.split(": ")[1] for line in failures],
                         ["attend 16 of 64 entries bf16, uniform", "attend 16 of 64 entries bf16, ragged",
                          "attend 16 of 64 entries bf16, one giant"])

    def test_a_device_that_is_not_there(self):
        rows, said, status = run("nothing", "select")
        self.assertEqual((rows, status), ([], 1))
        self.assertTrue(said.startswith("device_bench: "), said)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()

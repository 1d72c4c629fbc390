"""What bench/gpu_smi.py asks nvidia-smi and makes of its words, with one that stands in for it."""

import json
import os
import shutil
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "bench"))
import gpu_machine  # noqa: E402
import gpu_memory  # noqa: E402
import gpu_report  # noqa: E402
import gpu_smi  # noqa: E402
import gpu_tests  # noqa: E402


class Driver:
    """Of CUDA: its devices are at these places."""

    def __init__(self, *places):
        self.places = places

    def cuInit(self, flags):
        return 0 if flags == 0 else 1

    def cuDeviceGet(self, handle, number):
        if number >= len(self.places):
            return 101  # CUDA_ERROR_INVALID_DEVICE
        handle._obj.value = 10 + number
        return 0

    def cuDeviceGetPCIBusId(self, text, room, handle):
        assert room > len(self.places[handle.value - 10])
        text.value = self.places[handle.value - 10].encode()
        return 0


def with_driver(*places):
    def load(name):
        if name != "libcuda.so.1" or not places:
            raise OSError("no such library")
        return Driver(*places)
    return mock.patch.object(gpu_smi.ctypes, "CDLL", load)


class Fake(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(os.path.join(HERE, "fake_nvidia_smi.py"), os.path.join(folder, "nvidia-smi"))
        path = mock.patch.dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"])
        path.start()
        self.addCleanup(path.stop)

    def knows(self, **fields):
        os.environ["FAKE_NVIDIA_SMI"] = json.dumps(fields)


class Places(Fake):
    """nvidia-smi counts GPUs by their places, CUDA the fastest first of those that CUDA_VISIBLE_DEVICES leaves."""

    def test_the_gpu_that_cuda_means_is_asked(self):
        self.knows(**{"id": "0000:3B:00.0", "memory.used": "7 MiB", "memory.total": "9 MiB"})
        with with_driver("0000:AF:00.0", "0000:3B:00.0"):
            self.assertEqual(gpu_memory.bytes_of("cuda:1", "used"), 7 << 20)
            self.assertEqual(gpu_memory.device_bytes("cuda:1"), 9 << 20)
            self.assertIsNone(gpu_memory.bytes_of("cuda:0", "used"))
            self.assertIsNone(gpu_memory.bytes_of("cuda", "used"))
        with with_driver("0000:3B:00.0"):
            self.assertEqual(gpu_memory.bytes_of("cuda", "used"), 7 << 20)

    def test_its_number_where_the_driver_cannot_be_asked(self):
        for driver in (with_driver(), with_driver("0000:3B:00.0")):  # none, and one without this device
            with driver:
                self.assertEqual(gpu_smi.place_of("cuda:1"), "1")
        with with_driver():
            self.assertEqual(gpu_smi.place_of("cuda"), "0")

    def test_its_number_where_its_place_is_not_known(self):
        """As where a virtual machine shows the GPU at another place."""
        self.knows(**{"id": "1", "memory.used": "7 MiB"})
        with with_driver("0000:AF:00.0", "0000:3B:00.0"):
            self.assertEqual(gpu_smi.asked("cuda:1", ["memory.used"]), ("1", {"memory.used": "7 MiB"}))
            self.assertEqual(gpu_smi.asked("cuda:0", ["memory.used"]), (None, {}))

    def test_what_the_report_says_of_the_gpu(self):
        fields = dict(zip(gpu_machine.FIELDS, ("NVIDIA H200", "580.65", "143771 MiB", "4 MiB", "Default")))
        with with_driver("0000:3B:00.0"):
            self.knows(id="0000:3B:00.0", **fields)
            self.assertEqual(gpu_machine.found("cuda", "/none", [])[0],
                             "nvidia-smi --id=0000:3B:00.0: NVIDIA H200, 580.65, 143771 MiB, 4 MiB, Default")
            self.knows(id="7", **fields)
            self.assertEqual(gpu_machine.found("cuda", "/none", [])[0], "nvidia-smi says nothing of the GPU, by its "
                             "place or by its number (0000:3B:00.0 and 0): there are no clocks, and no memory for T18")

    def test_what_is_not_said(self):
        self.knows(**{"memory.used": "[N/A]"})
        self.assertIsNone(gpu_memory.bytes_of("cuda", "used"))
        self.assertEqual(gpu_smi.query("cuda", ["memory.used"]), {"memory.used": "[N/A]"})
        self.assertEqual(gpu_smi.query("cuda", ["memory.used", "no.such"]), {})
        self.assertEqual(gpu_smi.query("cpu", ["memory.used"]), {})
        with mock.patch.dict(os.environ, PATH="/nonexistent"):
            self.assertEqual(gpu_smi.query("cuda", ["memory.used"]), {})


def sample(clock, power, busy, reasons="0x0000000000000000"):
    return {"clocks.sm": f"{clock} MHz", "clocks.mem": "3201 MHz", "power.draw": power, "utilization.gpu": busy,
            "reasons": reasons}


class AtWork(Fake):
    SAMPLES = [sample(345, "80.00 W", "0 %", "0x0000000000000001"), sample(1980, "600.50 W", "100 %"),
               sample(1700, "699.10 W", "97 %", "0x0000000000000004"), sample(1980, "[N/A]", "50 %"),
               sample(1755, "690.00 W", "99 %", "0x0000000000000024")]

    def test_median_and_least_of_what_is_not_idle(self):
        found = gpu_smi.at_work(self.SAMPLES)
        self.assertEqual(found, {"samples": 4, "clocks.sm": {"median": 1867.5, "least": 1700},
                                 "clocks.mem": {"median": 3201, "least": 3201},
                                 "power.draw": {"median": 690, "least": 600.5},
                                 "held_down": {"power cap": 0.5, "temperature (software)": 0.25}})
        self.assertEqual(gpu_smi.shown(found), "clocks.sm 1868 (least 1700), clocks.mem 3201 (least 3201), power.draw "
                         "690 (least 600), of 4 samples; held down by power cap in 50 %; held down by temperature "
                         "(software) in 25 %")
        self.assertIsNone(gpu_smi.at_work(self.SAMPLES[:1]))
        self.assertIsNone(gpu_smi.at_work([]))

    def test_without_a_word_of_utilization_all_count(self):
        """As on parts of a GPU (MIG)."""
        found = gpu_smi.at_work([sample(1980, "[N/A]", "[N/A]", "[N/A]")])
        self.assertEqual(found, {"samples": 1, "clocks.sm": {"median": 1980, "least": 1980},
                                 "clocks.mem": {"median": 3201, "least": 3201}, "held_down": {}})

    def watched(self, n):
        watch = gpu_smi.Watch("cuda", interval_ms=1)
        end = time.monotonic() + 60
        while watch.program and len(watch.samples) < n and time.monotonic() < end:
            time.sleep(0.01)
        watch.close()
        return watch

    def test_samples_come_while_something_else_runs(self):
        columns = {name: [row[name] for row in self.SAMPLES] for name in self.SAMPLES[0]}
        reasons = columns.pop("reasons")
        for field in gpu_smi.REASONS:  # drivers know one or the other
            self.knows(**columns, **{field: reasons})
            watch = self.watched(len(self.SAMPLES))
            self.assertEqual(watch.samples[:len(self.SAMPLES)], self.SAMPLES)
            self.assertEqual(watch.take()["clocks.sm"]["least"], 1700)
            self.assertIsNone(watch.take(), "of what came since")
        self.knows(**columns)
        self.assertEqual(self.watched(2).take()["held_down"], {})

    def test_without_nvidia_smi_there_are_none(self):
        with mock.patch.dict(os.environ, PATH="/nonexistent"):
            self.assertIsNone(self.watched(1).take())
        self.knows()
        self.assertIsNone(self.watched(1).take())

    def test_the_table_says_them(self):
        report = {"device": {"description": "d", "bytes_per_second": 1e9}, "commit": "c", "cells": [], "targets": [],
                  "clocks": {"before": {}, "at_work": gpu_smi.at_work(self.SAMPLES)},
                  "products": "prompts: products of cuBLASLt 13.0, libcublasLt.so.13"}
        self.assertIn("\nAt work: clocks.sm 1868 (least 1700), ", gpu_report.table(report))
        self.assertIn("\nLog of the single operations: prompts: products of cuBLASLt 13.0, libcublasLt.so.13.\n",
                      gpu_report.table(report))


class Processes(Fake):
    def test_one_at_a_time_where_the_device_takes_no_more(self):
        with mock.patch.object(gpu_tests.os, "cpu_count", lambda: 16):
            for mode, most in (("Default", 8), ("Exclusive_Process", 1), ("Prohibited", 8), ("[N/A]", 8)):
                self.knows(compute_mode=mode)
                with mock.patch("builtins.print") as said:
                    self.assertEqual(gpu_tests.most_at_once(), most, mode)
                self.assertEqual(said.called, most == 1)
            self.knows()
            self.assertEqual(gpu_tests.most_at_once(), 8)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""What nvcc made of the kernels: code for every architecture, no local memory where it would cost bandwidth, little
size; and a library that is loaded on a machine without a driver. Usage: cuda_build_test.py [BUILD_DIR [ARCH,...]]:
built for these compute capabilities alone, not for all that are released."""
import ctypes
import json
import os
import re
import subprocess
import sys
import unittest

BUILD = sys.argv[1] if len(sys.argv) > 1 else "build-cuda"
KVC = os.path.abspath(os.path.join(BUILD, "lib", "libkvc.so"))
RELEASED = ["80", "87", "90"]
NAMED = len(sys.argv) > 2
ARCHITECTURES = sys.argv[2].split(",") if NAMED else RELEASED
# Kernels that live from bandwidth or the multipliers: no spills.
WITHOUT_LOCAL_MEMORY = ["gemv", "gemv_row", "gemv_experts", "gemm_few", "join_few", "gemm_mma", "gemm_f32",
                        "round_rows", "norm_halves", "activate_halves", "decode_weights", "combine", "attend_step",
                        "attend_step_mma", "attend_step_codes", "attend_prompt", "attend_prompt_half",
                        "fold_columns", "normalise_segments", "sum_seen", "step_append", "norm_rows", "norm_heads",
                        "bound_pages", "choose_pages"]
# Those that turn keys have a frame for sines of angles that are too large for the short way (40 bytes), and what is
# kept around that call.
# attend_prompt of heads of 128 and 256 spills a few registers outside of its main loop.
TURNING = {"attend_step": 64, "step_append": 56, "attend_prompt": 80}
MOST_BYTES = 25_000_000


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def tool(name):
    for folder in [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "build-tools/nvidia/cu13",
                   "build-tools/cuda/nvidia/cu13"]:
        path = os.path.join(folder, "bin", name)
        if os.path.exists(path):
            return path
    return name


class CudaBuild(unittest.TestCase):
    def test_code_for_every_architecture(self):
        listed = run(tool("cuobjdump"), "--list-elf", KVC)
        self.assertEqual(0, listed.returncode, listed.stderr)
        for architecture in ARCHITECTURES:
            self.assertRegex(listed.stdout, rf"sm_{architecture}\b")
        if not NAMED:  # what is built for the GPUs that were named is for no other
            self.assertRegex(run(tool("cuobjdump"), "--list-ptx", KVC).stdout, r"sm_90\b", "PTX for what comes later")

    def test_no_local_memory_where_bandwidth_decides(self):
        usage = run(tool("cuobjdump"), "--dump-resource-usage", KVC)
        self.assertEqual(0, usage.returncode, usage.stderr)
        found = {name: 0 for name in WITHOUT_LOCAL_MEMORY}
        for function, numbers in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", usage.stdout):
            for name in WITHOUT_LOCAL_MEMORY:
                if re.search(rf"\d{name}(E|I|v|N)", function):
                    found[name] += 1
                    local = int(re.search(r"LOCAL:(\d+)", numbers).group(1))
                    stack = int(re.search(r"STACK:(\d+)", numbers).group(1))
                    self.assertEqual(0, local, f"{function}: {numbers}")
                    self.assertLessEqual(stack, TURNING.get(name, 0), f"{function}: {numbers}")
        for name, n in found.items():
            self.assertGreaterEqual(n, len(ARCHITECTURES), name)

    def test_no_library_of_cuda_is_linked(self):
        needed = run("readelf", "--dynamic", KVC)
        self.assertEqual(0, needed.returncode, needed.stderr)
        self.assertNotRegex(needed.stdout, r"NEEDED.*lib(cublas|cuda|nv)")

    def test_size(self):
        objects = [os.path.join(folder, file) for folder, _, files in os.walk(os.path.join(BUILD, "cuda"))
                   for file in files if file.endswith(".o")]
        self.assertTrue(objects)
        total = sum(os.path.getsize(path) for path in objects)
        self.assertLess(total, MOST_BYTES)
        print(f"CUDA objects: {total / 1e6:.1f} MB")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has a driver")
    def test_starts_without_a_driver_and_says_so(self):
        kvc, text, n = ctypes.CDLL(KVC), ctypes.create_string_buffer(10000), ctypes.c_int32()
        devices = {}
        for index in range(kvc.kvc_device_count()):
            self.assertEqual(0, kvc.kvc_device_describe(index, text, len(text), ctypes.byref(n)))
            device = json.loads(text.value)
            devices[device["name"]] = device
        self.assertTrue(devices["cpu"]["available"])
        self.assertFalse(devices["cuda"]["available"])
        self.assertIn("no NVIDIA driver", devices["cuda"]["reason"])
        speed = ctypes.c_double()
        self.assertNotEqual(0, kvc.kvc_device_measure(list(devices).index("cuda"), ctypes.byref(speed)))


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    broken, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - broken - skipped} passed, {broken} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if broken else 0)

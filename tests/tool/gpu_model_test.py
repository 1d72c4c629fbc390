"""The predictions of docs/cuda.md are what bench/gpu_model.py computes, and say so; the model keeps to what can be
checked by hand."""

import dataclasses
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_model  # noqa: E402


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Predictions(unittest.TestCase):
    def test_the_page_has_what_the_model_says(self):
        page = read("docs/cuda.md")
        self.assertEqual(page, gpu_model.page_with(page, gpu_model.tables()))

    def test_every_table_is_marked(self):
        table = gpu_model.tables()
        heads = re.findall(r"^\|[^\n]*\|\n\|---", table, re.M)
        self.assertEqual(2, len(heads))
        for head in heads:
            self.assertTrue(head.startswith("| predicted: "), head)

    def test_a_step_reads_every_weight_once(self):
        shape = gpu_model.MODELS["8B"]
        moved = sum(b for _, b in gpu_model.step_kernels(shape, "bf16", 0)) * shape.layers
        embedding = shape.vocabulary * shape.hidden
        self.assertEqual(8_030_261_248 - 2 * embedding - 266_240, moved / 2)  # all, the embeddings, the norms

    def test_what_is_beside_the_layers(self):
        shape, device = gpu_model.MODELS["8B"], gpu_model.DEVICES["H200"]
        bare = dataclasses.replace(shape, layers=0)
        head = 2 * shape.vocabulary * shape.hidden / (gpu_model.EFFICIENCY * device.bandwidth)
        # Four launches, 513 KB of logits by one block, the host.
        beside = gpu_model.step_seconds(device, bare, "bf16", 9) - head
        self.assertAlmostEqual(4 * 1.3e-6 + 513_024 / 112e9 + 60e-6, beside, places=12)
        self.assertIn("KVC_LAUNCH_EARLY(sample, dim3(static_cast<unsigned>(n_rows)), ", read("cuda/sample.cu"))
        self.assertIn('Wait("sampling")', read("cuda/sample.cu"))

    def test_a_layer_has_as_many_launches_as_the_tests_count(self):
        kernels = gpu_model.step_kernels(gpu_model.MODELS["1B"], "int8", 100)
        self.assertIn(f"const int64_t of_layer = {len(kernels)} +", read("tests/emu/session_graphs_test.cc"))
        self.assertKernels(name.split()[0] for name, _ in kernels)

    def test_kernels_of_a_prompt_are_there(self):
        names = [name.split(",")[0] for name, _ in gpu_model.activation_bytes(gpu_model.MODELS["8B"])]
        self.assertKernels(name for name in names if "_" in name)

    def assertKernels(self, names):
        sources = "".join(read(f"cuda/{name}") for name in os.listdir(os.path.join(ROOT, "cuda")))
        for name in names:
            self.assertRegex(sources, rf"__global__ void[^;{{]*\b{name}\(")

    def test_the_cache_costs_its_bytes(self):
        device, shape = gpu_model.DEVICES["A100 80 GB"], gpu_model.MODELS["8B"]
        longer, shorter = (gpu_model.step_seconds(device, shape, "bf16", n) for n in (32768, 16384))
        bytes_of = 16384 * shape.layers * shape.kv_heads * shape.head_size * 2 * 2
        self.assertAlmostEqual(bytes_of / (gpu_model.EFFICIENCY * device.bandwidth), longer - shorter, places=12)

    def test_devices_are_known_by_what_they_say_of_themselves(self):
        for description, known in (("NVIDIA H200, 132 multiprocessors, compute capability 9.0, 139.8 GiB", "H200"),
                                   ("NVIDIA A100-SXM4-80GB, 108 multiprocessors, compute capability 8.0", "A100 80 GB"),
                                   ("Orin, 16 multiprocessors, compute capability 8.7, 61.3 GiB", "Orin AGX 64 GB"),
                                   ("NVIDIA A100-PCIE-40GB, 108 multiprocessors", None),
                                   ("NVIDIA GH200 480GB, 132 multiprocessors", None),
                                   ("Orin, 8 multiprocessors, compute capability 8.7, 7.4 GiB", None)):
            got = gpu_model.predicted(description, "8B", "int4", 8192, 1024)
            if known is None:
                self.assertEqual(gpu_model.Predicted(None, None), got, description)
                continue
            row = next(line for line in gpu_model.tables().splitlines() if line.startswith(f"| {known}, 8B int4 |"))
            self.assertEqual(gpu_model.digits(got.steps), row.split("|")[-2].strip(), description)
        self.assertEqual(gpu_model.Predicted(None, None), gpu_model.predicted("NVIDIA H200", None, "bf16", 9, 9))


if __name__ == "__main__":
    unittest.main()

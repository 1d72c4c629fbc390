"""bench/gpu.py by known answers. gpu_script_test.py KVC runs the whole script with that program: on the
emulated device where it has one, else on the processor. What measures PyTorch is run where this Python has it."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu  # noqa: E402
import gpu_cells  # noqa: E402
import gpu_ladder  # noqa: E402
import gpu_memory  # noqa: E402
import gpu_peers  # noqa: E402
import gpu_peers_model  # noqa: E402
import gpu_report  # noqa: E402
import gpu_run  # noqa: E402
import gpu_targets  # noqa: E402
import gpu_torch  # noqa: E402
from gpu_targets_test import cell  # noqa: E402

KVC = None  # the program, from the command line
PEERS = ["attend ragged 1 of 128", "attend uniform 1 of 256", "attend prompt 64", "append research 64",
         "compress research 256", "topk 8 rows of 512", "step research small", "step research smaller",
         "product 64 bf16", "product 64 f16", "attend ragged 1 of 128, padded", "attend prompt 64, cuDNN"]  # of --small
COPIED = 2 * (128 << 20) / 1e-3  # bytes both ways in the millisecond that a copy takes on the emulated device


class Memory(unittest.TestCase):
    def peak(self, *says, command=(sys.executable, "-c", "import time; time.sleep(0.5)"), seconds=60):
        """With an nvidia-smi that says one of these after the other, the last one for ever."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "nvidia-smi")
            with open(script, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\necho x >> {folder}/asked\ncase $(wc -l < {folder}/asked) in\n")
                for number, said in enumerate(says, 1):
                    file.write(f"{number if number < len(says) else '*'}) echo '{said}';;\n")
                file.write("esac\n")
            os.chmod(script, 0o755)
            with unittest.mock.patch.dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"]):
                return gpu_memory.peak(list(command), "cuda:1", seconds, interval=0.01)

    def test_what_is_taken_more_at_most(self):
        self.assertEqual(self.peak("100", "300", "200"), 200 << 20)

    def test_what_cannot_be_said(self):
        self.assertIsNone(self.peak("[N/A]"))
        self.assertIsNone(self.peak("100", command=(sys.executable, "-c", "import sys; sys.exit(1)")))
        self.assertIsNone(self.peak("100", command=("sleep", "1000"), seconds=0.2))


class Operations(unittest.TestCase):
    def test_rows_are_reckoned_from_seconds(self):
        row = {"operation": "layer x", "seconds": 2e-3, "seconds_p10": 1.9e-3, "seconds_p90": 2.5e-3, "flops": 4e9,
               "bytes": 1e9, "read_bytes_per_second": 2e12}
        lines = gpu_report.operation_rows({"operations": [row]})
        self.assertEqual(lines[-1], "| layer x | 2000.0 | 1900.0 to 2500.0 | 2.00 | 500.0 | 25.0 % | |")
        self.assertEqual(gpu_report.operation_rows({"operations": [row | {"host_seconds": 4e-6}]})[-1],
                         "| layer x | 2000.0 | 1900.0 to 2500.0 | 2.00 | 500.0 | 25.0 % | 4.0 |")
        self.assertEqual(gpu_report.operation_rows({"operations": []}), [])
        self.assertEqual(gpu_report.operation_rows({"operations": [], "operations_error": "no memory"}),
                         ["", "Single operations were not measured: no memory"])
        cut = gpu_report.operation_rows({"operations": [row], "operations_error": "out of time"})
        self.assertEqual((cut[1], cut[-1]), ("Single operations were cut off: out of time", lines[-1]))

    def test_a_program_that_does_not_end_has_what_it_wrote(self):
        def said(script, seconds=None):
            return gpu_run.lines_of(["sh", "-c", script], seconds)

        lines = "echo noise; echo '{\"a\": 1}'; echo '{\"a\": 2}'; "
        self.assertEqual(said(lines), ([{"a": 1}, {"a": 2}], None))
        self.assertEqual(said(lines + "echo why >&2; exit 3"), ([{"a": 1}, {"a": 2}], "why"))
        found, error = said(lines + "printf '{\"a\": 3'; exec sleep 20", 0.5)
        self.assertEqual(found, [{"a": 1}, {"a": 2}])
        self.assertRegex(error, "^stopped after .* s$")
        self.assertEqual(gpu_run.lines_of(["/none"], None)[0], [])
        log = []
        gpu_run.lines_of(["sh", "-c", "echo 1 >&2"], None, log)
        gpu_run.lines_of(["sh", "-c", "echo 2 >&2; exec sleep 20"], 0.5, log)
        self.assertEqual(log, ["1", "2"])


class PeerRows(unittest.TestCase):
    def test_what_was_measured_and_what_was_not(self):
        rows = [{"peer": "a", "seconds": 2e-3, "seconds_p10": 1.9e-3, "seconds_p90": 2.5e-3, "n": 50, "what": "b",
                 "library": "PyTorch 2"},
                {"peer": "c", "error": "no memory", "library": "PyTorch 2"}]
        measured = "| a | 2000.0 | 1900.0 to 2500.0 | 50 | b |"
        self.assertEqual(gpu_report.peer_rows({"peers": rows}), [
            "", "| PyTorch 2 | us | p10 to p90 | of | what |", "|---|---|---|---|---|", measured,
            "| c | no memory | | | |"])
        self.assertEqual(gpu_report.peer_rows({}), [])
        cut = gpu_report.peer_rows({"peers": rows[:1], "peers_error": "out of time"})
        self.assertEqual((cut[1], cut[-1]), ("PyTorch was cut off: out of time", measured))
        self.assertIn("not there", gpu_report.peer_rows({"peers": [], "peers_error": "PyTorch is not there"})[-1])

    def test_a_processor_has_no_time_for_them(self):
        args = gpu.options(["--device", "cpu", "m.kvc"])
        self.assertEqual(gpu.peers(args, gpu_cells.Clock(), [], None), "it is measured on CUDA devices")
        args = gpu.options(["--device", "cuda", "m.kvc"])
        self.assertEqual(gpu.peers(args, gpu_cells.Clock(minutes=0.4), [], None), "out of time")

    def test_they_have_a_part_of_the_time(self):
        """One that hangs would take that of all long prompts."""
        for minutes, seconds in ((None, gpu.MOST_FOR_PEERS), (8, 240), (1.5, 78), (0.5, 30)):
            with unittest.mock.patch.object(gpu_run, "lines_of", return_value=([], None)) as started:
                gpu.peers(gpu.options(["--small", "m.kvc"]), gpu_cells.Clock(minutes), [], None)
            self.assertAlmostEqual(started.call_args.args[1], seconds, delta=1)

    def test_memory_is_asked_for_where_a_target_speaks_of_it(self):
        args = gpu.options(["--device", "cuda", "m.kvc"])
        config = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "hidden_size": 4096, "ffn_size": 14336,
                  "n_layers": 32}
        model = gpu_cells.Model("m.kvc", 15 << 30, about={"config": config})
        unit = gpu_cells.Unit(model, gpu_targets.BUDGET, [131072], 1)

        def added(cell, minutes=None):
            got = gpu_memory.add(args, unit, cell, gpu_cells.Clock(minutes))
            self.assertEqual(got, "device_bytes_peak" in cell["result"])
            return got

        with unittest.mock.patch.object(gpu_memory, "peak", lambda command, device, seconds: 7):
            self.assertTrue(added(cell(prompt=131072)))
            self.assertFalse(added(cell(prompt=131072), 0.1))
            for other in (cell(prompt=4096), cell("1B", prompt=131072), cell(policy="full", prompt=131072),
                          cell(prompt=131072) | {"result": {"error": "no memory"}}):
                self.assertFalse(added(other))

    def test_memory_is_asked_for_when_the_cells_are_saved_and_their_process_has_ended(self):
        said, unit = [], gpu_cells.Unit(gpu_cells.Model("m.kvc", 1), gpu_targets.BUDGET, [131072], 1)

        def measure(*_):
            try:
                yield cell(prompt=131072)
            finally:
                said.append("ended")

        def peak(args, unit, cell, clock):
            said.append("asked")
            return True

        with unittest.mock.patch.object(gpu_cells, "measure", measure), \
                unittest.mock.patch.object(gpu_memory, "add", peak):
            gpu.measure_unit(None, unit, None, None, lambda cell: said.append("kept"), lambda: said.append("saved"))
        self.assertEqual(said, ["kept", "ended", "asked", "saved"])


class Commands(unittest.TestCase):
    def dev(self, *args):
        done = subprocess.run([os.path.join(ROOT, "dev"), "gpu", *args], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def test_tune_looks_at_its_options_before_it_builds(self):
        code, said = self.dev("tune", "--only", "warps")
        self.assertEqual(code, 2)
        self.assertIn("no number 'warps': one of step_blocks, ", said)

    def test_a_model_that_is_not_there(self):
        self.assertEqual(self.dev("none.kvc"), (1, "dev: no model file 'none.kvc': ./dev gpu MODEL.kvc...\n"))


class Timed(unittest.TestCase):
    def test_the_median_and_the_deciles_of_calls(self):
        """As device_bench has them of its batches: measurements themselves."""
        bench = object.__new__(gpu_torch.Bench)
        bench.small, bench.cuda = False, False
        for about, n, median, p10, p90 in ((1e-6, 50, 25.5, 6, 45), (0.27, 11, 6, 2, 10), (9, 5, 3, 1, 5)):
            bench.seconds = lambda call, times, about=about: [about] if times == 1 else list(range(times, 0, -1))
            self.assertEqual(bench.timed(lambda: None, "calls"), gpu_torch.Timed(median, p10, p90, n, "calls"))
            self.assertEqual(bench.timed(lambda: None, "", 2).seconds_p90, p90 / 2)


class Peers(unittest.TestCase):
    """What measures PyTorch, on a processor."""

    def setUp(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("this Python has no PyTorch")
        import torch

        self.torch = torch
        self.bench = gpu_torch.Bench(torch, "cpu", True)

    def run_script(self, *options):
        command = [sys.executable, os.path.join(ROOT, "bench", "gpu_peers.py"), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_one_line_for_each_and_none_stops_the_others(self):
        done = self.run_script("--small", "--device", "cpu", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["peer"] for row in rows], PEERS)
        for row in rows:
            self.assertEqual(row["library"], f"PyTorch {self.torch.__version__}")
            if row["peer"].startswith("attend prompt") and "error" in row:  # no cuDNN on a processor, perhaps no flash
                self.assertRegex(row["error"], r"^RuntimeError: No (viable backend|available kernel)")
                continue
            self.assertEqual(row["flops"], 2 * 64**3 if row["peer"].startswith("product") else 0)
            self.assertGreater(row["seconds"], 0, row)
            self.assertGreaterEqual(row["n"], 3)
        self.assertIn("SDPA of one head after the other", rows[PEERS.index("attend ragged 1 of 128")]["what"])
        one = self.run_script("--small", "--device", "cpu", "--only", "padded").stdout
        self.assertEqual((one.count("\n"), one[:30]), (1, "attend ragged 1 of 128, padded"))

    def test_what_cannot_be_run_is_said_in_one_line(self):
        said = self.run_script("--device", "cpu").stderr
        self.assertEqual(said, "gpu_peers: a processor has time for --small alone\n")
        if not self.torch.cuda.is_available():
            self.assertRegex(self.run_script().stderr, r"^gpu_peers: this PyTorch \(.*\) has no CUDA device\n$")

    def varlen(self, q, k, v, ends_q, ends_k, most_q, most_k):
        """Attention of sequences behind each other, as libraries for GPUs offer it, with their rules."""
        out = []
        self.assertEqual((ends_q.dtype, ends_k.dtype), (self.torch.int32, self.torch.int32))
        self.assertEqual((int(ends_q[-1]), int(ends_k[-1])), (len(q), len(k)))
        self.assertEqual((int(ends_q.diff().max()), int(ends_k.diff().max())), (most_q, most_k))
        for i in range(len(ends_q) - 1):
            rows = q[ends_q[i] : ends_q[i + 1]].transpose(0, 1)  # [H, rows, D]
            keys, values = (x[ends_k[i] : ends_k[i + 1]].transpose(0, 1).expand(len(rows), -1, -1) for x in (k, v))
            attend = self.torch.nn.functional.scaled_dot_product_attention
            out.append(attend(rows[None], keys[None], values[None])[0].transpose(0, 1))
        return self.torch.cat(out)

    def test_forms_agree_and_what_differs_is_not_measured(self):
        wrong = lambda q, k, v, *ends: self.varlen(q, k, v * 2, *ends)  # noqa: E731
        with unittest.mock.patch.object(gpu_torch, "varlen_functions",
                                        lambda torch: [("right", self.varlen), ("wrong", wrong)]):
            found, said = gpu_torch.forms(self.bench)
        self.assertEqual([form.name for form in found], ["right, query heads as heads", "right, query heads as rows"])
        self.assertEqual(len(said), 2)
        for what in said:
            self.assertRegex(what, r"^wrong, .* from plain attention$")

    def test_a_layer_grows_by_one_gather_a_tensor(self):
        lengths, d = [3, 1, 0, 5], self.bench.sizes.head_dim
        for dtype in (self.torch.bfloat16, self.torch.int64):
            layer = gpu_peers.GrowingLayer(self.bench, lengths, dtype)
            layer.run()
            for old, new in zip(layer.old, layer.new):
                old, new = (x.view(self.torch.bfloat16) for x in (old, new))
                self.assertEqual(new.shape, (sum(lengths) + 4, d))
                heads, entries = old[: sum(lengths)].split(lengths), old[sum(lengths) :]
                grown = [part for head, entry in zip(heads, entries) for part in (head, entry[None])]
                self.assertTrue(self.torch.equal(new, self.torch.cat(grown)))

    def test_flat_caches_grow_by_an_entry_a_head(self):
        lengths = [[3, 1, 2, 5, 1, 1, 2, 1], [1, 2, 5, 1, 1, 2, 1, 3]]
        flat = gpu_peers_model.FlatCaches(self.bench, lengths)
        d = self.bench.sizes.head_dim
        heads = [list(kv.split(of_layer, dim=1)) for kv, of_layer in zip(flat.kv, lengths)]
        for _ in range(3):
            places = flat.places()
            for layer, of_layer in enumerate(heads):
                new = self.bench.normal(2, 8, d)
                keys, values = flat.append(layer, places, *new)
                for head in range(8):
                    of_layer[head] = self.torch.cat([of_layer[head], new[:, head : head + 1]], dim=1)
                wanted = self.torch.cat(of_layer, dim=1)
                self.assertTrue(self.torch.equal(wanted, self.torch.stack([keys[:, 0], values[:, 0]])))
                grown = [part.shape[1] for part in of_layer]
                self.assertEqual(flat.lengths[layer], grown)
                self.assertEqual(places.ends[layer].tolist(), [sum(grown[:n]) for n in range(9)])

    def test_a_compressed_layer_keeps_its_budget_and_every_heads_window(self):
        layer, s = gpu_peers.AdaptiveLayer(self.bench), self.bench.sizes
        keys, values, ends = layer.run()
        self.assertEqual(keys.shape, values.shape)
        self.assertEqual(int(ends[-1]), len(keys))
        self.assertLessEqual(len(keys), s.kv_heads * s.budget)
        self.assertGreater(len(keys), s.kv_heads * (s.budget - 2))  # shares are rounded down
        for head in range(s.kv_heads):
            window = keys[: ends[head + 1]][-gpu_peers.WINDOW :]
            self.assertTrue(self.torch.equal(window, layer.k[head, -gpu_peers.WINDOW :]))


class OnADevice(unittest.TestCase):
    def setUp(self):
        if KVC is None:
            self.skipTest("no kvc program was named")
        listed = subprocess.run([KVC, "devices", "--json", "--no-measure"], check=True, capture_output=True, text=True)
        self.device = "emu" if "emu" in [entry["name"] for entry in json.loads(listed.stdout)] else "cpu"

    def run_script(self, folder, *options):
        model, out = os.path.join(folder, "tiny.kvc"), os.path.join(folder, "gpu.json")
        source = os.path.join(ROOT, "models", "stories260k", "stories260K.bin")
        subprocess.run([KVC, "convert", source, model], check=True, capture_output=True)
        command = [sys.executable, os.path.join(ROOT, "bench", "gpu.py"), "--kvc", KVC, "--device", self.device]
        command += ["--python", sys.executable, "--gen", "4", "--repeat", "1", "--small", "--out", out, *options, model]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done, out

    def test_one_document_and_one_table(self):
        with tempfile.TemporaryDirectory() as folder:
            done, out = self.run_script(folder, "--prompts", "24,4096")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, encoding="utf-8") as file:
                report = json.load(file)
            with open(os.path.splitext(out)[0] + ".md", encoding="utf-8") as file:
                table = file.read()
        self.assertIn(table, done.stdout)
        self.assertEqual(table, gpu_report.table(report))
        self.assertEqual(report["device"]["name"], self.device)
        self.assertGreater(report["device"]["bytes_per_second"], 0)
        products = "prompts: own products, no cuBLASLt starts here"
        self.assertEqual(report["products"], products if self.device == "emu" else "")
        self.assertRegex(report["commit"], r"^([0-9a-f]{40}\+?|unknown)$")
        self.assertEqual([c["prompt"] for c in report["cells"]], [24, 4096] * 2)
        for c in report["cells"]:
            got = c["result"]
            if c["prompt"] == 4096:
                self.assertEqual(got, {"error": "the model was trained for 512 tokens"})
                continue
            if self.device == "emu":  # its clock stands still: it is the device's rate, not the processor's
                self.assertEqual(got["read_bandwidth_bytes_per_second"], COPIED)
            used = got["bytes_per_step"] / got["step_seconds_mean"]
            share = used / got["read_bandwidth_bytes_per_second"]
            self.assertAlmostEqual(got["bandwidth_fraction"] / share, 1, places=9)
            self.assertGreaterEqual(got["step_seconds_p99"], got["step_seconds_median"])
        self.assertEqual({row["verdict"] for row in report["targets"]}, {"not measured"})
        self.assertEqual(next(row for row in report["targets"] if row["id"] == "T19")["value"],
                         "needs the longest prompts of 1B")
        self.check_peers(report, table)
        self.assertIsNone(report["operations_error"])
        kinds = {row["operation"].split(",")[0] for row in report["operations"]}
        for kind in ("layer bf16", "finish q6_k", "logits int8", "attend prompt 128 rows of 128",
                     "attend prompt 64 rows of 64", "compress to 48 of 128 entries", "fold columns 16 rows of 16",
                     "score 32 rows of 128 entries", "select 48 of 128 entries",
                     "select 64 of 512 entries", "store f16", "load int8", "step int4", "attend 16 of 64 entries bf16",
                     "attend 16 of 64 entries int8", "attend 16 of 64 entries int4", "attend 2 of 64 entries bf16",
                     "attend 1 of 128 entries bf16", "attend 1 of 16 entries bf16", "attend 1 of 4 entries bf16",
                     "product 256 x 256 bf16", "sample greedy", "sample temperature 0.8"):
            self.assertIn(kind, kinds)
        self.assertEqual([row["operation"] for row in report["operations"] if "dropping" in row["operation"]],
                         ["attend 1 of 16 entries bf16, uniform, dropping, 2 layers"])
        self.assertEqual([row["operation"] for row in report["operations"] if "sliding" in row["operation"]],
                         ["attend 1 of 4 entries bf16, uniform, sliding, 2 layers"])
        self.assertEqual([row["operation"] for row in report["operations"] if ", choosing " in row["operation"]],
                         ["attend 1 of 128 entries bf16, uniform, choosing 16, 2 layers"])
        self.check_products_and_ladder(report, table)
        for row in report["operations"]:
            self.assertEqual(row["device"], "emu:0" if self.device == "emu" else self.device)
            self.assertIn(f"| {row['operation']} | ", table)
            self.assertGreater(row["bytes"], 0)

    def check_products_and_ladder(self, report, table):
        """The run's own peak; and the longest prompts, which ran and ended where the plan says."""
        rates = [row["flops"] / row["seconds"] for row in report["operations"] + report["peers"]
                 if row.get("operation", row.get("peer")).startswith("product ")]
        self.assertEqual(report["peak"]["flops_per_second"], max(rates))
        self.assertIn(f"TFLOP/s ({report['peak']['of']}).", table)
        share = 100 * report["cells"][0]["prompt_flops"] / report["cells"][0]["result"]["prefill_seconds"] / max(rates)
        self.assertIn(f" | {share:.1f} % | ", table)
        found = report["ladder"]
        self.assertIsNone(found["error"])
        full, budget = found["rows"]
        self.assertEqual((full["policy"], budget["policy"]), ("full", gpu_ladder.SMALL_BUDGET))
        self.assertEqual(full["planned"], gpu_ladder.SMALL_PROMPT)
        self.assertGreater(budget["tokens"], full["tokens"])
        for row in found["rows"]:
            self.assertGreaterEqual(row["tokens"], row["planned"])
            self.assertAlmostEqual(row["refused"] / row["tokens"], gpu_ladder.RUNG, places=2)
            self.assertIn(f"| tiny.kvc, {row['policy']} | {row['planned']} | {row['tokens']} | ", table)

    def check_peers(self, report, table):
        """They are measured, or one line says why not."""
        if importlib.util.find_spec("torch") is None:
            self.assertIn("PyTorch is not there", report["peers_error"])
            self.assertIn(f"\nPyTorch was not measured: {report['peers_error']}\n", table)
            return
        self.assertIsNone(report["peers_error"])
        self.assertEqual([row["peer"] for row in report["peers"]], PEERS)
        for row in report["peers"]:
            self.assertIn(f"| {row['peer']} | ", table)

    def test_a_device_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            done, _ = self.run_script(folder, "--device", "nothing")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("this build has no device nothing", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        KVC = os.path.abspath(sys.argv.pop(1))
    unittest.main()

"""The targets of the CUDA backend (bench/gpu_targets.py) by known answers."""

import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_cells  # noqa: E402
import gpu_ladder  # noqa: E402
import gpu_model  # noqa: E402
import gpu_report  # noqa: E402
import gpu_targets  # noqa: E402
import gpu_times  # noqa: E402

COMPRESS = gpu_targets.COMPRESS


def cell(shape="8B", weights="bf16", policy=gpu_targets.BUDGET, prompt=4096, **result):
    good = {"decode_tokens_per_second": 260.0, "bandwidth_fraction": 0.9, "step_seconds_median": 0.004,
            "step_seconds_p99": 0.0041, "steps_timed": 168, "prefill_seconds": 0.2,
            "compress_seconds": 0.001, "first_token_seconds": 0.3}
    result = good | result
    for figure in ("decode_tokens_per_second", "bandwidth_fraction"):  # all stretches alike
        result.setdefault(f"{figure}_p10", result[figure])
    about = {"model": "m", "shape": shape, "weights": weights, "policy": policy, "prompt": prompt, "prompt_flops": 1e14}
    return about | {"result": result}


def alike(seconds):
    """A time, all of whose measurements are the same."""
    return {"seconds": seconds, "seconds_p10": seconds, "seconds_p90": seconds}


def peer(name, seconds):
    return {"peer": name} | alike(seconds)


def verdicts(*cells, operations=(), peers=(), ladder=None, device="NVIDIA H200, 132 multiprocessors"):
    rows = gpu_targets.judge({"device": {"description": device}, "cells": list(cells), "operations": list(operations),
                              "peers": list(peers), "ladder": ladder})
    return {row["id"]: row["verdict"] for row in rows}, {row["id"]: row["value"] for row in rows}


def wanted(target, verdict, value):
    """As expected of a target whose run has all that it can have: "met" is in part where there is a rest."""
    rest = next(row.rest for row in gpu_targets.TARGETS if row.name == target)
    return (gpu_targets.IN_PART, f"{value}; not measured: {rest}") if verdict == "met" and rest else (verdict, value)


class Targets(unittest.TestCase):
    def test_every_target_is_there_once_and_nothing_measured_is_no_success(self):
        found, values = verdicts()
        numbers = {int(re.match(r"T(\d+)", name).group(1)) for name in found}
        self.assertEqual(sorted(numbers), list(range(1, 20)))
        self.assertEqual(len(found), len(gpu_targets.TARGETS))
        self.assertEqual(set(found.values()), {"not measured"})
        self.assertTrue(all(value.startswith("needs ") for value in values.values()))

    def test_steps(self):
        for result, verdict in (({}, "met"), ({"bandwidth_fraction": 0.87}, "missed"),
                                ({"decode_tokens_per_second": 249.0}, "missed")):
            self.assertEqual(verdicts(cell(**result))[0]["T9a"], verdict)
        self.assertEqual(verdicts(cell())[1]["T9a"], "260 tokens/s, 90 %")
        self.assertEqual(verdicts(cell(weights="int8"))[0]["T9a"], "not measured")
        self.assertEqual(verdicts(cell(weights="int8", decode_tokens_per_second=430.0))[0]["T9b8"], "met")
        self.assertEqual(verdicts(cell(policy="full"))[0]["T9a"], "not measured")

    def test_short_prompts_decide_no_step(self):
        """Their cache is not at its budget, and the first steps of a process may wait for more than later ones."""
        short = cell(prompt=512, decode_tokens_per_second=1.0, step_seconds_p99=1.0)
        self.assertEqual(verdicts(short, cell())[1]["T9a"], "260 tokens/s, 90 %")
        self.assertEqual(verdicts(short)[0]["T9a"], "not measured")
        self.assertEqual(verdicts(short, cell())[0]["T12"], "met in part")

    def test_drift_and_jitter(self):
        near, far = cell(prompt=4096), cell(prompt=131072, step_seconds_median=0.00407)
        self.assertEqual(verdicts(near, far)[0]["T10"], "met")
        far["result"]["step_seconds_median"] = 0.0041
        self.assertEqual((verdicts(near, far)[0]["T10"], verdicts(near, far)[1]["T10"]), ("missed", "+2.5 %"))
        self.assertEqual(verdicts(near)[0]["T10"], "not measured")
        other = cell(weights="int4", step_seconds_median=0.0014)
        for cells in ((near, far, other), (other, near, far)):  # as steps of one kind of weights
            self.assertEqual(verdicts(*cells)[1]["T10"], "+2.5 %")
        self.assertEqual(verdicts(other, far)[0]["T10"], "not measured")
        self.assertEqual(verdicts(near)[0]["T12"], "met in part")
        self.assertEqual(verdicts(cell(step_seconds_p99=0.005))[0]["T12"], "missed")

    def test_compression(self):
        cells = [cell(shape, prompt=n, first_token_seconds=first) for shape, n, first in (
            ("8B", 8192, 0.3), ("1B", 8192, 0.1), ("8B", 4096, 0.15), ("1B", 4096, 0.05))]
        layers = [operation(COMPRESS, 5e-5), operation("compress to 1024 of 4096 entries", 4e-5)]
        self.expect_t15a("met", "8B at 8k 0.53 %, 1B at 8k 0.80 %, 8B at 4k 0.85 %, 1B at 4k 1.28 %", cells, layers)
        slow = operation(COMPRESS, 1e-4)
        self.expect_t15a("missed", "8B at 8k 1.07 %, 1B at 8k 1.60 %, 8B at 4k 0.85 %, 1B at 4k 1.28 %", cells,
                         [slow, layers[1]])
        slow = operation("compress to 1024 of 4096 entries", 1e-4)
        self.expect_t15a("missed", "8B at 8k 0.53 %, 1B at 8k 0.80 %, 8B at 4k 2.13 %, 1B at 4k 3.20 %", cells,
                         [layers[0], slow])
        for missing in range(4):
            shape, n = cells[missing]["shape"], cells[missing]["prompt"]
            self.expect_t15a("not measured", f"needs {shape} with a prompt of {n} at {gpu_targets.BUDGET}",
                             cells[:missing] + cells[missing + 1:], layers)
        self.expect_t15a("not measured", f"needs the operation '{COMPRESS}'", cells, [])
        self.expect_t15a("not measured", "needs the operation 'compress to 1024 of 4096 entries'", cells, layers[:1])

    def expect_t15a(self, verdict, value, cells, operations):
        found, values = verdicts(*cells, operations=operations)
        self.assertEqual((found["T15a"], values["T15a"]), (verdict, value))

    def test_of_few_steps_the_longest_is_no_p99(self):
        found, values = verdicts(cell(steps_timed=56, step_seconds_p99=0.005), cell(prompt=8192, steps_timed=168))
        self.assertEqual((found["T12"], values["T12"]), wanted("T12", "met", "1.025"))
        self.assertEqual(verdicts(cell(steps_timed=99))[1]["T12"], "needs 100 steps behind a prompt")

    def test_what_no_run_measures_is_named_and_what_is_missed_is_missed(self):
        found, values = verdicts(cell())
        self.assertEqual((found["T12"], values["T12"]),
                         ("met in part", "1.025; not measured: allocations and waits within a step"))
        self.assertEqual(verdicts(cell(), device="NVIDIA A100")[0]["T12"], "no target on this device")
        missed = verdicts(cell(step_seconds_p99=0.005))
        self.assertEqual((missed[0]["T12"], missed[1]["T12"]), ("missed", "1.250"))

    def test_targets_are_of_one_device(self):
        self.assertEqual(verdicts(cell(), device="NVIDIA A100")[0]["T9a"], "no target on this device")

    def test_a_cell_that_failed_is_none(self):
        self.assertEqual(verdicts(cell() | {"result": {"error": "no memory"}})[0]["T9a"], "not measured")


class Products(unittest.TestCase):
    """The peak of a run, and prompts beside it."""

    OURS = {"operation": "product 8192 x 8192 bf16, rows 8192", "seconds": 2e-3, "flops": 1.4e12, "bytes": 1}
    THEIRS = [{"peer": "product 8192 bf16", "seconds": 2e-3, "flops": 1.5e12, "library": "PyTorch 2"},
              {"peer": "product 8192 f16", "error": "no memory", "library": "PyTorch 2"},
              {"peer": "attend prompt 16384", "seconds": 1e-9, "flops": 0, "library": "PyTorch 2"}]

    def test_the_peak_is_the_larger_one(self):
        self.assertEqual(gpu_targets.peak({"operations": [self.OURS], "peers": self.THEIRS}),
                         {"flops_per_second": 7.5e14, "of": "PyTorch 2, product 8192 bf16"})
        other = {"operation": "layer bf16, rows 512", "seconds": 1e-9, "flops": 1e12}
        self.assertEqual(gpu_targets.peak({"operations": [other, self.OURS]}),
                         {"flops_per_second": 7e14, "of": "product 8192 x 8192 bf16, rows 8192"})
        self.assertIsNone(gpu_targets.peak({"operations": [other], "peers": self.THEIRS[1:]}))

    def expect(self, verdict, value, seconds, *operations):
        full = cell(policy="full", prompt=8192, prefill_seconds=seconds)  # of 1e14 operations
        found, values = verdicts(full, operations=operations)
        self.assertEqual((found["T13"], values["T13"]), (verdict, value))

    def test_a_prompt_is_held_to_its_time_and_to_the_peak(self):
        self.expect("met", "0.200 s, 71 %", 0.2, self.OURS)
        self.expect("missed", "0.280 s, 51 %", 0.28, self.OURS)
        self.expect("missed", "0.240 s, 60 %", 0.24, self.OURS)
        self.expect("not measured", "0.200 s, needs the rate of products", 0.2)
        self.expect("missed", "0.280 s, needs the rate of products", 0.28)

    def test_rows_of_prompts_say_their_share(self):
        full = cell(policy="full", prompt=8192, prefill_tokens_per_second=4e4)
        other = {"description": "NVIDIA L4"}
        self.assertEqual(gpu_report.cell_row(full, {"flops_per_second": 1e15, "of": "x"}, other),
                         "| m | full | 8192 | 40000 |  | 50.0 % | 0.33 % | 260.0 |  | 90.0 % |")
        self.assertIn("| 40000 |  |  | 0.33 %", gpu_report.cell_row(full, None, other))
        uncounted = full | {"prompt_flops": None}
        self.assertIn("| 40000 |  |  | 0.33 %", gpu_report.cell_row(uncounted, {"flops_per_second": 1e15}, other))
        self.assertEqual(gpu_report.cell_row(full | {"result": {"error": "no memory"}}, None, other),
                         "| m | full | 8192 | no memory | | | | | | |")

    def test_rows_stand_beside_what_was_predicted(self):
        """The tables of docs/cuda.md: 8B bf16 on an H200 behind 8k tokens, all kept and a budget."""
        device = {"description": "NVIDIA H200, 132 multiprocessors"}
        tokens = round(8192 / gpu_model.prompt_seconds(gpu_model.DEVICES["H200"], gpu_model.MODELS["8B"], 8192))
        for policy, steps in (("full", 224), (gpu_targets.BUDGET, 232)):
            got = cell(policy=policy, prompt=8192, prefill_tokens_per_second=0.5 * tokens,
                       decode_tokens_per_second=1.1 * steps)
            self.assertEqual(gpu_report.cell_row(got, None, device),
                             f"| m | {policy} | 8192 | {0.5 * tokens:.0f} | {tokens}, -50 % |  | 0.33 % | "
                             f"{1.1 * steps:.1f} | {steps}, +10 % | 90.0 % |")

    def test_operations_of_a_prompt_are_those_of_the_specification(self):
        """8B at 8k: 114e12 of products and 17.6e12 of attention. Nobody has counted experts and windows."""
        config = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "hidden_size": 4096, "ffn_size": 14336,
                  "n_layers": 32}
        self.assertAlmostEqual(gpu_cells.flops_of_prompt(config, 8192) / 1e12, 114.3 + 17.6, delta=0.1)
        for more, counted in (({}, True), ({"n_experts": 8}, False), ({"sliding_window": 4096}, False)):
            model = gpu_cells.Model("m", 1, about={"config": config | more, "tensors": []})
            flops = gpu_cells.cell_of(gpu_cells.Unit(model, "full", [], 1), 8192, {})["prompt_flops"]
            self.assertEqual(flops is not None, counted)


class Appending(unittest.TestCase):
    def expect(self, verdict, value, plain, slides, *peers):
        rows = [operation(f"attend 1 of 8 entries bf16, uniform{kind}, 32 layers", 32e-6 * took)
                for kind, took in (("", plain), (", sliding", slides)) if took]
        found, values = verdicts(operations=rows, peers=peers)
        self.assertEqual((found["T8"], values["T8"]), (verdict, value))

    def test_bounds(self):
        copies = peer("append research 4096", 11e-6)
        fails = copies | {"error": "no memory"}
        lacks = "needs its comparator 'append research 4096'"
        self.expect("met", "0.1 to 0.5 us, 23.9 to 110.0 times", 0.36, 0.46, copies)
        self.expect("undecided", "0.4 to 4.4 us, 2.5 to 27.5 times", 4.0, 4.4, copies)
        self.expect("undecided", "0.0 to 4.4 us, 2.5 times or more", 4.5, 4.4, copies)
        self.expect("missed", "2.0 to 6.0 us, 1.8 to 5.5 times", 4.0, 6.0, copies)
        self.expect("missed", "0.4 to 4.4 us, 0.5 to 5.0 times", 4.0, 4.4, copies | alike(2e-6))
        self.expect("missed", f"2.0 to 6.0 us, {lacks}", 4.0, 6.0)
        self.expect("not measured", f"0.4 to 4.4 us, {lacks}, which says: no memory", 4.0, 4.4, fails)
        self.expect("not measured", "needs the operation 'attend 1 of 8 entries bf16, uniform'", 0, 6.0, copies)
        self.expect("not measured", "needs the operation 'attend 1 of 8 entries bf16, uniform, sliding'", 4.0, 0)


class LongestPrompts(unittest.TestCase):
    LADDER = {"model": "1b-bf16.kvc", "shape": "1B", "predicted": 5.33, "limit": 3240957079, "error": None, "rows": [
        {"policy": "full", "planned": 16384, "tokens": 16384, "refused": 17203, "seconds": 0.1},
        {"policy": gpu_targets.BUDGET, "planned": 93340, "tokens": 93340, "refused": 98007, "seconds": 2}]}

    def expect(self, verdict, value, **changes):
        found, values = verdicts(ladder=self.LADDER | changes)
        self.assertEqual((found["T19"], values["T19"]), wanted("T19", verdict, value))

    def test_the_ratio_is_held_to_the_predicted_one(self):
        self.expect("met", "5.43 to 5.98 times, predicted 5.33")
        for tokens, refused, verdict, value in ((81920, 86016, "undecided", "4.76 to 5.25"),
                                                (75000, 78750, "missed", "4.36 to 4.81")):
            short = self.LADDER["rows"][1] | {"tokens": tokens, "refused": refused}
            self.expect(verdict, f"{value} times, predicted 5.33", rows=[self.LADDER["rows"][0], short])

    def test_what_was_not_reached_is_no_success(self):
        lacks = "needs the longest prompts of 1B"
        self.expect("not measured", lacks, shape="8B")
        self.expect("not measured", f"{lacks}, which says: out of time", error="out of time")
        self.expect("not measured", lacks, rows=self.LADDER["rows"][:1])

    def test_rows(self):
        lines = gpu_ladder.table_rows(self.LADDER)
        self.assertEqual(lines[1], "| longest prompt in 3.241 GB | planned | ran | seconds | refused |")
        self.assertEqual(lines[3], "| 1b-bf16.kvc, full | 16384 | 16384 | 0.100 | 17203 |")
        self.assertEqual(gpu_ladder.table_rows(None), [])
        self.assertEqual(gpu_ladder.table_rows(self.LADDER | {"rows": [], "error": "out of time"}),
                         ["", "Longest prompts were not measured: out of time"])

    def test_shapes_are_predicted_as_the_specification_does(self):
        for heads, size, hidden, layers, ratio in ((8, 128, 4096, 32, 10.7), (8, 64, 2048, 16, 5.3)):
            config = {"n_kv_heads": heads, "head_dim": size, "hidden_size": hidden, "n_layers": layers}
            self.assertAlmostEqual(gpu_ladder.predicted(config), ratio, delta=0.05)


def operation(name, seconds, share=0.5):
    """One that moves `share` of what is copied meanwhile."""
    return {"operation": name} | alike(seconds) | {"flops": 0, "bytes": share * 4e12 * seconds,
            "read_bytes_per_second": 4e12}


class OperationTargets(unittest.TestCase):
    def expect(self, target, operations, verdict, value):
        found, values = verdicts(operations=operations)
        self.assertEqual((found[target], values[target]), wanted(target, verdict, value))

    def test_shares_of_the_copies(self):
        ragged, giant = (f"attend 16 of 4096 entries bf16, {heads}" for heads in ("ragged", "one giant"))
        for first, second, verdict in ((0.91, 0.93, "met"), (0.89, 0.93, "missed"), (0.91, 0.89, "missed")):
            rows = [operation(ragged, 1e-4, first), operation(giant, 1e-4, second)]
            self.expect("T1", rows, verdict, f"{100 * first:.0f} % and {100 * second:.0f} %")
        self.expect("T1", rows[:1], "not measured", f"needs the operation '{giant}'")
        self.expect("T2", [operation("attend 2 of 4096 entries bf16, ragged", 1e-5, 0.8)], "met", "80 %")
        self.expect("T2", rows, "not measured", "needs the operation 'attend 2 of 4096 entries bf16, ragged'")

    def test_ragged_beside_uniform_is_by_byte(self):
        uniform, ragged, giant = (f"attend 16 of 4096 entries bf16, {heads}"
                                  for heads in ("uniform", "ragged", "one giant"))
        for first, second, verdict, value in ((0.90, 0.87, "met", "1.000 and 1.034"),
                                              (0.85, 0.90, "missed", "1.059 and 1.000"),
                                              (0.90, 0.85, "missed", "1.000 and 1.059")):
            rows = [operation(uniform, 1e-4, 0.9), operation(ragged, 2e-4, first), operation(giant, 3e-4, second)]
            self.expect("T3", rows, verdict, value)

    def test_times_of_a_layer_and_of_a_call(self):
        self.expect("T4", [operation("attend 1 of 1024 entries bf16, uniform, 60 layers", 330e-6)], "met", "5.5 us")
        self.expect("T4", [operation("attend 1 of 1024 entries bf16, uniform, 60 layers", 390e-6)], "missed", "6.5 us")

    def test_what_dropping_takes(self):
        """Of attention, and of a step of 4 ms in 32 layers."""
        plain = operation("attend 1 of 1024 entries bf16, uniform, 60 layers", 300e-6)
        for took, verdict, value in ((321e-6, "met", "7.0 % of attention, 0.28 % of a step"),
                                     (330e-6, "missed", "10.0 % of attention, 0.40 % of a step")):
            drops = operation("attend 1 of 1024 entries bf16, uniform, dropping, 60 layers", took)
            found, values = verdicts(cell(), operations=[plain, drops])
            self.assertEqual((found["T7"], values["T7"]), (verdict, value))
            self.assertEqual(found["T4"], "met")
        self.expect("T7", [plain, drops], "missed", f"10.0 % of attention, needs 8B bf16 at {gpu_targets.BUDGET}")
        self.expect("T4", [drops], "not measured", "needs the operation 'attend 1 of 1024 entries bf16, uniform'")
        self.expect("T7", [plain], "not measured",
                    "needs the operation 'attend 1 of 1024 entries bf16, uniform, dropping'")
        found, values = verdicts(cell(step_seconds_median=1e-3), operations=[plain, drops | alike(321e-6)])
        self.assertEqual((found["T7"], values["T7"]), ("missed", "7.0 % of attention, 1.12 % of a step"))

    def test_times_beside_each_other(self):
        pages = [operation(f"attend 16 of 4096 entries {kind}, uniform", seconds)
                 for kind, seconds in (("bf16", 9e-5), ("int8", 5e-5), ("int4", 3e-5))]
        self.expect("T6", pages, "met", "1.80 and 3.00 times")
        self.expect("T6", pages[:2], "not measured", "needs the operation 'attend 16 of 4096 entries int4, uniform'")
        pages[2] |= alike(3.5e-5)
        self.expect("T6", pages, "missed", "1.80 and 2.57 times")
        sums = [operation("attend prompt 512 rows of 4096", 1e-3), operation("fold columns 512 rows of 4096", 6e-4)]
        self.expect("T15b", sums, "met", "60 %")


class SlowerTenths(unittest.TestCase):
    """A target is met where the slower tenth of the measurements meets it (performance.md 4.1)."""

    def expect(self, target, verdict, **measured):
        cells = measured.pop("cells", ())
        self.assertEqual(verdicts(*cells, **measured)[0][target], verdict)

    def test_operations(self):
        pair = operation("attend 2 of 4096 entries bf16, ragged", 1e-4, 0.77)
        for p90, verdict in ((1.02e-4, "met"), (1.03e-4, "undecided")):  # 75.5 and 74.8 %
            self.expect("T2", verdict, operations=[pair | {"seconds_p90": p90}])
        slow = operation("attend 2 of 4096 entries bf16, ragged", 1e-4, 0.74)
        self.expect("T2", "missed", operations=[slow | {"seconds_p10": 0.9e-4}])  # whatever its faster tenth
        for p90, verdict in ((6e-6, "met"), (6.1e-6, "undecided")):
            one = operation("attend 1 of 1024 entries bf16, uniform", 5.5e-6) | {"seconds_p90": p90}
            self.expect("T4", verdict, operations=[one])

    def test_of_two_times_the_slower_tenth_beside_the_faster_one(self):
        pages = [operation(f"attend 16 of 4096 entries {kind}, uniform", seconds)
                 for kind, seconds in (("bf16", 9e-5), ("int8", 5e-5), ("int4", 3e-5))]
        self.expect("T6", "met", operations=pages)
        for at, tenth in ((0, {"seconds_p10": 8e-5}), (1, {"seconds_p90": 5.2e-5}), (2, {"seconds_p90": 3.3e-5})):
            self.expect("T6", "undecided", operations=[row | (tenth if i == at else {}) for i, row in enumerate(pages)])
        self.expect("T6", "missed", operations=[pages[0] | {"seconds_p10": 8e-5}, pages[1], pages[2] | alike(4e-5)])
        plain, drops = (operation(f"attend 1 of 1024 entries bf16, uniform{kind}, 32 layers", 32 * seconds)
                        for kind, seconds in (("", 5e-6), (", dropping", 5.3e-6)))
        self.expect("T7", "met", cells=[cell()], operations=[plain, drops])
        self.expect("T7", "undecided", cells=[cell()], operations=[plain | {"seconds_p10": 32 * 4.9e-6}, drops])
        # 8 % of it all the same, but 1 % of a step of 1 ms by the slower tenth alone
        self.expect("T7", "undecided", cells=[cell(step_seconds_median=1e-3)],
                    operations=[plain, drops | {"seconds_p90": 32 * 5.35e-6}])
        self.expect("T7", "not measured", operations=[plain | {"seconds_p10": 32 * 4.9e-6}, drops])

    def test_comparators(self):
        ours, theirs = operation(COMPRESS, 1e-5), peer("compress research 8192", 1.1e-4)
        self.expect("T16", "met", operations=[ours], peers=[theirs])
        self.expect("T16", "undecided", operations=[ours | {"seconds_p90": 1.2e-5}], peers=[theirs])
        self.expect("T16", "undecided", operations=[ours], peers=[theirs | {"seconds_p10": 9.9e-5}])
        select = operation("select 1024 of 131072 entries", 20e-6) | {"seconds_p90": 26e-6}
        self.expect("T17", "undecided", operations=[select], peers=[peer("topk 8 rows of 131072", 1e-4)])
        self.expect("T17", "not measured", operations=[select])

    def test_stretches_of_steps(self):
        for figure, value in (("decode_tokens_per_second_p10", 249.0), ("bandwidth_fraction_p10", 0.87)):
            self.expect("T9a", "undecided", cells=[cell(**{figure: value})])

    def test_a_spread_of_quotients(self):
        quotient = gpu_times.Spread(2.0, 4.0, 8.0) / gpu_times.Spread(1.0, 2.0, 4.0)
        self.assertEqual(quotient, gpu_times.Spread(0.5, 2.0, 8.0))
        self.assertEqual(8.0 / gpu_times.Spread(1.0, 2.0, 4.0), gpu_times.Spread(2.0, 4.0, 8.0))
        self.assertEqual(gpu_times.Spread(2.0, 4.0, 8.0) / 2, gpu_times.Spread(1.0, 2.0, 4.0))


class PeerTargets(unittest.TestCase):
    ATTEND = ("attend 1 of 8192 entries bf16, ragged, 9 layers", "attend ragged 1 of 8192")
    UNIFORM = ("attend 1 of 32768 entries bf16, uniform, 3 layers", "attend uniform 1 of 32768")
    PROMPT = ("attend prompt 16384 rows of 16384", "attend prompt 16384")
    COMPRESS = (COMPRESS, "compress research 8192")

    def expect(self, target, verdict, value, cells=(), **measured):
        found, values = verdicts(*cells, **measured)
        self.assertEqual((found[target], values[target]), wanted(target, verdict, value))

    def test_operations_beside_theirs(self):
        for target, (ours, theirs), seconds, other, verdict, value in (
                ("T16", self.COMPRESS, 5e-5, 1e-3, "met", "20.00 times"),
                ("T16", self.COMPRESS, 5e-5, 4.9e-4, "missed", "9.80 times")):
            self.expect(target, verdict, value, operations=[operation(ours, seconds)],
                        peers=[peer(theirs, other)])

    def test_operations_by_themselves_and_beside_theirs(self):
        prompt = operation(self.PROMPT[0], 1e-2) | {"flops": 3.6e12}
        lacks = "needs its comparator 'attend prompt 16384'"
        for flops, theirs, verdict, value in (
                (3.6e12, 0.96e-2, "met", "360 TFLOP/s, 0.96 times"),
                (3.4e12, 0.96e-2, "missed", "340 TFLOP/s, 0.96 times"),
                (3.6e12, 0.94e-2, "missed", "360 TFLOP/s, 0.94 times"),
                (3.6e12, None, "not measured", f"360 TFLOP/s, {lacks}"),
                (3.4e12, None, "missed", f"340 TFLOP/s, {lacks}")):
            self.expect("T14", verdict, value, operations=[prompt | {"flops": flops}],
                        peers=[peer(self.PROMPT[1], theirs)] if theirs else [])
        for ours, verdict, value in ((20e-6, "met", "20.0 us, 4.00 times"), (25.2e-6, "missed", "25.2 us, 3.17 times"),
                                     (26.7e-6, "missed", "26.7 us, 3.00 times")):
            self.expect("T17", verdict, value, operations=[operation("select 1024 of 131072 entries", ours)],
                        peers=[peer("topk 8 rows of 131072", 80e-6)])

    def test_steps_beside_theirs(self):
        theirs = [peer("step research 8B", 0.025), peer("step research 1B", 0.0125)]
        slow, smaller = cell(prompt=8192, step_seconds_median=0.005), cell("1B", step_seconds_median=0.001)
        self.expect("T11", "met", "6.25 times and 12.50 times", [cell(), smaller], peers=theirs)
        self.expect("T11", "met", "5.00 times and 12.50 times", [cell(), slow, smaller], peers=theirs)
        late = cell(step_seconds_median=0.0051)
        self.expect("T11", "missed", "4.90 times and 12.50 times", [late, smaller], peers=theirs)
        self.expect("T11", "missed", f"4.90 times, needs 1B bf16 at {gpu_targets.BUDGET}", [late], peers=theirs)
        self.expect("T11", "not measured", f"6.25 times, needs 1B bf16 at {gpu_targets.BUDGET}", [cell()], peers=theirs)
        self.expect("T11", "missed", "6.25 times and 9.62 times", [cell(), cell("1B", step_seconds_median=0.0013)],
                    peers=theirs)
        self.expect("T11", "not measured", f"needs 8B bf16 at {gpu_targets.BUDGET}", [smaller, cell(weights="int8")],
                    peers=theirs)

    def test_ragged_and_uniform_heads_beside_theirs(self):
        for ragged, uniform, verdict, value in ((6e-5, 1.2e-4, "met", "6.00 times and 1.20 times"),
                                                (4.9e-5, 1.2e-4, "missed", "4.90 times and 1.20 times"),
                                                (6e-5, 0.9e-4, "missed", "6.00 times and 0.90 times")):
            self.expect("T5", verdict, value,
                        operations=[operation(self.ATTEND[0], 9e-5), operation(self.UNIFORM[0], 3e-4)],  # 10, 100 us
                        peers=[peer(self.ATTEND[1], ragged), peer(self.UNIFORM[1], uniform)])

    def test_what_was_missing_is_said(self):
        ours, theirs = [operation(self.ATTEND[0], 9e-5)], peer(self.ATTEND[1], 6e-5)
        self.expect("T5", "not measured", "needs its comparator 'attend ragged 1 of 8192'", operations=ours)
        self.expect("T5", "not measured", "needs the operation 'attend 1 of 8192 entries bf16, ragged'", peers=[theirs])
        failed = {"peer": self.ATTEND[1], "error": "no memory"}
        self.expect("T5", "not measured", "needs its comparator 'attend ragged 1 of 8192', which says: no memory",
                    operations=ours, peers=[failed])
        padded = peer("attend ragged 1 of 8192, padded", 1)
        self.expect("T5", "not measured", "needs its comparator 'attend ragged 1 of 8192'", operations=ours,
                    peers=[padded])

    def test_memory(self):
        lacks = "needs the memory of a CUDA device, 8B bf16 with a prompt of 131072"
        self.expect("T18", "not measured", lacks, [cell(prompt=131072)])
        self.expect("T18", "not measured", lacks, [cell(device_bytes_peak=18e9)])
        self.expect("T18", "met", "18.3 GB", [cell(prompt=131072, device_bytes_peak=18.3e9)])
        self.expect("T18", "missed", "19.1 GB", [cell(prompt=131072, device_bytes_peak=19.1e9)])


if __name__ == "__main__":
    unittest.main()

"""What bench/gpu.py measures, and in which order: cells of models that are there or are made for it
(bench/shape_model.cc), those that targets ask for first; each begun only when there is time for it."""

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import gpu_run
import gpu_targets

FULL, BUDGET = "full", gpu_targets.BUDGET
POLICIES = (FULL, BUDGET)
PROMPTS = (512, 4096, 8192, 32768)
# What targets ask for: by shape and weights, policies and prompts.
NEEDED = {
    ("8B", "bf16"): ((BUDGET, 4096), (FULL, 8192), (BUDGET, 8192), (BUDGET, 131072)),
    ("8B", "int8"): ((BUDGET, 4096),),
    ("8B", "int4"): ((BUDGET, 4096),),
    ("1B", "bf16"): ((BUDGET, 4096), (BUDGET, 8192), (BUDGET, 131072)),
}
SHAPES = "8b:bf16,8b:int8,8b:int4,1b:bf16"  # without model files
LONG = 32768  # prompts from here on are measured once
OUT_OF_TIME = "not measured: out of time"
EXPECTED = ("was trained for", "out of time", "no room")  # in errors that are no failure
BESIDE_WEIGHTS = 2 << 30  # of the device's memory: a cache and scratch
LEAST_OF_A_CELL = 30  # seconds
LATE = 1.3  # of what was expected: then it is stopped, where it has more than its share of the time
GUESSED_FLOPS, GUESSED_BYTES, GUESSED_LOAD = 1e14, 1e12, 2e9  # per second, before anything was measured


@dataclasses.dataclass
class Model:
    """A file, or one that will be made; about is what kvc inspect says of it."""

    path: str
    n_bytes: int
    shape: str = ""  # of shape_model; empty: the file is there
    weights: str = ""
    about: dict = None

    @property
    def name(self):
        return os.path.basename(self.path)


@dataclasses.dataclass
class Unit:
    """What one process measures: a model by one policy, prompts one after the other."""

    model: Model
    policy: str
    prompts: list
    repeat: int


def flops_of_prompt(config, prompt):
    """Of the products of its tokens with the layers' weights, and of causal attention over all that came before: as if
    the model had neither experts nor windows."""
    wide = config["n_heads"] * config["head_dim"]
    narrow = config["n_kv_heads"] * config["head_dim"]
    layer = config["hidden_size"] * (2 * wide + 2 * narrow + 3 * config["ffn_size"])
    return config["n_layers"] * (2 * layer * prompt + 2 * wide * prompt * prompt)


class Clock:
    """How much time there is, and what a cell will take: by its products and bytes at the rates that the last cell of
    its model and policy had, or else the last cell of all; before any at guessed ones."""

    def __init__(self, minutes=None):
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.rates = {}  # of (model, policy): prompt and step beside their guesses, and seconds beside both
        self.last = (1.0, 1.0, 1.0)

    def left(self):
        return float("inf") if self.end is None else self.end - time.monotonic()

    def most(self, expected):
        """What a cell may take: those behind it are to have a turn too, but it is begun where there is time for what
        is expected, and then it has that."""
        return min(self.left(), max(self.left() / 2, LEAST_OF_A_CELL, LATE * expected))

    @staticmethod
    def guess(unit, prompt):
        """(seconds of a prompt, of a step)."""
        config = unit.model.about["config"]
        narrow = config["n_kv_heads"] * config["head_dim"]
        n_bytes = unit.model.n_bytes + (4 * narrow * config["n_layers"] * prompt if unit.policy == FULL else 0)
        return flops_of_prompt(config, prompt) / GUESSED_FLOPS, n_bytes / GUESSED_BYTES

    @staticmethod
    def loading(unit):
        return 1 + unit.model.n_bytes / GUESSED_LOAD

    def estimate(self, unit, prompt, gen, loads):
        of_prompt, of_step, beside = self.rates.get((unit.model.path, unit.policy), self.last)
        prompt_seconds, step_seconds = self.guess(unit, prompt)
        once = of_prompt * prompt_seconds + of_step * gen * step_seconds
        return beside + (unit.repeat + 1) * once + (self.loading(unit) if loads else 0)

    def took(self, unit, prompt, gen, result, seconds):
        """What kvc bench says of a cell that took so many seconds, without loading."""
        prompt_seconds, step_seconds = self.guess(unit, prompt)
        step = result.get("step_seconds_mean") or 0
        once = result["prefill_seconds"] + gen * step
        self.last = (result["prefill_seconds"] / prompt_seconds, step / step_seconds,
                     max(0.1, seconds - (unit.repeat + 1) * once))
        self.rates[unit.model.path, unit.policy] = self.last

    def gave_up(self, unit, seconds):
        """A cell did not end within these: others like it take as long."""
        of_prompt, of_step, _ = self.rates.get((unit.model.path, unit.policy), self.last)
        self.rates[unit.model.path, unit.policy] = of_prompt, of_step, seconds


def kind_of(model):
    return gpu_targets.kind_of(model.about)


def units(models, repeat, prompts=None):
    """In the order of their worth: what targets ask for, short prompts of all models before long ones, small models
    before large ones there; then the rest. With prompts: these by every policy."""
    def split(model, cells):
        found = []
        for policy, prompt in cells:
            times = 1 if prompt >= LONG else repeat
            same = [unit for unit in found if unit.policy == policy and unit.repeat == times]
            if same:
                same[0].prompts.append(prompt)
            else:
                found.append(Unit(model, policy, [prompt], times))
        return found

    if prompts is not None:
        return [Unit(model, policy, list(prompts), repeat) for model in models for policy in POLICIES]
    needed = {model.path: NEEDED.get(kind_of(model), ()) for model in models}
    short = [unit for model in models for unit in split(model, [c for c in needed[model.path] if c[1] < LONG])]
    long = [unit for model in sorted(models, key=lambda model: model.n_bytes)
            for unit in split(model, [c for c in needed[model.path] if c[1] >= LONG])]
    rest = [unit for model in models for unit in split(model, [
        (policy, prompt) for policy in POLICIES for prompt in PROMPTS if (policy, prompt) not in needed[model.path]])]
    return short + long + rest


def first_long(listed):
    """Where the units end that are short and that targets ask for."""
    for i, unit in enumerate(listed):
        needed = NEEDED.get(kind_of(unit.model), ())
        if any(prompt >= LONG or (unit.policy, prompt) not in needed for prompt in unit.prompts):
            return i
    return len(listed)


def cell_of(unit, prompt, result):
    """prompt_flops: None where nobody has counted them."""
    shape, weights = kind_of(unit.model)
    config = unit.model.about["config"]
    counted = not config.get("n_experts") and not config.get("sliding_window")
    return {"model": unit.model.name, "shape": shape, "weights": weights, "policy": unit.policy, "prompt": prompt,
            "prompt_flops": flops_of_prompt(config, prompt) if counted else None, "result": result}


def failed_cells(unit, error, prompts=None):
    return [cell_of(unit, prompt, {"error": error}) for prompt in (unit.prompts if prompts is None else prompts)]


def measure(args, unit, clock):
    """The cells of a unit, one by one. What does not fit into the model's context is said, not measured; a prompt
    that fails does not take those behind it along."""
    most = unit.model.about["config"]["max_tokens"]
    todo = [prompt for prompt in unit.prompts if prompt <= most]
    while todo:
        if clock.estimate(unit, todo[0], args.gen, loads=True) > clock.left():
            yield from failed_cells(unit, OUT_OF_TIME, todo)
            break
        lines = gpu_run.Lines([args.kvc, "bench", unit.model.path, "--device", args.device, "--trusted", "--policy",
                               unit.policy, "--prompt", ",".join(map(str, todo)), "--gen", str(args.gen), "--repeat",
                               str(unit.repeat), "--json"])
        begin, loading = time.monotonic(), clock.loading(unit)
        try:
            while todo and (loading or clock.estimate(unit, todo[0], args.gen, loads=False) <= clock.left()):
                limit = clock.most(clock.estimate(unit, todo[0], args.gen, loads=loading > 0))
                line = lines.next(limit)
                seconds = time.monotonic() - begin
                if line is None:
                    break
                result = json.loads(line)
                clock.took(unit, todo[0], args.gen, result, max(seconds - loading, 0))
                yield cell_of(unit, todo.pop(0), result)
                begin, loading = time.monotonic(), 0
            else:
                continue  # all are measured, or there is no time for the next: the loop in front says so
        finally:
            said = gpu_run.last_word(*lines.close())
        if seconds >= limit:
            clock.gave_up(unit, seconds)
            said = f"stopped after {seconds:.0f} s: out of time"
        yield cell_of(unit, todo.pop(0), {"error": said})
    yield from failed_cells(unit, f"the model was trained for {most} tokens",
                            [prompt for prompt in unit.prompts if prompt > most])


class Models:
    """Files of a scratch folder that are there when their turn comes: as many at once as have room, made before
    anything is measured; what else is needed takes the place of those that are needed last."""

    def __init__(self, kvc, shapes, scratch, fallback, clock):
        self.program, self.clock = os.path.join(os.path.dirname(kvc), "shape_model"), clock
        self.all, self.left_out, self.folder, self.there = [], [], None, []
        if not shapes:
            return
        known = json.loads(subprocess.run([self.program, "--list"], check=True, capture_output=True).stdout)
        for name in shapes:
            shape, _, weights = name.partition(":")
            if weights not in known.get(shape, {"weight_bytes": {}})["weight_bytes"]:
                raise ValueError(f"no shape '{name}': one of {', '.join(known)}, and bf16, int8, int4 or q4_k "
                                 "behind a colon")
            config = known[shape]
            self.all.append(Model(f"{shape}-{weights}.kvc", config["weight_bytes"][weights], shape, weights, {
                "config": {"n_layers": config["layers"], "hidden_size": config["hidden"],
                           "n_heads": config["heads"], "n_kv_heads": config["kv_heads"],
                           "head_dim": config["head_size"], "ffn_size": config["feed_forward"],
                           "max_tokens": config["context"]},
                "tensors": [{"role": "gate", "type": weights}]}))
        largest = max(model.n_bytes for model in self.all)
        scratch = scratch or ("/dev/shm" if room("/dev/shm") > largest + (2 << 30) else fallback)
        self.folder = tempfile.mkdtemp(prefix="kvc-gpu-", dir=scratch)
        for model in self.all:
            model.path = os.path.join(self.folder, model.path)

    def leave_out_larger_than(self, n_bytes):
        for model in [m for m in self.all if m.n_bytes + BESIDE_WEIGHTS > n_bytes]:
            self.left_out.append(f"{model.name[:-4]}: no room for it in {n_bytes / 2**30:.1f} GiB of the device")
            self.all.remove(model)

    def fits(self, model):
        return room(self.folder) > model.n_bytes + (1 << 28)

    def make(self, model):
        """What went wrong, or None. On a disk that takes half of the time for it there is none to make."""
        seconds = None if self.clock.end is None else max(1, self.clock.left() / 2)
        done = gpu_run.finished([self.program, model.shape, model.weights, model.path], seconds)
        if done.code is None:
            for name in os.listdir(self.folder):  # what it had written (lib/base/atomic_file.cc)
                if name.startswith(f".kvc-{done.pid}-"):
                    os.remove(os.path.join(self.folder, name))
            return f"not made in {seconds:.0f} s: out of time"
        return None if done.code == 0 else gpu_run.last_word(done.code, done.said)

    def make_first(self):
        """All that have room together, several at a time; what fails is tried again when its turn comes."""
        taken = 0
        for model in self.all:
            if room(self.folder) > taken + model.n_bytes + (1 << 28):
                self.there.append(model)
                taken += model.n_bytes
        with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
            failed = [model for model, error in zip(self.there, pool.map(self.make, self.there)) if error]
        self.there = [model for model in self.there if model not in failed]

    def need(self, model, later):
        """Makes the file if it is not there; later: units whose turn is behind this one's. What went wrong, or None."""
        if not model.shape or model in self.there:
            return None
        turns = {id(unit.model): i for i, unit in reversed(list(enumerate(later)))}
        for other in sorted(self.there, key=lambda m: -turns.get(id(m), len(later))):
            if self.fits(model):
                break
            self.drop(other)
        if not self.fits(model):
            return f"no room for {model.n_bytes / 2**30:.1f} GiB in {self.folder}"
        error = self.make(model)
        if error is None:
            self.there.append(model)
        return error

    def drop(self, model):
        if model in self.there:
            self.there.remove(model)
            os.remove(model.path)

    def close(self):
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def room(folder):
    """Bytes that a file there may take; files in memory take memory."""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return 0
    free = shutil.disk_usage(folder).free
    if not os.path.realpath(folder).startswith("/dev/shm"):
        return free
    with open("/proc/meminfo", encoding="ascii") as file:
        available = [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    return min([free] + [3 * n // 4 for n in available])

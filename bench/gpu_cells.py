"""What bench/gpu.py measures, and in which order: cells of models that are there or are made for it
(bench/shape_model.cc), those that targets ask for first; each begun only when there is time for it."""

import dataclasses
import json
import os
import time

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

    def blamed(self, error):
        """What was stopped when all the time was over says so."""
        return f"{error}: out of time" if error and error.startswith("stopped") and self.left() < 1 else error

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


def turns(listed):
    """(where the units end that are short and that targets ask for, where those end that targets ask for)."""
    def is_needed(unit):
        return all((unit.policy, prompt) in NEEDED.get(kind_of(unit.model), ()) for prompt in unit.prompts)

    needed = next((i for i, unit in enumerate(listed) if not is_needed(unit)), len(listed))
    return next((i for i, unit in enumerate(listed[:needed]) if max(unit.prompts) >= LONG), needed), needed


def cell_of(unit, prompt, result):
    """prompt_flops: None where nobody has counted them."""
    shape, weights = kind_of(unit.model)
    config = unit.model.about["config"]
    counted = not config.get("n_experts") and not config.get("sliding_window")
    return {"model": unit.model.name, "shape": shape, "weights": weights, "policy": unit.policy, "prompt": prompt,
            "prompt_flops": flops_of_prompt(config, prompt) if counted else None, "result": result}


def failed_cells(unit, error, prompts=None):
    return [cell_of(unit, prompt, {"error": error}) for prompt in (unit.prompts if prompts is None else prompts)]


def steps_of(args, unit):
    """Long prompts are read once, and steps are cheap beside them: as many as tell the longest of a hundred."""
    return args.gen * (2 if min(unit.prompts) >= LONG else 1)


def measure(args, unit, clock):
    """The cells of a unit, one by one. What does not fit into the model's context is said, not measured; a prompt
    that fails does not take those behind it along."""
    most, gen = unit.model.about["config"]["max_tokens"], steps_of(args, unit)
    todo = [prompt for prompt in unit.prompts if prompt <= most]
    while todo:
        if clock.estimate(unit, todo[0], gen, loads=True) > clock.left():
            yield from failed_cells(unit, OUT_OF_TIME, todo)
            break
        lines = gpu_run.Lines([args.kvc, "bench", unit.model.path, "--device", args.device, "--trusted", "--policy",
                               unit.policy, "--prompt", ",".join(map(str, todo)), "--gen", str(gen), "--repeat",
                               str(unit.repeat), "--json"])
        begin, loading = time.monotonic(), clock.loading(unit)
        try:
            while todo and (loading or clock.estimate(unit, todo[0], gen, loads=False) <= clock.left()):
                limit = clock.most(clock.estimate(unit, todo[0], gen, loads=loading > 0))
                line = lines.next(limit)
                seconds = time.monotonic() - begin
                if line is None:
                    break
                result = json.loads(line)
                clock.took(unit, todo[0], gen, result, max(seconds - loading, 0))
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

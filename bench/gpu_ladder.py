"""The longest prompt that a memory limit holds, by the full cache and by a budget: kvc plan says how long, and prompts
on the device whether it is so, from that one up to the first that is refused. The limit is what the plan says of a
prompt by the full cache."""

import dataclasses
import json

import gpu_cells
import gpu_run

PROMPT, SMALL_PROMPT = 16384, 256  # by the full cache; beyond 8,192 tokens activations between layers are f16, too
SMALL_BUDGET = "snapkv:budget=64"
RUNG, RUNGS = 1.05, 5  # a prompt beside the one before it; how many are tried from the planned one on
CLOSE = 0.998, 0.98  # of what a straight line through two plans promises: pages and chunks are whole
BESIDE = 34  # tokens of a session beside its prompt, in kvc bench without steps
PLANS = 4  # one for the limit, two for the line, mostly one on it


class Stopped(Exception):
    """Why there is no ladder, or no more of it."""


@dataclasses.dataclass
class Ladder:
    kvc: str
    device: str
    model: gpu_cells.Model
    clock: gpu_cells.Clock
    small: bool = False
    expected: float = 0  # seconds, of all of it

    def run(self, *args):
        """(exit code, lines of stdout, what it said last)."""
        if self.clock.left() <= 0:
            raise Stopped("out of time")
        seconds = None if self.clock.end is None else self.clock.most(self.expected)
        done = gpu_run.finished([self.kvc, args[0], self.model.path, "--device", self.device, "--trusted", "--json",
                                 *map(str, args[1:])], seconds)
        if done.code is None:
            raise Stopped(f"kvc {args[0]}, stopped after {seconds:.0f} s: out of time")
        return done.code, done.out.splitlines(), gpu_run.last_word(done.code, done.said)

    def need(self, policy, tokens):
        """Bytes of a session with such a prompt at its worst moment, by kvc plan."""
        code, lines, said = self.run("plan", "--policy", policy, "--context", tokens, "--max-tokens", BESIDE)
        if code != 0:
            raise Stopped(said)
        return json.loads(lines[0])["total_bytes_peak"]

    def planned(self, policy, limit, low, high):
        """The longest prompt that the plan has room for, or hardly less: of two that are not far from it, by the line
        through them."""
        needs = [self.need(policy, tokens) for tokens in (low, high)]
        if needs[1] <= needs[0]:
            raise Stopped(f"a plan of {high} tokens takes no more than one of {low}")
        on_line = low + (limit - needs[0]) * (high - low) / (needs[1] - needs[0])
        for close in CLOSE:
            tokens = int(close * on_line)
            if tokens > 0 and self.need(policy, tokens) <= limit:
                return tokens
        raise Stopped(f"{tokens} tokens by {policy} are still too many for the plan")

    def holds(self, policy, limit, planned):
        """Runs prompts under the limit, from the planned one up to the first that is refused for want of memory."""
        rungs = [int(planned * RUNG**i) for i in range(RUNGS)]
        _, lines, said = self.run("bench", "--policy", policy, "--memory-limit", limit, "--prompt",
                                  ",".join(map(str, rungs)), "--gen", 0, "--repeat", 1)
        if not lines:
            raise Stopped(f"a prompt of {planned} tokens by {policy}, for which the plan has room: {said}")
        if len(lines) == RUNGS:
            raise Stopped(f"a prompt of {rungs[-1]} tokens by {policy} has room too, where the plan ends at {planned}")
        if "(MEMORY)" not in said:
            raise Stopped(f"a prompt of {rungs[len(lines)]} tokens by {policy}: {said}")
        return {"policy": policy, "planned": planned, "tokens": rungs[len(lines) - 1], "refused": rungs[len(lines)],
                "seconds": json.loads(lines[-1])["prefill_seconds"]}

    def seconds(self, prompt, longest):
        """About, for all of it: plans open the model too, and what is refused may be so behind most of its prompt."""
        unit = gpu_cells.Unit(self.model, gpu_cells.FULL, [], 2)
        return (PLANS * self.clock.loading(unit) + self.clock.estimate(unit, prompt, 0, True) +
                self.clock.estimate(unit, longest, 0, True))

    def climb(self, report):
        """Fills the report, whose rows are those that were reached."""
        prompt, budget = (SMALL_PROMPT, SMALL_BUDGET) if self.small else (PROMPT, gpu_cells.BUDGET)
        about = int(prompt * max(report["predicted"], 1))
        self.expected = self.seconds(prompt, about)
        if self.clock.left() < self.expected:
            raise Stopped("out of time")
        report["limit"] = limit = self.need(gpu_cells.FULL, prompt)
        longest = {gpu_cells.FULL: prompt, budget: self.planned(budget, limit, about, int(1.2 * about))}
        for policy, tokens in longest.items():
            report["rows"].append(self.holds(policy, limit, tokens))


def predicted(config):
    """The ratio of both, where a budget's cache is small and nothing else grows with a prompt: a token's bytes in all
    layers, beside those in one and between layers. 16 bits a number."""
    narrow = 4 * config["n_kv_heads"] * config["head_dim"]
    return config["n_layers"] * narrow / (2 * config["hidden_size"] + narrow)


def measure(ladder, error=None):
    """{model, shape, predicted, limit, rows, error}. error: why there is no model."""
    report = {"model": ladder.model.name, "shape": gpu_cells.kind_of(ladder.model)[0],
              "predicted": predicted(ladder.model.about["config"]), "limit": None, "rows": [], "error": error}
    try:
        if error is None:
            ladder.climb(report)
    except (Stopped, OSError, ValueError, KeyError) as failure:
        report["error"] = str(failure)
    return report


def model_for(models, small):
    """The one whose prompts take seconds; in a small run any."""
    return next((model for model in models if small or gpu_cells.kind_of(model)[0] == "1B"), None)


def table_rows(ladder):
    """The report for people."""
    if not ladder:
        return []
    lines = []
    if ladder["rows"]:
        lines += ["", f"| longest prompt in {ladder['limit'] / 1e9:.3f} GB | planned | ran | seconds | refused |",
                  "|---|---|---|---|---|"]
    for row in ladder["rows"]:
        lines.append(f"| {ladder['model']}, {row['policy']} | {row['planned']} | {row['tokens']} | "
                     f"{row['seconds']:.3f} | {row['refused']} |")
    return lines + (["", f"Longest prompts were not measured: {ladder['error']}"] if ladder["error"] else [])

"""kvc eval, and what it measured: kept, so that nothing is measured twice."""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import subprocess
import tempfile
import threading
import time

import compare_llama

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARD = 4  # tasks measured together, by one thread
TOGETHER = 6  # policies of a text


def combined(rows):
    """One row over several shards: counts are added, means weighted by what they are over."""
    n, prompts = sum(r["n"] for r in rows), sum(r["n_prompts"] for r in rows)
    out = dict(rows[0], n=n, n_prompts=prompts)
    for key in ("cache_bytes", "slots_per_head", "prefill_seconds"):
        out[key] = sum(r[key] * r["n_prompts"] for r in rows) / prompts
    full = sum(r["slots_per_head"] * r["n_prompts"] / r["cache_share"] for r in rows)
    out["cache_share"] = out["slots_per_head"] * prompts / full
    if n:
        out["accuracy"] = sum(r["accuracy"] * r["n"] for r in rows) / n
    compared = sum(r["n_compared"] for r in rows)
    for key in ("kl", "top1"):
        if compared:
            out[key] = sum((r[key] or 0) * r["n_compared"] for r in rows) / compared
    steps = [r["step_seconds"] for r in rows if r["step_seconds"] is not None]
    out["step_seconds"] = sum(steps) / len(steps) if steps else None
    out["right_by_task"] = [counts for r in rows for counts in r["right_by_task"]]
    return out


def content(path):
    with open(path, "rb") as file:
        return file.read()


def cost(seconds):
    return {"seconds": seconds, "machine": compare_llama.processor()}


def cost_of(costs):
    """"N minutes of processor on MACHINE", of pieces as they were measured; "" when one does not say."""
    if not costs or not all(costs):
        return ""
    minutes = math.ceil(sum(cost["seconds"] for cost in costs) / 60)
    machines = " and ".join(sorted({cost["machine"] for cost in costs}))
    return f"{minutes} {'minute' if minutes == 1 else 'minutes'} of processor on {machines}"


class Program:
    used = []  # what every piece that was asked for cost when it was measured, of all programs; emptied by whoever asks

    def __init__(self, arguments):
        self.path, self.model = arguments.program, arguments.model
        self.kept = os.path.join(ROOT, "build", "quality")
        os.makedirs(self.kept, exist_ok=True)
        self.identity = hashlib.sha256(content(self.path) + content(self.model))
        self.writing = threading.Lock()

    def of(self, model):
        """The same for another model."""
        return Program(argparse.Namespace(program=self.path, model=model))

    def run(self, what, policies, words):
        listed = [word for policy in policies for word in ("--policy", policy)]
        done = subprocess.run(
            [self.path, "eval", self.model, *words, *listed, "--json"], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"{what} failed:\n{done.stderr}")
        return json.loads(done.stdout)

    def takes(self, policy, tokens):
        """Whether the model takes a policy, for a prompt of so many tokens."""
        words = [self.path, "plan", self.model, "--context", str(tokens), "--policy", policy, "--json"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode not in (0, 1) or (done.returncode and "(INVALID)" not in done.stderr):
            raise SystemExit(f"{policy}:\n{done.stderr}")
        return done.returncode == 0

    def place(self, *about):
        identity = self.identity.copy()
        identity.update(repr(about).encode())
        return os.path.join(self.kept, identity.hexdigest()[:24] + ".json")

    def write(self, path, document):
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(path + ".part", path)

    def evaluate(self, what, policies, *words):
        """The results of kvc eval, one row a policy (and kind)."""
        return self.document(what, policies, *words)["results"]

    def document(self, what, policies, *words):
        files = [content(word) for word in words if os.path.isfile(word)]
        path = self.place(policies, [w for w in words if not os.path.isfile(w)], files)
        if not os.path.exists(path):
            begin = time.time()
            measured = self.run(what, policies, words)
            self.write(path, dict(measured, cost=cost(time.time() - begin)))
            print(f"{what}: {time.time() - begin:.0f} s", flush=True)
        document = json.loads(content(path))
        Program.used.append(document.get("cost"))
        return document

    @staticmethod
    def known(path):
        return json.loads(content(path)) if os.path.exists(path) else {}

    def rows(self, path, what, policies, words):
        """{policy: row} of one kind of data, of which those that `path` has are not measured again."""
        known = self.known(path)
        missing = [p for p in dict.fromkeys(policies) if p not in known]
        if missing:
            begin = time.time()
            measured = self.run(what, missing, words)["results"]
            each = cost((time.time() - begin) / len(missing))
            with self.writing:
                known = self.known(path)  # others may have measured other policies meanwhile
                known.update((policy, dict(row, cost=each)) for policy, row in zip(missing, measured))
                self.write(path, known)
            print(f"{what}, {len(missing)} policies: {time.time() - begin:.0f} s", flush=True)
        Program.used += [known[policy].get("cost") for policy in dict.fromkeys(policies)]
        return known

    def shard(self, what, policies, tasks, protocol):
        """{policy: row} over a few tasks of one kind."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            file.write(tasks)
            file.flush()
            words = ("--data", file.name, "--protocol", protocol, "--threads", "1")
            return self.rows(self.place("shard", protocol, tasks), what, policies, words)

    def texts(self, what, policies, paths, protocol, n_windows, window=0):
        """Rows of policies over windows of each text: [{policy: row}]."""
        words = ("--text-protocol", protocol, "--windows", str(n_windows), "--window", str(window), "--threads", "1")

        def measure(path, some):
            place = self.place("text", *words, content(path))
            return self.rows(place, f"{what} {os.path.basename(path)}", some, ("--text", path, *words))

        # A few policies of a text at a time: methods differ in cost, and three texts do not share two processors.
        parts = [policies[i : i + TOGETHER] for i in range(0, len(policies), TOGETHER)]
        jobs = [(path, part) for path in paths for part in parts]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            measured = list(threads.map(lambda job: measure(*job), jobs))
        return [{k: v for rows in measured[i : i + len(parts)] for k, v in rows.items()}
                for i in range(0, len(jobs), len(parts))]  # fmt: skip

    def tasks(self, what, policies, path, protocol, limit):
        """Rows of policies over the first tasks of a file of one kind."""
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()[:limit]
        shards = ["".join(lines[i : i + SHARD]) for i in range(0, len(lines), SHARD)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            parts = list(threads.map(lambda tasks: self.shard(what, policies, tasks, protocol), shards))
        return [combined([part[policy] for part in parts]) for policy in policies]

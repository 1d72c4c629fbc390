#!/usr/bin/env python3
"""The tests of ./dev gpu: many programs at once in the folder of their build, where there may be no CMake to run them.

  bench/gpu_tests.py list build-gpu --match RE --leave-out RE    writes build-gpu/tests.json from what ctest knows
  bench/gpu_tests.py run build-gpu [--jobs N] [--seconds S]      runs those; tests.txt and logs/ there, after every test
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time

import gpu_run
import gpu_smi

FIRST = r"device_|.*_parity"  # what tells most about the backend
LAST = r"(golden_later|reference_recall|byte_budget|engine_(first_house|session_file))"  # the longest
MOST_AT_ONCE = 8  # on one device
SHOWN = 60  # lines of a test that failed


def most_at_once():
    """Programs, each with a context of its own on the device."""
    mode = gpu_smi.query("cuda", ["compute_mode"]).get("compute_mode", "")
    if mode.startswith("Exclusive"):
        print(f"one test program at a time: the GPU is in the compute mode {mode}", flush=True)
        return 1
    return min(os.cpu_count() or 1, MOST_AT_ONCE)


def rank(name):
    return 0 if re.match(FIRST, name) else 2 if re.match(LAST, name) else 1


def listed(folder, match, leave_out):
    """The tests of a build as [{name, program, environment, timeout}], in the order of their worth. Only programs that
    the build made: scripts test the scripts."""
    shown = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1", "-R", match, "-E", leave_out],
                           check=True, capture_output=True, text=True)
    found = []
    for test in json.loads(shown.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        command = test.get("command", [os.path.join(folder, "tests", test["name"])])
        program = os.path.relpath(command[0], os.path.abspath(folder))
        if len(command) > 1 or program.startswith(".."):
            continue
        found.append({"name": test["name"], "program": program, "environment": properties.get("ENVIRONMENT", []),
                      "timeout": properties.get("TIMEOUT", 1500)})
    return sorted(found, key=lambda test: (rank(test["name"]), test["name"]))


def counted(log):
    """What a program of GoogleTest says of itself: "34 passed, 2 skipped"; others say nothing."""
    with open(log, encoding="utf-8", errors="replace") as file:
        found = re.findall(r"^\[ +(PASSED|SKIPPED|FAILED) +\] (\d+) test", file.read(), re.MULTILINE)
    return ", ".join(f"{number} {word.lower()}" for word, number in found)


def run_one(folder, test, end):
    """(verdict, seconds): passed, failed and how, or that there was no time."""
    left = end - time.monotonic()
    if left <= 0:
        return "not run: out of time", 0.0
    log = os.path.join(folder, "logs", test["name"] + ".txt")
    environment = dict(os.environ) | dict(entry.split("=", 1) for entry in test["environment"])
    begin = time.monotonic()
    with open(log, "wb") as out:
        try:
            # pylint: disable=consider-using-with
            program = subprocess.Popen([os.path.abspath(os.path.join(folder, test["program"]))], cwd=folder, stdout=out,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                                       start_new_session=True)
        except OSError as error:
            return f"failed: {error}", 0.0
        try:
            code = program.wait(min(left, test["timeout"]))
        except subprocess.TimeoutExpired:
            took = time.monotonic() - begin
            ended = "" if gpu_run.end(program, whole_session=True) else ", and it did not end when it was killed"
            return ("failed: took too long" if took >= test["timeout"] else "stopped: out of time") + ended, took
    took = time.monotonic() - begin
    return ("passed" if code == 0 else f"failed: exit code {code}" if code > 0 else f"failed: signal {-code}"), took


class Results:
    """What has been run so far, in FOLDER/tests.txt after every test: there when the run is cut off."""

    def __init__(self, folder, n_tests, jobs, copies):
        self.folder, self.n_tests, self.jobs, self.copies = folder, n_tests, jobs, copies
        self.begin, self.lines, self.verdicts = time.monotonic(), [], []
        self.write()

    def count(self, *words):
        return sum(self.verdicts.count(word) for word in words)

    def last(self):
        to_come = self.n_tests - len(self.verdicts)
        return (f"{self.count('passed')} of {self.n_tests} test programs passed, {self.count('failed')} failed, "
                f"{self.count('stopped', 'not run')} out of time{f', {to_come} to come' if to_come else ''}; "
                f"{time.monotonic() - self.begin:.0f} s, {self.jobs} at once")

    def write(self):
        text = "\n".join(sorted(self.lines) + [self.last()]) + "\n"
        gpu_run.write_whole(os.path.join(self.folder, "tests.txt"), text, self.copies)

    def add(self, name, verdict, took):
        log = os.path.join(self.folder, "logs", name + ".txt")
        self.verdicts.append(verdict.split(":")[0])
        ran = self.verdicts[-1] != "not run" and os.path.exists(log)
        counts = counted(log) if ran else ""
        self.lines.append(f"{name}: {verdict}, {took:.1f} s" + (f" ({counts})" if counts else ""))
        print(self.lines[-1], flush=True)
        if ran and self.verdicts[-1] in ("failed", "stopped"):
            with open(log, encoding="utf-8", errors="replace") as file:
                print("".join("    " + line for line in file.readlines()[-SHOWN:]), flush=True)
        if ran:
            gpu_run.copy(log, self.copies and os.path.join(self.copies, "logs"))
        self.write()


def run(folder, jobs, seconds, copies=None):
    """Whether all passed."""
    with open(os.path.join(folder, "tests.json"), encoding="utf-8") as file:
        tests = json.load(file)
    os.makedirs(os.path.join(folder, "logs"), exist_ok=True)
    results = Results(folder, len(tests), jobs, copies)
    end = results.begin + (seconds if seconds is not None else 1e9)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        names = {pool.submit(run_one, folder, test, end): test["name"] for test in tests}
        for done in concurrent.futures.as_completed(names):
            results.add(names[done], *done.result())
    print(results.last(), flush=True)
    return results.count("passed") == len(tests)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "run"))
    parser.add_argument("folder")
    parser.add_argument("--match", default=".")
    parser.add_argument("--leave-out", default="^$")
    parser.add_argument("--jobs", type=int, help="programs at once [as many as the GPU takes and there are processors, "
                        f"at most {MOST_AT_ONCE}]")
    parser.add_argument("--seconds", type=float, help="for all of them; what has not ended then is out of time")
    parser.add_argument("--copies", metavar="FOLDER", help="for a copy of tests.txt and of the logs, whenever one is "
                        "written")
    args = parser.parse_args(argv)
    if args.command == "list":
        tests = listed(args.folder, args.match, args.leave_out)
        with open(os.path.join(args.folder, "tests.json"), "w", encoding="utf-8") as file:
            json.dump(tests, file, indent=1)
        return 0 if tests else 1
    return 0 if run(args.folder, args.jobs or most_at_once(), args.seconds, args.copies) else 1


if __name__ == "__main__":
    sys.exit(main())

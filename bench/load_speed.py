#!/usr/bin/env python3
"""How long opening a model takes, beside reading its file once: from the disk (cold) and from memory (warm).

    load_speed.py LIBKVC.so MODEL.kvc [--rounds 7]

Before what is called cold the system is told to drop the file's pages (posix_fadvise), and the script ends with an
error where it did not. Each open is a process of its own, timed inside: kvc_model_open, which verifies everything, or
all but the bytes of weights ("trusted"), and then the first token of a prompt of one, which reads every weight. Every
round does all of it, another thing first each time; what a host of virtual machines keeps in memory cannot be
dropped. Printed are the median, the best and worst, and the median ratio to the plain reading of the same round."""

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time

BLOCK = 1 << 24


class ModelParams(ctypes.Structure):
    """kvc_model_params of include/kvc/kvc.h."""

    _fields_ = [("struct_size", ctypes.c_int32), ("n_threads", ctypes.c_int32), ("memory_limit", ctypes.c_int64),
                ("executor", ctypes.c_void_p), ("trusted", ctypes.c_int32), ("reserved", ctypes.c_int32)]  # fmt: skip


def opened(library, path, trusted):
    """Seconds until the model is open, and until the first token behind that. In this process."""
    kvc = ctypes.CDLL(library)
    kvc.kvc_last_error.restype = ctypes.c_char_p

    def check(status):
        if status != 0:
            raise SystemExit(kvc.kvc_last_error().decode())

    params = ModelParams(struct_size=ctypes.sizeof(ModelParams), trusted=trusted)
    model, session, token = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int32()
    begin = time.perf_counter()
    check(kvc.kvc_model_open(path.encode(), b"cpu", ctypes.byref(params), ctypes.byref(model)))
    open_seconds = time.perf_counter() - begin
    check(kvc.kvc_session_create(model, None, None, ctypes.byref(session)))
    one = (ctypes.c_int32 * 1)(1)
    begin = time.perf_counter()
    check(kvc.kvc_session_prefill(session, one, 1))
    check(kvc.kvc_session_step(session, ctypes.byref(token)))
    first_seconds = time.perf_counter() - begin
    kvc.kvc_session_close(session)
    kvc.kvc_model_close(model)
    return open_seconds, first_seconds


def resident(path):
    """The share of the file that lies in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = os.path.getsize(path)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
        view = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), pages)
        del view
        if failed:
            raise SystemExit(f"mincore: {os.strerror(ctypes.get_errno())}")
        return sum(page & 1 for page in pages) / len(pages)


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    left = resident(path)
    if left > 0.02:
        raise SystemExit(f"{path}: {100 * left:.0f} % of its pages stay in memory; another file system may drop them")


def read_once(path):
    buffer = bytearray(BLOCK)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def child(options, trusted):
    command = [sys.executable, os.path.abspath(__file__), options.library, options.model, "--once", str(trusted)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(options, turn):
    """{what: seconds} of one round; "... first token" is the open and the token behind it. turn: what comes first."""
    work = [(state, trusted) for state in ("cold", "warm") for trusted in (None, 0, 1)]
    out = {}
    for state, trusted in work[turn % len(work) :] + work[: turn % len(work)]:
        drop(options.model) if state == "cold" else read_once(options.model)
        if trusted is None:
            out[f"{state}, plain reading"] = read_once(options.model)
            continue
        name = "trusted" if trusted else "verified"
        open_seconds, first_seconds = child(options, trusted)
        out[f"{state}, open, {name}"] = open_seconds
        out[f"{state}, open and first token, {name}"] = open_seconds + first_seconds
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--once", type=int, choices=(0, 1), help=argparse.SUPPRESS)  # what a child does
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    if options.once is not None:
        print(json.dumps(opened(options.library, options.model, options.once)))
        return
    rounds = [measure(options, turn) for turn in range(options.rounds)]
    print(f"{os.path.getsize(options.model) / 1e6:.0f} MB, {options.rounds} rounds\n")
    print("| what | median ms | best, worst | times a plain reading |\n|---|---|---|---|")
    for what in sorted(rounds[0]):
        seconds = [1e3 * r[what] for r in rounds]
        ratio = statistics.median(r[what] / r[what.split(",")[0] + ", plain reading"] for r in rounds)
        middle = statistics.median(seconds)
        print(f"| {what} | {middle:.0f} | {min(seconds):.0f}, {max(seconds):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()

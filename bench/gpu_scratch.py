"""Models that are made for a run of ./dev gpu (bench/shape_model.cc), in a folder that is deleted behind it."""

import fcntl
import json
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import gpu_cells
import gpu_machine
import gpu_run

MEMORY = "/dev/shm"  # a folder of files in memory
PREFIX = "kvc-gpu-"  # of folders
BESIDE_FILES = 8 << 30  # of memory that files may take: what else wants some, where a quarter is more than that


def in_memory(folder):
    return os.path.realpath(folder).startswith(MEMORY)


def room(folder):
    """Bytes that a file there may take; files in memory take memory."""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return 0
    free = shutil.disk_usage(folder).free
    if not in_memory(folder):
        return free
    memory = gpu_machine.available()
    return free if memory is None else min(free, memory - min(memory // 4, BESIDE_FILES))


def hold(folder):
    """A handle by which others see that a process still uses the folder; None: another one does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def remove_left(parent):
    """What runs left there that were killed: files in memory would be missing all of this one."""
    for name in os.listdir(parent) if os.path.isdir(parent) else ():
        folder = os.path.join(parent, name)
        if not name.startswith(PREFIX) or not os.access(folder, os.R_OK | os.W_OK):
            continue
        handle = hold(folder)
        if handle is not None:
            print(f"removed {folder}, which a run before left", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


def folders(scratch, fallback):
    """Those that models may be made in."""
    return [scratch] if scratch else [MEMORY, fallback]


class Models:
    """Files of a scratch folder that are there when their turn comes: as many at once as have room; what else is needed
    takes the place of those that are needed last. In memory they are made together before any is measured, on a disk
    one after the other when their turns come, small ones first: one that is slow has none for the large ones."""

    def __init__(self, kvc, shapes, scratch, fallback, clock):
        self.program, self.clock = os.path.join(os.path.dirname(kvc), "shape_model"), clock
        self.all, self.left_out, self.folder, self.there = [], [], None, []
        self.errors, self.rate = {}, None  # by path, of those that could not be made; bytes per second of the last one
        if not shapes:
            return
        self.all = self.asked(shapes)
        for parent in folders(scratch, fallback):
            remove_left(parent)
        largest = max(model.n_bytes for model in self.all)
        scratch = scratch or (MEMORY if room(MEMORY) > largest + (2 << 30) else fallback)
        self.folder = tempfile.mkdtemp(prefix=PREFIX, dir=scratch)
        self.held = hold(self.folder)
        for model in self.all:
            model.path = os.path.join(self.folder, model.path)
        if not in_memory(self.folder):
            self.all.sort(key=lambda model: model.n_bytes)

    def asked(self, shapes):
        listed, error = gpu_run.run([self.program, "--list"], 60)
        if error is not None:
            raise ValueError(error)
        known, found = json.loads(listed), []
        for name in shapes:
            shape, _, weights = name.partition(":")
            if weights not in known.get(shape, {"weight_bytes": {}})["weight_bytes"]:
                raise ValueError(f"no shape '{name}': one of {', '.join(known)}, and bf16, int8, int4 or q4_k "
                                 "behind a colon")
            config = known[shape]
            found.append(gpu_cells.Model(f"{shape}-{weights}.kvc", config["weight_bytes"][weights], shape, weights, {
                "config": {"n_layers": config["layers"], "hidden_size": config["hidden"],
                           "n_heads": config["heads"], "n_kv_heads": config["kv_heads"],
                           "head_dim": config["head_size"], "ffn_size": config["feed_forward"],
                           "max_tokens": config["context"]},
                "tensors": [{"role": "gate", "type": weights}]}))
        return found

    def leave_out_larger_than(self, n_bytes):
        for model in [m for m in self.all if m.n_bytes + gpu_cells.BESIDE_WEIGHTS > n_bytes]:
            self.left_out.append(f"{model.name[:-4]}: no room for it in {n_bytes / 2**30:.1f} GiB of the device")
            self.all.remove(model)

    def fits(self, model):
        return room(self.folder) > model.n_bytes + (1 << 28)

    def make(self, model):
        """What went wrong, or None. None has more than half of the time; one that would take more at the rate of the
        last one is not begun."""
        seconds = None if self.clock.end is None else max(1, self.clock.left() / 2)
        if seconds is not None and self.rate is not None and model.n_bytes / self.rate > seconds:
            return f"not made: it would take {model.n_bytes / self.rate:.0f} s: out of time"
        begin = time.monotonic()
        done = gpu_run.finished([self.program, model.shape, model.weights, model.path], seconds)
        if done.code is None:
            for name in os.listdir(self.folder):  # what it had written (lib/base/atomic_file.cc)
                if name.startswith(f".kvc-{done.pid}-"):
                    os.remove(os.path.join(self.folder, name))
            return f"not made in {seconds:.0f} s: out of time"
        if done.code != 0:
            return gpu_run.last_word(done.code, done.said)
        self.rate = model.n_bytes / max(time.monotonic() - begin, 1e-3)
        return None

    def try_to_make(self, model):
        """Once: what went wrong is so again later, and takes the time of others."""
        if model.path not in self.errors:
            error = self.make(model)
            if error is None:
                self.there.append(model)
                return None
            self.errors[model.path] = error
        return self.errors[model.path]

    def make_first(self):
        """Of files in memory all that have room together, several at a time."""
        if self.folder is None or not in_memory(self.folder):
            return
        taken, together = 0, []
        for model in self.all:
            if room(self.folder) > taken + model.n_bytes + (1 << 28):
                together.append(model)
                taken += model.n_bytes
        with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
            list(pool.map(self.try_to_make, together))

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
        return self.try_to_make(model)

    def drop(self, model):
        if model in self.there:
            self.there.remove(model)
            os.remove(model.path)

    def close(self):
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.held is not None:
                os.close(self.held)
                self.held = None

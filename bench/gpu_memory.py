"""What a CUDA device holds while a prompt is read, by nvidia-smi: for T18."""

import subprocess
import time

import gpu_run
import gpu_smi
import gpu_targets


def bytes_of(device, which):
    """Bytes of a GPU, "used" by all programs (in containers nvidia-smi shows no single ones) or in "total". None where
    it does not say."""
    mebibytes = gpu_smi.number(gpu_smi.query(device, [f"memory.{which}"]).get(f"memory.{which}", ""))
    return None if mebibytes is None else int(mebibytes) << 20


def peak(command, device, seconds, interval=1.0):
    """What the device holds more while a command runs, at most; None where that cannot be said: it did not end within
    these seconds, for one."""
    before = bytes_of(device, "used")
    if before is None:
        return None
    most, end = before, time.monotonic() + seconds
    # pylint: disable=consider-using-with
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while running.poll() is None and time.monotonic() < end:
            most = max(most, bytes_of(device, "used") or 0)
            time.sleep(interval)
    finally:
        code = running.poll()
        if code is None:
            gpu_run.end(running)
    return most - before if code == 0 else None


def add(args, unit, cell, clock):
    """To a cell that T18 speaks of, the memory that its prompt takes, where there is time to ask; whether it is there
    now. In a run of its own, where no other process of ours is on the device: asking takes time from steps."""
    wanted = ("8B", "bf16", gpu_targets.BUDGET, gpu_targets.LONG)
    if (cell["shape"], cell["weights"], cell["policy"], cell["prompt"]) != wanted or "error" in cell["result"]:
        return False
    expected = clock.estimate(unit, cell["prompt"], 1, True)
    if not gpu_smi.is_cuda(args.device) or clock.left() < expected:
        return False
    most = peak([args.kvc, "bench", unit.model.path, "--device", args.device, "--trusted", "--policy", cell["policy"],
                 "--prompt", str(cell["prompt"]), "--gen", "1", "--repeat", "1", "--json"],
                args.device, clock.most(expected))
    if most is not None:
        cell["result"]["device_bytes_peak"] = most
    return most is not None


def device_bytes(device):
    """Memory of a GPU; of what is none, no limit."""
    return bytes_of(device, "total") or 1 << 62

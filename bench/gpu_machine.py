"""What there is on the machine that a run of ./dev gpu found itself on: where it is short of something, the report says
so in front of what was measured."""

import json
import os
import shutil

import gpu_run
import gpu_smi

FIELDS = ("name", "driver_version", "memory.total", "memory.used", "compute_mode")
ASK_PYTHON = """import importlib.metadata, importlib.util, json, sys
torch = importlib.util.find_spec("torch") and "of no version"
try:
    torch = torch and importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    pass
print(json.dumps([sys.executable, sys.version.split()[0], torch]))"""


def available():
    """Bytes of memory that programs may still take, or None."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")), None)
    except OSError:
        return None


def python(name):
    """"python3 is /usr/bin/python3 3.11.2, without PyTorch"."""
    out, error = gpu_run.run([name, "-c", ASK_PYTHON], 60)
    if error is not None:
        return f"{name} does not start: {error}"
    path, version, torch = json.loads(out.splitlines()[-1])  # sites may greet
    return f"{name} is {path} {version}, {f'with PyTorch {torch}' if torch else 'without PyTorch'}"


def found(device, name_of_python, folders):
    """Lines for people."""
    lines = []
    if gpu_smi.is_cuda(device):
        asked, values = gpu_smi.asked(device, FIELDS)
        lines.append(f"nvidia-smi --id={asked}: {', '.join(values.values())}" if values else
                     "nvidia-smi says nothing of the GPU, by its place or by its number "
                     f"({' and '.join(gpu_smi.names_of(device))}): there are no clocks, and no memory for T18")
    memory = available()
    lines.append(f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} processors"
                 + ("" if memory is None else f", {memory / 2**30:.1f} GiB of memory available"))
    for folder in folders:
        if os.path.isdir(folder):
            lines.append(f"{folder}: {shutil.disk_usage(folder).free / 2**30:.1f} GiB free")
    return lines + [python(name_of_python)]

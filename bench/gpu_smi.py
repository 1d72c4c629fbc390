"""What nvidia-smi says of the GPU that is a CUDA device, where there is an nvidia-smi. The other scripts of ./dev gpu
ask through it."""
import ctypes
import statistics
import subprocess
import threading

import gpu_run

LONGEST = 20  # seconds for an answer
AT_WORK = 50  # percent of the time in which kernels run
SAMPLED = ("clocks.sm", "clocks.mem", "power.draw")
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # as newer and older drivers call them
HOLDING_DOWN = {0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
                0x20: "temperature (software)", 0x40: "temperature (hardware)", 0x80: "power brake",
                0x100: "display clocks"}


def is_cuda(device):
    return device.partition(":")[0] == "cuda"


def place_of(device):
    """What nvidia-smi knows the GPU by that CUDA calls "cuda:N": CUDA counts what CUDA_VISIBLE_DEVICES leaves, the
    fastest first, nvidia-smi all of them by their places on the bus. N where the driver cannot be asked."""
    number = int(device.partition(":")[2] or 0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        handle, place = ctypes.c_int(), ctypes.create_string_buffer(32)
        if (driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(handle), number) == 0
                and driver.cuDeviceGetPCIBusId(place, len(place), handle) == 0):
            return place.value.decode("ascii")
    except (OSError, AttributeError):
        pass
    return str(number)


def names_of(device):
    """What to ask for: its place; where nvidia-smi does not know that, as in some virtual machines, its number."""
    return list(dict.fromkeys([place_of(device), device.partition(":")[2] or "0"]))


def command(name, fields):
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", f"--id={name}"]


def named(fields, line):
    """{field: text} of a line of values."""
    values = [value.strip() for value in line.split(",")]
    return dict(zip(fields, values)) if len(values) == len(fields) else {}


def asked(device, fields):
    """(the name by which nvidia-smi knows it, {field: text}); (None, {}) where nvidia-smi is not there, or does not
    know one of the fields, or it is no GPU."""
    for name in names_of(device) if is_cuda(device) else ():
        out, error = gpu_run.run(command(name, fields), LONGEST)
        values = named(fields, out.strip()) if error is None else {}
        if values:
            return name, values
    return None, {}


def query(device, fields):
    return asked(device, fields)[1]


def number(text):
    """"1980 MHz" as a number; None for what is none, as "[N/A]"."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return None


def reasons_in(text):
    """What holds clocks down, by name."""
    try:
        bits = int(text, 16)
    except ValueError:
        return []
    return [name for bit, name in HOLDING_DOWN.items() if bits & bit]


def at_work(samples):
    """Of those in which kernels ran most of the time: {field: its median and least, "samples": how many they are,
    "held_down": {reason: its share of them}}; None without any."""
    busy = [sample for sample in samples if number(sample["utilization.gpu"]) is None
            or number(sample["utilization.gpu"]) >= AT_WORK]
    if not busy:
        return None
    found = {"samples": len(busy), "held_down": {}}
    for field in SAMPLED:
        values = [value for value in (number(sample[field]) for sample in busy) if value is not None]
        if values:
            found[field] = {"median": statistics.median(values), "least": min(values)}
    for reasons in (reasons_in(sample.get("reasons", "")) for sample in busy):
        for reason in reasons:
            found["held_down"][reason] = found["held_down"].get(reason, 0) + 1 / len(busy)
    return found


def shown(found):
    """For people: "clocks.sm 1980 (least 1755), ... of 20 samples; power cap in 25 %"."""
    fields = ", ".join(f"{field} {found[field]['median']:.0f} (least {found[field]['least']:.0f})"
                       for field in SAMPLED if field in found)
    held = "".join(f"; held down by {reason} in {100 * share:.0f} %" for reason, share in found["held_down"].items())
    return f"{fields}, of {found['samples']} samples{held}"


class Watch:
    """Samples of a CUDA device, one a second, by one nvidia-smi that goes on: each start of one would take time from
    what is measured. There are none where there is no nvidia-smi."""

    def __init__(self, device, interval_ms=1000):
        self.samples, self.taken, self.program = [], 0, None
        usual = (*SAMPLED, "utilization.gpu")
        for fields in (*((*usual, reasons) for reasons in REASONS), usual):
            name, _ = asked(device, fields)
            if name is not None:
                self.start(command(name, fields) + [f"--loop-ms={interval_ms}"], (*usual, "reasons")[:len(fields)])
                break

    def start(self, words, names):
        # pylint: disable=consider-using-with
        self.program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.reader = threading.Thread(target=self.read, args=(names,), daemon=True)
        self.reader.start()

    def read(self, names):
        for line in self.program.stdout:
            self.samples += [sample for sample in [named(names, line)] if sample]

    def take(self):
        """at_work() since this was asked for last."""
        first, self.taken = self.taken, len(self.samples)
        return at_work(self.samples[first:self.taken])

    def close(self):
        if self.program is not None:
            if gpu_run.end(self.program):
                self.reader.join()
                self.program.stdout.close()

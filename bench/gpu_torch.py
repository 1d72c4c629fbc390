"""PyTorch on a device: sizes, the time of calls, attention of ragged heads in the forms that are there. What
bench/gpu_peers.py measures with."""
import contextlib
import copy
import dataclasses
import inspect
import statistics
import time
from typing import Callable

RAGGED = (4, 2, 1, 0.5, 0.25, 0.125, 0.0625, 0.0625)  # heads' lengths in times of their mean: bench/device_steps.cc
BEYOND_CACHES = 256 << 20  # bytes: what is measured comes by as much before it sees the same again
WARM, MOST, LEAST, SECONDS = 20, 50, 5, 3.0  # calls before, calls at most and least, about how long
CLOSE = 0.03  # of two ways to the same bf16 numbers


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model, and of what is measured with it. Names of peers have these numbers in them."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    budget: int  # entries a head that steps have
    depth: int  # the position steps are at
    ragged: int  # entries a head of ragged attention, on the mean
    uniform: int  # entries of every head where they are alike
    prompt: int  # tokens that attend to each other
    compressed: int  # tokens of which `budget` a head stay
    appended: int  # entries a head of flat caches that grow, on the mean
    product: int  # rows and columns of the largest product
    selected: int  # scores of a head of which the best `budget` are chosen

    @property
    def group(self):
        return self.heads // self.kv_heads


LARGE = Sizes("8B", 32, 4096, 14336, 32, 8, 128, 128256, 1024, 32768, 8192, 32768, 16384, 8192, 4096, 8192, 131072)
SMALL = Sizes("small", 2, 128, 256, 32, 8, 16, 512, 64, 256, 128, 256, 64, 256, 64, 64, 512)
# Of a second model, for its steps.
SMALLER = {
    LARGE: dataclasses.replace(LARGE, name="1B", layers=16, hidden=2048, ffn=8192, head_dim=64),
    SMALL: dataclasses.replace(SMALL, name="smaller", hidden=64, ffn=128),
}


@dataclasses.dataclass(frozen=True)
class Timed:
    """The median and deciles of n measurements, and what was measured, for people."""

    seconds: float
    seconds_p10: float
    seconds_p90: float
    n: int
    what: str
    flops: float = 0  # of products


class Bench:
    """PyTorch, a device, and the time of calls on it."""

    def __init__(self, torch, device, small):
        self.torch, self.device, self.sizes = torch, torch.device(device), SMALL if small else LARGE
        self.small, self.cuda = small, self.device.type == "cuda"
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(1)

    def of_smaller(self):
        """The same, with the sizes of the second model."""
        other = copy.copy(self)
        other.sizes = SMALLER[self.sizes]
        return other

    def normal(self, *shape, scale=1.0):
        """Random numbers as networks have them, bf16."""
        made = self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.device)
        return made.normal_(0, scale, generator=self.generator)

    def integers(self, values, dtype=None):
        return self.torch.tensor(values, dtype=dtype or self.torch.int32, device=self.device)

    def copies(self, n_bytes):
        """So many of something that all of them lie in no cache."""
        return 2 if self.small else BEYOND_CACHES // n_bytes + 1

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def seconds(self, call, n):
        """Of n calls: on a GPU between two events in its stream, where it waits for the host too. What is launched by
        one call lines up behind the call before, unless the host waits in it."""
        if not self.cuda:
            times = [time.perf_counter()]
            for _ in range(n):
                call()
                times.append(time.perf_counter())
            return [end - begin for begin, end in zip(times, times[1:])]
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
        for begin, end in events:
            begin.record()
            call()
            end.record()
        self.wait()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    def timed(self, call, what, parts=1):
        """Of one of the `parts` that a call consists of."""
        call()
        self.wait()
        about = self.seconds(call, 1)[0]
        warm, most, least = (1, 3, 3) if self.small else (WARM, MOST, LEAST)
        n = max(least, min(most, int(SECONDS / max(about, 1e-9))))
        self.seconds(call, min(warm, n))
        took = sorted(seconds / parts for seconds in self.seconds(call, n))
        tenth = (n + 4) // 10  # of the measurements themselves, as bench/clock.h has them
        return Timed(statistics.median(took), took[tenth], took[-1 - tenth], n, what)

    def graphed(self, call):
        """(what runs the call's kernels as one graph, "one CUDA graph"), or the call itself and why it is none."""
        if not self.cuda:
            return call, "one by one"
        torch, side = self.torch, self.torch.cuda.Stream()
        try:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
        except RuntimeError as error:
            torch.cuda.synchronize()
            return call, f"launched one by one, no CUDA graph ({first_line(error)})"
        return graph.replay, "one CUDA graph"


def first_line(error):
    said = str(error).strip().splitlines()
    return (said[0] if said else type(error).__name__)[:200]


# ---- attention of ragged heads: a KV head is a sequence, its query heads are those of one token ----


@dataclasses.dataclass(frozen=True)
class Form:
    """attend(q [Hk, g, D], k [n, 1, D], v, ends [Hk + 1], lengths) -> [Hk, g, D]. ends: where sequences begin and end
    in k and v, on the device; lengths: of the sequences, on the host."""

    name: str
    attend: Callable


def head_by_head(bench):
    """What the others are checked against, and all that a processor has."""
    sdpa = bench.torch.nn.functional.scaled_dot_product_attention

    def attend(q, k, v, ends, lengths):
        at, out = 0, []
        for head, n in enumerate(lengths):
            keys, values = (x[at : at + n].transpose(0, 1) for x in (k, v))  # [1, n, D]
            out.append(sdpa(q[head : head + 1], keys, values))
            at += n
        return bench.torch.cat(out)

    return Form("SDPA of one head after the other", attend)


def as_heads(bench, varlen):
    """A sequence's query heads are heads of its one query."""
    firsts = bench.integers(range(bench.sizes.kv_heads + 1))
    return lambda q, k, v, ends, lengths: varlen(q, k, v, firsts, ends, 1, max(lengths))


def as_rows(bench, varlen):
    """A sequence's query heads are queries of one head: none is causal, so that it is the same."""
    group = bench.sizes.group
    firsts = bench.integers(range(0, bench.sizes.heads + 1, group))

    def attend(q, k, v, ends, lengths):
        rows = q.reshape(-1, 1, q.shape[-1])
        return varlen(rows, k, v, firsts, ends, group, max(lengths)).view(q.shape)

    return attend


def varlen_functions(torch):
    """(name, function(q, k, v, ends of q, ends of k, most of q, most of k)) of those that this Python has."""
    with contextlib.suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        grouped = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
        yield "varlen_attn", lambda *args: varlen_attn(*args, **grouped)
    with contextlib.suppress(ImportError):
        from flash_attn import flash_attn_varlen_func

        yield "flash_attn_varlen_func of flash-attn", flash_attn_varlen_func
    # What jagged nested tensors come to, and varlen_attn where it is not named yet.
    if hasattr(torch.ops.aten, "_flash_attention_forward"):
        flash = torch.ops.aten._flash_attention_forward
        yield "PyTorch's own flash attention of sequences", lambda *args: flash(*args, 0.0, False, False)[0]


def forms(bench):
    """Those that run here and agree with attention head by head; and what the others said. On a processor, where none
    does, that alone."""
    plain, good, said = head_by_head(bench), [], []
    lengths = [3 + 2 * head for head in range(bench.sizes.kv_heads)]
    q, k, v, ends = flat(bench, lengths)
    wanted = plain.attend(q, k, v, ends, lengths).float()
    for name, varlen in varlen_functions(bench.torch):
        for kind, make in (("query heads as heads", as_heads), ("query heads as rows", as_rows)):
            form = Form(f"{name}, {kind}", make(bench, varlen))
            try:
                off = (form.attend(q, k, v, ends, lengths).float() - wanted).abs().max().item()
            except Exception as error:  # noqa: BLE001  what a library cannot do here
                said.append(f"{form.name}: {first_line(error)[:80]}")
                continue
            if off < CLOSE:
                good.append(form)
            else:
                said.append(f"{form.name}: {off:.3g} from plain attention")
    if bench.cuda and not good:
        raise RuntimeError(f"no attention of sequences of any length runs here: {'; '.join(said)}")
    return good or [plain], said


def ends_of(bench, lengths):
    sums = [0]
    for n in lengths:
        sums.append(sums[-1] + n)
    return bench.integers(sums)


def flat(bench, lengths):
    """(q, k, v, ends) as a Form takes them."""
    s = bench.sizes
    q = bench.normal(s.kv_heads, s.group, s.head_dim)
    k, v = (bench.normal(sum(lengths), 1, s.head_dim) for _ in range(2))
    return q, k, v, ends_of(bench, lengths)


def ragged_lengths(mean, turn=0):
    """Of the heads of a layer; another one is the longest in every layer."""
    return [int(mean * RAGGED[(head - turn) % len(RAGGED)]) for head in range(len(RAGGED))]

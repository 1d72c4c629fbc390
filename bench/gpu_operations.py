"""Single operations of the device (bench/device_bench.cc): a process for each few of them, with a limit of its own, so
that one that fails or hangs takes no others along."""

import os

import gpu_run

# Parts of names. What targets are judged by, in the order of how many they are; and the rest.
JUDGED = (("attend 1 of ",), ("attend 2 of ", "attend 16 of "), ("compress ",), ("attend prompt ",), ("fold columns ",),
          ("select ",), ("product ",))
REST = (("layer bf16", "finish bf16", "logits bf16"), ("layer int", "finish int", "logits int"),
        ("layer q", "finish q", "logits q"), ("store ", "load ", "step "), ("pages ", "sample ", "score ", "reading"))
LEAST = 10  # seconds that are worth a start
SHARE, LEAST_LIMIT, LIMIT = 0.25, 30, 900  # of the time that is left; seconds; without an end of the time


def limit(clock):
    """Seconds for a few of them: those behind are to have a turn."""
    if clock.end is None:
        return LIMIT
    return min(clock.left(), max(LEAST_LIMIT, SHARE * clock.left()))


def told(failures):
    """["attend 1 of, compress: why"], or None."""
    words = {}
    for parts, error in failures:
        words.setdefault(error, []).extend(part.strip() for part in parts)
    return "; ".join(f"{', '.join(parts)}: {error}" for error, parts in words.items()) or None


def reasons(log, error):
    """All that failed in one process, which says each; error: its last word, or that it was stopped."""
    found = [line for line in log if line.startswith("device_bench: ")]
    return "; ".join(line.removeprefix("device_bench: ") for line in dict.fromkeys(found + [error]))


def measure(args, clock, groups, report, save):
    """Adds to the report what they take, {operation, seconds, flops, bytes, read_bytes_per_second}, each operation
    once; why some have nothing to say; and who multiplied in them. The number of failures."""
    program, failures = os.path.join(os.path.dirname(args.kvc), "device_bench"), []

    def keep(row):
        if all(row["operation"] != other["operation"] for other in report["operations"]):
            report["operations"].append(row)

    for parts in groups:
        if clock.left() < LEAST:
            failures.append((parts, "out of time"))
            continue
        log = []
        _, error = gpu_run.lines_of([program, "--device", args.device, "--json", *(["--small"] if args.small else []),
                                     *parts], limit(clock), log, keep)
        if error is not None:
            failures.append((parts, clock.blamed(reasons(log, error))))
        said = report["products"].split("; ") + [line for line in log if "cuBLASLt" in line]
        report["products"] = "; ".join(dict.fromkeys(line for line in said if line))
        save()
    if failures:
        report["operations_error"] = "; ".join(filter(None, [report["operations_error"], told(failures)]))
        save()
    return sum("out of time" not in error for _, error in failures)

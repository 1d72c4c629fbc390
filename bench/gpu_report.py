"""What a run of bench/gpu.py has measured, as a document and for people."""

import json
import os

import gpu_ladder
import gpu_model
import gpu_run
import gpu_smi
import gpu_targets
import gpu_times


def micro(row):
    """The median and the deciles of a time."""
    took = gpu_times.of_row(row)
    return f"{took.median * 1e6:.1f} | {took.p10 * 1e6:.1f} to {took.p90 * 1e6:.1f}"


def peer_rows(report):
    rows, error = report.get("peers", []), report.get("peers_error")
    lines = ["", f"PyTorch was {'cut off' if rows else 'not measured'}: {error}"] if error else []
    lines += ["", f"| {rows[0]['library']} | us | p10 to p90 | of | what |", "|---|---|---|---|---|"] if rows else []
    for row in rows:
        took = f"{micro(row)} | {row['n']} | {row['what']}" if "seconds" in row else f"{row['error']} | | |"
        lines.append(f"| {row['peer']} | {took} |")
    return lines


def operation_rows(report):
    rows, error = report.get("operations", []), report.get("operations_error")
    lines = ["", f"Single operations were {'cut off' if rows else 'not measured'}: {error}"] if error else []
    if rows:
        lines += ["", "| operation | us | p10 to p90 | TFLOP/s | GB/s | of what is read | host us |",
                  "|---|---|---|---|---|---|---|"]
    for row in rows:
        seconds, rate = row["seconds"], row["bytes"] / row["seconds"]
        host = f" {row['host_seconds'] * 1e6:.1f} |" if "host_seconds" in row else " |"
        lines.append(f"| {row['operation']} | {micro(row)} | {row['flops'] / seconds / 1e12:.2f} | "
                     f"{rate / 1e9:.1f} | {100 * rate / row['read_bytes_per_second']:.1f} % |{host}")
    return lines


def beside_predicted(rate, predicted):
    """Where there is a prediction (docs/cuda.md), how far from it; 10 % are to be explained."""
    return "" if predicted is None else f"{predicted:.0f}, {100 * (rate / predicted - 1):+.0f} %"


def cell_row(cell, peak, device):
    """The line of a cell, beside what the run reached in products and what was predicted of the device."""
    head, got = f"| {cell['model']} | {cell['policy']} | {cell['prompt']} | ", cell["result"]
    if "error" in got:
        return head + f"{got['error']} | | | | | | |"
    share = gpu_targets.share_of_peak(cell, peak)
    prompts, steps = got["prefill_tokens_per_second"], got["decode_tokens_per_second"]
    most = gpu_targets.BUDGET_ENTRIES if cell["policy"] == gpu_targets.BUDGET else cell["prompt"]
    entries = min(cell["prompt"], most)
    predicted = gpu_model.predicted(device["description"], cell["shape"], cell["weights"], cell["prompt"], entries)
    return (head + f"{prompts:.0f} | {beside_predicted(prompts, predicted.prompt)} | "
            f"{'' if share is None else f'{100 * share:.1f} %'} | "
            f"{100 * got['compress_seconds'] / got['first_token_seconds']:.2f} % | "
            f"{steps:.1f} | {beside_predicted(steps, predicted.steps)} | {100 * got['bandwidth_fraction']:.1f} % |")


def table(report):
    """The report for people."""
    device = report["device"]
    lines = [f"# {device['description']}", "", *(f"* {line}" for line in report.get("machine", ())), "",
             f"Commit {report['commit']}; a large copy moves "
             f"{device['bytes_per_second'] / 1e9:.1f} GB/s, both ways counted."]
    for when in ("before", "after"):
        if report["clocks"].get(when):
            numbers = ", ".join(f"{key} {value}" for key, value in report["clocks"][when].items())
            lines.append(f"{when.capitalize()}: {numbers}.")
    if report["clocks"].get("at_work"):
        lines.append(f"At work: {gpu_smi.shown(report['clocks']['at_work'])}.")
    peak = report.get("peak")
    if peak:
        lines.append(f"Products reach {peak['flops_per_second'] / 1e12:.3g} TFLOP/s ({peak['of']}).")
    if report.get("products"):
        lines.append(f"Log of the single operations: {report['products']}.")
    if report.get("switches"):
        lines.append("With " + ", ".join(f"{name}={value}" for name, value in sorted(report["switches"].items())) + ".")
    if report.get("left_out"):
        lines += ["", "Left out: " + "; ".join(report["left_out"]) + "."]
    for what, key in (("Killed, and still there", "left_behind"), ("Failed", "failures")):
        if report.get(key):
            lines += ["", f"{what}: " + "; ".join(report[key]) + "."]
    lines += ["", "| model | policy | prompt | prompt tokens/s | predicted | of the products | compression | "
              "steps tokens/s | predicted | of the copies |", "|---|---|---|---|---|---|---|---|---|---|"]
    lines += [cell_row(cell, peak, device) for cell in report["cells"]]
    lines += ["", "| target | what | wanted | value | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {row['id']} | {row['what']} | {row['target']} | {row['value']} | {row['verdict']} |"
              for row in report["targets"]]
    lines += gpu_ladder.table_rows(report.get("ladder")) + operation_rows(report) + peer_rows(report)
    return "\n".join(lines) + "\n"


def write(report, path, copies=None):
    report["peak"], report["left_behind"] = gpu_targets.peak(report), list(gpu_run.left_behind)
    report["targets"] = gpu_targets.judge({"operations": []} | report)
    gpu_run.write_whole(path, json.dumps(report, indent=1), copies)
    gpu_run.write_whole(os.path.splitext(path)[0] + ".md", table(report), copies)

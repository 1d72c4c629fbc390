#!/usr/bin/env python3
"""What tests or benchmarks did in the kernels' PTX, of files that KVC_EMU_PTX_RAN=FOLDER had them write: how much of it
has run, and how well kernels use the memory.

Of device memory sectors of 32 bytes are counted, of shared memory wavefronts (a word of four bytes from each of 32
banks), warp by warp: as many as there were over as many as the bytes would fill, each counted once for its warp. Issued
are instructions of PTX; the GPU's own are some more or fewer. With sources (nvcc -lineinfo) --lines names the places
that cost most."""
import argparse
import collections
import os
import re

# Kinds of instructions by the beginnings of their names, the first that fits.
KINDS = [("matrix", r"mma"), ("global", r"(ld|st|atom)\.global|(ld|st)\.(cs|nc|v\d|[usbf]\d)|cp\.async\.c"),
         ("shared", r"(ld|st|atom)\.shared|ldmatrix"), ("lanes", r"shfl|vote"), ("barrier", r"bar"),
         ("jump", r"bra|ret"),
         ("float", r"(add|sub|mul|fma|min|max|div|rcp|sqrt|ex2|abs|neg|setp|selp)\.[a-z.]*f(32|64)"),
         ("convert", r"cvt")]
Work = collections.namedtuple("Work", "issued lanes sectors least_sectors wavefronts least_wavefronts")


def read(folder):
    """By kernel and length of its code: [launches, blocks], [(name, source, line)], [[Work's numbers]]."""
    kernels = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as text:
            for part in text.read().split("kernel ")[1:]:
                head, *lines = part.strip().split("\n")
                mangled, launches, blocks = head.split()
                places, works = [], []
                for line in lines:
                    fields = line.split()
                    places.append((fields[0], " ".join(fields[1:-7]), int(fields[-7])))
                    works.append([int(x) for x in fields[-6:]])
                counts, _, sums = kernels.setdefault((mangled, len(lines)), ([0, 0], places, [[0] * 6 for _ in lines]))
                counts[0] += int(launches)
                counts[1] += int(blocks)
                for total, work in zip(sums, works):
                    for i in range(6):
                        total[i] += work[i]
    return kernels


def short(mangled):
    """The function and what it is made for, of a mangled name."""
    names = re.findall(r"(\d+)_GLOBAL__N_", mangled)
    rest = mangled
    if names:
        at = mangled.index("_GLOBAL__N_")
        rest = mangled[at + int(names[0]):]
    length = re.match(r"\d+", rest)
    if not length:
        return mangled
    start = length.end()
    name, rest = rest[start:start + int(length.group())], rest[start + int(length.group()):]
    if not rest.startswith("I"):
        return name
    arguments = rest[1:rest.index("EEv")] if "EEv" in rest else ""
    values = re.findall(r"L[a-z]*[A-Za-z0-9_]*?(\d+)E", arguments + "E")
    return f"{name}<{','.join(values)}>"


def kind_of(name):
    return next((kind for kind, pattern in KINDS if re.match(pattern, name)), "other")


def ratio(touched, least):
    return f"{touched / least:.2f}" if least else "-"


def print_kernels(kernels):
    columns = ["matrix", "float", "convert", "lanes", "global", "shared", "barrier", "jump", "other"]
    print("| kernel | launches | blocks | issued | " + " | ".join(columns) +
          " | sectors | over least | wavefronts | over least |")
    print("|" + "---|" * (len(columns) + 8))
    rows = []
    for (mangled, _), (counts, places, works) in kernels.items():
        total = Work(*[sum(w[i] for w in works) for i in range(6)])
        kinds = collections.Counter()
        for place, work in zip(places, works):
            kinds[kind_of(place[0])] += work[0]
        rows.append((total.issued, f"| {short(mangled)} | {counts[0]} | {counts[1]} | {total.issued} | " +
                     " | ".join(f"{100 * kinds[c] / max(total.issued, 1):.0f} %" for c in columns) +
                     f" | {total.sectors} | {ratio(total.sectors, total.least_sectors)} | {total.wavefronts} | "
                     f"{ratio(total.wavefronts, total.least_wavefronts)} |"))
    for _, row in sorted(rows, reverse=True):
        print(row)


def print_lines(kernels, n, only):
    """Places by what they cost beyond the least, in sectors and in wavefronts, and by what was issued."""
    for title, cost in [("sectors beyond the least", lambda w: w[2] - w[3]),
                        ("wavefronts beyond the least", lambda w: w[4] - w[5]), ("issued", lambda w: w[0])]:
        sums = collections.Counter()
        of = {}
        for (mangled, _), (_, places, works) in kernels.items():
            if not re.search(only, short(mangled)):
                continue
            for place, work in zip(places, works):
                key = (short(mangled), place[1], place[2])
                sums[key] += cost(work)
                of.setdefault(key, [0] * 6)
                of[key] = [a + b for a, b in zip(of[key], work)]
        print(f"\n{title}:")
        for key, value in sums.most_common(n):
            if value > 0:
                w = of[key]
                print(f"{value:12d}  {key[0]}  {key[1]}:{key[2]}  issued {w[0]}, sectors {w[2]} of {w[3]}, "
                      f"wavefronts {w[4]} of {w[5]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--kernels", action="store_true", help="a table of what each kernel did")
    parser.add_argument("--lines", type=int, default=0, metavar="N", help="the N places that cost most")
    parser.add_argument("--only", default="", metavar="PATTERN", help="of kernels with such names")
    parser.add_argument("--missing", action="store_true", help="kernels by how much of them has not run")
    options = parser.parse_args()
    kernels = {key: value for key, value in read(options.folder).items() if re.search(options.only, short(key[0]))}
    if not kernels:
        print("no kernel has run")
        return
    if options.kernels:
        print_kernels(kernels)
    if options.lines:
        print_lines(kernels, options.lines, options.only)
    missing = {key: sum(work[0] == 0 for work in value[2]) for key, value in kernels.items()}
    if options.missing:
        for key in sorted(kernels, key=lambda k: -missing[k]):
            print(f"{missing[key]:7d} of {key[1]:6d}  {short(key[0])}")
    total = sum(key[1] for key in kernels)
    print(f"{total - sum(missing.values())} of {total} instructions of {len(kernels)} kernels have run "
          f"({100 * (total - sum(missing.values())) / total:.1f} %)")


if __name__ == "__main__":
    main()

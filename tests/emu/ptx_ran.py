#!/usr/bin/env python3
"""How much of the kernels' PTX tests have run. Usage: ptx_ran.py FOLDER [--kernels]: of files that
KVC_EMU_PTX_RAN=FOLDER had tests write; --kernels: a line for each kernel too, those with the most that was not run
first."""
import os
import sys


def main():
    folder = sys.argv[1]
    ran = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="ascii") as lines:
            for line in lines:
                kernel, _, digits = line.split()
                key = (kernel, len(digits))  # of other compute capabilities: another text
                ran[key] = ran.get(key, 0) | int(digits, 2)
    if not ran:
        print("no kernel has run")
        return
    rows = sorted(((n - bin(bits).count("1"), n, kernel) for (kernel, n), bits in ran.items()), reverse=True)
    if "--kernels" in sys.argv[2:]:
        for missing, n, kernel in rows:
            print(f"{n - missing:7d} of {n:6d}  {kernel}")
    total, missing = sum(row[1] for row in rows), sum(row[0] for row in rows)
    print(f"{total - missing} of {total} instructions of {len(rows)} kernels have run "
          f"({100 * (total - missing) / total:.1f} %); of {sum(row[0] == row[1] for row in rows)} kernels none")


if __name__ == "__main__":
    main()

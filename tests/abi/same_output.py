#!/usr/bin/env python3
"""Two programs with the same arguments print the same. Usage: same_output.py PROGRAM PROGRAM [ARGUMENT]..."""
import subprocess
import sys


def main():
    outputs = []
    for program in sys.argv[1:3]:
        done = subprocess.run([program, *sys.argv[3:]], capture_output=True, text=True, check=False)
        if done.returncode != 0 or not done.stdout.strip():
            sys.exit(f"{program} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
        outputs.append(done.stdout)
    if outputs[0] != outputs[1]:
        sys.exit(f"different:\n{outputs[0]}\nand\n{outputs[1]}")
    print(outputs[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())

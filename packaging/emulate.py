"""How programs for 64-bit Arm run on other machines: as toolchains/qemu-aarch64.cmake says, with its reasons."""
import os

AARCH64 = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
if os.path.exists("/lib/ld-linux-aarch64.so.1"):
    AARCH64 += ["-E", "LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib"]

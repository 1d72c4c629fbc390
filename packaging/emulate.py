"""How programs for 64-bit Arm run on other machines: as toolchains/qemu-aarch64.cmake says, with its reasons."""
import os

BESIDE_LIBC6 = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", "LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib"]
AARCH64 = BESIDE_LIBC6 if os.path.exists("/lib/ld-linux-aarch64.so.1") else BESIDE_LIBC6[:3]

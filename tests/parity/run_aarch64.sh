#!/bin/sh
# Cross compiles the kernels and their parity tests for 64-bit Arm and runs them, under qemu-aarch64 where needed.
# Usage: tests/parity/run_aarch64.sh [build folder]
# Needs g++-aarch64-linux-gnu, qemu-user, googletest, cmake, ninja-build.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/aarch64}
missing=
command -v aarch64-linux-gnu-g++ >/dev/null || missing="$missing g++-aarch64-linux-gnu"
[ "$(uname -m)" = aarch64 ] || command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
[ -f /usr/src/googletest/CMakeLists.txt ] || missing="$missing googletest"
if [ -n "$missing" ]; then
  echo "run_aarch64.sh: these packages are missing:$missing" >&2
  exit 2
fi
cmake -S "$root/tests/parity" -B "$build" -G Ninja \
  -DCMAKE_TOOLCHAIN_FILE="$root/toolchains/linux-aarch64.cmake" >/dev/null
cmake --build "$build"
ctest --test-dir "$build" -j "${KVC_JOBS:-$(nproc)}" --output-on-failure --output-junit "$build/junit.xml"

# What ships for Linux on 64-bit Arm: runs with every C library from glibc 2.28 on.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(KVC_ZIG_TARGET aarch64-linux-gnu.2.28)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/qemu-aarch64.cmake)
option(KVC_SMALL "Optimise for size what is no kernel" ON)
option(KVC_REGEX_JIT "Compile PCRE2's just-in-time compiler, from KVC_THIRD_PARTY" OFF)

# What ships for Linux on x86-64: runs with every C library from glibc 2.28 on.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(KVC_ZIG_TARGET x86_64-linux-gnu.2.28)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)

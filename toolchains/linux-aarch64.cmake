# Linux on 64-bit Arm, with Debian's cross compiler. PCRE2 and utf8proc come from Debian's packages for that
# architecture (libpcre2-dev:arm64, libutf8proc-dev:arm64), or from sources: KVC_THIRD_PARTY. Programs run under
# qemu-aarch64 elsewhere.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_FLAGS_INIT -march=armv8-a)
set(CMAKE_CXX_FLAGS_INIT -march=armv8-a)
# Debian keeps the libraries of an architecture in /usr/lib/aarch64-linux-gnu, and headers for all in /usr/include.
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
include(${CMAKE_CURRENT_LIST_DIR}/qemu-aarch64.cmake)

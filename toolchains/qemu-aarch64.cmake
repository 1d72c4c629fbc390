# Programs for 64-bit Arm run under qemu-aarch64 on other machines, with the libraries of Debian's cross compiler.
find_program(KVC_QEMU qemu-aarch64 NO_CMAKE_FIND_ROOT_PATH)
if(KVC_QEMU AND NOT CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CMAKE_CROSSCOMPILING_EMULATOR ${KVC_QEMU} -L /usr/aarch64-linux-gnu)
  # Where libc6:arm64 is installed, the cross compiler's loader would take that C library, of another version, and hang.
  if(EXISTS /lib/ld-linux-aarch64.so.1)
    list(APPEND CMAKE_CROSSCOMPILING_EMULATOR -E LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib)
  endif()
endif()

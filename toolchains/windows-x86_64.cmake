# Windows 10 or newer on x86-64, with Zig's MinGW. Programs run under Wine elsewhere. See docs/boards.md.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(KVC_ZIG_TARGET x86_64-windows-gnu)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
find_program(KVC_WINE wine64 PATHS /usr/lib/wine NO_CMAKE_FIND_ROOT_PATH)
if(KVC_WINE)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${KVC_WINE})
endif()

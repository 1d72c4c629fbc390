# What the toolchain files that build with Zig's C and C++ compiler share; it carries the C libraries of many systems,
# old versions among them. Such a file sets KVC_ZIG_TARGET and includes this one. Zig is the PyPI package ziglang:
# ./dev package sets it up; by hand: pip install ziglang, or name its program in KVC_ZIG.
get_filename_component(KVC_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KVC_ZIG)
if(NOT KVC_ZIG)
  find_program(KVC_ZIG zig PATHS ${KVC_ROOT}/build-tools/ziglang NO_CMAKE_FIND_ROOT_PATH)
endif()
if(NOT KVC_ZIG)
  message(FATAL_ERROR "no Zig: ./dev package sets it up, or pip install ziglang and -DKVC_ZIG=PATH/ziglang/zig")
endif()

# CMake wants programs without arguments. Zig reads -march as the name of a processor, so features are spelled its
# way.
set(wrappers ${CMAKE_BINARY_DIR}/zig)
foreach(tool cc c++ ar ranlib)
  set(KVC_ZIG_TOOL ${tool})
  set(KVC_ZIG_ARGUMENTS "")
  if(tool MATCHES "^c")
    set(KVC_ZIG_ARGUMENTS "-target ${KVC_ZIG_TARGET}")
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/zig-tool.sh.in ${wrappers}/zig-${tool} @ONLY
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(CMAKE_C_COMPILER ${wrappers}/zig-cc)
set(CMAKE_CXX_COMPILER ${wrappers}/zig-c++)
set(CMAKE_AR ${wrappers}/zig-ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${wrappers}/zig-ranlib CACHE FILEPATH "")
set(CMAKE_C_FLAGS_INIT -g0)  # Zig writes debug information unless told otherwise
set(CMAKE_CXX_FLAGS_INIT -g0)
find_program(KVC_LLVM_STRIP llvm-strip NO_CMAKE_FIND_ROOT_PATH)
if(KVC_LLVM_STRIP)
  set(CMAKE_STRIP ${KVC_LLVM_STRIP} CACHE FILEPATH "")
endif()
find_program(KVC_LLVM_OBJCOPY llvm-objcopy NO_CMAKE_FIND_ROOT_PATH)
if(KVC_LLVM_OBJCOPY)
  set(CMAKE_OBJCOPY ${KVC_LLVM_OBJCOPY} CACHE FILEPATH "")
endif()
set(CMAKE_FIND_ROOT_PATH ${KVC_ROOT}/build-third-party)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
if(NOT DEFINED KVC_THIRD_PARTY)
  set(KVC_THIRD_PARTY ${KVC_ROOT}/build-third-party CACHE PATH "")
endif()

# libkvc.a holds the C++ runtime: its archives are where Zig keeps what it compiled, named when it links.
if(CMAKE_SYSTEM_NAME STREQUAL Linux AND NOT KVC_ZIG_RUNTIME)
  set(probe ${CMAKE_BINARY_DIR}/zig/probe.cc)
  file(WRITE ${probe} "#include <string>\nstd::string f() { return std::string(99, 'x'); }\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ZIG_VERBOSE_LINK=1 ${CMAKE_CXX_COMPILER} -O2 -fPIC -shared ${probe}
    -o ${probe}.so OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX MATCHALL "[^ ]*/lib(c\\+\\+|c\\+\\+abi|unwind|compiler_rt)\\.a" found "${said}")
  list(REMOVE_DUPLICATES found)
  set(KVC_ZIG_RUNTIME ${found} CACHE STRING "Archives of Zig's C++ runtime")
endif()
set(KVC_CXX_ARCHIVES ${KVC_ZIG_RUNTIME})
# Zig names what it compiles as it gets ready: without an order of ours libkvc.a would be other bytes the first time.
list(SORT KVC_CXX_ARCHIVES COMPARE FILE_BASENAME)
set(KVC_MERGE_LINKER ${KVC_ZIG} ld.lld)

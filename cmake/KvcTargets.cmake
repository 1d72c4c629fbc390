# Flags of everything we compile, and the functions that make a layer and a test.
add_library(kvc_flags INTERFACE)
set(KVC_UNDER_QEMU OFF)  # the tests run in QEMU's user mode: tests/support/emulated.h, alike in every part of a program
if(KVC_TESTS AND CMAKE_CROSSCOMPILING AND CMAKE_CROSSCOMPILING_EMULATOR MATCHES "qemu")
  set(KVC_UNDER_QEMU ON)
  target_compile_definitions(kvc_flags INTERFACE KVC_UNDER_QEMU)
endif()
set(KVC_WERROR_FLAG "")
if(KVC_WERROR)
  set(KVC_WERROR_FLAG -Werror)
endif()
target_include_directories(kvc_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(kvc_flags INTERFACE
  -ffunction-sections -fdata-sections  # what nobody calls does not ship
  -ffp-contract=off)  # the same arithmetic in every build; kernels use fused operations by name
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(kvc_flags INTERFACE -Wall -Wextra -Wshadow ${KVC_WERROR_FLAG}
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>)
endif()
if(KVC_TESTS_SHARED)  # every name can be had from outside, none is replaced from there: the code stays what it was
  target_compile_options(kvc_flags INTERFACE -fno-semantic-interposition)
endif()
if(WIN32)  # without its macros min and max
  target_compile_definitions(kvc_flags INTERFACE WIN32_LEAN_AND_MEAN NOMINMAX)
endif()
# Every build but the one that ships stops at an index out of range, and at a failed assert.
target_compile_definitions(kvc_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Release>>>:_GLIBCXX_ASSERTIONS>)
set(KVC_SANITIZE_FLAGS "")
foreach(kind IN LISTS KVC_SANITIZE)
  list(APPEND KVC_SANITIZE_FLAGS -fsanitize=${kind})
endforeach()
if(KVC_SANITIZE_FLAGS)
  # vptr needs RTTI, which the library has not.
  target_compile_options(kvc_flags INTERFACE ${KVC_SANITIZE_FLAGS} -fno-sanitize=vptr -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(kvc_flags INTERFACE ${KVC_SANITIZE_FLAGS})
  target_compile_options(kvc_flags INTERFACE -Wno-error)  # GCC warns of what is not there in instrumented code
endif()

# kvc_of_this_system(list): X_windows.cc takes the place of X.cc on Windows, and is nothing elsewhere.
function(kvc_of_this_system list)
  set(windows ${${list}})
  list(FILTER windows INCLUDE REGEX "_windows\\.cc$")
  list(REMOVE_ITEM ${list} ${windows})
  if(WIN32)
    list(TRANSFORM windows REPLACE "_windows\\.cc$" ".cc" OUTPUT_VARIABLE replaced)
    list(REMOVE_ITEM ${list} ${replaced})
    list(APPEND ${list} ${windows})
  endif()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# kvc_layer(name): every .cc of the folder as objects without RTTI, collected in KVC_OBJECTS for the libraries.
function(kvc_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  kvc_of_this_system(sources)
  add_library(kvc_${name} OBJECT ${sources})
  target_link_libraries(kvc_${name} PRIVATE kvc_flags)
  target_compile_options(kvc_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-rtti>)
  target_compile_definitions(kvc_${name} PRIVATE KVC_BUILDING)
  if(KVC_SMALL AND NOT name STREQUAL ops)
    target_compile_options(kvc_${name} PRIVATE $<$<CONFIG:Release>:-Os>)
  endif()
  set_property(GLOBAL APPEND PROPERTY KVC_LAYERS kvc_${name})
endfunction()

# kvc_skipped_test(name reason): a test whose tools are not here, for the run to report.
function(kvc_skipped_test name reason)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
endfunction()

# kvc_counts_memory(test): one that compares what malloc gave. Without the free blocks that each thread of glibc keeps,
# up to 235 KiB that count as given: an equality, whatever threads a runtime starts.
function(kvc_counts_memory test)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT GLIBC_TUNABLES=glibc.malloc.tcache_count=0)
endfunction()

# kvc_quick_to_compile(target): a program of the tests. What it tests is optimised, its own code need not be:
# that took most of the time of a build. Nor are the headers that all of them include read by each of them. Not for
# other systems: an emulator makes it slow, and Zig puts checks of its own into what is not optimised.
set(KVC_BUSY_TESTS attend_step_test attend_tile_test cache_attend_test cache_kv_cache_test convert_models_test
  device_parity_test model_tokenizer_readers_test panels_test suite_ruler_test
  tool_files_test)  # their own code takes more time to run than it takes to optimise
function(kvc_quick_to_compile target)
  if(NOT KVC_PRECOMPILE OR target IN_LIST KVC_BUSY_TESTS)
    return()
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  get_target_property(sources ${target} SOURCES)
  if(NOT sources MATCHES "\\.c$")
    if(NOT TARGET kvc_test_headers)
      file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/test_headers.cc CONTENT "int main() { return 0; }\n")
      add_executable(kvc_test_headers ${PROJECT_BINARY_DIR}/generated/test_headers.cc)
      target_link_libraries(kvc_test_headers PRIVATE kvc_flags GTest::gtest nlohmann_json::nlohmann_json)
      target_compile_options(kvc_test_headers PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
      target_precompile_headers(kvc_test_headers PRIVATE <gtest/gtest.h> <nlohmann/json.hpp>)
    endif()
    target_precompile_headers(${target} REUSE_FROM kvc_test_headers)
  endif()
endfunction()

# kvc_test_program(file.cc [libraries...]): one program a test file. kvc_test: the same, and ctest runs it.
# With KVC_TESTS_SHARED the shared library stands in front of the archives, which then have nothing left to give; tests
# are started in the build folder, wherever its tree lies.
function(kvc_test_program file)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  set(source ${PROJECT_SOURCE_DIR})
  set(binary ${PROJECT_BINARY_DIR})
  if(KVC_TESTS_SHARED)
    set(source ..)
    set(binary .)
    target_link_libraries(${name} PRIVATE kvc_tests_shared)
    set_target_properties(${name} PROPERTIES BUILD_RPATH_USE_ORIGIN ON)
  endif()
  target_link_libraries(${name} PRIVATE kvc_flags kvc_static GTest::gtest GTest::gtest_main ${ARGN})
  target_compile_definitions(${name} PRIVATE KVC_TEST_DATA="${source}/tests/data" KVC_SOURCE_DIR="${source}"
    KVC_BINARY_DIR="${binary}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  kvc_quick_to_compile(${name})
  if(KVC_UNDER_QEMU)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/small_machine.c)
    target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  endif()
endfunction()

function(kvc_test file)
  kvc_test_program(${file} ${ARGN})
  get_filename_component(name ${file} NAME_WE)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

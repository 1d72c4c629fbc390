# libkvc from the objects of all layers. Three libraries:
#   kvc         kvc::kvc, libkvc.so: exports kvc_* and needs the C library only
#   kvc_archive kvc::static, libkvc.a: one object that defines kvc_* and asks for the C library only, so that it links
#               in a C project and beside another PCRE2, FlatBuffers or C++ runtime
#   kvc_static  every name of the library's inside, for our own tests and programs; never installed
get_property(layers GLOBAL PROPERTY KVC_LAYERS)
set(objects "")
foreach(layer IN LISTS layers)
  list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()
list(APPEND objects ${KVC_THIRD_PARTY_OBJECTS})

add_library(kvc_static STATIC ${objects})
set_target_properties(kvc_static PROPERTIES OUTPUT_NAME kvc_internal)
target_link_libraries(kvc_static PRIVATE Threads::Threads ${KVC_THIRD_PARTY_ARCHIVES})

# What only the two libraries have that carry the C++ runtime.
set(runtime_objects "")
if(KVC_BUNDLE AND CMAKE_EXECUTABLE_FORMAT STREQUAL ELF AND NOT KVC_SANITIZE)
  add_library(kvc_no_demangle OBJECT ${PROJECT_SOURCE_DIR}/cmake/no_demangle.c)
  target_link_libraries(kvc_no_demangle PRIVATE kvc_flags)
  set(runtime_objects $<TARGET_OBJECTS:kvc_no_demangle>)
endif()

# What libkvc.so, kvc.dll or libkvc.dylib is made of. On Windows the functions of the C API are marked as exported,
# which those of an archive must not be.
set(shared_objects ${objects})
if(WIN32)
  get_target_property(sources kvc_api SOURCES)
  add_library(kvc_api_exported OBJECT ${sources})
  target_link_libraries(kvc_api_exported PRIVATE kvc_flags)
  target_compile_options(kvc_api_exported PRIVATE -fno-rtti)
  target_compile_definitions(kvc_api_exported PRIVATE KVC_BUILDING KVC_SHARED)
  list(REMOVE_ITEM shared_objects $<TARGET_OBJECTS:kvc_api>)
  list(APPEND shared_objects $<TARGET_OBJECTS:kvc_api_exported>)
endif()

# ---- libkvc.so -----------------------------------------------------------------------------------------------------
set(map ${PROJECT_SOURCE_DIR}/lib/api/kvc.map)
add_library(kvc SHARED ${shared_objects} ${runtime_objects})
set_target_properties(kvc PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS ${map})
target_link_libraries(kvc PRIVATE ${KVC_THIRD_PARTY_ARCHIVES} Threads::Threads $<BUILD_INTERFACE:kvc_flags>)
if(CMAKE_EXECUTABLE_FORMAT STREQUAL ELF)
  # 16 KB pages: what Android requires, and right on every other system.
  target_link_options(kvc PRIVATE LINKER:--version-script,${map} LINKER:--no-undefined LINKER:--gc-sections
    LINKER:-z,max-page-size=16384)
  if(KVC_BUNDLE AND NOT KVC_SANITIZE)
    target_link_options(kvc PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endif()

if(APPLE)  # found where the program that loads it looks, not where it was built; Zig's linker takes no list of exports
  include(CheckLinkerFlag)
  check_linker_flag(C "LINKER:-exported_symbol,_kvc_*" KVC_LINKER_TAKES_EXPORTS)
  set_target_properties(kvc PROPERTIES NO_SONAME ON)
  target_link_options(kvc PRIVATE "SHELL:-install_name @rpath/libkvc.0.dylib"
    $<$<BOOL:${KVC_LINKER_TAKES_EXPORTS}>:LINKER:-exported_symbol,_kvc_*>)
endif()
if(WIN32)  # kvc.dll, with libkvc.dll.a to link
  set_target_properties(kvc PROPERTIES PREFIX "")
  target_compile_definitions(kvc INTERFACE KVC_SHARED)
endif()

# ---- libkvc.a ------------------------------------------------------------------------------------------------------
# KVC_CXX_ARCHIVES: the archives of the C++ runtime that go into it; a toolchain file may name them.
if(NOT DEFINED KVC_CXX_ARCHIVES)
  set(KVC_CXX_ARCHIVES "")
  foreach(name libstdc++.a libgcc_eh.a libgcc.a)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${name} OUTPUT_VARIABLE found
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(EXISTS "${found}" AND IS_ABSOLUTE "${found}")
      list(APPEND KVC_CXX_ARCHIVES ${found})
    endif()
  endforeach()
endif()
if(NOT KVC_MERGE_LINKER)  # a toolchain file may name another, with arguments
  set(KVC_MERGE_LINKER ${CMAKE_LINKER})
endif()
set(left "")  # to the program that links it: names of libraries, or paths
set(inside ${KVC_THIRD_PARTY_ARCHIVES})
list(FILTER inside INCLUDE REGEX "\\.a$")
if(CMAKE_EXECUTABLE_FORMAT STREQUAL ELF AND KVC_BUNDLE AND NOT KVC_SANITIZE
    AND "${inside}" STREQUAL "${KVC_THIRD_PARTY_ARCHIVES}" AND CMAKE_OBJCOPY)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(of_config "")
  if(CMAKE_CONFIGURATION_TYPES)
    set(of_config _$<CONFIG>)
  endif()
  set(merged ${PROJECT_BINARY_DIR}/kvc_merged${of_config}.o)
  set(headers ${PROJECT_SOURCE_DIR}/include/kvc/kvc.h ${PROJECT_SOURCE_DIR}/include/kvc/kvc_experimental.h)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/kvc_merged${of_config}.rsp
    CONTENT "\"$<JOIN:${objects};${runtime_objects},\"\n\">\"\n")
  add_custom_command(OUTPUT ${merged}
    COMMAND ${CMAKE_COMMAND} "-DLINKER=${KVC_MERGE_LINKER}" "-DOBJCOPY=${CMAKE_OBJCOPY}" -DPYTHON=${Python3_EXECUTABLE}
      -DSTRIP=$<$<CONFIG:Release>:--strip-debug> -DOUTPUT=${merged}
      -DOBJECTS=${PROJECT_BINARY_DIR}/kvc_merged${of_config}.rsp "-DARCHIVES=${inside};${KVC_CXX_ARCHIVES}"
      "-DHEADERS=${headers}" -P ${PROJECT_SOURCE_DIR}/cmake/KvcMerge.cmake
    DEPENDS ${objects} ${runtime_objects} ${inside} ${PROJECT_SOURCE_DIR}/cmake/KvcMerge.cmake
      ${headers}
    COMMENT "Merging libkvc.a" VERBATIM)
  set_source_files_properties(${merged} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(kvc_archive STATIC ${merged})
  set(KVC_ARCHIVE_LANGUAGE CXX)
  if(KVC_CXX_ARCHIVES)
    set(KVC_ARCHIVE_LANGUAGE C)  # a project without C++ links it
  endif()
else()  # no such linker here: a plain archive, linked as C++
  add_library(kvc_archive STATIC ${objects})
  set(KVC_ARCHIVE_LANGUAGE CXX)
  set(left ${KVC_THIRD_PARTY_ARCHIVES})
  list(TRANSFORM left REPLACE "^.*/lib(pcre2-8|utf8proc)\\.[^/]*$" "\\1")  # wherever that system has them
  target_link_libraries(kvc_archive PRIVATE $<BUILD_INTERFACE:${KVC_THIRD_PARTY_ARCHIVES}>
    $<INSTALL_INTERFACE:${left}>)
endif()
set_target_properties(kvc_archive PROPERTIES OUTPUT_NAME kvc EXPORT_NAME static
  LINKER_LANGUAGE ${KVC_ARCHIVE_LANGUAGE} KVC_LEFT_TO_LINK "${left}")
target_link_libraries(kvc_archive PRIVATE Threads::Threads $<$<PLATFORM_ID:Linux,Android>:m>)

foreach(target kvc kvc_static kvc_archive)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
add_library(kvc::kvc ALIAS kvc)
add_library(kvc::static ALIAS kvc_archive)

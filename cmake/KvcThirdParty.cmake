# PCRE2 and utf8proc, which end up inside libkvc, and the headers of what else we use.
#
# KVC_THIRD_PARTY=FOLDER (packaging/third_party.py makes one): both are compiled from its sources, for any target and
# with our flags, and every header comes from it. Otherwise the system's: their archives where they are there.
set(KVC_THIRD_PARTY "" CACHE PATH "Folder with the sources of PCRE2 and utf8proc and the headers of the rest")
option(KVC_BUNDLE "Link PCRE2, utf8proc and the C++ runtime into libkvc.so" ON)
option(KVC_REGEX_JIT "Compile PCRE2's just-in-time compiler, from KVC_THIRD_PARTY" ON)
find_program(KVC_FLATC flatc REQUIRED)
find_package(Threads REQUIRED)

set(KVC_THIRD_PARTY_OBJECTS "")  # of sources
set(KVC_THIRD_PARTY_ARCHIVES "")  # of the system
if(KVC_THIRD_PARTY)
  include(${CMAKE_CURRENT_LIST_DIR}/third_party_sources.cmake)
  foreach(library pcre2 utf8proc)
    list(TRANSFORM KVC_${library}_SOURCES PREPEND ${KVC_THIRD_PARTY}/)
    add_library(kvc_${library} OBJECT ${KVC_${library}_SOURCES})
    target_compile_definitions(kvc_${library} PRIVATE ${KVC_${library}_DEFINITIONS})
    target_compile_options(kvc_${library} PRIVATE -w -ffunction-sections -fdata-sections
      -fno-asynchronous-unwind-tables -fno-unwind-tables  # plain C: nothing is thrown through it
      $<$<AND:$<BOOL:${KVC_SMALL}>,$<CONFIG:Release>>:-Os>)
    target_include_directories(kvc_${library} PRIVATE ${KVC_THIRD_PARTY}/include)
    list(APPEND KVC_THIRD_PARTY_OBJECTS $<TARGET_OBJECTS:kvc_${library}>)
  endforeach()
  target_include_directories(kvc_flags SYSTEM INTERFACE ${KVC_THIRD_PARTY}/include)
  target_compile_definitions(kvc_flags INTERFACE PCRE2_STATIC UTF8PROC_STATIC)
  foreach(header_only CLI11::CLI11 nlohmann_json::nlohmann_json)
    add_library(${header_only} INTERFACE IMPORTED GLOBAL)
  endforeach()
else()
  if(KVC_BUNDLE)
    set(pcre2_names libpcre2-8.a)
    set(utf8proc_names libutf8proc.a)
  endif()
  find_library(KVC_PCRE2 NAMES ${pcre2_names} pcre2-8 REQUIRED)
  find_library(KVC_UTF8PROC NAMES ${utf8proc_names} utf8proc REQUIRED)
  set(KVC_THIRD_PARTY_ARCHIVES ${KVC_PCRE2} ${KVC_UTF8PROC})
endif()

# cmake -DCMAKE_SYSTEM_PROCESSOR=x86_64 -P source_flags.cmake: which file of lib/ops/cpu needs which flags there, and
# what PCRE2 and utf8proc are compiled from and with. One line each: kind, name, value.
function(set_source_files_properties path)
  get_filename_component(name ${path} NAME)
  list(POP_FRONT ARGN)  # PROPERTIES
  list(POP_FRONT ARGN)  # COMPILE_OPTIONS
  string(GENEX_STRIP "${ARGN}" flags)
  string(REPLACE ";" " " flags "${flags}")
  message("isa ${name} ${flags}")
endfunction()
# No compiler is at hand to ask; build.sh asks the one that it is run with.
set(KVC_HAS_AVXVNNI ON)
set(KVC_HAS_AVX512BF16 ON)
set(KVC_HAS_I8MM ON)
include(${CMAKE_CURRENT_LIST_DIR}/../lib/ops/cpu/isa.cmake)
set(KVC_REGEX_JIT ON)
include(${CMAKE_CURRENT_LIST_DIR}/../cmake/third_party_sources.cmake)
foreach(library pcre2 utf8proc)
  foreach(source IN LISTS KVC_${library}_SOURCES)
    message("source ${library} ${source}")
  endforeach()
  foreach(definition IN LISTS KVC_${library}_DEFINITIONS)
    message("define ${library} ${definition}")
  endforeach()
endforeach()

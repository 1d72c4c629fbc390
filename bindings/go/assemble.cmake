# Makes the Go module that users build: the facade, and the flat layer that SWIG generates.
#   cmake -DSWIG=swig -DPYTHON=python3 -DVERSION=<of libkvc> -DSOURCE=<source tree> -DOUT=<folder>
#     [-DDATE=<seconds since 1970, else SOURCE_DATE_EPOCH or the last commit's>] [-DWERROR=-Werror] -P assemble.cmake
file(REMOVE_RECURSE ${OUT})
set(flat ${OUT}/internal/flat)
file(MAKE_DIRECTORY ${flat})
file(GLOB facade ${SOURCE}/bindings/go/*.go)
file(COPY ${facade} ${SOURCE}/bindings/go/go.mod DESTINATION ${OUT})
file(COPY ${SOURCE}/bindings/go/internal/flat/failure.go ${SOURCE}/bindings/go/internal/flat/version.go
  DESTINATION ${flat})
execute_process(COMMAND ${SWIG} -Wall ${WERROR} -go -cgo -module flat -I. -Iinclude
  -outdir ${flat} -o ${flat}/flat_wrap.c bindings/kvc.i WORKING_DIRECTORY ${SOURCE} COMMAND_ERROR_IS_FATAL ANY)
# Slices go to C as numbers. cgo allows a slice without pointers, also as a part of something that has some, but behind
# the pointer in SWIG's struct it only sees the whole, and panics. SWIG uses each slice behind the call in a way that
# keeps it on the heap, where nothing moves, until the call has returned.
file(READ ${flat}/flat.go text)
set(pointer "typedef struct { void* array; intgo len; intgo cap; } _goslice_;")
string(FIND "${text}" "${pointer}" typedef_at)
string(FIND "${text}" "Swig_escape_val = arg2" escape_at)
if(typedef_at EQUAL -1 OR escape_at EQUAL -1)
  message(FATAL_ERROR "${SWIG} passes slices in another way than this file knows")
endif()
string(REPLACE "${pointer}" "typedef struct { uintptr_t array; intgo len; intgo cap; } _goslice_;" text "${text}")
file(WRITE ${flat}/flat.go "${text}")
# One folder holds all, as a vendored copy of a module has no folder without Go files.
file(COPY ${SOURCE}/bindings/log_ring.c ${SOURCE}/bindings/log_ring.h DESTINATION ${flat})
foreach(name flat_wrap.c log_ring.c)
  file(READ ${flat}/${name} text)
  string(REPLACE "#include \"bindings/" "#include \"" text "${text}")
  file(WRITE ${flat}/${name} "${text}")
endforeach()
if(DATE)
  set(ENV{SOURCE_DATE_EPOCH} ${DATE})
endif()
# Users get it as sources, with LICENSE, NOTICE and its list of files.
execute_process(COMMAND ${PYTHON} ${SOURCE}/packaging/sbom.py ${OUT} --name kvc-go --version ${VERSION} --files ${OUT}
  --alone COMMAND_ERROR_IS_FATAL ANY)

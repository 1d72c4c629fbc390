# Makes the Go module that users build: the facade, and the flat layer that SWIG generates.
#   cmake -DSWIG=swig -DPYTHON=python3 -DVERSION=<of libkvc> -DSOURCE=<source tree> -DOUT=<folder>
#     [-DDATE=<seconds since 1970, else SOURCE_DATE_EPOCH or the last commit's>] -P assemble.cmake
file(REMOVE_RECURSE ${OUT})
set(flat ${OUT}/internal/flat)
file(MAKE_DIRECTORY ${flat})
file(GLOB facade ${SOURCE}/bindings/go/*.go)
file(COPY ${facade} ${SOURCE}/bindings/go/go.mod DESTINATION ${OUT})
file(COPY ${SOURCE}/bindings/go/internal/flat/failure.go DESTINATION ${flat})
execute_process(COMMAND ${SWIG} -Wall -Werror -go -cgo -module flat -I. -Iinclude
  -outdir ${flat} -o ${flat}/flat_wrap.c bindings/kvc.i WORKING_DIRECTORY ${SOURCE} COMMAND_ERROR_IS_FATAL ANY)
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

# The tests and samples of Go beside the module of this build, and their programs.
foreach(pair "tests/bindings/go|${TESTS}" "samples/go|${SAMPLES}")
  string(REPLACE "|" ";" pair ${pair})
  list(GET pair 0 from)
  list(GET pair 1 to)
  file(REMOVE_RECURSE ${to})
  file(COPY ${SOURCE}/${from}/ DESTINATION ${to})
  execute_process(COMMAND ${GO} mod edit -replace=kvc.dev/kvc=${MODULE} WORKING_DIRECTORY ${to}
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${GO} build -o ${to}/bin/ ./... WORKING_DIRECTORY ${to} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

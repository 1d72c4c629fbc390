# Merges the objects of a library, and what they need of some archives, into one object that defines kvc_* only.
# cmake -DLINKER= -DOBJCOPY= -DSTRIP= -DPYTHON= -DOUTPUT= -DOBJECTS=file -DARCHIVES= "-DHEADERS=kvc.h;.."
#   -P KvcMerge.cmake
#
# Groups are dissolved first: a group whose name became local would still be dropped by the final link in favour of the
# group of that name in somebody else's object, and our references would point at nothing.
cmake_policy(VERSION 3.25)
set(roots "")
set(declarations "")
foreach(header IN LISTS HEADERS)
  file(STRINGS ${header} lines REGEX "^(KVC_API|kvc_status) ")
  list(APPEND declarations ${lines})
endforeach()
foreach(declaration IN LISTS declarations)
  if(declaration MATCHES "(kvc_[a-z0-9_]+) *\\(")
    list(APPEND roots -u ${CMAKE_MATCH_1})
  endif()
endforeach()
list(FILTER ARCHIVES EXCLUDE REGEX "^$")
set(plain ${OUTPUT}.plain.o)
execute_process(COMMAND ${LINKER} -r --force-group-allocation --gc-sections ${roots} -o ${plain} @${OBJECTS}
  --start-group ${ARCHIVES} --end-group COMMAND_ERROR_IS_FATAL ANY)
if(PYTHON)
  execute_process(COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/plain_bindings.py ${plain} COMMAND_ERROR_IS_FATAL ANY)
endif()
# Names that nothing asks for any more go too: some are functions that an older C library has not.
execute_process(COMMAND ${OBJCOPY} ${STRIP} --wildcard --keep-global-symbol=kvc_* --strip-unneeded-symbol=*
  --strip-unneeded-symbol=!kvc_* ${plain} ${OUTPUT}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${plain})

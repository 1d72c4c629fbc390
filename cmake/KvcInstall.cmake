# cmake --install: the header, both libraries, the kvc program, and what find_package(kvc) and pkg-config read.
include(CMakePackageConfigHelpers)

set(KVC_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvc)
install(TARGETS kvc kvc_archive EXPORT kvcTargets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET kvc_tool)
  install(TARGETS kvc_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # As kvc completion writes them, which a test holds them to: a build for another machine cannot run its own.
  set(shell ${PROJECT_SOURCE_DIR}/tools/shell)
  install(FILES ${shell}/kvc.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${shell}/kvc.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME kvc)
  install(FILES ${shell}/_kvc DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${shell}/kvc.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
if(TARGET kvc_mpi)
  install(TARGETS kvc_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/kvc)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

# What people read, and what others bind further languages with.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/README.md
  ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The list of parts (SPDX); what ships has the hashes of its files besides (packaging/package.py).
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  set(parts --name libkvc --version ${PROJECT_VERSION})
  if(EXISTS "${KVC_THIRD_PARTY}/parts.json")
    list(APPEND parts --third-party ${KVC_THIRD_PARTY})
  endif()
  if(TARGET kvc_tool)
    list(APPEND parts --tools)
  endif()
  list(JOIN parts "]=] [=[" parts)
  set(place ${CMAKE_INSTALL_DOCDIR})
  cmake_path(ABSOLUTE_PATH place BASE_DIRECTORY "\${CMAKE_INSTALL_PREFIX}")
  install(CODE "execute_process(COMMAND [=[${Python3_EXECUTABLE}]=] [=[${PROJECT_SOURCE_DIR}/packaging/sbom.py]=]
    \"\$ENV{DESTDIR}${place}\" [=[${parts}]=] COMMAND_ERROR_IS_FATAL ANY)")
else()
  message(STATUS "Python was not found: the list of parts (SPDX) is not installed")
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" REGEX "/docs/site$" EXCLUDE)
# Without what their own builds leave there: samples/android/.gitignore.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/samples DESTINATION ${CMAKE_INSTALL_DATADIR}/kvc
  REGEX "/build(-[^/]*)?$" EXCLUDE PATTERN "__pycache__" EXCLUDE PATTERN ".gitignore" EXCLUDE
  PATTERN ".gradle" EXCLUDE PATTERN "local.properties" EXCLUDE REGEX "/android/app/libs$" EXCLUDE
  REGEX "/android/app/src/main/assets$" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/models/kvc_model.fbs DESTINATION ${CMAKE_INSTALL_DATADIR}/kvc)
set(bindings ${PROJECT_SOURCE_DIR}/bindings)
install(FILES ${bindings}/kvc.i ${bindings}/log_ring.h ${bindings}/log_ring.c ${bindings}/error_record.h
  DESTINATION ${CMAKE_INSTALL_DATADIR}/kvc/bindings)
foreach(language java csharp go python)
  install(FILES ${bindings}/${language}/typemaps.i DESTINATION ${CMAKE_INSTALL_DATADIR}/kvc/bindings/${language})
endforeach()

# The links of the documents were written for the sources. What is where, the first that has it counts; folders of this
# project alone, for documents in them are changed:
set(data ${CMAKE_INSTALL_DATADIR}/kvc)
set(places . ${CMAKE_INSTALL_DOCDIR} samples ${data}/samples include/kvc ${CMAKE_INSTALL_INCLUDEDIR}/kvc
  bindings ${data}/bindings models ${data})
set(arguments "")
while(places)
  list(POP_FRONT places from to)
  cmake_path(ABSOLUTE_PATH to BASE_DIRECTORY "\${CMAKE_INSTALL_PREFIX}")
  string(APPEND arguments " ${from} \"\$ENV{DESTDIR}${to}\"")
endwhile()
install(CODE "execute_process(COMMAND \"\${CMAKE_COMMAND}\" -P
  [=[${CMAKE_CURRENT_LIST_DIR}/installed_links.cmake]=]${arguments}
  COMMAND_ERROR_IS_FATAL ANY)")

install(EXPORT kvcTargets NAMESPACE kvc:: DESTINATION ${KVC_CMAKE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvcConfig.cmake.in ${PROJECT_BINARY_DIR}/kvcConfig.cmake
  INSTALL_DESTINATION ${KVC_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvcConfig.cmake ${PROJECT_BINARY_DIR}/kvcConfigVersion.cmake
  DESTINATION ${KVC_CMAKE_DIR})

# What the archive leaves to the final link.
get_target_property(left kvc_archive KVC_LEFT_TO_LINK)
get_target_property(language kvc_archive LINKER_LANGUAGE)
if(language STREQUAL CXX)
  if(APPLE)
    list(APPEND left c++)
  else()
    list(APPEND left stdc++)
  endif()
endif()
list(APPEND left m pthread)
list(TRANSFORM left PREPEND -l REGEX "^[^/]")
list(JOIN left " " KVC_PC_PRIVATE)
# kvc.pc finds its prefix from its own place, so an installed tree can be moved; but for folders with a whole path.
file(RELATIVE_PATH KVC_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" KVC_PC_PREFIX ${KVC_PC_PREFIX})
foreach(folder LIBDIR INCLUDEDIR)
  set(KVC_PC_${folder} ${CMAKE_INSTALL_${folder}})
  cmake_path(ABSOLUTE_PATH KVC_PC_${folder} BASE_DIRECTORY "\${prefix}")
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/kvc.pc.in ${PROJECT_BINARY_DIR}/kvc.pc @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/kvc-static.pc.in ${PROJECT_BINARY_DIR}/kvc-static.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvc.pc ${PROJECT_BINARY_DIR}/kvc-static.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

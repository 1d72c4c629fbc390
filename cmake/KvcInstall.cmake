# cmake --install: the header, both libraries, the kvc program, and what find_package(kvc) and pkg-config read.
include(CMakePackageConfigHelpers)

set(KVC_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvc)
install(TARGETS kvc kvc_static EXPORT kvcTargets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET kvc_tool)
  install(TARGETS kvc_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT kvcTargets NAMESPACE kvc:: DESTINATION ${KVC_CMAKE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvcConfig.cmake.in ${PROJECT_BINARY_DIR}/kvcConfig.cmake
  INSTALL_DESTINATION ${KVC_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvcConfig.cmake ${PROJECT_BINARY_DIR}/kvcConfigVersion.cmake
  DESTINATION ${KVC_CMAKE_DIR})

# kvc.pc finds its prefix from its own place, so an installed tree can be moved.
file(RELATIVE_PATH KVC_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" KVC_PC_PREFIX ${KVC_PC_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/kvc.pc.in ${PROJECT_BINARY_DIR}/kvc.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# What the tests of products with weights run besides (cases.h). After isa.cmake, which knows the flags.
foreach(test matmul_test panels_test)
  target_sources(${test} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/product_tables.cc ${CMAKE_CURRENT_LIST_DIR}/avxvnni_evex.cc)
endforeach()
# They are kernels: compiled as those of the library are.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/product_tables.cc ${CMAKE_CURRENT_LIST_DIR}/avxvnni_evex.cc
  PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "$<$<CONFIG:RelWithDebInfo>:-O2>")
if(KVC_AVX2)
  set_property(SOURCE ${CMAKE_CURRENT_LIST_DIR}/avxvnni_evex.cc APPEND PROPERTY COMPILE_OPTIONS
    ${KVC_AVX2} -mavx512vnni -mavx512vl)
endif()

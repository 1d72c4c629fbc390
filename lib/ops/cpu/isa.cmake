# Flags of the files that are compiled for one instruction set. On other processors these files make empty tables.
include(CheckCXXCompilerFlag)
set(KVC_ISA_DIR ${CMAKE_CURRENT_LIST_DIR})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # GCC notes that it passed large vectors differently before 4.6: none leave their file.
  set(KVC_AVX2 -mavx2 -mfma -mf16c $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi>)
  # GCC 12 warns of its own header: an undefined vector there is deliberate (GCC bug 105593).
  set(KVC_AVX512 ${KVC_AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -Wno-uninitialized
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  set_source_files_properties(${KVC_ISA_DIR}/isa_avx2.cc PROPERTIES COMPILE_OPTIONS "${KVC_AVX2}")
  if(NOT DEFINED KVC_HAS_AVXVNNI)
    check_cxx_compiler_flag(-mavxvnni KVC_HAS_AVXVNNI)  # GCC 11, clang 12
  endif()
  if(KVC_HAS_AVXVNNI)
    set_source_files_properties(${KVC_ISA_DIR}/isa_avxvnni.cc PROPERTIES COMPILE_OPTIONS "${KVC_AVX2};-mavxvnni")
  endif()
  set_source_files_properties(${KVC_ISA_DIR}/isa_avx512.cc PROPERTIES COMPILE_OPTIONS "${KVC_AVX512}")
  set_source_files_properties(${KVC_ISA_DIR}/isa_avx512vnni.cc PROPERTIES COMPILE_OPTIONS "${KVC_AVX512};-mavx512vnni")
  if(NOT DEFINED KVC_HAS_AVX512BF16)
    check_cxx_compiler_flag(-mavx512bf16 KVC_HAS_AVX512BF16)  # GCC 10, clang 9
  endif()
  if(KVC_HAS_AVX512BF16)
    set_source_files_properties(${KVC_ISA_DIR}/isa_avx512bf16.cc PROPERTIES
      COMPILE_OPTIONS "${KVC_AVX512};-mavx512vnni;-mavx512bf16")
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  if(NOT APPLE)  # Apple's all have dot products
    set_source_files_properties(${KVC_ISA_DIR}/isa_neondot.cc PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod")
  endif()
  if(NOT DEFINED KVC_HAS_I8MM)
    check_cxx_compiler_flag(-march=armv8.2-a+dotprod+i8mm KVC_HAS_I8MM)
  endif()
  if(KVC_HAS_I8MM)
    set_source_files_properties(${KVC_ISA_DIR}/isa_neoni8mm.cc PROPERTIES
      COMPILE_OPTIONS "-march=armv8.2-a+dotprod+i8mm")
  endif()
endif()

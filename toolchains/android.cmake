# What the toolchain files for Android share: API 26, the C++ runtime inside, 16 KB pages. KVC_ANDROID_NDK (a
# variable, or of the environment) is the folder of the NDK; such a file sets ANDROID_ABI first.
if(NOT KVC_ANDROID_NDK)
  set(KVC_ANDROID_NDK "$ENV{KVC_ANDROID_NDK}")
endif()
if(NOT EXISTS "${KVC_ANDROID_NDK}/build/cmake/android.toolchain.cmake")
  message(FATAL_ERROR "set KVC_ANDROID_NDK to the folder of an Android NDK (r26 or newer)")
endif()
set(ENV{KVC_ANDROID_NDK} "${KVC_ANDROID_NDK}")  # for the projects with which CMake tries the compiler
set(ANDROID_PLATFORM android-26)
set(ANDROID_STL c++_static)
set(ANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES ON)
include(${KVC_ANDROID_NDK}/build/cmake/android.toolchain.cmake)
get_filename_component(KVC_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT DEFINED KVC_THIRD_PARTY)
  set(KVC_THIRD_PARTY ${KVC_ROOT}/build-third-party CACHE PATH "")
endif()
option(KVC_SMALL "Optimise for size what is no kernel" ON)
option(KVC_REGEX_JIT "Compile PCRE2's just-in-time compiler, from KVC_THIRD_PARTY" OFF)

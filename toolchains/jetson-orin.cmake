# NVIDIA Jetson Orin (Cortex-A78AE, JetPack 5 or 6): as linux-aarch64, for its processor and (JetPack 6, CUDA 12) its
# GPU. The kernels for dot products are chosen at run time on every 64-bit Arm; what this adds is the rest of the code
# for that processor.
include(${CMAKE_CURRENT_LIST_DIR}/linux-aarch64.cmake)
set(CMAKE_C_FLAGS_INIT "-march=armv8.2-a -mtune=cortex-a78ae")
set(CMAKE_CXX_FLAGS_INIT "-march=armv8.2-a -mtune=cortex-a78ae")
set(CMAKE_CUDA_ARCHITECTURES 87)
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})

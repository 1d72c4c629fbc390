# A server with NVIDIA A100 GPUs: the compiler of this machine, the GPU's architecture.
set(CMAKE_CUDA_ARCHITECTURES 80)

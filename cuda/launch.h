// Launching. Shared memory beyond 48 KiB is asked for once a kernel (a device keeps it for the function).
#pragma once
#include "cuda/gpu.h"
#include "cuda/stream.h"

namespace kvc::cuda {

#if defined(__CUDACC__)
template <typename... Params>
cudaError_t PrepareKernel(void (*kernel)(Params...), const char*, size_t shared) {
  if (shared <= (48u << 10)) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
}
#else
template <typename... Params>
cudaError_t PrepareKernel(void (*kernel)(Params...), const char* name, size_t) {
  emu::Describe(kernel, name);
  return cudaSuccess;
}
#endif

template <typename... Params, typename... Args>
cudaError_t LaunchOn(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                     CudaStream& stream, Args&&... args) {
  const cudaError_t e = PrepareKernel(kernel, name, shared);
  if (e != cudaSuccess) return e;
  return stream.Launch({reinterpret_cast<const void*>(kernel), name}, grid, block, shared,
                       std::tuple<Params...>(static_cast<Params>(args)...));
}

}  // namespace kvc::cuda

#define KVC_LAUNCH(kernel, grid, block, shared, stream, ...) \
  ::kvc::cuda::LaunchOn(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)

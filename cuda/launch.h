// Launching of kernels that a KernelLoader has made ready.
#pragma once
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/stream.h"

namespace kvc::cuda {

template <typename... Params, typename... Args>
cudaError_t LaunchOn(const char* name, bool early, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared, CudaStream& stream, Args&&... args) {
  return stream.Launch({reinterpret_cast<const void*>(kernel), name, early}, grid, block, shared,
                       std::tuple<Params...>(static_cast<Params>(args)...));
}

}  // namespace kvc::cuda

#define KVC_LAUNCH(kernel, grid, block, shared, stream, ...) \
  ::kvc::cuda::LaunchOn(#kernel, false, kernel, grid, block, shared, stream, __VA_ARGS__)
// Of a kernel that calls WaitForEarlier first (gpu.h).
#define KVC_LAUNCH_EARLY(kernel, grid, block, shared, stream, ...) \
  ::kvc::cuda::LaunchOn(#kernel, true, kernel, grid, block, shared, stream, __VA_ARGS__)

// KVC_LAUNCH for tests that have kernels of their own, a stream of the runtime and no CudaStream.
#pragma once
#include "cuda/launch.h"

namespace kvc::cuda {

template <typename... Params, typename... Args>
cudaError_t LaunchOn(const char* name, bool, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                     cudaStream_t stream, Args&&... args) {
  KernelLoader loader;
  loader.Add(name, kernel, shared);
  if (loader.error() != cudaSuccess) return loader.error();
  std::tuple<Params...> values(static_cast<Params>(args)...);
  return std::apply(
      [&](Params&... value) {
        void* params[] = {&value...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, params, shared, stream);
      },
      values);
}

}  // namespace kvc::cuda

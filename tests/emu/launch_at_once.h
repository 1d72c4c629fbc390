// KVC_LAUNCH for tests that have kernels of their own, a stream of the runtime and no CudaStream.
#pragma once
#include "cuda/launch.h"

namespace kvc::cuda {

template <typename... Params, typename... Args>
cudaError_t LaunchOn(const char* name, bool early, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared, cudaStream_t stream, Args&&... args) {
  KernelLoader loader;
  loader.Add(name, kernel, shared);
  if (loader.error() != cudaSuccess) return loader.error();
  std::tuple<Params...> values(static_cast<Params>(args)...);
  return std::apply(
      [&](Params&... value) {
        void* params[] = {&value...};
        cudaLaunchAttribute begins = {cudaLaunchAttributeProgrammaticStreamSerialization, {early}};
        const cudaLaunchConfig_t config = {grid, block, shared, stream, &begins, 1};
        return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), params);
      },
      values);
}

}  // namespace kvc::cuda

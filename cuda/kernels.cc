#include "cuda/kernels.h"

#include <algorithm>

namespace kvc::cuda {

void KernelLoader::AddAll() {
#define KVC_KERNELS(File) Add##File##Kernels(this);
#include "cuda/kernels.list"
#undef KVC_KERNELS
}

// Attributes are asked for, which loads it. The limit of its shared memory is the function's, not a launch's:
// it is set once, so that no other user of the device lowers it between a launch and the next.
void KernelLoader::Load(const Kernel& kernel, size_t shared, bool most_shared) {
  constexpr size_t kOfEveryLaunch = 48 << 10;
  if (error_ != cudaSuccess) return;
  last_ = kernel.name;
  cudaFuncAttributes attributes;
  error_ = cudaFuncGetAttributes(&attributes, kernel.function);
  if (error_ == cudaSuccess) compiled_for_ = std::min(compiled_for_, attributes.ptxVersion);
  if (error_ == cudaSuccess && attributes.sharedSizeBytes + shared > kOfEveryLaunch)
    error_ = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared));
  if (error_ == cudaSuccess && most_shared)
    error_ = cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
}

}  // namespace kvc::cuda

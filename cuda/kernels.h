// The kernels there are. All are made ready when a device is opened: a program that has none for it is told
// then, and nothing is loaded in the middle of a step.
#pragma once
#include <climits>

#include "cuda/launches.h"

// shared: dynamic shared memory that it is launched with, at most; 0: little.
#define KVC_ADD(loader, kernel, shared) (loader)->Add(#kernel, kernel, shared)
// Of steps. A multiprocessor changes how its memory is split between the first-level cache and shared memory
// only while it is empty: kernels that begin beside each other all ask for the same.
#define KVC_ADD_STEP(loader, kernel, shared) (loader)->Add(#kernel, kernel, shared, true)

namespace kvc::cuda {

// Makes kernels ready in the thread's context, up to the first that does not run there.
class KernelLoader {
 public:
  void AddAll();
  template <typename... Params>
  void Add(const char* name, void (*kernel)(Params...), size_t shared, bool most_shared = false) {
#if !defined(__CUDACC__)
    emu::Describe(kernel, name);
#endif
    Load({reinterpret_cast<const void*>(kernel), name}, shared, most_shared);
  }
  cudaError_t error() const { return error_; }
  const char* last() const { return last_; }  // the kernel that had it
  // The least compute capability, in tenths, that any of them was compiled for: what an older one has not,
  // the driver's own compiler does not add.
  int compiled_for() const { return compiled_for_; }

 private:
  void Load(const Kernel& kernel, size_t shared, bool most_shared);
  cudaError_t error_ = cudaSuccess;
  const char* last_ = "";
  int compiled_for_ = INT_MAX;
};

// Of each file of kernels.list.
#define KVC_KERNELS(File) void Add##File##Kernels(KernelLoader* loader);
#include "cuda/kernels.list"
#undef KVC_KERNELS

}  // namespace kvc::cuda

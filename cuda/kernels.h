// The kernels there are. All are made ready when a device is opened: a program that has none for it is told
// then, and nothing is loaded in the middle of a step.
#pragma once
#include "cuda/launches.h"

// The files of kernels, each with a function AddStepKernels, say, that has its own.
#define KVC_KERNEL_FILES(X)                                                                               \
  X(Activate)                                                                                             \
  X(AttendPrompt) X(AttendStep) X(CacheOps) X(Combine) X(CountBest) X(FoldColumns) X(GemmF32) X(GemmMma)  \
      X(Gemv) X(Layers) X(Merge) X(Network) X(NormRows) X(Place) X(Route) X(Sample) X(Score) X(ScoreKeys) \
          X(ScoreRows) X(Select) X(Step) X(StepUpdate)

// shared: dynamic shared memory that it is launched with, at most; 0: little.
#define KVC_ADD(loader, kernel, shared) (loader)->Add(#kernel, kernel, shared)

namespace kvc::cuda {

// Makes kernels ready in the thread's context, up to the first that does not run there.
class KernelLoader {
 public:
  void AddAll();
  template <typename... Params>
  void Add(const char* name, void (*kernel)(Params...), size_t shared) {
#if !defined(__CUDACC__)
    emu::Describe(kernel, name);
#endif
    Load({reinterpret_cast<const void*>(kernel), name}, shared);
  }
  cudaError_t error() const { return error_; }
  const char* last() const { return last_; }  // the kernel that had it

 private:
  void Load(const Kernel& kernel, size_t shared);
  cudaError_t error_ = cudaSuccess;
  const char* last_ = "";
};

#define KVC_DECLARE(File) void Add##File##Kernels(KernelLoader* loader);
KVC_KERNEL_FILES(KVC_DECLARE)
#undef KVC_DECLARE

}  // namespace kvc::cuda

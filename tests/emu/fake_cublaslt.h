// A cuBLASLt for the emulated device, and what tests tell it (fake_cublaslt.cc).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace kvc::emu {

struct FakeBlas {
  // Of the test's program, whose emulator it is: a library of its own would have another.
  cudaError_t (*enqueue)(cudaStream_t, void (*)(void*), void*) = nullptr;
  bool starts = true;
  int64_t failing_find = -1, failing_multiply = -1;  // number of the first call that fails, and all behind it
  int64_t failing_multiplies = int64_t{1} << 62;     // or no more than so many
  int64_t finds = 0, multiplies = 0;                 // calls so far
  int64_t objects = 0;                               // that nobody has destroyed
  const char* broken_rule = nullptr;                 // what a call did that the library would not take
};

}  // namespace kvc::emu

extern "C" {
using kvc_fake_blas_function = kvc::emu::FakeBlas* (*)();
__attribute__((visibility("default"))) kvc::emu::FakeBlas* kvc_fake_blas();
}

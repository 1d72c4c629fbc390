// Kernels that leave activations in f32, whatever a processor or a GPU is fastest with.
#pragma once
#include "lib/ops/cpu/kernel_table.h"
#include "tests/support/environment.h"

namespace kvc::test {

// The fastest kernels that leave activations in f32 (on tensor cores: two numbers of 16 bits for each), for
// models and devices that are opened meanwhile: what is compared with another engine's or device's f32 is the
// model or the operation. How far the others are from it: reference_quantised_test.
class ExactKernels {
 public:
  ExactKernels() : kept_("KVC_ISA"), kept_round_("KVC_CUDA_ROUND"), kept_layers_("KVC_CUDA_F16_LAYERS") {
    SetVariable("KVC_CUDA_ROUND", "0"), SetVariable("KVC_CUDA_F16_LAYERS", "0");
    const KernelTable* tables[8];
    for (int n = RunnableKernels(tables, 8); BestKernels().round_row != nullptr && n > 0; --n)
      SetVariable("KVC_ISA", tables[n - 1]->name);
  }

 private:
  KeptVariable kept_, kept_round_, kept_layers_;
};

}  // namespace kvc::test

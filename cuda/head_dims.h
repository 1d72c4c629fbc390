// The head sizes that kernels with registers for a whole head are made for; others are filled with zeros to
// the next one.
#pragma once
#include <type_traits>

#include "cuda/cuda_device.h"

namespace kvc::cuda {

template <typename F>
cudaError_t ForHeadDims(int32_t d, F&& f) {
  if (d <= 32) return f(std::integral_constant<int, 32>());
  if (d <= 64) return f(std::integral_constant<int, 64>());
  if (d <= 96) return f(std::integral_constant<int, 96>());
  if (d <= 128) return f(std::integral_constant<int, 128>());
  static_assert(kMostHeadSize == 256);
  return f(std::integral_constant<int, 256>());
}

}  // namespace kvc::cuda

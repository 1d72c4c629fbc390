// The head sizes that kernels with registers for a whole head are made for; others are filled with zeros to
// the next one.
#pragma once
#include <type_traits>
#include <utility>

#include "cuda/cuda_device.h"

namespace kvc::cuda {

using HeadDims = std::integer_sequence<int, 32, 64, 96, 128, kMostHeadSize>;

template <typename F, int... kDims>
void ForEachOf(std::integer_sequence<int, kDims...>, F&& f) {
  (f(std::integral_constant<int, kDims>()), ...);
}
template <typename F>
void ForEachHeadDims(F&& f) {
  ForEachOf(HeadDims(), f);
}

// f for the one that heads of d dimensions take.
template <typename F>
cudaError_t ForHeadDims(int32_t d, F&& f) {
  cudaError_t e = cudaErrorInvalidValue;
  bool found = false;
  ForEachHeadDims([&](auto dims) {
    if (found || d > dims) return;
    found = true;
    e = f(dims);
  });
  return e;
}

}  // namespace kvc::cuda

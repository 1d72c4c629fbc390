// Kernels of the backend, launched by themselves: all of them loaded, and a stream.
#pragma once
#include <gtest/gtest.h>

#include <memory>

#include "cuda/kernels.h"
#include "cuda/stream.h"
#include "tests/emu/emulator.h"

namespace kvc::cuda {

class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    KernelLoader loader;
    loader.AddAll();
    ASSERT_EQ(cudaSuccess, loader.error());
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&real_, cudaStreamNonBlocking));
    stream_ = std::make_unique<CudaStream>(LaunchTraits());
    ASSERT_TRUE(stream_->Create(real_).ok());
  }
  void TearDown() override {
    stream_.reset();
    cudaStreamDestroy(real_);
    emu::GetOptions() = {};
  }

  cudaStream_t real_ = nullptr;
  std::unique_ptr<CudaStream> stream_;
};

}  // namespace kvc::cuda

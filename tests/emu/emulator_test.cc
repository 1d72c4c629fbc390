// The emulator does what CUDA promises, and refuses what a device would not survive: without this, a suite
// that passes on it would say little.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/block.h"
#include "tests/emu/emulator.h"
#include "tests/emu/launch_at_once.h"

namespace kvc::cuda {
namespace {

class EmulatorTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    emu::GetOptions().order = GetParam();
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    cudaStreamDestroy(stream_);
    emu::GetOptions() = {};
  }
  template <typename T>
  T* Device(int64_t n) {
    void* at = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&at, static_cast<size_t>(n) * sizeof(T)));
    return static_cast<T*>(at);
  }
  cudaStream_t stream_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Orders, EmulatorTest, testing::Values(0, 1, 2));

// Every thread reads what another wrote before the barrier, block by block and warp by warp.
__global__ void reverse(int32_t* x) {
  KVC_SHARED(int32_t, shared);
  const int n = BlockThreads(), i = ThreadOfBlock();
  int32_t* own = x + static_cast<int64_t>(blockIdx.x) * n;
  shared[i] = own[i];
  __syncthreads();
  own[i] = shared[n - 1 - i];
}

TEST_P(EmulatorTest, BarriersHoldBlocks) {
  constexpr int kBlocks = 7, kThreads = 96;
  int32_t* x = Device<int32_t>(kBlocks * kThreads);
  std::iota(x, x + kBlocks * kThreads, 0);
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH(reverse, dim3(kBlocks), dim3(kThreads), kThreads * 4, stream_, x));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  for (int b = 0; b < kBlocks; ++b) {
    for (int i = 0; i < kThreads; ++i) ASSERT_EQ(b * kThreads + kThreads - 1 - i, x[b * kThreads + i]);
  }
  cudaFree(x);
}

__global__ void warp_functions(int64_t* out) {
  const int lane = Lane();
  int64_t bad = 0;
  bad += WarpSum(lane + 1) != 528;
  bad += WarpMax(static_cast<float>(lane)) != 31.0f;
  bad += __shfl_xor_sync(kAllLanes, lane, 9) != (lane ^ 9);
  bad += __shfl_xor_sync(kAllLanes, lane, 4, 8) != (lane ^ 4);
  bad += __shfl_up_sync(kAllLanes, lane, 2u) != (lane >= 2 ? lane - 2 : lane);
  out[ThreadOfBlock()] = bad;
}

// A product of 16 x 16 by 16 x 8 whole numbers, its factors by LoadMatrices: out is the product as it should
// be minus what the warp has. b lies as [k, n] and is loaded transposed, or as [n, k] and is not.
template <bool kHalf, bool kTransposed>
__global__ void multiply(int32_t* wrong) {
  KVC_SHARED(uint16_t, shared);
  uint16_t *a = shared, *b = shared + 16 * 16;  // [16, 16], [16, 16] of which 8 columns are used
  const auto number = [](int x) {
    return kHalf ? ToHalfBits(static_cast<float>(x)) : ToBfBits(static_cast<float>(x));
  };
  for (int i = Lane(); i < 256; i += kWarp) a[i] = number(i % 23 - 11), b[i] = number(i % 19 - 9);
  __syncwarp();
  uint32_t left[4], right[4];
  LoadMatrices<false>(left, a + Lane() % 16 * 16 + Lane() / 16 * 8);
  const int row = kTransposed ? Lane() % 16 : Lane() % 8 + Lane() / 16 * 8,
            column = kTransposed ? Lane() / 16 * 8 : Lane() / 8 % 2 * 8;
  LoadMatrices<kTransposed>(right, b + row * 16 + column);
  float c[4] = {1, 2, 3, 4};
  const uint32_t first[2] = {right[0], right[1]};
  if (kHalf) {
    MmaHalf(c, left, first);
  } else {
    MmaBf16(c, left, first);
  }
  for (int i = 0; i < 4; ++i) {
    const int m = Lane() / 4 + i / 2 * 8, n = Lane() % 4 * 2 + i % 2;
    int sum = i + 1;
    for (int k = 0; k < 16; ++k)
      sum += ((m * 16 + k) % 23 - 11) * ((kTransposed ? k * 16 + n : n * 16 + k) % 19 - 9);
    if (c[i] != static_cast<float>(sum)) atomicAdd(wrong, 1);
  }
}

TEST_P(EmulatorTest, WarpsMultiply) {
  int32_t* wrong = Device<int32_t>(1);
  *wrong = 0;
  for (const auto kernel :
       {multiply<false, false>, multiply<false, true>, multiply<true, false>, multiply<true, true>})
    ASSERT_EQ(cudaSuccess, KVC_LAUNCH(kernel, dim3(1), dim3(32), 1024, stream_, wrong));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_EQ(0, *wrong);
  cudaFree(wrong);
}

// Bytes a[m][k] and b[k][n] in whole numbers.
template <bool kUnsigned>
__global__ void multiply_codes(int32_t* wrong) {
  const auto left = [](int m, int k) { return (m * 37 + k * 11) % 256 - (kUnsigned ? 0 : 128); };
  const auto right = [](int k, int n) { return (k * 29 + n * 53) % 256 - 128; };
  const int u = Lane() / 4, v = Lane() % 4;
  uint32_t a[4] = {}, b[2] = {};
  for (int i = 0; i < 4; ++i) {
    for (int byte = 0; byte < 4; ++byte) {
      const int k = 4 * v + byte + i / 2 * 16;
      a[i] |= static_cast<uint32_t>(static_cast<uint8_t>(left(u + i % 2 * 8, k))) << (8 * byte);
      if (i % 2 == 0) b[i / 2] |= static_cast<uint32_t>(static_cast<uint8_t>(right(k, u))) << (8 * byte);
    }
  }
  const int32_t c[4] = {1, -2, 3, 1 << 24};
  int32_t d[4];
  MmaCodes<kUnsigned>(d, a, b, c);
  for (int i = 0; i < 4; ++i) {
    int32_t sum = c[i];
    for (int k = 0; k < 32; ++k) sum += left(u + i / 2 * 8, k) * right(k, 2 * v + i % 2);
    if (d[i] != sum) atomicAdd(wrong, 1);
  }
  if (PickBytes<0x7250>(0x33221100u, 0x77665544u) != 0x77225500u) atomicAdd(wrong, 1);
}

TEST_P(EmulatorTest, WarpsMultiplyCodes) {
  int32_t* wrong = Device<int32_t>(1);
  *wrong = 0;
  for (const auto kernel : {multiply_codes<false>, multiply_codes<true>})
    ASSERT_EQ(cudaSuccess, KVC_LAUNCH(kernel, dim3(1), dim3(32), 0, stream_, wrong));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_EQ(0, *wrong);
  cudaFree(wrong);
}

// Two groups of copies. What is not waited for is not there.
__global__ void copies(const uint4* from, uint32_t* out, bool waits) {
  KVC_SHARED(uint4, shared);
  uint4* own = shared + 2 * Lane();
  CopyLater<16>(own, from + Lane());
  CloseCopies();
  CopyLater<4>(own + 1, from + Lane());
  CloseCopies();
  WaitForCopies<1>();
  out[3 * Lane()] = own->y, out[3 * Lane() + 1] = own[1].x;
  if (waits) WaitForCopies<0>();
  out[3 * Lane() + 2] = own[1].x;
}

TEST_P(EmulatorTest, CopiesAreLateAndWaitedFor) {
  uint4* from = Device<uint4>(32);
  uint32_t* out = Device<uint32_t>(96);
  for (uint32_t i = 0; i < 32; ++i) from[i] = {i, 100 + i, 0, 0};
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH(copies, dim3(1), dim3(32), 1024, stream_, from, out, true));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(100 + i, out[3 * i]);
    EXPECT_EQ(~0u, out[3 * i + 1]);
    EXPECT_EQ(i, out[3 * i + 2]);
  }
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH(copies, dim3(1), dim3(32), 1024, stream_, from, out, false));
  EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_))
      << "copies on their way into what is gone";
  emu::Recover();
  cudaFree(out);
  cudaFree(from);
}

// c and n products of 2^-25 each, all with c's sign.
__global__ void add_small(float c, int n, float* out) {
  const auto number = [&](int column) {
    return uint32_t{column < n ? ToHalfBits(std::copysign(std::ldexp(1.0f, -12), c)) : uint16_t{0}};
  };
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) {
    const int column = Lane() % 4 * 2 + i / 2 * 8;
    a[i] = number(column) | number(column + 1) << 16;
  }
  const uint32_t every = ToHalfBits(std::ldexp(1.0f, -13));
  const uint32_t b[2] = {every | every << 16, every | every << 16};
  float sum[4] = {c, c, c, c};
  MmaHalf(sum, a, b);
  for (int i = 0; i < 4; ++i) out[4 * Lane() + i] = sum[i];
}

// Tensor cores do not round: what does not make a whole last bit is lost, on both sides of zero.
TEST_P(EmulatorTest, ProductsAreCutOff) {
  const float bit = std::ldexp(1.0f, -23);
  float* out = Device<float>(128);
  for (const float sign : {1.0f, -1.0f}) {
    for (const int n : {0, 1, 3, 4, 7, 8, 15, 16}) {
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH(add_small, dim3(1), dim3(32), 0, stream_, sign, n, out));
      ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
      const float expected = sign * (1.0f + static_cast<float>(n / 4) * bit);
      for (int i = 0; i < 128; ++i) EXPECT_EQ(expected, out[i]) << n;
    }
  }
  cudaFree(out);
}

TEST_P(EmulatorTest, WarpsExchange) {
  int64_t* out = Device<int64_t>(64);
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH(warp_functions, dim3(1), dim3(64), 0, stream_, out));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(0, out[i]) << i;
  cudaFree(out);
}

// Copies are there behind the wait for their group, and nothing that was there before is, from the start.
__global__ void copies_late(const uint16_t* x, uint16_t* seen) {
  KVC_SHARED(uint16_t, shared);
  uint16_t* own = shared + ThreadOfBlock() * 24;
  for (int i = 0; i < 24; ++i) own[i] = 7;
  for (int i = 0; i < 3; ++i) {
    CopyLater<16>(own + 8 * i, x + 8 * i, i < 2);
    CloseCopies();
  }
  const auto look = [&](int at) {
    for (int i = 0; i < 3; ++i) seen[(ThreadOfBlock() * 3 + at) * 3 + i] = own[8 * i + 1];
  };
  look(0);
  WaitForCopies<2>();
  look(1);
  WaitForCopies<0>();
  look(2);
}

TEST_P(EmulatorTest, CopiesAreLate) {
  constexpr int kThreads = 40;
  uint16_t *x = Device<uint16_t>(24), *seen = Device<uint16_t>(9 * kThreads);
  for (uint16_t i = 0; i < 24; ++i) x[i] = static_cast<uint16_t>(100 + i);
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH(copies_late, dim3(1), dim3(kThreads), kThreads * 48, stream_, x, seen));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  for (int t = 0; t < kThreads; ++t) {
    const std::vector<uint16_t> found(seen + 9 * t, seen + 9 * t + 9);
    const std::vector<uint16_t> right = {0xffff, 0xffff, 0xffff, 101, 0xffff, 0xffff, 101, 109, 0};
    ASSERT_EQ(right, found) << t;
  }
  cudaFree(x), cudaFree(seen);
}

// The block functions against the same thing in a line of C++.
__global__ void block_functions(const float* x, int32_t n, int32_t count, uint8_t* mark, uint64_t* keys,
                                int32_t* kept) {
  __shared__ BlockSpace space;
  BlockMarkTop([&](int32_t i) { return ScoreBits(x[i]); }, n, count, &space,
               [&](int32_t i, bool yes) { mark[i] = yes ? 1 : 0; });
  for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads())
    keys[i] = SelectionKeyOf(x[i], static_cast<uint32_t>(i));
  __syncthreads();
  BlockSort(keys, n);
  const int32_t total = BlockCompact(
      n, &space, [&](int32_t i) { return mark[i] != 0; }, [&](int32_t i, int32_t place) { kept[place] = i; });
  if (ThreadOfBlock() == 0) kept[n] = total;
}

TEST_P(EmulatorTest, BlocksChooseSortAndCompact) {
  for (const int32_t n : {1, 2, 31, 127, 128, 129, 1000}) {
    for (const int32_t count : {0, 1, n / 3, n - 1, n}) {
      float* x = Device<float>(n);
      uint8_t* mark = Device<uint8_t>(n);
      uint64_t* keys = Device<uint64_t>(2 * n);
      int32_t* kept = Device<int32_t>(n + 1);
      uint32_t seed = 17;
      for (int32_t i = 0; i < n; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = i % 7 == 3 ? NAN : static_cast<float>(seed >> 28) - 7.0f;  // many are equal
      }
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH(block_functions, dim3(1), dim3(kBlock), 0, stream_, x, n, count, mark,
                                        keys, kept));
      ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
      std::vector<uint64_t> want(static_cast<size_t>(n));
      for (int32_t i = 0; i < n; ++i)
        want[static_cast<size_t>(i)] = SelectionKeyOf(x[i], static_cast<uint32_t>(i));
      std::vector<uint64_t> sorted = want;
      std::sort(sorted.begin(), sorted.end());
      for (int32_t i = 0; i < n; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], keys[i]);
      int32_t at = 0;
      for (int32_t i = 0; i < n; ++i) {
        const bool best = count > 0 && want[static_cast<size_t>(i)] >= sorted[static_cast<size_t>(n - count)];
        EXPECT_EQ(best ? 1 : 0, mark[i]) << n << " " << count << " " << i;
        if (best) {
          EXPECT_EQ(i, kept[at++]);
        }
      }
      EXPECT_EQ(count, kept[n]);
      for (void* p : {static_cast<void*>(x), static_cast<void*>(mark), static_cast<void*>(keys),
                      static_cast<void*>(kept)})
        cudaFree(p);
    }
  }
}

// What streams are for: nothing happens before somebody waits, and copies from pinned memory read it then.
TEST_P(EmulatorTest, StreamsAreLate) {
  int32_t* x = Device<int32_t>(2);
  void* pinned = nullptr;
  ASSERT_EQ(cudaSuccess, cudaHostAlloc(&pinned, 8, cudaHostAllocDefault));
  int32_t* host = static_cast<int32_t*>(pinned);
  host[0] = 1;
  int32_t pageable = 5;
  ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(x, host, 4, cudaMemcpyHostToDevice, stream_));
  ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(x + 1, &pageable, 4, cudaMemcpyHostToDevice, stream_));
  host[0] = 2, pageable = 6;
  EXPECT_EQ(-1, x[0]);
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_EQ(2, x[0]);
  EXPECT_EQ(5, x[1]);
  cudaFree(x);
  cudaFreeHost(pinned);
}

// What waits for an event takes as much of the other stream with it as was there when that was recorded.
TEST_P(EmulatorTest, StreamsFollowEachOther) {
  for (const bool eager : {false, true}) {
    SCOPED_TRACE(eager);
    emu::GetOptions().eager = eager;
    cudaStream_t other = nullptr;
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, 0));
    ASSERT_EQ(cudaSuccess, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    EXPECT_EQ(cudaSuccess, cudaStreamWaitEvent(other, event, 0)) << "never recorded: nothing to wait for";
    uint8_t* x = Device<uint8_t>(4);
    std::fill(x, x + 4, uint8_t{9});
    cudaMemsetAsync(x, 1, 1, stream_);
    ASSERT_EQ(cudaSuccess, cudaEventRecord(event, stream_));
    cudaMemsetAsync(x + 1, 1, 1, stream_);
    cudaMemsetAsync(x + 2, 1, 1, other);
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(other));
    const uint8_t late = eager ? 1 : 9;
    EXPECT_EQ(std::vector<uint8_t>(x, x + 3), (std::vector<uint8_t>{late, late, 1}));
    ASSERT_EQ(cudaSuccess, cudaStreamWaitEvent(other, event, 0));
    cudaMemcpyAsync(x + 3, x, 1, cudaMemcpyDeviceToDevice, other);
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(other));
    EXPECT_EQ(std::vector<uint8_t>(x, x + 4), (std::vector<uint8_t>{1, late, 1, 1}));
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    EXPECT_EQ(1, x[1]);
    cudaEventDestroy(event), cudaStreamDestroy(other), cudaFree(x);
  }
}

TEST_P(EmulatorTest, MemoryHasAnEnd) {
  emu::GetOptions().memory = 1 << 20;
  void *first = nullptr, *second = nullptr;
  EXPECT_EQ(cudaSuccess, cudaMalloc(&first, 600 << 10));
  EXPECT_EQ(cudaErrorMemoryAllocation, cudaMalloc(&second, 600 << 10));
  cudaFree(first);
  EXPECT_EQ(cudaSuccess, cudaMalloc(&second, 600 << 10));
  cudaFree(second);
}

TEST_P(EmulatorTest, RefusesWhatADeviceRefuses) {
  int32_t* x = Device<int32_t>(1);
  EXPECT_NE(cudaSuccess, KVC_LAUNCH(reverse, dim3(1), dim3(2048), 4, stream_, x));
  EXPECT_NE(cudaSuccess, KVC_LAUNCH(reverse, dim3(0), dim3(32), 4, stream_, x));
  EXPECT_NE(cudaSuccess, KVC_LAUNCH(reverse, dim3(1), dim3(32), 200 << 10, stream_, x));
  cudaFree(x);
}

// A kernel is loaded by whoever opens the device; who forgets one would load it in the middle of a step.
__global__ void forgotten(int32_t* x) { *x = 1; }

TEST_P(EmulatorTest, RefusesKernelsThatNobodyMadeReady) {
  int32_t* x = Device<int32_t>(1);
  void* params[] = {&x};
  const void* kernel = reinterpret_cast<const void*>(forgotten);
  static bool made_ready = false;  // stays so
  if (!made_ready) {
    EXPECT_EQ(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(kernel, dim3(1), dim3(1), params, 0, stream_));
  }
  made_ready = true;
  KernelLoader loader;
  KVC_ADD(&loader, forgotten, 0);
  EXPECT_EQ(cudaSuccess, loader.error());
  EXPECT_EQ(cudaSuccess, cudaLaunchKernel(kernel, dim3(1), dim3(1), params, 0, stream_));
  // More shared memory than every kernel has is asked for once, and stays when others ask for less of it.
  EXPECT_NE(cudaSuccess, cudaLaunchKernel(kernel, dim3(1), dim3(1), params, 60 << 10, stream_));
  KVC_ADD(&loader, forgotten, 60 << 10);
  EXPECT_EQ(cudaSuccess, cudaLaunchKernel(kernel, dim3(1), dim3(1), params, 60 << 10, stream_));
  KVC_ADD(&loader, forgotten, 0);
  EXPECT_EQ(cudaSuccess, cudaLaunchKernel(kernel, dim3(1), dim3(1), params, 60 << 10, stream_));
  EXPECT_EQ(cudaSuccess, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 0));
  EXPECT_NE(cudaSuccess, cudaLaunchKernel(kernel, dim3(1), dim3(1), params, 4, stream_));
  EXPECT_EQ(cudaSuccess, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 << 10));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_EQ(1, *x);
  cudaFree(x);
}

// A kernel that may begin early waits in all of its threads; half of those of this one forget it.
__global__ void waits_by_half(int32_t* x, bool all) {
  if (all || Lane() < 16) WaitForEarlier();
  if (ThreadOfBlock() == 0) x[blockIdx.x] = 1;
}

TEST_P(EmulatorTest, AnEarlyKernelThatDoesNotWaitFailsTheLaunch) {
  int32_t* x = Device<int32_t>(3);
  KernelLoader loader;
  KVC_ADD(&loader, waits_by_half, 0);
  cudaLaunchAttribute early = {cudaLaunchAttributeProgrammaticStreamSerialization, {1}};
  const cudaLaunchConfig_t config = {dim3(3), dim3(32), 0, stream_, &early, 1};
  for (bool all : {true, false}) {
    void* params[] = {&x, &all};
    const auto* kernel = reinterpret_cast<const void*>(waits_by_half);
    ASSERT_EQ(cudaSuccess, cudaLaunchKernelExC(&config, kernel, params));
    EXPECT_EQ(all ? cudaSuccess : cudaErrorLaunchFailure, cudaStreamSynchronize(stream_));
    // Launched as any other it need not.
    emu::Recover();
    ASSERT_EQ(cudaSuccess, cudaLaunchKernel(kernel, dim3(3), dim3(32), params, 0, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  }
  cudaFree(x);
}

__global__ void half_a_barrier(int32_t* x) {
  if (Lane() < 16) __syncwarp();
  if (Lane() >= 16) __syncthreads();
  *x = 1;
}

TEST_P(EmulatorTest, ABarrierThatNotAllReachFailsTheLaunch) {
  void* x = nullptr;
  ASSERT_EQ(cudaSuccess, cudaMalloc(&x, 4));
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH(half_a_barrier, dim3(1), dim3(32), 0, nullptr, static_cast<int32_t*>(x)));
  EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(nullptr));
  EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(stream_)) << "a device that has failed stays so";
  emu::Recover();
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  cudaFree(x);
}

}  // namespace
}  // namespace kvc::cuda
